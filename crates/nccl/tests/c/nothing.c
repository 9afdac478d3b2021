/* Calls of nothing meet those of other ranks, whatever the addresses are: NULL at one rank, GPU memory at another. The
 * driver is the one that the library has, a fake.
 *
 *   nothing */
#include "check.h"

static void body(int rank, int ranks, ncclUniqueId id) {
  int *there, *own;
  ncclComm_t comm;
  OK(ncclCommInitRank(&comm, ranks, id, rank));
  OK(ncclMemAlloc((void**)&there, 128 * sizeof(int)));
  for (int i = 0; i < 64; i++) there[i] = rank;
  for (int round = 0; round < 4; round++) {
    own = (round + rank) % 2 == 0 ? NULL : there;
    OK(ncclSend(own, 0, ncclInt, 1 - rank, comm, NULL));
    OK(ncclRecv(own, 0, ncclInt, 1 - rank, comm, NULL));
    OK(ncclAllReduce(own, own, 0, ncclInt, ncclSum, comm, NULL));
    /* Here one rank has something besides: to itself. */
    OK(ncclGroupStart());
    OK(ncclSend(own, 0, ncclInt, 1 - rank, comm, NULL));
    OK(ncclRecv(own, 0, ncclInt, 1 - rank, comm, NULL));
    if (round % 2 == rank) {
      OK(ncclSend(there, 32, ncclInt, rank, comm, NULL));
      OK(ncclRecv(there + 32, 32, ncclInt, rank, comm, NULL));
    }
    OK(ncclGroupEnd());
    OK(ncclAllReduce(there, there + 64, 64, ncclInt, ncclSum, comm, NULL));
  }
  OK(ncclCommFinalize(comm));
  OK(ncclCommDestroy(comm));
  for (int i = 0; i < 64; i++) CHECK(there[64 + i] == 1);
  OK(ncclMemFree(there));
}

int main(void) {
  limit();
  processes(2, -1, body);
  return 0;
}

/* Several communicators on one GPU, which is that of a fake driver: what one thread calls on them in a group, and how it
 * gives them up.
 *
 *   several */
#include "driver.h"

#define COUNT 1000

/* Waits until the values are what they should be: there is no stream to wait for here. */
static void arrive(volatile int* values, int wanted) {
  double start = seconds();
  for (int i = 0; i < COUNT; i++) {
    while (values[i] != wanted) {
      if (seconds() - start > 60) FAIL("%d after a minute, not %d", values[i], wanted);
      pause_ms(1);
    }
  }
}

static void sums(int* values, int* others, ncclComm_t comm, ncclComm_t second) {
  OK(ncclGroupStart());
  OK(ncclAllReduce(values, values, COUNT, ncclInt, ncclSum, comm, NULL));
  OK(ncclAllReduce(others, others, COUNT, ncclInt, ncclSum, second, NULL));
}

static void body(int rank, int ranks, ncclUniqueId id) {
  int *values, *others, here[COUNT] = {0};
  ncclComm_t comm, second;
  ncclResult_t state;
  void *captured, *graph;
  OK(ncclCommInitRank(&comm, ranks, id, rank));
  OK(ncclCommSplit(comm, 0, rank, &second, NULL));
  OK(ncclMemAlloc((void**)&values, COUNT * sizeof(int)));
  OK(ncclMemAlloc((void**)&others, 2 * COUNT * sizeof(int)));
  for (int i = 0; i < COUNT; i++) values[i] = others[i] = others[COUNT + i] = 1;
  if (rank == 0) {
    /* Of a group of which one call is refused nothing is done: the other ranks wait for what comes after it. */
    sums(values, here, comm, second);
    REFUSED(ncclInvalidUsage, "another in the host's", (
        ncclAllReduce(here, values, COUNT, ncclInt, ncclSum, second, NULL), ncclGroupEnd()));
    OK(ncclGroupStart());
    OK(ncclAllReduce(values, values, COUNT, ncclInt, ncclSum, comm, NULL));
    OK(ncclAllReduce(others, others + 1, COUNT, ncclInt, ncclSum, second, NULL));
    REFUSED(ncclInvalidArgument, "overlap", ncclGroupEnd());
    use_the_driver();
    DRIVER(cuStreamCreate, (void**, unsigned), &captured, 1);
    DRIVER(cuStreamBeginCapture_v2, (void*, int), captured, 1);
    sums(values, others, comm, second);
    OK(ncclAllReduce(others, others, COUNT, ncclInt, ncclSum, second, (cudaStream_t)captured));
    REFUSED(ncclInvalidUsage, "captured", ncclGroupEnd());
    DRIVER(cuStreamEndCapture, (void*, void**), captured, &graph);
  }
  sums(values, others, comm, second);
  OK(ncclGroupEnd());
  arrive(values, ranks);
  arrive(others, ranks);
  OK(ncclAllReduce(values, values, COUNT, ncclInt, ncclSum, comm, NULL));
  arrive(values, ranks * ranks);
  /* Kernels of both wait; the memory of the first is given back though those of the second are not over. */
  if (rank == 0) {
    sums(values, others, comm, second);
    OK(ncclGroupEnd());
    pause_ms(100);
    OK(ncclCommAbort(comm));
    OK(ncclCommAbort(second));
  } else {
    do {
      OK(ncclCommGetAsyncError(second, &state));
      pause_ms(1);
    } while (state == ncclSuccess);
    CHECK(state == ncclRemoteError);
    OK(ncclGroupStart());
    OK(ncclCommAbort(second));
    OK(ncclCommAbort(comm));
    OK(ncclGroupEnd());
  }
  OK(ncclCommDestroy(second));
  OK(ncclCommDestroy(comm));
}

/* GPUs that are not there are named. */
static void no_such_gpu(void) {
  int devices[2] = {0, 7};
  ncclComm_t comms[2];
  REFUSED(ncclInvalidArgument, "devlist[1] is 7", ncclCommInitAll(comms, 2, devices));
  CHECK(comms[0] == NULL);
  REFUSED(ncclInvalidArgument, "the device of rank 1 is 1", ncclCommInitAll(comms, 2, NULL));
  devices[1] = 0;
  OK(ncclCommInitAll(comms, 2, devices));
  for (int rank = 0; rank < 2; rank++) OK(ncclCommDestroy(comms[rank]));
}

int main(void) {
  limit();
  processes(2, -1, body);
  no_such_gpu();
  return 0;
}

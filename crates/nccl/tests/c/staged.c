/* Calls on GPU memory of ranks that do not reach each other's: each rank says it is on a host of its own, and
 * "GPU memory" is that of a fake driver, which the processor can read and write.
 *
 *   staged all|mixed|killed       with `mixed` rank 0 has no GPU; with `killed` rank 1 dies */
#include "driver.h"

#define RANKS 3
#define COUNT 100000

static int mixed, killed;

/* Waits until a word is what it should be: there is no stream to wait for here. */
static void arrives(volatile int* word, int wanted) {
  double start = seconds();
  while (*word != wanted) {
    if (seconds() - start > 60) FAIL("%d after a minute, not %d", *word, wanted);
    pause_ms(1);
  }
}

static void body(int rank, int ranks, ncclUniqueId id) {
  char name[16];
  int *input, *output;
  ncclComm_t comm;
  snprintf(name, sizeof name, "%d", rank);
  CHECK(setenv("NCCL_HOSTID", name, 1) == 0);
  if (mixed && rank == 0) CHECK(setenv("RINGWAY_GPU", "0", 1) == 0);
  OK(ncclCommInitRank(&comm, ranks, id, rank));
  OK(ncclMemAlloc((void**)&input, COUNT * sizeof(int)));
  OK(ncclMemAlloc((void**)&output, COUNT * ranks * sizeof(int)));
  for (int i = 0; i < COUNT; i++) input[i] = rank + i;
  if (!mixed) {
    /* A kernel cannot read what the processor has; here or on any rank nothing happens. */
    int here[4] = {0};
    CHECK(ncclAllReduce(here, output, 4, ncclInt, ncclSum, comm, NULL) == ncclInvalidUsage);
    CHECK(strstr(ncclGetLastError(comm), "another in the host's") != NULL);
    CHECK(ncclAllReduce(input, here, 4, ncclInt, ncclSum, comm, NULL) == ncclInvalidUsage);
  }
  if (mixed) {
    /* Of a group of two communicators nothing is done where the call on the second is refused. */
    ncclComm_t second;
    OK(ncclCommSplit(comm, 0, rank, &second, NULL));
    if (rank == 1) {
      void *captured, *graph;
      int* pinned;
      use_the_driver();
      DRIVER(cuMemHostAlloc, (void**, size_t, unsigned), (void**)&pinned, COUNT * sizeof(int), 0);
      DRIVER(cuStreamCreate, (void**, unsigned), &captured, 1);
      DRIVER(cuStreamBeginCapture_v2, (void*, int), captured, 1);
      OK(ncclGroupStart());
      OK(ncclAllReduce(input, output, COUNT, ncclInt, ncclSum, comm, NULL));
      OK(ncclAllReduce(pinned, pinned, COUNT, ncclInt, ncclSum, second, (cudaStream_t)captured));
      REFUSED(ncclInvalidUsage, "captured", ncclGroupEnd());
      DRIVER(cuStreamEndCapture, (void*, void**), captured, &graph);
    }
    OK(ncclCommDestroy(second));
  }
  OK(ncclAllReduce(input, output, COUNT, ncclInt, ncclSum, comm, NULL));
  for (int i = 0; i < COUNT; i++) arrives(&output[i], ranks * i + ranks * (ranks - 1) / 2);
  if (killed) {
    ncclResult_t state = ncclSuccess;
    double start = seconds();
    if (rank == 1) raise(SIGKILL);
    /* A kernel waits for the dead one, and ends; or the call is refused already. */
    (void)ncclAllReduce(input, output, COUNT, ncclInt, ncclSum, comm, NULL);
    while (state == ncclSuccess) {
      OK(ncclCommGetAsyncError(comm, &state));
      if (seconds() - start > 60) FAIL("no error after a minute");
      pause_ms(1);
    }
    CHECK(state == ncclRemoteError);
    CHECK(strstr(ncclGetLastError(comm), "rank 1") != NULL);
    OK(ncclCommAbort(comm));
    return;
  }
  OK(ncclAllGather(input, output, COUNT, ncclInt, comm, NULL));
  for (int i = 0; i < COUNT * ranks; i++) arrives(&output[i], i / COUNT + i % COUNT);
  OK(ncclGroupStart());
  OK(ncclSend(input, COUNT, ncclInt, (rank + 1) % ranks, comm, NULL));
  OK(ncclRecv(output, COUNT, ncclInt, (rank + ranks - 1) % ranks, comm, NULL));
  OK(ncclGroupEnd());
  for (int i = 0; i < COUNT; i++) arrives(&output[i], (rank + ranks - 1) % ranks + i);
  OK(ncclCommDestroy(comm));
  OK(ncclMemFree(input));
  OK(ncclMemFree(output));
}

int main(int count, char** arguments) {
  CHECK(count == 2);
  mixed = !strcmp(arguments[1], "mixed");
  killed = !strcmp(arguments[1], "killed");
  limit();
  processes(RANKS, killed ? 1 : -1, body);
  return 0;
}

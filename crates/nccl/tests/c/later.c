/* Communicators that do not block: calls return ncclInProgress, ncclCommGetAsyncError tells.
 *
 *   later threads|processes|group|by_variable */
#include "check.h"

static void one_rank(int rank, int ranks, ncclUniqueId id) {
  ncclComm_t comm, half, blocking;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclResult_t code;
  static const size_t count = 1 << 16;
  config.blocking = 0;
  code = ncclCommInitRankConfig(&comm, ranks, id, rank, &config);
  CHECK(code == ncclInProgress && comm != NULL);
  CHECK(settled(comm) == ncclSuccess);
  float* values = (float*)malloc(count * sizeof *values);
  for (int round = 0; round < 20; round++) {
    for (size_t i = 0; i < count; i++) values[i] = (float)(rank + 1);
    code = ncclAllReduce(values, values, count, ncclFloat, ncclSum, comm, NULL);
    CHECK(code == ncclInProgress);
    CHECK(settled(comm) == ncclSuccess);
    for (size_t i = 0; i < count; i++) CHECK(values[i] == (float)(ranks * (ranks + 1) / 2));
  }
  /* That stream is another one in the thread that does the work. */
  REFUSED(ncclInvalidArgument, "cudaStreamPerThread",
          ncclAllReduce(values, values, count, ncclFloat, ncclSum, comm, (cudaStream_t)2));
  CHECK(settled(comm) == ncclSuccess);
  /* A call that waits for another rank: meanwhile nothing else is taken. */
  int32_t word = rank;
  if (rank == 0) {
    EXPECT(ncclInProgress, ncclRecv(&word, 1, ncclInt32, 1, comm, NULL));
    REFUSED(ncclInvalidArgument, "still in progress",
            ncclAllReduce(values, values, 1, ncclFloat, ncclSum, comm, NULL));
    ncclResult_t state;
    OK(ncclCommGetAsyncError(comm, &state));
    CHECK(state == ncclInProgress);
  }
  if (rank == 1) {
    pause_ms(300);
    EXPECT(ncclInProgress, ncclSend(&word, 1, ncclInt32, 0, comm, NULL));
  }
  CHECK(settled(comm) == ncclSuccess);
  CHECK(rank != 0 || word == 1);
  /* The child is there when the parent is done; it is as its parent is. */
  half = NULL;
  EXPECT(ncclInProgress, ncclCommSplit(comm, rank % 2, rank, &half, NULL));
  CHECK(settled(comm) == ncclSuccess);
  CHECK(half != NULL);
  int64_t sum = 1;
  EXPECT(ncclInProgress, ncclAllReduce(&sum, &sum, 1, ncclInt64, ncclSum, half, NULL));
  CHECK(settled(half) == ncclSuccess);
  CHECK(sum == (ranks + 1 - rank % 2) / 2);
  /* Or as it is asked to be; both kinds in one group are refused. */
  config.blocking = 1;
  EXPECT(ncclInProgress, ncclCommSplit(comm, 0, rank, &blocking, &config));
  CHECK(settled(comm) == ncclSuccess);
  OK(ncclAllReduce(&sum, &sum, 1, ncclInt64, ncclMax, blocking, NULL));
  OK(ncclGroupStart());
  OK(ncclAllReduce(&sum, &sum, 1, ncclInt64, ncclMax, comm, NULL));
  OK(ncclAllReduce(&sum, &sum, 1, ncclInt64, ncclMax, blocking, NULL));
  REFUSED(ncclInvalidArgument, "one group", ncclGroupEnd());
  free(values);
  OK(ncclCommFinalize(comm));
  CHECK(settled(comm) == ncclSuccess);
  OK(ncclCommDestroy(blocking));
  OK(ncclCommDestroy(half));
  OK(ncclCommDestroy(comm));
}

static void one_group(void) {
  ncclComm_t comms[3];
  ncclUniqueId id;
  int64_t sums[3];
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  OK(ncclGetUniqueId(&id));
  OK(ncclGroupStart());
  for (int rank = 0; rank < 3; rank++) OK(ncclCommInitRankConfig(&comms[rank], 3, id, rank, &config));
  EXPECT(ncclInProgress, ncclGroupEnd());
  for (int rank = 0; rank < 3; rank++) CHECK(settled(comms[rank]) == ncclSuccess);
  OK(ncclGroupStart());
  for (int rank = 0; rank < 3; rank++) {
    sums[rank] = rank;
    OK(ncclAllReduce(&sums[rank], &sums[rank], 1, ncclInt64, ncclSum, comms[rank], NULL));
  }
  EXPECT(ncclInProgress, ncclGroupEnd());
  for (int rank = 0; rank < 3; rank++) {
    CHECK(settled(comms[rank]) == ncclSuccess);
    CHECK(sums[rank] == 3);
  }
  /* A split that not all ranks make waits for them, until it is given up. */
  ncclComm_t child = NULL;
  EXPECT(ncclInProgress, ncclCommSplit(comms[0], 0, 0, &child, NULL));
  OK(ncclCommAbort(comms[0]));
  CHECK(settled(comms[1]) == ncclSuccess || settled(comms[1]) == ncclRemoteError);
  for (int rank = 0; rank < 3; rank++) OK(ncclCommDestroy(comms[rank]));
  /* One whose ranks never come can be given up at once, and fails by its deadline if it is not. */
  ncclComm_t lonely, late;
  OK(ncclGetUniqueId(&id));
  EXPECT(ncclInProgress, ncclCommInitRankConfig(&lonely, 2, id, 0, &config));
  OK(ncclCommAbort(lonely));
  OK(ncclCommDestroy(lonely));
  OK(ncclGetUniqueId(&id));
  EXPECT(ncclInProgress, ncclCommInitRankConfig(&late, 2, id, 0, &config));
  CHECK(settled(late) == ncclRemoteError);
  CHECK(strstr(ncclGetLastError(NULL), "rank 1"));
  OK(ncclCommAbort(late));
}

static void by_variable(void) {
  ncclComm_t comm;
  ncclUniqueId id;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  OK(ncclGetUniqueId(&id));
  EXPECT(ncclInProgress, ncclCommInitRankConfig(&comm, 1, id, 0, &config));
  CHECK(settled(comm) == ncclSuccess);
  OK(ncclCommDestroy(comm));
}

int main(int argc, char** argv) {
  CHECK(argc == 2);
  limit();
  if (!strcmp(argv[1], "threads")) threads(3, one_rank);
  else if (!strcmp(argv[1], "processes")) processes(3, -1, one_rank);
  else if (!strcmp(argv[1], "group")) one_group();
  else if (!strcmp(argv[1], "by_variable")) by_variable();
  else FAIL("what is %s?", argv[1]);
  return 0;
}

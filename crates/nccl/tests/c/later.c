/* Communicators that do not block: calls return ncclInProgress, ncclCommGetAsyncError tells.
 *
 *   later threads|processes|group|shrinks|grows|by_variable */
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

/* Ranks that are left without one go on: a call that waits for it is stopped, which is no error of the old communicator. */
static void shrinks(int rank, int ranks, ncclUniqueId id) {
  ncclComm_t comm, rest = NULL, again = NULL;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  int64_t value = 1;
  int last[1] = {ranks - 1}, first[1] = {0}, seen;
  config.blocking = 0;
  EXPECT(ncclInProgress, ncclCommInitRankConfig(&comm, ranks, id, rank, &config));
  CHECK(settled(comm) == ncclSuccess);
  if (rank == last[0]) {
    /* Stays until the others have let it go. */
    ncclResult_t state = ncclSuccess;
    while (state == ncclSuccess) {
      OK(ncclCommGetAsyncError(comm, &state));
      pause_ms(1);
    }
    CHECK(state == ncclRemoteError);
    OK(ncclCommAbort(comm));
    return;
  }
  EXPECT(ncclInProgress, ncclAllReduce(&value, &value, 1, ncclInt64, ncclSum, comm, NULL));
  pause_ms(50);
  EXPECT(ncclInProgress, ncclCommShrink(comm, last, 1, &rest, NULL, NCCL_SHRINK_ABORT));
  CHECK(settled(comm) == ncclSuccess);
  CHECK(rest != NULL);
  OK(ncclCommCount(rest, &seen));
  CHECK(seen == ranks - 1);
  value = 1;
  EXPECT(ncclInProgress, ncclAllReduce(&value, &value, 1, ncclInt64, ncclSum, rest, NULL));
  CHECK(settled(rest) == ncclSuccess);
  CHECK(value == ranks - 1);
  REFUSED(ncclInvalidUsage, "NCCL_SHRINK_ABORT",
          ncclAllReduce(&value, &value, 1, ncclInt64, ncclSum, comm, NULL));
  CHECK(settled(comm) == ncclSuccess);
  OK(ncclCommDestroy(comm));
  /* One that cannot be shrunk says so, also when it was revoked: the others do not come. What the revoke ends is no error. */
  if (rank == 0) EXPECT(ncclInProgress, ncclCommSplit(rest, 0, 0, &again, NULL));
  (void)ncclCommRevoke(rest, NCCL_REVOKE_DEFAULT);
  CHECK(settled(rest) == ncclSuccess);
  if (rank == 1) {
    EXPECT(ncclInProgress, ncclCommShrink(rest, first, 1, &again, NULL, NCCL_SHRINK_DEFAULT));
    CHECK(settled(rest) == ncclRemoteError);
    CHECK(strstr(ncclGetLastError(NULL), "rank 2"));
    CHECK(again == NULL);
  }
  OK(ncclCommDestroy(rest));
}

/* One rank more: the handle of the grown one is there at once, to be asked; the old one can be asked too. */
static ncclUniqueId growth;
static pthread_barrier_t known;

static void grows(int rank, int ranks, ncclUniqueId id) {
  ncclComm_t comm = NULL, more = NULL;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  int64_t value = 1;
  int old = ranks - 1;
  config.blocking = 0;
  if (rank != old) {
    EXPECT(ncclInProgress, ncclCommInitRankConfig(&comm, old, id, rank, &config));
    CHECK(settled(comm) == ncclSuccess);
    if (rank == 0) OK(ncclCommGetUniqueId(comm, &growth));
  }
  pthread_barrier_wait(&known);
  OK(ncclGroupStart());
  OK(ncclCommGrow(comm, ranks, comm ? NULL : &growth, comm ? -1 : old, &more, &config));
  CHECK(more != NULL);
  if (rank == old) {
    EXPECT(ncclInProgress, ncclGroupEnd());
    CHECK(settled(more) == ncclSuccess);
    pause_ms(200);
    OK(ncclGroupStart());
  }
  /* It runs when the ranks are there: until it is over they have something in progress. */
  OK(ncclAllReduce(&value, &value, 1, ncclInt64, ncclSum, more, NULL));
  EXPECT(ncclInProgress, ncclGroupEnd());
  if (rank == 1) CHECK(settled(comm) == ncclSuccess);
  CHECK(settled(more) == ncclSuccess);
  CHECK(value == ranks);
  if (comm) {
    CHECK(settled(comm) == ncclSuccess);
    OK(ncclCommDestroy(comm));
  }
  /* One that does not come together can be given up by its handle. What the old one has in the same group does not happen,
     and is not told as done. */
  pthread_barrier_wait(&known);
  ncclComm_t most;
  if (rank == 0) OK(ncclCommGetUniqueId(more, &growth));
  OK(ncclGroupStart());
  OK(ncclCommGrow(more, ranks + 1, NULL, -1, &most, NULL));
  if (rank != 2) OK(ncclAllReduce(&value, &value, 1, ncclInt64, ncclSum, more, NULL));
  EXPECT(ncclInProgress, ncclGroupEnd());
  pause_ms(300);
  OK(ncclCommAbort(most));
  ncclResult_t end = settled(more);
  CHECK(rank == 2 || end != ncclSuccess);
  OK(ncclCommAbort(more));
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
  else if (!strcmp(argv[1], "shrinks")) processes(4, -1, shrinks);
  else if (!strcmp(argv[1], "grows")) {
    CHECK(pthread_barrier_init(&known, NULL, 3) == 0);
    threads(3, grows);
  } else if (!strcmp(argv[1], "by_variable")) by_variable();
  else FAIL("what is %s?", argv[1]);
  return 0;
}

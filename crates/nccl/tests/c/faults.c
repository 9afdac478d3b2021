/* Things go wrong: ranks die, give up or disagree. Every call ends, and says who.
 *
 *   faults NAME */
#include "check.h"

static void sum(ncclComm_t comm) {
  int64_t value = 1;
  OK(ncclAllReduce(&value, &value, 1, ncclInt64, ncclSum, comm, NULL));
}

/* One rank is killed while nobody waits: the others are told when they ask. */
static void killed_peer(int rank, int ranks, ncclUniqueId id) {
  ncclComm_t comm, rest;
  ncclResult_t state = ncclSuccess;
  int64_t value = 1;
  int dead[1] = {2}, seen;
  OK(ncclCommInitRank(&comm, ranks, id, rank));
  sum(comm);
  if (rank == 2) kill(getpid(), SIGKILL);
  double began = seconds();
  while (state == ncclSuccess) {
    OK(ncclCommGetAsyncError(comm, &state));
    pause_ms(1);
  }
  printf("rank %d was told after %.3f s: %s\n", rank, seconds() - began, ncclGetLastError(comm));
  fflush(stdout);
  CHECK(state == ncclRemoteError);
  CHECK(strstr(ncclGetLastError(comm), "rank 2"));
  REFUSED(ncclRemoteError, "rank 2",
          ncclAllReduce(&value, &value, 1, ncclInt64, ncclSum, comm, NULL));
  /* The others go on without it. */
  OK(ncclCommShrink(comm, dead, 1, &rest, NULL, NCCL_SHRINK_ABORT));
  /* What the old one has come to was asked for. */
  OK(ncclCommGetAsyncError(comm, &state));
  CHECK(state == ncclSuccess);
  REFUSED(ncclInvalidUsage, "NCCL_SHRINK_ABORT",
          ncclAllReduce(&value, &value, 1, ncclInt64, ncclSum, comm, NULL));
  if (rank == 0) OK(ncclCommFinalize(comm));
  OK(ncclCommGetAsyncError(comm, &state));
  CHECK(state == ncclSuccess);
  OK(ncclCommDestroy(comm));
  OK(ncclCommCount(rest, &seen));
  CHECK(seen == ranks - 1);
  sum(rest);
  OK(ncclCommDestroy(rest));
}

/* One rank is killed while the others wait for it. */
static void killed_in_a_call(int rank, int ranks, ncclUniqueId id) {
  ncclComm_t comm;
  int64_t value = 1;
  OK(ncclCommInitRank(&comm, ranks, id, rank));
  sum(comm);
  if (rank == 2) {
    pause_ms(100);
    kill(getpid(), SIGKILL);
  }
  REFUSED(ncclRemoteError, "rank 2",
          ncclAllReduce(&value, &value, 1, ncclInt64, ncclSum, comm, NULL));
  OK(ncclCommAbort(comm));
  OK(ncclCommDestroy(comm));
}

/* The ranks disagree about the count: an error on all that names the odd one. */
static void mismatch(int rank, int ranks, ncclUniqueId id) {
  ncclComm_t comm;
  int64_t values[8] = {0};
  OK(ncclCommInitRank(&comm, ranks, id, rank));
  sum(comm);
  REFUSED(ncclInvalidUsage, "rank 1 (host",
          ncclAllReduce(values, values, rank == 1 ? 5 : 4, ncclInt64, ncclSum, comm, NULL));
  CHECK(strstr(ncclGetLastError(comm), "5 int64"));
  OK(ncclCommAbort(comm));
}

static ncclComm_t waiting;
static int in_threads;

static void* gives_up(void* unused) {
  pause_ms(200);
  OK(ncclCommAbort(waiting));
  return unused;
}

/* A thread aborts what another waits in. */
static void abort_in_a_call(int rank, int ranks, ncclUniqueId id) {
  pthread_t other;
  ncclComm_t comm;
  int64_t value = 1;
  OK(ncclCommInitRank(&comm, ranks, id, rank));
  sum(comm);
  if (rank == 0) {
    waiting = comm;
    CHECK(pthread_create(&other, NULL, gives_up, NULL) == 0);
    REFUSED(ncclRemoteError, "ncclCommAbort",
            ncclRecv(&value, 1, ncclInt64, 1, comm, NULL)); /* which is never sent */
    CHECK(pthread_join(other, NULL) == 0);
    REFUSED(ncclInvalidArgument, "aborted",
            ncclAllReduce(&value, &value, 1, ncclInt64, ncclSum, comm, NULL));
    OK(ncclCommDestroy(comm));
    return;
  }
  ncclResult_t state = ncclSuccess;
  while (state == ncclSuccess) {
    OK(ncclCommGetAsyncError(comm, &state));
    pause_ms(1);
  }
  CHECK(state == ncclRemoteError);
  /* The text is the process's: ranks that are threads may overwrite each other's. */
  CHECK(in_threads || strstr(ncclGetLastError(comm), "rank 0"));
  OK(ncclCommDestroy(comm));
}

/* Revoked, it takes nothing more, and those who want to go on without one of them. */
static void revoked(int rank, int ranks, ncclUniqueId id) {
  ncclComm_t comm, other, rest, part;
  ncclResult_t state;
  int64_t value = 1;
  int excluded[1] = {0};
  OK(ncclCommInitRank(&comm, ranks, id, rank));
  sum(comm);
  OK(ncclCommSplit(comm, 0, rank, &other, NULL));
  REFUSED(ncclInvalidArgument, "revokeFlags", ncclCommRevoke(comm, 4));
  OK(ncclCommFinalize(comm));
  REFUSED(ncclInvalidArgument, "finalized", ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
  OK(ncclCommDestroy(comm));
  OK(ncclCommRevoke(other, NCCL_REVOKE_DEFAULT));
  comm = other;
  OK(ncclCommGetAsyncError(comm, &state));
  CHECK(state == ncclSuccess);
  REFUSED(ncclInvalidUsage, "revoked",
          ncclAllReduce(&value, &value, 1, ncclInt64, ncclSum, comm, NULL));
  REFUSED(ncclInvalidArgument, "revoked", ncclCommFinalize(comm));
  REFUSED(ncclInvalidArgument, "revoked before", ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
  REFUSED(ncclInvalidUsage, "ncclCommShrink", ncclCommSplit(comm, 0, 0, &part, NULL));
  if (rank != 0) {
    OK(ncclCommShrink(comm, excluded, 1, &rest, NULL, NCCL_SHRINK_DEFAULT));
    sum(rest);
    OK(ncclCommDestroy(rest));
  }
  OK(ncclCommDestroy(comm));
}

/* Ranks of one process, in one group, of which one call cannot be done: nothing is. */
static void refused_in_a_group(void) {
  ncclComm_t comms[3];
  int64_t values[3][8];
  OK(ncclCommInitAll(comms, 3, NULL));
  for (int refused = 2; refused >= 0; refused--) {
    for (int rank = 0; rank < 3; rank++)
      for (int i = 0; i < 8; i++) values[rank][i] = rank;
    for (int good = 0; good < 2; good++) {
      OK(ncclGroupStart());
      for (int rank = 0; rank < 3; rank++) {
        int64_t* to = values[rank] + (!good && rank == refused);
        OK(ncclAllReduce(values[rank], to, 4, ncclInt64, ncclSum, comms[rank], NULL));
      }
      if (!good) REFUSED(ncclInvalidArgument, "overlap", ncclGroupEnd());
    }
    OK(ncclGroupEnd());
    for (int rank = 0; rank < 3; rank++) CHECK(values[rank][0] == 3);
  }
  for (int rank = 0; rank < 3; rank++) OK(ncclCommDestroy(comms[rank]));
}

/* Ranks of one process, in one group, one of which disagrees. */
static void mismatch_in_a_group(void) {
  ncclComm_t comms[3];
  int64_t values[3][8] = {{0}};
  OK(ncclCommInitAll(comms, 3, NULL));
  OK(ncclGroupStart());
  for (int rank = 0; rank < 3; rank++)
    OK(ncclAllReduce(values[rank], values[rank], rank == 2 ? 3 : 4, ncclInt64, ncclSum, comms[rank], NULL));
  REFUSED(ncclInvalidUsage, "rank 2 (host", ncclGroupEnd());
  for (int rank = 0; rank < 3; rank++) {
    ncclResult_t state;
    OK(ncclCommGetAsyncError(comms[rank], &state));
    CHECK(state == ncclInvalidUsage);
    OK(ncclCommAbort(comms[rank]));
    OK(ncclCommDestroy(comms[rank]));
  }
}

static ncclUniqueId early_id;
static ncclComm_t early;

static void* begins(void* unused) {
  REFUSED(ncclInvalidUsage, "given up", ncclCommInitRank(&early, 2, early_id, 0));
  return unused;
}

/* A communicator is given up while its ranks are coming together: the one that waits does so no longer, and the one that
   comes later is told. */
static void abort_of_a_beginning(void) {
  pthread_t other;
  ncclComm_t comm, handle;
  OK(ncclGetUniqueId(&early_id));
  CHECK(pthread_create(&other, NULL, begins, NULL) == 0);
  while (!(handle = __atomic_load_n(&early, __ATOMIC_ACQUIRE))) pause_ms(1);
  pause_ms(200);
  OK(ncclCommAbort(handle));
  CHECK(pthread_join(other, NULL) == 0);
  CHECK(early == NULL);
  REFUSED(ncclRemoteError, "rank 0", ncclCommInitRank(&comm, 2, early_id, 1));
  CHECK(comm == NULL);
}

/* Ranks that never come are named; nothing is left of what was begun. */
static void nobody_comes(void) {
  ncclUniqueId id;
  ncclComm_t comm = NULL;
  OK(ncclGetUniqueId(&id));
  REFUSED(ncclRemoteError, "rank 1", ncclCommInitRank(&comm, 2, id, 0));
  CHECK(comm == NULL);
}

int main(int argc, char** argv) {
  CHECK(argc == 2);
  limit();
  const char* name = argv[1];
  if (!strcmp(name, "killed_peer")) processes(4, 2, killed_peer);
  else if (!strcmp(name, "killed_in_a_call")) processes(4, 2, killed_in_a_call);
  else if (!strcmp(name, "mismatch")) processes(3, -1, mismatch);
  else if (!strcmp(name, "abort_in_a_call")) processes(3, -1, abort_in_a_call);
  else if (!strcmp(name, "abort_in_a_thread")) in_threads = 1, threads(3, abort_in_a_call);
  else if (!strcmp(name, "revoke")) processes(3, -1, revoked);
  else if (!strcmp(name, "mismatch_in_a_group")) mismatch_in_a_group();
  else if (!strcmp(name, "refused_in_a_group")) refused_in_a_group();
  else if (!strcmp(name, "abort_of_a_beginning")) abort_of_a_beginning();
  else if (!strcmp(name, "nobody_comes")) nobody_comes();
  else FAIL("what is %s?", name);
  return 0;
}

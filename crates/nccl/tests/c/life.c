/* Communicators from their making to their end, in every way there is, one test a name:
 *
 *   life NAME */
#include "check.h"

#define RANKS 4

/* The sum over all ranks of their numbers. */
static void works(ncclComm_t comm) {
  int rank, ranks;
  OK(ncclCommUserRank(comm, &rank));
  OK(ncclCommCount(comm, &ranks));
  int64_t sum = rank;
  OK(ncclAllReduce(&sum, &sum, 1, ncclInt64, ncclSum, comm, NULL));
  CHECK(sum == (int64_t)ranks * (ranks - 1) / 2);
}

static void all_work(ncclComm_t* comms, int ranks) {
  int64_t sums[64];
  OK(ncclGroupStart());
  for (int rank = 0; rank < ranks; rank++) {
    sums[rank] = rank;
    OK(ncclAllReduce(&sums[rank], &sums[rank], 1, ncclInt64, ncclSum, comms[rank], NULL));
  }
  OK(ncclGroupEnd());
  for (int rank = 0; rank < ranks; rank++) CHECK(sums[rank] == (int64_t)ranks * (ranks - 1) / 2);
}

static void made_in_a_group(void) {
  ncclUniqueId id;
  ncclComm_t comms[RANKS];
  int64_t sums[RANKS];
  OK(ncclGetUniqueId(&id));
  OK(ncclGroupStart());
  OK(ncclGroupStart());
  for (int rank = 0; rank < RANKS; rank++) {
    comms[rank] = NULL;
    OK(ncclCommInitRank(&comms[rank], RANKS, id, rank));
    CHECK(comms[rank] != NULL);
    /* Calls in the same group run once the ranks are there. */
    sums[rank] = rank;
    OK(ncclAllReduce(&sums[rank], &sums[rank], 1, ncclInt64, ncclSum, comms[rank], NULL));
  }
  OK(ncclGroupEnd());
  CHECK(sums[1] == 1); /* nothing has happened yet */
  OK(ncclGroupEnd());
  for (int rank = 0; rank < RANKS; rank++) CHECK(sums[rank] == 6);
  all_work(comms, RANKS);
  for (int rank = 0; rank < RANKS; rank++) {
    int seen = -1;
    ncclResult_t state = ncclInternalError;
    OK(ncclCommUserRank(comms[rank], &seen));
    CHECK(seen == rank);
    OK(ncclCommCount(comms[rank], &seen));
    CHECK(seen == RANKS);
    OK(ncclCommCuDevice(comms[rank], &seen));
    OK(ncclCommGetAsyncError(comms[rank], &state));
    CHECK(state == ncclSuccess);
  }
  OK(ncclGroupStart());
  for (int rank = 0; rank < RANKS; rank++) OK(ncclCommFinalize(comms[rank]));
  OK(ncclGroupEnd());
  REFUSED(ncclInvalidUsage, "finalized",
          ncclAllReduce(sums, sums, 1, ncclInt64, ncclSum, comms[0], NULL));
  REFUSED(ncclInvalidArgument, "finalized before", ncclCommFinalize(comms[0]));
  OK(ncclGroupStart());
  for (int rank = 0; rank < RANKS; rank++) OK(ncclCommDestroy(comms[rank]));
  OK(ncclGroupEnd());
}

static void made_for_devices(void) {
  int devices[3] = {2, 0, 1}, seen;
  ncclComm_t comms[3];
  OK(ncclCommInitAll(comms, 3, devices));
  for (int rank = 0; rank < 3; rank++) {
    OK(ncclCommCuDevice(comms[rank], &seen));
    CHECK(seen == devices[rank]);
  }
  all_work(comms, 3);
  for (int rank = 0; rank < 3; rank++) OK(ncclCommDestroy(comms[rank]));
  ncclComm_t alone;
  OK(ncclCommInitAll(&alone, 1, NULL));
  works(alone);
  OK(ncclCommDestroy(alone));
}

static void scalable(int rank, int ranks, ncclUniqueId id) {
  ncclUniqueId ids[2];
  ncclComm_t comm;
  ids[0] = id;
  memset(&ids[1], 0, sizeof ids[1]);
  OK(ncclCommInitRankScalable(&comm, ranks, rank, 2, ids, NULL));
  works(comm);
  OK(ncclCommDestroy(comm));
}

static void split(int rank, int ranks, ncclUniqueId id) {
  ncclComm_t comm, half, none = (ncclComm_t)&half, again;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  int seen;
  config.commName = "halves";
  OK(ncclCommInitRankConfig(&comm, ranks, id, rank, &config));
  OK(ncclCommSplit(comm, rank % 2, -rank, &half, NULL));
  OK(ncclCommCount(half, &seen));
  CHECK(seen == ranks / 2);
  OK(ncclCommUserRank(half, &seen));
  CHECK(seen == ranks / 2 - 1 - rank / 2); /* the keys turn the order around */
  works(half);
  OK(ncclCommSplit(comm, rank == 0 ? NCCL_SPLIT_NOCOLOR : 7, rank, &none, &config));
  CHECK((none == NULL) == (rank == 0));
  if (none) works(none);
  OK(ncclCommSplit(half, 0, 0, &again, NULL));
  OK(ncclCommDestroy(half));
  works(again); /* outlives the one it came from */
  works(comm);
  if (none) OK(ncclCommDestroy(none));
  OK(ncclCommDestroy(again));
  OK(ncclCommDestroy(comm));
}

static void split_in_a_group(void) {
  ncclComm_t comms[RANKS], parts[RANKS];
  OK(ncclCommInitAll(comms, RANKS, NULL));
  OK(ncclGroupStart());
  for (int rank = 0; rank < RANKS; rank++)
    OK(ncclCommSplit(comms[rank], 0, RANKS - rank, &parts[rank], NULL));
  OK(ncclGroupEnd());
  ncclComm_t turned[RANKS];
  for (int rank = 0; rank < RANKS; rank++) turned[RANKS - 1 - rank] = parts[rank];
  all_work(turned, RANKS);
  for (int rank = 0; rank < RANKS; rank++) {
    OK(ncclCommDestroy(parts[rank]));
    OK(ncclCommDestroy(comms[rank]));
  }
}

static void shrink(int rank, int ranks, ncclUniqueId id) {
  ncclComm_t comm, rest;
  int excluded[1] = {1}, seen;
  OK(ncclCommInitRank(&comm, ranks, id, rank));
  works(comm);
  if (rank == 1) {
    REFUSED(ncclInvalidArgument, "is excluded", ncclCommShrink(comm, excluded, 1, &rest, NULL, 0));
  } else {
    /* Of a group that is refused nothing happens. */
    OK(ncclGroupStart());
    OK(ncclCommShrink(comm, excluded, 1, &rest, NULL, NCCL_SHRINK_ABORT));
    (void)ncclAllReduce(NULL, NULL, 1, ncclInt, ncclSum, comm, NULL);
    REFUSED(ncclInvalidArgument, "NULL", ncclGroupEnd());
    OK(ncclCommShrink(comm, excluded, 1, &rest, NULL, NCCL_SHRINK_DEFAULT));
    OK(ncclCommUserRank(rest, &seen));
    CHECK(seen == (rank == 0 ? 0 : rank - 1));
    works(rest);
    OK(ncclCommDestroy(rest));
  }
  works(comm);
  OK(ncclCommDestroy(comm));
}

/* One rank more than there were: it comes with the id of a rank that is there, through this. Those that are there give the
 * id or do not, as they like: who asked for it has it. */
static ncclUniqueId growth;
static pthread_barrier_t known;

static void grow(int rank, int ranks, ncclUniqueId id) {
  ncclComm_t comm, more;
  int seen, old = ranks - 1;
  if (rank == old) EXPECT(ncclInvalidArgument, ncclCommGrow(NULL, ranks, NULL, rank, &more, NULL));
  else OK(ncclCommInitRank(&comm, old, id, rank));
  for (int round = 0; round < 4; round++) {
    /* An id that nobody came by is none that counts. */
    if (rank == 0 && round == 3) OK(ncclCommGetUniqueId(comm, &id));
    if (rank == 1) OK(ncclCommGetUniqueId(comm, &growth));
    pthread_barrier_wait(&known);
    if (rank == old) {
      OK(ncclCommGrow(NULL, ranks, &growth, rank, &more, NULL));
    } else {
      int gives = round == 1 || (rank == 1 && round != 2);
      EXPECT(ncclInvalidArgument, ncclCommGrow(comm, old, NULL, -1, &more, NULL));
      OK(ncclCommGrow(comm, ranks, gives ? &growth : NULL, -1, &more, NULL));
    }
    OK(ncclCommUserRank(more, &seen));
    CHECK(seen == rank);
    works(more);
    OK(ncclCommDestroy(more));
    pthread_barrier_wait(&known);
  }
  if (rank == old) return;
  /* Nobody has asked for an id since. */
  EXPECT(ncclInvalidUsage, ncclCommGrow(comm, ranks, NULL, -1, &more, NULL));
  CHECK(more == NULL);
  works(comm);
  OK(ncclCommDestroy(comm));
}

/* Each thread has two communicators, and uses both in one group. */
static void several(int rank, int ranks, ncclUniqueId id) {
  ncclComm_t comm, second;
  OK(ncclCommInitRank(&comm, ranks, id, rank));
  OK(ncclCommSplit(comm, 0, rank, &second, NULL));
  for (int round = 0; round < 50; round++) {
    double one = rank, two = 2 * rank, sent = 100 * rank + round, received = -1;
    OK(ncclGroupStart());
    OK(ncclAllReduce(&one, &one, 1, ncclDouble, ncclSum, comm, NULL));
    OK(ncclAllReduce(&two, &two, 1, ncclDouble, ncclMax, second, NULL));
    OK(ncclSend(&sent, 1, ncclDouble, (rank + 1) % ranks, comm, NULL));
    OK(ncclRecv(&received, 1, ncclDouble, (rank + ranks - 1) % ranks, comm, NULL));
    OK(ncclGroupEnd());
    CHECK(one == ranks * (ranks - 1) / 2.0 && two == 2.0 * (ranks - 1));
    CHECK(received == 100 * ((rank + ranks - 1) % ranks) + round);
  }
  OK(ncclCommDestroy(second));
  OK(ncclCommDestroy(comm));
}

/* All to all by messages, with itself too, in one group; counts differ by pair. */
static void messages(int rank, int ranks, ncclUniqueId id) {
  ncclComm_t comm;
  int32_t out[64][64], in[64][64];
  OK(ncclCommInitRank(&comm, ranks, id, rank));
  OK(ncclGroupStart());
  for (int peer = 0; peer < ranks; peer++) {
    for (int i = 0; i < 64; i++) out[peer][i] = 1000 * rank + 100 * peer + i, in[peer][i] = -1;
    OK(ncclSend(out[peer], (size_t)(rank + peer), ncclInt32, peer, comm, NULL));
    OK(ncclRecv(in[peer], (size_t)(rank + peer), ncclInt32, peer, comm, NULL));
  }
  OK(ncclGroupEnd());
  for (int peer = 0; peer < ranks; peer++)
    for (int i = 0; i < 64; i++)
      CHECK(in[peer][i] == (i < rank + peer ? 1000 * peer + 100 * rank + i : -1));
  /* The same by RCCL's function. */
  size_t counts[64], places[64];
  for (int peer = 0; peer < ranks; peer++) {
    counts[peer] = (size_t)(rank + peer);
    places[peer] = (size_t)(64 * peer);
    for (int i = 0; i < 64; i++) in[peer][i] = -1;
  }
  OK(ncclAllToAllv(out, counts, places, in, counts, places, ncclInt32, comm, NULL));
  for (int peer = 0; peer < ranks; peer++)
    for (int i = 0; i < 64; i++)
      CHECK(in[peer][i] == (i < rank + peer ? 1000 * peer + 100 * rank + i : -1));
  REFUSED(ncclInvalidArgument, "sdispls is NULL",
          ncclAllToAllv(out, counts, NULL, in, counts, places, ncclInt32, comm, NULL));
  REFUSED(ncclInvalidArgument, "recvbuff of all_to_all_v",
          ncclAllToAllv(out, counts, places, NULL, counts, places, ncclInt32, comm, NULL));
  OK(ncclAllToAll(out, in, 2, ncclInt32, comm, NULL));
  CHECK(in[0][2] == (ranks > 1 ? 1000 + 2 * rank : in[0][2]));
  REFUSED(ncclInvalidUsage, "own rank", ncclSend(out, 1, ncclInt32, rank, comm, NULL));
  /* What a rank sends to itself may stay where it is. */
  for (int i = 0; i < 64; i++) in[0][i] = i;
  OK(ncclGroupStart());
  OK(ncclSend(in[0], 64, ncclInt32, rank, comm, NULL));
  OK(ncclRecv(in[0], 64, ncclInt32, rank, comm, NULL));
  OK(ncclGroupEnd());
  for (int i = 0; i < 64; i++) CHECK(in[0][i] == i);
  OK(ncclCommDestroy(comm));
}

/* Messages of a group with different ranks never wait for each other. Here the first that rank 0 receives is sent by rank 2
   when it has one of rank 1, which sends that when it has the second of rank 0. */
static void messages_that_wait(int rank, int ranks, ncclUniqueId id) {
  static const size_t counts[3] = {1, 1000, 3000000};
  ncclComm_t comm;
  int32_t* at = (int32_t*)calloc(3 * counts[2], sizeof *at);
  CHECK(ranks == 3 && at);
  OK(ncclCommInitRank(&comm, ranks, id, rank));
  for (int size = 0; size < 3; size++) {
    const size_t count = counts[size];
    int32_t *one = at, *two = at + count, *three = at + 2 * count;
    for (size_t i = 0; i < 3 * count; i++) at[i] = rank == 0 ? (int32_t)i : -1;
    if (rank == 0) {
      OK(ncclGroupStart());
      OK(ncclSend(one, count, ncclInt32, 1, comm, NULL));
      OK(ncclSend(two, count, ncclInt32, 1, comm, NULL));
      OK(ncclRecv(three, count, ncclInt32, 2, comm, NULL));
      OK(ncclGroupEnd());
      for (size_t i = 0; i < count; i++) CHECK(three[i] == (int32_t)(count + i));
    } else if (rank == 1) {
      OK(ncclRecv(one, count, ncclInt32, 0, comm, NULL));
      OK(ncclRecv(two, count, ncclInt32, 0, comm, NULL));
      OK(ncclSend(two, count, ncclInt32, 2, comm, NULL));
      for (size_t i = 0; i < 2 * count; i++) CHECK(at[i] == (int32_t)i);
    } else {
      OK(ncclRecv(one, count, ncclInt32, 1, comm, NULL));
      OK(ncclSend(one, count, ncclInt32, 0, comm, NULL));
    }
  }
  /* Many to one rank, of all sizes, keep their order. */
  OK(ncclGroupStart());
  for (int i = 0; i < 500; i++) {
    at[i] = rank == 0 ? i : -1;
    if (rank == 0) OK(ncclSend(&at[i], (size_t)(i % 3), ncclInt32, 1, comm, NULL));
    if (rank == 1) OK(ncclRecv(&at[i], (size_t)(i % 3), ncclInt32, 0, comm, NULL));
  }
  OK(ncclGroupEnd());
  for (int i = 0; rank == 1 && i < 500; i++) CHECK(i % 3 == 0 ? at[i] == -1 || at[i] == i : at[i] == i);
  OK(ncclCommDestroy(comm));
  free(at);
}

/* Two communicators that come from one, in one group: all ranks make them in the same order. */
static void split_twice_in_a_group(int rank, int ranks, ncclUniqueId id) {
  ncclComm_t comm, half, turned;
  int seen;
  OK(ncclCommInitRank(&comm, ranks, id, rank));
  for (int round = 0; round < 10; round++) {
    OK(ncclGroupStart());
    OK(ncclCommSplit(comm, rank % 2, rank, &half, NULL));
    OK(ncclCommSplit(comm, 0, -rank, &turned, NULL));
    OK(ncclGroupEnd());
    OK(ncclCommCount(half, &seen));
    CHECK(seen == ranks / 2);
    OK(ncclCommCount(turned, &seen));
    CHECK(seen == ranks);
    OK(ncclCommUserRank(turned, &seen));
    CHECK(seen == ranks - 1 - rank);
    works(half);
    works(turned);
    OK(ncclCommDestroy(half));
    OK(ncclCommDestroy(turned));
  }
  OK(ncclCommDestroy(comm));
}

/* Communicators are taken down by what runs last in a thread and in the process, as destructors of a program are. */
static ncclComm_t last[2], thread_last;

static void at_the_end(void) {
  all_work(last, 2);
  OK(ncclCommDestroy(last[0]));
  OK(ncclCommAbort(last[1]));
}

static void at_the_end_of_the_thread(void* comm) {
  works((ncclComm_t)comm);
  OK(ncclCommDestroy((ncclComm_t)comm));
  thread_last = NULL;
}

static void* ends_late(void* key) {
  OK(ncclCommInitAll(&thread_last, 1, NULL));
  works(thread_last);
  CHECK(pthread_setspecific(*(pthread_key_t*)key, thread_last) == 0);
  return NULL;
}

static void taken_down_at_the_end(void) {
  pthread_key_t key;
  pthread_t thread;
  CHECK(pthread_key_create(&key, at_the_end_of_the_thread) == 0);
  CHECK(pthread_create(&thread, NULL, ends_late, &key) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(thread_last == NULL);
  OK(ncclCommInitAll(last, 2, NULL));
  all_work(last, 2);
  CHECK(atexit(at_the_end) == 0);
}

/* The id is made first; the ranks are children that come after, of a parent that is none. */
static void forked_after_the_id(void) {
  ncclUniqueId id;
  pid_t children[3];
  OK(ncclGetUniqueId(&id));
  for (int rank = 0; rank < 3; rank++) {
    children[rank] = fork();
    CHECK(children[rank] >= 0);
    if (children[rank] == 0) {
      ncclComm_t comm, alone;
      limit();
      OK(ncclCommInitRank(&comm, 3, id, rank));
      works(comm);
      OK(ncclCommDestroy(comm));
      OK(ncclCommInitAll(&alone, 1, NULL));
      works(alone);
      OK(ncclCommDestroy(alone));
      _exit(0);
    }
  }
  for (int rank = 0; rank < 3; rank++) {
    int status = -1;
    CHECK(waitpid(children[rank], &status, 0) == children[rank]);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
}

int main(int argc, char** argv) {
  CHECK(argc == 2);
  limit();
  const char* name = argv[1];
  if (!strcmp(name, "made_in_a_group")) made_in_a_group();
  else if (!strcmp(name, "made_for_devices")) made_for_devices();
  else if (!strcmp(name, "forked_after_the_id")) forked_after_the_id();
  else if (!strcmp(name, "scalable")) processes(3, -1, scalable);
  else if (!strcmp(name, "split")) processes(RANKS, -1, split);
  else if (!strcmp(name, "split_in_threads")) threads(RANKS, split);
  else if (!strcmp(name, "split_in_a_group")) split_in_a_group();
  else if (!strcmp(name, "split_twice_in_a_group")) processes(RANKS, -1, split_twice_in_a_group);
  else if (!strcmp(name, "messages_that_wait")) processes(3, -1, messages_that_wait);
  else if (!strcmp(name, "taken_down_at_the_end")) taken_down_at_the_end();
  else if (!strcmp(name, "shrink")) processes(RANKS, -1, shrink);
  else if (!strcmp(name, "several")) threads(RANKS, several);
  else if (!strcmp(name, "messages")) processes(RANKS, -1, messages);
  else if (!strcmp(name, "grow")) {
    CHECK(pthread_barrier_init(&known, NULL, 3) == 0);
    threads(3, grow);
  } else FAIL("what is %s?", name);
  return 0;
}

/* Random operations, in random groups, over several communicators of each rank; every result is
 * looked at.
 *
 *   random SEED GROUPS */
#include "check.h"

#define RANKS 4
#define COMMS 3
#define OPERATIONS_MAX 5
#define COUNT_MAX 2000

static uint64_t seed;
static int groups;

/* The same on all ranks, as they draw the same numbers in the same order. */
static unsigned draw(uint64_t* state, unsigned below) {
  *state += 0x9e3779b97f4a7c15u;
  uint64_t mixed = (*state ^ *state >> 30) * 0xbf58476d1ce4e5b9u;
  mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebu;
  return (unsigned)((mixed >> 33) % below);
}

struct operation {
  unsigned kind, comm, count, root, salt;
  int32_t *in, *out;
};

static int32_t value(int rank, unsigned i, unsigned salt) {
  return (int32_t)((unsigned)rank * 1000 + i * 7 + salt);
}

static void begin(struct operation* o, int rank, int ranks, ncclComm_t comm) {
  int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
  for (unsigned i = 0; i < o->count * (unsigned)ranks; i++) o->in[i] = value(rank, i, o->salt);
  switch (o->kind) {
    case 0: OK(ncclAllReduce(o->in, o->out, o->count, ncclInt32, ncclSum, comm, NULL)); break;
    case 1: OK(ncclAllGather(o->in, o->out, o->count, ncclInt32, comm, NULL)); break;
    case 2: OK(ncclBroadcast(o->in, o->out, o->count, ncclInt32, (int)o->root % ranks, comm, NULL)); break;
    case 3: OK(ncclReduceScatter(o->in, o->out, o->count, ncclInt32, ncclMax, comm, NULL)); break;
    case 4: OK(ncclAlltoAll(o->in, o->out, o->count, ncclInt32, comm, NULL)); break;
    default:
      OK(ncclGroupStart());
      OK(ncclSend(o->in, o->count, ncclInt32, next, comm, NULL));
      OK(ncclRecv(o->out, o->count, ncclInt32, previous, comm, NULL));
      OK(ncclGroupEnd());
  }
}

static void look(const struct operation* o, int rank, int ranks) {
  for (unsigned i = 0; i < o->count; i++) {
    int32_t want = 0, got = o->out[i];
    int previous = (rank + ranks - 1) % ranks;
    switch (o->kind) {
      case 0: for (int r = 0; r < ranks; r++) want += value(r, i, o->salt); break;
      case 1: got = o->out[(unsigned)(ranks - 1) * o->count + i], want = value(ranks - 1, i, o->salt); break;
      case 2: want = value((int)o->root % ranks, i, o->salt); break;
      case 3: want = value(ranks - 1, (unsigned)rank * o->count + i, o->salt); break;
      case 4: want = value(0, (unsigned)rank * o->count + i, o->salt); break;
      default: want = value(previous, i, o->salt);
    }
    if (got != want) FAIL("kind %u element %u of rank %d is %d, not %d", o->kind, i, rank, got, want);
  }
}

static void one_rank(int rank, int ranks, ncclUniqueId id) {
  ncclComm_t comms[COMMS];
  int numbers[COMMS], sizes[COMMS];
  struct operation all[OPERATIONS_MAX];
  uint64_t state = seed;
  OK(ncclCommInitRank(&comms[0], ranks, id, rank));
  OK(ncclCommSplit(comms[0], 0, -rank, &comms[1], NULL));
  OK(ncclCommSplit(comms[0], rank % 2, rank, &comms[2], NULL));
  for (int c = 0; c < COMMS; c++) {
    OK(ncclCommUserRank(comms[c], &numbers[c]));
    OK(ncclCommCount(comms[c], &sizes[c]));
  }
  for (int o = 0; o < OPERATIONS_MAX; o++) {
    all[o].in = (int32_t*)malloc(COUNT_MAX * RANKS * sizeof(int32_t));
    all[o].out = (int32_t*)malloc(COUNT_MAX * RANKS * sizeof(int32_t));
  }
  for (int group = 0; group < groups; group++) {
    unsigned operations = 1 + draw(&state, OPERATIONS_MAX), grouped = draw(&state, 3);
    for (unsigned o = 0; o < operations; o++) {
      all[o].kind = draw(&state, 6);
      all[o].comm = draw(&state, COMMS);
      all[o].count = draw(&state, 4) ? draw(&state, 20) : draw(&state, COUNT_MAX);
      all[o].root = draw(&state, RANKS);
      all[o].salt = draw(&state, 1000);
    }
    if (grouped) OK(ncclGroupStart());
    for (unsigned o = 0; o < operations; o++) {
      unsigned c = all[o].comm;
      begin(&all[o], numbers[c], sizes[c], comms[c]);
    }
    if (grouped) OK(ncclGroupEnd());
    for (unsigned o = 0; o < operations; o++) look(&all[o], numbers[all[o].comm], sizes[all[o].comm]);
  }
  for (int o = 0; o < OPERATIONS_MAX; o++) free(all[o].in), free(all[o].out);
  for (int c = 0; c < COMMS; c++) OK(ncclCommDestroy(comms[c]));
}

int main(int argc, char** argv) {
  CHECK(argc == 3);
  seed = strtoull(argv[1], NULL, 10);
  groups = atoi(argv[2]);
  limit();
  printf("seed %llu\n", (unsigned long long)seed);
  threads(RANKS, one_rank);
  return 0;
}

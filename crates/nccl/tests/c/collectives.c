/* Every collective with every type and reduction, out of place and in place, against a reference.
 *
 *   collectives group|threads|processes RANKS
 *
 * Values are 1 and 2, so that sums, products and averages of four ranks are exact in every type. */
#include "check.h"

#include <math.h>

enum kind { ALL_REDUCE, REDUCE, REDUCE_SCATTER, BROADCAST, BCAST, ALL_GATHER, ALL_TO_ALL, GATHER,
            SCATTER, RING, KINDS };

#define OPS 6 /* NCCL's five, and a premultiplied sum */
#define FACTOR 2.0

struct test {
  enum kind kind;
  ncclDataType_t type;
  int op, root, in_place, ranks;
  size_t count;
};

static const char* names[KINDS] = {"all_reduce", "reduce", "reduce_scatter", "broadcast", "bcast",
                                   "all_gather", "all_to_all", "gather", "scatter", "send/recv"};

static size_t size_of(ncclDataType_t type) {
  static const size_t sizes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return sizes[type];
}

/* Exponent bits and mantissa bits of the floats that C has no type for. */
static void shape(ncclDataType_t type, int* exponent, int* mantissa) {
  *exponent = type == ncclFloat16 ? 5 : type == ncclBfloat16 ? 8 : type == ncclFloat8e4m3 ? 4 : 5;
  *mantissa = type == ncclFloat16 ? 10 : type == ncclBfloat16 ? 7 : type == ncclFloat8e4m3 ? 3 : 2;
}

static unsigned encode(double value, ncclDataType_t type) {
  int exponent_bits, mantissa_bits, exponent;
  shape(type, &exponent_bits, &mantissa_bits);
  if (value == 0) return 0;
  double part = frexp(value, &exponent); /* 0.5 <= part < 1 */
  unsigned mantissa = (unsigned)ldexp(part * 2 - 1, mantissa_bits);
  unsigned biased = (unsigned)(exponent - 1 + (1 << (exponent_bits - 1)) - 1);
  return biased << mantissa_bits | mantissa;
}

static double decode(unsigned bits, ncclDataType_t type) {
  int exponent_bits, mantissa_bits;
  shape(type, &exponent_bits, &mantissa_bits);
  if (bits == 0) return 0;
  double mantissa = ldexp((double)(bits & ((1u << mantissa_bits) - 1)), -mantissa_bits);
  int exponent = (int)(bits >> mantissa_bits) - ((1 << (exponent_bits - 1)) - 1);
  return ldexp(1 + mantissa, exponent);
}

static void put(void* buffer, size_t i, double value, ncclDataType_t type) {
  switch (type) {
    case ncclInt8: ((int8_t*)buffer)[i] = (int8_t)value; break;
    case ncclUint8: ((uint8_t*)buffer)[i] = (uint8_t)value; break;
    case ncclInt32: ((int32_t*)buffer)[i] = (int32_t)value; break;
    case ncclUint32: ((uint32_t*)buffer)[i] = (uint32_t)value; break;
    case ncclInt64: ((int64_t*)buffer)[i] = (int64_t)value; break;
    case ncclUint64: ((uint64_t*)buffer)[i] = (uint64_t)value; break;
    case ncclFloat32: ((float*)buffer)[i] = (float)value; break;
    case ncclFloat64: ((double*)buffer)[i] = value; break;
    case ncclFloat16: case ncclBfloat16:
      ((uint16_t*)buffer)[i] = (uint16_t)encode(value, type); break;
    default: ((uint8_t*)buffer)[i] = (uint8_t)encode(value, type);
  }
}

static double get(const void* buffer, size_t i, ncclDataType_t type) {
  switch (type) {
    case ncclInt8: return ((const int8_t*)buffer)[i];
    case ncclUint8: return ((const uint8_t*)buffer)[i];
    case ncclInt32: return ((const int32_t*)buffer)[i];
    case ncclUint32: return ((const uint32_t*)buffer)[i];
    case ncclInt64: return (double)((const int64_t*)buffer)[i];
    case ncclUint64: return (double)((const uint64_t*)buffer)[i];
    case ncclFloat32: return ((const float*)buffer)[i];
    case ncclFloat64: return ((const double*)buffer)[i];
    case ncclFloat16: case ncclBfloat16: return decode(((const uint16_t*)buffer)[i], type);
    default: return decode(((const uint8_t*)buffer)[i], type);
  }
}

static double value(int rank, size_t i) { return 1 + (double)((i * 7 + (size_t)rank * 3 + i / 5) % 2); }

static double reduced(const struct test* t, size_t i) {
  double result = t->op == ncclProd ? 1 : t->op == ncclMin ? 1e9 : 0;
  for (int rank = 0; rank < t->ranks; rank++) {
    double v = value(rank, i);
    switch (t->op) {
      case ncclProd: result *= v; break;
      case ncclMax: result = v > result ? v : result; break;
      case ncclMin: result = v < result ? v : result; break;
      case 5: result += FACTOR * v; break;
      default: result += v;
    }
  }
  if (t->op == ncclAvg) {
    result /= t->ranks;
    if (t->type < ncclFloat16) result = floor(result);
  }
  return result;
}

/* One rank's part of a test: its buffers, with room to see what was written too far. */
struct part {
  void *memory, *send, *recv;
  size_t sent, received;
  int rank;
  ncclRedOp_t op;
};

static void prepare(const struct test* t, struct part* p) {
  size_t size = size_of(t->type), whole = t->count * (size_t)t->ranks;
  int root = p->rank == t->root;
  size_t send = t->count, recv = t->count;
  size_t send_at = 0, recv_at = 0; /* where they begin in a buffer that is both */
  switch (t->kind) {
    case REDUCE: recv = root ? t->count : 0; break;
    case REDUCE_SCATTER: send = whole; recv_at = (size_t)p->rank * t->count; break;
    case BROADCAST: send = root ? t->count : 0; break;
    case BCAST: send = root ? t->count : 0; break;
    case ALL_GATHER: recv = whole; send_at = (size_t)p->rank * t->count; break;
    case ALL_TO_ALL: send = recv = whole; break;
    case GATHER: recv = root ? whole : 0; send_at = root ? (size_t)p->rank * t->count : 0; break;
    case SCATTER: send = root ? whole : 0; recv_at = root ? (size_t)p->rank * t->count : 0; break;
    default: break;
  }
  p->sent = send;
  p->received = recv;
  p->memory = malloc(2 * (whole + 64) * size);
  memset(p->memory, 0, 2 * (whole + 64) * size);
  int shared = t->in_place || t->kind == BCAST;
  char* first = (char*)p->memory;
  char* second = shared ? first : first + (whole + 64) * size;
  p->send = first + (shared ? send_at * size : 0);
  p->recv = second + (shared ? recv_at * size : 0);
  for (size_t i = 0; i < send; i++) put(p->send, i, value(p->rank, i), t->type);
}

static void issue(const struct test* t, struct part* p, ncclComm_t comm) {
  int next = (p->rank + 1) % t->ranks, previous = (p->rank + t->ranks - 1) % t->ranks;
  switch (t->kind) {
    case ALL_REDUCE: OK(ncclAllReduce(p->send, p->recv, t->count, t->type, p->op, comm, NULL)); break;
    case REDUCE: OK(ncclReduce(p->send, p->recv, t->count, t->type, p->op, t->root, comm, NULL)); break;
    case REDUCE_SCATTER:
      OK(ncclReduceScatter(p->send, p->recv, t->count, t->type, p->op, comm, NULL)); break;
    case BROADCAST: OK(ncclBroadcast(p->send, p->recv, t->count, t->type, t->root, comm, NULL)); break;
    case BCAST: OK(ncclBcast(p->send, t->count, t->type, t->root, comm, NULL)); break;
    case ALL_GATHER: OK(ncclAllGather(p->send, p->recv, t->count, t->type, comm, NULL)); break;
    case ALL_TO_ALL: OK(ncclAlltoAll(p->send, p->recv, t->count, t->type, comm, NULL)); break;
    case GATHER: OK(ncclGather(p->send, p->recv, t->count, t->type, t->root, comm, NULL)); break;
    case SCATTER: OK(ncclScatter(p->send, p->recv, t->count, t->type, t->root, comm, NULL)); break;
    default:
      OK(ncclGroupStart());
      OK(ncclSend(p->send, t->count, t->type, next, comm, NULL));
      OK(ncclRecv(p->recv, t->count, t->type, previous, comm, NULL));
      OK(ncclGroupEnd());
  }
}

static double expected(const struct test* t, int rank, size_t i) {
  int block = (int)(i / (t->count ? t->count : 1));
  size_t within = i % (t->count ? t->count : 1);
  switch (t->kind) {
    case ALL_REDUCE: case REDUCE: return reduced(t, i);
    case REDUCE_SCATTER: return reduced(t, (size_t)rank * t->count + i);
    case BROADCAST: case BCAST: return value(t->root, i);
    case ALL_GATHER: case GATHER: return value(block, within);
    case ALL_TO_ALL: return value(block, (size_t)rank * t->count + within);
    case SCATTER: return value(t->root, (size_t)rank * t->count + i);
    default: return value((rank + t->ranks - 1) % t->ranks, i);
  }
}

static void verify(const struct test* t, struct part* p) {
  for (size_t i = 0; i < p->received; i++) {
    double want = expected(t, p->rank, i), got = get(p->recv, i, t->type);
    if (want != got)
      FAIL("%s type %d op %d root %d count %zu in place %d: rank %d element %zu is %g, not %g",
           names[t->kind], t->type, t->op, t->root, t->count, t->in_place, p->rank, i, got, want);
  }
  if (!t->in_place && t->kind != BCAST) {
    for (size_t i = 0; i < p->sent; i++)
      if (get(p->send, i, t->type) != value(p->rank, i)) FAIL("%s changed its input", names[t->kind]);
    size_t size = size_of(t->type);
    const char* after = (const char*)p->recv + p->received * size;
    for (size_t i = 0; i < 32 * size; i++)
      if (after[i]) FAIL("%s wrote past its output", names[t->kind]);
  }
  free(p->memory);
}

static int reduces(enum kind kind) {
  return kind == ALL_REDUCE || kind == REDUCE || kind == REDUCE_SCATTER;
}

/* The next test; 0 after the last. */
static int next_test(struct test* t, unsigned* number) {
  static const size_t counts[3] = {1, 37, 3000};
  for (;; ++*number) {
    unsigned n = *number;
    t->kind = (enum kind)(n % KINDS), n /= KINDS;
    t->type = (ncclDataType_t)(n % ncclNumTypes), n /= ncclNumTypes;
    t->op = (int)(n % OPS), n /= OPS;
    t->in_place = (int)(n % 2), n /= 2;
    if (n >= 3) return 0;
    t->count = counts[n];
    t->root = (int)(*number % (unsigned)t->ranks);
    if (t->op > 0 && !reduces(t->kind)) continue;
    if (t->in_place && t->kind == RING) continue;
    ++*number;
    return 1;
  }
}

static ncclRedOp_t made_op(const struct test* t, ncclComm_t comm, double* scalar) {
  ncclRedOp_t op = (ncclRedOp_t)t->op;
  if (t->op == 5) {
    put(scalar, 0, FACTOR, t->type);
    ncclScalarResidence_t where = t->count == 1 ? ncclScalarDevice : ncclScalarHostImmediate;
    OK(ncclRedOpCreatePreMulSum(&op, scalar, t->type, where, comm));
    CHECK(op >= ncclNumOps);
    if (where == ncclScalarHostImmediate) memset(scalar, 0, sizeof *scalar);
  }
  return op;
}

static void one_rank(int rank, int ranks, ncclUniqueId id) {
  ncclComm_t comm;
  unsigned number = 0;
  struct test t = {ALL_REDUCE, ncclInt8, 0, 0, 0, ranks, 0};
  OK(ncclCommInitRank(&comm, ranks, id, rank));
  while (next_test(&t, &number)) {
    struct part p = {NULL, NULL, NULL, 0, 0, rank, ncclSum};
    double scalar = 0;
    p.op = made_op(&t, comm, &scalar);
    prepare(&t, &p);
    issue(&t, &p, comm);
    verify(&t, &p);
    if (t.op == 5) OK(ncclRedOpDestroy(p.op, comm));
  }
  OK(ncclCommFinalize(comm));
  OK(ncclCommDestroy(comm));
}

static void one_group(int ranks) {
  ncclComm_t comms[64];
  unsigned number = 0, run = 0;
  struct test t = {ALL_REDUCE, ncclInt8, 0, 0, 0, ranks, 0};
  OK(ncclCommInitAll(comms, ranks, NULL));
  while (next_test(&t, &number)) {
    struct part parts[64];
    double scalars[64];
    for (int rank = 0; rank < ranks; rank++) {
      parts[rank].rank = rank;
      parts[rank].op = made_op(&t, comms[rank], &scalars[rank]);
      prepare(&t, &parts[rank]);
    }
    OK(ncclGroupStart());
    for (int rank = 0; rank < ranks; rank++) issue(&t, &parts[rank], comms[rank]);
    OK(ncclGroupEnd());
    for (int rank = 0; rank < ranks; rank++) {
      verify(&t, &parts[rank]);
      if (t.op == 5) OK(ncclRedOpDestroy(parts[rank].op, comms[rank]));
    }
    run++;
  }
  for (int rank = 0; rank < ranks; rank++) OK(ncclCommDestroy(comms[rank]));
  CHECK(run > 1000);
  printf("%u tests\n", run);
}

int main(int argc, char** argv) {
  CHECK(argc == 3);
  int ranks = atoi(argv[2]);
  limit();
  if (!strcmp(argv[1], "group")) one_group(ranks);
  else if (!strcmp(argv[1], "threads")) threads(ranks, one_rank);
  else if (!strcmp(argv[1], "processes")) processes(ranks, -1, one_rank);
  else FAIL("what is %s?", argv[1]);
  return 0;
}

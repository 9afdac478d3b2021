/* Calls on pinned host memory come behind what their stream has before: here copies of a slow GPU, into what is
 * sent and into what is received. The driver is the one that the library has, a fake.
 *
 *   pinned */
#include "driver.h"

#define RANKS 2
#define COUNT 1000

#define COPY(target, source) \
  DRIVER(cuMemcpyAsync, (address, address, size_t, void*), (address)(size_t)(target), (address)(size_t)(source), \
         COUNT * sizeof(int), stream)

/* What a stream has that ends when it is let go. */
static volatile int release;

static void held(void* data) {
  (void)data;
  while (!release) pause_ms(1);
}

struct waiting {
  ncclComm_t comm;
  int* pinned;
  void* stream;
};

static void* wait_in_vain(void* given) {
  struct waiting* self = (struct waiting*)given;
  REFUSED(ncclRemoteError, "aborted the communicator",
          ncclAllReduce(self->pinned, self->pinned, COUNT, ncclInt, ncclSum, self->comm, (cudaStream_t)self->stream));
  /* What gives GPU memory back waits for everything. */
  release = 1;
  return NULL;
}

static void body(int rank, int ranks, ncclUniqueId id) {
  int *pinned, *result, *there;
  void *stream, *graph;
  ncclComm_t comm;
  OK(ncclCommInitRank(&comm, ranks, id, rank));
  use_the_driver();
  DRIVER(cuStreamCreate, (void**, unsigned), &stream, 1);
  DRIVER(cuMemHostAlloc, (void**, size_t, unsigned), (void**)&pinned, COUNT * sizeof(int), 0);
  DRIVER(cuMemHostAlloc, (void**, size_t, unsigned), (void**)&result, COUNT * sizeof(int), 0);
  /* Device memory, which with this driver the processor can write. */
  OK(ncclMemAlloc((void**)&there, COUNT * sizeof(int)));
  for (int i = 0; i < COUNT; i++) {
    there[i] = rank + i;
    pinned[i] = result[i] = -1;
  }
  COPY(pinned, there);
  OK(ncclAllReduce(pinned, result, COUNT, ncclInt, ncclSum, comm, (cudaStream_t)stream));
  for (int i = 0; i < COUNT; i++) CHECK(result[i] == ranks * i + ranks * (ranks - 1) / 2);
  /* What the stream reads first is not written before. */
  COPY(there, result);
  OK(ncclGroupStart());
  OK(ncclSend(pinned, COUNT, ncclInt, 1 - rank, comm, (cudaStream_t)stream));
  OK(ncclRecv(result, COUNT, ncclInt, 1 - rank, comm, (cudaStream_t)stream));
  OK(ncclGroupEnd());
  DRIVER(cuStreamSynchronize, (void*), stream);
  for (int i = 0; i < COUNT; i++) {
    CHECK(there[i] == ranks * i + ranks * (ranks - 1) / 2);
    CHECK(result[i] == 1 - rank + i);
  }
  /* It is made at once, so that a graph would not have it. */
  DRIVER(cuStreamBeginCapture_v2, (void*, int), stream, 1);
  REFUSED(ncclInvalidUsage, "captured",
          ncclAllReduce(pinned, result, COUNT, ncclInt, ncclSum, comm, (cudaStream_t)stream));
  DRIVER(cuStreamEndCapture, (void*, void**), stream, &graph);
  OK(ncclAllReduce(pinned, result, COUNT, ncclInt, ncclSum, comm, (cudaStream_t)stream));
  OK(ncclMemFree(there));
  /* Whoever waits for a stream that does not come is freed when the communicator is given up. */
  pthread_t thread;
  struct waiting waiting = {comm, pinned, stream};
  DRIVER(cuLaunchHostFunc, (void*, void (*)(void*), void*), stream, held, NULL);
  CHECK(pthread_create(&thread, NULL, wait_in_vain, &waiting) == 0);
  pause_ms(200);
  double began = seconds();
  OK(ncclCommAbort(comm));
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(seconds() - began < 30);
}

/* Ranks of one thread: all but the first are at work in threads of their own, which have that stream for themselves. */
static void group(int* values[RANKS], ncclComm_t comms[RANKS], cudaStream_t stream) {
  OK(ncclGroupStart());
  for (int rank = 0; rank < RANKS; rank++)
    OK(ncclAllReduce(values[rank], values[rank], COUNT, ncclInt, ncclSum, comms[rank], stream));
}

static void ranks_of_a_thread(void) {
  int* values[RANKS];
  ncclComm_t comms[RANKS];
  ncclUniqueId id;
  OK(ncclGetUniqueId(&id));
  OK(ncclGroupStart());
  for (int rank = 0; rank < RANKS; rank++) OK(ncclCommInitRank(&comms[rank], RANKS, id, rank));
  OK(ncclGroupEnd());
  use_the_driver();
  for (int rank = 0; rank < RANKS; rank++) {
    DRIVER(cuMemHostAlloc, (void**, size_t, unsigned), (void**)&values[rank], COUNT * sizeof(int), 0);
    for (int i = 0; i < COUNT; i++) values[rank][i] = rank + i;
  }
  group(values, comms, (cudaStream_t)2);
  REFUSED(ncclInvalidArgument, "cudaStreamPerThread", ncclGroupEnd());
  for (int i = 0; i < COUNT; i++) CHECK(values[0][i] == i && values[1][i] == 1 + i);
  /* The call of one rank is refused when its stream is waited for: the other's must not have begun. */
  void *captured, *graph;
  DRIVER(cuStreamCreate, (void**, unsigned), &captured, 1);
  DRIVER(cuStreamBeginCapture_v2, (void*, int), captured, 1);
  OK(ncclGroupStart());
  for (int rank = 0; rank < RANKS; rank++) {
    cudaStream_t stream = rank == 0 ? NULL : (cudaStream_t)captured;
    OK(ncclAllReduce(values[rank], values[rank], COUNT, ncclInt, ncclSum, comms[rank], stream));
  }
  REFUSED(ncclInvalidUsage, "captured", ncclGroupEnd());
  DRIVER(cuStreamEndCapture, (void*, void**), captured, &graph);
  for (int i = 0; i < COUNT; i++) CHECK(values[0][i] == i && values[1][i] == 1 + i);
  group(values, comms, NULL);
  OK(ncclGroupEnd());
  for (int rank = 0; rank < RANKS; rank++) {
    for (int i = 0; i < COUNT; i++) CHECK(values[rank][i] == 2 * i + 1);
    OK(ncclCommDestroy(comms[rank]));
  }
}

int main(void) {
  limit();
  processes(RANKS, -1, body);
  ranks_of_a_thread();
  return 0;
}

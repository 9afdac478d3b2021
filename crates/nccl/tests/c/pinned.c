/* Calls on pinned host memory come behind what their stream has before: here copies of a slow GPU, into what is
 * sent and into what is received. The driver is the one that the library has, a fake.
 *
 *   pinned */
#include "check.h"

#include <dlfcn.h>

#define RANKS 2
#define COUNT 1000

typedef unsigned long long address;

static void* driver;

/* A function of the driver; it ends the program where there is none. */
static void* find(const char* name) {
  void* found = dlsym(driver, name);
  if (!found) FAIL("%s", dlerror());
  return found;
}

#define DRIVER(name, types, ...)                             \
  do {                                                       \
    int (*call_) types;                                      \
    int code_;                                               \
    *(void**)&call_ = find(#name);                           \
    if ((code_ = call_(__VA_ARGS__)) != 0) FAIL("%s is %d", #name, code_); \
  } while (0)

#define COPY(target, source) \
  DRIVER(cuMemcpyAsync, (address, address, size_t, void*), (address)(size_t)(target), (address)(size_t)(source), \
         COUNT * sizeof(int), stream)

static void body(int rank, int ranks, ncclUniqueId id) {
  int *pinned, *result, *there;
  void *stream, *graph;
  ncclComm_t comm;
  OK(ncclCommInitRank(&comm, ranks, id, rank));
  driver = dlopen(getenv("RINGWAY_CUDA_LIBRARY"), RTLD_NOW);
  if (!driver) FAIL("%s", dlerror());
  /* ncclMemAlloc leaves no context behind. */
  void* context;
  DRIVER(cuDevicePrimaryCtxRetain, (void**, int), &context, 0);
  DRIVER(cuCtxSetCurrent, (void*), context);
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
  OK(ncclCommDestroy(comm));
  OK(ncclMemFree(there));
}

int main(void) {
  limit();
  processes(RANKS, -1, body);
  return 0;
}

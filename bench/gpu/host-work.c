// What the library does on the host for a group of calls on GPU memory: compiled and run by `host-work`, twice from this file.
//
// With -DDRIVER it is a driver that is the tests' fake one until `null_driver` says that launches and events do nothing from then on.
// Else it is a program: RANKS communicators of one thread, an all_reduce of 1 KiB on each in one group.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>

#ifdef DRIVER

static int does_nothing;

void null_driver(void) { does_nothing = 1; }

static void *fake(const char *name) {
    void *found = dlsym(dlopen(getenv("HOST_WORK_DRIVER"), RTLD_NOW), name);
    if (found == NULL) abort();
    return found;
}

#define NOTHING(name, types, values)                            \
    int name types {                                            \
        static int(*real) types;                                \
        if (does_nothing) return 0;                             \
        if (real == NULL) *(void **)&real = fake(#name);        \
        return real values;                                     \
    }

NOTHING(cuLaunchKernelEx, (void *shape, void *kernel, void **parameters, void **more), (shape, kernel, parameters, more))
NOTHING(cuEventRecord, (void *event, void *stream), (event, stream))
NOTHING(cuEventQuery, (void *event), (event))
NOTHING(cuStreamWaitEvent, (void *stream, void *event, unsigned flags), (stream, event, flags))

#else

#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "nccl.h"

#define CHECK(call)                                                                          \
    do {                                                                                     \
        if ((call) != 0) {                                                                   \
            fprintf(stderr, "host-work: %s failed: %s\n", #call, ncclGetLastError(NULL));    \
            exit(1);                                                                         \
        }                                                                                    \
    } while (0)

enum { RANKS_MAX = 32, COUNT = 256, ROUNDS = 200, GROUPS = 500 };

static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e6 * (double)now.tv_sec + 1e-3 * (double)now.tv_nsec;
}

int main(int argc, char **argv) {
    int ranks = argc == 2 ? atoi(argv[1]) : 0, gpus[RANKS_MAX] = {0};
    ncclComm_t comms[RANKS_MAX];
    cudaStream_t streams[RANKS_MAX];
    float *memory[RANKS_MAX];
    double least = 1e18;
    if (ranks < 1 || ranks > RANKS_MAX) return fprintf(stderr, "usage: host-work RANKS\n"), 2;
    alarm(120);
    CHECK(ncclCommInitAll(comms, ranks, gpus));
    for (int rank = 0; rank < ranks; rank++) CHECK(ncclMemAlloc((void **)&memory[rank], 2 * COUNT * sizeof(float)));
    void *driver = dlopen(getenv("RINGWAY_CUDA_LIBRARY"), RTLD_NOW), *context;
    int (*retain)(void **, int) = (int (*)(void **, int))dlsym(driver, "cuDevicePrimaryCtxRetain");
    int (*enter)(void *) = (int (*)(void *))dlsym(driver, "cuCtxSetCurrent");
    int (*create)(cudaStream_t *, unsigned) = (int (*)(cudaStream_t *, unsigned))dlsym(driver, "cuStreamCreate");
    CHECK(retain(&context, 0));
    CHECK(enter(context));
    for (int rank = 0; rank < ranks; rank++) CHECK(create(&streams[rank], 1));
    ((void (*)(void))dlsym(driver, "null_driver"))();
    for (int round = 0; round < ROUNDS; round++) {
        double began = now_us();
        for (int group = 0; group < GROUPS; group++) {
            CHECK(ncclGroupStart());
            for (int rank = 0; rank < ranks; rank++) {
                float *at = memory[rank];
                CHECK(ncclAllReduce(at, at + COUNT, COUNT, ncclFloat, ncclSum, comms[rank], streams[rank]));
            }
            CHECK(ncclGroupEnd());
        }
        double took = (now_us() - began) / GROUPS / ranks;
        if (took < least) least = took;
    }
    printf("%.3f us a rank\n", least);
    fflush(stdout);
    // Nothing that was launched ends, so nothing can be waited for.
    _exit(0);
}

#endif

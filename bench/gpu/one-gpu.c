// nccl-tests with -t on one GPU: threads that take themselves for alone on a GPU each are all given the first.
//
//   gcc -shared -fPIC -O2 -o one-gpu.so one-gpu.c && LD_PRELOAD=./one-gpu.so all_reduce_perf -t 8 -g 1
//
// What waits for a GPU waits for its own work alone there: cudaDeviceSynchronize for the default stream, which nccl-tests has its own
// kernels on, and cudaFreeHost for nothing, as it gives nothing back. The real ones wait for kernels of all ranks, one of which may wait for the caller.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>

typedef int Status;

enum { GPUS = 8 };

static void *next(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (found == NULL) abort();
    return found;
}

Status cudaGetDeviceCount(int *count) {
    *count = GPUS;
    return 0;
}

Status cudaSetDevice(int device) {
    (void)device;
    return ((Status(*)(int))next("cudaSetDevice"))(0);
}

Status cudaGetDeviceProperties(void *properties, int device) {
    (void)device;
    return ((Status(*)(void *, int))next("cudaGetDeviceProperties"))(properties, 0);
}

Status cudaDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    return ((Status(*)(int *, int, int))next("cudaDeviceGetAttribute"))(value, attribute, 0);
}

Status cudaDeviceSynchronize(void) {
    return ((Status(*)(void *))next("cudaStreamSynchronize"))(NULL);
}

Status cudaFreeHost(void *memory) {
    (void)memory;
    return 0;
}

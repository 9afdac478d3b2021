// What launches alone take: N kernels that do nothing, one on each of N streams, from one thread, as a group of N ranks on one GPU
// is launched. No library that has a launch a rank can be faster there.
//
//   nvcc -O2 -arch=sm_90 -o launches launches.cu && ./launches 2 4 8
//
// For each N: an argument of 16 bytes; one of 1.5 KiB, and launches that may begin before the kernel in front has ended; the same with an event
// recorded behind each. Microseconds a group, the median of 15 rounds of 200 groups, the first left out.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CUDA(x) do { cudaError_t e = (x); if (e != cudaSuccess) { fprintf(stderr, "line %d: %s\n", __LINE__, cudaGetErrorString(e)); exit(1); } } while (0)

struct Short { char bytes[16]; };
struct Long { char bytes[1536]; };

__global__ void with_short(const __grid_constant__ Short argument) {}
__global__ void with_long(const __grid_constant__ Long argument) {}

struct Lane {
    cudaStream_t stream;
    cudaEvent_t event;
};

static double now() { return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

template <class Launch> static double measure(const std::vector<Lane> &lanes, Launch launch) {
    const int rounds = 15, groups = 200;
    std::vector<double> times;
    for (int round = 0; round < rounds; round++) {
        CUDA(cudaDeviceSynchronize());
        double start = now();
        for (int group = 0; group < groups; group++)
            for (const Lane &lane : lanes) launch(lane);
        CUDA(cudaDeviceSynchronize());
        if (round > 0) times.push_back((now() - start) / groups);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

int main(int argc, char **argv) {
    if (argc < 2) return fprintf(stderr, "usage: launches N...\n"), 2;
    for (int i = 1; i < argc; i++)
        if (atoi(argv[i]) < 1 || atoi(argv[i]) > 64) return fprintf(stderr, "launches: %s is no number of ranks from 1 to 64\n", argv[i]), 2;
    printf("%5s %12s %20s %12s\n", "ranks", "plain, 16 B", "overlapping, 1.5 KiB", "with events");
    for (int i = 1; i < argc; i++) {
        int ranks = atoi(argv[i]);
        std::vector<Lane> lanes(ranks);
        for (Lane &lane : lanes) {
            CUDA(cudaStreamCreateWithFlags(&lane.stream, cudaStreamNonBlocking));
            CUDA(cudaEventCreateWithFlags(&lane.event, cudaEventDisableTiming));
        }
        static Short short_argument;
        static Long long_argument;
        cudaLaunchAttribute overlap[1];
        overlap[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        overlap[0].val.programmaticStreamSerializationAllowed = 1;
        auto config = [](const Lane &lane) {
            cudaLaunchConfig_t config = {};
            config.gridDim = 16;
            config.blockDim = 512;
            config.stream = lane.stream;
            return config;
        };
        auto plain = [&](const Lane &lane) {
            cudaLaunchConfig_t shape = config(lane);
            CUDA(cudaLaunchKernelEx(&shape, with_short, short_argument));
        };
        auto overlapping = [&](const Lane &lane) {
            cudaLaunchConfig_t shape = config(lane);
            shape.attrs = overlap;
            shape.numAttrs = 1;
            CUDA(cudaLaunchKernelEx(&shape, with_long, long_argument));
        };
        auto recorded = [&](const Lane &lane) {
            overlapping(lane);
            CUDA(cudaEventRecord(lane.event, lane.stream));
        };
        double times[] = {measure(lanes, plain), measure(lanes, overlapping), measure(lanes, recorded)};
        printf("%5d %12.2f %20.2f %12.2f\n", ranks, times[0], times[1], times[2]);
        for (Lane &lane : lanes) {
            CUDA(cudaEventDestroy(lane.event));
            CUDA(cudaStreamDestroy(lane.stream));
        }
    }
}

// Whether first launches of threads stand behind each other: two threads launch kernels that wait for each other, each on a stream that had no work
// before.
//
//   nvcc -O2 -std=c++17 -arch=sm_90 -o streams streams.cu && CUDA_DEVICE_MAX_CONNECTIONS=32 ./streams
//
// A kernel that finds its peer late for 0.1 s gives up, and the round counts as one that stood still. A stream is given one of the GPU's queues with its
// first work; where that comes while another thread enqueues, both streams may be given the same one, and then what is launched on the one comes behind
// kernels of the other that wait for it. It takes two launches in a row: kernels of one queue run side by side as long as none has to wait for the one in front.
#include <cuda_runtime.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#define CUDA(x) do { cudaError_t e = (x); if (e != cudaSuccess) { fprintf(stderr, "line %d: %s\n", __LINE__, cudaGetErrorString(e)); exit(1); } } while (0)

// All streams of a process, with the one for the first launch, are no more than there are queues.
constexpr int ROUNDS = 14;

// Words that both threads' kernels see.
struct Words {
    volatile unsigned arrived[2];
    volatile unsigned late[2];
};

__global__ void meet(Words *words, int self, unsigned number) {
    words->arrived[self] = number;
    __threadfence_system();
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    while ((int)(words->arrived[1 - self] - number) < 0) {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
        if (now - start > 100000000ull) {
            words->late[self] = number;
            return;
        }
    }
}

struct Way {
    const char *name;
    int launches;     // in a row
    bool used_before; // every stream had work
    bool in_turn;     // one thread at a time launches
};

static int stood_still(const Way &way) {
    Words *words;
    CUDA(cudaHostAlloc(&words, sizeof *words, cudaHostAllocMapped));
    *words = {};
    std::vector<cudaStream_t> streams(2 * ROUNDS);
    for (cudaStream_t &stream : streams) {
        CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        if (!way.used_before) continue;
        words->arrived[1] = 1;
        meet<<<1, 32, 0, stream>>>(words, 0, 1);
        CUDA(cudaStreamSynchronize(stream));
    }
    *words = {};
    int stood = 0;
    std::atomic<int> gate{0};
    std::mutex turn;
    auto wait = [&](int all) {
        gate++;
        while (gate < all) {}
    };
    auto run = [&](int self) {
        CUDA(cudaSetDevice(0));
        unsigned number = 0;
        for (int round = 0; round < ROUNDS; round++) {
            cudaStream_t stream = streams[2 * round + self];
            wait(2 * (3 * round + 1));
            for (int i = 0; i < way.launches; i++) {
                std::unique_lock<std::mutex> lock(turn, std::defer_lock);
                if (way.in_turn) lock.lock();
                meet<<<1, 32, 0, stream>>>(words, self, ++number);
                CUDA(cudaGetLastError());
            }
            CUDA(cudaStreamSynchronize(stream));
            wait(2 * (3 * round + 2));
            if (self == 0) {
                stood += words->late[0] != 0 || words->late[1] != 0;
                words->late[0] = words->late[1] = 0;
            }
            wait(2 * (3 * round + 3));
        }
    };
    std::thread one(run, 0), other(run, 1);
    one.join();
    other.join();
    for (cudaStream_t stream : streams) CUDA(cudaStreamDestroy(stream));
    return stood;
}

// Each way in a process of its own: `streams N` runs the Nth.
int main(int count, char **arguments) {
    const Way ways[] = {
        {"one launch each", 1, false, false},
        {"two in a row", 2, false, false},
        {"two in a row, streams used before", 2, true, false},
        {"two in a row, threads launch in turn", 2, false, true},
    };
    const int all = sizeof ways / sizeof *ways;
    if (count > 1) {
        int which = atoi(arguments[1]);
        if (which < 0 || which >= all) return 2;
        printf("%-40s %2d of %d rounds stood still\n", ways[which].name, stood_still(ways[which]), ROUNDS);
        return 0;
    }
    for (int which = 0; which < all; which++) {
        char command[4096];
        snprintf(command, sizeof command, "'%s' %d", arguments[0], which);
        if (system(command) != 0) return 1;
    }
    return 0;
}

// What the fake NVRTC puts in front of a kernel's source: CUDA C++ as plain C++, one thread a block.

#include <sched.h>
#include <unistd.h>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __shared__ static thread_local
#define __constant__ static const
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

// A kernel of one parameter; its body follows and calls it `launch`.
#define RW_KERNEL(name, ParamType)                                   \
    extern "C" {                                                     \
    extern unsigned long name##_bytes;                               \
    unsigned long name##_bytes = sizeof(ParamType);                  \
    }                                                                \
    extern "C" void name(const ParamType& launch)

struct uint3 {
    unsigned x, y, z;
};
typedef uint3 dim3;

static thread_local uint3 threadIdx = {0, 0, 0};
static thread_local uint3 blockIdx = {0, 0, 0};
static thread_local dim3 blockDim = {1, 1, 1};
static thread_local dim3 gridDim = {1, 1, 1};

extern "C" void rw_fake_block(const unsigned* index, const unsigned* grid) {
    blockIdx = {index[0], index[1], index[2]};
    gridDim = {grid[0], grid[1], grid[2]};
}

static inline void __syncthreads() {}
static inline int __syncthreads_or(int predicate) { return predicate; }
static inline void __syncwarp(unsigned = ~0u) {}
static inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
// Who only yields still takes its share of a processor, from threads that should end the wait: after a while it sleeps.
static inline void __nanosleep(unsigned) {
    static thread_local unsigned times = 0;
    if (++times < 64 || times % 16 != 0) sched_yield();
    else usleep(100);
}
[[noreturn]] static inline void __trap() { __builtin_trap(); }

// Blocks that wait for each other are more than there are processors: who reads one word again and again
// lets others run.
static inline void rw_fake_look(const void* address) {
    static thread_local const void* last = nullptr;
    static thread_local unsigned times = 0;
    times = address == last ? times + 1 : 0;
    last = address;
    if (times > 8) sched_yield();
}

// Whether the block has waited for the kernel in front of it.
static thread_local bool rw_fake_awaits = false;
static inline void rw_fake_await() { rw_fake_awaits = true; }

// Says so, once.
extern "C" bool rw_fake_has_awaited() {
    const bool awaited = rw_fake_awaits;
    rw_fake_awaits = false;
    return awaited;
}

// Memory shared with other ranks.
template <typename T> static inline T rw_load_acquire(const T* address) {
    rw_fake_look(address);
    return __atomic_load_n(address, __ATOMIC_ACQUIRE);
}

template <typename T> static inline T rw_load_relaxed(const T* address) {
    rw_fake_look(address);
    return __atomic_load_n(address, __ATOMIC_RELAXED);
}

template <typename T> static inline void rw_store_release(T* address, T value) {
    __atomic_store_n(address, value, __ATOMIC_RELEASE);
}

template <typename T> static inline void rw_store_relaxed(T* address, T value) {
    __atomic_store_n(address, value, __ATOMIC_RELAXED);
}

template <typename T> static inline T atomicAdd(T* address, T value) {
    return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
}

template <typename T> static inline T atomicExch(T* address, T value) {
    return __atomic_exchange_n(address, value, __ATOMIC_RELAXED);
}

template <typename T> static inline T atomicCAS(T* address, T expected, T value) {
    __atomic_compare_exchange_n(address, &expected, value, false, __ATOMIC_RELAXED,
                                __ATOMIC_RELAXED);
    return expected;
}

// Memory that others see: words with their order, and sixteen bytes at a time; one text for three compilers, as
// arithmetic.h, which stands in front of it. Every kernel has it, and the report it shares with the host.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define RW_RANKS 32

// Memory of a peer in another process that is to be mapped: asked by a kernel, answered by the host.
struct rw_request {
  u64 asked;           // 1 + entry
  u64 handle[8];       // from the peer's book
  u64 answered;        // what was asked
  u64 base;            // where it is mapped
};

// In pinned host memory, read and written by both sides. A launch of ranks that map each other's memory and
// find everybody there touches none of it: a store to the host holds up a kernel's end.
struct rw_report {
  u32 abort;
  u32 mismatch;        // 1 + rank whose call differs
  u32 their_tag, own_tag;
  u32 launch;          // the launch that waits
  u32 waits_for;       // 1 + rank, of block 0; 0 once it waits no more
  u32 waits_flag;
  u32 unused;
  u32 begun, done;     // launches that the host serves
  rw_request requests[RW_RANKS];
};

#ifdef RW_HOST
#define RW_SHARED static thread_local
// Blocks are threads, more than there are processors.
#define RW_PAUSE(spins) __nanosleep(0)
#else
#define RW_SHARED __shared__
#if defined(RW_DIALECT_HIP)
#define RW_KERNEL(name, params) \
  extern "C" __global__ void __launch_bounds__(RW_THREADS) name(const params launch)
#define RW_PAUSE(spins) if (spins > 1024) __builtin_amdgcn_s_sleep(1)
RW_FN u64 rw_load_acquire(const u64 *p) { return __hip_atomic_load(p, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM); }
RW_FN u64 rw_load_relaxed(const u64 *p) { return __hip_atomic_load(p, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM); }
RW_FN u32 rw_load_relaxed(const u32 *p) { return __hip_atomic_load(p, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM); }
RW_FN void rw_store_release(u64 *p, u64 v) { __hip_atomic_store(p, v, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM); }
RW_FN void rw_store_relaxed(u64 *p, u64 v) { __hip_atomic_store(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM); }
RW_FN void rw_store_relaxed(u32 *p, u32 v) { __hip_atomic_store(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM); }
#else
#define RW_KERNEL(name, params) \
  extern "C" __global__ void __launch_bounds__(RW_THREADS, RW_RESIDENT) name(const __grid_constant__ params launch)
#define RW_PAUSE(spins) if (spins > 4096) __nanosleep(200)
RW_FN u64 rw_load_acquire(const u64 *p) { u64 v; asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory"); return v; }
RW_FN u64 rw_load_relaxed(const u64 *p) { u64 v; asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory"); return v; }
RW_FN u32 rw_load_relaxed(const u32 *p) { u32 v; asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory"); return v; }
RW_FN void rw_store_release(u64 *p, u64 v) { asm volatile("st.release.sys.global.u64 [%0], %1;" :: "l"(p), "l"(v) : "memory"); }
RW_FN void rw_store_relaxed(u64 *p, u64 v) { asm volatile("st.relaxed.sys.global.u64 [%0], %1;" :: "l"(p), "l"(v) : "memory"); }
RW_FN void rw_store_relaxed(u32 *p, u32 v) { asm volatile("st.relaxed.sys.global.u32 [%0], %1;" :: "l"(p), "r"(v) : "memory"); }
#endif
#endif

// Orders what this thread saw and wrote before against what comes after: for ranks on the same GPU, or for all.
RW_FN void rw_fence(bool is_near) {
#ifdef RW_DIALECT_CUDA
  // The driver's own fences are sequentially consistent, which takes longer and is not needed: all waits are for words that
  // somebody writes once.
  if (is_near) asm volatile("fence.acq_rel.gpu;" ::: "memory");
  else asm volatile("fence.acq_rel.sys;" ::: "memory");
#else
  if (is_near) __threadfence();
  else __threadfence_system();
#endif
}

// A launch that overlaps begins before the kernel in front of it in its stream has ended: it waits here for that, and for all
// that kernel wrote. Nothing that another launch may have written is looked at before.
RW_FN void rw_await_stream() {
#if RW_OVERLAPS && defined(RW_HOST)
  rw_fake_await();
#elif RW_OVERLAPS
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The kernel behind it may begin, once all blocks have come here: none of them waits for anybody any more, so that whoever
// begins takes no place that another rank needs first.
RW_FN void rw_release_stream() {
#if RW_OVERLAPS && !defined(RW_HOST)
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Says so to the other threads of the block; several may at once.
RW_FN void rw_set(u32 *said) {
#ifdef RW_HOST
  *said = 1;
#else
  atomicExch(said, 1u);
#endif
}

struct rw_words { u32 x, y, z, w; };

// 16 bytes of a kernel's argument, by address: all threads at once, where the compiler would have them wait in turn.
RW_FN rw_words rw_load_argument(const void *argument, u32 index) {
#ifdef RW_DIALECT_CUDA
  rw_words v;
  asm volatile("ld.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"((const rw_words *)argument + index));
  return v;
#else
  return ((const rw_words *)argument)[index];
#endif
}

// 16 bytes of which each 8 arrive together.
#if !defined(RW_DIALECT_CUDA)
RW_FN rw_words rw_load_packet(const void *p) {
  u64 a = rw_load_relaxed((const u64 *)p), b = rw_load_relaxed((const u64 *)p + 1);
  rw_words v = {(u32)a, (u32)(a >> 32), (u32)b, (u32)(b >> 32)};
  return v;
}
RW_FN void rw_store_packet(void *p, rw_words v) {
  rw_store_relaxed((u64 *)p, (u64)v.y << 32 | v.x);
  rw_store_relaxed((u64 *)p + 1, (u64)v.w << 32 | v.z);
}
RW_FN rw_pack rw_load_pack(const void *p) { return *(const rw_pack *)p; }
RW_FN void rw_store_pack(void *p, rw_pack v) { *(rw_pack *)p = v; }
#else
RW_FN rw_words rw_load_packet(const void *p) {
  rw_words v;
  asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
  return v;
}
RW_FN void rw_store_packet(void *p, rw_words v) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1,%2,%3,%4};" :: "l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
RW_FN rw_pack rw_load_pack(const void *p) {
  rw_pack v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3]) : "l"(p));
  return v;
}
RW_FN void rw_store_pack(void *p, rw_pack v) {
  asm volatile("st.global.cs.v4.u32 [%0], {%1,%2,%3,%4};" :: "l"(p), "r"(v.word[0]), "r"(v.word[1]), "r"(v.word[2]), "r"(v.word[3]) : "memory");
}
#endif

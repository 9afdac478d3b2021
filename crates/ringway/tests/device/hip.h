// In the place of HIP's own headers, which HIPRTC brings along and clang alone does not: as much of
// them as kernels use.

#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(threads, ...) __attribute__((amdgpu_flat_work_group_size(1, threads)))

struct rw_index {
    unsigned x, y, z;
};

#define RW_INDEX(of) (rw_index{of##_x(), of##_y(), of##_z()})
#define threadIdx RW_INDEX(__builtin_amdgcn_workitem_id)
#define blockIdx RW_INDEX(__builtin_amdgcn_workgroup_id)
#define blockDim RW_INDEX(__builtin_amdgcn_workgroup_size)
#define gridDim                                                                      \
    (rw_index{__builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x(),  \
              __builtin_amdgcn_grid_size_y() / __builtin_amdgcn_workgroup_size_y(),  \
              __builtin_amdgcn_grid_size_z() / __builtin_amdgcn_workgroup_size_z()})

inline __device__ void __threadfence_block() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "workgroup"); }
inline __device__ void __threadfence() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent"); }
inline __device__ void __threadfence_system() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, ""); }
inline __device__ void __syncthreads() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
inline __device__ unsigned atomicAdd(unsigned* address, unsigned value) {
    return __hip_atomic_fetch_add(address, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
inline __device__ unsigned atomicExch(unsigned* address, unsigned value) {
    return __hip_atomic_exchange(address, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
inline __device__ int __syncthreads_or(int predicate) {
    static __shared__ unsigned any;
    if (threadIdx.x == 0) any = 0;
    __syncthreads();
    if (predicate) atomicExch(&any, 1u);
    __syncthreads();
    return any != 0;
}

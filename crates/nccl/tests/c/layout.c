/* Sizes, places and values, as programs compiled against NCCL's header have them. */
#include <stddef.h>

#include "nccl.h"

/* Where CUDA's header is, streams are its own. */
#if defined(WITH_CUDA) != defined(STAND_IN_FOR_CUDA)
#error "cuda_runtime_api.h is there and was not included"
#endif

/* C99 has no static assertions. */
#define SAME_(a, b, line) typedef char same_##line[(a) == (b) ? 1 : -1] __attribute__((unused))
#define SAME2_(a, b, line) SAME_(a, b, line)
#define SAME(a, b) SAME2_((long)(a), (long)(b), __LINE__)

SAME(sizeof(ncclUniqueId), 128);
SAME(NCCL_UNIQUE_ID_BYTES, 128);
SAME(sizeof(ncclResult_t), 4);
SAME(sizeof(ncclDataType_t), 4);
SAME(sizeof(ncclRedOp_t), 4);
SAME(sizeof(ncclComm_t), 8);
SAME(sizeof(cudaStream_t), 8);

SAME(ncclSuccess, 0);
SAME(ncclUnhandledCudaError, 1);
SAME(ncclSystemError, 2);
SAME(ncclInternalError, 3);
SAME(ncclInvalidArgument, 4);
SAME(ncclInvalidUsage, 5);
SAME(ncclRemoteError, 6);
SAME(ncclInProgress, 7);
SAME(ncclNumResults, 8);

SAME(ncclInt8, 0);
SAME(ncclChar, 0);
SAME(ncclUint8, 1);
SAME(ncclInt32, 2);
SAME(ncclInt, 2);
SAME(ncclUint32, 3);
SAME(ncclInt64, 4);
SAME(ncclUint64, 5);
SAME(ncclFloat16, 6);
SAME(ncclHalf, 6);
SAME(ncclFloat32, 7);
SAME(ncclFloat, 7);
SAME(ncclFloat64, 8);
SAME(ncclDouble, 8);
SAME(ncclBfloat16, 9);
SAME(ncclFloat8e4m3, 10);
SAME(ncclFloat8e5m2, 11);
SAME(ncclNumTypes, 12);

SAME(ncclSum, 0);
SAME(ncclProd, 1);
SAME(ncclMax, 2);
SAME(ncclMin, 3);
SAME(ncclAvg, 4);
SAME(ncclNumOps, 5);
SAME(ncclMaxRedOp, 0x7fffffff);
SAME(ncclScalarDevice, 0);
SAME(ncclScalarHostImmediate, 1);
SAME(ncclStatGpuMemSuspend, 0);
SAME(ncclStatGpuMemSuspended, 1);
SAME(ncclStatGpuMemPersist, 2);
SAME(ncclStatGpuMemTotal, 3);

SAME(offsetof(ncclConfig_t, size), 0);
SAME(offsetof(ncclConfig_t, magic), 8);
SAME(offsetof(ncclConfig_t, version), 12);
SAME(offsetof(ncclConfig_t, blocking), 16);
SAME(offsetof(ncclConfig_t, cgaClusterSize), 20);
SAME(offsetof(ncclConfig_t, minCTAs), 24);
SAME(offsetof(ncclConfig_t, maxCTAs), 28);
SAME(offsetof(ncclConfig_t, netName), 32);
SAME(offsetof(ncclConfig_t, splitShare), 40);
SAME(offsetof(ncclConfig_t, trafficClass), 44);
SAME(offsetof(ncclConfig_t, commName), 48);
SAME(offsetof(ncclConfig_t, collnetEnable), 56);
SAME(offsetof(ncclConfig_t, CTAPolicy), 60);
SAME(offsetof(ncclConfig_t, shrinkShare), 64);
SAME(offsetof(ncclConfig_t, nvlsCTAs), 68);
SAME(offsetof(ncclConfig_t, nChannelsPerNetPeer), 72);
SAME(offsetof(ncclConfig_t, nvlinkCentricSched), 76);
SAME(sizeof(ncclConfig_t), 80);

SAME(offsetof(ncclSimInfo_t, magic), 8);
SAME(offsetof(ncclSimInfo_t, version), 12);
SAME(offsetof(ncclSimInfo_t, estimatedTime), 16);
SAME(sizeof(ncclSimInfo_t), 24);
SAME(sizeof(ncclWaitSignalDesc_t), 16);

SAME(NCCL_API_MAGIC, 0xcafebeefL);
SAME(NCCL_VERSION(2, 28, 9), NCCL_VERSION_CODE);
SAME(NCCL_VERSION(2, 8, 4), 2804);
SAME(NCCL_SPLIT_NOCOLOR, -1);
SAME(NCCL_WIN_COLL_SYMMETRIC, 1);
SAME(NCCL_SHRINK_ABORT, 1);

int main(void) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  return !(config.size == sizeof config && config.magic == NCCL_API_MAGIC &&
           config.blocking == NCCL_CONFIG_UNDEF_INT && config.commName == NULL &&
           config.nvlinkCentricSched == NCCL_CONFIG_UNDEF_INT && info.magic == 0x74685283 &&
           info.estimatedTime < 0);
}

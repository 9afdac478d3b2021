/* What is wrong is refused, with words that say what: arguments, handles, groups, what there is not.
 *
 *   misuse */
#include "check.h"

static ncclComm_t comm;
static float buffer[64];
static float* const at = buffer;

static void arguments(void) {
  float* null = NULL;
  int number;
  ncclUniqueId id;
  REFUSED(ncclInvalidArgument, "version is NULL", ncclGetVersion(NULL));
  REFUSED(ncclInvalidArgument, "uniqueId is NULL", ncclGetUniqueId(NULL));
  OK(ncclGetVersion(&number));
  CHECK(number == NCCL_VERSION_CODE);
  CHECK(!strcmp(ncclGetErrorString(ncclSuccess), "no error"));
  CHECK(strstr(ncclGetErrorString((ncclResult_t)77), "unknown"));
  REFUSED(ncclInvalidArgument, "sendbuff of all_reduce is NULL",
          ncclAllReduce(null, at, 1, ncclFloat, ncclSum, comm, NULL));
  REFUSED(ncclInvalidArgument, "recvbuff of all_gather is NULL",
          ncclAllGather(at, null, 1, ncclFloat, comm, NULL));
  REFUSED(ncclInvalidArgument, "data type 12",
          ncclAllReduce(at, at, 1, ncclNumTypes, ncclSum, comm, NULL));
  REFUSED(ncclInvalidArgument, "data type -1",
          ncclBroadcast(at, at, 1, (ncclDataType_t)-1, 0, comm, NULL));
  REFUSED(ncclInvalidArgument, "reduction 5",
          ncclAllReduce(at, at, 1, ncclFloat, ncclNumOps, comm, NULL));
  REFUSED(ncclInvalidArgument, "reduction -1",
          ncclReduceScatter(at, at, 1, ncclFloat, (ncclRedOp_t)-1, comm, NULL));
  REFUSED(ncclInvalidArgument, "root 1", ncclReduce(at, at, 1, ncclFloat, ncclSum, 1, comm, NULL));
  REFUSED(ncclInvalidArgument, "root -1", ncclBcast(at, 1, ncclFloat, -1, comm, NULL));
  REFUSED(ncclInvalidArgument, "peer 9", ncclSend(at, 1, ncclFloat, 9, comm, NULL));
  REFUSED(ncclInvalidArgument, "recvbuff is NULL", ncclRecv(NULL, 1, ncclFloat, 0, comm, NULL));
  REFUSED(ncclInvalidArgument, "do not fit",
          ncclAllReduce(at, at, (size_t)-1, ncclFloat, ncclSum, comm, NULL));
  REFUSED(ncclInvalidArgument, "do not fit", ncclSend(at, (size_t)-1, ncclFloat, 0, comm, NULL));
  REFUSED(ncclInvalidArgument, "overlap",
          ncclAllReduce(at, at + 1, 4, ncclFloat, ncclSum, comm, NULL));
  /* Nothing is nothing, wherever it is. */
  OK(ncclAllReduce(NULL, NULL, 0, ncclFloat, ncclSum, comm, NULL));
  REFUSED(ncclInvalidArgument, "comm is NULL", ncclCommInitRank(NULL, 1, id, 0));
  memset(&id, 7, sizeof id);
  ncclComm_t other = comm;
  REFUSED(ncclInvalidArgument, "not a ringway unique id", ncclCommInitRank(&other, 2, id, 0));
  OK(ncclGetUniqueId(&id));
  REFUSED(ncclInvalidArgument, "nranks is 0", ncclCommInitRank(&other, 0, id, 0));
  REFUSED(ncclInvalidArgument, "rank 2 does not exist", ncclCommInitRank(&other, 2, id, 2));
  REFUSED(ncclInvalidArgument, "rank -1 does not exist", ncclCommInitRank(&other, 2, id, -1));
  REFUSED(ncclInvalidArgument, "nranks is -3", ncclCommInitAll(&other, -3, NULL));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.magic = 1;
  REFUSED(ncclInvalidArgument, "NCCL_CONFIG_INITIALIZER",
          ncclCommInitRankConfig(&other, 1, id, 0, &config));
  config.magic = NCCL_API_MAGIC;
  config.blocking = 3;
  REFUSED(ncclInvalidArgument, "blocking", ncclCommInitRankConfig(&other, 1, id, 0, &config));
  REFUSED(ncclInvalidArgument, "color is -2", ncclCommSplit(comm, -2, 0, &other, NULL));
  REFUSED(ncclInvalidArgument, "newcomm is NULL", ncclCommSplit(comm, 0, 0, NULL, NULL));
}

static void handles(void) {
  ncclComm_t gone, foreign = (ncclComm_t)(void*)buffer;
  ncclResult_t state;
  int count;
  OK(ncclCommInitAll(&gone, 1, NULL));
  OK(ncclCommDestroy(gone));
  REFUSED(ncclInvalidArgument, "destroyed before", ncclCommDestroy(gone));
  REFUSED(ncclInvalidArgument, "destroyed before", ncclCommCount(gone, &count));
  REFUSED(ncclInvalidArgument, "destroyed before",
          ncclAllReduce(at, at, 1, ncclFloat, ncclSum, gone, NULL));
  REFUSED(ncclInvalidArgument, "not a communicator", ncclCommGetAsyncError(foreign, &state));
  REFUSED(ncclInvalidArgument, "not a communicator", ncclCommAbort(foreign));
  REFUSED(ncclInvalidArgument, "communicator is NULL", ncclCommCount(NULL, &count));
  REFUSED(ncclInvalidArgument, "count is NULL", ncclCommCount(comm, NULL));
  OK(ncclCommDestroy(NULL));
  OK(ncclCommAbort(NULL));
  OK(ncclCommFinalize(NULL));
  OK(ncclCommRevoke(NULL, NCCL_REVOKE_DEFAULT));
  OK(ncclCommInitAll(&gone, 1, NULL));
  OK(ncclCommAbort(gone));
  REFUSED(ncclInvalidArgument, "aborted", ncclCommCount(gone, &count));
  OK(ncclCommDestroy(gone));
  REFUSED(ncclInvalidArgument, "destroyed before", ncclCommDestroy(gone));
}

static void groups(void) {
  ncclComm_t never = comm;
  ncclUniqueId id;
  buffer[0] = 3;
  REFUSED(ncclInvalidUsage, "not in a group", ncclGroupEnd());
  OK(ncclGroupStart());
  OK(ncclGroupEnd());
  /* One error ends the group: nothing of it happens, and what was promised is taken back. */
  OK(ncclGetUniqueId(&id));
  OK(ncclGroupStart());
  OK(ncclAllReduce(at, at + 1, 1, ncclFloat, ncclSum, comm, NULL));
  OK(ncclCommInitRank(&never, 1, id, 0));
  CHECK(never != NULL && never != comm);
  REFUSED(ncclInvalidArgument, "root 5", ncclBcast(at, 1, ncclFloat, 5, comm, NULL));
  REFUSED(ncclInvalidArgument, "root 6", ncclBcast(at, 1, ncclFloat, 6, comm, NULL));
  REFUSED(ncclInvalidArgument, "root 5", ncclGroupEnd());
  CHECK(never == NULL);
  CHECK(buffer[1] == 0);
  REFUSED(ncclInvalidUsage, "not in a group", ncclGroupEnd());
  /* The next group knows nothing of it. */
  OK(ncclGroupStart());
  OK(ncclAllReduce(at, at + 1, 1, ncclFloat, ncclSum, comm, NULL));
  OK(ncclGroupEnd());
  CHECK(buffer[1] == 3);
  /* What there is not is an error of the group, too: a program may look there alone. */
  OK(ncclGroupStart());
  REFUSED(ncclInvalidUsage, "not supported", ncclSignal(0, 0, 0, 0, comm, NULL));
  REFUSED(ncclInvalidUsage, "ncclSignal is not supported", ncclGroupEnd());
  OK(ncclGroupStart());
  EXPECT(ncclInvalidUsage, ncclAllReduceConfig(at, at, 1, ncclFloat, ncclSum, comm, NULL,
                                               (const ncclCollConfig_t*)at));
  REFUSED(ncclInvalidUsage, "ncclCollConfig_t is not supported", ncclGroupEnd());
  /* Questions do not spoil a group. */
  OK(ncclGroupStart());
  EXPECT(ncclInvalidArgument, ncclCommCount(comm, NULL));
  OK(ncclGroupEnd());
}

static void simulations(void) {
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  ncclComm_t pair[2];
  OK(ncclCommInitAll(pair, 2, NULL));
  buffer[2] = 9;
  OK(ncclGroupStart());
  for (int rank = 0; rank < 2; rank++)
    OK(ncclAllReduce(at, at + 2, 1, ncclFloat, ncclSum, pair[rank], NULL));
  OK(ncclGroupSimulateEnd(&info));
  CHECK(info.estimatedTime > 0 && buffer[2] == 9);
  REFUSED(ncclInvalidUsage, "not in a group", ncclGroupSimulateEnd(&info));
  OK(ncclGroupStart());
  info.magic = 0;
  REFUSED(ncclInvalidArgument, "NCCL_SIM_INFO_INITIALIZER", ncclGroupSimulateEnd(&info));
  OK(ncclCommDestroy(pair[0]));
  OK(ncclCommDestroy(pair[1]));
}

static void reductions(void) {
  ncclRedOp_t op, other;
  ncclComm_t second;
  float half = 0.5f;
  buffer[0] = 8;
  OK(ncclCommInitAll(&second, 1, NULL));
  OK(ncclRedOpCreatePreMulSum(&op, &half, ncclFloat, ncclScalarHostImmediate, comm));
  OK(ncclRedOpCreatePreMulSum(&other, &half, ncclFloat, ncclScalarDevice, comm));
  CHECK(op >= ncclNumOps && other >= ncclNumOps && op != other);
  OK(ncclAllReduce(at, at + 1, 1, ncclFloat, op, comm, NULL));
  CHECK(buffer[1] == 4);
  half = 0.25f; /* read now by one of the two alone */
  OK(ncclAllReduce(at, at + 1, 1, ncclFloat, op, comm, NULL));
  OK(ncclAllReduce(at, at + 2, 1, ncclFloat, other, comm, NULL));
  CHECK(buffer[1] == 4 && buffer[2] == 2);
  REFUSED(ncclInvalidArgument, "made for float",
          ncclAllReduce(at, at, 1, ncclDouble, op, comm, NULL));
  REFUSED(ncclInvalidArgument, "does not exist",
          ncclAllReduce(at, at, 1, ncclFloat, op, second, NULL));
  OK(ncclRedOpDestroy(op, comm));
  REFUSED(ncclInvalidArgument, "does not exist", ncclRedOpDestroy(op, comm));
  REFUSED(ncclInvalidArgument, "does not exist",
          ncclAllReduce(at, at, 1, ncclFloat, op, comm, NULL));
  REFUSED(ncclInvalidArgument, "cannot be destroyed", ncclRedOpDestroy(ncclSum, comm));
  REFUSED(ncclInvalidArgument, "residence is 7",
          ncclRedOpCreatePreMulSum(&op, &half, ncclFloat, (ncclScalarResidence_t)7, comm));
  REFUSED(ncclInvalidArgument, "scalar is NULL",
          ncclRedOpCreatePreMulSum(&op, NULL, ncclFloat, ncclScalarDevice, comm));
  OK(ncclCommDestroy(second));
}

static void memory(void) {
  void *block, *handle, *seen, *others;
  ncclComm_t other;
  ncclWindow_t window;
  uint64_t bytes = 1;
  OK(ncclMemAlloc(&block, 100000));
  CHECK(block && (uintptr_t)block % NCCL_WIN_REQUIRED_ALIGNMENT == 0);
  memset(block, 1, 100000);
  OK(ncclAllReduce(block, block, 1000, ncclInt32, ncclSum, comm, NULL));
  OK(ncclCommRegister(comm, block, 100000, &handle));
  REFUSED(ncclInvalidArgument, "no window", ncclWinGetUserPtr(comm, (ncclWindow_t)handle, &seen));
  OK(ncclCommInitAll(&other, 1, NULL));
  OK(ncclCommRegister(other, block, 100000, &others));
  REFUSED(ncclInvalidArgument, "no registered buffer", ncclCommDeregister(comm, others));
  OK(ncclCommDeregister(other, others));
  OK(ncclCommDestroy(other));
  OK(ncclCommDeregister(comm, handle));
  REFUSED(ncclInvalidArgument, "no registered buffer", ncclCommDeregister(comm, handle));
  OK(ncclCommWindowRegister(comm, block, 100000, &window, NCCL_WIN_COLL_SYMMETRIC));
  OK(ncclWinGetUserPtr(comm, window, &seen));
  CHECK(seen == block);
  REFUSED(ncclInvalidArgument, "winFlags", ncclCommWindowRegister(comm, block, 1, &window, 1 << 20));
  OK(ncclCommWindowDeregister(comm, window));
  REFUSED(ncclInvalidArgument, "no window", ncclCommWindowDeregister(comm, window));
  REFUSED(ncclInvalidArgument, "needs memory", ncclCommRegister(comm, NULL, 1, &handle));
  OK(ncclCommMemStats(comm, ncclStatGpuMemTotal, &bytes));
  CHECK(bytes == 0);
  OK(ncclMemFree(block));
  REFUSED(ncclInvalidArgument, "not allocated", ncclMemFree(block));
  OK(ncclMemFree(NULL));
  OK(ncclMemAlloc(&block, 0));
  CHECK(block == NULL);
  REFUSED(ncclInvalidArgument, "ptr is NULL", ncclMemAlloc(NULL, 1));
}

static void settings(void) {
  ncclParamHandle_t handle;
  const char *text, **keys;
  char room[64];
  int length, found = 0;
  int8_t tiny;
  int64_t number;
  OK(ncclParamBind(&handle, "NCCL_BUFFSIZE"));
  OK(ncclParamGetI64(handle, &number));
  CHECK(number == 4 << 20);
  REFUSED(ncclInvalidArgument, "does not fit i8", ncclParamGetI8(handle, &tiny));
  OK(ncclParamGetStr(handle, &text));
  OK(ncclParamGet(handle, room, (int)sizeof room, &length));
  CHECK(length == (int)strlen(text) && !memcmp(room, text, (size_t)length));
  REFUSED(ncclInvalidArgument, "maxLen is 0", ncclParamGet(handle, room, 0, &length));
  REFUSED(ncclInvalidArgument, "no setting", ncclParamBind(&handle, "NCCL_NO_SUCH_THING"));
  REFUSED(ncclInvalidArgument, "no handle", ncclParamGetStr(NULL, &text));
  OK(ncclParamGetParameter("NCCL_DEBUG", &text, &length));
  CHECK(length == (int)strlen(text) && length > 0);
  /* Ranks are waited for no less than calls. */
  OK(ncclParamGetParameter("RINGWAY_INIT_TIMEOUT", &text, &length));
  CHECK(!strcmp(text, "10m"));
  OK(ncclParamGetAllParameterKeys(&keys, &length));
  for (int i = 0; i < length; i++) found |= !strcmp(keys[i], "RINGWAY_TIMEOUT");
  CHECK(found && length > 20);
  ncclParamDumpAll();
}

static void what_there_is_not(void) {
  ncclWaitSignalDesc_t wait = {1, 0, 0, 0};
  const ncclCollConfig_t* call_config = (const ncclCollConfig_t*)at;
  REFUSED(ncclInvalidUsage, "ncclPutSignal is not supported",
          ncclPutSignal(at, 1, ncclFloat, 0, NULL, 0, 0, 0, 0, comm, NULL));
  REFUSED(ncclInvalidUsage, "not supported", ncclSignal(0, 0, 0, 0, comm, NULL));
  REFUSED(ncclInvalidUsage, "not supported", ncclWaitSignal(1, &wait, comm, NULL));
  REFUSED(ncclInvalidUsage, "not supported", ncclCommSuspend(comm, NCCL_SUSPEND_MEM));
  REFUSED(ncclInvalidUsage, "not supported", ncclCommResume(comm));
  REFUSED(ncclInvalidUsage, "not supported", ncclSetEncryption(NULL));
  REFUSED(ncclInvalidUsage, "ncclCollConfig_t is not supported",
          ncclAllReduceConfig(at, at, 1, ncclFloat, ncclSum, comm, NULL, call_config));
  buffer[0] = 5, buffer[1] = 0;
  OK(ncclAllReduceConfig(at, at + 1, 1, ncclFloat, ncclSum, comm, NULL, NULL));
  OK(ncclBroadcastConfig(at, at + 2, 1, ncclFloat, 0, comm, NULL, NULL));
  CHECK(buffer[1] == 5 && buffer[2] == 5);
}

static void twins(void) {
  int version;
  ncclComm_t one;
  OK(pncclGetVersion(&version));
  OK(pncclCommInitAll(&one, 1, NULL));
  buffer[0] = 4;
  OK(pncclGroupStart());
  OK(pncclAllReduce(at, at + 1, 1, ncclFloat, ncclProd, one, NULL));
  OK(ncclGroupEnd());
  CHECK(buffer[1] == 4);
  OK(pncclCommDestroy(one));
}

int main(void) {
  limit();
  OK(ncclCommInitAll(&comm, 1, NULL));
  arguments();
  handles();
  groups();
  simulations();
  reductions();
  memory();
  settings();
  what_there_is_not();
  twins();
  OK(ncclCommDestroy(comm));
  return 0;
}

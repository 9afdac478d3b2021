/* Loads the library by its path and finds its functions by name.
 *
 *   loading PATH */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

#include "nccl.h"

#define FAIL(...) return fprintf(stderr, __VA_ARGS__), 1

int main(int argc, char** argv) {
  alarm(60);
  if (argc != 2) FAIL("give a path\n");
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (!library) FAIL("%s\n", dlerror());
#define FIND(type, name, ...)                                  \
  type (*name)(__VA_ARGS__) = NULL;                            \
  *(void**)&name = dlsym(library, "nccl" #name);               \
  if (!name) FAIL("%s\n", dlerror());
  FIND(ncclResult_t, GetVersion, int*)
  FIND(ncclResult_t, GetUniqueId, ncclUniqueId*)
  FIND(ncclResult_t, CommInitRank, ncclComm_t*, int, ncclUniqueId, int)
  FIND(ncclResult_t, AllReduce, const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
       cudaStream_t)
  FIND(ncclResult_t, CommDestroy, ncclComm_t)
  FIND(const char*, GetErrorString, ncclResult_t)
  int version = 0;
  ncclUniqueId id;
  ncclComm_t comm;
  float value = 2.5f;
  ncclResult_t code = GetVersion(&version);
  if (!code) code = GetUniqueId(&id);
  if (!code) code = CommInitRank(&comm, 1, id, 0);
  if (!code) code = AllReduce(&value, &value, 1, ncclFloat, ncclSum, comm, NULL);
  if (!code) code = CommDestroy(comm);
  if (code) FAIL("%s\n", GetErrorString(code));
  if (version != NCCL_VERSION_CODE || value != 2.5f) FAIL("version %d, value %g\n", version, (double)value);
  /* A thread of the library waits for ranks that never come; its code must stay. */
  if (GetUniqueId(&id)) FAIL("no second id\n");
  if (dlclose(library)) FAIL("%s\n", dlerror());
  if (GetVersion(&version)) FAIL("gone\n");
  return 0;
}

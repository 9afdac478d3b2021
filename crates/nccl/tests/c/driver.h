/* The driver that the library has, a fake. */
#ifndef DRIVER_H_
#define DRIVER_H_

#include "check.h"

#include <dlfcn.h>

typedef unsigned long long address;

static void* driver;

/* A function of the driver; it ends the program where there is none. */
static void* find(const char* name) {
  void* found = dlsym(driver, name);
  if (!found) FAIL("%s", dlerror());
  return found;
}

#define DRIVER(name, types, ...)                             \
  do {                                                       \
    int (*call_) types;                                      \
    int code_;                                               \
    *(void**)&call_ = find(#name);                           \
    if ((code_ = call_(__VA_ARGS__)) != 0) FAIL("%s is %d", #name, code_); \
  } while (0)

/* ncclMemAlloc leaves no context behind. */
static void use_the_driver(void) {
  void* context;
  driver = dlopen(getenv("RINGWAY_CUDA_LIBRARY"), RTLD_NOW);
  if (!driver) FAIL("%s", dlerror());
  DRIVER(cuDevicePrimaryCtxRetain, (void**, int), &context, 0);
  DRIVER(cuCtxSetCurrent, (void*), context);
}

#endif

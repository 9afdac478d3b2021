// Devices, contexts and errors of the fake driver; see fake.h.

#include "fake.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

State& state() {
    static State* all = new State;
    return *all;
}

std::vector<Context*>& context_stack() {
    static thread_local std::vector<Context*> stack;
    return stack;
}

CUresult current(Context*& context) {
    if (in_host_function) return NOT_PERMITTED;
    if (!state().initialized) return NOT_INITIALIZED;
    auto& stack = context_stack();
    if (stack.empty() || stack.back() == nullptr) return INVALID_CONTEXT;
    context = stack.back();
    return context->retained > 0 ? SUCCESS : INVALID_CONTEXT;
}

static unsigned long setting(const char* name, unsigned long otherwise) {
    const char* text = getenv(name);
    return text != nullptr && *text != 0 ? strtoul(text, nullptr, 10) : otherwise;
}

static CUresult check(CUdevice device) {
    if (!state().initialized) return NOT_INITIALIZED;
    return device >= 0 && device < (int)state().contexts.size() ? SUCCESS : INVALID_DEVICE;
}

API cuInit(unsigned flags) {
    if (flags != 0) return INVALID_VALUE;
    State& all = state();
    std::lock_guard<std::mutex> lock(all.mutex);
    if (all.initialized) return SUCCESS;
    const unsigned long devices = setting("FAKE_CUDA_DEVICES", 1);
    if (devices == 0) return NO_DEVICE;
    std::vector<Context>(devices).swap(all.contexts);
    for (unsigned long i = 0; i < devices; i++) all.contexts[i].device = (CUdevice)i;
    all.memory = setting("FAKE_CUDA_MEMORY", 4ul << 30);
    all.multiprocessors = (int)setting("FAKE_CUDA_SMS", 4);
    if (const char* slow = getenv("FAKE_CUDA_SLOW")) sscanf(slow, "%d:%u", &all.slow_device, &all.slow_us);
    const char* loads = getenv("FAKE_CUDA_LOADS");
    all.loads_wait = loads != nullptr && strcmp(loads, "wait") == 0;
    const char* pinned = getenv("FAKE_CUDA_PINNED");
    all.pinned_waits = pinned != nullptr && strcmp(pinned, "wait") == 0;
    all.can_be_full = setting("FAKE_CUDA_FULL", 0) != 0;
    all.first_us = (unsigned)setting("FAKE_CUDA_FIRST", 0);
    all.initialized = true;
    return SUCCESS;
}

API cuDriverGetVersion(int* version) {
    if (version == nullptr) return INVALID_VALUE;
    *version = 13000;
    return SUCCESS;
}

// --- devices --------------------------------------------------------------------------------------

API cuDeviceGetCount(int* count) {
    if (count == nullptr) return INVALID_VALUE;
    if (!state().initialized) return NOT_INITIALIZED;
    *count = (int)state().contexts.size();
    return SUCCESS;
}

API cuDeviceGet(CUdevice* device, int ordinal) {
    if (device == nullptr) return INVALID_VALUE;
    if (CUresult result = check(ordinal)) return result;
    *device = ordinal;
    return SUCCESS;
}

API cuDeviceGetName(char* name, int room, CUdevice device) {
    if (name == nullptr || room <= 0) return INVALID_VALUE;
    if (CUresult result = check(device)) return result;
    snprintf(name, (size_t)room, "NVIDIA Fake");
    return SUCCESS;
}

API cuDeviceGetUuid_v2(unsigned char* uuid, CUdevice device) {
    if (uuid == nullptr) return INVALID_VALUE;
    if (CUresult result = check(device)) return result;
    memcpy(uuid, "a fake GPU, no. ", 16);
    uuid[15] = (unsigned char)('0' + device);
    return SUCCESS;
}

API cuDeviceGetPCIBusId(char* text, int room, CUdevice device) {
    if (text == nullptr || room <= 0) return INVALID_VALUE;
    if (CUresult result = check(device)) return result;
    if (room < 13) return INVALID_VALUE;
    snprintf(text, (size_t)room, "0000:%02X:00.0", (unsigned)(device + 1) & 0xff);
    return SUCCESS;
}

API cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
    if (bytes == nullptr) return INVALID_VALUE;
    if (CUresult result = check(device)) return result;
    *bytes = state().memory;
    return SUCCESS;
}

API cuDeviceGetAttribute(int* value, int attribute, CUdevice device) {
    if (value == nullptr || attribute <= 0 || attribute > 160) return INVALID_VALUE;
    if (CUresult result = check(device)) return result;
    switch (attribute) {
    case 1: // threads of a block
    case 2: // its width, height and depth
    case 3:
    case 4: *value = 1; break;
    case 5: *value = 0x7fffffff; break; // width of a grid, then its height and depth
    case 6:
    case 7: *value = 65535; break;
    case 8: *value = 48 << 10; break; // shared memory of a block
    case 9: *value = 64 << 10; break; // constant memory
    case 10: *value = 32; break;      // warp
    case 12: *value = 65536; break;   // registers of a block
    case 13: *value = 1000000; break; // kHz
    case 16: *value = state().multiprocessors; break;
    case 19: *value = 1; break;     // maps host memory
    case 31: *value = 1; break;     // concurrent kernels
    case 33: *value = device + 1; break; // PCI bus
    case 36: *value = 1000000; break; // memory's kHz
    case 37: *value = 1024; break;    // and bits
    case 38: *value = 1 << 20; break; // L2
    case 39: *value = 32; break;      // threads of a multiprocessor
    case 40: *value = 2; break;       // copy engines
    case 41: *value = 1; break;       // unified addresses
    case 75: *value = 9; break;       // compute capability
    case 76: *value = 0; break;
    case 78: *value = 1; break;          // stream priorities
    case 81: *value = 228 << 10; break;  // shared memory of a multiprocessor
    case 91: *value = 1; break;          // registered memory by its host address
    case 95: *value = 1; break;          // cooperative launches
    case 97: *value = 227 << 10; break;  // shared memory of a block, asked for
    case 102: // cuMem memory
    case 103: // and descriptors of it
        *value = setting("FAKE_CUDA_VMM", 1) != 0;
        break;
    case 106: *value = 32; break;        // blocks of a multiprocessor
    case 124: *value = setting("FAKE_CUDA_DMABUF", 1) != 0; break;
    default: *value = 0; break;          // managed memory, multicast: none of it
    }
    return SUCCESS;
}

API cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
    if (can == nullptr) return INVALID_VALUE;
    if (CUresult result = check(device)) return result;
    if (CUresult result = check(peer)) return result;
    *can = device != peer;
    return SUCCESS;
}

// --- contexts -------------------------------------------------------------------------------------

API cuDevicePrimaryCtxRetain(Context** context, CUdevice device) {
    if (context == nullptr) return INVALID_VALUE;
    if (CUresult result = check(device)) return result;
    std::lock_guard<std::mutex> lock(state().mutex);
    *context = &state().contexts[(size_t)device];
    (*context)->retained++;
    return SUCCESS;
}

API cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    if (CUresult result = check(device)) return result;
    std::lock_guard<std::mutex> lock(state().mutex);
    Context& context = state().contexts[(size_t)device];
    if (context.retained == 0) return INVALID_CONTEXT;
    context.retained--;
    return SUCCESS;
}

static CUresult check(Context* context) {
    if (!state().initialized) return NOT_INITIALIZED;
    std::lock_guard<std::mutex> lock(state().mutex);
    for (Context& one : state().contexts) {
        if (&one == context && one.retained > 0) return SUCCESS;
    }
    return INVALID_CONTEXT;
}

API cuCtxGetCurrent(Context** context) {
    if (context == nullptr) return INVALID_VALUE;
    if (!state().initialized) return NOT_INITIALIZED;
    *context = context_stack().empty() ? nullptr : context_stack().back();
    return SUCCESS;
}

API cuCtxSetCurrent(Context* context) {
    if (!state().initialized) return NOT_INITIALIZED;
    if (context != nullptr) {
        if (CUresult result = check(context)) return result;
    }
    auto& stack = context_stack();
    if (!stack.empty()) stack.pop_back();
    if (context != nullptr) stack.push_back(context);
    return SUCCESS;
}

API cuCtxPushCurrent_v2(Context* context) {
    if (CUresult result = check(context)) return result;
    context_stack().push_back(context);
    return SUCCESS;
}

API cuCtxPopCurrent_v2(Context** context) {
    if (!state().initialized) return NOT_INITIALIZED;
    auto& stack = context_stack();
    if (stack.empty()) return INVALID_CONTEXT;
    if (context != nullptr) *context = stack.back();
    stack.pop_back();
    return SUCCESS;
}

API cuCtxGetDevice(CUdevice* device) {
    if (device == nullptr) return INVALID_VALUE;
    Context* context;
    if (CUresult result = current(context)) return result;
    *device = context->device;
    return SUCCESS;
}

API cuCtxSynchronize() {
    Context* context;
    if (CUresult result = current(context)) return result;
    synchronize_context(context);
    return SUCCESS;
}

API cuCtxEnablePeerAccess(Context* peer, unsigned flags) {
    Context* context;
    if (CUresult result = current(context)) return result;
    if (flags != 0) return INVALID_VALUE;
    if (CUresult result = check(peer)) return result;
    if (peer == context) return INVALID_DEVICE;
    std::lock_guard<std::mutex> lock(state().mutex);
    return context->peers.insert(peer->device).second ? SUCCESS : PEER_ACCESS_ALREADY_ENABLED;
}

// --- errors ---------------------------------------------------------------------------------------

static const struct {
    CUresult code;
    const char *name, *text;
} ERRORS[] = {
    {SUCCESS, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {MAPPING_FAILED, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed"},
    {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {PEER_ACCESS_ALREADY_ENABLED, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
     "peer access is already enabled"},
    {HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
};

API cuGetErrorName(CUresult error, const char** name) {
    if (name == nullptr) return INVALID_VALUE;
    *name = nullptr;
    for (auto& known : ERRORS) {
        if (known.code == error) *name = known.name;
    }
    return *name != nullptr ? SUCCESS : INVALID_VALUE;
}

API cuGetErrorString(CUresult error, const char** text) {
    if (text == nullptr) return INVALID_VALUE;
    *text = nullptr;
    for (auto& known : ERRORS) {
        if (known.code == error) *text = known.text;
    }
    return *text != nullptr ? SUCCESS : INVALID_VALUE;
}

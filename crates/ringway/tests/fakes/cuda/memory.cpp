// Allocations, pointers and IPC of the fake driver; see fake.h.

#include "fake.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_memfd_secret
#define SYS_memfd_secret 447 // everywhere
#endif

Allocation* find_allocation(uintptr_t address) {
    auto& all = state().allocations;
    auto after = all.upper_bound(address);
    if (after == all.begin()) return nullptr;
    Allocation& before = std::prev(after)->second;
    return address - before.base < before.bytes ? &before : nullptr;
}

size_t bytes_from(uintptr_t address) {
    const Allocation* found = find_allocation(address);
    if (found == nullptr) return 0;
    uintptr_t end = found->base + found->bytes;
    for (const Allocation* next = found; next != nullptr && next->kind == Kind::Virtual;) {
        end = next->base + next->bytes;
        next = find_allocation(end);
    }
    return end - address;
}

static size_t whole_pages(size_t bytes) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

static void remember(uintptr_t base, size_t bytes, Kind kind, Context* context, int fd,
                     unsigned long inode) {
    State& all = state();
    all.allocations[base] = {base, bytes, kind, context, fd, inode, 1, all.next_id++, 0};
}

// Memory that nothing but this process reaches, as that of a GPU without a peer memory module: adapters cannot pin it.
static int secret_memory() { return (int)syscall(SYS_memfd_secret, O_CLOEXEC); }

static bool is_secret(CUdevice device) {
    const char* text = getenv("FAKE_CUDA_SECRET");
    return text != nullptr && atoi(text) == device;
}

// --- allocating -----------------------------------------------------------------------------------

API cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
    if (address == nullptr || bytes == 0) return INVALID_VALUE;
    Context* context;
    if (CUresult result = current(context)) return result;
    if (CUresult result = forbidden()) return result;
    std::lock_guard<std::mutex> lock(state().mutex);
    size_t& used = state().used[context->device];
    if (bytes > state().memory - used) return OUT_OF_MEMORY;
    const int fd =
        is_secret(context->device) ? secret_memory() : memfd_create("fake device memory", MFD_CLOEXEC);
    struct stat about;
    if (fd < 0) return OUT_OF_MEMORY;
    void* base = MAP_FAILED;
    if (ftruncate(fd, (off_t)whole_pages(bytes)) == 0 && fstat(fd, &about) == 0) {
        base = mmap(nullptr, whole_pages(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    if (base == MAP_FAILED) {
        close(fd);
        return OUT_OF_MEMORY;
    }
    used += bytes;
    remember((uintptr_t)base, bytes, Kind::Device, context, fd, about.st_ino);
    *address = (CUdeviceptr)(uintptr_t)base;
    return SUCCESS;
}

// Takes an allocation of a kind off the list and waits for the work that may use it.
static CUresult forget(uintptr_t address, Kind kind, Allocation& gone) {
    Context* context;
    if (CUresult result = current(context)) return result;
    if (CUresult result = forbidden()) return result;
    {
        std::lock_guard<std::mutex> lock(state().mutex);
        auto found = state().allocations.find(address);
        if (found == state().allocations.end() || found->second.kind != kind) return INVALID_VALUE;
        gone = found->second;
        state().allocations.erase(found);
    }
    synchronize_context(gone.context);
    return SUCCESS;
}

API cuMemFree_v2(CUdeviceptr address) {
    Allocation gone;
    if (address == 0) return SUCCESS;
    if (CUresult result = forget((uintptr_t)address, Kind::Device, gone)) return result;
    munmap((void*)gone.base, whole_pages(gone.bytes));
    close(gone.fd);
    std::lock_guard<std::mutex> lock(state().mutex);
    state().used[gone.context->device] -= gone.bytes;
    return SUCCESS;
}

API cuMemHostAlloc(void** address, size_t bytes, unsigned flags) {
    if (address == nullptr || bytes == 0 || flags > 7) return INVALID_VALUE;
    Context* context;
    if (CUresult result = current(context)) return result;
    if (CUresult result = forbidden()) return result;
    if (state().pinned_waits) synchronize_context(context);
    void* base = mmap(nullptr, whole_pages(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) return OUT_OF_MEMORY;
    std::lock_guard<std::mutex> lock(state().mutex);
    remember((uintptr_t)base, bytes, Kind::Host, context, -1, 0);
    *address = base;
    return SUCCESS;
}

API cuMemFreeHost(void* address) {
    Allocation gone;
    if (address == nullptr) return SUCCESS;
    if (CUresult result = forget((uintptr_t)address, Kind::Host, gone)) return result;
    munmap((void*)gone.base, whole_pages(gone.bytes));
    return SUCCESS;
}

API cuMemHostRegister_v2(void* address, size_t bytes, unsigned flags) {
    if (address == nullptr || bytes == 0 || flags > 15) return INVALID_VALUE;
    Context* context;
    if (CUresult result = current(context)) return result;
    std::lock_guard<std::mutex> lock(state().mutex);
    const uintptr_t base = (uintptr_t)address;
    auto& all = state().allocations;
    auto next = all.lower_bound(base);
    const bool overlaps = find_allocation(base) != nullptr ||
                          (next != all.end() && next->first - base < bytes);
    if (overlaps) return HOST_MEMORY_ALREADY_REGISTERED;
    remember(base, bytes, Kind::Registered, context, -1, 0);
    return SUCCESS;
}

API cuMemHostUnregister(void* address) {
    if (address == nullptr) return INVALID_VALUE;
    Allocation gone;
    const CUresult result = forget((uintptr_t)address, Kind::Registered, gone);
    return result == INVALID_VALUE ? HOST_MEMORY_NOT_REGISTERED : result;
}

API cuMemHostGetDevicePointer_v2(CUdeviceptr* device, void* address, unsigned flags) {
    if (device == nullptr || address == nullptr || flags != 0) return INVALID_VALUE;
    Context* context;
    if (CUresult result = current(context)) return result;
    std::lock_guard<std::mutex> lock(state().mutex);
    Allocation* found = find_allocation((uintptr_t)address);
    if (found == nullptr || found->is_device()) return INVALID_VALUE;
    *device = (CUdeviceptr)(uintptr_t)address;
    return SUCCESS;
}

// A descriptor of whole pages of device memory. It is no dma-buf: whoever asks the kernel is told so.
API cuMemGetHandleForAddressRange(void* handle, CUdeviceptr address, size_t bytes, int type,
                                  unsigned long long flags) {
    if (handle == nullptr || bytes == 0 || type != 1 || flags != 0) return INVALID_VALUE;
    Context* context;
    if (CUresult result = current(context)) return result;
    std::lock_guard<std::mutex> lock(state().mutex);
    const Allocation* found = find_allocation((uintptr_t)address);
    if (found == nullptr || found->kind != Kind::Device || is_secret(context->device)) return NOT_SUPPORTED;
    if (address != found->base || bytes > found->bytes || whole_pages(bytes) != bytes) return INVALID_VALUE;
    const int fd = fcntl(found->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) return OUT_OF_MEMORY;
    *(int*)handle = fd;
    return SUCCESS;
}

// --- asking ---------------------------------------------------------------------------------------

API cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
    Context* context;
    if (CUresult result = current(context)) return result;
    std::lock_guard<std::mutex> lock(state().mutex);
    Allocation* found = find_allocation((uintptr_t)address);
    if (found == nullptr) return NOT_FOUND;
    if (base != nullptr) *base = found->base;
    if (bytes != nullptr) *bytes = found->bytes;
    return SUCCESS;
}

// Writes what an attribute's type asks for; with nothing found, the value that stands for nothing.
static CUresult attribute_of(const Allocation* found, uintptr_t address, int attribute, void* value) {
    const bool device = found != nullptr && found->is_device();
    switch (attribute) {
    case 1: *(Context**)value = found != nullptr ? found->context : nullptr; return SUCCESS;
    case 2: *(unsigned*)value = found == nullptr ? 0 : device ? 2 : 1; return SUCCESS;
    case 3: *(CUdeviceptr*)value = found != nullptr ? address : 0; return SUCCESS;
    case 4: // a host address, which device memory has none of
        *(void**)value = found != nullptr && !device ? (void*)address : nullptr;
        return device ? INVALID_VALUE : SUCCESS;
    case 6: *(unsigned*)value = 0; return SUCCESS; // synchronous copies
    case 7: *(unsigned long long*)value = found != nullptr ? found->id : 0; return SUCCESS;
    case 8: *(unsigned*)value = 0; return SUCCESS; // managed
    case 9: *(int*)value = found != nullptr ? found->context->device : -2; return SUCCESS;
    case 10: // can be shared by a handle
        *(bool*)value = found != nullptr && found->kind == Kind::Device;
        return SUCCESS;
    case 11: *(CUdeviceptr*)value = found != nullptr ? found->base : 0; return SUCCESS;
    case 12: *(size_t*)value = found != nullptr ? found->bytes : 0; return SUCCESS;
    case 13: *(bool*)value = found != nullptr; return SUCCESS;       // mapped
    case 14: *(unsigned long long*)value = 0; return SUCCESS;        // handle types
    case 15: *(bool*)value = false; return SUCCESS;                  // GPUDirect RDMA
    case 16: *(unsigned*)value = found != nullptr ? 3 : 0; return SUCCESS; // read and write
    case 17: *(void**)value = nullptr; return SUCCESS;               // pool
    default: return INVALID_VALUE;
    }
}

API cuPointerGetAttribute(void* value, int attribute, CUdeviceptr address) {
    if (value == nullptr) return INVALID_VALUE;
    if (!state().initialized) return NOT_INITIALIZED;
    std::lock_guard<std::mutex> lock(state().mutex);
    Allocation* found = find_allocation((uintptr_t)address);
    return found == nullptr ? INVALID_VALUE
                            : attribute_of(found, (uintptr_t)address, attribute, value);
}

API cuPointerGetAttributes(unsigned count, const int* attributes, void** values,
                           CUdeviceptr address) {
    if (attributes == nullptr || values == nullptr || count == 0) return INVALID_VALUE;
    if (!state().initialized) return NOT_INITIALIZED;
    std::lock_guard<std::mutex> lock(state().mutex);
    Allocation* found = find_allocation((uintptr_t)address);
    for (unsigned i = 0; i < count; i++) {
        if (values[i] == nullptr) return INVALID_VALUE;
        // Unlike the single question, this one answers "nothing" for unknown memory.
        const CUresult result =
            attribute_of(found, (uintptr_t)address, attributes[i], values[i]);
        if (result != SUCCESS && attributes[i] != 4) return result;
    }
    return SUCCESS;
}

// --- between processes ----------------------------------------------------------------------------

// What the 64 bytes of a handle hold.
struct Handle {
    char mark[8];
    int pid, fd;
    size_t bytes;
    unsigned long inode;
    int device;
    char unused[28];
};
static_assert(sizeof(Handle) == 64, "CUipcMemHandle");
static const char MARK[8] = {'f', 'a', 'k', 'e', ' ', 'I', 'P', 'C'};

API cuIpcGetMemHandle(Handle* handle, CUdeviceptr address) {
    if (handle == nullptr) return INVALID_VALUE;
    Context* context;
    if (CUresult result = current(context)) return result;
    std::lock_guard<std::mutex> lock(state().mutex);
    Allocation* found = find_allocation((uintptr_t)address);
    if (found == nullptr || found->kind != Kind::Device) return INVALID_VALUE;
    memset(handle, 0, sizeof *handle);
    memcpy(handle->mark, MARK, sizeof MARK);
    handle->pid = getpid();
    handle->fd = found->fd;
    handle->bytes = found->bytes;
    handle->inode = found->inode;
    handle->device = found->context->device;
    return SUCCESS;
}

API cuIpcOpenMemHandle_v2(CUdeviceptr* address, Handle handle, unsigned flags) {
    if (address == nullptr || flags != 1) return INVALID_VALUE;
    Context* context;
    if (CUresult result = current(context)) return result;
    if (CUresult result = forbidden()) return result;
    if (memcmp(handle.mark, MARK, sizeof MARK) != 0 || handle.bytes == 0) return INVALID_HANDLE;
    // The driver does not open a handle in the process it comes from.
    if (handle.pid == getpid()) return INVALID_CONTEXT;
    std::lock_guard<std::mutex> lock(state().mutex);
    for (auto& [base, known] : state().allocations) {
        if (known.kind == Kind::Ipc && known.inode == handle.inode) {
            known.opened++;
            *address = base;
            return SUCCESS;
        }
    }
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.pid, handle.fd);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return MAPPING_FAILED;
    struct stat about;
    void* base = MAP_FAILED;
    // The number may be another file's by now.
    if (fstat(fd, &about) == 0 && about.st_ino == handle.inode) {
        base = mmap(nullptr, whole_pages(handle.bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    close(fd);
    if (base == MAP_FAILED) return MAPPING_FAILED;
    remember((uintptr_t)base, handle.bytes, Kind::Ipc, context, -1, handle.inode);
    *address = (CUdeviceptr)(uintptr_t)base;
    return SUCCESS;
}

API cuIpcCloseMemHandle(CUdeviceptr address) {
    Context* context;
    if (CUresult result = current(context)) return result;
    if (CUresult result = forbidden()) return result;
    Allocation gone;
    {
        std::lock_guard<std::mutex> lock(state().mutex);
        auto found = state().allocations.find((uintptr_t)address);
        if (found == state().allocations.end() || found->second.kind != Kind::Ipc) {
            return INVALID_VALUE;
        }
        if (--found->second.opened > 0) return SUCCESS;
        gone = found->second;
        state().allocations.erase(found);
    }
    synchronize_context(gone.context);
    munmap((void*)gone.base, whole_pages(gone.bytes));
    return SUCCESS;
}

// Memory of the fake driver whose addresses and allocations are apart (cuMem); see fake.h.
//
// An allocation is a memfd, which is also its descriptor for other processes. Reserved addresses, and mapped ones that
// nobody has let the device use, fault when touched, as on a GPU.

#include "fake.h"

#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

// FAKE_CUDA_VMM=0: there is none; 2: what is mapped at an address always has the same number.
static bool is_set_to(const char* value) {
    const char* text = getenv("FAKE_CUDA_VMM");
    return text != nullptr && strcmp(text, value) == 0;
}

static bool has_virtual_memory() { return !is_set_to("0"); }

static const size_t GRANULARITY = 2ul << 20;
static const int DESCRIPTOR = 1;

struct Properties {
    int type, handle_types;
    int location_type, device;
    void* windows;
    unsigned char flags[8];
};

struct Access {
    int location_type, device, flags;
};

// An allocation: there while a handle or a mapping is.
struct Physical {
    int fd;
    size_t bytes;
    int handle_types;
    CUdevice owner; // -1 where it is another process's
    unsigned users;
};

static std::map<unsigned long long, Physical>& physical() {
    static auto* all = new std::map<unsigned long long, Physical>;
    return *all;
}

static std::map<uintptr_t, size_t>& reserved() {
    static auto* all = new std::map<uintptr_t, size_t>;
    return *all;
}

// All below under the state's lock.
static unsigned long long next_handle = 0x100;

static void let_go(unsigned long long handle) {
    auto found = physical().find(handle);
    if (--found->second.users > 0) return;
    close(found->second.fd);
    if (found->second.owner >= 0) state().used[found->second.owner] -= found->second.bytes;
    physical().erase(found);
}

static bool is_whole(size_t bytes) { return bytes != 0 && bytes % GRANULARITY == 0; }

static bool check(const Properties* properties) {
    return properties != nullptr && properties->type == 1 && properties->location_type == 1 &&
           properties->device >= 0 && properties->device < (int)state().contexts.size();
}

API cuMemGetAllocationGranularity(size_t* bytes, const Properties* properties, int option) {
    if (!state().initialized) return NOT_INITIALIZED;
    if (!has_virtual_memory()) return NOT_SUPPORTED;
    if (bytes == nullptr || !check(properties) || option < 0 || option > 1) return INVALID_VALUE;
    *bytes = GRANULARITY;
    return SUCCESS;
}

API cuMemCreate(unsigned long long* handle, size_t bytes, const Properties* properties,
                unsigned long long flags) {
    if (!state().initialized) return NOT_INITIALIZED;
    if (!has_virtual_memory()) return NOT_SUPPORTED;
    if (handle == nullptr || !is_whole(bytes) || !check(properties) || flags != 0) return INVALID_VALUE;
    std::lock_guard<std::mutex> lock(state().mutex);
    size_t& used = state().used[properties->device];
    if (bytes > state().memory - used) return OUT_OF_MEMORY;
    const int fd = memfd_create("fake virtual memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return OUT_OF_MEMORY;
    if (ftruncate(fd, (off_t)bytes) != 0) {
        close(fd);
        return OUT_OF_MEMORY;
    }
    used += bytes;
    *handle = next_handle++;
    physical()[*handle] = {fd, bytes, properties->handle_types, properties->device, 1};
    return SUCCESS;
}

API cuMemRelease(unsigned long long handle) {
    std::lock_guard<std::mutex> lock(state().mutex);
    if (physical().count(handle) == 0) return INVALID_VALUE;
    let_go(handle);
    return SUCCESS;
}

API cuMemRetainAllocationHandle(unsigned long long* handle, void* address) {
    if (handle == nullptr) return INVALID_VALUE;
    std::lock_guard<std::mutex> lock(state().mutex);
    const Allocation* found = find_allocation((uintptr_t)address);
    if (found == nullptr || found->kind != Kind::Virtual) return INVALID_VALUE;
    physical()[found->physical].users++;
    *handle = found->physical;
    return SUCCESS;
}

API cuMemExportToShareableHandle(void* shareable, unsigned long long handle, int type,
                                 unsigned long long flags) {
    if (shareable == nullptr || flags != 0) return INVALID_VALUE;
    std::lock_guard<std::mutex> lock(state().mutex);
    auto found = physical().find(handle);
    // Only what was made to be passed can be, and only by who made it.
    if (found == physical().end() || type != DESCRIPTOR) return INVALID_VALUE;
    if ((found->second.handle_types & type) == 0 || found->second.owner < 0) return INVALID_VALUE;
    const int fd = fcntl(found->second.fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) return OUT_OF_MEMORY;
    *(int*)shareable = fd;
    return SUCCESS;
}

API cuMemImportFromShareableHandle(unsigned long long* handle, void* shareable, int type) {
    if (handle == nullptr || type != DESCRIPTOR) return INVALID_VALUE;
    Context* context;
    if (CUresult result = current(context)) return result;
    const int number = (int)(intptr_t)shareable;
    struct stat about;
    // Such a descriptor, and no other file.
    if (fcntl(number, F_GET_SEALS) < 0 || fstat(number, &about) != 0) return INVALID_VALUE;
    if (!is_whole((size_t)about.st_size)) return INVALID_VALUE;
    const int fd = fcntl(number, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) return OUT_OF_MEMORY;
    std::lock_guard<std::mutex> lock(state().mutex);
    *handle = next_handle++;
    physical()[*handle] = {fd, (size_t)about.st_size, 0, -1, 1};
    return SUCCESS;
}

API cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t alignment, CUdeviceptr,
                        unsigned long long flags) {
    if (!state().initialized) return NOT_INITIALIZED;
    if (address == nullptr || !is_whole(bytes) || alignment > GRANULARITY || flags != 0) return INVALID_VALUE;
    void* wide = mmap(nullptr, bytes + GRANULARITY, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (wide == MAP_FAILED) return OUT_OF_MEMORY;
    const uintptr_t start = (uintptr_t)wide, base = (start + GRANULARITY - 1) / GRANULARITY * GRANULARITY;
    if (base > start) munmap(wide, base - start);
    const uintptr_t rest = start + GRANULARITY - base;
    if (rest > 0) munmap((void*)(base + bytes), rest);
    std::lock_guard<std::mutex> lock(state().mutex);
    reserved()[base] = bytes;
    *address = (CUdeviceptr)base;
    return SUCCESS;
}

// What is mapped between two addresses: none, or all of it by whole mappings.
static bool mapped(uintptr_t from, uintptr_t to, std::vector<uintptr_t>& bases) {
    for (uintptr_t at = from; at < to;) {
        auto found = state().allocations.find(at);
        if (found == state().allocations.end() || found->second.kind != Kind::Virtual) return false;
        bases.push_back(at);
        at += found->second.bytes;
        if (at > to) return false;
    }
    return true;
}

static bool is_free(uintptr_t from, uintptr_t to) {
    auto next = state().allocations.lower_bound(from);
    return find_allocation(from) == nullptr && (next == state().allocations.end() || next->first >= to);
}

API cuMemAddressFree(CUdeviceptr address, size_t bytes) {
    std::lock_guard<std::mutex> lock(state().mutex);
    auto found = reserved().find((uintptr_t)address);
    if (found == reserved().end() || found->second != bytes) return INVALID_VALUE;
    if (!is_free(found->first, found->first + bytes)) return INVALID_VALUE;
    munmap((void*)found->first, bytes);
    reserved().erase(found);
    return SUCCESS;
}

API cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, unsigned long long handle,
             unsigned long long flags) {
    if (offset != 0 || flags != 0 || !is_whole(bytes)) return INVALID_VALUE;
    Context* context;
    if (CUresult result = current(context)) return result;
    std::lock_guard<std::mutex> lock(state().mutex);
    const uintptr_t base = (uintptr_t)address;
    auto found = physical().find(handle);
    auto around = reserved().upper_bound(base);
    if (found == physical().end() || around == reserved().begin() || base % GRANULARITY != 0) return INVALID_VALUE;
    --around;
    if (base + bytes > around->first + around->second || bytes > found->second.bytes) return INVALID_VALUE;
    if (!is_free(base, base + bytes)) return INVALID_VALUE;
    // Nobody may touch it yet.
    if (mmap((void*)base, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, found->second.fd, 0) == MAP_FAILED) {
        return OUT_OF_MEMORY;
    }
    found->second.users++;
    Allocation made = {};
    made.base = base;
    made.bytes = bytes;
    made.kind = Kind::Virtual;
    made.context = context;
    made.fd = -1;
    made.id = is_set_to("2") ? base : state().next_id++;
    made.physical = handle;
    state().allocations[base] = made;
    return SUCCESS;
}

API cuMemSetAccess(CUdeviceptr address, size_t bytes, const Access* access, size_t count) {
    if (access == nullptr || count == 0) return INVALID_VALUE;
    std::lock_guard<std::mutex> lock(state().mutex);
    std::vector<uintptr_t> bases;
    const uintptr_t base = (uintptr_t)address;
    if (!is_whole(bytes) || !mapped(base, base + bytes, bases)) return INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        if (access[i].location_type != 1 || (access[i].flags != 3 && access[i].flags != 1)) return INVALID_VALUE;
        if (access[i].device < 0 || access[i].device >= (int)state().contexts.size()) return INVALID_DEVICE;
    }
    mprotect((void*)base, bytes, access[0].flags == 3 ? PROT_READ | PROT_WRITE : PROT_READ);
    return SUCCESS;
}

// The driver does not wait for kernels here: what still runs faults.
API cuMemUnmap(CUdeviceptr address, size_t bytes) {
    std::lock_guard<std::mutex> lock(state().mutex);
    std::vector<uintptr_t> bases;
    const uintptr_t base = (uintptr_t)address;
    if (!is_whole(bytes) || !mapped(base, base + bytes, bases)) return INVALID_VALUE;
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    if (mmap((void*)base, bytes, PROT_NONE, flags, -1, 0) == MAP_FAILED) return OUT_OF_MEMORY;
    for (uintptr_t one : bases) {
        const unsigned long long handle = state().allocations[one].physical;
        state().allocations.erase(one);
        let_go(handle);
    }
    return SUCCESS;
}

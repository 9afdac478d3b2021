// Modules and launches of the fake driver; see fake.h. A module is a shared library that the fake NVRTC
// made: an ELF file, as real ones are.

#include "fake.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <elf.h>
#include <unistd.h>

struct Module;

struct Function {
    Module* module;
    void (*run)(const void* launch);
    size_t bytes; // of what it is launched with
};

struct Module {
    Context* context;
    void* library;
    void (*set_block)(const unsigned* index, const unsigned* grid);
    bool (*has_awaited)();
    std::map<std::string, Function> functions;
};

static std::mutex modules_mutex;
static std::set<Module*>& modules() {
    static auto* all = new std::set<Module*>;
    return *all;
}

// The length of an ELF file: its table of sections stands last. Zero if it is none of ours.
static size_t image_bytes(const void* image) {
    const auto* header = (const Elf64_Ehdr*)image;
    if (memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_type != ET_DYN) return 0;
    return header->e_shoff + (size_t)header->e_shnum * header->e_shentsize;
}

// Opens an image by way of a file whose name no other has: dlopen knows libraries by name.
static void* open_image(const void* image, size_t bytes) {
    const char* folder = getenv("TMPDIR");
    std::string path = std::string(folder != nullptr ? folder : "/tmp") + "/fake-module-XXXXXX";
    const int fd = mkstemp(path.data());
    if (fd < 0) return nullptr;
    const char* at = (const char*)image;
    while (bytes > 0) {
        const ssize_t written = write(fd, at, bytes);
        if (written <= 0) break;
        at += written;
        bytes -= (size_t)written;
    }
    close(fd);
    void* library = bytes == 0 ? dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
    unlink(path.c_str());
    return library;
}

API cuModuleLoadDataEx(Module** module, const void* image, unsigned, int*, void**) {
    if (module == nullptr || image == nullptr) return INVALID_VALUE;
    Context* context;
    if (CUresult result = current(context)) return result;
    if (CUresult result = forbidden()) return result;
    if (state().loads_wait) synchronize_context(context);
    const size_t bytes = image_bytes(image);
    void* library = bytes > 0 ? open_image(image, bytes) : nullptr;
    if (library == nullptr) return INVALID_IMAGE;
    auto set_block = (void (*)(const unsigned*, const unsigned*))dlsym(library, "rw_fake_block");
    auto has_awaited = (bool (*)())dlsym(library, "rw_fake_has_awaited");
    if (set_block == nullptr || has_awaited == nullptr) {
        dlclose(library);
        return INVALID_IMAGE;
    }
    std::lock_guard<std::mutex> lock(modules_mutex);
    *module = new Module{context, library, set_block, has_awaited, {}};
    modules().insert(*module);
    return SUCCESS;
}

API cuModuleUnload(Module* module) {
    Context* context;
    if (CUresult result = current(context)) return result;
    {
        std::lock_guard<std::mutex> lock(modules_mutex);
        if (modules().erase(module) == 0) return INVALID_HANDLE;
    }
    synchronize_context(module->context);
    dlclose(module->library);
    delete module;
    return SUCCESS;
}

API cuModuleGetFunction(Function** function, Module* module, const char* name) {
    if (function == nullptr || name == nullptr || *name == 0) return INVALID_VALUE;
    Context* context;
    if (CUresult result = current(context)) return result;
    std::lock_guard<std::mutex> lock(modules_mutex);
    if (modules().count(module) == 0) return INVALID_HANDLE;
    auto run = (void (*)(const void*))dlsym(module->library, name);
    auto bytes = (const unsigned long*)dlsym(module->library, (std::string(name) + "_bytes").c_str());
    if (run == nullptr || bytes == nullptr) return NOT_FOUND;
    *function = &module->functions.insert({name, {module, run, *bytes}}).first->second;
    return SUCCESS;
}

// Whether a function is of a module that is loaded in the current context.
static CUresult check(Function* function) {
    Context* context;
    if (CUresult result = current(context)) return result;
    std::lock_guard<std::mutex> lock(modules_mutex);
    for (Module* module : modules()) {
        for (auto& [name, known] : module->functions) {
            if (&known == function) return module->context == context ? SUCCESS : INVALID_HANDLE;
        }
    }
    return INVALID_HANDLE;
}

API cuFuncGetAttribute(int* value, int attribute, Function* function) {
    if (value == nullptr || attribute < 0 || attribute > 15) return INVALID_VALUE;
    if (CUresult result = check(function)) return result;
    switch (attribute) {
    case 0: *value = 1; break;   // threads of a block
    case 4: *value = 32; break;  // registers
    case 5:                      // PTX and binary version
    case 6: *value = 90; break;
    case 8: *value = 227 << 10; break; // dynamic shared memory
    default: *value = 0; break;
    }
    return SUCCESS;
}

API cuFuncSetAttribute(Function* function, int attribute, int value) {
    if (CUresult result = check(function)) return result;
    if (attribute != 8 && attribute != 9) return INVALID_VALUE;
    return value >= (attribute == 9 ? -1 : 0) && value <= 227 << 10 ? SUCCESS : INVALID_VALUE;
}

API cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Function* function, int threads,
                                                size_t shared_bytes) {
    if (blocks == nullptr || threads < 1) return INVALID_VALUE;
    if (CUresult result = check(function)) return result;
    *blocks = threads > 1 || shared_bytes > 227 << 10 ? 0 : 32;
    return SUCCESS;
}

// --- launching ------------------------------------------------------------------------------------

// More blocks than this take turns, as on a GPU that is full.
static const size_t RESIDENT = 1024;

// A multiprocessor, while a block runs.
struct Place {
    Context* context;

    explicit Place(Context* of) : context(state().can_be_full ? of : nullptr) {
        if (context == nullptr) return;
        std::unique_lock<std::mutex> lock(context->places);
        context->place_free.wait(lock, [this] { return context->busy < state().multiprocessors; });
        context->busy++;
    }

    ~Place() {
        if (context == nullptr) return;
        std::lock_guard<std::mutex> lock(context->places);
        context->busy--;
        context->place_free.notify_one();
    }
};

struct alignas(64) Line {
    char bytes[64];
};

// One launch at work.
struct Launch {
    Function function;
    unsigned grid[3];
    bool overlaps; // may begin before the kernel in front of it has ended
    std::vector<Line> argument;
    std::atomic<size_t> next{0};

    size_t blocks() const { return (size_t)grid[0] * grid[1] * grid[2]; }

    void work(Context* context) {
        for (size_t block; (block = next.fetch_add(1)) < blocks();) {
            const Place place(context);
            const unsigned index[3] = {(unsigned)(block % grid[0]),
                                       (unsigned)(block / grid[0] % grid[1]),
                                       (unsigned)(block / grid[0] / grid[1])};
            function.module->set_block(index, grid);
            function.run(argument.data());
            // Here kernels run one after another all the same: a GPU would have given it half of what it reads.
            if (!function.module->has_awaited() && overlaps) {
                fputs("fake driver: a launch that overlaps did not wait for the kernel in front of it\n", stderr);
                abort();
            }
        }
    }

    // Once, or again and again as part of a graph.
    void run(Context* context) {
        next = 0;
        std::vector<std::thread> threads;
        for (size_t i = 1; i < std::min(blocks(), RESIDENT); i++) {
            threads.emplace_back([this, context] { work(context); });
        }
        work(context);
        for (std::thread& thread : threads) thread.join();
    }
};

// One thing more that a launch is told, and how it is launched: as in CUDA's header.
struct LaunchAttribute {
    unsigned id, unused;
    int value[16];
};

struct LaunchConfig {
    unsigned grid[3], block[3];
    unsigned shared_bytes;
    void* stream;
    const LaunchAttribute* attributes;
    unsigned attribute_count;
};

API cuLaunchKernelEx(const LaunchConfig* config, Function* function, void** parameters,
                     void** extra) {
    if (config == nullptr) return INVALID_VALUE;
    if (config->attribute_count > 0 && config->attributes == nullptr) return INVALID_VALUE;
    const auto [grid_x, grid_y, grid_z] = config->grid;
    const auto [block_x, block_y, block_z] = config->block;
    const unsigned shared_bytes = config->shared_bytes;
    void* const handle = config->stream;
    bool overlaps = false;
    for (unsigned i = 0; i < config->attribute_count; i++) {
        const LaunchAttribute& attribute = config->attributes[i];
        if (attribute.id != 6) return INVALID_VALUE; // programmatic stream serialization
        overlaps = attribute.value[0] != 0;
    }
    if (CUresult result = check(function)) return result;
    StreamRef stream;
    if (CUresult result = resolve(handle, stream)) return result;
    const bool empty = grid_x == 0 || grid_y == 0 || grid_z == 0;
    if (empty || grid_y > 65535 || grid_z > 65535 || grid_x > 0x7fffffff) return INVALID_VALUE;
    if (block_x != 1 || block_y != 1 || block_z != 1) return INVALID_VALUE;
    if (shared_bytes > 227 << 10 || extra != nullptr) return INVALID_VALUE;
    if (parameters == nullptr || parameters[0] == nullptr) return INVALID_VALUE;
    auto launch = std::make_shared<Launch>();
    launch->function = *function;
    launch->grid[0] = grid_x;
    launch->grid[1] = grid_y;
    launch->grid[2] = grid_z;
    launch->overlaps = overlaps;
    launch->argument.resize((function->bytes + 63) / 64);
    memcpy(launch->argument.data(), parameters[0], function->bytes);
    enqueue(stream, [launch, context = stream->context] {
        hold_up(context, 0);
        launch->run(context);
    });
    return SUCCESS;
}

API cuLaunchKernel(Function* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                   void* handle, void** parameters, void** extra) {
    const LaunchConfig config = {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z},
                                 shared_bytes, handle, nullptr, 0};
    return cuLaunchKernelEx(&config, function, parameters, extra);
}

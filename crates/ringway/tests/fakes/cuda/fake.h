// A CUDA driver without a GPU, for tests: what its parts share.
//
//   cuda.cpp     devices, contexts, errors
//   memory.cpp   allocations, pointers, IPC
//   virtual.cpp  memory whose addresses and allocations are apart (cuMem)
//   stream.cpp   streams, events, copies, host functions
//   module.cpp   modules and launches
//   nvrtc.cpp    the compiler beside it (a library of its own); prelude.h goes in front of what it compiles
//
// "Device memory" is host memory, and kernels run on the processor: one thread a block, and one thread a
// block only. Where the real driver is strict (no current context, a dead handle, a copy past the end, a
// CUDA call from a host function) this one is too, with the same code.
//
// FAKE_CUDA_DEVICES   how many GPUs there are: 1
// FAKE_CUDA_MEMORY    bytes of memory of each: 4 GiB
// FAKE_CUDA_SMS       multiprocessors of each: 4
// FAKE_CUDA_FULL      1: a multiprocessor runs one block, and others wait for one that is free: any number
// FAKE_CUDA_FIRST     microseconds that it takes to put work on a stream; a stream that has its first while another thread puts some on
//                     another stream stays behind that one, as real drivers were seen to do: 0, and each has a queue of its own
// FAKE_CUDA_SECRET    the GPU whose memory nobody else can pin (Linux with secretmem.enable=1): none
// FAKE_CUDA_DMABUF    0: they make no dma-bufs; else something that says it is one
// FAKE_CUDA_LOADS     wait: a module is loaded when the kernels at work on its GPU have ended, as real drivers may: at once
// FAKE_CUDA_PINNED    wait: pinned memory is given when the kernels at work on the GPU have ended, as real drivers may: at once
// FAKE_CUDA_SLOW      GPU:MICROSECONDS, the GPU whose kernels begin so much later, and whose copies do for each MiB: none
// FAKE_NVRTC_ANY      set: kernels are compiled as those made ahead are, for any operation of any number of operands
// FAKE_CUDA_VMM       0: they have no cuMem memory; 2: it has numbers that come again

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;

#define API extern "C" __attribute__((visibility("default"))) CUresult

enum : CUresult {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    MAPPING_FAILED = 205,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    PEER_ACCESS_ALREADY_ENABLED = 704,
    HOST_MEMORY_ALREADY_REGISTERED = 712,
    HOST_MEMORY_NOT_REGISTERED = 713,
    NOT_PERMITTED = 800,
    NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_UNMATCHED = 903,
    CAPTURE_ISOLATION = 905,
    CAPTURE_IMPLICIT = 906,
    CAPTURED_EVENT = 907,
    ILLEGAL_STATE = 401,
};

struct Stream;
typedef std::shared_ptr<Stream> StreamRef;

// The primary context of a device: the only kind there is.
struct Context {
    CUdevice device = 0;
    std::atomic<unsigned> retained{0};
    std::set<CUdevice> peers;
    StreamRef null_stream; // made when first used
    std::map<std::thread::id, StreamRef> thread_streams;
    std::map<void*, StreamRef> streams; // those the program made
    std::vector<void*> free_handles; // of streams that it destroyed: the next ones have them
    std::vector<StreamRef> destroyed; // those that may still be at work
    std::mutex places;
    std::condition_variable place_free;
    int busy = 0; // multiprocessors, where there can be too few
    StreamRef receiving; // the last stream that work is being put on, where that takes time
};

enum class Kind { Device, Host, Registered, Ipc, Virtual };

struct Allocation {
    uintptr_t base;
    size_t bytes;
    Kind kind;
    Context* context;
    int fd;              // of device memory
    unsigned long inode; // what an opened handle stands for
    unsigned opened;     // how often it was
    unsigned long long id;
    unsigned long long physical; // the handle of what is mapped here

    bool is_device() const { return kind == Kind::Device || kind == Kind::Ipc || kind == Kind::Virtual; }
};

// Everything there is. Never freed: threads of streams may outlive the program's end.
struct State {
    std::mutex mutex;
    std::atomic<bool> initialized{false}; // after which the list of contexts stays as it is
    std::vector<Context> contexts;
    std::map<uintptr_t, Allocation> allocations;
    std::map<CUdevice, size_t> used;
    size_t memory = 0;
    int multiprocessors = 0;
    CUdevice slow_device = -1;
    unsigned slow_us = 0;
    bool loads_wait = false;
    bool pinned_waits = false; // whether pinned memory is given so
    bool can_be_full = false;
    unsigned first_us = 0; // what putting work on a stream takes
    unsigned long long next_id = 1;
};

State& state();

// Contexts of this thread, the current one last.
std::vector<Context*>& context_stack();

// Set while a host function runs on this thread.
extern thread_local bool in_host_function;

// The current context, or why there is none to work in: not initialised, none set, or the caller is
// a host function, which may not call the driver.
CUresult current(Context*& context);

// The allocation that holds an address; null for memory the driver does not know. Under the state's lock.
Allocation* find_allocation(uintptr_t address);

// How many bytes from an address on are of one allocation, or of several that are mapped one behind the other.
size_t bytes_from(uintptr_t address);

// --- streams --------------------------------------------------------------------------------------

// Work that was put on a stream while it was captured, and on those that came to wait for it: one behind the other.
struct Graph {
    std::vector<std::function<void()>> work;
    const Stream* origin = nullptr; // where the capture began, and ends
    std::thread::id thread;         // which began it
    int mode = 0;
    bool has_ended = false;
    bool is_broken = false; // by a call that it forbids
};

// A queue and the thread that works through it.
struct Stream {
    Context* context = nullptr;
    unsigned long long id = 0;
    bool blocking = true; // waits for the null stream, and that for it
    int priority = 0;
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> queue;
    uint64_t submitted = 0;
    uint64_t completed = 0;
    bool ending = false;
    StreamRef front; // in the same queue: its work comes first
    std::shared_ptr<struct Graph> capture; // what is put on it goes in here, while there is one
    std::thread thread;

    void work();
    void wait_for(uint64_t number);
    void synchronize();
    void end();
};

// The stream a handle means in the current context.
CUresult resolve(void* handle, StreamRef& stream);

// What a thread does that might have to wait for a stream: forbidden while one is captured, unless the thread says that it has nothing
// to do with that. The capture is broken then.
CUresult forbidden();

// Puts work at the end of a stream. The null stream's work also waits for that of all blocking
// streams of its context, and theirs for it.
void enqueue(const StreamRef& stream, std::function<void()> work);

// Holds up work on the slow GPU, a kernel (of no bytes) or a copy. Not under a lock.
void hold_up(const Context* context, size_t bytes);

// Waits for all work of a context, as freeing memory does.
void synchronize_context(Context* context);

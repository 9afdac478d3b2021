// Streams, events, copies and host functions of the fake driver; see fake.h.

#include "fake.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

thread_local bool in_host_function = false;

// --- the queue ------------------------------------------------------------------------------------

void Stream::work() {
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
        changed.wait(lock, [&] { return ending || !queue.empty(); });
        if (queue.empty()) return;
        std::function<void()> next = std::move(queue.front());
        queue.pop_front();
        lock.unlock();
        next();
        next = nullptr;
        lock.lock();
        completed++;
        changed.notify_all();
    }
}

void Stream::wait_for(uint64_t number) {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return completed >= number; });
}

void Stream::synchronize() {
    std::unique_lock<std::mutex> lock(mutex);
    const uint64_t number = submitted;
    changed.wait(lock, [&] { return completed >= number; });
}

void Stream::end() {
    {
        std::lock_guard<std::mutex> lock(mutex);
        ending = true;
    }
    changed.notify_all();
    thread.join();
}

static StreamRef start(Context* context, bool blocking, int priority) {
    StreamRef stream = std::make_shared<Stream>();
    static std::atomic<unsigned long long> next{1};
    stream->context = context;
    stream->id = next++;
    stream->blocking = blocking;
    stream->priority = priority;
    stream->thread = std::thread([raw = stream.get()] { raw->work(); });
    return stream;
}

static StreamRef null_stream(Context* context) {
    if (!context->null_stream) context->null_stream = start(context, true, 0);
    return context->null_stream;
}

// All streams of a context. Under the state's lock.
static std::vector<StreamRef> streams_of(Context* context) {
    std::vector<StreamRef> all;
    if (context->null_stream) all.push_back(context->null_stream);
    for (auto& [thread, stream] : context->thread_streams) all.push_back(stream);
    for (auto& [handle, stream] : context->streams) all.push_back(stream);
    for (StreamRef& stream : context->destroyed) all.push_back(stream);
    return all;
}

// Takes its time to find a stream's queue: that of its own, or of a stream which another thread puts work on meanwhile.
static void find_queue(const StreamRef& stream) {
    StreamRef& receiving = stream->context->receiving;
    StreamRef other;
    {
        std::lock_guard<std::mutex> all(state().mutex);
        other = std::exchange(receiving, stream);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(state().first_us));
    std::lock_guard<std::mutex> all(state().mutex);
    if (receiving == stream) receiving = nullptr;
    if (other == stream || (other && other->front == stream)) return;
    std::lock_guard<std::mutex> lock(stream->mutex);
    if (stream->submitted == 0) stream->front = other;
}

void enqueue(const StreamRef& stream, std::function<void()> work) {
    {
        std::lock_guard<std::mutex> lock(stream->mutex);
        if (stream->capture) {
            stream->capture->work.push_back(std::move(work));
            return;
        }
    }
    if (state().first_us != 0) find_queue(stream);
    std::lock_guard<std::mutex> all(state().mutex);
    Context* context = stream->context;
    const bool is_null = stream == context->null_stream;
    std::vector<std::pair<StreamRef, uint64_t>> before;
    for (StreamRef& other : streams_of(context)) {
        const bool ordered = is_null ? other->blocking && other != stream
                                     : stream->blocking && other == context->null_stream;
        if (!ordered && other != stream->front) continue;
        std::lock_guard<std::mutex> lock(other->mutex);
        if (other->completed < other->submitted) before.push_back({other, other->submitted});
    }
    if (!before.empty()) {
        work = [before, work] {
            for (auto& [other, number] : before) other->wait_for(number);
            work();
        };
    }
    std::lock_guard<std::mutex> lock(stream->mutex);
    stream->queue.push_back(std::move(work));
    stream->submitted++;
    stream->changed.notify_all();
}

void hold_up(const Context* context, size_t bytes) {
    const State& all = state();
    if (context->device != all.slow_device) return;
    const size_t times = std::max<size_t>(bytes >> 20, 1);
    std::this_thread::sleep_for(std::chrono::microseconds(all.slow_us) * times);
}

void synchronize_context(Context* context) {
    std::vector<StreamRef> all;
    {
        std::lock_guard<std::mutex> lock(state().mutex);
        all = streams_of(context);
    }
    for (StreamRef& stream : all) stream->synchronize();
}

CUresult resolve(void* handle, StreamRef& stream) {
    Context* context;
    if (CUresult result = current(context)) return result;
    std::lock_guard<std::mutex> lock(state().mutex);
    if (handle == nullptr || handle == (void*)1) {
        stream = null_stream(context);
    } else if (handle == (void*)2) {
        StreamRef& own = context->thread_streams[std::this_thread::get_id()];
        if (!own) own = start(context, true, 0);
        stream = own;
    } else {
        auto found = context->streams.find(handle);
        if (found == context->streams.end()) return INVALID_HANDLE;
        stream = found->second;
    }
    return SUCCESS;
}

// --- streams --------------------------------------------------------------------------------------

API cuStreamCreateWithPriority(void** handle, unsigned flags, int priority) {
    if (handle == nullptr || flags > 1) return INVALID_VALUE;
    Context* context;
    if (CUresult result = current(context)) return result;
    std::lock_guard<std::mutex> lock(state().mutex);
    static uintptr_t next = 0x1000;
    if (context->free_handles.empty()) {
        *handle = (void*)(next += 16);
    } else {
        *handle = context->free_handles.back();
        context->free_handles.pop_back();
    }
    context->streams[*handle] = start(context, flags == 0, priority);
    return SUCCESS;
}

API cuStreamCreate(void** handle, unsigned flags) {
    return cuStreamCreateWithPriority(handle, flags, 0);
}

API cuStreamDestroy_v2(void* handle) {
    if ((uintptr_t)handle <= 2) return INVALID_HANDLE;
    StreamRef stream;
    if (CUresult result = resolve(handle, stream)) return result;
    Context* context = stream->context;
    {
        std::lock_guard<std::mutex> lock(state().mutex);
        if (context->streams.erase(handle) == 0) return INVALID_HANDLE;
        context->free_handles.push_back(handle);
        context->destroyed.push_back(stream);
    }
    // What is in it is done all the same: nobody waits for that.
    std::thread([context, stream] {
        stream->end();
        std::lock_guard<std::mutex> lock(state().mutex);
        auto& all = context->destroyed;
        all.erase(std::find(all.begin(), all.end(), stream));
    }).detach();
    return SUCCESS;
}

API cuStreamGetId(void* handle, unsigned long long* id) {
    if (id == nullptr) return INVALID_VALUE;
    StreamRef stream;
    if (CUresult result = resolve(handle, stream)) return result;
    *id = stream->id;
    return SUCCESS;
}

API cuStreamGetCtx(void* handle, Context** context) {
    if (context == nullptr) return INVALID_VALUE;
    if (in_host_function) return NOT_PERMITTED;
    if (!state().initialized) return NOT_INITIALIZED;
    if ((uintptr_t)handle <= 2) return current(*context);
    std::lock_guard<std::mutex> lock(state().mutex);
    for (Context& one : state().contexts) {
        if (one.streams.count(handle) == 0) continue;
        *context = &one;
        return SUCCESS;
    }
    return INVALID_HANDLE;
}

// What a stream's work goes into, where it is captured.
static std::shared_ptr<Graph> capture_of(const StreamRef& stream) {
    std::lock_guard<std::mutex> lock(stream->mutex);
    return stream->capture;
}

static bool is_captured(const StreamRef& stream) { return capture_of(stream) != nullptr; }

API cuStreamSynchronize(void* handle) {
    StreamRef stream;
    if (CUresult result = resolve(handle, stream)) return result;
    if (is_captured(stream)) return CAPTURE_UNSUPPORTED;
    stream->synchronize();
    return SUCCESS;
}

API cuStreamQuery(void* handle) {
    StreamRef stream;
    if (CUresult result = resolve(handle, stream)) return result;
    std::lock_guard<std::mutex> lock(stream->mutex);
    return stream->completed < stream->submitted ? NOT_READY : SUCCESS;
}

API cuLaunchHostFunc(void* handle, void (*function)(void*), void* data) {
    if (function == nullptr) return INVALID_VALUE;
    StreamRef stream;
    if (CUresult result = resolve(handle, stream)) return result;
    enqueue(stream, [function, data] {
        in_host_function = true;
        function(data);
        in_host_function = false;
    });
    return SUCCESS;
}

// --- capture ---------------------------------------------------------------------------------------

static std::mutex captures_mutex;
static std::set<std::shared_ptr<Graph>>& captures() {
    static auto* all = new std::set<std::shared_ptr<Graph>>;
    return *all;
}

static thread_local int mode_of_thread = 0;

CUresult forbidden() {
    CUresult result = SUCCESS;
    std::lock_guard<std::mutex> lock(captures_mutex);
    for (const std::shared_ptr<Graph>& one : captures()) {
        const bool of_thread = one->thread == std::this_thread::get_id();
        if ((mode_of_thread == 0 && one->mode == 0) || (mode_of_thread < 2 && of_thread && one->mode < 2)) {
            one->is_broken = true;
            result = CAPTURE_UNSUPPORTED;
        }
    }
    return result;
}

API cuStreamBeginCapture_v2(void* handle, int mode) {
    if (mode < 0 || mode > 2) return INVALID_VALUE;
    StreamRef stream;
    if (CUresult result = resolve(handle, stream)) return result;
    if (stream == stream->context->null_stream) return CAPTURE_UNSUPPORTED;
    std::lock_guard<std::mutex> lock(stream->mutex);
    if (stream->capture) return ILLEGAL_STATE;
    stream->capture = std::make_shared<Graph>();
    stream->capture->origin = stream.get();
    stream->capture->thread = std::this_thread::get_id();
    stream->capture->mode = mode;
    std::lock_guard<std::mutex> all(captures_mutex);
    captures().insert(stream->capture);
    return SUCCESS;
}

API cuStreamEndCapture(void* handle, Graph** graph) {
    if (graph == nullptr) return INVALID_VALUE;
    StreamRef stream;
    if (CUresult result = resolve(handle, stream)) return result;
    const std::shared_ptr<Graph> ended = capture_of(stream);
    if (!ended) return ILLEGAL_STATE;
    if (ended->origin != stream.get()) return CAPTURE_UNMATCHED;
    {
        std::lock_guard<std::mutex> lock(state().mutex);
        for (const StreamRef& one : streams_of(stream->context)) {
            std::lock_guard<std::mutex> own(one->mutex);
            if (one->capture == ended) one->capture = nullptr;
        }
    }
    std::lock_guard<std::mutex> lock(captures_mutex);
    captures().erase(ended);
    ended->has_ended = true;
    *graph = ended->is_broken ? nullptr : new Graph(*ended);
    return ended->is_broken ? CAPTURE_INVALIDATED : SUCCESS;
}

API cuGraphInstantiateWithFlags(Graph** executable, Graph* graph, unsigned long long) {
    if (executable == nullptr || graph == nullptr) return INVALID_VALUE;
    *executable = new Graph(*graph);
    return SUCCESS;
}

API cuGraphLaunch(Graph* executable, void* handle) {
    if (executable == nullptr) return INVALID_VALUE;
    StreamRef stream;
    if (CUresult result = resolve(handle, stream)) return result;
    for (const auto& work : executable->work) enqueue(stream, work);
    return SUCCESS;
}

API cuGraphDestroy(Graph* graph) {
    delete graph;
    return SUCCESS;
}

API cuGraphExecDestroy(Graph* executable) {
    delete executable;
    return SUCCESS;
}


API cuStreamIsCapturing(void* handle, int* status) {
    if (status == nullptr) return INVALID_VALUE;
    StreamRef stream;
    if (CUresult result = resolve(handle, stream)) return result;
    *status = is_captured(stream) ? 1 : 0;
    return SUCCESS;
}

API cuStreamGetCaptureInfo_v2(void* handle, int* status, unsigned long long* id, void** graph,
                              const void** dependencies, size_t* count) {
    if (status == nullptr) return INVALID_VALUE;
    StreamRef stream;
    if (CUresult result = resolve(handle, stream)) return result;
    *status = is_captured(stream) ? 1 : 0;
    if (id != nullptr) *id = 0;
    if (graph != nullptr) *graph = nullptr;
    if (dependencies != nullptr) *dependencies = nullptr;
    if (count != nullptr) *count = 0;
    return SUCCESS;
}

API cuThreadExchangeStreamCaptureMode(int* mode) {
    if (mode == nullptr || *mode < 0 || *mode > 2) return INVALID_VALUE;
    std::swap(*mode, mode_of_thread);
    return SUCCESS;
}

// --- events ---------------------------------------------------------------------------------------

// One recording of an event.
struct Moment {
    std::mutex mutex;
    std::condition_variable changed;
    bool reached = false;
    // What it was captured with: who waits for it is captured too, and the host cannot wait.
    std::shared_ptr<Graph> graph;
    std::chrono::steady_clock::time_point time;

    void wait() {
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, [&] { return reached; });
    }
};

struct Event {
    Context* context;
    bool timed;
    std::shared_ptr<Moment> last; // nothing before the first recording
};

static std::mutex events_mutex;
static std::set<Event*>& events() {
    static auto* all = new std::set<Event*>;
    return *all;
}

// The last recording of an event; with `timed`, of one that has times.
static CUresult last_of(Event* event, std::shared_ptr<Moment>& moment, bool timed = false) {
    if (in_host_function) return NOT_PERMITTED;
    std::lock_guard<std::mutex> lock(events_mutex);
    if (events().count(event) == 0 || (timed && !event->timed)) return INVALID_HANDLE;
    moment = event->last;
    return SUCCESS;
}

API cuEventCreate(Event** event, unsigned flags) {
    if (event == nullptr || flags > 7) return INVALID_VALUE;
    Context* context;
    if (CUresult result = current(context)) return result;
    std::lock_guard<std::mutex> lock(events_mutex);
    *event = new Event{context, (flags & 2) == 0, nullptr};
    events().insert(*event);
    return SUCCESS;
}

API cuEventDestroy_v2(Event* event) {
    if (in_host_function) return NOT_PERMITTED;
    std::lock_guard<std::mutex> lock(events_mutex);
    if (events().erase(event) == 0) return INVALID_HANDLE;
    delete event;
    return SUCCESS;
}

API cuEventRecord(Event* event, void* handle) {
    StreamRef stream;
    if (CUresult result = resolve(handle, stream)) return result;
    auto moment = std::make_shared<Moment>();
    moment->graph = capture_of(stream);
    {
        std::lock_guard<std::mutex> lock(events_mutex);
        if (events().count(event) == 0 || event->context != stream->context) return INVALID_HANDLE;
        event->last = moment;
    }
    enqueue(stream, [moment] {
        std::lock_guard<std::mutex> lock(moment->mutex);
        moment->time = std::chrono::steady_clock::now();
        moment->reached = true;
        moment->changed.notify_all();
    });
    return SUCCESS;
}

API cuStreamWaitEvent(void* handle, Event* event, unsigned flags) {
    if (flags > 1) return INVALID_VALUE;
    StreamRef stream;
    if (CUresult result = resolve(handle, stream)) return result;
    std::shared_ptr<Moment> moment;
    if (CUresult result = last_of(event, moment)) return result;
    if (!moment) return SUCCESS;
    if (moment->graph != capture_of(stream)) {
        if (!moment->graph || is_captured(stream) || moment->graph->has_ended) return CAPTURE_ISOLATION;
        if (stream == stream->context->null_stream) return CAPTURE_IMPLICIT;
        std::lock_guard<std::mutex> lock(stream->mutex);
        stream->capture = moment->graph;
    }
    // What is captured is in order as it is.
    if (!moment->graph) enqueue(stream, [moment] { moment->wait(); });
    return SUCCESS;
}

API cuEventQuery(Event* event) {
    if (CUresult result = forbidden()) return result;
    std::shared_ptr<Moment> moment;
    if (CUresult result = last_of(event, moment)) return result;
    if (!moment) return SUCCESS;
    if (moment->graph) return CAPTURED_EVENT;
    std::lock_guard<std::mutex> lock(moment->mutex);
    return moment->reached ? SUCCESS : NOT_READY;
}

API cuEventSynchronize(Event* event) {
    std::shared_ptr<Moment> moment;
    if (CUresult result = last_of(event, moment)) return result;
    if (moment && moment->graph) return CAPTURED_EVENT;
    if (moment) moment->wait();
    return SUCCESS;
}

API cuEventElapsedTime(float* milliseconds, Event* from, Event* to) {
    if (milliseconds == nullptr) return INVALID_VALUE;
    std::chrono::steady_clock::time_point times[2];
    Event* ends[2] = {from, to};
    for (int i = 0; i < 2; i++) {
        std::shared_ptr<Moment> moment;
        if (CUresult result = last_of(ends[i], moment, true)) return result;
        if (!moment) return INVALID_HANDLE;
        std::lock_guard<std::mutex> lock(moment->mutex);
        if (!moment->reached) return NOT_READY;
        times[i] = moment->time;
    }
    *milliseconds = std::chrono::duration<float, std::milli>(times[1] - times[0]).count();
    return SUCCESS;
}

API cuEventElapsedTime_v2(float* milliseconds, Event* from, Event* to) {
    return cuEventElapsedTime(milliseconds, from, to);
}

// --- copies ---------------------------------------------------------------------------------------

// Whether the driver knows the memory at one end of a copy, and it holds so many bytes.
enum class End { Known, Any };

static CUresult check_end(uintptr_t address, size_t bytes, End end, bool& known) {
    std::lock_guard<std::mutex> lock(state().mutex);
    const Allocation* found = find_allocation(address);
    known = found != nullptr;
    if (!known) return end == End::Known || address == 0 ? INVALID_VALUE : SUCCESS;
    return bytes <= bytes_from(address) ? SUCCESS : INVALID_VALUE;
}

static CUresult copy(uintptr_t target, End target_end, uintptr_t source, End source_end,
                     size_t bytes, void* handle, bool wait) {
    StreamRef stream;
    if (CUresult result = resolve(handle, stream)) return result;
    if (bytes == 0) return SUCCESS;
    bool target_known, source_known;
    if (CUresult result = check_end(target, bytes, target_end, target_known)) return result;
    if (CUresult result = check_end(source, bytes, source_end, source_known)) return result;
    const Context* context = stream->context;
    if (!source_known && !wait) {
        // Pageable memory is taken at once: the caller may change it after the call.
        const char* from = (const char*)source;
        auto staged = std::make_shared<std::vector<char>>(from, from + bytes);
        enqueue(stream, [=] {
            hold_up(context, bytes);
            memcpy((void*)target, staged->data(), staged->size());
        });
    } else {
        enqueue(stream, [=] {
            hold_up(context, bytes);
            memmove((void*)target, (const void*)source, bytes);
        });
    }
    // And it holds the copy when the call returns.
    if (wait || !target_known) stream->synchronize();
    return SUCCESS;
}

API cuMemcpy(CUdeviceptr target, CUdeviceptr source, size_t bytes) {
    return copy(target, End::Any, source, End::Any, bytes, nullptr, true);
}

API cuMemcpyAsync(CUdeviceptr target, CUdeviceptr source, size_t bytes, void* stream) {
    return copy(target, End::Any, source, End::Any, bytes, stream, false);
}

API cuMemcpyHtoD_v2(CUdeviceptr target, const void* source, size_t bytes) {
    return copy(target, End::Known, (uintptr_t)source, End::Any, bytes, nullptr, true);
}

API cuMemcpyDtoH_v2(void* target, CUdeviceptr source, size_t bytes) {
    return copy((uintptr_t)target, End::Any, source, End::Known, bytes, nullptr, true);
}

API cuMemcpyHtoDAsync_v2(CUdeviceptr target, const void* source, size_t bytes, void* stream) {
    return copy(target, End::Known, (uintptr_t)source, End::Any, bytes, stream, false);
}

API cuMemcpyDtoHAsync_v2(void* target, CUdeviceptr source, size_t bytes, void* stream) {
    return copy((uintptr_t)target, End::Any, source, End::Known, bytes, stream, false);
}

API cuMemcpyDtoDAsync_v2(CUdeviceptr target, CUdeviceptr source, size_t bytes, void* stream) {
    return copy(target, End::Known, source, End::Known, bytes, stream, false);
}

API cuMemsetD8Async(CUdeviceptr target, unsigned char value, size_t bytes, void* handle) {
    StreamRef stream;
    if (CUresult result = resolve(handle, stream)) return result;
    if (bytes == 0) return SUCCESS;
    bool known;
    if (CUresult result = check_end(target, bytes, End::Known, known)) return result;
    enqueue(stream, [=] { memset((void*)(uintptr_t)target, value, bytes); });
    return SUCCESS;
}

API cuMemsetD8_v2(CUdeviceptr target, unsigned char value, size_t bytes) {
    if (CUresult result = cuMemsetD8Async(target, value, bytes, nullptr)) return result;
    StreamRef stream;
    if (CUresult result = resolve(nullptr, stream)) return result;
    stream->synchronize();
    return SUCCESS;
}

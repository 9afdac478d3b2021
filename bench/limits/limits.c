/* What the machine itself can do, as JSON lines.  bench/README.md says how limits follow from it.
 *
 *   write, reduce,   an all-reduce taken apart, each thread on a core of its own.  A thread writes what
 *   gather           the others need where they can read it; adds its slice of all others to private
 *                    memory; writes the sum; copies the others' sums to private memory.  Every line
 *                    that is read was just written by another core, and every line that is written was
 *                    last read by another core.  Timed without flags, barriers and calls.
 *   memcpy           all threads copy private memory that is in no cache
 *   tcp              every thread sends so much to the next and receives it from the one before, over
 *                    loopback
 *   flag_hop         half a round trip of a flag between two cores
 *   tcp_hop          half a round trip of 8 bytes over loopback, both ends polling
 *
 * BENCH_CPUS: where thread i runs.  BENCH_RANKS: how many threads, a list.  BENCH_SIZES: bytes.
 * BENCH_SECONDS: for one figure.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { THREADS_MOST = 256, ROUNDS_MOST = 2048, ROUNDS_LEAST = 7, BLOCK_FLOATS = 1024, PARTS = 3 };
static const size_t MEMCPY_BYTES = (size_t)128 << 20;

static int cpus[THREADS_MOST], cpu_count;
static double seconds;

static const char *variable(const char *name, const char *otherwise) {
    const char *value = getenv(name);
    return value && *value ? value : otherwise;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void fail(const char *what) {
    fprintf(stderr, "limits: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void *pages(size_t bytes) {
    void *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (!memory) fail("memory");
    memset(memory, 0, bytes);
    return memory;
}

static void pin(int thread) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpus[thread], &set);
    if (sched_setaffinity(0, sizeof set, &set)) fail("pinning to a core");
}

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, compare_doubles);
    return 0.5 * (values[(count - 1) / 2] + values[count / 2]);
}

/* ---- a barrier that spins, and gives way when something else runs on a core ---- */

static struct {
    _Alignas(128) atomic_int arrived;
    _Alignas(128) atomic_int round;
} gate;

static void gate_wait(int threads) {
    int round = atomic_load_explicit(&gate.round, memory_order_acquire);
    if (atomic_fetch_add_explicit(&gate.arrived, 1, memory_order_acq_rel) + 1 == threads) {
        atomic_store_explicit(&gate.arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&gate.round, round + 1, memory_order_release);
        return;
    }
    for (long spins = 0; atomic_load_explicit(&gate.round, memory_order_acquire) == round; spins++) {
        if (spins > 100000) sched_yield();
        relax();
    }
}

/* ---- threads of one figure ---- */

struct team {
    int threads;
    size_t floats; /* of a whole buffer */
    float *shared[THREADS_MOST];
    double *times[THREADS_MOST]; /* seconds of each part of each round */
    double rate[THREADS_MOST];   /* bytes per second */
    int out[THREADS_MOST], in[THREADS_MOST];
    atomic_int rounds; /* 0 while the first thread has not decided to stop */
};

struct member {
    struct team *team;
    int index;
};

static void run_team(struct team *team, void *(*body)(void *)) {
    pthread_t id[THREADS_MOST];
    struct member members[THREADS_MOST];
    atomic_store(&gate.arrived, 0);
    for (int i = 0; i < team->threads; i++) {
        members[i] = (struct member){team, i};
        if (pthread_create(&id[i], NULL, body, &members[i])) fail("thread");
    }
    for (int i = 0; i < team->threads; i++) pthread_join(id[i], NULL);
}

/* The median over rounds of the slowest thread's time; the first round only warms up. */
static double slowest_median(const struct team *team, int part) {
    double slowest[ROUNDS_MOST];
    int rounds = atomic_load(&team->rounds);
    for (int r = 1; r < rounds; r++) {
        slowest[r - 1] = 0;
        for (int i = 0; i < team->threads; i++)
            if (team->times[i][PARTS * r + part] > slowest[r - 1]) slowest[r - 1] = team->times[i][PARTS * r + part];
    }
    return median(slowest, rounds - 1);
}

/* ---- core to core ---- */

static void add_into(float *restrict sum, const float *restrict other, size_t count) {
    for (size_t i = 0; i < count; i++) sum[i] += other[i];
}

/* Adds this thread's slice of all others; in blocks, so that the sum stays in the first cache. */
static void reduce(const struct team *team, int me, float *sum, size_t slice) {
    for (size_t from = (size_t)me * slice, end = from + slice; from < end; from += BLOCK_FLOATS) {
        size_t count = end - from < BLOCK_FLOATS ? end - from : BLOCK_FLOATS;
        for (int k = 1; k < team->threads; k++)
            add_into(sum + from, team->shared[(me + k) % team->threads] + from, count);
    }
}

/* Copies the slices of all others: theirs of what they share, or those of ours that they need. */
static void copy_slices(const struct team *team, int me, float *to, float *const *from, size_t slice) {
    for (int k = 1; k < team->threads; k++) {
        int other = (me + k) % team->threads;
        memcpy(to + (size_t)other * slice, from[other] + (size_t)other * slice, slice * sizeof(float));
    }
}

static void *exchange_thread(void *argument) {
    struct member *m = argument;
    struct team *team = m->team;
    int me = m->index, round = 0;
    size_t slice = team->floats / (size_t)team->threads;
    pin(me);
    float *own = pages(team->floats * sizeof(float)), *sources[THREADS_MOST];
    team->shared[me] = pages(team->floats * sizeof(float)); /* touched by its own core */
    for (int i = 0; i < team->threads; i++) sources[i] = own;
    gate_wait(team->threads);
    for (double until = now() + seconds;; round++) {
        double *times = team->times[me] + PARTS * round;
        gate_wait(team->threads);
        double started = now();
        copy_slices(team, me, team->shared[me], sources, slice);
        times[0] = now() - started;
        gate_wait(team->threads);
        started = now();
        reduce(team, me, own, slice);
        times[1] = now() - started;
        memcpy(team->shared[me] + (size_t)me * slice, own + (size_t)me * slice, slice * sizeof(float));
        gate_wait(team->threads);
        started = now();
        copy_slices(team, me, own, team->shared, slice);
        times[2] = now() - started;
        if (me == 0 && round + 1 >= ROUNDS_LEAST && (now() > until || round + 1 == ROUNDS_MOST))
            atomic_store(&team->rounds, round + 1);
        gate_wait(team->threads);
        if (atomic_load(&team->rounds)) break;
    }
    free(team->shared[me]);
    free(own);
    return NULL;
}

static void exchange(int threads, size_t bytes) {
    static const char *const names[PARTS] = {"write", "reduce", "gather"};
    static struct team team;
    memset(&team, 0, sizeof team);
    team.threads = threads;
    team.floats = bytes / sizeof(float) / (size_t)threads * (size_t)threads;
    if (!team.floats) return;
    for (int i = 0; i < threads; i++) team.times[i] = pages(PARTS * ROUNDS_MOST * sizeof(double));
    run_team(&team, exchange_thread);
    for (int part = 0; part < PARTS; part++) {
        double time = slowest_median(&team, part);
        double moved = (double)(team.floats * sizeof(float)) * (threads - 1) / threads;
        printf("{\"limit\":\"%s\",\"ranks\":%d,\"size\":%zu,\"time_us\":%.3f,\"GBs\":%.3f}\n", names[part], threads,
               bytes, 1e6 * time, 1e-9 * moved / time);
    }
    fflush(stdout);
    for (int i = 0; i < threads; i++) free(team.times[i]);
}

/* ---- memory ---- */

static void *memcpy_thread(void *argument) {
    struct member *m = argument;
    double times[64];
    int count = 0;
    pin(m->index);
    char *from = pages(MEMCPY_BYTES), *to = pages(MEMCPY_BYTES);
    gate_wait(m->team->threads);
    for (double until = now() + seconds; count < 64 && (count < 3 || now() < until); count++) {
        double started = now();
        memcpy(to, from, MEMCPY_BYTES);
        __asm__ volatile("" ::"r"(to) : "memory");
        times[count] = now() - started;
    }
    m->team->rate[m->index] = (double)MEMCPY_BYTES / median(times, count);
    free(from);
    free(to);
    return NULL;
}

/* ---- TCP over loopback ---- */

static const char *congestion; /* NULL: the system's way */

static void tcp_pair(int ends[2]) {
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 1) ||
        getsockname(listener, (struct sockaddr *)&address, &length))
        fail("listening on loopback");
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(ends[0], (struct sockaddr *)&address, length)) fail("connecting over loopback");
    ends[1] = accept(listener, NULL, NULL);
    close(listener);
    for (int i = 0; i < 2; i++) {
        setsockopt(ends[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (congestion) setsockopt(ends[i], IPPROTO_TCP, TCP_CONGESTION, congestion, (socklen_t)strlen(congestion));
    }
}

/* Rounds in each of which a buffer goes out and another comes in. */
static void *tcp_thread(void *argument) {
    struct member *m = argument;
    struct team *team = m->team;
    int me = m->index, out = team->out[me], in = team->in[me], round = 0;
    size_t bytes = team->floats * sizeof(float);
    pin(me);
    char *sent = pages(bytes), *received = pages(bytes);
    struct pollfd ends[2] = {{out, POLLOUT, 0}, {in, POLLIN, 0}};
    gate_wait(team->threads);
    for (double until = now() + seconds;; round++) {
        gate_wait(team->threads);
        double started = now();
        for (size_t to_send = bytes, to_receive = bytes; to_send || to_receive;) {
            ssize_t wrote = 0, read = 0;
            if (to_send) wrote = send(out, sent + bytes - to_send, to_send, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (to_receive) read = recv(in, received + bytes - to_receive, to_receive, MSG_DONTWAIT);
            if ((wrote < 0 || read < 0) && errno != EAGAIN && errno != EINTR) fail("TCP over loopback");
            if (wrote > 0) to_send -= (size_t)wrote;
            if (read > 0) to_receive -= (size_t)read;
            if (wrote <= 0 && read <= 0 && now() > started + 0.001) {
                ends[0].events = to_send ? POLLOUT : 0;
                poll(ends, 2, 1); /* something else runs on a core: let it */
            }
        }
        team->times[me][PARTS * round] = now() - started;
        if (me == 0 && round + 1 >= ROUNDS_LEAST && (now() > until || round + 1 == ROUNDS_MOST))
            atomic_store(&team->rounds, round + 1);
        gate_wait(team->threads);
        if (atomic_load(&team->rounds)) break;
    }
    free(sent);
    free(received);
    return NULL;
}

/* Seconds in which every thread sends so many bytes to the next. */
static double tcp_ring(int threads, size_t bytes) {
    static struct team team;
    memset(&team, 0, sizeof team);
    team.threads = threads;
    team.floats = bytes / sizeof(float);
    for (int i = 0; i < threads; i++) {
        int ends[2];
        tcp_pair(ends);
        team.out[i] = ends[0];
        team.in[(i + 1) % threads] = ends[1];
        team.times[i] = pages(PARTS * ROUNDS_MOST * sizeof(double));
    }
    run_team(&team, tcp_thread);
    double time = slowest_median(&team, 0);
    for (int i = 0; i < threads; i++) {
        close(team.out[i]);
        close(team.in[i]);
        free(team.times[i]);
    }
    return time;
}

static void tcp(int threads) {
    static const size_t sizes[] = {64 << 10, 1 << 20, 16 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        congestion = NULL;
        double time = tcp_ring(threads, sizes[i]);
        congestion = "cubic"; /* some systems default to one that paces itself */
        double other = tcp_ring(threads, sizes[i]);
        printf("{\"limit\":\"tcp\",\"ranks\":%d,\"size\":%zu,\"GBs\":%.3f}\n", threads, sizes[i],
               1e-9 * (double)sizes[i] / (other < time ? other : time));
        fflush(stdout);
    }
}

/* ---- hops ---- */

static struct {
    _Alignas(128) atomic_int value;
} flags[2];
static int hop_socket[2];

static void pass(int me, int turn, int over_tcp) {
    if (!over_tcp)
        atomic_store_explicit(&flags[!me].value, turn, memory_order_release);
    else if (send(hop_socket[me], "12345678", 8, MSG_NOSIGNAL) != 8)
        fail("send");
}

static void await(int me, int turn, int over_tcp) {
    char bytes[8];
    long spins = 0;
    if (!over_tcp) {
        while (atomic_load_explicit(&flags[me].value, memory_order_acquire) != turn) {
            if (++spins > 100000) sched_yield();
            relax();
        }
        return;
    }
    while (recv(hop_socket[me], bytes, 8, MSG_DONTWAIT) < 0)
        if (errno != EAGAIN && errno != EINTR) fail("recv");
}

/* rate[me]: seconds of one way.  floats: 0 for flags, 1 for TCP. */
static void *hop_thread(void *argument) {
    struct member *m = argument;
    enum { BATCHES = 200, TURNS = 100 };
    double times[BATCHES];
    int turn = 0, over_tcp = (int)m->team->floats;
    pin(m->index);
    gate_wait(2);
    for (int b = 0; b < BATCHES; b++) {
        double started = now();
        for (int i = 0; i < TURNS; i++) {
            turn++;
            if (m->index == 0) pass(0, turn, over_tcp);
            await(m->index, turn, over_tcp);
            if (m->index == 1) pass(1, turn, over_tcp);
        }
        times[b] = (now() - started) / TURNS / 2;
    }
    m->team->rate[m->index] = median(times, BATCHES);
    return NULL;
}

static void hop(const char *name, int over_tcp) {
    struct team team = {.threads = 2, .floats = (size_t)over_tcp};
    atomic_store(&flags[0].value, 0);
    atomic_store(&flags[1].value, 0);
    if (over_tcp) tcp_pair(hop_socket);
    run_team(&team, hop_thread);
    if (over_tcp) close(hop_socket[0]), close(hop_socket[1]);
    printf("{\"limit\":\"%s\",\"one_way_us\":%.4f}\n", name, 1e6 * team.rate[0]);
    fflush(stdout);
}

/* ---- all figures ---- */

static void copying(int threads) {
    static struct team team;
    double sum = 0;
    memset(&team, 0, sizeof team);
    team.threads = threads;
    run_team(&team, memcpy_thread);
    for (int i = 0; i < threads; i++) sum += team.rate[i];
    printf("{\"limit\":\"memcpy\",\"ranks\":%d,\"GBs\":%.3f}\n", threads, 1e-9 * sum / threads);
    fflush(stdout);
}

static size_t next_number(const char **text) {
    char *end;
    unsigned long long value = strtoull(*text, &end, 10);
    *text = end == *text ? "" : end;
    return (size_t)value;
}

int main(void) {
    seconds = atof(variable("BENCH_SECONDS", "0.1"));
    const char *list = variable("BENCH_CPUS", "0 1");
    while (*list && cpu_count < THREADS_MOST) cpus[cpu_count++] = (int)next_number(&list);
    if (cpu_count < 2) {
        fprintf(stderr, "limits: two cores are needed, BENCH_CPUS has %d\n", cpu_count);
        return 1;
    }
    hop("flag_hop", 0);
    hop("tcp_hop", 1);
    for (const char *ranks = variable("BENCH_RANKS", "2"); *ranks;) {
        int threads = (int)next_number(&ranks);
        if (threads < 2 || threads > cpu_count) continue;
        for (const char *sizes = variable("BENCH_SIZES", "65536 1048576"); *sizes;)
            exchange(threads, next_number(&sizes));
        copying(threads);
        tcp(threads);
    }
    return 0;
}

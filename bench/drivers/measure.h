/* The measuring loop of the C and C++ drivers; driver/src/measure.rs is its twin, gloo.py its third.
 *
 * One point: a verified call; warm-up for a fifth of the time, which also tells the cost of a call;
 * then samples.  A sample is a barrier, then back-to-back calls for about a millisecond (one call
 * where it takes longer).  Its time is the slowest rank's, per call.
 *
 * Sizes are those of nccl-tests: the whole buffer (all_gather: received, reduce_scatter: sent).
 * all_reduce and broadcast are in place, the rest out of place.  The variables BENCH_* are listed in
 * driver/src/main.rs.
 */
#ifndef MEASURE_H
#define MEASURE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum collective { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, ALL_TO_ALL, BARRIER, COLLECTIVES };
static const char *const collective_names[COLLECTIVES] = {"all_reduce", "all_gather", "reduce_scatter",
                                                          "broadcast",  "all_to_all", "barrier"};

enum type { F32, BF16 };
static const char *const type_names[] = {"f32", "bf16"};
static const size_t type_sizes[] = {4, 2};

/* What a library brings.  `count` is the elements of the whole buffer. */
struct library {
    int rank, ranks;
    const char *version;
    void (*call)(enum collective what, enum type type, void *send, void *receive, size_t count);
    void (*most)(double *values, int count); /* each becomes the greatest of all ranks' */
};

enum { SAMPLES_LEAST = 5, SAMPLES_MOST = 1024, SAMPLES_AT_ONCE = 5 };
static const double BATCH_SECONDS = 0.001, PATIENCE = 3.0;
static const size_t COLD_BYTES = (size_t)256 << 20, PAGE = 4096;

static const char *variable(const char *name, const char *otherwise) {
    const char *value = getenv(name);
    return value && *value ? value : otherwise;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static double median_of(const double *sorted, int count) {
    return 0.5 * (sorted[(count - 1) / 2] + sorted[count / 2]);
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---- memory: one buffer, or so many that none is still in a near cache when its turn comes ---- */

struct arena {
    char *memory;
    size_t bytes, stride, slots;
};

static struct arena arena_new(size_t bytes, int cold) {
    struct arena a;
    a.bytes = bytes;
    a.stride = ((bytes ? bytes : 1) + PAGE - 1) / PAGE * PAGE;
    a.slots = 1;
    if (cold && bytes) a.slots = COLD_BYTES / a.stride > 2 ? COLD_BYTES / a.stride : 2;
    a.memory = (char *)aligned_alloc(PAGE, a.stride * a.slots);
    if (!a.memory) {
        fprintf(stderr, "no memory for %zu buffers of %zu bytes\n", a.slots, bytes);
        exit(4);
    }
    memset(a.memory, 0, a.stride * a.slots);
    return a;
}

static void *arena_slot(const struct arena *a, size_t turn) {
    return a->memory + turn % a->slots * a->stride;
}

/* ---- the check: whole numbers small enough to be exact in every type ---- */

static void put(void *buffer, enum type type, size_t at, unsigned number) {
    float value = (float)number;
    uint32_t bits;
    if (type == F32) {
        ((float *)buffer)[at] = value;
        return;
    }
    memcpy(&bits, &value, sizeof bits);
    ((uint16_t *)buffer)[at] = (uint16_t)(bits >> 16);
}

static float get(const void *buffer, enum type type, size_t at) {
    if (type == F32) return ((const float *)buffer)[at];
    uint32_t bits = (uint32_t)((const uint16_t *)buffer)[at] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* What one rank sends another; below 256, so that bf16 holds it. */
static unsigned pair_value(size_t from, size_t to, size_t ranks, size_t at) {
    return (unsigned)((from * ranks + to) % 249 + at % 7);
}

static size_t sends(enum collective what, size_t count, size_t ranks) {
    return what == ALL_GATHER ? count / ranks : what == BARRIER ? 0 : count;
}

static size_t receives(enum collective what, size_t count, size_t ranks) {
    if (what == ALL_GATHER || what == ALL_TO_ALL) return count;
    return what == REDUCE_SCATTER ? count / ranks : 0;
}

static unsigned sent_value(enum collective what, size_t rank, size_t ranks, size_t block, size_t at) {
    if (what == BROADCAST) return rank == 0 ? (unsigned)(at % 7 + 1) : 0;
    if (what == ALL_TO_ALL) return pair_value(rank, at / block, ranks, at % block);
    return (unsigned)(at % 7 + rank % 8);
}

static unsigned wanted_value(enum collective what, size_t rank, size_t ranks, size_t block, size_t at) {
    size_t sum = 0;
    for (size_t r = 0; r < ranks; r++) sum += r % 8;
    switch (what) {
    case ALL_REDUCE: return (unsigned)(ranks * (at % 7) + sum);
    case REDUCE_SCATTER: return (unsigned)(ranks * ((rank * block + at) % 7) + sum);
    case ALL_GATHER: return (unsigned)(at % block % 7 + at / block % 8);
    case BROADCAST: return (unsigned)(at % 7 + 1);
    case ALL_TO_ALL: return pair_value(at / block, rank, ranks, at % block);
    default: return 0;
    }
}

/* One call whose every element is checked.  Leaves zeros: they stay zeros however often they are
 * summed in place. */
static void verify(const struct library *lib, enum collective what, enum type type, void *send, void *receive,
                   size_t count) {
    size_t ranks = (size_t)lib->ranks, rank = (size_t)lib->rank, block = count / ranks;
    size_t sent = sends(what, count, ranks), received = receives(what, count, ranks);
    for (size_t i = 0; i < sent; i++) put(send, type, i, sent_value(what, rank, ranks, block, i));
    memset(receive, 0x5a, received * type_sizes[type]);
    lib->call(what, type, send, receive, count);
    const void *result = received ? receive : send;
    for (size_t i = 0; i < (received ? received : sent); i++) {
        float wanted = (float)wanted_value(what, rank, ranks, block, i);
        if (get(result, type, i) != wanted) {
            fprintf(stderr, "WRONG: %s %s of %zu elements, rank %zu, element %zu: %g, not %g\n",
                    collective_names[what], type_names[type], count, rank, i, get(result, type, i), wanted);
            exit(3);
        }
    }
    memset(send, 0, sent * type_sizes[type]);
    memset(receive, 0, received * type_sizes[type]);
}

/* ---- the loop ---- */

struct subject {
    const struct library *lib;
    enum collective what;
    enum type type;
    size_t count, turn;
    struct arena send, receive;
};

/* A barrier, then `calls` calls; seconds on this rank. */
static double batch(struct subject *s, long calls) {
    s->lib->call(BARRIER, F32, NULL, NULL, 0);
    double started = now();
    for (long i = 0; i < calls; i++, s->turn++)
        s->lib->call(s->what, s->type, arena_slot(&s->send, s->turn), arena_slot(&s->receive, s->turn), s->count);
    return now() - started;
}

/* The least a call took, so that noise adds no error. */
static double warm_up(struct subject *s, double seconds) {
    double spent = 0, each = 1e9;
    for (long calls = 1;; calls *= 2) {
        double took = batch(s, calls);
        s->lib->most(&took, 1);
        spent += took;
        if (took / (double)calls < each) each = took / (double)calls;
        if (spent >= 0.2 * seconds) return each > 1e-9 ? each : 1e-9;
    }
}

/* Seconds of each sample, sorted; their number. */
static int take_samples(struct subject *s, double seconds, long calls, double each, double *times) {
    double share = seconds / ((double)calls * each), spent = 0, started = now();
    int wanted = share > SAMPLES_MOST ? SAMPLES_MOST : share < SAMPLES_LEAST ? SAMPLES_LEAST : (int)share;
    int taken = 0;
    while (taken < wanted && (taken < SAMPLES_LEAST || spent < PATIENCE * seconds)) {
        for (int i = 0; i < SAMPLES_AT_ONCE && taken < wanted; i++) times[taken++] = batch(s, calls) / (double)calls;
        spent = now() - started;
        s->lib->most(&spent, 1); /* all must agree to stop */
    }
    s->lib->most(times, taken);
    qsort(times, (size_t)taken, sizeof *times, compare_doubles);
    return taken;
}

static void measure_point(const struct library *lib, enum collective what, enum type type, size_t asked, int cold) {
    static double times[SAMPLES_MOST];
    double seconds = atof(variable("BENCH_SECONDS", "0.3"));
    size_t size = type_sizes[type], unit = size * (size_t)lib->ranks;
    size_t bytes = what == BARRIER ? 0 : asked < unit ? unit : asked / unit * unit;
    struct subject s;
    s.lib = lib;
    s.what = what;
    s.type = type;
    s.count = bytes / size;
    s.turn = 0;
    s.send = arena_new(sends(what, s.count, (size_t)lib->ranks) * size, cold);
    s.receive = arena_new(receives(what, s.count, (size_t)lib->ranks) * size, cold);
    verify(lib, what, type, s.send.memory, s.receive.memory, s.count);

    double each = warm_up(&s, seconds);
    long calls = each < BATCH_SECONDS ? (long)(BATCH_SECONDS / each) : 1;
    int taken = take_samples(&s, seconds, calls, each, times);
    free(s.send.memory);
    free(s.receive.memory);
    if (lib->rank) return;
    printf("{\"coll\":\"%s\",\"dtype\":\"%s\",\"buffers\":\"%s\",\"ranks\":%d,\"size\":%zu,\"bytes\":%zu,"
           "\"time_us\":%.3f,\"min_us\":%.3f,\"p90_us\":%.3f,\"samples\":%d,\"batch\":%ld}\n",
           collective_names[what], type_names[type], cold ? "cold" : "hot", lib->ranks, asked, bytes,
           1e6 * median_of(times, taken), 1e6 * times[0], 1e6 * times[taken * 9 / 10], taken, calls);
    fflush(stdout);
}

static void measure_sizes(const struct library *lib, enum collective what, enum type type, int cold) {
    if (what == BARRIER) {
        if (!cold) measure_point(lib, what, type, 0, 0); /* no buffer that could be cold */
        return;
    }
    const char *rest = variable("BENCH_SIZES", "8 4096 1048576");
    char *end;
    for (;; rest = end) {
        size_t asked = (size_t)strtoull(rest, &end, 10);
        if (end == rest) return;
        measure_point(lib, what, type, asked, cold);
    }
}

/* Everything the environment asks for. */
static void measure_all(const struct library *lib) {
    char buffers[64], colls[512], *next_buffer, *next_coll;
    if (lib->rank == 0) {
        printf("{\"version\":\"%s\"}\n", lib->version);
        fflush(stdout);
    }
    snprintf(buffers, sizeof buffers, "%s", variable("BENCH_BUFFERS", "hot"));
    for (char *b = strtok_r(buffers, " ", &next_buffer); b; b = strtok_r(NULL, " ", &next_buffer)) {
        snprintf(colls, sizeof colls, "%s", variable("BENCH_COLLS", "all_reduce"));
        for (char *c = strtok_r(colls, " ", &next_coll); c; c = strtok_r(NULL, " ", &next_coll)) {
            char *colon = strchr(c, ':');
            enum type type = colon && !strcmp(colon, ":bf16") ? BF16 : F32;
            int what = 0;
            if (colon) *colon = 0;
            while (what < COLLECTIVES && strcmp(c, collective_names[what])) what++;
            if (what == COLLECTIVES) {
                fprintf(stderr, "no collective %s\n", c);
                exit(2);
            }
            measure_sizes(lib, (enum collective)what, type, !strcmp(b, "cold"));
        }
    }
}

#endif

/* The MPI libraries: Open MPI, MPICH, Intel MPI.  Built once with each one's mpicc. */
#include "measure.h"

#include <mpi.h>

static MPI_Datatype bf16;
static MPI_Op bf16_sum = MPI_SUM;
static int ranks;

#ifndef MPIX_BFLOAT16
/* Open MPI has no such type; this is what its users write.  The compiler vectorises it. */
static void add_bf16(void *from, void *into, int *count, MPI_Datatype *type) {
    const uint16_t *a = from;
    uint16_t *b = into;
    (void)type;
    for (int i = 0; i < *count; i++) {
        union {
            uint32_t bits;
            float value;
        } x = {(uint32_t)a[i] << 16}, y = {(uint32_t)b[i] << 16};
        y.value += x.value;
        b[i] = (uint16_t)((y.bits + 0x7fff + (y.bits >> 16 & 1)) >> 16); /* to nearest, ties to even */
    }
}
#endif

static void call(enum collective what, enum type type, void *send, void *receive, size_t count) {
    MPI_Datatype t = type == F32 ? MPI_FLOAT : bf16;
    MPI_Op sum = type == F32 ? MPI_SUM : bf16_sum;
    int all = (int)count, block = all / ranks;
    switch (what) {
    case ALL_REDUCE: MPI_Allreduce(MPI_IN_PLACE, send, all, t, sum, MPI_COMM_WORLD); break;
    case ALL_GATHER: MPI_Allgather(send, block, t, receive, block, t, MPI_COMM_WORLD); break;
    case REDUCE_SCATTER: MPI_Reduce_scatter_block(send, receive, block, t, sum, MPI_COMM_WORLD); break;
    case BROADCAST: MPI_Bcast(send, all, t, 0, MPI_COMM_WORLD); break;
    case ALL_TO_ALL: MPI_Alltoall(send, block, t, receive, block, t, MPI_COMM_WORLD); break;
    default: MPI_Barrier(MPI_COMM_WORLD);
    }
}

static void most(double *values, int count) {
    MPI_Allreduce(MPI_IN_PLACE, values, count, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
}

int main(int argc, char **argv) {
    /* MPICH's waits give way to other ranks only where several threads may call it. */
    int level = atoi(variable("BENCH_MPI_MULTIPLE", "0")) ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE;
    MPI_Init_thread(&argc, &argv, level, &level);
    struct library lib = {.call = call, .most = most};
    MPI_Comm_rank(MPI_COMM_WORLD, &lib.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    lib.ranks = ranks;
#ifdef MPIX_BFLOAT16
    bf16 = MPIX_BFLOAT16;
#else
    bf16 = MPI_UINT16_T;
    MPI_Op_create(add_bf16, 1, &bf16_sum);
#endif
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length;
    MPI_Get_library_version(version, &length);
    version[strcspn(version, ",\n\"")] = 0; /* the first words; some go on for pages */
    for (char *c = version; *c; c++)
        if (*c == '\t') *c = ' ';
    lib.version = version;
    measure_all(&lib);
    MPI_Finalize();
    return 0;
}

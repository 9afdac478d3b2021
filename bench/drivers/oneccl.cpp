// oneCCL on host memory.  Its ranks are started by Intel MPI's mpirun.
#include "measure.h"

#include <fstream>
#include <oneapi/ccl.hpp>
#include <string>
#include <unistd.h>

static ccl::communicator *comm;

static void call(enum collective what, enum type type, void *send, void *receive, size_t count) {
    auto t = type == F32 ? ccl::datatype::float32 : ccl::datatype::bfloat16;
    auto sum = ccl::reduction::sum;
    size_t block = count / static_cast<size_t>(comm->size());
    switch (what) {
    case ALL_REDUCE: ccl::allreduce(send, send, count, t, sum, *comm).wait(); break;
    case ALL_GATHER: ccl::allgather(send, receive, block, t, *comm).wait(); break;
    case REDUCE_SCATTER: ccl::reduce_scatter(send, receive, block, t, sum, *comm).wait(); break;
    case BROADCAST: ccl::broadcast(send, count, t, 0, *comm).wait(); break;
    case ALL_TO_ALL: ccl::alltoall(send, receive, block, t, *comm).wait(); break;
    default: ccl::barrier(*comm).wait();
    }
}

static void most(double *values, int count) {
    ccl::allreduce(values, values, static_cast<size_t>(count), ccl::datatype::float64, ccl::reduction::max, *comm)
        .wait();
}

// Rank 0 leaves its address in a file that bench/run named.
static ccl::shared_ptr_class<ccl::kvs> meet(int rank) {
    const std::string path = variable("BENCH_MEETING", "oneccl.address"), unfinished = path + ".part";
    ccl::kvs::address_type address;
    if (rank == 0) {
        auto kvs = ccl::create_main_kvs();
        address = kvs->get_address();
        std::ofstream(unfinished, std::ios::binary).write(address.data(), static_cast<std::streamsize>(address.size()));
        if (rename(unfinished.c_str(), path.c_str()) != 0) exit(4);
        return kvs;
    }
    while (!std::ifstream(path, std::ios::binary).read(address.data(), static_cast<std::streamsize>(address.size())))
        usleep(1000);
    return ccl::create_kvs(address);
}

int main() {
    struct library lib = {};
    lib.rank = atoi(variable("PMI_RANK", "0"));
    lib.ranks = atoi(variable("PMI_SIZE", "1"));
    lib.call = call;
    lib.most = most;
    ccl::init();
    auto version = ccl::get_library_version();
    std::string name = "oneCCL " + std::to_string(version.major) + "." + std::to_string(version.minor) + "." +
                       std::to_string(version.update);
    lib.version = name.c_str();
    auto kvs = meet(lib.rank);
    auto world = ccl::create_communicator(lib.ranks, lib.rank, kvs);
    comm = &world;
    measure_all(&lib);
    return 0;
}

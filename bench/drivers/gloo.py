"""PyTorch's Gloo.  Usage: gloo.py RANKS.  The loop is that of measure.h; so are the variables."""

import json
import multiprocessing
import os
import socket
import statistics
import sys
import time

import torch
import torch.distributed as dist

COLD_BYTES, PAGE = 256 << 20, 4096
BATCH_SECONDS, PATIENCE = 0.001, 3.0
SAMPLES_LEAST, SAMPLES_MOST, SAMPLES_AT_ONCE = 5, 1024, 5
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def variable(name, otherwise):
    return os.environ.get(name) or otherwise


def most(values):
    """Each value becomes the greatest of all ranks'."""
    tensor = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return tensor.tolist()


def arena(count, dtype, cold):
    """One buffer, or so many that none is still in a near cache when its turn comes."""
    size = dtype.itemsize
    stride = -(-max(count * size, 1) // PAGE) * PAGE // size
    slots = max(2, COLD_BYTES // (stride * size)) if cold and count else 1
    memory = torch.zeros(stride * slots + PAGE // size, dtype=dtype)
    first = -memory.data_ptr() % PAGE // size
    return [memory[first + i * stride : first + i * stride + count] for i in range(slots)]


def caller(coll, send, receive):
    """The collective as a function of the turn; all_reduce and broadcast are in place."""
    s, r = len(send), len(receive)
    return {
        "all_reduce": lambda i: dist.all_reduce(send[i % s]),
        "all_gather": lambda i: dist.all_gather_into_tensor(receive[i % r], send[i % s]),
        "reduce_scatter": lambda i: dist.reduce_scatter_tensor(receive[i % r], send[i % s]),
        "broadcast": lambda i: dist.broadcast(send[i % s], 0),
        "all_to_all": lambda i: dist.all_to_all_single(receive[i % r], send[i % s]),
        "barrier": lambda i: dist.barrier(),
    }[coll]


def pair_value(source, target, ranks, at):
    return (source * ranks + target) % 249 + at % 7


def verify(coll, call, send, receive, rank, ranks, count):
    """One call whose every element is checked; leaves zeros, which stay zeros when summed."""
    at = torch.arange(count)
    block, ranks_sum = count // ranks, sum(r % 8 for r in range(ranks))
    within, which = at % block, at // block
    summed = ranks * (at % 7) + ranks_sum
    mine = slice(rank * block, (rank + 1) * block)
    sent, wanted = {
        "all_reduce": (at % 7 + rank % 8, summed),
        "all_gather": ((at % 7 + rank % 8)[:block], within % 7 + which % 8),
        "reduce_scatter": (at % 7 + rank % 8, summed[mine]),
        "broadcast": (at % 7 + 1 if rank == 0 else at * 0, at % 7 + 1),
        "all_to_all": (pair_value(rank, which, ranks, within), pair_value(which, rank, ranks, within)),
    }[coll]
    send.copy_(sent)
    receive.fill_(255)
    call(0)
    result = receive if receive.numel() else send
    if not torch.equal(result, wanted.to(result.dtype)):
        sys.exit(f"WRONG: {coll} {result.dtype} of {count} elements, rank {rank}")
    send.zero_()
    receive.zero_()


class Batches:
    """Keeps the turn from batch to batch."""

    def __init__(self, call):
        self.call, self.turn = call, 0

    def run(self, calls):
        """A barrier, then the calls; seconds on this rank."""
        call, first = self.call, self.turn
        self.turn += calls
        dist.barrier()
        started = time.perf_counter()
        for turn in range(first, first + calls):
            call(turn)
        return time.perf_counter() - started


def warm_up(batches, seconds):
    """The least a call took, so that noise adds no error."""
    spent, each, calls = 0.0, float("inf"), 1
    while True:
        took = most([batches.run(calls)])[0]
        spent += took
        each = min(each, took / calls)
        if spent >= 0.2 * seconds:
            return max(each, 1e-9)
        calls *= 2


def take_samples(batches, seconds, calls, each):
    wanted = min(SAMPLES_MOST, max(SAMPLES_LEAST, int(seconds / (calls * each))))
    times, spent, started = [], 0.0, time.perf_counter()
    while len(times) < wanted and (len(times) < SAMPLES_LEAST or spent < PATIENCE * seconds):
        for _ in range(min(SAMPLES_AT_ONCE, wanted - len(times))):
            times.append(batches.run(calls) / calls)
        spent = most([time.perf_counter() - started])[0]  # all must agree to stop
    return sorted(most(times))


def measure_point(coll, dtype, asked, cold, rank, ranks):
    seconds = float(variable("BENCH_SECONDS", "0.3"))
    kind = TYPES[dtype]
    unit = kind.itemsize * ranks
    nbytes = 0 if coll == "barrier" else max(asked // unit * unit, unit)
    count = nbytes // kind.itemsize
    block = count // ranks
    send = arena({"all_gather": block, "barrier": 0}.get(coll, count), kind, cold)
    receives = {"all_gather": count, "all_to_all": count, "reduce_scatter": block}.get(coll, 0)
    receive = arena(receives, kind, cold)
    call = caller(coll, send, receive)
    if coll != "barrier":
        verify(coll, call, send[0], receive[0], rank, ranks, count)
    batches = Batches(call)
    each = warm_up(batches, seconds)
    calls = max(1, int(BATCH_SECONDS / each))
    times = take_samples(batches, seconds, calls, each)
    if rank:
        return
    point = {
        "coll": coll, "dtype": dtype, "buffers": "cold" if cold else "hot", "ranks": ranks,
        "size": asked, "bytes": nbytes, "time_us": round(1e6 * statistics.median(times), 3),
        "min_us": round(1e6 * times[0], 3), "p90_us": round(1e6 * times[len(times) * 9 // 10], 3),
        "samples": len(times), "batch": calls,
    }  # fmt: skip
    print(json.dumps(point), flush=True)


def rank_main(rank, ranks, port):
    torch.set_num_threads(1)  # one core a rank, as everywhere
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    if rank == 0:
        print(json.dumps({"version": f"torch {torch.__version__} (gloo)"}), flush=True)
    for buffers in variable("BENCH_BUFFERS", "hot").split():
        for word in variable("BENCH_COLLS", "all_reduce").split():
            coll, _, dtype = word.partition(":")
            sizes = variable("BENCH_SIZES", "8 4096 1048576").split()
            if coll == "barrier":
                sizes = ["0"] if buffers == "hot" else []  # no buffer that could be cold
            for size in sizes:
                measure_point(coll, dtype or "f32", int(size), buffers == "cold", rank, ranks)
    dist.barrier()
    dist.destroy_process_group()


def main():
    ranks = int(sys.argv[1])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    fork = multiprocessing.get_context("fork")  # torch is imported once, not once per rank
    processes = [fork.Process(target=rank_main, args=(rank, ranks, port)) for rank in range(ranks)]
    for process in processes:
        process.start()
    while any(process.is_alive() for process in processes):
        failed = [p for p in processes if p.exitcode not in (None, 0)]
        if failed:  # the others would wait for it for half an hour
            for process in processes:
                process.terminate()
            sys.exit(abs(failed[0].exitcode))
        time.sleep(0.05)
    sys.exit(max(abs(process.exitcode) for process in processes))


if __name__ == "__main__":
    main()

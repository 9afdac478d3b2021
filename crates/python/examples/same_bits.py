"""The same bits on 2 ranks and on 4.

    python same_bits.py

At level `shape` a reduction folds the ranks' values in rank order, whatever the transport and the algorithm. A sum over 4 ranks is then the
sum over 2 ranks of sums over 2 wherever adding is exact: here gradients are multiples of a power of two, small enough that no
bit is lost, so training on 2 ranks with two samples each and on 4 ranks with one each must end with equal weights. Where
additions round, no library can give equal bits for different groupings; then `shape` still gives the same bits for the
same number of ranks on any machine.
"""

import hashlib
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

import ringway.torch  # noqa: F401 - registers the backend

SAMPLES = 4


def train(rank, ranks, place, said, steps=20):
    os.environ["RINGWAY_LEVEL"] = "shape"
    dist.init_process_group("ringway", init_method=f"file://{place}", rank=rank, world_size=ranks)
    weight = torch.zeros(16)
    each = SAMPLES // ranks
    for step in range(steps):
        mine = torch.zeros(16)
        for sample in range(rank * each, (rank + 1) * each):
            noise = torch.Generator().manual_seed(step * SAMPLES + sample)
            target = torch.randint(-8, 9, (16,), generator=noise) / 8
            # A gradient with few bits: sums of four are exact.
            mine += torch.round((weight - target) * 256) / 256
        dist.all_reduce(mine)
        weight -= mine / 16
        weight = torch.round(weight * 256) / 256
    if rank == 0:
        with open(said, "w") as file:
            file.write(hashlib.sha256(weight.numpy().tobytes()).hexdigest())
    dist.destroy_process_group()


def run(ranks):
    with tempfile.TemporaryDirectory() as folder:
        said = os.path.join(folder, "weights")
        processes.start_processes(train, (ranks, os.path.join(folder, "store"), said), nprocs=ranks, start_method="spawn")
        with open(said) as file:
            return file.read()


if __name__ == "__main__":
    two, four = run(2), run(4)
    print(f"2 ranks: {two[:16]}…\n4 ranks: {four[:16]}…")
    print("the same bits" if two == four else "different bits")
    sys.exit(two != four)

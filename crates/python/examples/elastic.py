"""A job that loses a rank and goes on: nobody is started anew, and no checkpoint is read.

    python elastic.py

Rank 1 of 3 kills itself in step 5. The others are told who died, put themselves together without it and repeat
the step. The processes are started here and not by torchrun, which ends a job of which one process died.
"""

import os
import signal
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

import ringway
import ringway.torch


def train(rank, ranks, place, steps=10):
    dist.init_process_group("ringway", init_method=f"file://{place}", rank=rank, world_size=ranks)
    born_as = rank
    weight = torch.zeros(4)
    step = 0
    while step < steps:
        if step == 5 and born_as == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        gradient = torch.full((4,), float(dist.get_rank() + 1))
        try:
            began = time.monotonic()
            dist.all_reduce(gradient)
        except ringway.Error as error:
            print(f"rank {born_as}: {error}", flush=True)
            ringway.torch.recover()
            took = (time.monotonic() - began) * 1e3
            print(f"rank {born_as} is now rank {dist.get_rank()} of {dist.get_world_size()}, after {took:.0f} ms", flush=True)
            continue
        weight -= 0.1 * gradient
        step += 1
    if dist.get_rank() == 0:
        print(f"done: {weight.tolist()}", flush=True)
    dist.destroy_process_group()


def main(ranks=3):
    with tempfile.TemporaryDirectory() as folder:
        place = os.path.join(folder, "store")
        context = processes.get_context("spawn")
        jobs = [context.Process(target=train, args=(rank, ranks, place)) for rank in range(ranks)]
        for job in jobs:
            job.start()
        for job in jobs:
            job.join(120)
        ended = [job.exitcode for job in jobs]
        if ended != [0, -signal.SIGKILL, 0]:
            raise SystemExit(f"exit codes {ended}, expected one rank killed and the others at their end")


if __name__ == "__main__":
    main()

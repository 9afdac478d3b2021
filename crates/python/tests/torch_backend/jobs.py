"""Ranks of torch.distributed as processes, for tests: started, waited for with a limit, and their answers."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import tempfile
import time
import traceback

import torch
import torch.distributed as dist

import ringway.torch  # noqa: F401 - registers the backend

# A fork takes milliseconds; importing torch takes seconds. Nothing here has threads before it forks.
_context = multiprocessing.get_context("fork")


class Failed(Exception):
    """A rank raised what it should not have."""


def _rank_main(function, rank, ranks, place, pipe, arguments):
    torch.set_num_threads(1)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    try:
        dist.init_process_group("ringway", init_method=f"file://{place}", rank=rank, world_size=ranks)
        answer = function(rank, ranks, *arguments)
        if dist.is_initialized():
            dist.destroy_process_group()
        pipe.send(("ok", answer))
    except BaseException:  # noqa: BLE001 - the parent shows it
        pipe.send(("failed", traceback.format_exc()))
    pipe.close()


def run(function, ranks, *arguments, limit=60.0, dies=()):
    """Runs `function(rank, ranks, *arguments)` on all ranks; their answers. Those in `dies` may die without one."""
    with tempfile.TemporaryDirectory() as folder:
        place = os.path.join(folder, "store")
        jobs, pipes = [], []
        for rank in range(ranks):
            mine, theirs = _context.Pipe(duplex=False)
            job = _context.Process(target=_rank_main, args=(function, rank, ranks, place, theirs, arguments))
            job.start()
            theirs.close()
            jobs.append(job)
            pipes.append(mine)
        end = time.monotonic() + limit
        answers = [None] * ranks
        try:
            for rank, pipe in enumerate(pipes):
                if not pipe.poll(max(end - time.monotonic(), 0.0)):
                    # Whoever looks for the reason wants to know where each rank stands.
                    for job in jobs:
                        if job.is_alive():
                            os.kill(job.pid, signal.SIGUSR1)
                            time.sleep(0.2)
                    raise Failed(f"rank {rank} of {ranks} has not answered within {limit:g} s")
                try:
                    kind, answer = pipe.recv()
                except EOFError:
                    if rank in dies:
                        continue
                    jobs[rank].join(5)
                    raise Failed(f"rank {rank} ended without an answer, exit code {jobs[rank].exitcode}") from None
                if kind == "failed":
                    raise Failed(f"rank {rank}: {answer}")
                answers[rank] = answer
        finally:
            for job in jobs:
                job.join(5)
                if job.is_alive():
                    job.kill()
                    job.join()
        return answers

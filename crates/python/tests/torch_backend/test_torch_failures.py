"""What happens when something goes wrong: who is named, how soon, and what is left behind."""

import gc
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from jobs import run

import ringway
import ringway.torch


def killed(rank, ranks, when):
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        for _ in range(1000):
            work = dist.all_reduce(torch.ones(1000), async_op=when == "async")
            if work is not None:
                work.wait()
            time.sleep(0.001)
    except ringway.Error as error:
        # When it was raised, by a clock that all processes of this machine share.
        return time.monotonic(), str(error), error.peer
    return None


@pytest.mark.parametrize("when", ["sync", "async"])
def test_a_killed_rank_is_named_everywhere(when):
    began = time.monotonic()
    answers = run(killed, 3, when, dies=(1,))
    for rank in (0, 2):
        at, said, peer = answers[rank]
        assert peer == 1 and "rank 1" in said, said
        assert at - began < 30


def killed_in_ddp(rank, ranks):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    model(torch.ones(2, 4)).sum().backward()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        for _ in range(1000):
            model(torch.ones(2, 4)).sum().backward()
            time.sleep(0.001)
    except RuntimeError as error:
        ringway.torch.recover()
        return str(error), dist.get_world_size()
    return None


def test_a_rank_that_dies_in_ddp_is_an_error_and_no_crash():
    """C++ takes the future's value for tensors: it must be an error there, too."""
    answers = run(killed_in_ddp, 3, dies=(1,))
    for rank in (0, 2):
        said, size = answers[rank]
        assert "rank 1" in said and size == 2, said


def waits_in_a_callback(rank, ranks):
    """As PowerSGD does: what hangs on a future waits for another call."""

    def again(future):
        inner = dist.all_reduce(future.value()[0], async_op=True).get_future()
        return inner.wait()[0]

    # Rank 0's are under way when something hangs on them. All ranks make these calls before the others, whoever makes those.
    time.sleep(0.3 * rank)
    outer = [dist.all_reduce(torch.ones(4), async_op=True).get_future() for _ in range(8)]
    return [future.wait()[0].item() for future in [future.then(again) for future in outer]]


def test_a_callback_may_wait_for_another_call():
    assert run(waits_in_a_callback, 2) == [[4.0] * 8] * 2


def ends_with_a_receive_outstanding(rank, ranks):
    if rank == 0:
        dist.irecv(torch.ones(1), src=1)
        time.sleep(0.3)
    dist.destroy_process_group()
    return None


def test_a_receive_that_nobody_answers_does_not_hold_up_the_end():
    run(ends_with_a_receive_outstanding, 2, limit=20)


def mismatched(rank, ranks, what):
    if what == "shape":
        tensor = torch.ones(10 if rank != 2 else 11)
    else:
        tensor = torch.ones(10, dtype=torch.float32 if rank != 2 else torch.int32)
    try:
        dist.all_reduce(tensor)
    except ringway.Error as error:
        return type(error).__name__, str(error)
    return None


@pytest.mark.parametrize("what", ["shape", "dtype"])
def test_a_wrong_call_of_one_rank_is_named_everywhere(what):
    for kind, said in run(mismatched, 3, what):
        assert kind == "InvalidUsage", kind
        assert "rank 2" in said, said


def late(rank, ranks):
    group = dist.new_group(timeout=timedelta(milliseconds=300))
    if rank == 0:
        time.sleep(2)
        return None
    try:
        dist.all_reduce(torch.ones(4), group=group)
    except ringway.Timeout as error:
        return str(error)
    return None


def test_a_timeout_names_who_is_late():
    _, said = run(late, 2)
    assert "rank 0" in said, said


def absent(rank, ranks):
    if rank == 2:
        time.sleep(1.5)
        return None
    try:
        dist.monitored_barrier(timeout=timedelta(milliseconds=500))
    except RuntimeError as error:
        return str(error)
    return None


def test_a_monitored_barrier_names_who_is_missing():
    first, _, _ = run(absent, 3)
    assert "Rank 2 failed to pass monitoredBarrier in 500 ms" in first


def recovers(rank, ranks, gone):
    dist.barrier()
    if rank == gone:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            dist.all_reduce(torch.ones(10))
            time.sleep(0.001)
    except ringway.Error:
        pass
    ringway.torch.recover()
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    # Groups and messages of the group that is left work, too.
    group = dist.new_group([0, 1])
    dist.barrier(group=group)
    if dist.get_rank() == 0:
        dist.send(torch.tensor([5.0]), dst=1)
    else:
        got = torch.empty(1)
        dist.recv(got, src=0)
        assert got.item() == 5.0
    return dist.get_rank(), dist.get_world_size(), tensor.tolist()


@pytest.mark.parametrize("gone", [0, 1])
def test_those_who_are_left_recover(gone):
    answers = run(recovers, 3, gone, dies=(gone,))
    left = [answer for answer in answers if answer is not None]
    assert left == [(0, 2, [2.0] * 3), (1, 2, [2.0] * 3)]


def reconfigured(rank, ranks):
    group = dist.group.WORLD
    store = dist.distributed_c10d._get_default_store()
    store.set(f"handle{rank}", group.get_reconfigure_handle())
    if rank == 1:
        # Not among those that go on, but there until they have met.
        store.wait(["gone on"], timedelta(seconds=20))
        return None
    options = torch._C._distributed_c10d.ReconfigureOptions()
    options.uuid = 7
    options.handles = [store.get(f"handle{other}").decode() for other in (2, 0)]
    group.reconfigure(options).wait()
    tensor = torch.ones(2) * (rank + 1)
    group.allreduce([tensor]).wait()
    store.set("gone on", b"1")
    return group.rank(), group.size(), tensor.tolist()


def test_torchs_reconfigure():
    if not hasattr(torch._C._distributed_c10d, "ReconfigureOptions"):
        pytest.skip("this torch has no reconfigure")
    assert run(reconfigured, 3) == [(1, 2, [4.0, 4.0]), None, (0, 2, [4.0, 4.0])]


def counted():
    """Threads, descriptors and KiB of this process."""
    threads = len(os.listdir("/proc/self/task"))
    files = len(os.listdir("/proc/self/fd"))
    memory = int(next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")).split()[1])
    return threads, files, memory


def cycles(rank, ranks, count):
    def one():
        group = dist.new_group()
        dist.all_reduce(torch.ones(4), group=group)
        dist.all_reduce(torch.ones(4), group=group, async_op=True).wait()
        if rank == 0:
            dist.send(torch.ones(1), dst=1, group=group)
        else:
            dist.recv(torch.ones(1), src=0, group=group)
        dist.destroy_process_group(group)

    for _ in range(10):
        one()
    gc.collect()
    before = counted()
    for _ in range(count):
        one()
    gc.collect()
    after = counted()
    return before, after, threading.active_count()


def test_groups_leave_nothing_behind():
    count = int(os.environ.get("RINGWAY_TEST_CYCLES", "40"))
    for before, after, _ in run(cycles, 2, count, limit=60 + count):
        assert after[0] <= before[0], f"threads {before[0]} -> {after[0]}"
        assert after[1] <= before[1], f"descriptors {before[1]} -> {after[1]}"
        # torch itself keeps some bytes for each group it ever had.
        grown = (after[2] - before[2]) / count
        assert grown < 40, f"{grown:.1f} KiB a group"


def test_ctrl_c_ends_a_job():
    program = textwrap.dedent(
        """
        import sys, time, torch, torch.distributed as dist, ringway.torch
        rank = int(sys.argv[1])
        dist.init_process_group("ringway", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
        dist.barrier()
        print("ready", flush=True)
        if rank == 0:
            time.sleep(60)
        else:
            dist.all_reduce(torch.ones(4))
        """
    )
    with tempfile.TemporaryDirectory() as folder:
        place = os.path.join(folder, "store")
        jobs = [
            subprocess.Popen(
                [sys.executable, "-c", program, str(rank), place], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            for rank in range(2)
        ]
        try:
            for job in jobs:
                assert job.stdout.readline() == "ready\n"
            time.sleep(0.3)
            began = time.monotonic()
            for job in jobs:
                job.send_signal(signal.SIGINT)
            said = [job.communicate(timeout=20) for job in jobs]
            took = time.monotonic() - began
        finally:
            for job in jobs:
                job.kill()
        for (_, errors), job in zip(said, jobs):
            assert "KeyboardInterrupt" in errors, errors
            assert job.returncode != 0
        assert took < 15

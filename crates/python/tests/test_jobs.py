"""Jobs of real processes: how they start, fail, are interrupted and go on."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time

import pytest

import ringway

# Seconds: far above what it takes, far below all deadlines, also on a machine that is busy with other things.
SOON = 5.0


def test_ranks_of_processes_add_up(good) -> None:
    code = """
        with join() as comm:
            values = bytearray([rank, 1])
            comm.all_reduce(values)
            say(list(values))
    """
    assert good(3, code) == ["[3, 3]"] * 3
    assert good(2, code, RINGWAY_TRANSPORT="tcp") == ["[1, 2]"] * 2


@pytest.mark.parametrize("launcher", ["module", "script"])
def test_a_job_started_by_the_command(launcher: str) -> None:
    code = "import ringway, sys\nwith ringway.init() as comm:\n  b = bytearray([1]); comm.all_reduce(b); print(b[0])"
    script = os.path.join(os.path.dirname(sys.executable), "ringway")
    if launcher == "script" and not os.path.exists(script):
        pytest.skip("the script is not beside this Python")
    start = [script] if launcher == "script" else [sys.executable, "-m", "ringway"]
    command = [*start, "run", "-n", "3", "--", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert sorted(line[-1] for line in done.stdout.split("\n") if line) == ["3"] * 3


def test_outside_of_a_job_init_says_what_to_do() -> None:
    names = ("RINGWAY_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-c", "import ringway; ringway.init()"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "ringway run" in done.stderr.splitlines()[-1], done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"rank": -1, "size": 1}, "rank -1 of 1 cannot be"),
        ({"rank": 2, "size": 2}, "rank 2 of 2 cannot be"),
        ({"timeout": -5}, "a timeout of -5 seconds cannot be"),
        ({"timeout": float("inf")}, "a timeout of inf seconds cannot be"),
        ({"timeout": float("nan")}, "a timeout of nan seconds cannot be"),
        ({"gpu": "curent"}, "gpu='curent' cannot be"),
        ({"gpu": -1}, "gpu=-1 cannot be"),
    ],
)
def test_wrong_arguments_of_init_are_refused_before_anybody_is_met(words: dict[str, object], message: str) -> None:
    with pytest.raises(ringway.InvalidArgument, match=message):
        ringway.init(**{"rank": 0, "size": 2, "id": ringway.unique_id(), **words})


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_a_killed_rank_is_named_by_all_others(job, transport: str) -> None:
    code = """
        comm = join()
        say("ready")
        if rank == 2:
            time.sleep(60)
        try:
            comm.barrier()
        except ringway.Error as error:
            say(time.time(), error.kind, error.rank, error.peer, error.culprits, error)
    """
    found = job(4, code, RINGWAY_TRANSPORT=transport)
    for rank in range(4):
        assert found.line(rank) == "ready"
    time.sleep(0.3)
    when = found.kill(2)
    ended = found.end(30)
    for rank in (0, 1, 3):
        code, out, err = ended[rank]
        assert code == 0, err
        at, kind, on, peer, rest = out.split(" ", 4)
        assert (kind, int(on), int(peer)) == ("remote", rank, 2)
        assert f"'pid': {found.ranks[2].pid}" in rest and "rank 2" in rest and "died" in rest
        # The kernel says at once that it died; without that a heartbeat would miss it, much later.
        assert float(at) - when < SOON, f"rank {rank} was told after {float(at) - when:.3f} s"


def test_ctrl_c_raises_here_and_names_this_rank_elsewhere(job) -> None:
    code = """
        comm = join()
        say("ready")
        try:
            comm.barrier() if rank else comm.recv(bytearray(1), source=1)
        except KeyboardInterrupt:
            say("interrupted", time.time())
        except ringway.Error as error:
            say("failed", error.peer, error)
    """
    found = job(3, code)
    for rank in range(3):
        assert found.line(rank) == "ready"
    time.sleep(0.3)
    when = found.kill(0, signal.SIGINT)
    ended = found.end(30)
    assert all(code == 0 for code, _, _ in ended), ended
    word, at = ended[0][1].split()
    assert word == "interrupted" and float(at) - when < SOON, ended[0]
    for rank in (1, 2):
        assert ended[rank][1].startswith("failed 0 ") and "interrupted" in ended[rank][1], ended[rank]


@pytest.mark.parametrize("wait", ["comm.barrier(async_=True).wait()", "comm.barrier(async_=True); comm.close()"])
def test_ctrl_c_ends_a_wait_for_background_work_and_the_process(job, wait: str) -> None:
    found = job(2, f"comm = join()\nsay('ready')\nif rank == 0:\n  {wait}\nelse:\n  comm.recv(bytearray(1), 0)")
    assert [found.line(rank) for rank in (0, 1)] == ["ready"] * 2
    time.sleep(0.3)
    began = found.kill(0, signal.SIGINT)
    ended = found.end(30)
    assert time.time() - began < SOON
    assert "KeyboardInterrupt" in ended[0][2].splitlines()[-1], ended[0]
    # The other heard of it before this one was gone.
    assert "RemoteError" in ended[1][2] and "rank 0" in ended[1][2], ended[1]


def test_ctrl_c_while_ranks_come_together(job) -> None:
    code = """
        say("ready")
        try:
            ringway.init(0, 2, bytes.fromhex(os.environ["TEST_ID"]))
        except KeyboardInterrupt:
            say("interrupted")
    """
    found = job(1, code)
    assert found.line(0) == "ready"
    time.sleep(0.5)
    began = found.kill(0, signal.SIGINT)
    (code_, out, err), *_ = found.end(30)
    assert (code_, out.strip()) == (0, "interrupted"), err
    assert time.time() - began < SOON


def test_ctrl_c_at_a_whole_job_leaves_nobody(job) -> None:
    code = "import ringway, time\ncomm = ringway.init()\nprint('ready', flush=True)\nif comm.rank: comm.barrier()\nelse: time.sleep(60)"
    command = [sys.executable, "-m", "ringway", "run", "-n", "3", "--", sys.executable, "-c", code]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        for _ in range(3):
            assert "ready" in process.stdout.readline()
        began = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=30)
        assert process.returncode != 0
        assert time.monotonic() - began < 15
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, 0)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("odd", "word"),
    [
        ("array('f', [1, 2]) if rank == 1 else array('d', [1, 2])", "float"),
        ("array('d', [1, 2, 3]) if rank == 1 else array('d', [1, 2])", "3 double"),
    ],
)
def test_a_wrong_type_or_shape_on_one_rank_is_named_everywhere(job, odd: str, word: str) -> None:
    code = f"""
        from array import array
        comm = join()
        comm.barrier()
        if rank == 1:
            # Of two that differ nobody knows which is wrong: the third comes first.
            time.sleep(3)
        try:
            comm.all_reduce({odd})
        except ringway.InvalidUsage as error:
            say(error.peer, error.operation, error.advice, "|", error)
    """
    for code_, out, err in job(3, code).end():
        assert code_ == 0, err
        assert out.startswith("1 ") and word in out and "rank 1" in out, out
        assert "same calls in the same order" in out.split("|")[0], out


def test_an_exception_in_a_block_is_told_to_the_others(job) -> None:
    code = """
        with join() as comm:
            if rank == 1:
                raise ValueError("bad data")
            comm.barrier()
    """
    ended = job(2, code).end(30)
    assert ended[1][2].splitlines()[-1] == "ValueError: bad data"
    assert "RemoteError" in ended[0][2] and "bad data" in ended[0][2] and "rank 1" in ended[0][2]


def test_a_deadline_names_who_is_missing(job) -> None:
    code = """
        SLEEP = 4
        comm = join()
        began = time.monotonic()
        if rank == 0:
            time.sleep(SLEEP)
        try:
            comm.barrier(timeout=0.5)
        except TimeoutError as error:
            say(error.kind, error.peer, time.monotonic() - began < SLEEP or rank == 0)
    """
    for code_, out, err in job(3, code).end():
        assert (code_, out.split()) == (0, ["timeout", "0", "True"]), err


def test_a_process_that_waited_for_its_work_ends_in_order(good) -> None:
    """Work that was waited for is not under way any more, also for what a process does at its end."""
    code = """
        comm = join()
        values = bytearray([1])
        for _ in range(100):
            if rank == 0:
                comm.all_reduce(values, async_=True).wait()
                assert comm.native.pending == 0
            else:
                comm.all_reduce(values)
        say(values[0])
    """
    assert good(2, code) == ["0"] * 2


def test_a_process_that_ends_says_goodbye(good) -> None:
    """Without close: the communicator is a global, or in a cycle."""
    code = """
        comm = join()
        keep = [comm]; keep.append(keep)
        comm.barrier()
    """
    good(2, code)
    code = """
        comm = join()
        if rank:
            try:
                comm.barrier()
            except ringway.Error as error:
                say(error)
    """
    out = good(2, code)[1]
    assert "left the communicator" in out, out


def test_a_forked_process_is_told_that_it_has_no_communicator(good) -> None:
    code = """
        comm = join()
        if os.fork() == 0:
            try:
                comm.barrier()
            except ringway.InvalidUsage as error:
                say("forked" in str(error))
            del comm
            sys.exit(0)
        os.wait()
        comm.barrier()
        comm.close()
    """
    assert good(2, code) == ["True"] * 2


def test_survivors_shrink_and_a_new_process_takes_the_seat(job) -> None:
    code = """
        comm = join(timeout=20)
        say("ready")
        if rank == 1:
            time.sleep(60)
        try:
            comm.barrier()
        except ringway.RemoteError as error:
            with comm.shrink([error.peer]) as rest:
                values = bytearray([1])
                rest.all_reduce(values)
                say(rest.rank, rest.size, values[0])
            id = bytes.fromhex(os.environ["SEAT"]) if rank == 0 else None
            with comm.replace([error.peer], id) as whole:
                whole.all_reduce(values)
                say(whole.rank, whole.size, values[0])
    """
    seat = ringway.unique_id()
    found = job(3, code, SEAT=seat.hex())
    for rank in range(3):
        assert found.line(rank) == "ready"
    time.sleep(0.2)
    found.kill(1)
    newcomer = "with ringway.init(1, 3, bytes.fromhex(os.environ['SEAT'])) as comm:\n  values = bytearray([5]); comm.all_reduce(values); say(values[0])"
    found.ranks[1].communicate(timeout=30)
    found.ranks[1] = found.start(1, 3, newcomer)
    ended = found.end()
    assert all(code_ == 0 for code_, _, _ in ended), ended
    assert ended[0][1].split("\n")[:2] == ["0 2 2", "0 3 9"]
    assert ended[2][1].split("\n")[:2] == ["1 2 2", "2 3 9"]
    assert ended[1][1].strip() == "9"


def test_errors_survive_pickling() -> None:
    error = ringway.RemoteError("x; y", rank=1, culprits=[{"rank": 2, "host": "h", "pid": 3}], advice="y")
    again = pickle.loads(pickle.dumps(error))
    assert (again.peer, again.rank, again.advice, str(again)) == (2, 1, "y", "x; y")
    assert isinstance(again, ConnectionError) and isinstance(again, RuntimeError)

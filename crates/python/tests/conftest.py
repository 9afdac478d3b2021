"""Jobs of real processes, each with a limit: whatever hangs fails, and nothing is left behind."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

import ringway

LIMIT = 60.0

# What every rank begins with.
PREAMBLE = """
import os, sys, time
import ringway
rank, size = int(os.environ["TEST_RANK"]), int(os.environ["TEST_SIZE"])
def join(**words):
    return ringway.init(rank, size, bytes.fromhex(os.environ["TEST_ID"]), **words)
def say(*words):
    print(*words, flush=True)
"""


class Job:
    """Processes that are ranks of one communicator."""

    def __init__(self, size: int, code: str, environment: dict[str, str] | None = None) -> None:
        self.id = ringway.unique_id()
        self.size, self.code, self.environment = size, code, environment or {}
        self.ranks = [self.start(rank, size, code) for rank in range(size)]

    def start(self, rank: int, size: int, code: str) -> subprocess.Popen[str]:
        place = {"TEST_RANK": str(rank), "TEST_SIZE": str(size), "TEST_ID": self.id.hex()}
        return subprocess.Popen(
            [sys.executable, "-c", PREAMBLE + textwrap.dedent(code)],
            env={**os.environ, **self.environment, **place},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self, rank: int) -> str:
        """The next line a rank says."""
        found = self.ranks[rank].stdout.readline()
        assert found, f"rank {rank} said nothing: {self.ranks[rank].stderr.read()}"
        return found.strip()

    def kill(self, rank: int, number: int = signal.SIGKILL) -> float:
        """Sends a signal to a rank; returns when."""
        self.ranks[rank].send_signal(number)
        return time.time()

    def end(self, limit: float = LIMIT) -> list[tuple[int, str, str]]:
        """Waits for all ranks: their exit codes, what they said, and their errors."""
        until = time.monotonic() + limit
        ended = []
        for process in self.ranks:
            try:
                out, err = process.communicate(timeout=max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.clear()
                raise AssertionError("a rank did not end in time") from None
            ended.append((process.returncode, out, err))
        return ended

    def clear(self) -> None:
        for process in self.ranks:
            if process.poll() is None:
                process.kill()
        for process in self.ranks:
            process.wait()
            for pipe in (process.stdout, process.stderr):
                pipe.close()


@pytest.fixture(autouse=True)
def limit():
    """A test that hangs ends the run, and says where it stood."""
    faulthandler.dump_traceback_later(10 * LIMIT, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def job():
    """Starts jobs, and ends what is left of them."""
    jobs: list[Job] = []

    def start(size: int, code: str, **environment: str) -> Job:
        jobs.append(Job(size, code, environment))
        return jobs[-1]

    yield start
    for one in jobs:
        one.clear()


@pytest.fixture
def good(job):
    """Runs a job that must end well; what its ranks said."""

    def run(size: int, code: str, **environment: str) -> list[str]:
        ended = job(size, code, **environment).end()
        for rank, (code_, out, err) in enumerate(ended):
            assert code_ == 0, f"rank {rank} ended with {code_}\n{out}\n{err}"
        return [out.strip() for _, out, _ in ended]

    return run

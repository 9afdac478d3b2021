"""PyTorch's own tests of distributed backends, run on ringway.

    python crates/python/tests/torch_backend/suite.py [-k NAME] [--ranks 3] [--list]

PyTorch ships the suite (torch.testing._internal.distributed.distributed_test) but asks for the name of the
backend in many places, so that most of it runs for "gloo" alone. Here the name is gloo and the process
groups are ringway's: these are exactly the tests that gloo passes on processors. Tests in SKIPPED are about
gloo itself; each says why.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
import unittest

# Test, and why ringway does not run it.
_ANY = "ringway refuses to receive from any rank: which message comes first depends on time"
SKIPPED: dict[str, str] = {
    "test_send_recv_any_source": _ANY,
    "test_send_recv_any_source_autograd_profiler": _ANY,
    "test_send_recv_any_source_torch_profiler": _ANY,
    "test_ddp_logging_data_cpu": "wants DDP's log to say that the backend is gloo; it says ringway",
}


def suite_class():
    os.environ.setdefault("BACKEND", "gloo")
    os.environ.setdefault("WORLD_SIZE", "3")
    os.environ.setdefault("TEMP_DIR", tempfile.mkdtemp(prefix="ringway-torch-"))
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

    import torch.distributed as dist

    import ringway.torch

    dist.Backend._plugins["GLOO"] = dist.Backend._BackendPlugin(ringway.torch._create, True)

    from torch.testing._internal.distributed import distributed_test
    from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend

    # Ranges of ringway's are named ringway:..., and hold no shapes: a Python process group cannot give any.
    distributed_test.PROFILING_SUPPORTED_BACKENDS = []
    distributed_test.SEND_RECV_PROFILING_SUPPORTED_BACKENDS = []

    class TestRingway(TestDistBackend, DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            # torch is imported already: a fork takes milliseconds, a new interpreter seconds.
            self._start_processes(multiprocessing.get_context("fork").Process)

    for name, why in SKIPPED.items():
        if not hasattr(TestRingway, name):
            raise SystemExit(f"SKIPPED names {name}, which is not in the suite")
        setattr(TestRingway, name, unittest.skip(why)(getattr(TestRingway, name)))
    return TestRingway


class Result(unittest.TextTestResult):
    """A line a test, with its time."""

    def startTest(self, test):
        self._began = time.monotonic()
        unittest.TestResult.startTest(self, test)

    def printErrors(self):
        """They were shown where they happened."""

    def _line(self, test, outcome):
        took = time.monotonic() - self._began
        self.stream.writeln(f"{outcome:5} {took:6.1f} s  {test._testMethodName}")
        self.stream.flush()

    def addSuccess(self, test):
        self._line(test, "ok")

    def addError(self, test, error):
        unittest.TestResult.addError(self, test, error)
        self._line(test, "ERROR")
        self.stream.writeln(self.errors[-1][1])

    def addFailure(self, test, error):
        unittest.TestResult.addFailure(self, test, error)
        self._line(test, "FAIL")
        self.stream.writeln(self.failures[-1][1])

    def addSkip(self, test, reason):
        unittest.TestResult.addSkip(self, test, reason)
        self._line(test, "skip")


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("-k", action="append", default=[], help="only tests whose name contains this")
    arguments.add_argument("--ranks", type=int, default=3)
    arguments.add_argument("--from", dest="first", default="", metavar="NAME", help="begin with this test")
    arguments.add_argument("--list", action="store_true", help="list the tests")
    given = arguments.parse_args()
    os.environ["WORLD_SIZE"] = str(given.ranks)
    case = suite_class()
    sys.modules["__main__"].TestRingway = case
    names = unittest.TestLoader().getTestCaseNames(case)
    names = [name for name in names if not given.k or any(part in name for part in given.k)]
    names = [name for name in names if name >= given.first]
    if given.list:
        print("\n".join(names))
        return 0
    if not names:
        print(f"no test's name contains {' or '.join(given.k)}; --list shows them", file=sys.stderr)
        return 2
    suite = unittest.TestSuite(case(name) for name in names)
    outcome = unittest.TextTestRunner(resultclass=Result, verbosity=0).run(suite)
    for test, reason in outcome.skipped:
        print(f"skipped {test._testMethodName}: {reason}")
    ran = outcome.testsRun - len(outcome.skipped)
    bad = len(outcome.failures) + len(outcome.errors)
    print(f"{ran} tests ran on {given.ranks} ranks, {bad} failed, {len(outcome.skipped)} were skipped")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())

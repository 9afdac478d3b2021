"""PyTorch's own tests of distributed backends, run on ringway.

    python crates/python/tests/torch_backend/suite.py [-k NAME] [--ranks 3] [--list]
    python crates/python/tests/torch_backend/suite.py --cuda --ranks 2

PyTorch ships the suite (torch.testing._internal.distributed.distributed_test) but asks for the name of the
backend in many places, so that most of it runs for "gloo" or "nccl" alone. Here that is the name and the
process groups are ringway's: these are exactly the tests that gloo passes on processors, and with --cuda those
that nccl passes on GPUs. Tests in SKIPPED are about those backends themselves; each says why.

The suite wants a GPU for each rank. Where there are fewer, all ranks use the first, whatever they ask for.
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


# The same for GPUs.
_OBJECT = "hashes objects on a GPU where the backend is called nccl; ringway moves them in the processor's memory"
_OWN_GPU = "looks whether the GPU of a rank has the rank's number; wants a GPU for each"
_WORDS = "wants a timeout to be told in the words of torch's nccl backend"
_RANGES = "looks for ranges that begin with nccl: in the profile; ringway's begin with ringway:"
SKIPPED_CUDA: dict[str, str] = {
    "test_all_gather_object_default_pg": _OBJECT,
    "test_all_gather_object_subgroup": _OBJECT,
    "test_batch_isend_irecv_self_nccl": "the first call on a GPU is made by one rank alone; ringway wants it of all ranks",
    "test_ddp_device": _OWN_GPU,
    "test_ddp_hook_parity_allreduce_process_group": "makes a group of ranks 1 and 2; wants three",
    "test_ddp_logging_data_gpu": _OWN_GPU,
    "test_ddp_profiling_execution_trace": _RANGES,
    "test_ddp_profiling_torch_profiler": _RANGES,
    "test_monitored_barrier_allreduce_hang": _WORDS,
    "test_monitored_barrier_allreduce_hang_wait_all_ranks": _WORDS,
    "test_nccl_high_priority_stream": "makes a process group of torch's NCCL itself",
}


def ringway_instead(name: str) -> None:
    """Process groups of this name are ringway's from now on."""
    import torch.distributed as dist
    import torch.distributed.distributed_c10d as c10d

    import ringway.torch  # noqa: F401 - registers the backend

    make = c10d._new_process_group_helper

    def made(group_size, group_rank, ranks, backend, *rest, **named):
        named.pop("backend_options", None)
        group, store = make(group_size, group_rank, ranks, dist.Backend("ringway"), *rest[:2], **named)
        if group in c10d._world.pg_map:
            c10d._world.pg_map[group] = (dist.Backend(name), c10d._world.pg_map[group][1])
        return group, store

    c10d._new_process_group_helper = made


def one_gpu_for_all(ranks: int):
    """Makes the first GPU stand for one of each rank; a context that ranks run in."""
    import contextlib

    import torch
    from torch.nn.parallel import distributed as ddp
    from torch.overrides import TorchFunctionMode
    from torch.testing._internal.distributed import distributed_test

    if torch.cuda.device_count() >= ranks:
        return contextlib.nullcontext
    torch.cuda.device_count = lambda: ranks
    distributed_test.init_multigpu_helper = lambda world_size, backend: {rank: [0] for rank in range(world_size)}
    for module in (torch.cuda, ddp):
        module._get_device_index = lambda *words, find=module._get_device_index, **named: min(find(*words, **named), 0)
    torch.cuda.set_device = lambda device, set_device=torch.cuda.set_device: set_device(0)

    first = torch.device("cuda", 0)

    def mapped(word):
        if isinstance(word, torch.device) or isinstance(word, str) and word.startswith("cuda:"):
            return first if torch.device(word).type == "cuda" else word
        return word

    class FirstGpu(TorchFunctionMode):
        def __torch_function__(self, function, types, words=(), named=None):
            words, named = [mapped(word) for word in words], {key: mapped(word) for key, word in (named or {}).items()}
            name = getattr(function, "__name__", "")
            if name in ("cuda", "to") and len(words) > 1 and type(words[1]) is int:
                words[1] = first
            if type(named.get("device")) is int:
                named["device"] = first
            return function(*words, **named)

    return FirstGpu


def suite_class(cuda: bool):
    name = "nccl" if cuda else "gloo"
    os.environ["BACKEND"] = name
    # Asking the runtime would use CUDA in this process, and ranks are forked from it.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    os.environ.setdefault("WORLD_SIZE", "3")
    os.environ.setdefault("TEMP_DIR", tempfile.mkdtemp(prefix="ringway-torch-"))
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

    import contextlib

    import torch
    import torch.utils._triton

    ringway_instead(name)
    # Looking for these would use CUDA, too.
    torch.utils._triton.has_triton = lambda: False
    sys.modules.setdefault("numba", None)
    from torch.testing._internal.distributed import distributed_test
    from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend

    if cuda and not torch.cuda.is_available():
        raise SystemExit("--cuda wants a GPU; torch sees none here")
    around = one_gpu_for_all(int(os.environ["WORLD_SIZE"])) if cuda else contextlib.nullcontext

    # Ranges of ringway's are named ringway:..., and hold no shapes: a Python process group cannot give any.
    distributed_test.PROFILING_SUPPORTED_BACKENDS = []
    distributed_test.SEND_RECV_PROFILING_SUPPORTED_BACKENDS = []

    class TestRingway(TestDistBackend, DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            # torch is imported already: a fork takes milliseconds, a new interpreter seconds.
            if torch.cuda.is_initialized():
                raise RuntimeError("CUDA is in use before the ranks are forked")
            self._start_processes(multiprocessing.get_context("fork").Process)

        @classmethod
        def _run(cls, *words, **named):
            with around():
                super()._run(*words, **named)

    for test, why in (SKIPPED_CUDA if cuda else SKIPPED).items():
        # Other versions of torch have other tests.
        if hasattr(TestRingway, test):
            setattr(TestRingway, test, unittest.skip(why)(getattr(TestRingway, test)))
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
    arguments.add_argument("--cuda", action="store_true", help="the tests that nccl passes on GPUs")
    arguments.add_argument("--list", action="store_true", help="list the tests")
    given = arguments.parse_args()
    os.environ["WORLD_SIZE"] = str(given.ranks)
    case = suite_class(given.cuda)
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

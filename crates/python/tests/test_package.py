"""The package as it is installed: what it brings, what it needs, what it leaves behind."""

from __future__ import annotations

import ast
import doctest
import gc
import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ringway
import ringway.testing
from ringway import _native

FOLDER = Path(ringway.__file__).parent


def python(*words: str, **more) -> subprocess.CompletedProcess:
    command = [sys.executable, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **more)


@pytest.mark.parametrize("name", ["ringway", "ringway.testing", "ringway._communicator", "ringway._errors"])
def test_examples_in_docstrings_run(name: str) -> None:
    module = importlib.import_module(name)
    failed, tried = doctest.testmod(module, extraglobs={"ringway": ringway})
    assert failed == 0 and tried > 0


def test_everything_public_has_a_docstring() -> None:
    for name in ringway.__all__:
        thing = getattr(ringway, name)
        if inspect.isclass(thing) or callable(thing):
            assert thing.__doc__, name
        if inspect.isclass(thing) and thing.__module__ == "ringway._communicator":
            for method, what in vars(thing).items():
                if not method.startswith("_") and (callable(what) or isinstance(what, property)):
                    assert what.__doc__, f"{name}.{method}"


def test_it_imports_nothing_heavy() -> None:
    code = "import sys, ringway; print([m for m in ('numpy', 'torch', 'asyncio', 'ctypes') if m in sys.modules])"
    assert python("-c", code).stdout.strip() == "[]"


def test_the_stub_says_what_the_native_module_has() -> None:
    stub = ast.parse((FOLDER / "_native.pyi").read_text())
    said: dict[str, set[str]] = {}
    top = {node.name for node in stub.body if isinstance(node, ast.FunctionDef)}
    for node in stub.body:
        if isinstance(node, ast.ClassDef):
            said[node.name] = {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
            for one in node.body:
                # Names and defaults of arguments, where the native function tells.
                native = getattr(getattr(_native, node.name), one.name)
                text = getattr(native, "__text_signature__", None)
                if not isinstance(one, ast.FunctionDef) or not text or one.name.startswith("__"):
                    continue
                found = [p.name for p in inspect.signature(native).parameters.values()]
                wanted = [arg.arg for arg in one.args.args]
                assert [n for n in found if n != "self"] == [n for n in wanted if n != "self"], one.name
    for name, methods in said.items():
        has = {m for m in vars(getattr(_native, name)) if not m.startswith("__")}
        assert {m for m in methods if not m.startswith("__")} == has, name
    has = {n for n, thing in vars(_native).items() if inspect.isbuiltin(thing)}
    assert top == has
    assert (FOLDER / "py.typed").exists()


def test_the_command_line() -> None:
    for words in (["--help"], ["run", "--help"]):
        done = python("-m", "ringway", *words)
        assert done.returncode == 0 and "Usage: ringway" in done.stdout, done
    assert python("-m", "ringway", "--version").stdout.split()[-1] == ringway.__version__
    wrong = python("-m", "ringway", "rum")
    assert wrong.returncode == 2 and "run" in wrong.stderr and "Traceback" not in wrong.stderr
    table = python("-m", "ringway", "perf", "all_reduce", "--ranks", "2", "-e", "1K", "-n", "2")
    assert table.returncode == 0 and "Out of bounds values : 0 OK" in table.stdout, table


def test_a_rank_that_fails_is_named_by_run() -> None:
    code = "import ringway, sys; c = ringway.init(); sys.exit(7 if c.rank == 1 else c.barrier())"
    done = python("-m", "ringway", "run", "-n", "2", "--", sys.executable, "-c", code)
    assert done.returncode != 0 and "rank 1" in done.stderr, done


def counted() -> tuple[int, int, int]:
    """Threads, descriptors, and kilobytes of memory of this process."""
    status = Path("/proc/self/status").read_text()
    rss = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")), int(rss.split()[1])


def test_a_thousand_communicators_leave_nothing() -> None:
    def some(number: int) -> None:
        for turn in range(number):
            comm = ringway.init(0, 1, ringway.unique_id())
            work = comm.all_reduce(bytearray(100), async_=True)
            assert work.wait(30)
            if turn % 2:
                comm.close()
            del comm, work

    some(100)
    gc.collect()
    before = counted()
    some(1000)
    gc.collect()
    after = counted()
    # The thread of the last one that was not closed may be on its way out.
    assert after[0] <= before[0] + 1, (before, after)
    assert after[1] <= before[1] + 2, (before, after)
    assert after[2] <= before[2] + 8192, (before, after)

"""`python -m ringway.nccl`: the program it runs has ringway's NCCL."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ringway import nccl


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ringway.nccl", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **variables})


needs_library = pytest.mark.skipif(
    "RINGWAY_TEST_WHEEL" not in os.environ and not (Path(nccl.__file__).parent / "lib").is_dir(),
    reason="this build has no libnccl.so.2",
)


@needs_library
def test_the_program_finds_our_library(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import ctypes, sys\n"
        "number = ctypes.c_int()\n"
        "ctypes.CDLL(None).ncclGetVersion(ctypes.byref(number))\n"
        "print(number.value, sys.argv[1:])\n"
    )
    ended = run(str(program), "--steps", "3")
    assert ended.returncode == 0, ended.stderr
    version, _, arguments = ended.stdout.partition(" ")
    assert int(version) >= 22000
    assert arguments.strip() == "['--steps', '3']"


@needs_library
def test_it_says_where_the_library_is():
    assert Path(run("--path").stdout.strip()).name == "libnccl.so.2"


def test_other_preloads_are_kept(tmp_path):
    library = tmp_path / "libnccl.so.2"
    library.touch()
    changed = nccl.environment(library, {"LD_PRELOAD": "/a.so /b.so", "HOME": "/root"})
    assert changed == {"LD_PRELOAD": f"{library}:/a.so:/b.so", "HOME": "/root"}
    assert nccl.environment(library, changed) == changed


def test_a_path_that_would_be_cut_is_refused(tmp_path):
    library = tmp_path / "with space" / "libnccl.so.2"
    library.parent.mkdir()
    library.touch()
    with pytest.raises(ValueError, match="space or a colon"):
        nccl.environment(library, {})


def test_wrong_arguments_are_said():
    ended = run("--library", "/nowhere/libnccl.so.2", "program.py")
    assert ended.returncode == 2
    assert "there is no library at /nowhere/libnccl.so.2" in ended.stderr
    ended = run("--library", sys.executable)
    assert ended.returncode == 2
    assert "which program?" in ended.stderr

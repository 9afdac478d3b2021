"""Runs a program whose NCCL is ringway: ``python -m ringway.nccl train.py --its arguments``.

PyTorch's own nccl backend, CuPy, JAX and whatever else calls libnccl.so.2 then call ringway's. It is the same as

    LD_PRELOAD=$(python -m ringway.nccl --path) python train.py

and works under launchers: ``torchrun --nproc-per-node 8 --module ringway.nccl train.py``.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path


def library() -> Path:
    """Where this package's libnccl.so.2 is; an error says how to get one."""
    path = Path(__file__).with_name("lib") / "libnccl.so.2"
    if path.is_file():
        return path
    raise FileNotFoundError(
        f"this installation of ringway has no libnccl.so.2 ({path}): it was built without. "
        "Install a released wheel, or build one from a clone with `cargo build --release -p ringway-nccl` "
        "and name it with --library target/release/libnccl.so"
    )


def environment(path: Path, variables) -> dict[str, str]:
    """The variables with the library before all others."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no library at {path}")
    if any(sign in str(path) for sign in ": "):
        raise ValueError(f"the path {path} has a space or a colon in it, which LD_PRELOAD takes for the end; move it")
    changed = dict(variables)
    others = [entry for entry in changed.get("LD_PRELOAD", "").replace(" ", ":").split(":") if entry]
    changed["LD_PRELOAD"] = ":".join([str(path), *(entry for entry in others if entry != str(path))])
    return changed


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m ringway.nccl", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--library", type=Path, metavar="FILE", help="this libnccl.so.2 instead of the package's")
    parser.add_argument("--path", action="store_true", help="print where the library is, and end")
    parser.add_argument("-m", dest="module", action="store_true", help="the program is a module")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="a script (or, after -m, a module) and its arguments")
    given = parser.parse_args(arguments)
    try:
        path = (given.library or library()).resolve()
        if given.path:
            print(path)
            return 0
        if not given.program:
            parser.error("which program? for example: python -m ringway.nccl train.py")
        changed = environment(path, os.environ)
    except (FileNotFoundError, ValueError) as error:
        print(f"python -m ringway.nccl: {error}", file=sys.stderr)
        return 2
    command = [sys.executable, *(["-m"] if given.module else []), *given.program]
    sys.stdout.flush()
    os.execve(sys.executable, command, changed)


if __name__ == "__main__":
    raise SystemExit(main())

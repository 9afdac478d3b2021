"""The command line of bench/run."""

import argparse
import os
import pathlib

from .peers import LIBRARIES
from .summary import COLLECTIVES

SIZES = "8,64,512,4K,16K,64K,256K,1M,4M,16M,64M"
# Types matter to reductions only; the rest moves bytes.
REDUCING = ("all_reduce", "reduce_scatter")

EXAMPLES = """
examples:
  bench/run                                     everything, 8 B to 64 MiB: hours; for figures to quote
  bench/run --quick                             all_reduce over shared memory and TCP in about five minutes
  bench/run --collectives all_reduce --types f32,bf16 --transport shm --ranks 2,4
  bench/run --libs ringway,ompi4,gloo --no-install --binaries DIR --ranks 8,16
                                                a machine without cargo and without a package registry
  bench/run --report DIR                        tables and plots again from DIR/results.json

exit code: 0 all points measured; 1 something hung, was wrong or is missing; 2 it could not begin
"""


def parse_size(text):
    """4K is 4096."""
    factors = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    text = text.strip().upper().removesuffix("IB").removesuffix("B")
    if text and text[-1] in factors:
        return int(text[:-1]) * factors[text[-1]]
    return int(text)


def listed(parse, allowed=None):
    """A type for argparse: words with commas between them."""

    def convert(text):
        try:
            values = [parse(word.strip()) for word in text.split(",") if word.strip()]
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        for value in values:
            if allowed and value not in allowed:
                raise argparse.ArgumentTypeError(f"{value!r} is none of {', '.join(map(str, allowed))}")
        if not values:
            raise argparse.ArgumentTypeError("an empty list")
        return list(dict.fromkeys(values))

    return convert


def default_ranks(cores):
    """Half the cores and all of them; on a small machine as many ranks as cores, and a crowd."""
    return [cores // 2, cores] if cores >= 4 else [2, 4]


def parse(arguments, cores):
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    parser = argparse.ArgumentParser(
        prog="bench/run",
        description="Measures Ringway and other collective libraries side by side on this machine, with what the "
        "machine itself can do, and writes results.json, README.md and SVG plots.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_argument_group("what to measure (lists: commas between)")
    what.add_argument("--libs", type=listed(str, LIBRARIES), default=LIBRARIES, metavar="LIST",
                      help=f"of {','.join(LIBRARIES)} (default: all)")  # fmt: skip
    what.add_argument("--collectives", type=listed(str, COLLECTIVES), default=None, metavar="LIST",
                      help=f"of {','.join(COLLECTIVES)} (default: all)")  # fmt: skip
    what.add_argument("--types", type=listed(str, ["f32", "bf16"]), default=None, metavar="LIST",
                      help="f32,bf16 (default: both); bf16 for all_reduce and reduce_scatter only")  # fmt: skip
    what.add_argument("--sizes", type=listed(parse_size), default=None, metavar="LIST",
                      help=f"bytes, K, M and G are binary (default: {SIZES})")  # fmt: skip
    what.add_argument("--ranks", type=listed(int), default=None, metavar="LIST",
                      help=f"(default here: {','.join(map(str, default_ranks(cores)))})")  # fmt: skip
    what.add_argument("--transport", choices=["shm", "tcp", "both"], default="both", help="(default: both)")
    what.add_argument("--buffers", choices=["hot", "cold", "both"], default=None,
                      help="one buffer again and again, or many in turn (default: both)")  # fmt: skip
    how = parser.add_argument_group("how")
    how.add_argument("--rounds", type=int, default=5, help="(default: 5)")
    how.add_argument("--seconds", type=float, default=None, help="for one point (default: 0.3)")
    how.add_argument("--time-limit", type=float, default=None, metavar="SECONDS",
                     help="for one start of a library (default: by what it has to measure)")  # fmt: skip
    how.add_argument("--quick", action="store_true",
                     help="all_reduce f32, hot, five sizes, 0.1 s a point, unless said otherwise")  # fmt: skip
    where = parser.add_argument_group("where")
    where.add_argument("--out", type=pathlib.Path, default=pathlib.Path("bench-results"), metavar="DIR",
                       help="(default: bench-results)")  # fmt: skip
    where.add_argument("--peers", type=pathlib.Path, default=cache / "ringway/peers", metavar="DIR",
                       help="where the other libraries are installed (default: %(default)s)")  # fmt: skip
    where.add_argument("--binaries", type=pathlib.Path, default=os.environ.get("BENCH_BINARIES") or None,
                       metavar="DIR", help="a folder with ringway and ringway-bench, already built (or the variable"
                       " BENCH_BINARIES; default: build them with cargo)")  # fmt: skip
    where.add_argument("--torch-python", metavar="PROGRAM", help="a python that can import torch")
    install = parser.add_argument_group("installing")
    install.add_argument("--no-install", action="store_true", help="use what is there")
    install.add_argument("--install-only", action="store_true", help="install and build, measure nothing")
    install.add_argument("--allow-missing", action="store_true", help="go on without libraries that are missing")
    parser.add_argument("--report", type=pathlib.Path, metavar="DIR", help="only write tables and plots again")
    options = parser.parse_args(arguments)
    fill(options, cores)
    if options.rounds < 1 or options.seconds <= 0 or min(options.ranks) < 2 or min(options.sizes) < 1:
        parser.error("rounds, seconds and sizes are positive; ranks are at least 2")
    return options


def fill(options, cores):
    """What was not said."""
    quick = options.quick
    options.collectives = options.collectives or (["all_reduce"] if quick else COLLECTIVES)
    options.types = options.types or (["f32"] if quick else ["f32", "bf16"])
    options.sizes = options.sizes or listed(parse_size)("8,4K,64K,1M,16M" if quick else SIZES)
    options.ranks = options.ranks or default_ranks(cores)
    options.seconds = options.seconds or (0.1 if quick else 0.3)
    buffers = options.buffers or ("hot" if quick else "both")
    options.buffers = ["hot", "cold"] if buffers == "both" else [buffers]
    options.transports = ["shm", "tcp"] if options.transport == "both" else [options.transport]


def subjects(options):
    """(collective, type) pairs."""
    return [
        (coll, dtype)
        for dtype in options.types
        for coll in options.collectives
        if dtype == "f32" or coll in REDUCING
    ] or [(coll, "f32") for coll in options.collectives]

"""What is slow in a job, in one call: :func:`ringway.diagnose`, and calls timed as they go: :func:`ringway.timed`.

All ranks call `diagnose`. It measures, in a few seconds: how long a tiny message takes between every two
ranks; how fast all_reduce is by size; and which rank comes late when all have the same to do. What it finds
is said with its numbers, on rank 0 and on all others alike.
"""

from __future__ import annotations

import contextlib
import ctypes
import html
import logging
import math
import statistics
import time
from array import array
from dataclasses import dataclass, field

from ringway._numbers import ALL_GATHER, ALL_REDUCE, BARRIER, BYTE, F32, F64, OPS

_SUM = OPS["sum"]

_log = logging.getLogger("ringway")

SIZES = (8, 1 << 10, 32 << 10, 1 << 20, 16 << 20)

# A pair is slow when its messages take so many times as long as those of other pairs like it; a rank is, when its
# work does. Below, machines differ by themselves.
SLOW_PAIR, SLOW_RANK = 3.0, 1.25
# Differences below this are noise whatever their ratio.
LEAST_PAIR_US, LEAST_RANK_US = 20.0, 200.0
# The slowest of a hundred against the usual one.
HIGH_VARIANCE = 5.0


@dataclass
class Bandwidth:
    """All-reduce of one size."""

    size: int
    time_us: float
    p99_us: float
    algorithm_gbs: float
    bus_gbs: float


@dataclass
class Rank:
    """One rank's work, the same on all, and how long it then waited for the others."""

    rank: int
    host: str
    pid: int
    work_us: float
    wait_us: float


@dataclass
class Diagnosis:
    """What was measured. `print` shows it; notebooks draw it."""

    ranks: list[Rank]
    latency_us: list[list[float | None]]
    bandwidth: list[Bandwidth]
    verdicts: list[str] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        """Whether nothing stands out."""
        return not self.verdicts

    def __str__(self) -> str:
        lines = list(self.verdicts) or ["nothing stands out"]
        lines += ["", "latency in µs (row: from, column: to, half of there and back)"]
        names = [str(rank.rank) for rank in self.ranks]
        lines.append("      " + "".join(f"{name:>8}" for name in names))
        for name, row in zip(names, self.latency_us):
            lines.append(f"{name:>6}" + "".join(f"{'-' if value is None else f'{value:.1f}':>8}" for value in row))
        lines += ["", f"{'all_reduce':>12} {'time µs':>10} {'p99 µs':>10} {'GB/s':>8} {'bus GB/s':>9}"]
        for one in self.bandwidth:
            lines.append(
                f"{_size(one.size):>12} {one.time_us:10.1f} {one.p99_us:10.1f} {one.algorithm_gbs:8.2f} {one.bus_gbs:9.2f}"
            )
        lines += ["", f"{'rank':>6} {'host':<20} {'pid':>8} {'work µs':>10} {'waits µs':>10}"]
        for rank in self.ranks:
            lines.append(f"{rank.rank:>6} {rank.host:<20.20} {rank.pid:>8} {rank.work_us:10.0f} {rank.wait_us:10.0f}")
        return "\n".join(lines)

    def svg(self) -> str:
        """A picture: latencies as a heat map, bandwidth by size beside it."""
        return _picture(self)

    def _repr_html_(self) -> str:
        verdicts = "".join(f"<li>{html.escape(verdict)}</li>" for verdict in self.verdicts or ["nothing stands out"])
        return f"<ul>{verdicts}</ul>{self.svg()}"


def diagnose(comm=None, *, sizes=SIZES, repeats: int = 25, limit: float = 60.0) -> Diagnosis:
    """Measures the job and says what is slow. All ranks call it.

    `comm` is a :class:`ringway.Communicator`; without one the job is joined as `ringway.init()` does. Each
    wait ends after `limit` seconds at most, with an error that names who is late.
    """
    import ringway

    if comm is None:
        with ringway.init() as own:
            return diagnose(own, sizes=sizes, repeats=repeats, limit=limit)
    if repeats < 3:
        raise ValueError(f"repeats is {repeats}; medians need at least 3")
    for size in sizes:
        if size < 4 or size % 4:
            raise ValueError(f"a size of {size} bytes is not a whole number of floats")
    native = getattr(comm, "native", comm)
    probe = _Probe(native, limit)
    latency = probe.latencies(repeats)
    bandwidth = [probe.all_reduce(size, repeats) for size in sizes]
    work, wait = probe.stragglers(repeats)
    identities = native.identities()
    ranks = [
        Rank(rank, identities[rank]["host"], identities[rank]["pid"], work[rank], wait[rank]) for rank in range(native.size)
    ]
    found = Diagnosis(ranks, latency, bandwidth)
    found.verdicts = _verdicts(found, native.hosts)
    return found


class _Probe:
    """Measurements of one rank; every one ends with all ranks knowing all of it."""

    def __init__(self, native, limit):
        self._native = native
        self._limit = limit

    def _barrier(self):
        self._native.call(BARRIER, BYTE, _SUM, 0, 0, 0, timeout=self._limit)

    def _everybody(self, values: array) -> list[list[float]]:
        """What each rank measured."""
        size, count = self._native.size, len(values)
        gathered = array("d", bytes(8 * size * count))
        self._native.call(ALL_GATHER, F64, _SUM, count, values.buffer_info()[0], gathered.buffer_info()[0], timeout=self._limit)
        return [list(gathered[at * count : (at + 1) * count]) for at in range(size)]

    def latencies(self, repeats):
        """Every two ranks by themselves: as many rounds as there are ranks, less one, of pairs."""
        rank, size = self._native.rank, self._native.size
        mine = array("d", [math.nan] * size)
        message = ctypes.create_string_buffer(8)
        address = ctypes.addressof(message)
        for pairs in rounds(size):
            peer = next((b if a == rank else a for a, b in pairs if rank in (a, b)), None)
            self._barrier()
            if peer is None:
                continue
            times = []
            for turn in range(repeats + 3):
                began = time.perf_counter()
                if rank < peer:
                    self._native.send(address, 8, peer, self._limit)
                    self._native.recv(address, 8, peer, self._limit)
                else:
                    self._native.recv(address, 8, peer, self._limit)
                    self._native.send(address, 8, peer, self._limit)
                if turn >= 3:
                    times.append((time.perf_counter() - began) / 2 * 1e6)
            mine[peer] = statistics.median(times)
        table = self._everybody(mine)
        return [[None if math.isnan(value) else value for value in row] for row in table]

    def all_reduce(self, size, repeats):
        values = (ctypes.c_float * (size // 4))()
        address, times = ctypes.addressof(values), array("d")
        for turn in range(repeats + 3):
            began = time.perf_counter()
            self._native.call(ALL_REDUCE, F32, _SUM, size // 4, 0, address, timeout=self._limit)
            if turn >= 3:
                times.append((time.perf_counter() - began) * 1e6)
        ranks = self._native.size
        slowest = [max(of_all) for of_all in zip(*self._everybody(times))]
        median = statistics.median(slowest)
        rate = size / median / 1e3
        return Bandwidth(size, median, quantile(slowest, 0.99), rate, rate * 2 * (ranks - 1) / ranks)

    def stragglers(self, repeats):
        """The same work on all ranks, then a barrier: the slow one works long, and the others wait for it."""
        block = bytearray(1 << 20)
        works, waits = array("d"), array("d")
        for turn in range(repeats + 1):
            self._barrier()
            began = time.perf_counter()
            for _ in range(8):
                bytes(block)
            worked = time.perf_counter()
            self._barrier()
            if turn:
                works.append((worked - began) * 1e6)
                waits.append((time.perf_counter() - worked) * 1e6)
        mine = array("d", [statistics.median(works), statistics.median(waits)])
        table = self._everybody(mine)
        return [row[0] for row in table], [row[1] for row in table]


def rounds(ranks: int):
    """Pairs of ranks such that every two meet once and nobody meets two at a time."""
    seats = list(range(ranks)) + ([None] if ranks % 2 else [])
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        pairs = zip(seats[:half], reversed(seats[half:]))
        yield [(a, b) for a, b in pairs if a is not None and b is not None]
        seats.insert(1, seats.pop())


def quantile(values, part: float) -> float:
    """The value below which `part` of them are; the nearest one, not one in between."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(part * len(ordered)) - 1)] if ordered else math.nan


def _verdicts(found: Diagnosis, hosts) -> list[str]:
    said = []
    size = len(found.ranks)
    both = {}
    for a in range(size):
        for b in range(a + 1, size):
            values = [value for value in (found.latency_us[a][b], found.latency_us[b][a]) if value is not None]
            if values:
                both.setdefault(hosts[a] == hosts[b], []).append((max(values), a, b))
    for local, pairs in both.items():
        usual = statistics.median(value for value, _, _ in pairs)
        where = "on one host" if local else "between hosts"
        slow = [(value, a, b) for value, a, b in pairs if value > SLOW_PAIR * usual and value - usual > LEAST_PAIR_US]
        for value, a, b in sorted(slow, reverse=True)[:8]:
            said.append(
                f"messages between rank {a} ({found.ranks[a].host}) and rank {b} ({found.ranks[b].host}) take {value:.0f} µs; "
                f"between other pairs {where} {usual:.0f} µs: look at the path between them"
            )
    usual = statistics.median(rank.work_us for rank in found.ranks)
    for rank in found.ranks:
        if rank.work_us > SLOW_RANK * usual and rank.work_us - usual > LEAST_RANK_US:
            said.append(
                f"rank {rank.rank} (host {rank.host}, pid {rank.pid}) takes {rank.work_us:.0f} µs for what others do in {usual:.0f} µs: "
                "everybody waits for it; look at its clock speed, its affinity and who shares its cores"
            )
    for one in found.bandwidth:
        if one.p99_us > HIGH_VARIANCE * one.time_us and one.p99_us - one.time_us > 1000:
            said.append(
                f"all_reduce of {_size(one.size)} usually takes {one.time_us:.0f} µs, and {one.p99_us:.0f} µs at worst: "
                "something disturbs it now and then"
            )
    return said


def _size(size: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


class Timer:
    """Times of calls by name; see :func:`timed`."""

    def __init__(self, variance: float = HIGH_VARIANCE, least: int = 50):
        self._times: dict[str, list[float]] = {}
        self._warned: set[str] = set()
        self._variance = variance
        self._least = least

    @contextlib.contextmanager
    def __call__(self, name: str):
        began = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - began)

    def add(self, name: str, seconds: float) -> None:
        """Notes one time."""
        times = self._times.setdefault(name, [])
        times.append(seconds)
        # The last thousand: what was slow long ago is not news.
        del times[:-1000]
        if name in self._warned or len(times) < self._least or len(times) % 10:
            return
        median, worst = statistics.median(times), quantile(times, 0.99)
        if worst > self._variance * median:
            self._warned.add(name)
            _log.warning(
                "%s: p99 %.3g ms is %.1f times the median of %.3g ms; `ringway.diagnose()` says whom it waits for",
                name, worst * 1e3, worst / median, median * 1e3,
            )

    def table(self) -> dict[str, dict[str, float]]:
        """For each name: how many, p50, p99 and the worst, in milliseconds."""
        return {
            name: {
                "calls": len(times),
                "p50_ms": statistics.median(times) * 1e3,
                "p99_ms": quantile(times, 0.99) * 1e3,
                "max_ms": max(times) * 1e3,
            }
            for name, times in self._times.items()
        }

    def __str__(self) -> str:
        lines = [f"{'':<24} {'calls':>7} {'p50 ms':>10} {'p99 ms':>10} {'max ms':>10}"]
        for name, row in self.table().items():
            lines.append(f"{name:<24.24} {row['calls']:>7} {row['p50_ms']:10.3f} {row['p99_ms']:10.3f} {row['max_ms']:10.3f}")
        return "\n".join(lines)


# The timer that `ringway.timed` is.
timed = Timer()


def _picture(found: Diagnosis) -> str:
    ranks, cell = len(found.ranks), max(6, min(40, 360 // max(len(found.ranks), 1)))
    side = ranks * cell
    known = [value for row in found.latency_us for value in row if value is not None]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    parts = []
    for a, row in enumerate(found.latency_us):
        for b, value in enumerate(row):
            if value is None:
                continue
            warm = (value - low) / (high - low) if high > low else 0.0
            colour = f"rgb({round(235 - 175 * (1 - warm))},{round(120 + 90 * (1 - warm))},{round(90 + 110 * (1 - warm))})"
            label = f"rank {a} to rank {b}: {value:.1f} µs"
            parts.append(
                f'<rect x="{46 + b * cell}" y="{40 + a * cell}" width="{cell - 1}" height="{cell - 1}" fill="{colour}"><title>{label}</title></rect>'
            )
            if cell >= 30:
                parts.append(
                    f'<text x="{46 + b * cell + cell / 2 - 0.5:.1f}" y="{40 + a * cell + cell / 2 + 3.5:.1f}" text-anchor="middle" fill="#111">{value:.0f}</text>'
                )
    step = max(1, math.ceil(ranks / 16))
    for rank in range(0, ranks, step):
        parts.append(f'<text x="{46 + rank * cell + cell / 2:.1f}" y="35" text-anchor="middle">{rank}</text>')
        parts.append(f'<text x="40" y="{40 + rank * cell + cell / 2 + 4:.1f}" text-anchor="end">{rank}</text>')
    left, width, height = side + 130, 320, max(side, 200)
    most = max((one.bus_gbs for one in found.bandwidth), default=1.0) or 1.0
    points = []
    for at, one in enumerate(found.bandwidth):
        x = left + (at + 0.5) * width / len(found.bandwidth)
        y = 40 + height - one.bus_gbs / most * (height - 20)
        points.append(f"{x:.1f},{y:.1f}")
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#2a6fb0"><title>{_size(one.size)}: {one.bus_gbs:.2f} GB/s, {one.time_us:.1f} µs</title></circle>')
        parts.append(f'<text x="{x:.1f}" y="{40 + height + 16}" text-anchor="middle">{_size(one.size)}</text>')
        parts.append(f'<text x="{x:.1f}" y="{y - 8:.1f}" text-anchor="middle">{one.bus_gbs:.2g}</text>')
    if points:
        parts.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="#2a6fb0" stroke-width="1.5"/>')
    parts.append(f'<line x1="{left}" y1="{40 + height}" x2="{left + width}" y2="{40 + height}" stroke="#888"/>')
    parts.append('<text x="46" y="16" font-weight="bold">latency, µs</text>')
    parts.append(f'<text x="{left}" y="16" font-weight="bold">all_reduce, bus GB/s</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 20} {height + 70}" '
        f'width="{left + width + 20}" height="{height + 70}" font-family="sans-serif" font-size="11" fill="currentColor">'
        f"{''.join(parts)}</svg>"
    )

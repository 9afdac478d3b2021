"""From points to figures: medians over rounds, spreads, ratios, geometric means.

A *case* is a collective, type, rank count, transport and kind of buffers: one table, one plot.
"""

import collections
import dataclasses
import math
import statistics

OURS = "ringway"
# Ranges of sizes for which geometric means are given.
RANGES = [
    ("all sizes", 0, math.inf),
    ("up to 4 KiB", 0, 4 << 10),
    ("64 KiB to 4 MiB", 64 << 10, 4 << 20),
    ("from 16 MiB", 16 << 20, math.inf),
]


@dataclasses.dataclass(frozen=True, order=True)
class Case:
    coll: str
    dtype: str
    ranks: int
    transport: str
    buffers: str

    @property
    def name(self):
        """For files."""
        dtype = "" if self.dtype == "f32" else f"-{self.dtype}"
        return f"{self.coll}{dtype}-{self.transport}-{self.ranks}-{self.buffers}"

    @property
    def title(self):
        dtype = "" if self.coll == "barrier" else f" {self.dtype}"
        buffers = "" if self.coll == "barrier" else f", {self.buffers} buffers"
        transport = {"shm": "shared memory", "tcp": "TCP loopback"}[self.transport]
        return f"{self.coll}{dtype}, {self.ranks} ranks, {transport}{buffers}"


@dataclasses.dataclass
class Figure:
    """One library at one size: the median over rounds of each round's median."""

    time_us: float
    least_us: float
    most_us: float
    fastest_sample_us: float
    rounds: int

    @property
    def spread(self):
        """Half the range over rounds, as a share of the median: the ± of the tables."""
        return (self.most_us - self.least_us) / 2 / self.time_us


def figure(points):
    times = [point["time_us"] for point in points]
    return Figure(
        time_us=statistics.median(times),
        least_us=min(times),
        most_us=max(times),
        fastest_sample_us=min(point["min_us"] for point in points),
        rounds=len(times),
    )


def tabulate(points):
    """case -> size -> library -> Figure; what was not measured is not there."""
    gathered = collections.defaultdict(list)
    for point in points:
        case = Case(point["coll"], point["dtype"], point["ranks"], point["transport"], point["buffers"])
        gathered[case, point["size"], point["lib"]].append(point)
    tables = {}
    for (case, size, lib), group in gathered.items():
        tables.setdefault(case, {}).setdefault(size, {})[lib] = figure(group)
    return {case: dict(sorted(tables[case].items())) for case in sorted(tables, key=order)}


COLLECTIVES = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "barrier"]


def order(case):
    """The order of tables: as a reader asks."""
    return (case.transport, case.ranks, COLLECTIVES.index(case.coll), case.dtype != "f32", case.buffers == "cold")


def fastest_peer(row, ours=OURS):
    """(library, time) of the fastest other library of a row; None without one."""
    others = [(figure.time_us, lib) for lib, figure in row.items() if lib != ours]
    if not others:
        return None
    time, lib = min(others)
    return lib, time


def ratio(row, against=None, ours=OURS):
    """Our time over another library's, or over the fastest of them; None where either is missing."""
    if ours not in row:
        return None
    if against is None:
        fastest = fastest_peer(row, ours)
        return row[ours].time_us / fastest[1] if fastest else None
    return row[ours].time_us / row[against].time_us if against in row else None


def geometric_mean(values):
    """None for none."""
    values = [value for value in values if value is not None]
    if not values:
        return None
    return math.exp(sum(math.log(value) for value in values) / len(values))


def means(table, libraries):
    """range name -> library or None (the fastest peer of each size) -> (geometric mean, sizes)."""
    found = {}
    for name, least, most in RANGES:
        rows = [row for size, row in table.items() if least <= size <= most]
        columns = {}
        for library in [None, *libraries]:
            values = [value for value in (ratio(row, library) for row in rows) if value is not None]
            columns[library] = (geometric_mean(values), len(values))
        if any(count for _, count in columns.values()):
            found[name] = columns
    return found


def missing(points, wanted):
    """Of the wanted (library, case, size, round), those no point is there for, in order."""
    have = {
        (p["lib"], p["transport"], p["coll"], p["dtype"], p["ranks"], p["buffers"], p["size"], p["round"])
        for p in points
    }
    return [key for key in wanted if key not in have]

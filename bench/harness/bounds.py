"""From what the machine can do to the least time a collective can take. README.md has the formulas.

`limits` are the lines of limits/limits.c, of all rounds.
"""

import collections
import math


class Bounds:
    """Answers for one run; None where something was not measured."""

    def __init__(self, limits, cores):
        self.cores = cores
        self.hops = {}
        self.rates = collections.defaultdict(dict)  # (name, threads) -> size or None -> GB/s
        found = collections.defaultdict(list)
        for line in limits:
            if "one_way_us" in line:
                found[line["limit"]].append(line["one_way_us"])
            else:
                found[line["limit"], line["ranks"], line.get("size")].append(line["GBs"])
        # The best round: what the machine can do. Noise only makes it less.
        for key, values in found.items():
            if isinstance(key, str):
                self.hops[key] = min(values)
            else:
                name, threads, size = key
                self.rates[name, threads][size] = max(values)

    def rate(self, name, ranks, size=None):
        """Bytes per microsecond that one core takes in while `ranks` cores do so at once."""
        by_size = self.rates.get((name, min(ranks, self.cores)))
        if not by_size:
            return None
        gigabytes = by_size.get(None) if None in by_size else interpolate(by_size, size)
        return None if not gigabytes else gigabytes * 1e3

    def time_us(self, coll, transport, buffers, ranks, size):
        """The least time of a call, or None."""
        hop = self.hops.get("flag_hop" if transport == "shm" else "tcp_hop")
        if hop is None:
            return None
        if coll == "barrier":
            return hop
        taken = [
            (taken_in(coll, half, ranks) * size, self.rate("tcp" if transport == "tcp" else half, ranks, size))
            for half in ("reduce", "gather")
        ]
        if any(moved and not rate for moved, rate in taken):
            return None
        # More ranks than cores: a core does the work of several, one after another.
        crowd = max(1.0, ranks / self.cores)
        moving = crowd * sum(moved / rate for moved, rate in taken if moved)
        # Rates of TCP were measured from call to arrival, so they hold a hop already.
        least = hop + moving if transport == "shm" else max(hop, moving)
        if buffers == "cold":
            copied = self.rate("memcpy", ranks)
            if copied is None:
                return None
            least = max(least, crowd * touched(coll, ranks) * size / copied)
        return least


def taken_in(coll, half, ranks):
    """The share of the buffer that each rank must take in from others, added (`reduce`) or as it is."""
    others = (ranks - 1) / ranks
    shares = {
        "all_reduce": {"reduce": others, "gather": others},
        "reduce_scatter": {"reduce": others},
        "all_gather": {"gather": others},
        "all_to_all": {"gather": others},
        "broadcast": {"gather": 1.0},
    }
    return shares[coll].get(half, 0.0)


def touched(coll, ranks):
    """What a rank's own buffers make memory move, as copies of the whole buffer (one read, one write)."""
    read, written = {
        "all_reduce": (1, 1),
        "reduce_scatter": (1, 1 / ranks),
        "all_gather": (1 / ranks, 1),
        "all_to_all": (1, 1),
        "broadcast": (0, 1),
    }[coll]
    return (read + written) / 2


def interpolate(by_size, size):
    """A rate at a size between two measured ones: straight in log size; the ends go on level."""
    sizes = sorted(by_size)
    if size <= sizes[0]:
        return by_size[sizes[0]]
    if size >= sizes[-1]:
        return by_size[sizes[-1]]
    above = next(s for s in sizes if s >= size)
    below = max(s for s in sizes if s <= size)
    if above == below:
        return by_size[above]
    share = math.log(size / below) / math.log(above / below)
    return by_size[below] ** (1 - share) * by_size[above] ** share

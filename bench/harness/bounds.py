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

    def time_us(self, coll, transport, buffers, ranks, size, writing=False):
        """The least time of a call, or None. With `writing`: through memory that the ranks share."""
        hop = self.hops.get("flag_hop" if transport == "shm" else "tcp_hop")
        if hop is None:
            return None
        if coll == "barrier":
            return hop
        moving = self.moving_us(coll, transport, ranks, size, writing)
        if moving is None:
            return None
        # Rates of TCP were measured from call to arrival, so they hold a hop already.
        least = hop + moving if transport == "shm" else max(hop, moving)
        if buffers == "cold":
            copied = self.rate("memcpy", ranks)
            if copied is None:
                return None
            least = max(least, max(1.0, ranks / self.cores) * touched(coll, ranks) * size / copied)
        return least

    def moving_us(self, coll, transport, ranks, size, writing):
        """The time in which every core takes in what it must; None where no rate was measured.

        With more ranks than cores, ranks of one core hand over through its own cache. What still must
        come from other cores is what a core would need as one rank; only an all-to-all has something
        for each rank. TCP copies whatever core the other is on.
        """
        per_core, times = ranks, max(1.0, ranks / self.cores)
        if transport == "shm" and ranks > self.cores:
            per_core, times = self.cores, times if coll == "all_to_all" else 1.0
        total = 0.0
        for part in ("reduce", "gather", "write") if writing else ("reduce", "gather"):
            moved = share(coll, part, per_core) * size
            rate = self.rate("tcp" if transport == "tcp" else part, ranks, size)
            if moved and not rate:
                return None
            total += moved / rate if moved else 0.0
        return times * total


def share(coll, part, ranks):
    """The share of the buffer that each rank must take in from others, added (`reduce`) or as it is
    (`gather`), and that it must write for others to read where ranks do not see each other's buffers.
    """
    one, others = 1 / ranks, (ranks - 1) / ranks
    shares = {
        "all_reduce": {"reduce": others, "gather": others, "write": others + one},
        "reduce_scatter": {"reduce": others, "write": others},
        "all_gather": {"gather": others, "write": one},
        "all_to_all": {"gather": others, "write": others},
        "broadcast": {"gather": 1.0},  # one writes while the others read
    }
    return shares[coll].get(part, 0.0)


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
    """A rate at a size between two measured ones: straight on log-log paper, level beyond the ends."""
    sizes = sorted(by_size)
    if size <= sizes[0]:
        return by_size[sizes[0]]
    if size >= sizes[-1]:
        return by_size[sizes[-1]]
    above = next(s for s in sizes if s >= size)
    below = max(s for s in sizes if s <= size)
    if above == below:
        return by_size[above]
    way = math.log(size / below) / math.log(above / below)
    return by_size[below] ** (1 - way) * by_size[above] ** way

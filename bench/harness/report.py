"""results.json to Markdown and SVG."""

import statistics

from . import bounds, plot, summary
from .peers import LIBRARIES, TITLES


def report(results, folder):
    """Writes README.md and the plots into a folder; gives the text."""
    tables = summary.tabulate(results["points"])
    least = bounds.Bounds(results["limits"], results["machine"]["cores"])
    text = [
        "# Collectives side by side",
        "",
        *head(results),
        *overview(tables, least),
        *limits_section(results, least),
        *(line for case, table in tables.items() for line in section(case, table, least)),
        *notes(results),
    ]
    for name, svg in plots(tables, least, results).items():
        (folder / name).write_text(svg)
    text = "\n".join(text) + "\n"
    (folder / "README.md").write_text(text)
    return text


def head(results):
    machine, options = results["machine"], results["options"]
    caches = ", ".join(f"{level} {size}" for level, size in machine["caches"].items())
    lines = [
        f"{machine['cpu']}{' (virtual machine)' if machine['virtual'] else ''}, {machine['cores']} cores"
        f" ({machine['cpus']} CPUs), {caches}, {machine['memory_mib'] / 1024:.0f} GiB; Linux {machine['kernel']};"
        f" {machine['compiler']}; {machine['date']}; commit {machine['commit'] or 'unknown'}.",
        "",
        f"{options['rounds']} rounds, in each of them every library in turn; {options['seconds']} s a point.",
        "",
        "| library | version |",
        "|---|---|",
        *(f"| {TITLES[lib]} | {results['versions'].get(lib, 'never answered')} |" for lib in libraries(results)),
        "",
    ]
    if results["missing_libraries"]:
        lines += ["**Missing libraries:**", ""]
        lines += [f"* {TITLES[lib]}: {why.splitlines()[0]}" for lib, why in results["missing_libraries"].items()]
        lines.append("")
    return lines


def libraries(results):
    return [lib for lib in LIBRARIES if lib in results["options"]["libs"] and lib not in results["missing_libraries"]]


def number(value, digits=3):
    """Three digits that count, without exponents."""
    if value is None:
        return "–"
    if value >= 1000:
        return f"{value:.0f}"
    return f"{value:.{digits}g}" if value >= 1 else f"{value:.2f}"


def factor(value):
    return "–" if value is None else f"{value:.2f}"


def overview(tables, least):
    """One line a case: where we stand."""
    names = [name for name, _, _ in summary.RANGES]
    lines = [
        "## Overview",
        "",
        "Geometric means of Ringway's time over that of the fastest other library at each size: below 1,"
        " Ringway is faster. The last two: its time over the machine's limit from 64 KiB to 4 MiB, for reading what"
        " other cores wrote, and for writing it too, as processes that do not see each other's buffers must.",
        "",
        "| case | " + " | ".join(names) + " | to limit | to limit with writing |",
        "|---|" + "---:|" * (len(names) + 2),
    ]
    for case, table in tables.items():
        means = summary.means(table, [])
        cells = [factor(means[name][None][0]) if name in means else "–" for name in names]
        if case.coll == "barrier":
            cells[1:] = ["–"] * (len(cells) - 1)
        for writing in (False, True):
            cells.append(factor(near_limit(case, table, least, writing)))
        lines.append(f"| {case.title} | " + " | ".join(cells) + " |")
    return lines + [""]


def near_limit(case, table, least, writing):
    """The geometric mean of our time over the limit, from 64 KiB to 4 MiB."""
    sizes = [size for size, row in table.items() if 64 << 10 <= size <= 4 << 20 and summary.OURS in row]
    bounds_us = {size: bound_of(least, case, size, writing) for size in sizes}
    return summary.geometric_mean(table[size][summary.OURS].time_us / us for size, us in bounds_us.items() if us)


def bound_of(least, case, size, writing=False):
    """None also where writing makes no difference."""
    if writing and (case.transport != "shm" or case.coll in ("broadcast", "barrier")):
        return None
    return least.time_us(case.coll, case.transport, case.buffers, case.ranks, size, writing)


def limits_section(results, least):
    """What the machine can do by itself."""
    if not least.hops:
        return []
    lines = [
        "## What the machine can do",
        "",
        f"A flag from core to core takes {number(least.hops.get('flag_hop'))} µs one way, 8 bytes over TCP loopback"
        f" {number(least.hops.get('tcp_hop'))} µs. Rates are GB/s (10⁹) into each core while all of them do the same:"
        " *reduce*, *gather* and *write* are the parts of a bare all-reduce of that size between threads: adding and"
        " copying lines that another core has just written, and writing lines that another core has read; *tcp* is a"
        " ring over loopback. The best round counts.",
        "",
    ]
    for threads in sorted({threads for _, threads in least.rates}):
        sizes = sorted(least.rates.get(("reduce", threads), {}))
        memcpy = least.rates.get(("memcpy", threads), {}).get(None)
        lines += [
            f"{threads} cores at once; copying memory that is in no cache: {number(memcpy)} GB/s each.",
            "",
            "| | " + " | ".join(plot.human_bytes(size) for size in sizes) + " |",
            "|---|" + "---:|" * len(sizes),
        ]
        for name in ("reduce", "gather", "write", "tcp"):
            rates = least.rates.get((name, threads), {})
            lines.append(f"| {name} | " + " | ".join(number(rates.get(size)) for size in sizes) + " |")
        lines.append("")
    return lines


def section(case, table, least):
    """A table of one case: times, ratios, means."""
    columns = [lib for lib in LIBRARIES if any(lib in row for row in table.values())]
    has_ours = summary.OURS in columns
    lines = [f"## {case.title}", ""]
    if case.coll != "barrier":
        lines += [f"![{case.title}]({case.name}.svg)", ""]
    header = ["size", *(TITLES[lib] for lib in columns)]
    header += ["Ringway / fastest other"] if has_ours else []
    with_writing = any(bound_of(least, case, size, True) for size in table)
    for words in ("limit", "limit with writing") if with_writing else ("limit",):
        header += [words, "Ringway / that"] if has_ours else [words]
    lines += ["| " + " | ".join(header) + " |", "|---:|" + "---:|" * (len(header) - 1)]
    for size, row in table.items():
        fastest = min(row, key=lambda lib: row[lib].time_us)
        cells = ["–" if case.coll == "barrier" else plot.human_bytes(size)]
        for lib in columns:
            if lib not in row:
                cells.append("missing")
                continue
            shown = f"{number(row[lib].time_us)} ±{row[lib].spread:.0%}"
            cells.append(f"**{shown}**" if lib == fastest else shown)
        if has_ours:
            cells.append(factor(summary.ratio(row)))
        for writing in (False, True) if with_writing else (False,):
            bound = bound_of(least, case, size, writing)
            cells.append(number(bound))
            if has_ours:
                ours = row.get(summary.OURS)
                cells.append(factor(ours.time_us / bound if ours and bound else None))
        lines.append("| " + " | ".join(cells) + " |")
    lines.append("")
    others = [lib for lib in columns if lib != summary.OURS]
    if has_ours and others and case.coll != "barrier":
        lines += mean_table(summary.means(table, others), others)
    return lines


def mean_table(means, others):
    lines = [
        "Ringway's time over the other's, geometric means (sizes counted):",
        "",
        "| | fastest other | " + " | ".join(TITLES[lib] for lib in others) + " |",
        "|---|" + "---:|" * (len(others) + 1),
    ]
    for name, columns in means.items():
        cells = [f"{factor(mean)} ({count})" if count else "–" for mean, count in (columns[lib] for lib in [None, *others])]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines + [""]


def notes(results):
    """How to read it, how noisy it was, and what went wrong."""
    starts = results["starts"]
    foreign = sorted(start["foreign"] for start in starts) or [0.0]
    steal = sorted(start["steal"] for start in starts) or [0.0]
    high = foreign[min(len(foreign) - 1, len(foreign) * 9 // 10)]
    lines = [
        "## Reading it",
        "",
        "* Times are µs: the median over rounds of each round's median; ± is half the range over rounds. The fastest"
        " is bold. Sizes are those of nccl-tests. *hot*: the same buffer each time; *cold*: many in turn.",
        f"* Other processes took {statistics.median(foreign):.0%} of all cores (median over starts), {high:.0%} or"
        f" less in nine of ten starts, {foreign[-1]:.0%} at most; the host took {steal[-1]:.0%} at most.",
    ]
    if high > 0.1:
        lines.append("* **The machine was busy: do not quote these figures.**")
    bad = [start for start in starts if start["outcome"] != "ok"]
    if bad:
        lines += ["", "## What went wrong", ""]
        for start in bad:
            lines.append(
                f"* round {start['round']}, {start['lib']}, {start.get('transport', '')} {start.get('ranks', '')} ranks,"
                f" {start.get('colls', '')}: **{start['outcome']}**"
            )
    if results["missing_points"]:
        lines += ["", f"{len(results['missing_points'])} points are missing, such as:", ""]
        lines += ["* " + ", ".join(map(str, key)) for key in results["missing_points"][:20]]
    return lines


def plots(tables, least, results):
    """file name -> SVG."""
    made = {}
    machine = results["machine"]
    subtitle = f"{machine['cpu']}, {machine['cores']} cores, {machine['date']}; median of {results['options']['rounds']} rounds"
    barriers = {}
    for case, table in tables.items():
        if case.coll == "barrier":
            row = table.get(0, {})
            barriers.setdefault(case.transport, {})[case.ranks] = (case, row)
            continue
        series = {}
        for size, row in table.items():
            for lib, figure in row.items():
                series.setdefault(lib, {})[size] = figure.time_us
        limits = []
        for words, writing in (("limit with writing", True), ("machine's limit", False)):
            line = {size: bound_of(least, case, size, writing) for size in table}
            limits.append((words, {size: bound for size, bound in line.items() if bound}))
        made[f"{case.name}.svg"] = plot.lines(case.title, subtitle, series, limits, TITLES)
    for transport, by_ranks in barriers.items():
        series = {n: {lib: figure.time_us for lib, figure in row.items()} for n, (_, row) in by_ranks.items()}
        limit = {n: bound for n, (case, _) in by_ranks.items() for bound in [bound_of(least, case, 0)] if bound}
        words = {"shm": "shared memory", "tcp": "TCP loopback"}[transport]
        made[f"barrier-{transport}.svg"] = plot.bars(f"barrier, {words}", subtitle, series, limit, TITLES)
    return made

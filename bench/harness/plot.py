"""SVG plots, without any library: log-log, one line a library, the machine's limit dashed."""

import html
import math

# Okabe and Ito's colours, told apart also by those who do not see all of them; each with a mark.
STYLES = {
    "ringway": ("#D55E00", "circle"),
    "ompi4": ("#0072B2", "square"),
    "ompi5": ("#56B4E9", "diamond"),
    "mpich": ("#009E73", "triangle"),
    "impi": ("#CC79A7", "down"),
    "oneccl": ("#9A7D0A", "cross"),
    "gloo": ("#000000", "plus"),
}
INK, FAINT, LIMIT = "#333333", "#e3e3e3", "#777777"
DASHES, UPPER_DASHES = "7 4", "2 3"
WIDTH, HEIGHT = 860, 520
LEFT, RIGHT, TOP, BOTTOM = 78, 190, 62, 64


def human_bytes(size):
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:g} {unit}"
        size /= 1024
    return f"{size:g} GiB"


def human_time(microseconds):
    if microseconds >= 1e6:
        return f"{microseconds / 1e6:g} s"
    if microseconds >= 1e3:
        return f"{microseconds / 1e3:g} ms"
    if microseconds >= 1:
        return f"{microseconds:g} µs"
    return f"{microseconds * 1e3:g} ns"


def mark(kind, x, y, colour, radius=4.0):
    """One point of a line."""
    r = radius
    shapes = {
        "square": [(-r, -r), (r, -r), (r, r), (-r, r)],
        "diamond": [(0, -1.3 * r), (1.3 * r, 0), (0, 1.3 * r), (-1.3 * r, 0)],
        "triangle": [(0, -1.2 * r), (1.15 * r, 0.9 * r), (-1.15 * r, 0.9 * r)],
        "down": [(0, 1.2 * r), (1.15 * r, -0.9 * r), (-1.15 * r, -0.9 * r)],
    }
    if kind == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r:.1f}" fill="{colour}"/>'
    if kind in shapes:
        points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in shapes[kind])
        return f'<polygon points="{points}" fill="{colour}"/>'
    d = r if kind == "cross" else 1.2 * r
    strokes = [(-d, -d, d, d), (-d, d, d, -d)] if kind == "cross" else [(-d, 0, d, 0), (0, -d, 0, d)]
    path = "".join(f"M{x + a:.1f} {y + b:.1f}L{x + c:.1f} {y + e:.1f}" for a, b, c, e in strokes)
    return f'<path d="{path}" stroke="{colour}" stroke-width="2.2" fill="none"/>'


def text(x, y, words, size=13, anchor="start", colour=INK, extra=""):
    words = html.escape(words)
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}" {extra}>{words}</text>'


class Log:
    """A logarithmic axis: values to pixels."""

    def __init__(self, least, most, from_pixel, to_pixel):
        self.least, self.span = math.log(least), math.log(most) - math.log(least) or 1.0
        self.from_pixel, self.to_pixel = from_pixel, to_pixel

    def __call__(self, value):
        share = (math.log(value) - self.least) / self.span
        return self.from_pixel + share * (self.to_pixel - self.from_pixel)


def decades(values):
    """The powers of ten around all values."""
    return 10.0 ** math.floor(math.log10(min(values))), 10.0 ** math.ceil(math.log10(max(values) * 1.0001))


def page(title, subtitle, body, height=HEIGHT):
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
            f'height="{height}" font-family="DejaVu Sans, Helvetica, Arial, sans-serif">',
            f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
            text(LEFT, 26, title, 17, extra='font-weight="bold"'),
            text(LEFT, 46, subtitle, 12, colour=LIMIT),
            *body,
            "</svg>\n",
        ]
    )


def time_grid(y, least, most):
    """Horizontal lines at decades, thin ones at 2 and 5."""
    body, decade = [], least
    while decade <= most * 1.001:
        for factor in (1, 2, 5):
            value = decade * factor
            if value > most * 1.001:
                continue
            at = y(value)
            width = 1.2 if factor == 1 else 0.5
            body.append(f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="{FAINT}" stroke-width="{width}"/>')
            if factor == 1:
                body.append(text(LEFT - 8, at + 4.5, human_time(value), anchor="end"))
        decade *= 10
    return body


def legend(entries):
    """(library or the dashes of a limit, words), from top to bottom."""
    body, x = [], WIDTH - RIGHT + 18
    for index, (library, words) in enumerate(entries):
        y = TOP + 14 + 24 * index
        if library not in STYLES:
            body.append(f'<path d="M{x} {y}h30" stroke="{LIMIT}" stroke-width="2" stroke-dasharray="{library}"/>')
        else:
            colour, kind = STYLES[library]
            width = 3 if library == "ringway" else 1.8
            body.append(f'<path d="M{x} {y}h30" stroke="{colour}" stroke-width="{width}"/>')
            body.append(mark(kind, x + 15, y, colour))
        weight = 'font-weight="bold"' if library == "ringway" else ""
        body.append(text(x + 40, y + 4.5, words, extra=weight))
    return body


def lines(title, subtitle, series, limits, names):
    """series: library -> {size: µs}; limits: (words, {size: µs}), upper first. Time against size."""
    sizes = sorted({size for points in series.values() for size in points})
    drawn = list(zip([UPPER_DASHES, DASHES], limits))
    times = [time for points in [*series.values(), *(points for _, points in limits)] for time in points.values()]
    least, most = decades(times)
    x = Log(sizes[0], max(sizes[-1], sizes[0] * 2), LEFT + 12, WIDTH - RIGHT - 12)
    y = Log(least, most, HEIGHT - BOTTOM, TOP)
    body = time_grid(y, least, most)
    last = -math.inf
    for size in sizes:
        body.append(f'<path d="M{x(size):.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="{FAINT}" stroke-width="0.7"/>')
        if x(size) - last > 54:  # labels must not run into each other
            body.append(text(x(size), HEIGHT - BOTTOM + 20, human_bytes(size), 12, "middle"))
            last = x(size)
    body.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, "bytes, as nccl-tests counts them", 13, "middle"))
    body.append(text(18, (TOP + HEIGHT - BOTTOM) / 2, "time of a call", 13, "middle",
                     extra=f'transform="rotate(-90 18 {(TOP + HEIGHT - BOTTOM) / 2})"'))  # fmt: skip
    for dashes, (_, points) in drawn:
        path = "L".join(f"{x(size):.1f} {y(time):.1f}" for size, time in sorted(points.items()))
        if path:
            body.append(f'<path d="M{path}" fill="none" stroke="{LIMIT}" stroke-width="2" stroke-dasharray="{dashes}"/>')
    for library in sorted(series, key=lambda one: one == "ringway"):  # ours on top
        colour, kind = STYLES[library]
        points = sorted(series[library].items())
        path = "L".join(f"{x(size):.1f} {y(time):.1f}" for size, time in points)
        width = 3 if library == "ringway" else 1.8
        body.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="{width}" stroke-linejoin="round"/>')
        body += [mark(kind, x(size), y(time), colour) for size, time in points]
    # As the lines stand at the right edge, so that a reader finds them in the same order.
    ends = {library: points[max(points)] for library, points in series.items()}
    entries = [(library, names[library]) for library in sorted(ends, key=ends.get, reverse=True)]
    entries += [(dashes, words) for dashes, (words, points) in drawn if points]
    return page(title, subtitle, body + legend(entries))


def bars(title, subtitle, series, limit, names):
    """series: ranks -> library -> µs; limit: ranks -> µs. For what has no size."""
    rows = sum(len(libraries) + 1 for libraries in series.values())
    times = [time for libraries in series.values() for time in libraries.values()] + list(limit.values())
    least, most = decades(times)
    x = Log(least, most, LEFT + 90, WIDTH - RIGHT + 60)
    step = 26
    bottom = TOP + step * rows
    body, decade = [], least
    while decade <= most * 1.001:
        body.append(f'<path d="M{x(decade):.1f} {TOP}V{bottom}" stroke="{FAINT}" stroke-width="1.2"/>')
        body.append(text(x(decade), bottom + 18, human_time(decade), 12, "middle"))
        decade *= 10
    at = TOP
    for ranks, libraries in sorted(series.items()):
        body.append(text(20, at + step * 0.72, f"{ranks} ranks", extra='font-weight="bold"'))
        top = at = at + step
        for library, time in sorted(libraries.items(), key=lambda item: item[1]):
            colour, _ = STYLES[library]
            body.append(f'<rect x="{x(least):.1f}" y="{at + 3:.1f}" width="{x(time) - x(least):.1f}" '
                        f'height="{step - 6:.1f}" fill="{colour}"/>')  # fmt: skip
            weight = 'font-weight="bold"' if library == "ringway" else ""
            body.append(text(x(least) - 8, at + step * 0.68, names[library], 12, "end", extra=weight))
            body.append(text(x(time) + 6, at + step * 0.68, f"{time:.3g} µs" if time < 999 else f"{time:.0f} µs", 12))
            at += step
        if ranks in limit:
            line = x(limit[ranks])
            body.append(f'<path d="M{line:.1f} {top:.1f}V{at:.1f}" stroke="{INK}" stroke-width="2" '
                        f'stroke-dasharray="{DASHES}"/>')  # fmt: skip
            body.append(text(line + 5, top - 4, "machine's limit", 11, colour=LIMIT))
    return page(title, subtitle, body, bottom + 36)

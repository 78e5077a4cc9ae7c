"""The pictures of a sweep: fragmentation, latency and goodput against block size, as PNG and SVG.

Block sizes stand side by side at equal distances, one to ten of them. What is measured is a plain bar, what it is
compared with a hatched one beside it, and every bar has its number above it: so nothing depends on colour, and no mark
lies on a number. Panels stand above one another with an axis of their own each; no axis is shared by two units. What
was timed on a scaled layer says so in the panel's title, and a note at the foot says what it is good for.
"""

import textwrap
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from pagedkv.bench.plots import DOTS_AN_INCH, INK, plain, plain_panel, plain_title, short
from pagedkv.bench.sweep_report import SweepRow

LOOKS = (("#7FA7CC", None), ("#EDEDED", "////"))  # face and hatch: mid-grey, and pale with lines, when printed so
NUMBER_POINTS = 7
WIDTH_INCHES_MIN, BLOCK_SIZE_INCHES, PANEL_INCHES = 8.0, 1.1, 3.0
NOTE_CHARACTERS_AN_INCH = 13


def draw_fragmentation(rows: Sequence[SweepRow], title: str) -> Figure:
    """Draw tail waste in per cent of the slots, block table entries, and free blocks in per cent of the pool."""
    figure, (waste, entries, free) = _page(rows, 3, title)
    estimates = []
    for counts in (row.counts for row in rows):
        estimate = counts.tail_waste_uniform_estimate
        estimates.append(100 * estimate / (counts.logical_tokens + estimate))
    measured = [row.counts.tail_waste_percent for row in rows]
    _bars(waste, {"measured": measured, "estimate: (B - 1) / 2 a sequence": estimates})
    _finish(waste, "tail waste (% of slots)", "Internal fragmentation: slots of last blocks that hold nothing")
    _bars(entries, {"entries": [row.counts.block_table_entries for row in rows]})
    _finish(entries, "entries (int32)", "Block tables: entries of all sequences")
    _bars(free, {"free": [row.counts.free_percent for row in rows]})
    free.axhline(0, color=INK, linewidth=0.8)
    _finish(free, "free blocks (% of pool)", "Reserve: what is free of the declared pool after the decode steps")
    return _laid_out(figure)


def draw_latency(rows: Sequence[SweepRow], title: str, scaled: str | None) -> Figure:
    """Draw a layer's decode latency, median and p90, and the fraction of the memory limit it reaches.

    `scaled` says what was timed where that is not the whole layer on a GPU.
    """
    figure, (latency, fraction) = _page(rows, 2, title)
    label = _label(figure, scaled)
    series = {"median": [row.latencies.median_ms for row in rows]}
    p90 = [row.latencies.p90_ms for row in rows if row.latencies.p90_ms is not None]
    if len(p90) == len(rows):
        series["p90"] = p90
    _bars(latency, series)
    _finish(latency, "latency of a layer (ms)", f"Decode: append and attention of one layer{label}")
    _bars(fraction, {"reached": [100 * row.latencies.memory_limit_fraction for row in rows]})
    _finish(fraction, "of the copy bandwidth (%)", f"Fraction of the measured memory limit, at the median{label}")
    return _laid_out(figure)


def draw_goodput(rows: Sequence[SweepRow], title: str, scaled: str | None) -> Figure:
    """Draw what came of requests: prefix hits, evictions, TPOT end to end, goodput. `scaled`: see `draw_latency`.

    Where nothing was hit, as without prefix ids, there is nothing of the prefix cache to draw.
    """
    found = [row.traffic for row in rows]
    any_hit = any(each.in_order.counts.hit_tokens for each in found if each)
    figure, panels = _page(rows, 4 if any_hit else 2, title)
    label = _label(figure, scaled)
    if any_hit:
        _prefix_cache(panels, rows)
    tpot, goodput = panels[-2:]
    latencies = [each.clocked.latency.tpot if each else None for each in found]
    of_requests = {
        name: [times.quantile(share) if times and times.count else None for times in latencies]
        for name, share in (("median", 0.5), ("p90", 0.9))
    }
    _bars(tpot, of_requests)
    _finish(tpot, "TPOT of requests (ms)", f"On the clock, end to end: time per output token{label}")
    _bars(goodput, {"good": [each.clocked.latency.goodput_per_s if each else None for each in found]})
    _finish(goodput, "goodput (requests/s)", f"On the clock: requests a second within the declared limits{label}")
    return _laid_out(figure)


def _prefix_cache(panels: Sequence[Axes], rows: Sequence[SweepRow]) -> None:
    """Draw into the first two panels what the prefix cache found, and what it lost."""
    found = [row.traffic for row in rows]
    sizes = [row.counts.block_size for row in rows]
    hits, evictions = panels[:2]
    _bars(hits, {"hit": [each.in_order.hit_percent if each else None for each in found]})
    _finish(hits, "hits (% of prompt tokens)", "Prefix cache: prompt tokens that were found, requests in order")
    evicted = [each.in_order.counts.evictions * size if each else None for each, size in zip(found, sizes, strict=True)]
    _bars(evictions, {"evicted": evicted})
    _finish(evictions, "evicted (tokens)", "Prefix cache: evictions x B, requests in order")


def _laid_out(figure: Figure) -> Figure:
    """Settle where everything is, once: else each file would find it out anew, which takes most of the time."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


def _page(rows: Sequence[SweepRow], panels: int, title: str) -> tuple[Figure, list[Axes]]:
    width = max(WIDTH_INCHES_MIN, BLOCK_SIZE_INCHES * len(rows))
    figure = Figure(figsize=(width, panels * PANEL_INCHES + 0.5), dpi=DOTS_AN_INCH, layout="constrained")
    figure.suptitle(plain_title(title), fontsize=10)
    axes = [figure.add_subplot(panels, 1, number + 1) for number in range(panels)]
    for each in axes:
        each.set_xticks(range(len(rows)), [f"{row.counts.block_size:,}" for row in rows])
        each.set_xlim(-0.6, len(rows) - 0.4)
        each.set_xlabel("block size B (tokens)", fontsize=9)
        each.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
        plain_panel(each)
    return figure, axes


def _label(figure: Figure, scaled: str | None) -> str:
    """Put a note at the foot where what was timed is scaled; give what the title of such a panel ends with."""
    if scaled is None:
        return ""
    note = f"Mechanism only: timed on {scaled}. Compare block sizes with one another; a GPU takes other times."
    columns = int(NOTE_CHARACTERS_AN_INCH * figure.get_figwidth())
    figure.supxlabel(plain("\n".join(textwrap.wrap(note, columns))), fontsize=8)
    return " (mechanism only)"


def _bars(axes: Axes, series: Mapping[str, Sequence[float | None]]) -> None:
    """Put bars of one or two series side by side, each with its number; where there is none, a dash."""
    width = 0.8 / len(series) if len(series) > 1 else 0.6
    for number, (label, values) in enumerate(series.items()):
        at = [place + (number - (len(series) - 1) / 2) * width for place in range(len(values))]
        face, hatch = LOOKS[number]
        high = [value or 0.0 for value in values]
        bars = axes.bar(at, high, width, label=label, facecolor=face, hatch=hatch, edgecolor=INK, linewidth=0.6)
        numbers = ["-" if value is None else short(value) for value in values]
        axes.bar_label(bars, numbers, fontsize=NUMBER_POINTS, padding=2, color=INK)
    if not any(value for values in series.values() for value in values):
        axes.set_ylim(0, 1)
    if len(series) > 1:
        axes.legend(fontsize=8, loc="upper left", frameon=False, ncols=2)


def _finish(axes: Axes, y_label: str, title: str) -> None:
    """Name a panel, and leave room for the numbers at the bars and for the legend."""
    axes.set_title(title, fontsize=9, loc="left")
    axes.set_ylabel(y_label, fontsize=9)
    low, high = axes.get_ylim()
    room = 0.12 * (high - low)
    axes.set_ylim(low - room if low < 0 else low, high + (2 * room if axes.get_legend() else room))

"""What a replay did over time: who ran and waited, who had the blocks, what tails left empty.

Panels stand above one another on one axis, simulated seconds or launches. A line is the mean of a point of the curve
(`TimelineMeter`), a thin one the most. Areas are stacked and differ in grey and hatch, so nothing depends on colour. A
panel in which nothing would be is left out.
"""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator
from pagedkv.bench.plots import DOTS_AN_INCH, INK, plain_panel, plain_title, short
from pagedkv.bench.timeline_meter import TimelineMeter
from pagedkv.bench.traces import Float64Array

WIDTH_INCHES, PANEL_INCHES = 9.0, 2.3
USAGE_LOW_PERCENT = 10  # where the blocks in use stay below, the axis ends above them, else they would be a line
DARK = "#4C7BA6"
BLOCKS = {
    "held_blocks": (DARK, None, "held"),
    "quarantined_blocks": ("#DDDDDD", "////", "quarantined"),
    "cached_blocks": ("white", "....", "cached: idle, can be hit"),
}


def draw_over_time(curve: TimelineMeter, title: str, *, clocked: bool) -> Figure:
    """Draw a replay's curves; `clocked` says whether they go over simulated time. About a second."""
    points = curve.points()
    edges = points["begin_ms"] - (points["begin_ms"][0] if points["begin_ms"].size else 0)
    edges = edges / 1000 if clocked else edges
    panels = ["running", *(name for name in ("waiting",) if points[name].any()), "blocks"]
    panels += ["tails"] if points["tail_tokens"].any() else []
    figure = Figure(figsize=(WIDTH_INCHES, PANEL_INCHES * len(panels) + 0.5), dpi=DOTS_AN_INCH, layout="constrained")
    figure.suptitle(plain_title(title), fontsize=10)
    for number, panel in enumerate(panels):
        axes = figure.add_subplot(len(panels), 1, number + 1)
        _DRAWN[panel](axes, edges, points, curve)
        _finish(axes, edges, "simulated time (s)" if clocked else "launches")
    return figure


def _running(axes: Axes, edges: Float64Array, points: dict[str, Float64Array], _curve: TimelineMeter) -> None:
    axes.step(edges, points["running"], where="post", color=DARK, linewidth=1.6, label="mean")
    if (points["peak_running"] > points["running"] + 0.5).any():
        axes.step(edges, points["peak_running"], where="post", color=INK, linewidth=0.8, linestyle="--", label="most")
        axes.legend(fontsize=8, loc="upper left", frameon=False, ncols=2)
    _name(axes, "Sequences that run", "sequences")


def _waiting(axes: Axes, edges: Float64Array, points: dict[str, Float64Array], _curve: TimelineMeter) -> None:
    axes.step(edges, points["waiting"], where="post", color=DARK, linewidth=1.6)
    _name(axes, "Requests that wait", "requests")


def _blocks(axes: Axes, edges: Float64Array, points: dict[str, Float64Array], curve: TimelineMeter) -> None:
    bottom = np.zeros(edges.size)
    handles = []
    for name, (face, hatch, label) in BLOCKS.items():
        top = bottom + 100 * points[name] / curve.blocks
        if points[name].any():
            axes.fill_between(
                edges, bottom, top, facecolor=face, hatch=hatch, edgecolor=INK, linewidth=0.2, step="post"
            )
            handles.append(Patch(facecolor=face, hatch=hatch, edgecolor=INK, linewidth=0.6, label=label))
        bottom = top
    _name(axes, f"The pool: who has its {curve.blocks:,} blocks", "blocks (% of pool)")
    if not bottom.size or bottom.max() >= USAGE_LOW_PERCENT:
        axes.set_ylim(0, 100)
    axes.legend(handles=handles, fontsize=8, loc="lower right", bbox_to_anchor=(1, 0.98), frameon=False, ncols=3)


def _tails(axes: Axes, edges: Float64Array, points: dict[str, Float64Array], curve: TimelineMeter) -> None:
    slots = points["held_blocks"] * curve.block_size
    waste = np.divide(100 * points["tail_tokens"], slots, out=np.zeros_like(slots), where=slots > 0)
    axes.step(edges, waste, where="post", color=DARK, linewidth=1.6)
    _name(axes, "Tail waste: slots of last blocks that hold nothing", "tails (% of held slots)")


_DRAWN = {"running": _running, "waiting": _waiting, "blocks": _blocks, "tails": _tails}


def _name(axes: Axes, title: str, y_label: str) -> None:
    axes.set_title(title, fontsize=9, loc="left")
    axes.set_ylabel(y_label, fontsize=9)


def _finish(axes: Axes, edges: Float64Array, x_label: str) -> None:
    """Give a panel its axes, and leave room for a legend above what is drawn."""
    axes.set_xlabel(x_label, fontsize=9)
    axes.set_xlim(0, max(float(edges[-1]), 1.0) if edges.size else 1.0)
    if axes.get_ylim()[1] != 100:
        axes.set_ylim(0, 1.3 * max(axes.get_ylim()[1], 1e-9))
    axes.xaxis.set_major_locator(MaxNLocator(8))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    plain_panel(axes)

"""The picture of the baselines: what memory is used for over time, one panel a scheme, all on one axis of launches.

Areas are stacked and add up to all slots. Each has a grey of its own and a hatch, so that they can be told apart
without colour; the legend stands below, outside the panels. Beyond some hundred launches a column is the mean of a
group of launches.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator
from pagedkv.bench.baselines import PARTS, Outcome
from pagedkv.bench.plots import DOTS_AN_INCH, INK, plain_title, short
from pagedkv.bench.traces import Float64Array

LOOKS = {
    "used": ("#4C7BA6", None, "used by tokens"),
    "internal": ("#DDDDDD", "////", "internal fragmentation: reserved, not used"),
    "in_flight": ("white", "....", "in flight: left, not free yet"),
    "external": ("#F6F6F6", "xxxx", "external fragmentation: free, in the wrong place"),
    "free": ("white", None, "free"),
}
COLUMNS_MAX = 400
WIDTH_INCHES, PANEL_INCHES, LEGEND_INCHES = 9.0, 2.2, 0.8


def draw_baselines(outcomes: Sequence[Outcome], slots: int, title: str) -> Figure:
    """Draw memory over launches for each scheme."""
    height = len(outcomes) * PANEL_INCHES + LEGEND_INCHES + 0.4
    figure = Figure(figsize=(WIDTH_INCHES, height), dpi=DOTS_AN_INCH, layout="constrained")
    figure.suptitle(plain_title(title), fontsize=10)
    longest = max(1, *(len(outcome.samples.used) for outcome in outcomes))
    for number, outcome in enumerate(outcomes):
        axes = figure.add_subplot(len(outcomes), 1, number + 1)
        _draw(axes, outcome, slots)
        axes.set_xlim(0, longest)
        axes.set_xlabel("launches (steps in which something runs)", fontsize=9)
    handles = [
        Patch(facecolor=face, hatch=hatch, edgecolor=INK, linewidth=0.6, label=label)
        for face, hatch, label in LOOKS.values()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    return figure


def _draw(axes: Axes, outcome: Outcome, slots: int) -> None:
    samples = outcome.samples
    edges, columns = _columns([np.array(getattr(samples, part), np.float64) for part in PARTS])
    bottom = np.zeros(len(edges))
    for part, values in zip(PARTS, columns, strict=True):
        face, hatch, _ = LOOKS[part]
        top = bottom + 100 * values / slots
        axes.fill_between(edges, bottom, top, facecolor=face, hatch=hatch, edgecolor=INK, linewidth=0.2, step="post")
        bottom = top
    copied = f", {outcome.copied_tokens_a_token:.2f} tokens copied for each held" if outcome.copied_tokens else ""
    running, launches = samples.mean("running"), len(samples.used)
    axes.set_title(
        f"{outcome.scheme}: {short(launches)} launches, {running:.1f} sequences at one time on average{copied}",
        fontsize=9,
        loc="left",
    )
    axes.set_ylabel("slots (% of all)", fontsize=9)
    axes.set_ylim(0, 100)
    axes.tick_params(labelsize=8)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _columns(series: list[Float64Array]) -> tuple[Float64Array, list[Float64Array]]:
    """Return where columns begin, with the end behind, and the means of each series in them, the last one twice."""
    length = len(series[0])
    if not length:
        return np.zeros(1), [np.zeros(1) for _ in series]
    group = -(-length // COLUMNS_MAX)
    starts = np.arange(0, length, group)
    sizes = np.diff(np.append(starts, length))
    means = [np.add.reduceat(values, starts) / sizes for values in series]
    return np.append(starts, length).astype(np.float64), [np.append(mean, mean[-1]) for mean in means]

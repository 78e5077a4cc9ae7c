"""The picture of a replay beside the measured run: what ran, waited and was held over time, and how TPOT is spread.

Measured is a thick pale line, ours a thin dark dashed one on top of it, so both can be followed where they agree and
told apart in grey. Panels over time show the same ticks on both sides. TPOT is drawn as the share of requests that
are not above it, for the half that the step-time model was fitted on and for the half that it is judged by.
"""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pagedkv.bench.plots import DOTS_AN_INCH, plain_panel, plain_title
from pagedkv.bench.real_run_report import Comparison, tpot_ms
from pagedkv.bench.traces import Float64Array

MEASURED: dict[str, Any] = {"color": "#8FB8DE", "linewidth": 3.2, "label": "measured"}
OURS: dict[str, Any] = {"color": "#1A1A1A", "linewidth": 1.1, "linestyle": (0, (4, 1.5)), "label": "replayed"}
WIDTH_INCHES, HEIGHT_INCHES = 9.0, 9.6


def draw_comparison(comparison: Comparison, title: str) -> Figure:
    """Draw four rows: running, waiting, cache usage, and the two halves' TPOT."""
    figure = Figure(figsize=(WIDTH_INCHES, HEIGHT_INCHES), dpi=DOTS_AN_INCH, layout="constrained")
    figure.suptitle(plain_title(title), fontsize=10)
    grid = figure.add_gridspec(4, 2, height_ratios=(1, 1, 1, 1.15))
    ticks = comparison.run.ticks
    ours = comparison.replayed.at(ticks.at_s)
    panels: tuple[tuple[str, str, Float64Array | None], ...] = (
        ("Running", "sequences", ticks.running),
        ("Waiting", "requests", ticks.waiting),
        ("Cache usage", "blocks (% of all)", ticks.usage_percent),
    )
    for row, ((name, unit, measured), replayed) in enumerate(zip(panels, ours, strict=True)):
        axes = figure.add_subplot(grid[row, :])
        if measured is not None:
            axes.plot(ticks.at_s, measured, **MEASURED)
        axes.plot(ticks.at_s, replayed, **OURS)
        axes.set_xlim(0, float(ticks.at_s[-1]))
        axes.set_ylim(0, 1.08 * max(1.0, float(np.max(replayed)), 0.0 if measured is None else float(measured.max())))
        _name(
            axes, name if measured is not None else f"{name} (not measured)", "time since the first arrival (s)", unit
        )
    for column, (name, requests) in enumerate(
        (("first half, fitted", comparison.first_half), ("second half, judged", comparison.second_half))
    ):
        axes = figure.add_subplot(grid[3, column])
        several = requests[comparison.run.output_tokens[requests] >= 2]
        for times, look in ((comparison.run, MEASURED), (comparison.replayed, OURS)):
            _steps(axes, tpot_ms(times, comparison.run, several), look)
        fitted = comparison.fit is not None
        _name(axes, f"TPOT, {name if fitted else name.partition(',')[0]}", "TPOT (ms)", "requests not above it (%)")
        axes.set_ylim(0, 104)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    return figure


def _steps(axes: Axes, values: Float64Array, look: dict[str, Any]) -> None:
    """Draw which share of the values is not above x."""
    if not values.size:
        return
    x = np.concatenate((np.sort(values)[:1], np.sort(values)))
    axes.plot(x, 100 * np.arange(values.size + 1) / values.size, drawstyle="steps-post", **look)


def _name(axes: Axes, title: str, x_label: str, y_label: str) -> None:
    axes.set_title(title, fontsize=9, loc="left")
    axes.set_xlabel(x_label, fontsize=9)
    axes.set_ylabel(y_label, fontsize=9)
    plain_panel(axes)

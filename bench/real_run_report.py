"""A replay beside the measured run: figures with their difference, and what was asked of them.

`compare` takes both runs and gives a `Comparison`. Its figures are those that an engine's user looks at: TTFT and TPOT
quantiles of either half of the requests, makespan, and what ran, waited and was held, at the same ticks on both sides.
The first half is what the step-time model was fitted on, the second is what it is judged by; makespan and ticks are of
the whole run. Quantiles have the rank that those of a clocked replay have (`quantiles`): each is the least time that
at least that share of all are not above.

Three differences have a limit that this project set itself, and the report says whether each holds. What the data
shows of the reason where one does not is said in words (`real_run_findings`).
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from pagedkv.bench.real_run import RealRun
from pagedkv.bench.real_run_replay import ReplayedRun, RunSettings
from pagedkv.bench.step_time import StepTime
from pagedkv.bench.step_time_fit import StepTimeFit
from pagedkv.bench.traces import Float64Array, Int64Array
from rich.table import Table
from rich.text import Text

PEAK_RUNNING, SECOND_TPOT, MAKESPAN = "peak_running", "second_half_tpot_p50_ms", "makespan_s"
LIMITS_PERCENT = {PEAK_RUNNING: 10.0, SECOND_TPOT: 15.0, MAKESPAN: 15.0}
SHARES = (50, 90, 99)
WHOLE_RUN, AT_TICKS = "whole run", "at the measured ticks"


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of both runs: what part of the run it is about, its name there and its unit."""

    key: str
    part: str
    name: str
    measured: float
    ours: float

    @property
    def difference_percent(self) -> float | None:
        """Ours less measured, in per cent of measured; None where that is 0."""
        return 100 * (self.ours / self.measured - 1) if self.measured else None

    @property
    def holds(self) -> bool | None:
        """Whether it is within its limit; None where it has none."""
        limit, difference = LIMITS_PERCENT.get(self.key), self.difference_percent
        return None if limit is None or difference is None else abs(difference) <= limit


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Both runs, what the replay was done with, and what came of it.

    `first_half` and `second_half` are requests (int64). Without a fit the coefficients were given.
    """

    run: RealRun
    replayed: ReplayedRun
    settings: RunSettings
    assumptions: tuple[str, ...]
    step_time: StepTime
    fit: StepTimeFit | None
    first_half: Int64Array
    second_half: Int64Array
    figures: dict[str, Figure]

    def as_json(self) -> dict[str, Any]:
        """Give everything under the names that the table has; `step_time` is what `--step-time` reads."""
        running, waiting, usage = self.replayed.at(self.run.ticks.at_s)
        measured = self.run.ticks
        return {
            "device": self.run.device,
            "measured_engine": self.run.engine,
            "requests": len(self.run),
            "blocks": self.settings.blocks,
            "block_size": self.settings.block_size,
            **asdict(self.settings.limits),
            "assumptions": list(self.assumptions),
            "step_time": asdict(self.step_time),
            "fit": None if self.fit is None else _fit_as_json(self.fit, self.first_half),
            "figures": {key: _figure_as_json(figure) for key, figure in self.figures.items()},
            "replay_counts": asdict(self.replayed.counts),
            "ticks": {
                "at_s": measured.at_s.tolist(),
                "running_measured": measured.running.tolist(),
                "running": running.tolist(),
                "waiting_measured": measured.waiting.tolist(),
                "waiting": waiting.tolist(),
                "usage_percent_measured": None if measured.usage_percent is None else measured.usage_percent.tolist(),
                "usage_percent": usage.tolist(),
            },
        }

    def as_table(self, title: str) -> Table:
        """Lay the figures out, measured beside ours."""
        table = Table(title=Text(title), title_justify="left")
        table.add_column("figure")
        for column in ("measured", "ours", "off by, %"):
            table.add_column(column, justify="right")
        table.add_column("asked for")
        part = ""
        for figure in self.figures.values():
            if figure.part != part:
                part = figure.part
                table.add_section()
                table.add_row(Text(part, style="bold"))
            difference = figure.difference_percent
            table.add_row(
                f"  {figure.name}",
                f"{figure.measured:,.2f}",
                f"{figure.ours:,.2f}",
                "" if difference is None else f"{difference:+.1f}",
                verdict(figure),
            )
        return table


def compare(
    run: RealRun,
    replayed: ReplayedRun,
    settings: RunSettings,
    assumptions: Sequence[str],
    step_time: StepTime,
    fit: StepTimeFit | None,
) -> Comparison:
    """Put a replay beside the run. Requests of one token have no TPOT; a half that has no other has no such figure."""
    first, second = halves(replayed.arrival_s)
    parts = ("first half, fitted", "second half, judged") if fit is not None else ("first half", "second half")
    figures = [
        *_latencies("first_half", parts[0], run, replayed, first),
        *_latencies("second_half", parts[1], run, replayed, second),
        Figure(MAKESPAN, WHOLE_RUN, "makespan, s", float(run.last_token_s.max()), float(replayed.last_token_s.max())),
        *_of_ticks(run, replayed),
    ]
    by_key = {figure.key: figure for figure in figures}
    return Comparison(run, replayed, settings, tuple(assumptions), step_time, fit, first, second, by_key)


def halves(arrival_s: Float64Array) -> tuple[Int64Array, Int64Array]:
    """Give the first half of the requests, in order of arrival, and the rest (int64)."""
    order = np.argsort(arrival_s, kind="stable").astype(np.int64)
    return order[: len(order) // 2], order[len(order) // 2 :]


def _latencies(key: str, part: str, run: RealRun, replayed: ReplayedRun, requests: Int64Array) -> list[Figure]:
    """Give quantiles of TPOT, TTFT and queueing (to the first admission) of some requests."""
    figures = []
    several = requests[run.output_tokens[requests] >= 2]
    if several.size:
        measured, ours = (quantiles_of(tpot_ms(each, run, several)) for each in (run, replayed))
        for share, a, b in zip(SHARES, measured, ours, strict=True):
            figures.append(Figure(f"{key}_tpot_p{share}_ms", part, f"TPOT p{share}, ms", a, b))
    for name, words, column in (("ttft", "TTFT", "first_token_s"), ("queueing", "queueing", "admitted_s")):
        measured, ours = (quantiles_of((getattr(each, column) - each.arrival_s)[requests]) for each in (run, replayed))
        for share, a, b in zip(SHARES, measured, ours, strict=True):
            figures.append(Figure(f"{key}_{name}_p{share}_s", part, f"{words} p{share}, s", a, b))
    return figures


def quantiles_of(times: Float64Array) -> list[float]:
    """Give p50, p90 and p99 of some times (one at least), each a time that there is."""
    found: list[float] = np.percentile(times, SHARES, method="inverted_cdf").tolist()
    return found


def tpot_ms(times: RealRun | ReplayedRun, run: RealRun, requests: Int64Array) -> Float64Array:
    """Give the TPOT by `times` of requests of the run that have two tokens or more, in ms."""
    return 1000 * (times.last_token_s - times.first_token_s)[requests] / (run.output_tokens[requests] - 1)


def _of_ticks(run: RealRun, replayed: ReplayedRun) -> list[Figure]:
    """Give what ran, waited and was held, as seen at the measured ticks on both sides."""
    ticks = run.ticks
    running, waiting, usage = replayed.at(ticks.at_s)
    series = [("running", ticks.running, running), ("waiting", ticks.waiting, waiting)]
    if ticks.usage_percent is not None:
        series.append(("usage", ticks.usage_percent, usage))
    figures = []
    for name, measured, ours in series:
        words, unit = ("cache usage, %", "_percent") if name == "usage" else (name, "")
        for key, of in (("peak", np.max), ("mean", np.mean)):
            both = float(of(measured)), float(of(ours))
            figures.append(Figure(f"{key}_{name}{unit}", AT_TICKS, f"{key} {words}", *both))
    return figures


def verdict(figure: Figure) -> str:
    """Say whether a figure is within its limit, or by how much it is missed; nothing where it has none."""
    limit, difference = LIMITS_PERCENT.get(figure.key), figure.difference_percent
    if limit is None or difference is None:
        return ""
    missed = abs(difference) - limit
    return f"within {limit:g} %: holds" if missed <= 0 else f"within {limit:g} %: missed by {missed:.1f} points"


def _figure_as_json(figure: Figure) -> dict[str, Any]:
    return {
        "part": figure.part,
        "name": figure.name,
        "measured": figure.measured,
        "ours": figure.ours,
        "difference_percent": figure.difference_percent,
        "limit_percent": LIMITS_PERCENT.get(figure.key),
        "holds": figure.holds,
    }


def _fit_as_json(fit: StepTimeFit, fitted: Int64Array) -> dict[str, Any]:
    rounds = [{"step_time": asdict(each.step_time), "error": each.error} for each in fit.rounds]
    return {"fitted_requests": fitted.tolist(), "error": fit.best.error, "rounds": rounds}

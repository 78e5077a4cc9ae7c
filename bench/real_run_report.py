"""A replay beside the measured run: figures with their difference, what was asked of them, and what the data says.

`compare` takes both runs and gives a `Comparison`. Its figures are those that an engine's user looks at: TTFT and TPOT
quantiles of either half of the requests, makespan, and what ran, waited and was held, at the same ticks on both sides.
The first half is what the step-time model was fitted on, the second is what it is judged by; makespan and ticks are of
the whole run. Quantiles have the rank that those of a clocked replay have (`quantiles`): each is the least time that
at least that share of all are not above.

Three differences have a limit that this project set itself. The report says whether each holds, and where one does not,
by how much it is missed and what the data shows of the reason: whether the fitted half is off already (then it is the
model's form), over which range the fit saw what a step does, and in which part of the run a difference arises. What
the files cannot show, such as an engine's host time or its preemptions, is not guessed at.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from pagedkv.bench.real_run import RealRun
from pagedkv.bench.real_run_replay import ReplayedRun, RunSettings
from pagedkv.bench.step_time import StepTime
from pagedkv.bench.step_time_fit import QUANTITIES, StepTimeFit, decode_error
from pagedkv.bench.traces import Float64Array, Int64Array
from rich.table import Table
from rich.text import Text

PEAK_RUNNING, SECOND_TPOT, MAKESPAN = "peak_running", "second_half_tpot_p50_ms", "makespan_s"
LIMITS_PERCENT = {PEAK_RUNNING: 10.0, SECOND_TPOT: 15.0, MAKESPAN: 15.0}
SHARES = (50, 90, 99)
WHOLE_RUN, AT_TICKS = "whole run", "at the measured ticks"
QUARTERS = (25, 50, 75, 100)
HARDLY_VARIES = 1.1  # a quantity whose greatest is less than this many times its least


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
            "what_the_data_says": findings(self),
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
                _verdict(figure),
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


def findings(comparison: Comparison) -> list[str]:
    """Say in sentences what the data shows: of the fit, of the run's parts, and of each limit that does not hold."""
    said = (
        [] if comparison.fit is None else [_of_fit(comparison, comparison.fit), _of_no_fit(comparison, comparison.fit)]
    )
    measured, ours = (_finished_s(each.last_token_s) for each in (comparison.run, comparison.replayed))
    times = (f"{share} %: {a:.1f} s beside {b:.1f}" for share, a, b in zip(QUARTERS, measured, ours, strict=True))
    said.append(f"Requests finished, measured beside ours: {', '.join(times)}.")
    return said + [_miss(comparison, figure) for figure in comparison.figures.values() if figure.holds is False]


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


def _verdict(figure: Figure) -> str:
    limit, difference = LIMITS_PERCENT.get(figure.key), figure.difference_percent
    if limit is None or difference is None:
        return ""
    missed = abs(difference) - limit
    return f"within {limit:g} %: holds" if missed <= 0 else f"within {limit:g} %: missed by {missed:.1f} points"


def _of_fit(comparison: Comparison, fit: StepTimeFit) -> str:
    """Say how near the fit came on either half, and over which range it saw what a step does."""
    best, run = fit.best, comparison.run
    least, most = best.mean_step.min(axis=0), best.mean_step.max(axis=0)
    ranges = "; ".join(f"{a:,.0f} to {b:,.0f} {name}" for name, a, b in zip(QUANTITIES, least, most, strict=True))
    judged = decode_error(best.replayed, comparison.second_half, 1000 * run.decode_s[comparison.second_half])
    text = (
        f"Fitted on the decode times of {comparison.first_half.size:,} requests, which the replay meets to"
        f" {100 * best.error:.1f} % (root mean square), and those of the second half to {100 * judged:.1f} %."
        f" A mean step of the fitted ones had {ranges}."
    )
    still = [name for name, a, b in zip(QUANTITIES, least, most, strict=True) if a and b / a < HARDLY_VARIES]
    if still:
        text += f" The {' and the '.join(still)} hardly vary there: what they cost cannot be told from a step's base."
    return text


def _of_no_fit(comparison: Comparison, fit: StepTimeFit) -> str:
    """Say what is reached without a model: by the first round, in which every step lasts as long."""
    first = fit.rounds[0]
    plain = compare(comparison.run, first.replayed, comparison.settings, (), first.step_time, None).figures
    limited = [plain[key] for key in LIMITS_PERCENT if key in plain]
    off = ", ".join(f"{each.name.partition(',')[0]} {each.difference_percent or 0:+.1f} %" for each in limited)
    return (
        f"Without a model, with every step as long as the fitted requests' median TPOT ({first.step_time.base_ms:.1f}"
        f" ms), the replay meets their decode times to {100 * first.error:.1f} %; what has a limit is off by: {off}."
    )


def _miss(comparison: Comparison, figure: Figure) -> str:
    """Say by how much a limit is missed, and what the data shows of the reason."""
    text = f"{figure.part}, {figure.name}: {figure.ours:,.2f} beside {figure.measured:,.2f}, {_verdict(figure)}."
    run, replayed = comparison.run, comparison.replayed
    if figure.key == SECOND_TPOT:
        first = comparison.figures.get("first_half_tpot_p50_ms", figure)
        mean = comparison.figures["mean_running"]
        return (
            f"{text} On the first half it is off by {first.difference_percent or 0:+.1f} %; over the whole run"
            f" {mean.measured:.1f} requests ran on average, in ours {mean.ours:.1f}."
        )
    if figure.key == MAKESPAN:
        measured, ours = (_finished_s(each.last_token_s) for each in (run, replayed))
        behind = np.diff(ours - measured, prepend=0.0).tolist()
        parts = ", ".join(f"{part:+.1f} s" for part in behind)
        return f"{text} By quarters of the requests, in order of their ends, the difference arises as {parts}."
    running, _, _ = replayed.at(run.ticks.at_s)
    at_measured, at_ours = int(run.ticks.running.argmax()), int(running.argmax())
    return (
        f"{text} The measured peak is at {run.ticks.at_s[at_measured]:g} s, where ours has {running[at_measured]:,.0f};"
        f" ours is at {run.ticks.at_s[at_ours]:g} s, where {run.ticks.running[at_ours]:,.0f} were measured. Between"
        f" ticks ours reaches {comparison.replayed.counts.peak_running:,}."
    )


def _finished_s(last_token_s: Float64Array) -> Float64Array:
    """Give when each quarter of the requests has finished."""
    ends = np.sort(last_token_s)
    return ends[[max(0, len(ends) * share // 100 - 1) for share in QUARTERS]]


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

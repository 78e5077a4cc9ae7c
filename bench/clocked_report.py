"""What a clocked replay found, as figures, as tables for people and as JSON for programs.

The scheduler's figures are those of `scheduler_report`; to them come latencies, goodput and what there was over time.
"""

from dataclasses import dataclass
from typing import Any

from pagedkv.bench.clocked import ClockedOutcome
from pagedkv.bench.latency_meter import SHARES, LatencyMeter
from pagedkv.bench.quantiles import RELATIVE_ERROR, Quantiles
from pagedkv.bench.replay_report import figures_table
from pagedkv.bench.timeline_meter import TimelineMeter
from rich.console import Group
from rich.table import Table
from rich.text import Text

WHOLE_FROM_MS = 10_000
SECONDS_FROM_MS = 100_000  # longer numbers would not fit into 80 columns


@dataclass(frozen=True, slots=True)
class ClockedReport:
    """The outcome of a replay and what the meters took."""

    outcome: ClockedOutcome
    latency: LatencyMeter
    timeline: TimelineMeter

    def as_json(self) -> dict[str, Any]:
        """Give all figures under the names that the tables have."""
        outcome = self.outcome
        return {
            **outcome.scheduled.as_json(),
            "cpu_seconds": outcome.cpu_seconds,
            "sequence_steps": outcome.sequence_steps,
            "sequence_steps_per_s": outcome.sequence_steps_per_s,
            "sequence_steps_per_cpu_s": outcome.sequence_steps_per_cpu_s,
            **self.latency.as_json(),
            **self.timeline.as_json(),
        }

    def as_table(self, title: str) -> Group:
        """Lay the figures out, one a row, and the latencies in a table of their own."""
        rows = (*self.outcome.scheduled.rows(), *self._speed_rows(), *self._goodput_rows(), *self._time_rows())
        return Group(figures_table(title, rows), self._latencies(), *map(Text, self._overload()))

    def _overload(self) -> list[str]:
        """Say that more requests came than could be served, if so: what is measured then is how long the replay was."""
        timeline = self.timeline
        if not timeline.is_overloaded:
            return []
        rates = (
            f"{timeline.arrivals_per_s:,.2f} requests a second arrive, {timeline.admissions_per_s:,.2f} are admitted"
        )
        waiting = f"{timeline.waiting_at_last_arrival:,} of {timeline.arrivals:,} wait as the last one comes"
        return [f"Overloaded: {rates}; {waiting}, so latencies grow with the length of the replay."]

    def _speed_rows(self) -> tuple[tuple[str, str, str], ...]:
        outcome = self.outcome
        rates = f"{outcome.sequence_steps_per_s:,.0f} a second, {outcome.sequence_steps_per_cpu_s:,.0f} of CPU time"
        a_request_us = 1e6 * outcome.cpu_seconds / max(outcome.scheduled.requests, 1)
        return (
            ("cpu_seconds", f"{outcome.cpu_seconds:.2f}", f"of the loop: {a_request_us:.1f} us a request"),
            ("sequence_steps", f"{outcome.sequence_steps:,}", f"rows of launches; {rates}"),
        )

    def _goodput_rows(self) -> tuple[tuple[str, str, str], ...]:
        latency = self.latency
        limits = latency.limits.in_words()
        if not limits:
            said = "requests a second that finished; no limits were declared"
        elif not latency.good_requests:
            said = f"no request was within {limits}"
        else:
            said = f"requests a second within {limits}: {latency.good_requests:,}"
        return (
            (
                "makespan_s",
                f"{latency.makespan_s:,.3f}",
                "simulated: from first arrival to last token",
            ),
            ("goodput_per_s", f"{latency.goodput_per_s:,.4f}", said),
        )

    def _time_rows(self) -> tuple[tuple[str, str, str], ...]:
        timeline, means = self.timeline, self.timeline.averages()
        usage, waste = means["cache_usage_percent"], means["tail_waste_percent"]
        peak = timeline.peak_waiting
        return (
            ("running", f"{means['running']:,.1f}", "sequences, time-averaged"),
            ("waiting", f"{means['waiting']:,.1f}", f"requests, time-averaged; as a step began {peak:,} at most"),
            ("cache_usage", f"{usage:.2f} %", "blocks that nobody else can have, time-averaged"),
            ("cached_blocks", f"{means['cached_blocks']:,.1f}", "idle, can be hit or evicted, time-averaged"),
            ("tail_tokens", f"{means['tail_tokens']:,.1f}", f"tail waste, time-averaged: {waste:.3f} % of held slots"),
        )

    def _latencies(self) -> Table:
        """Lay the latencies out."""
        table = Table(
            title=Text(f"Latencies in ms of simulated time, or s; quantiles within {RELATIVE_ERROR * 100:g} %"),
            title_justify="left",
        )
        table.add_column("latency")
        for column in ("count", "mean", *SHARES, "max"):
            table.add_column(column, justify="right")
        for name, times in self.latency.latencies().items():
            in_s = times.count > 0 and times.most > SECONDS_FROM_MS
            values = (_figure(times, value / 1000 if in_s else value) for value in _values(times))
            table.add_row(f"{name}, s" if in_s else name, f"{times.count:,}", *values)
        return table


def _values(times: Quantiles) -> list[float]:
    return [times.mean, *(times.quantile(share) for share in SHARES.values()), times.most]


def _figure(times: Quantiles, value: float) -> str:
    if not times.count:
        return "-"
    return f"{value:,.2f}" if value < WHOLE_FROM_MS else f"{value:,.0f}"

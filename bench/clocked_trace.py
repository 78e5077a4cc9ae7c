"""A trace on simulated time: whose requests arrive when, in how large a pool, and what is measured.

Arrivals are those of the trace, in order of time and ties in file order, `speedup` times as fast; or so many requests
are drawn from the trace's lengths, and arrive at random at a declared rate (`replay_arrivals`). Drawn requests are made
as they arrive and share no prefixes, since lengths alone are drawn. Without a pool size the pool holds all that may run
at once, however long they get.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pagedkv.bench.clocked import CacheSettings, clocked_replay
from pagedkv.bench.clocked_report import ClockedReport
from pagedkv.bench.failures import BadInput
from pagedkv.bench.latency_meter import LatencyLimits, LatencyMeter
from pagedkv.bench.meters import Meter
from pagedkv.bench.replay_arrivals import (
    Arrival,
    TrafficSettings,
    blocks_needed_of,
    check_samples,
    generated_arrivals,
    trace_arrivals,
)
from pagedkv.bench.replay_queue import ReplaySettings, check_size
from pagedkv.bench.replay_tokens import TraceTokens
from pagedkv.bench.step_time import StepTime
from pagedkv.bench.timeline_meter import TimelineMeter
from pagedkv.bench.traces import Trace
from pagedkv.impl.requests import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockSettings:
    """How simulated time goes: what a step lasts, and when requests arrive.

    `generate` requests are drawn from the trace's lengths at `requests_per_s` (None: the trace's own mean rate); None
    takes the trace as it is. All arrivals are `speedup` times as fast. `latency_limits` are those of goodput.
    """

    step_time: StepTime
    speedup: float = 1.0
    generate: int | None = None
    requests_per_s: float | None = None
    latency_limits: LatencyLimits = field(default_factory=LatencyLimits)


def replay_clocked(
    trace: Trace,
    settings: ReplaySettings,
    limits: Limits,
    traffic: TrafficSettings,
    clock: ClockSettings,
    journal: Path | None = None,
    on_gone: Callable[[int], None] = lambda _gone: None,
    meters: Sequence[Meter] = (),
) -> ClockedReport:
    """Replay a trace, or what is drawn from it, on simulated time; `meters` are told beside the report's own.

    `on_gone` hears how many requests have left. Errors: as `replay_scheduled`, and `BadInput` where requests are to be
    drawn at the rate of a trace that has none.
    """
    check_samples(traffic.samples, limits)
    blocks = settings.blocks or _blocks_for_running(trace, settings.block_size, limits, traffic, clock)
    check_size(trace, blocks, 0)
    latency = LatencyMeter(clock.latency_limits)
    timeline = TimelineMeter(blocks, settings.block_size)
    outcome = clocked_replay(
        _arrivals(trace, traffic, clock),
        CacheSettings(blocks=blocks, block_size=settings.block_size, journal=journal),
        limits,
        clock.step_time,
        [latency, timeline, *meters],
        tokens=TraceTokens(trace) if clock.generate is None else None,
        samples=traffic.samples,
        on_gone=on_gone,
    )
    return ClockedReport(outcome, latency, timeline)


def _arrivals(trace: Trace, traffic: TrafficSettings, clock: ClockSettings) -> Iterator[Arrival]:
    """Give the requests in order of arrival, in ms."""
    if clock.generate is None:
        order = trace.by_arrival()
        return trace_arrivals(trace, order, trace.arrival_s[order] * 1000 / clock.speedup, traffic)
    requests_per_s = clock.requests_per_s or trace.requests_per_s()
    if not requests_per_s:
        raise BadInput(str(trace.path), "all its requests arrive at once, so it has no rate", "give --rate")
    return generated_arrivals(trace, clock.generate, requests_per_s * clock.speedup, traffic)


def _blocks_for_running(
    trace: Trace, block_size: int, limits: Limits, traffic: TrafficSettings, clock: ClockSettings
) -> int:
    """Size the pool for the longest requests at once, as many as may run; or for all, where that is less."""
    need = blocks_needed_of(trace, block_size, traffic)
    requests = limits.max_running // traffic.samples
    most = int(need.max()) * requests
    return max(1, most if clock.generate is not None else min(most, int(need.sum())))

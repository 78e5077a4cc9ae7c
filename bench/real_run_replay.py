"""A measured run's requests through our scheduler on simulated time, kept request by request and step by step.

The trace's own arrival times are used, not the measured ones: what was measured is what the replay is judged by. Every
request has to finish, or there is nothing to compare. `ReplayedRun` has the columns that `RealRun` has, and of each
step when it was and what it computed, which is what a fit of the step-time model needs. Cost: that of the clocked
replay, some seconds for 300 requests, and 100 bytes a step.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from pagedkv.bench.clocked import CacheSettings, clocked_replay
from pagedkv.bench.failures import BadInput
from pagedkv.bench.meters import Meter, RecordMeter, Stretch
from pagedkv.bench.replay_arrivals import TrafficSettings, trace_arrivals
from pagedkv.bench.replay_tokens import TraceTokens
from pagedkv.bench.scheduler_report import SchedulerCounts
from pagedkv.bench.step_time import StepTime
from pagedkv.bench.traces import Float64Array, Trace
from pagedkv.impl.requests import Limits
from pagedkv.spec.counts import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What a measured run is replayed with: usable blocks, positions of each, and the scheduler's limits."""

    blocks: int
    block_size: int
    limits: Limits


@dataclass(frozen=True, slots=True, eq=False)
class ReplayedRun:
    """A replay: float64 seconds after the first arrival, an entry a request in the trace's order; and the steps.

    `steps` has a row a step: begin and end in ms, sequences that run, requests that wait, blocks that are held or in
    quarantine, prompt tokens, decoding rows, positions read.
    """

    arrival_s: Float64Array
    admitted_s: Float64Array
    first_token_s: Float64Array
    last_token_s: Float64Array
    steps: Float64Array
    blocks: int
    counts: SchedulerCounts

    def at(self, seconds: Float64Array) -> tuple[Float64Array, Float64Array, Float64Array]:
        """Give running, waiting and per cent of the blocks at these times; nothing where no step is.

        Each is as it was when the step began: who has arrived since then does not count as waiting.
        """
        step = np.searchsorted(self.steps[:, 0], 1000 * seconds, "right") - 1
        inside = (step >= 0) & (1000 * seconds < self.steps[step, 1])
        running, waiting, used = np.where(inside[:, None], self.steps[step, 2:5], 0.0).T
        return running, waiting, 100 * used / self.blocks


class _StepMeter(Meter):
    """Keeps every step."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, ...]] = []

    def passed(self, stretch: Stretch) -> None:
        """Keep a stretch in which something is computed."""
        if stretch.prompt_tokens or stretch.decoding_rows:
            used = stretch.held_blocks + stretch.quarantined_blocks
            computed = (stretch.prompt_tokens, stretch.decoding_rows, stretch.context_tokens)
            self.rows.append((stretch.begin_ms, stretch.end_ms, stretch.running, stretch.waiting, used, *computed))


def replay_run(
    trace: Trace,
    settings: RunSettings,
    step_time: StepTime,
    on_gone: Callable[[int], None] = lambda _gone: None,
) -> ReplayedRun:
    """Replay all requests of a trace. Errors: `BadInput` where one of them is refused."""
    order = trace.by_arrival()
    arrivals = trace_arrivals(trace, order, 1000 * trace.arrival_s[order], TrafficSettings())
    tokens = TraceTokens(trace)
    requests, steps = RecordMeter(), _StepMeter()
    outcome = clocked_replay(
        arrivals,
        CacheSettings(blocks=settings.blocks, block_size=settings.block_size),
        settings.limits,
        step_time,
        [requests, steps],
        tokens=tokens if tokens.are_known else None,
        on_gone=on_gone,
    )
    scheduled = outcome.scheduled
    if scheduled.refusals:
        first = scheduled.refusals[0]
        what = f"request {first.request} is refused ({first.reason}) with {counted(settings.blocks, 'block')}"
        raise BadInput(str(trace.path), what, "a measured run has served all of them: are pool and trace its own?")
    records = sorted(requests.records)  # by request
    arrival_s, admitted_s, first_token_s, last_token_s = np.array([record[1:5] for record in records]).T / 1000
    return ReplayedRun(
        arrival_s, admitted_s, first_token_s, last_token_s, np.array(steps.rows), settings.blocks, scheduled.counts
    )

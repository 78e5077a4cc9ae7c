"""Replay a request trace through the scheduler: chunked prefill, preemption, prefix hits, cancellation, steps ahead.

The other loop (`replay`) reserves a request's final length when it is admitted, so nothing in it can go wrong and every
figure is known beforehand: it measures what blocks cost. This one admits what fits now and lets the scheduler deal with
the rest, as engines in use do: it measures what a pool is worth. Both stay, since each answers what the other cannot.

A turn of the loop is a step: requests that have arrived are submitted, a step is scheduled, and the oldest launch
completes once as many are in flight as may be, or nothing else can be done. What is sampled is what the trace says, or
else tokens that equal nothing (`replay_tokens`); a request is done after as many as the trace has. A request without
output tokens samples one, since a prompt's launch does. With `prefill_only` each samples one: the prefix hits of a
whole trace without its decode steps.

Cancellation: each request is cancelled with a probability, at a moment drawn from the seed: while it waits, or some
steps after its first admission (at most as many as it has outputs), wherever it is by then. Under the policy `priority`
priorities 0 to 255 are drawn as well, since no trace has any.

Cost: that of the scheduler, and a few passes over the batch a step. Prompts are made into tokens when the requests
before them are about to run, so that not all tokens of a trace need memory at once.
"""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from pagedkv.bench.replay_arrivals import TrafficSettings, blocks_needed_of, check_samples, trace_arrivals
from pagedkv.bench.replay_loop import ReplayLoop
from pagedkv.bench.replay_queue import ReplaySettings, arrival_steps, check_size
from pagedkv.bench.replay_tokens import TraceTokens
from pagedkv.bench.replay_watch import WatchedScheduler
from pagedkv.bench.scheduler_report import SchedulerReport
from pagedkv.bench.traces import Int64Array, Trace
from pagedkv.impl.cache import BlockCache
from pagedkv.impl.requests import Limits
from pagedkv.impl.scheduler import Scheduler

NO_STEPS: Int64Array = np.zeros(0, np.int64)


def replay_scheduled(
    trace: Trace,
    settings: ReplaySettings,
    limits: Limits,
    traffic: TrafficSettings,
    journal: Path | None = None,
    on_finished: Callable[[int], None] = lambda _finished: None,
    make_scheduler: Callable[[BlockCache, Limits], Scheduler] = Scheduler,
) -> SchedulerReport:
    """Replay `trace` through a scheduler and report what it did. `on_finished` hears how many requests have left.

    `make_scheduler` may make one that is watched (`replay_watch`).

    Errors: `BadInput` for a pool beyond reason or more samples than may run; `Broken` where the scheduler stands still,
    ends a request at another length than it has, or does not have all blocks back at the end. Cost: proportional to
    requests and tokens.
    """
    check_samples(traffic.samples, limits)
    blocks = settings.blocks or max(1, int(blocks_needed_of(trace, settings.block_size, traffic).sum()))
    check_size(trace, blocks, 0)
    order = trace.by_arrival()
    steps = arrival_steps(trace, order, settings.step_ms)
    arrivals = trace_arrivals(trace, order, steps, traffic)
    start_s = time.perf_counter()
    with BlockCache(blocks, settings.block_size, launches_in_flight=limits.steps_ahead, journal=journal) as cache:
        loop = _Loop(make_scheduler(cache, limits), arrivals, TraceTokens(trace), traffic.samples)
        loop.arrival_steps = steps
        while not loop.done:
            loop.turn()
            on_finished(loop.gone)
        loop.close()
    return SchedulerReport(
        requests=len(trace),
        blocks=blocks,
        block_size=settings.block_size,
        seconds=time.perf_counter() - start_s,
        refused=loop.refused,
        refusals=tuple(sorted(loop.refusals, key=lambda refusal: refusal.request)),
        counts=loop.counts,
    )


class _Loop(ReplayLoop):
    """A replay whose clock counts turns, and passes over those in which nothing happens."""

    now = 0.0
    arrival_steps = NO_STEPS  # of all requests, in their order

    def turn(self) -> None:
        """Do one step."""
        self.cancel_due()
        self.arrive(self.now)
        if isinstance(self.scheduler, WatchedScheduler):
            self.scheduler.held_back = self._held_back()
        plan = self.schedule()
        if plan.launch is not None:
            self.launched(plan, self.now + 1)
        if self.in_flight and (plan.launch is None or len(self.in_flight) == self.scheduler.limits.steps_ahead):
            self.complete()
        elif plan.launch is None and not plan.failed:
            following = self.idle()
            self.now = self.now if following is None else following
            return
        self.now += 1
        self.turns += 1

    def _held_back(self) -> int:
        """Count the requests that are there by now and wait outside the scheduler (`ReplayLoop.ahead`)."""
        there = int(np.searchsorted(self.arrival_steps, self.now, side="right"))
        return there - self.gone - len(self.live)

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
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pagedkv.bench.failures import BadInput
from pagedkv.bench.replay_queue import Refusal, ReplaySettings, arrival_steps, check_size
from pagedkv.bench.replay_tokens import Int32Array, TraceTokens
from pagedkv.bench.scheduler_report import SchedulerCounts, SchedulerReport
from pagedkv.bench.traces import Int64Array, Trace
from pagedkv.impl.cache import BlockCache
from pagedkv.impl.plans import Plan
from pagedkv.impl.refusals import Empty, TooLong, Unknown
from pagedkv.impl.requests import LOWEST_PRIORITY, Limits, Request
from pagedkv.impl.scheduler import Scheduler
from pagedkv.spec.refusals import Broken


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficSettings:
    """What is made of a trace's requests: samples of each, how many are cancelled, whether they stop at the prompt."""

    samples: int = 1
    cancel_rate: float = 0.0
    prefill_only: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class _Traffic:
    """The requests in order of arrival; arrays of one entry each."""

    request: Int64Array  # index in the trace
    arrival_step: Int64Array
    prompt: Int64Array
    outputs: Int64Array
    priority: Int64Array
    cancelled_after: Int64Array  # steps after admission; 0: while it waits; -1: never


def replay_scheduled(
    trace: Trace,
    settings: ReplaySettings,
    limits: Limits,
    traffic: TrafficSettings,
    journal: Path | None = None,
    on_finished: Callable[[int], None] = lambda _finished: None,
) -> SchedulerReport:
    """Replay `trace` through a scheduler and report what it did. `on_finished` hears how many requests have left.

    Errors: `BadInput` for a pool beyond reason or more samples than may run; `Broken` where the scheduler stands still,
    ends a request at another length than it has, or does not have all blocks back at the end. Cost: proportional to
    requests and tokens.
    """
    if traffic.samples > limits.max_running:
        what = f"{traffic.samples} samples a request, and {limits.max_running} sequences may run"
        raise BadInput("--samples", what, "give fewer, or a larger --max-running")
    requests = _traffic(trace, settings, traffic)
    need = traffic.samples * -(-(requests.prompt + requests.outputs - 1) // settings.block_size)
    blocks = settings.blocks or max(1, int(need[requests.prompt > 0].sum()))
    check_size(trace, blocks, 0)
    start_s = time.perf_counter()
    with BlockCache(blocks, settings.block_size, launches_in_flight=limits.steps_ahead, journal=journal) as cache:
        loop = _Loop(Scheduler(cache, limits), requests, TraceTokens(trace), traffic.samples)
        while not loop.done:
            loop.turn()
            on_finished(loop.left)
        loop.close()
        if not loop.tokens.are_known:  # else each of up to millions of published blocks would be looked at in turn
            cache.check()
    return SchedulerReport(
        requests=len(trace),
        blocks=blocks,
        block_size=settings.block_size,
        seconds=time.perf_counter() - start_s,
        refusals=tuple(sorted(loop.refusals, key=lambda refusal: refusal.request)),
        counts=loop.counts,
    )


def _traffic(trace: Trace, settings: ReplaySettings, traffic: TrafficSettings) -> _Traffic:
    """Sort the requests by arrival and draw what is drawn."""
    order = trace.by_arrival()
    outputs = np.ones(len(order), np.int64) if traffic.prefill_only else np.maximum(trace.output_tokens[order], 1)
    random = np.random.default_rng(traffic.seed)
    priority = random.integers(0, LOWEST_PRIORITY + 1, len(order))
    cancelled = random.random(len(order)) < traffic.cancel_rate
    after = np.where(cancelled, random.integers(0, outputs + 1), -1)
    return _Traffic(
        order, arrival_steps(trace, order, settings.step_ms), trace.prompt_tokens[order], outputs, priority, after
    )


class _Loop:
    """A replay between two turns. Requests go by their place in the order of arrival."""

    def __init__(self, scheduler: Scheduler, traffic: _Traffic, tokens: TraceTokens, samples: int) -> None:
        self.scheduler = scheduler
        self.traffic = traffic
        self.tokens = tokens
        self.samples = samples
        self.counts = SchedulerCounts()
        self.refusals: list[Refusal] = []
        self.now = 0
        self.next = 0  # request to be submitted
        self.accepted = 0
        self.place = np.empty(len(traffic.request), np.int64)  # of the request that was accepted as the i-th
        self.to_cancel: dict[int, list[int]] = {}  # step -> requests
        self.published = 0  # blocks
        self.in_flight: deque[Plan] = deque()
        # Enough waits to fill a step, so that it makes no difference that the others are not there yet.
        limits = scheduler.limits
        self.ahead = min(limits.max_running, limits.max_tokens_per_step) if limits.policy == "fcfs" else None

    @property
    def left(self) -> int:
        """How many requests have left in one way or another."""
        return self.counts.finished + self.counts.cancelled + self.counts.failed + len(self.refusals)

    @property
    def done(self) -> bool:
        """Whether all requests have left."""
        return self.left == len(self.traffic.request)

    def turn(self) -> None:
        """Do one step; pass over the time in which nothing happens."""
        self._arrive()
        for request in self.to_cancel.pop(self.now, ()):
            self._cancel(request)
        plan = self.scheduler.schedule()
        self._count(plan)
        if plan.launch is not None:
            self.in_flight.append(plan)
        if self.in_flight and (plan.launch is None or len(self.in_flight) == self.scheduler.limits.steps_ahead):
            self._complete()
        elif plan.launch is None and not plan.failed:
            self._idle()
            return
        self.now += 1

    def close(self) -> None:
        """Complete what is left and see that every block came back."""
        while self.in_flight:
            self._complete()
        cache = self.scheduler.cache
        usage = cache.counts
        if usage.free + usage.idle != cache.blocks:
            raise Broken("R-OWN-4", f"after the replay not all of {cache.blocks} blocks are free or idle ({usage})")
        self.counts.evictions = self.published - cache.published().size

    def _arrive(self) -> None:
        """Submit what has arrived, as far as it makes a difference now."""
        traffic, scheduler = self.traffic, self.scheduler
        while self.next < len(traffic.request) and (self.ahead is None or scheduler.waiting < self.ahead):
            place = self.next
            if traffic.arrival_step.item(place) > self.now:
                return
            self.next += 1
            request = traffic.request.item(place)
            prompt = self.tokens.prompt(request) if self.tokens.are_known else traffic.prompt.item(place)
            priority = traffic.priority.item(place)
            try:
                scheduler.submit(Request(place, prompt, traffic.outputs.item(place), self.samples, priority))
            except (Empty, TooLong) as refused:
                self.refusals.append(Refusal(request, type(refused).__name__))
                continue
            self.place[self.accepted] = place
            self.accepted += 1
            if traffic.cancelled_after.item(place) == 0:
                self.to_cancel.setdefault(self.now, []).append(place)

    def _cancel(self, request: int) -> None:
        try:
            self.scheduler.cancel(request)
        except Unknown:  # it has finished before
            return
        self.counts.cancelled += 1

    def _count(self, plan: Plan) -> None:
        """Count what a plan does, and draw up who is to be cancelled when."""
        counts, scheduler = self.counts, self.scheduler
        counts.failed += len(plan.failed)
        counts.preemptions += len(plan.preempted)
        for admission in plan.admitted:
            if admission.resumed:
                counts.recomputed_tokens += admission.tokens - admission.hit_tokens
                counts.resumed_hit_tokens += admission.hit_tokens
                continue
            counts.prompt_tokens += admission.tokens
            counts.hit_tokens += admission.hit_tokens
            after = self.traffic.cancelled_after.item(admission.request)
            if after > 0:
                self.to_cancel.setdefault(self.now + after, []).append(admission.request)
        if plan.launch is not None:
            counts.steps += 1
            counts.launched_tokens += int(plan.counts.sum())
            counts.peak_running = max(counts.peak_running, scheduler.sequences)
            counts.peak_blocks = max(counts.peak_blocks, scheduler.cache.blocks - scheduler.cache.available)

    def _complete(self) -> None:
        """Complete the oldest launch with what the trace says; whoever is done must be as long as the trace says."""
        plan = self.in_flight.popleft()
        launch = plan.launch
        assert launch is not None
        places = self.place[launch.seqs // self.samples]
        sampled = self._sampled(plan, places) if self.tokens.are_known else np.zeros(int(plan.samples.sum()), np.int32)
        finished, publication = self.scheduler.complete(launch.id, sampled)
        self.published += 0 if publication is None else publication.blocks.size
        self.counts.finished += len(finished)
        if finished:
            ends = np.isin(places, finished) & (plan.samples > 0)
            expected = self.traffic.prompt[places] + self.traffic.outputs[places] - 1
            wrong = np.flatnonzero(ends & (launch.lengths != expected))
            if wrong.size:
                request, length = self.traffic.request[places[wrong[0]]], launch.lengths[wrong[0]]
                raise Broken("R-CAP-2", f"request {request} ends with {length} tokens, not with {expected[wrong[0]]}")

    def _sampled(self, plan: Plan, places: Int64Array) -> Int32Array:
        """Give the tokens of a launch: what the trace has at the positions behind its rows."""
        assert plan.launch is not None
        rows = np.repeat(np.arange(places.size), plan.samples)
        number = np.arange(rows.size) - np.repeat(np.cumsum(plan.samples) - plan.samples, plan.samples)
        samples = plan.launch.seqs[rows] % self.samples + number
        return self.tokens.at(self.traffic.request[places[rows]], plan.launch.lengths[rows], samples)

    def _idle(self) -> None:
        """Nothing runs and nothing is in flight: go on to the next arrival."""
        if self.scheduler.waiting or self.scheduler.running:
            usage = self.scheduler.cache.counts
            raise Broken("R-LIFE-4", f"nothing is in flight, nothing is launched, and somebody waits ({usage})")
        if self.next < len(self.traffic.request):
            self.now = self.traffic.arrival_step.item(self.next)

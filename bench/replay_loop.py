"""What every replay through the scheduler does, whatever its clock: submit, cancel, count, give tokens, check the ends.

Requests come from an iterator in order of arrival and are forgotten as they leave, so a replay needs memory for those
that wait or run, and for no others. A request is submitted when it has arrived; under `fcfs` only as long as those that
wait cannot fill a step, since it makes no difference and a prompt's tokens need memory: the others wait here. Whoever
would leave before a step is planned, refused or cancelled as it waits, never does: it is submitted as it arrives. What
is due to be cancelled leaves before others are submitted, so that its place is filled in the same turn.

The loop keeps its own books, a number a slot of the scheduler: which request, how many tokens it still gets, how many
positions it has. So who is done is known here before the scheduler says so, and each must be as long as the trace has
it. What is sampled is what the trace says (`replay_tokens`), else 0.

Cost: that of the scheduler, and a few passes over the batch a step.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from pagedkv.bench.failures import BadInput
from pagedkv.bench.replay_arrivals import Arrival
from pagedkv.bench.replay_queue import Refusal
from pagedkv.bench.replay_tokens import Int32Array, TraceTokens
from pagedkv.bench.scheduler_report import SchedulerCounts
from pagedkv.bench.traces import Int64Array
from pagedkv.impl.arrays import IndexArray, grown
from pagedkv.impl.plans import Admission, Flight, Plan
from pagedkv.impl.refusals import Empty, TooLong, Unknown
from pagedkv.impl.requests import Request, accepted
from pagedkv.impl.results import Launch
from pagedkv.impl.scheduler import Scheduler
from pagedkv.spec.counts import counted
from pagedkv.spec.refusals import Broken


class InFlight(NamedTuple):
    """A launch that is not completed, and when it will be, on the loop's clock."""

    launch: Launch
    plan: Plan
    flight: Flight
    end: float


def positions_written(plan: Plan, flight: Flight) -> int:
    """Give how many positions a launch writes: a row each where all decode."""
    return plan.counts.size if plan.counts is flight.decoding else int(plan.counts.sum())


class ReplayLoop:
    """A replay between two turns; who inherits it has the clock. `cancel_due`, `arrive`, `schedule`, `complete`."""

    def __init__(
        self, scheduler: Scheduler, arrivals: Iterator[Arrival], tokens: TraceTokens | None, samples: int
    ) -> None:
        self.scheduler = scheduler
        self.running = scheduler.serving.running
        self.tokens = tokens if tokens is not None and tokens.are_known else None
        self.samples = samples
        self.counts = SchedulerCounts()
        self.refused = 0
        self.refusals: list[Refusal] = []
        self.arrived: deque[Arrival] = deque()  # and not submitted
        self.coming = arrivals
        self.next: Arrival | None = next(arrivals, None)
        self.live: dict[int, Arrival] = {}  # submitted and not gone
        self.unfinished: dict[int, int] = {}  # request -> its samples that are not done, if there are several
        self.turns = 0
        self.to_cancel: dict[int, list[int]] = {}  # turn -> requests
        self.published = 0  # blocks
        self.in_flight: deque[InFlight] = deque()
        slots = len(self.running.owner)
        self.request = np.zeros(slots, np.int64)  # by slot
        self.left = np.zeros(slots, np.int64)  # by slot: tokens that it still gets
        self.final = np.zeros(slots, np.int64)  # by slot: positions that it holds in the end
        limits = scheduler.limits
        # Enough waits to fill a step, so that it makes no difference that the others are not there yet.
        self.ahead = min(limits.max_running, limits.max_tokens_per_step) if limits.policy == "fcfs" else None

    @property
    def gone(self) -> int:
        """How many requests have left in one way or another."""
        counts = self.counts
        return counts.finished + counts.cancelled + counts.failed + self.refused

    @property
    def done(self) -> bool:
        """Whether all requests have left."""
        return not self.live and not self.arrived and self.next is None

    def pull(self, now: float) -> bool:
        """Let the next request arrive, if it is there by now. Errors: `BadInput` where requests are not in order."""
        arrival = self.next
        if arrival is None or arrival.at > now:
            return False
        if arrival.cancelled_after == 0 or self._is_to_be_refused(arrival):
            self._submit(arrival)
        else:
            self.arrived.append(arrival)
        self.next = next(self.coming, None)
        if self.next is not None and self.next.at < arrival.at:
            what = f"it arrives before request {arrival.request}, which comes first"
            raise BadInput(f"request {self.next.request}", what, "sort requests by their arrival")
        return True

    def arrive(self, now: float) -> None:
        """Submit what has arrived, as far as it makes a difference now."""
        while self.ahead is None or self.scheduler.waiting < self.ahead:
            if self.arrived:
                self._submit(self.arrived.popleft())
            elif not self.pull(now):
                return

    def cancel_due(self) -> None:
        """Cancel the requests whose turn it is; before `arrive`, which fills the places that they leave."""
        for request in self.to_cancel.pop(self.turns, ()):
            with suppress(Unknown):  # it has finished before
                self._cancel(request)

    def schedule(self) -> Plan:
        """Plan and launch a step, count what it does, and draw up who is to be cancelled when."""
        plan, counts, scheduler = self.scheduler.schedule(), self.counts, self.scheduler
        counts.failed += len(plan.failed)
        counts.preemptions += len(plan.preempted)
        for request in plan.failed:
            self.forget(request)
        for admission in plan.admitted:
            self.admit(admission, scheduler.serving.live[admission.request].slots)
        if plan.launch is not None:
            counts.steps += 1
            counts.peak_running = max(counts.peak_running, scheduler.sequences)
            counts.peak_blocks = max(counts.peak_blocks, scheduler.cache.blocks - scheduler.cache.available)
        return plan

    def launched(self, plan: Plan, end: float) -> None:
        """Note that a plan's launch is in flight until `end`."""
        assert plan.launch is not None, "a plan without launch does nothing"
        flight = self.scheduler.serving.flights[plan.launch.id]
        self.counts.launched_tokens += positions_written(plan, flight)
        self.in_flight.append(InFlight(plan.launch, plan, flight, end))

    def admit(self, admission: Admission, slots: list[int]) -> None:
        """Count an admission; open the books of a request that is admitted for the first time."""
        counts, arrival = self.counts, self.live[admission.request]
        if admission.resumed:
            counts.recomputed_tokens += admission.tokens - admission.hit_tokens
            counts.resumed_hit_tokens += admission.hit_tokens
            return
        counts.prompt_tokens += admission.tokens
        counts.hit_tokens += admission.hit_tokens
        if arrival.cancelled_after > 0:
            self.to_cancel.setdefault(self.turns + arrival.cancelled_after, []).append(admission.request)
        if len(self.running.owner) > self.left.size:
            self.grow(len(self.running.owner))
        for slot in slots:
            self.request[slot] = arrival.request
            self.left[slot] = arrival.outputs
            self.final[slot] = arrival.prompt_tokens + arrival.outputs - 1

    def grow(self, slots: int) -> None:
        """Make room in the books."""
        self.request, self.left, self.final = (grown(book, slots) for book in (self.request, self.left, self.final))

    def complete(self) -> None:
        """Complete the oldest launch with what the trace says; whoever is done must be as long as the trace says."""
        launch, plan, flight, _ = self.in_flight.popleft()
        receivers = flight.receivers
        sampled = np.zeros(receivers.size, np.int32) if self.tokens is None else self._sampled(plan, flight)
        leavers = self.scheduler.limits.steps_ahead > 1  # else nobody leaves between a launch and its end
        alive = self.running.life[receivers] == flight.receiver_lives if leavers else None
        finished, publication = self.scheduler.complete(launch.id, sampled)
        self.published += 0 if publication is None else publication.blocks.size
        places = None  # among all tokens of the launch
        if alive is not None and np.count_nonzero(alive) != alive.size:
            places = np.flatnonzero(alive)
            receivers = receivers[places]
        self.sampled(receivers, any_first=bool(flight.firsts))
        left = self.left[receivers] - 1
        self.left[receivers] = left
        if finished or np.count_nonzero(left) != left.size:
            ends = np.flatnonzero(left == 0)
            rows = ends if places is None else places[ends]
            if flight.receivers is not flight.slots:  # a row may give no token, or several
                rows = np.repeat(np.arange(flight.slots.size), plan.samples)[rows]
            self._finish(receivers[ends], launch.lengths[rows], finished)

    def close(self) -> None:
        """Complete what is left and see that every block came back."""
        while self.in_flight:
            self.complete()
        cache = self.scheduler.cache
        usage = cache.counts
        if usage.free + usage.idle != cache.blocks:
            raise Broken("R-OWN-4", f"after the replay not all of {cache.blocks} blocks are free or idle ({usage})")
        self.counts.evictions = self.published - cache.published().size
        if self.tokens is None:  # else each of up to millions of published blocks would be looked at in turn
            cache.check()

    def idle(self) -> float | None:
        """Nothing runs and nothing is in flight: give the time of the next arrival, None where there is none."""
        if self.scheduler.waiting or self.scheduler.running:
            usage = self.scheduler.cache.counts
            raise Broken("R-LIFE-4", f"nothing is in flight, nothing is launched, and somebody waits ({usage})")
        return None if self.next is None else self.next.at

    def finished(self, request: int) -> None:
        """Note that a request is done."""
        self.forget(request)
        self.counts.finished += 1

    def forget(self, request: int) -> None:
        """Close the books of a request that leaves."""
        del self.live[request]
        self.unfinished.pop(request, None)

    def sampled(self, slots: IndexArray, *, any_first: bool) -> None:
        """Hear which slots have been given a token by a launch; `any_first`: for some it may be the first."""

    def refuse(self, refusal: Refusal) -> None:
        """Note a refusal."""
        self.refused += 1
        self.refusals.append(refusal)

    def _submit(self, arrival: Arrival) -> None:
        """Hand a request to the scheduler, or note why it would not have it."""
        request = arrival.request
        prompt = arrival.prompt_tokens if self.tokens is None else self.tokens.prompt(request)
        try:
            self.scheduler.submit(Request(request, prompt, arrival.outputs, self.samples, arrival.priority))
        except (Empty, TooLong) as refused:
            self.refuse(Refusal(request, type(refused).__name__))
            return
        self.live[request] = arrival
        if self.samples > 1:
            self.unfinished[request] = self.samples
        if arrival.cancelled_after == 0:
            self._cancel(request)

    def _is_to_be_refused(self, arrival: Arrival) -> bool:
        """Say whether the scheduler would not have a request, by its own rule, which needs no tokens of the prompt."""
        cache, limits = self.scheduler.cache, self.scheduler.limits
        request = Request(arrival.request, arrival.prompt_tokens, arrival.outputs, self.samples, arrival.priority)
        try:
            accepted(request, limits, cache.blocks, cache.block_size, 0)
        except (Empty, TooLong):
            return True
        return False

    def _cancel(self, request: int) -> None:
        self.scheduler.cancel(request)
        self.forget(request)
        self.counts.cancelled += 1

    def _finish(self, slots: IndexArray, lengths: Int64Array, finished: tuple[int, ...]) -> None:
        """Compare the samples that are done, and how long they are, with what the scheduler says and the trace."""
        wrong = np.flatnonzero(lengths != self.final[slots])
        if wrong.size:
            place = wrong[0]
            request, final = self.request[slots[place]], self.final[slots[place]]
            raise Broken("R-CAP-2", f"request {request} ends with {counted(lengths[place], 'token')}, not with {final}")
        expected = self.request[slots].tolist()
        if self.samples > 1:
            expected = [request for request in expected if self._is_last_sample(request)]
        if set(expected) != set(finished):
            early = set(finished).symmetric_difference(expected)
            raise Broken("R-CAP-2", f"request {min(early)} ends before or after it has all its tokens")
        for request in finished:
            self.finished(request)

    def _is_last_sample(self, request: int) -> bool:
        """Count a sample that is done; say whether it was the last of its request."""
        self.unfinished[request] -= 1
        return self.unfinished[request] == 0

    def _sampled(self, plan: Plan, flight: Flight) -> Int32Array:
        """Give the tokens of a launch: what the trace has at the positions behind its rows.

        A row whose request has left gets some token: it is nobody's.
        """
        assert plan.launch is not None, "a plan without launch samples nothing"
        assert self.tokens is not None, "there are tokens to be had"
        rows = np.repeat(np.arange(flight.slots.size), plan.samples)
        number = np.arange(rows.size) - np.repeat(np.cumsum(plan.samples) - plan.samples, plan.samples)
        samples = plan.launch.seqs[rows] % self.samples + number
        return self.tokens.at(self.request[flight.slots[rows]], plan.launch.lengths[rows], samples)

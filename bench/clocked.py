"""Clocked replay: the scheduler on simulated time. Requests arrive when they did, a step lasts what a model says.

The device does one launch after the other. A launch begins when it is planned or when the one before ends, whichever is
later, and lasts `StepTime.step_ms`; its tokens are known at its end, and not before. Planning takes no time: what the
host costs is part of the model's `base`. With two steps ahead the next launch is planned while one runs, hence without
the requests that arrive meanwhile, as in an engine. Between arrivals in which nothing runs, time is passed over.

Everything else is real: the scheduler and the cache are those that engines use (`replay_loop`). What happens is told
to meters as it happens (`meters`), and nothing is kept here for requests that have left, so a million of them, streamed
from a generator, need the memory of those that run.

Considered: simulation of the device beneath a step (LLMServingSim, IISWC '24: right for hardware that is not there
yet, a thousand times slower); a queueing formula (says nothing of blocks). Vidur (MLSys '24) goes the same way as this.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pagedkv.bench.meters import Meter, RequestRecord, Stretch
from pagedkv.bench.replay_arrivals import Arrival
from pagedkv.bench.replay_loop import ReplayLoop, positions_written
from pagedkv.bench.replay_queue import Refusal
from pagedkv.bench.replay_tokens import TraceTokens
from pagedkv.bench.scheduler_report import SchedulerReport
from pagedkv.bench.step_time import StepTime
from pagedkv.impl.arrays import IndexArray, grown
from pagedkv.impl.cache import BlockCache
from pagedkv.impl.plans import Admission, Plan
from pagedkv.impl.requests import Limits
from pagedkv.impl.scheduler import Scheduler

REFUSALS_KEPT_MAX = 1000  # by name; all are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """The pool: usable blocks, and positions of each; where its operations are journaled, if anywhere."""

    blocks: int
    block_size: int = 16
    journal: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockedOutcome:
    """What came of a replay beside what the meters took: what the scheduler did, and how fast the replay went.

    `sequence_steps` are rows of launches; `cpu_seconds` is what the loop took of this process, whatever else ran on
    the machine; `scheduled.seconds` is the time on the wall.
    """

    scheduled: SchedulerReport
    sequence_steps: int
    cpu_seconds: float

    @property
    def sequence_steps_per_s(self) -> float:
        """The rate of the replay itself, by the clock on the wall."""
        return self.sequence_steps / self.scheduled.seconds if self.scheduled.seconds > 0 else 0.0

    @property
    def sequence_steps_per_cpu_s(self) -> float:
        """The rate of the replay itself, as it would be on a machine with nothing else to do."""
        return self.sequence_steps / self.cpu_seconds if self.cpu_seconds > 0 else 0.0


def clocked_replay(
    arrivals: Iterator[Arrival],
    cache: CacheSettings,
    limits: Limits,
    step_time: StepTime,
    meters: Sequence[Meter],
    *,
    tokens: TraceTokens | None = None,
    samples: int = 1,
    on_gone: Callable[[int], None] = lambda _gone: None,
) -> ClockedOutcome:
    """Replay requests, which arrive in ms of simulated time; tell `meters`. `on_gone` hears how many have left.

    `tokens` are those of the trace that the requests are of, for prefix hits. Errors: `BadInput` where arrivals are not
    in order, `Broken` as in `replay_scheduled`. Cost: proportional to rows of launches and requests; memory to those
    that wait or run.
    """
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    with BlockCache(
        cache.blocks, cache.block_size, launches_in_flight=limits.steps_ahead, journal=cache.journal
    ) as block_cache:
        loop = _ClockedLoop(Scheduler(block_cache, limits), arrivals, tokens, samples, step_time, meters)
        while not loop.done:
            loop.turn()
            on_gone(loop.gone)
        loop.close()
    scheduled = SchedulerReport(
        requests=loop.gone,
        blocks=cache.blocks,
        block_size=cache.block_size,
        seconds=time.perf_counter() - start_s,
        refused=loop.refused,
        refusals=tuple(loop.refusals),
        counts=loop.counts,
    )
    return ClockedOutcome(
        scheduled=scheduled,
        sequence_steps=loop.sequence_steps,
        cpu_seconds=time.process_time() - start_cpu_s,
    )


class _ClockedLoop(ReplayLoop):
    """A replay on simulated time, in ms."""

    def __init__(
        self,
        scheduler: Scheduler,
        arrivals: Iterator[Arrival],
        tokens: TraceTokens | None,
        samples: int,
        step_time: StepTime,
        meters: Sequence[Meter],
    ) -> None:
        super().__init__(scheduler, arrivals, tokens, samples)
        self.step_time = step_time
        self.meters = meters
        self.now_ms = 0.0 if self.next is None else self.next.at
        self.planned_until_ms = self.now_ms  # the device is busy until then
        self.sequence_steps = 0
        self.admitted_ms: dict[int, float] = {}  # request -> when it was admitted first
        self.first_ms: dict[int, float] = {}  # request -> when it had its first token
        self.fresh = np.zeros(self.left.size, bool)  # by slot: it has had no token
        self.positions = np.zeros(self.left.size, np.int64)  # by slot: those that it has room for

    def turn(self) -> None:
        """Plan a step if one more may be in flight; else go on to the next moment at which something happens."""
        while self.pull(self.now_ms):
            pass
        self.arrive(self.now_ms)
        self.cancel_due()
        plan = self.schedule()
        if plan.launch is not None:
            self._launch(plan)
            self.turns += 1
        if self.in_flight and (plan.launch is None or len(self.in_flight) == self.scheduler.limits.steps_ahead):
            self._go_on()
        elif plan.launch is None and not plan.failed:
            self._pass_over()

    def pull(self, now: float) -> bool:
        """Let the next request arrive, if it is there by now, and tell the meters since when it has been there."""
        arrival = self.next
        if arrival is None or not super().pull(now):
            return False
        for meter in self.meters:
            meter.arrived(arrival.at, now)
        return True

    def grow(self, slots: int) -> None:
        """Make room in the books."""
        super().grow(slots)
        self.fresh, self.positions = grown(self.fresh, slots), grown(self.positions, slots)

    def admit(self, admission: Admission, slots: list[int]) -> None:
        """Note when a request is admitted, and how many positions its samples begin with."""
        super().admit(admission, slots)
        for slot in slots:
            self.positions[slot] = self.scheduler.serving.known(slot)
        if not admission.resumed:
            for slot in slots:
                self.fresh[slot] = True
            self.admitted_ms[admission.request] = self.now_ms

    def finished(self, request: int) -> None:
        """Tell the meters of a request that is done."""
        arrival = self.live[request]
        record = RequestRecord(
            request,
            arrival.at,
            self.admitted_ms[request],
            self.first_ms[request],
            self.now_ms,
            arrival.prompt_tokens,
            arrival.outputs,
        )
        for meter in self.meters:
            meter.finished(record)
        super().finished(request)

    def forget(self, request: int) -> None:
        """Forget when what happened to a request."""
        super().forget(request)
        self.admitted_ms.pop(request, None)
        self.first_ms.pop(request, None)

    def sampled(self, slots: IndexArray, *, any_first: bool) -> None:
        """Note first tokens, and tell the meters of all."""
        firsts = slots[self.fresh[slots]] if any_first else None
        if firsts is not None:
            self.fresh[firsts] = False
            for request in self.request[firsts].tolist():
                self.first_ms.setdefault(request, self.now_ms)
        for meter in self.meters:
            meter.sampled(slots, firsts if firsts is not None and firsts.size else None, self.now_ms)

    def refuse(self, refusal: Refusal) -> None:
        """Note a refusal; only the first thousand by name, so that memory does not grow."""
        super().refuse(refusal)
        del self.refusals[REFUSALS_KEPT_MAX:]

    def _launch(self, plan: Plan) -> None:
        """Give a launch its time, and tell the meters what there is during it."""
        launch = plan.launch
        assert launch is not None, "a plan without launch takes no time"
        flight = self.scheduler.serving.flights[launch.id]
        rows = flight.slots.size
        decoding_rows = rows if flight.decoding is plan.counts else int(flight.decoding.sum())
        prompt_tokens = positions_written(plan, flight) - decoding_rows
        context_tokens = int(launch.lengths.sum())
        begin_ms = max(self.now_ms, self.planned_until_ms)
        end_ms = begin_ms + self.step_time.step_ms(prompt_tokens, decoding_rows, context_tokens)
        self.planned_until_ms = end_ms
        self.sequence_steps += rows
        self.launched(plan, end_ms)
        self.positions[flight.slots] += flight.decoding
        self._tell(begin_ms, end_ms, prompt_tokens, decoding_rows, context_tokens)

    def _tell(
        self, begin_ms: float, end_ms: float, prompt_tokens: int, decoding_rows: int, context_tokens: int
    ) -> None:
        """Tell the meters of a stretch of time, which begins as things are now."""
        scheduler = self.scheduler
        usage = scheduler.cache.counts
        tail_tokens = int((-self.positions[self.running.order] % scheduler.cache.block_size).sum())
        stretch = Stretch(
            begin_ms,
            end_ms,
            scheduler.sequences,
            scheduler.waiting + len(self.arrived),
            usage.held,
            usage.quarantined,
            usage.idle,
            tail_tokens,
            prompt_tokens,
            decoding_rows,
            context_tokens,
        )
        for meter in self.meters:
            meter.passed(stretch)

    def _go_on(self) -> None:
        """Go on to the end of the oldest launch; or to an arrival before it, if one more launch may be in flight."""
        end_ms = self.in_flight[0].end
        room = len(self.in_flight) < self.scheduler.limits.steps_ahead
        if room and self.next is not None and self.next.at < end_ms:
            self.now_ms = self.next.at
            return
        self.now_ms = end_ms
        self.complete()

    def _pass_over(self) -> None:
        """Go on to the next arrival."""
        next_ms = self.idle()
        if next_ms is not None:  # later than now: whoever had arrived has been submitted
            self._tell(self.now_ms, next_ms, 0, 0, 0)
            self.now_ms = next_ms

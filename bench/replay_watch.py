"""What a replay shows while it runs, for its time line and its curves, and what stands between it and what it drives.

A watched scheduler is the scheduler with a stopwatch around its steps; a watched engine is the engine behind the
`Recorder` of the baselines. Both answer what they would without it. A replay on simulated time has meters and needs
neither; it is told of here only so that all three are asked for in one way.

Curves are those of `TimelineMeter`: bounded, however long a replay is. Where there is no clock they go over launches.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter

from pagedkv.bench.baselines import Recorder, Samples
from pagedkv.bench.engines import Engine, EngineFactory, EngineOptions
from pagedkv.bench.meters import Meter, Stretch
from pagedkv.bench.timeline_file import DEVICE, HOST, TimelineFile, TimelineFileMeter
from pagedkv.bench.timeline_meter import TimelineMeter
from pagedkv.impl.arguments import Integers
from pagedkv.impl.cache import BlockCache
from pagedkv.impl.plans import Completion, Plan
from pagedkv.impl.requests import Limits
from pagedkv.impl.scheduler import Scheduler


@dataclass(slots=True)
class ReplayWatch:
    """What is wanted of a replay: a time line in a file, curves; `curve` is there once it has begun."""

    timeline: TimelineFile | None = None
    wants_curve: bool = False
    curve: TimelineMeter | None = field(init=False, default=None)

    def scheduler(self, cache: BlockCache, limits: Limits) -> Scheduler:
        """Make a scheduler that is watched, where anything is wanted."""
        if self.timeline is None and not self.wants_curve:
            return Scheduler(cache, limits)
        if self.wants_curve:
            self.curve = TimelineMeter(cache.blocks, cache.block_size)
        return WatchedScheduler(cache, limits, self.timeline, self.curve)

    def meters(self) -> list[Meter]:
        """Give the meters for a replay on simulated time, which has curves of its own."""
        return [] if self.timeline is None else [TimelineFileMeter(self.timeline)]

    def engine(self, opened: EngineFactory) -> EngineFactory:
        """Make what opens an engine open one that is watched, where a curve is wanted."""
        if not self.wants_curve:
            return opened

        @contextmanager
        def watched(options: EngineOptions) -> Iterator[Engine]:
            samples, block_size = Samples(), options.block_size
            with opened(options) as engine:
                yield Recorder(engine, options.blocks * block_size, block_size, samples)
            self.curve = TimelineMeter(options.blocks, block_size)
            for stretch in _stretches(samples, block_size):
                self.curve.passed(stretch)

        return watched


def _stretches(samples: Samples, block_size: int) -> Iterable[Stretch]:
    """Give a stretch a launch; `Recorder` knows who runs, and not who waits."""
    columns = zip(samples.running, samples.used, samples.internal, samples.in_flight, strict=True)
    for launch, (running, used, tails, in_flight) in enumerate(columns):
        held, quarantined = (used + tails) // block_size, in_flight // block_size
        yield Stretch(launch, launch + 1, running, 0, held, quarantined, 0, tails)


class WatchedScheduler(Scheduler):
    """A scheduler whose steps are seen: by a time line, in the host's time, and by a curve over launches.

    `held_back` is for whoever drives it: requests that are there and not submitted yet; they wait as the others do. A
    clone of it is not watched.
    """

    _timeline: TimelineFile | None = None
    _curve: TimelineMeter | None = None
    _start_s = 0.0
    held_back = 0

    def __init__(
        self, cache: BlockCache, limits: Limits, timeline: TimelineFile | None, curve: TimelineMeter | None
    ) -> None:
        super().__init__(cache, limits)
        self._timeline, self._curve = timeline, curve
        self._start_s = perf_counter()
        self._launches = 0
        self._launched_us: dict[int, float] = {}

    def schedule(self) -> Plan:
        """See `Scheduler`."""
        begin_us = self._now_us()
        plan = super().schedule()
        end_us = self._now_us()
        if plan.launch is None:
            return plan
        usage = self.cache.counts
        blocks = usage.held, usage.quarantined, usage.idle
        waiting = self.waiting + self.held_back
        if self._curve is not None:
            self._curve.passed(Stretch(self._launches, self._launches + 1, self.sequences, waiting, *blocks))
            self._launches += 1
        if self._timeline is not None:
            facts = {
                "launch": plan.launch.id,
                "rows": plan.launch.seqs.size,
                "tokens": int(plan.counts.sum()),
                "admitted": len(plan.admitted),
                "preempted": len(plan.preempted),
            }
            self._launched_us[plan.launch.id] = end_us
            self._timeline.slice(HOST, "plan", begin_us, end_us, **facts)
            self._timeline.counters(end_us, self.sequences, waiting, *blocks)
        return plan

    def complete(self, launch: int, sampled: Integers, stopped: Iterable[int] = ()) -> Completion:
        """See `Scheduler`."""
        begin_us = self._now_us()
        completion = super().complete(launch, sampled, stopped)
        end_us = self._now_us()
        if self._timeline is not None:
            track, launched_us = DEVICE + launch % self.limits.steps_ahead, self._launched_us.pop(launch)
            self._timeline.slice(track, "launch", launched_us, begin_us, launch=launch)
            finished = len(completion.finished)
            self._timeline.slice(HOST, "retire", begin_us, end_us, launch=launch, finished=finished)
        return completion

    def _now_us(self) -> float:
        return (perf_counter() - self._start_s) * 1e6

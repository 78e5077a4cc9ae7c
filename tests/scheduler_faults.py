"""The faults of real schedulers, planted in our own: each a few lines that undo one precaution.

As with those of the cache (`planted_faults`), each was met in public in some serving engine, and each is a scheduler
like the sound one to the drivers.
"""

from collections.abc import Callable
from typing import Any
from unittest import mock

from pagedkv.bench.scheduler_adapter import ImplementedScheduler
from pagedkv.impl import step
from pagedkv.impl.running import Running
from pagedkv.impl.scheduler import Scheduler
from pagedkv.impl.serving import Serving
from pagedkv.impl.waiting import Waiting
from pagedkv.spec.requests import Limits
from pagedkv.spec.state import Config


class Faulty(ImplementedScheduler):
    """The sound scheduler, with a fault planted in one of its parts."""

    serving: type[Serving] = Serving
    running: type[Running] = Running
    waiting: type[Waiting] = Waiting

    def __init__(self, config: Config, limits: Limits) -> None:
        super().__init__(config, limits)
        self.scheduler._serving.__class__ = self.serving
        self.scheduler._serving.running.__class__ = self.running
        self.scheduler._serving.waiting.__class__ = self.waiting


def patched_step(name: str, replacement: Callable[..., Any]) -> type[Scheduler]:
    """Return a scheduler one function of whose steps is another."""

    class Patched(Scheduler):
        __slots__ = ()

        def schedule(self) -> Any:
            with mock.patch.object(step, name, replacement):
                return super().schedule()

    return Patched


_make_room = step._make_room


def _with_the_victims(serving: Any, planned: Any) -> None:
    slots, counts, decoding = planned.slots, planned.counts, planned.decoding
    _make_room(serving, planned)
    if planned.preempted:
        chunks = decoding == 0
        planned.slots, planned.counts, planned.decoding = slots[chunks], counts[chunks], decoding[chunks]


class VictimInThePlan(Faulty):
    """A chunk of a prompt stays in the plan though its request was preempted: it is launched without a sequence."""

    scheduler_class = patched_step("_make_room", _with_the_victims)


class RecomputeFromTheStart(Faulty):
    """What was sampled is forgotten by a preemption: the prompt alone is computed anew."""

    class serving(Serving):  # noqa: N801  (named as the attribute that it is)
        """Know the prompt alone."""

        __slots__ = ()

        def known(self, slot: int) -> int:
            request = self.running.owner[slot]
            return request.prompt_tokens if request else 0


class PendingKept(Faulty):
    """Tokens on their way to a preempted sequence count as if they were still to come."""

    class running(Running):  # noqa: N801  (named as the attribute that it is)
        """Keep the placeholders."""

        __slots__ = ()

        def stop(self, slot: int) -> int:
            more = self.more.item(slot)
            name = super().stop(slot)
            self.more[slot] = more
            return name


class OldResultTaken(Faulty):
    """A result is taken for whoever has the sequence's name now."""

    class running(Running):  # noqa: N801  (named as the attribute that it is)
        """Give a sample the same life each time."""

        __slots__ = ()

        def begin(self, slot: int, behind: int) -> None:
            super().begin(slot, behind)
            self.life[slot] = 1 + self.name.item(slot)


_walk = step._walk


class BudgetNotCounted(Faulty):
    """A step holds one token more than it may."""

    scheduler_class = patched_step("_walk", lambda running, budget: _walk(running, budget + 1))


_has_room = step._has_room


def _with_watermark_always(serving: Any, request: Any) -> bool:
    with mock.patch.object(serving, "running_requests", max(1, serving.running_requests)):
        return _has_room(serving, request)


class WatermarkWhereNothingRuns(Faulty):
    """The watermark is left even where nothing runs: a request as long as the pool waits for ever."""

    scheduler_class = patched_step("_has_room", _with_watermark_always)


class Overtaking(Faulty):
    """The smallest request is let in first, so that a long one starves."""

    class waiting(Waiting):  # noqa: N801  (named as the attribute that it is)
        """Look for the shortest prompt."""

        __slots__ = ()

        def push(self, request: Any) -> None:
            request.rank += request.prompt_tokens * 2**40
            super().push(request)


class RankLost(Faulty):
    """A preempted request comes back behind all that wait."""

    class waiting(Waiting):  # noqa: N801  (named as the attribute that it is)
        """Let who has run before wait behind the others."""

        __slots__ = ()

        def push(self, request: Any) -> None:
            request.rank += 2**40 * bool(request.slots)
            super().push(request)


class HoldAndWait(Faulty):
    """A preempted request waits with the blocks of its first sequence."""

    class serving(Serving):  # noqa: N801  (named as the attribute that it is)
        """Release all sequences but the first."""

        __slots__ = ()

        def _stop(self, request: Any) -> None:
            kept = request.slots[:1]
            with mock.patch.object(request, "slots", request.slots[1:]):
                super()._stop(request)
            for slot in kept:
                self.running.stop(slot)
            self.running.sequences -= len(kept)


class FailedLaunchPublished(Faulty):
    """What a failed launch should have written is published."""

    class scheduler_class(Scheduler):  # noqa: N801  (named as the attribute that it is)
        """Publish when a launch retires, whatever became of it."""

        __slots__ = ()

        def fail(self, launch: int) -> Any:
            kind, flight = type(self.cache), self._serving.flights.get(launch)
            retire = kind.retire

            def retire_and_publish(cache: Any, launch_id: int) -> Any:
                freed = retire(cache, launch_id)
                if flight:
                    self._serving.publish(flight)
                return freed

            with mock.patch.object(kind, "retire", retire_and_publish):
                return super().fail(launch)


class PreemptsTooMuch(Faulty):
    """Blocks that are about to leave quarantine are not counted: somebody is preempted for them."""

    class scheduler_class(Scheduler):  # noqa: N801  (named as the attribute that it is)
        """Take what waits for held."""

        __slots__ = ()

        def schedule(self) -> Any:
            kind: Any = type(self.cache)
            counts = kind.counts.fget

            def all_held(cache: Any) -> Any:
                return counts(cache)._replace(held=cache.blocks - cache.available)

            with mock.patch.object(kind, "counts", property(all_held)):
                return super().schedule()


FAULTS: tuple[type[Faulty], ...] = tuple(Faulty.__subclasses__())

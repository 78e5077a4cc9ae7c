"""What the drivers need of a scheduler, and the spec's own as one of that kind.

A scheduler under test works on a cache of its own. It is given the operations of `scheduler_alphabet` and answers with
a `Decision` (its `steps` left out) or raises `Refused`; `issued` then tells which cache operations it made for it, in
order, with their outcomes; refused ones are none. `observe` shows the cache as managers do, `requests` what is known of
each request. `bench.scheduler_adapter` shows ours in this way.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple, Self

from .calls import call
from .observation import Naming, Observation
from .refusals import Reason, Refused
from .requests import Engine, Limits, RequestId, Sample
from .scheduler_alphabet import FUNCTIONS
from .serving import start
from .state import Block, Config, LaunchId, Name
from .turn import CacheStep, Choices, Decision
from .views import observe


class Shown(NamedTuple):
    """What a scheduler shows of a request."""

    runs: bool
    samples: Mapping[Name, Sample]  # those that are not done


class Scheduler:
    """A scheduler under test, over a cache of `config` blocks."""

    def __init__(self, config: Config, limits: Limits) -> None:
        self.config = config
        self.limits = limits

    def decide(self, word: str, *arguments: object) -> Decision:
        """Do an operation: `submit`, `schedule`, `complete` and so on. Errors: `Refused`."""
        raise NotImplementedError

    def issued(self) -> Choices:
        """Return the cache operations made since this was asked last, each with its outcome."""
        raise NotImplementedError

    def observe(self) -> Observation:
        """Return what the cache shows of itself."""
        raise NotImplementedError

    def requests(self) -> Mapping[RequestId, Shown]:
        """Return what is known of each request that has not left."""
        raise NotImplementedError

    def rows_read(self, launch: LaunchId) -> Sequence[Sequence[Block]]:
        """Return the rows of a launch as a device that executes it now would read them."""
        raise NotImplementedError

    def clone(self) -> Self:
        """Return an independent copy."""
        raise NotImplementedError

    first_block = 1

    def free_order(self) -> Sequence[Block]:
        """Return the free blocks in the order in which they will be taken, if there is one."""
        return ()

    def fingerprint(self, naming: Naming) -> Hashable:  # noqa: ARG002  (the signature is the protocol's)
        """Return all state on which future behaviour depends and which nothing else shows, in new names."""
        return None


class ReferenceScheduler(Scheduler):
    """The spec with its own choices: it holds every rule, and shows what a world of requests can do."""

    def __init__(self, config: Config, limits: Limits) -> None:
        super().__init__(config, limits)
        self.engine = start(config, limits)
        self.steps: tuple[CacheStep, ...] = ()

    def decide(self, word: str, *arguments: object) -> Decision:
        """Take the spec's step."""
        self.engine, decision = FUNCTIONS[word](self.engine, *arguments)
        self.steps += decision.steps
        return decision._replace(steps=())

    def issued(self) -> Choices:
        """Return the cache operations since."""
        steps, self.steps = self.steps, ()
        return [(step.operation, step.outcome) for step in steps]

    def observe(self) -> Observation:
        """Return what the cache's state shows."""
        return observe(self.engine.cache)

    def requests(self) -> Mapping[RequestId, Shown]:
        """Return what the engine knows of each request."""
        return requests_of(self.engine)

    def rows_read(self, launch: LaunchId) -> Sequence[Sequence[Block]]:
        """Return the rows captured at the launch, which is what a right device reads."""
        return [part.row for part in next(e for e in self.engine.cache.launches if e.id == launch).computations]

    def clone(self) -> Self:
        """Return another one at the same state, which is frozen."""
        twin = object.__new__(type(self))
        twin.config, twin.limits, twin.engine, twin.steps = self.config, self.limits, self.engine, self.steps
        return twin


def requests_of(engine: Engine) -> Mapping[RequestId, Shown]:
    """Return what an engine shows of its requests."""
    return {
        id_: Shown(engine.runs(job), {name: job.samples[name] for name in job.unfinished()})
        for id_, job in engine.jobs.items()
    }


SchedulerFactory = Callable[[Config, Limits], Scheduler]


def ask(scheduler: Scheduler, word: str, arguments: tuple[object, ...]) -> Decision | Refused:
    """Ask for an operation: what was decided, or why it was refused. Errors: `Broken`, CRASH."""
    return call(lambda: f"{word} {arguments}", _answered, scheduler, word, arguments)


def _answered(scheduler: Scheduler, word: str, arguments: tuple[object, ...]) -> Decision | Refused:
    try:
        decision = scheduler.decide(word, *arguments)
    except Refused as refusal:
        refusal.reason = Reason(refusal.reason)
        return refusal
    if not isinstance(decision, Decision):
        raise TypeError(f"{type(decision).__name__} is no Decision")
    return decision

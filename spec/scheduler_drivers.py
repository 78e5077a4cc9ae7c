"""What the drivers of caches need to drive schedulers: what to run a trace on, what to walk, what to draw.

The drivers (`explore` with `shards`, `fuzz`, `traces`, `machine`) know of a cache's operations as little as of a
scheduler's: they ask a case for a world, a scope for its moves, a plan for its draws. These are a scheduler's. Each
also has its states looked ahead from: every request there can be finished (`scheduler_progress`).
"""

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from .calls import call
from .refusals import Reason
from .requests import Limits
from .scheduler import SchedulerFactory
from .scheduler_alphabet import KINDS, REFUSALS, Complete, Drain, Operation, Schedule
from .scheduler_moves import Scope, all_moves, draw_move, draw_scope
from .scheduler_progress import rounds_at_most
from .scheduler_world import SchedulerLockStep
from .state import Config
from .turn import Decision, Plan

SHARING = 2 / 3  # of the random runs share prefixes
REQUESTS = 6  # live at once in a random run
OPERATIONS = 300  # of a random run, before it is drained


class SchedulerCase(NamedTuple):
    """What to run a trace of a scheduler on."""

    config: Config
    factory: SchedulerFactory
    limits: Limits

    @property
    def lock_step(self) -> bool:
        """Whether the policy goes along: always."""
        return True

    def start(self) -> SchedulerLockStep:
        """Return a new world. Errors: `Broken`, CRASH, where the scheduler can't be made."""
        scheduler = call(lambda: f"a scheduler of {self.config}", self.factory, self.config, self.limits)
        return SchedulerLockStep(self.config, self.limits, scheduler)


class SchedulerSettings(NamedTuple):
    """What to walk, and how."""

    scope: Scope
    factory: SchedulerFactory
    pairs: bool = False

    @property
    def lock_step(self) -> bool:
        """Whether the policy goes along: always."""
        return True

    def vocabulary(self) -> list[str]:
        """Return what a walk to the end should meet."""
        several = any(request.samples > 1 for request in self.scope.requests)
        parted, shared = ["fork"] * several, ["hit", "merge"] * self.scope.limits.prefix_cache
        return [*KINDS.values(), "admission", "preemption", *parted, *shared]

    def refusals(self) -> dict[str, tuple[Reason, ...]]:
        """Return what each operation should be refused for: one launch in flight is always the oldest."""
        never = {Reason.BUSY} if self.scope.limits.steps_ahead == 1 else set()
        completions = ("complete", "fail")
        return {
            kind: tuple(reason for reason in reasons if kind not in completions or reason not in never)
            for kind, reasons in REFUSALS.items()
        }

    def words(self, operation: Operation, decided: Decision | None = None) -> list[str]:
        """Return what is met by an operation: what a step did to requests, too."""
        return words(operation, decided)

    def case(self) -> SchedulerCase:
        """Return what to run a counterexample on."""
        return SchedulerCase(self.scope.config, self.factory, self.scope.limits)

    def start(self) -> SchedulerLockStep:
        """Return the world that the walk begins in."""
        return self.case().start()

    def moves(self, here: SchedulerLockStep) -> Iterator[Operation]:
        """Yield every operation to be tried."""
        return all_moves(here.engine, self.scope)

    def look_ahead(self, there: SchedulerLockStep) -> None:
        """See that from a state that is new every request there can be finished. Errors: `Broken`."""
        there.look_ahead()


def words(operation: Operation, decided: Decision | None = None) -> list[str]:
    """Return what is met by an operation of a scheduler: its kind, and what a step did to requests."""
    plan, outcomes = (decided.plan, [step.outcome for step in decided.steps]) if decided else (Plan(), [])
    met = {
        "admission": plan.admitted,
        "preemption": plan.preempted,
        "fork": plan.forked,
        "hit": any(outcome.hits for outcome in outcomes),
        "merge": any(outcome.merges for outcome in outcomes),
    }
    return [KINDS[type(operation)], *(word for word, yes in met.items() if yes)]


STEPS = ("admission", "preemption", "fork", "hit", "merge")  # what a step does to requests


class SchedulerPlan(NamedTuple):
    """What to fuzz."""

    factory: SchedulerFactory
    config: Config | None = None  # None: each seed draws one
    limits: Limits | None = None
    operations: int = OPERATIONS
    sharing: bool = True  # whether some runs share prefixes

    @property
    def lock_step(self) -> bool:
        """Whether the policy goes along: always."""
        return True

    def words(self, operation: Operation, decided: Decision | None = None) -> list[str]:
        """Return what is met by an operation: what a step did to requests, too."""
        return words(operation, decided)

    def vocabulary(self) -> list[str]:
        """Return what runs may meet."""
        return [*KINDS.values(), *STEPS]

    def draw_case(self, random: Random) -> SchedulerCase:
        """Draw what to run on."""
        config, limits = draw_scope(random, SHARING if self.sharing else 0)
        return SchedulerCase(self.config or config, self.factory, self.limits or limits)

    def draw(self, here: SchedulerLockStep, random: Random) -> Iterator[Operation]:
        """Yield operations, chosen by the state that the ones before have led to; then those of a drain.

        Errors: `Broken`, where it takes more rounds to come to an end than it may.
        """
        for _ in range(self.operations):
            yield draw_move(here.engine, REQUESTS, random)
        here.look_ahead()
        yield Drain()
        for _ in range(rounds_at_most(here.engine)):
            if here.engine.jobs:
                yield Schedule()
            if here.engine.flights:
                yield Complete()

"""Traces: a run as a list of operations, and the same run again, with operations taken out or not.

A trace is a list of operations, launch ids included. `tell` runs one and tells each step. When operations are taken
out of it, later launches get other ids; so what shrinks a trace (`shrinking`) works on `Marked` operations, each
submission marked with the id that it had, and `run_marked` finds out which id it has now. A completion whose submission
is gone goes with it; one of a launch that never was stays one.

What is not possible in the state that a run has come to is left out, so any list of operations can be run.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from .alphabet import Execute, Retire
from .manager import Factory
from .moves import possible
from .refusals import Broken
from .state import Config, LaunchId, State
from .world import World, world


class Told(NamedTuple):
    """One step as it is told: what was done, what came of it, how the blocks stood afterwards."""

    operation: Any
    offered: Any  # what the manager answered; None where it gave no answer
    free: int
    held: int
    quarantined: int
    own_calls: tuple[str, ...] = ()  # what the adapter called its manager with, where it tells


class Steppable(Protocol):
    """What a trace is run in, of whatever alphabet."""

    offered: Any  # the last answer of the thing under test

    @property
    def state(self) -> State:
        """The state by which it is told what is possible."""

    def step(self, operation: Any) -> Any:
        """Take an operation; return what was decided. Errors: `Broken`."""

    def own_calls(self) -> tuple[str, ...]:
        """Return what the adapter says that it called at the last operation."""

    def blocks(self) -> tuple[int, int, int]:
        """Return how many blocks are free or idle, held, and quarantined."""


class Startable(Protocol):
    """What a trace can be run on."""

    @property
    def config(self) -> Config:
        """The sizes of the cache."""

    def start(self) -> Steppable:
        """Return a new world."""


class Case(NamedTuple):
    """What to run a trace on."""

    config: Config
    factory: Factory
    lock_step: bool = True
    aside: frozenset[str] = frozenset()  # rules that a black box is not judged by

    def start(self) -> World:
        """Return a new world."""
        return world(self.config, self.factory, lock_step=self.lock_step, aside=self.aside)

    def simpler_cases(self) -> Iterator["Case"]:
        """Yield the case in a smaller world, one step smaller each; a black box alone is moved to another world."""
        for field in () if self.lock_step else Config._fields:
            if (size := getattr(self.config, field)) > 1:
                yield self._replace(config=self.config._replace(**{field: size - 1}))


class Finding(NamedTuple):
    """A trace that ends in a broken rule."""

    case: Any  # a `Case`, or one of another alphabet, whose operations are in the trace
    trace: tuple[Any, ...]
    broken: Broken


def tell(case: Startable, trace: Iterable[Any]) -> tuple[list[Told], Broken | None]:
    """Run a trace and tell each step, up to the first that breaks a rule. What is not possible now is left out."""
    told: list[Told] = []
    try:
        here = case.start()
    except Broken as broken:
        return told, broken
    counts = (case.config.blocks, 0, 0)
    for operation in trace:
        if not possible(here.state, operation):
            continue
        fault = None
        try:
            here.step(operation)
        except Broken as broken:
            fault = broken
        with suppress(Broken):  # a manager that crashed may show nothing any more
            counts = here.blocks()
        told.append(Told(operation, here.offered, *counts, here.own_calls()))
        if fault:
            return told, fault
    return told, None


class Marked(NamedTuple):
    """An operation, and for a submission the launch id that it had."""

    operation: Any
    launch: LaunchId = 0  # NEVER: the completion of a launch that was never issued


NEVER = -1


def mark(case: Startable, trace: tuple[Any, ...]) -> list[Marked]:
    """Mark each submission that fires with its id, by running the trace once."""
    here = case.start()
    marked = []
    for operation in trace:
        before = here.state.issued
        never = isinstance(operation, Retire) and operation.launch > before
        if possible(here.state, operation):
            with suppress(Broken):  # the last one
                here.step(operation)
        submitted = here.state.issued if here.state.issued > before else 0
        marked.append(Marked(operation, NEVER if never else submitted))
    return marked


def run_marked(case: Startable, marked: list[Marked]) -> tuple[list[Marked], Broken | None]:
    """Run marked operations; return what was run, marked anew, up to what broke a rule."""
    try:
        here = case.start()
    except Broken:  # it can't be made like this
        return [], None
    now: dict[LaunchId, LaunchId] = {}
    done: list[Marked] = []
    for operation, launch in marked:
        asked = operation
        if launch == NEVER:
            asked = Retire(here.state.issued + 1)
        elif isinstance(asked, Execute | Retire) and asked.launch > 0:
            if asked.launch not in now:
                continue
            asked = asked._replace(launch=now[asked.launch])
        if not possible(here.state, asked):
            continue
        before = here.state.issued
        broken = None
        try:
            here.step(asked)
        except Broken as fault:
            broken = fault
        submitted = here.state.issued if here.state.issued > before else 0
        done.append(Marked(asked, NEVER if launch == NEVER else submitted))
        if broken:
            return done, broken
        if launch > 0 and submitted:
            now[launch] = submitted
    return done, None

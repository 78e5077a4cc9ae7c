"""A manager under test and what judges it, taken one operation further by `step`.

Every driver ends here: exhaustive, Hypothesis, seeded random, a trace run again. Two judges: `LockStep`, where the
spec takes each operation too, and `BlackBox`, which judges from outside. To a driver they look alike: `state`
to choose operations by, `refusal` to know what will be refused, `step` to take one, `clone` to branch, `key` to know
a place again. `step` returns the outcome, or the refusal that both sides agree on, and raises `Broken` with the rule
that does not hold.
"""

from collections.abc import Hashable
from typing import Any, Protocol, Self

from .asking import made
from .black_box import BlackBox
from .lock_step import LockStep
from .manager import Factory
from .refusals import Refused
from .state import Config, State

World = LockStep | BlackBox


class Place(Protocol):
    """What drivers need of a world, of whatever alphabet: of a cache here, of a scheduler in `scheduler_world`."""

    offered: Any  # the last answer of the thing under test

    @property
    def state(self) -> State:
        """The state of the cache."""

    def clone(self) -> Self:
        """Return an independent copy, to branch from."""

    def fit(self, operation: Any) -> Any:
        """Return the nearest operation that the thing under test is asked, None if there is none."""

    def refusal(self, operation: Any) -> Refused | None:
        """Return why an operation will be refused, None if it will be done."""

    def step(self, operation: Any) -> Any:
        """Take an operation; return what was decided. Errors: `Broken`."""

    def step_refused(self, operation: Any, refusal: Refused) -> None:
        """Ask for what will be refused. Errors: `Broken`."""

    def look(self) -> None:
        """Compare all that can be observed. Errors: `Broken`."""

    def key(self, *, pairs: bool) -> Hashable:
        """Return what makes this place one with others."""

    def blocks(self) -> tuple[int, int, int]:
        """Return how many blocks are free or idle, held, and quarantined."""

    def own_calls(self) -> tuple[str, ...]:
        """Return what an adapter says that it called at the last operation."""


def world(config: Config, factory: Factory, *, lock_step: bool, aside: frozenset[str] = frozenset()) -> World:
    """Return a new manager with its judge, a black box's without the rules set aside.

    Errors: `Broken`, CRASH, where it can't be made.
    """
    manager = made(factory, config)
    return LockStep(config, manager) if lock_step else BlackBox(config, manager, factory, aside)

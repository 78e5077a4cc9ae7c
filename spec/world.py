"""A manager under test and what judges it, taken one operation further by `step`.

Every driver ends here: exhaustive, Hypothesis, seeded random, a trace run again. Two judges: `LockStep`, where the
spec takes each operation too, and `BlackBox`, where contents alone are judged. To a driver they look alike: `state`
to choose operations by, `refusal` to know what will be refused, `step` to take one, `clone` to branch, `key` to know
a place again. `step` returns the outcome, or the refusal that both sides agree on, and raises `Broken` with the rule
that does not hold.
"""

from .black_box import BlackBox
from .lock_step import LockStep
from .manager import Factory, made
from .state import Config

World = LockStep | BlackBox


def world(config: Config, factory: Factory, *, lock_step: bool) -> World:
    """Return a new manager with its judge. Errors: `Broken`, CRASH, where it can't be made."""
    manager = made(factory, config)
    return LockStep(config, manager) if lock_step else BlackBox(config, manager)

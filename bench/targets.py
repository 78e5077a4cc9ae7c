"""Which manager a driver drives: ours, the spec's model, or anybody's, by `--target package.module:factory`.

A stranger's module is code like any other: it may not be there, raise when it is imported, or hold something else than
a manager. Each of these is bad input and said in one line. What goes wrong later, while it is driven, is a finding.

A target goes to worker processes by its name: each imports it for itself. So a factory can be whatever a module holds,
a lambda or a bound method, too, which can't be sent from one process to another.

There are cache managers and schedulers, and each has its commands. Who names one where the other is driven is told what
the target is, and the command that drives it (`of_another_kind`).
"""

import importlib
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

import typer
from pagedkv.bench import foreign_search
from pagedkv.bench.adapter import Implementation
from pagedkv.bench.failures import BadInput
from pagedkv.spec.asking import made
from pagedkv.spec.calls import call, said
from pagedkv.spec.foreign_scheduler import ForeignScheduler
from pagedkv.spec.fuzz_plan import Plan
from pagedkv.spec.manager import Factory, Manager, lacks
from pagedkv.spec.reference import Reference
from pagedkv.spec.refusals import Broken
from pagedkv.spec.scheduler import Scheduler
from pagedkv.spec.state import Config

OURS: dict[str, type[Manager]] = {"impl": Implementation, "spec": Reference}

Target = Annotated[
    str,
    typer.Option(
        "--target",
        metavar="M:F",
        help="Which manager: impl, spec, or package.module:factory of yours, whose protocol is the text of "
        "pagedkv.spec.manager; with --scheduler which scheduler: for fuzz also one of pagedkv.spec.foreign_scheduler.",
    ),
]

KINDS: dict[type, tuple[str, str]] = {  # what it is, and how it is driven
    Manager: ("a cache manager", "without --scheduler: pagedkv fuzz --target {}"),
    ForeignScheduler: ("a scheduler that is judged from outside", "by pagedkv fuzz --scheduler --target {}"),
    Scheduler: ("a scheduler that shows its cache", "with --scheduler: pagedkv fuzz --scheduler --target {}"),
}


@dataclass(frozen=True, slots=True)
class Named:
    """A factory known by name, `package.module:factory`; where it arrives in another process it is imported at once.

    An engine takes seconds to import, many on a busy machine, and none of them may count as the first answer's.
    """

    name: str

    def __reduce__(self) -> tuple[Callable[[str], "Named"], tuple[str]]:
        return _arrived, (self.name,)

    def __call__(self, *arguments: object) -> Any:
        """Make a manager, or a scheduler. Errors: whatever the factory raises."""
        return imported(self.name)(*arguments)


def _arrived(name: str) -> Named:
    with suppress(Exception):  # what is wrong with it will be said when it is called
        imported(name)
    return Named(name)


def load_target(name: str) -> Factory:
    """Return the factory that `--target` names. Errors: `BadInput`."""
    return OURS[name] if name in OURS else imported_target(name)


def imported_target(name: str) -> Named:
    """Return the factory of a module that `--target` names. Errors: `BadInput`."""
    where = f"--target {name}"
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        raise BadInput(where, "no target", f"give {' or '.join(OURS)}, or package.module:factory")
    look_here()
    try:
        found = imported(name)
    except (KeyboardInterrupt, BadInput):
        raise
    except BaseException as error:
        remedy = f"modules are looked for in {os.getcwd()} and where packages are installed"  # noqa: PTH109  (as above)
        if isinstance(error, ModuleNotFoundError) and module_name.endswith(".py"):
            remedy = f"give the module without .py; {remedy}"
        raise BadInput(where, f"cannot be imported ({said(error)})", remedy) from error
    if not callable(found):
        raise BadInput(where, "not callable", "name a class, or a function that makes what is to be driven")
    return Named(name)


def look_here() -> None:
    """Let modules of the current folder be imported, as those of an installed package."""
    if os.getcwd() not in sys.path:  # noqa: PTH109  (sys.path holds strings)
        sys.path.insert(0, os.getcwd())  # noqa: PTH109  (sys.path holds strings)


@cache
def imported(name: str) -> Callable[..., Any]:
    """Return what a target names, imported. Errors: whatever its module raises."""
    module_name, _, attribute = name.partition(":")
    found: Any = importlib.import_module(module_name)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]


def trial(factory: Factory, where: str, config: Config) -> Manager:
    """Make one manager, to learn whether it can be made and what it offers. Errors: `BadInput`."""
    try:
        return made(factory, config)
    except Broken as broken:
        remedy = "it is called with a Config and gives a Manager (pagedkv.spec.manager)"
        raise of_another_kind(factory, where, Manager) or BadInput(where, broken.detail, remedy) from broken


def of_another_kind(factory: Callable[..., Any], where: str, *wanted: type) -> BadInput | None:
    """Return what is to be said where a target is none of the kinds `wanted`; None: it is, or is of no kind at all."""
    found = kind_of(factory)
    if found is None or found in wanted:
        return None
    what, how = KINDS[found]
    return BadInput(where, what, f"drive it {how.format(where.removeprefix('--target '))}")


def kind_of(factory: Callable[..., Any]) -> type | None:
    """Return which of `KINDS` a factory makes. A class says it of itself; a function is called."""
    what = imported(factory.name) if isinstance(factory, Named) else factory
    if isinstance(what, type):
        return next((kind for kind in KINDS if issubclass(what, kind)), None)
    for arguments in (foreign_search.TRIED[:1], foreign_search.TRIED):
        with suppress(Broken):
            found = call("which kind", what, *arguments)
            return next((kind for kind in KINDS if isinstance(found, kind)), None)
    return None


def world_for(target: str, config: Config) -> Config:
    """Return a world with a block size that a manager can be made with, as its class says; else the one given."""
    sizes = getattr(OURS.get(target) or imported(target), "block_sizes", ())
    usable = [size for size in sizes if type(size) is int and size > 0] if isinstance(sizes, tuple | list) else []
    return config if config.block_size in usable or not usable else config._replace(block_size=usable[0])


def plan_of(factory: Factory, manager: Manager, *, lock_step: bool = False, sharing: bool = True) -> Plan:
    """Return how a manager is fuzzed, with what it says of itself when one is made."""
    return Plan(
        factory,
        lock_step=lock_step,
        streams=manager.streams_offered,
        launches=manager.launches_offered,
        block_sizes=tuple(manager.block_sizes),
        sharing=sharing and manager.shares_prefixes,
        lacks=frozenset() if lock_step else lacks(manager),
    )


def shows_itself(manager: Manager) -> bool:
    """Whether a manager can be compared with the spec; one that raises when asked will be found to crash."""
    try:
        return call("observe", manager.observe) is not None
    except Broken:
        return True

"""Asking a manager under test, which may answer anything.

All of this answers in the spec's own types, or raises `Broken` by the name CRASH where the manager raised, did not
answer, or answered with something else. Integers of any library (numpy's, say) are taken for integers.
"""

from collections.abc import Callable, Collection, Iterable
from itertools import islice
from operator import index
from typing import Any

from .alphabet import KINDS, Add, Extend, Operation, describe
from .calls import call
from .manager import Discipline, Factory, Feature, Manager
from .outcome import Merge, Outcome
from .outside_book import Sight
from .quoting import cut
from .refusals import Broken, Reason, Refused
from .state import Block, Config, Copy, LaunchId, Name

OF_ONE_ALONE = ("AssertionError", "NotImplementedError", "TypeError", "ValueError")  # raised where it takes one alone
SHOWN_CHARACTERS_MAX = 60  # of what a manager answers


def made(factory: Factory, config: Config) -> Manager:
    """Make a manager."""
    return call(lambda: f"a manager of {config}", _made, factory, config)


def ask(manager: Manager, operation: Operation) -> Outcome | Refused:
    """Ask for an operation: what was decided, or why it was refused."""
    if isinstance(operation, Add) and isinstance(operation.tokens, int) and not operation.salt:
        return call(lambda: describe(operation), _answered, manager.add, operation[:2])
    method: Callable[..., object] = getattr(manager, _METHODS[type(operation)])
    try:
        return call(lambda: describe(operation), _answered, method, operation)
    except Broken as broken:
        if isinstance(operation, Extend) and (remedy := _of_more_than_one(operation, broken)):
            raise Broken(broken.rule, f"{broken.detail}: {remedy}") from broken.__cause__
        raise


def _of_more_than_one(operation: Extend, broken: Broken) -> str:
    """Return what the author of an adapter can say who takes one row, or one token, at a time.

    Said only of what such an adapter raises where it unpacks or checks; a `KeyError` has a cause of its own.
    """
    if not any(f": {name}" in broken.detail for name in OF_ONE_ALONE):
        return ""
    if len(operation.rows) > 1:
        return "if yours takes one row, put BATCHES into not_offered"
    if any(count > 1 for _, count in operation.rows):
        return "if yours takes one token, put SEVERAL_TOKENS into not_offered"
    return ""


def table_of(manager: Manager, name: Name) -> tuple[Block, ...]:
    """Return the block table of a live sequence."""
    return call("block_table", _table, manager, name)


def rows_of(manager: Manager, launch: LaunchId) -> tuple[tuple[Block, ...], ...] | None:
    """Return the rows that a launch reads as they are now; None where the device was given copies at the launch."""
    return call("rows_read", _rows, manager, launch)


def twin_of(manager: Manager) -> Manager | None:
    """Return an independent copy; None where there can be none."""
    return call("clone", _twin, manager)


def sight_of(manager: Manager, names: Iterable[Name]) -> Sight:
    """Return what a manager shows now: the block tables of the live sequences, and what it tells of the others."""
    tables = {name: table_of(manager, name) for name in names}
    return Sight(
        tables, call("free_blocks", _told, manager.free_blocks), call("cached_blocks", _told, manager.cached_blocks)
    )


def _made(factory: Factory, config: Config) -> Manager:
    manager = factory(config)
    if not isinstance(manager, Manager):
        raise TypeError(f"{_short(manager)} is no pagedkv.spec.manager.Manager")
    if type(manager.first_block) is not int or manager.first_block < 0:
        raise TypeError(f"first_block is {_short(manager.first_block)}, not an integer of at least 0")
    if type(manager.streams_offered) is not int or manager.streams_offered < 1:
        raise TypeError(f"streams_offered is {_short(manager.streams_offered)}, not an integer of at least 1")
    _check_claims(manager)
    _check_methods(manager)
    return manager


def _check_methods(manager: Manager) -> None:
    """Raise where one of the four methods is missing that every manager gives; prompts with ids may be all it takes."""
    kind = type(manager)
    missing = [name for name in _GIVEN if getattr(kind, name) is getattr(Manager, name) and name not in vars(manager)]
    if "add" in missing and kind.add_prompt is not Manager.add_prompt:
        missing.remove("add")
    if missing:
        raise TypeError(f"{kind.__name__} does not define {', '.join(missing)}")


_GIVEN = ("add", "extend", "release", "block_table")


def _check_claims(manager: Manager) -> None:
    """Raise where a manager claims what there is not."""
    limit: Any = manager.launches_offered
    if limit is not None and (type(limit) is not int or limit < 1):
        raise TypeError(f"launches_offered is {_short(limit)}, not None or an integer of at least 1")
    Discipline(manager.discipline)
    if not isinstance(manager.own_calls, list | None):
        raise TypeError(f"own_calls is {_short(manager.own_calls)}, not None or a list")
    left_out: Any = manager.not_offered
    if not isinstance(left_out, Collection) or isinstance(left_out, str):
        raise TypeError(f"not_offered is {_short(left_out)}, not a set of pagedkv.spec.manager.Feature")
    for each in left_out:
        if not isinstance(each, Feature):
            raise TypeError(f"not_offered holds {_short(each)}, which is no pagedkv.spec.manager.Feature")
    if not all(type(size) is int and size >= 1 for size in manager.block_sizes) or not manager.block_sizes:
        raise TypeError(f"block_sizes is {_short(manager.block_sizes)}, not integers of at least 1")


def _answered(method: Callable[..., object], arguments: tuple[object, ...]) -> Outcome | Refused:
    try:
        answer = method(*arguments)
    except Refused as refusal:
        if type(refusal.reason) is not Reason:  # it may be the word alone
            refusal.reason = Reason(refusal.reason)
        return refusal.with_traceback(None)  # its frames would hold it in turn, and much else with it
    try:
        return _outcome(answer)
    except (TypeError, ValueError) as error:
        raise TypeError(f"the answer {_short(answer)} is no Outcome: {error}") from error


def _outcome(answer: Any) -> Outcome:
    if answer is None:
        return Outcome()
    if not isinstance(answer, Outcome):
        return Outcome(copies=_copies(answer))
    blocks, copies, launch, after, freed, hits, published, merges = answer
    return Outcome(  # most fields of most answers are as they are by default
        blocks if blocks is _NONE.blocks else integers(blocks),
        copies if copies is _NONE.copies else _copies(copies),
        index(launch),
        after if after is _NONE.after else frozenset(integers(after)),
        freed if freed is _NONE.freed else frozenset(integers(freed)),
        hits if hits is _NONE.hits else integers(hits),
        published if published is _NONE.published else integers(published),
        merges if merges is _NONE.merges else tuple([Merge(*integers(each)) for each in merges]),
    )


_NONE = Outcome()


def _copies(answer: Any) -> tuple[Copy, ...]:
    try:
        return tuple([Copy(*integers(each)) for each in answer])
    except TypeError as error:
        raise TypeError(f"{error}; expected a list of Copy(sequence, source, target, extent)") from error


INTEGERS_MAX = 1_000_000  # in one answer: worlds are small, and an endless one must be an answer, too
_FINITE = (tuple, list)


def integers(answer: Any) -> tuple[int, ...]:
    """Return integers of whatever kind as Python's own. Errors: `TypeError`, `ValueError` where there is no end."""
    taken = tuple(map(index, answer if type(answer) in _FINITE else islice(answer, INTEGERS_MAX + 1)))
    if len(taken) > INTEGERS_MAX:
        raise ValueError(f"more than {INTEGERS_MAX:,} integers in one answer")
    return taken


def _table(manager: Manager, name: Name) -> tuple[Block, ...]:
    return integers(manager.block_table(name))


def _rows(manager: Manager, launch: LaunchId) -> tuple[tuple[Block, ...], ...] | None:
    rows = manager.rows_read(launch)
    return None if rows is None else tuple([integers(row) for row in rows])


def _told(blocks: Callable[[], Collection[Block] | None]) -> tuple[Block, ...] | None:
    answer = blocks()
    return None if answer is None else integers(answer)


def _twin(manager: Manager) -> Manager | None:
    try:
        twin = manager.clone()
    except NotImplementedError:
        return None
    if not isinstance(twin, Manager):
        raise TypeError(f"{_short(twin)} is no Manager")
    if twin.own_calls is manager.own_calls is not None:  # a shallow copy, whose calls are none of the first one's
        twin.own_calls = []
    return twin


def _short(thing: object) -> str:
    return cut(repr(thing), SHOWN_CHARACTERS_MAX)


_METHODS = {**KINDS, Add: "add_prompt"}  # a manager is asked by the words of the alphabet

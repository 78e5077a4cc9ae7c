"""Right steps with one thing changed: whatever a state after, or an answer, is made of, a little different.

Nothing here knows what a field means. A state is walked down as it is built, through mappings, tuples and named
fields, and at each place one value is made another: a number one more or less, a flag its opposite, of several things
one missing, one twice, two in the other order, one under another name. Where there is nothing, a stranger is put. So
a field that is added to the spec tomorrow is changed as well.
"""

from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

from pagedkv.spec.alphabet import apply
from pagedkv.spec.moves import Lots, draw_move, possible
from pagedkv.spec.outcome import Merge, Outcome
from pagedkv.spec.refusals import Refused
from pagedkv.spec.rules import Step
from pagedkv.spec.state import Config, Copy, Key, Launch, Published, Root, Sequence, State, initial

WORLD = Config(blocks=6, block_size=2, streams=2, launches=3)
STRANGER = 90  # a name, a handle, a block, a launch that there is not

# What is put where there is nothing of its kind.
STRANGERS: dict[str, Any] = {
    "sequences": {STRANGER: Sequence(STRANGER, (), 0, ())},
    "quarantine": {1: 0},
    "launches": (Launch(STRANGER, 0, frozenset(), (), (), {}, {}),),
    "prefixes": {Key(Root(), (STRANGER, STRANGER)): Published(1, ((0, 0), (0, 1)), 0)},
    "evictable": {1: 1},
    "pins": {STRANGER: (1,)},
    "ids": {STRANGER: {0: 1}},
    "copy": Copy(1, 1, 2, 1),
    "copies": (Copy(1, 1, 2, 1),),
    "merges": (Merge(1, 0, 1, 2),),
    "after": frozenset({1}),
    "free": frozenset({1}),
    "freed": frozenset({1}),
    "blocks": (1,),
    "hits": (1,),
    "published": (1,),
    "known": (1,),
}

NO_STATE = tuple(f".launches[one].writes[one] {change}" for change in ("less", "and"))  # slots are from and up to


def drawn_steps(seed: int, count: int, *, sharing: bool) -> Iterator[Step]:
    """Yield the spec's own steps of a world where operations are drawn by lot; refused ones are left out."""
    lots, state = Lots(seed), initial(WORLD)
    for _ in range(count):
        operation = draw_move(state, 4, lots, sharing=sharing)
        if possible(state, operation):
            try:
                new, decided = apply(state, operation)
            except Refused:
                continue
            yield Step(state, operation, decided, new)
            state = new


def mutated(right: Step, lots: Random) -> Iterator[tuple[str, Step]]:
    """Yield a step with one thing changed of the state after, or of what was said, and what was changed."""
    assert isinstance(right.decided, Outcome)
    for place, new in (*changes(right.new, lots), *moved_blocks(right.new, lots)):
        if new != right.new and not place.startswith(NO_STATE):
            yield f"state{place}", Step(right.old, right.operation, right.decided, new)
    for place, decided in changes(right.decided, lots):
        yield f"said{place}", Step(right.old, right.operation, decided, right.new)


def changes(value: Any, lots: Random) -> Iterator[tuple[str, Any]]:
    """Yield what else a value could be, with the place of the change in it; of several alike one is drawn."""
    for place, other in _changes(value, lots):
        if other != value:
            yield place, other


def _changes(value: Any, lots: Random) -> Iterator[tuple[str, Any]]:
    if isinstance(value, bool):
        yield " flipped", not value
    elif isinstance(value, int):
        yield " + 1", value + 1
        yield " - 1", value - 1
    elif hasattr(value, "_fields"):
        yield from _of_fields(value, lots)
    elif isinstance(value, Mapping):
        yield from _of_mapping(value, lots)
    elif isinstance(value, frozenset) and value:
        one = lots.choice(sorted(value))
        yield " less one", value - {one}
        yield " and one more", value | {STRANGER}
    elif isinstance(value, tuple) and value:
        yield from _of_tuple(value, lots)


def _of_fields(value: Any, lots: Random) -> Iterator[tuple[str, Any]]:
    for field, part in zip(value._fields, value, strict=True):
        if not part and field in STRANGERS:
            yield f".{field} out of nothing", value._replace(**{field: STRANGERS[field]})
        if isinstance(part, Copy):
            yield f".{field} gone", value._replace(**{field: None})
        for place, other in changes(part, lots):
            yield f".{field}{place}", value._replace(**{field: other})


def _of_mapping(value: Mapping[Any, Any], lots: Random) -> Iterator[tuple[str, Any]]:
    if value:
        key = lots.choice([*value])
        rest = {other: part for other, part in value.items() if other != key}
        yield " less one", rest
        for place, other in changes(key, lots):
            if other not in value:
                yield f" under a key{place}", {**rest, other: value[key]}
        for place, other in changes(value[key], lots):
            yield f"[one]{place}", {**value, key: other}


def _of_tuple(value: tuple[Any, ...], lots: Random) -> Iterator[tuple[str, Any]]:
    yield " less the first", value[1:]
    yield " less the last", value[:-1]
    yield " and the last again", (*value, value[-1])
    yield " the other way round", value[::-1]
    at = lots.randrange(len(value))
    for place, other in changes(value[at], lots):
        yield f"[one]{place}", (*value[:at], other, *value[at + 1 :])


def moved_blocks(state: State, lots: Random) -> Iterator[tuple[str, State]]:
    """Yield states where one block is somewhere else, of each that nobody holds: free, waiting, evictable or pinned."""
    for there in ("free", "quarantine", "evictable"):
        blocks = sorted(getattr(state, there))
        if blocks:
            block = lots.choice(blocks)
            without = state._replace(
                free=state.free - {block},
                quarantine={other: fence for other, fence in state.quarantine.items() if other != block},
                evictable={other: since for other, since in state.evictable.items() if other != block},
            )
            fences = {0, state.issued, state.quarantine.get(block, 0)}
            clock = {0, 1 + max(state.evictable.values(), default=0), state.evictable.get(block, 0)}
            yield f": {there} to free", without._replace(free=without.free | {block})
            yield f": {there} to pinned", without._replace(pins={**state.pins, STRANGER: (block,)})
            for fence in fences:
                yield f": {there} to quarantine", without._replace(quarantine={**without.quarantine, block: fence})
            for since in clock:
                yield f": {there} to evictable", without._replace(evictable={**without.evictable, block: since})

"""Operations as data, so that drivers can list, draw, print, shrink and replay them.

A *trace* is a list of these. Nothing else is needed to run it again, since every choice is made by the thing under
test or, failing that, by the spec.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, get_args

from . import operations
from .operations import Outcome, Result, Rows
from .refusals import Reason
from .state import LaunchId, Name, State


class Add(NamedTuple):
    """Start a sequence of so many known tokens."""

    name: Name
    tokens: int


class Extend(NamedTuple):
    """Make room for the next positions of a batch."""

    rows: Rows


class Fork(NamedTuple):
    """Start `child` as `parent` is now."""

    parent: Name
    child: Name


class Submit(NamedTuple):
    """Launch a step: write the next planned positions of a batch, on a stream; a `Launch` is then in flight."""

    rows: Rows
    stream: int = 0


class Execute(NamedTuple):
    """The device does a launch."""

    launch: LaunchId


class Retire(NamedTuple):
    """The host learns that a launch is done."""

    launch: LaunchId


class Release(NamedTuple):
    """Let a sequence go."""

    name: Name


Operation = Add | Extend | Fork | Submit | Execute | Retire | Release

KINDS: dict[type, str] = {
    Add: "add",
    Extend: "extend",
    Fork: "fork",
    Submit: "launch",
    Execute: "execute",
    Retire: "retire",
    Release: "release",
}
_BY_NAME: dict[str, Any] = {word: kind for kind, word in KINDS.items()}
_FUNCTIONS: dict[type, Callable[..., Result]] = {
    Add: operations.add,
    Extend: operations.extend,
    Fork: operations.fork,
    Submit: operations.launch,
    Execute: operations.execute,
    Retire: operations.retire,
    Release: operations.release,
}
assert set(KINDS) == set(get_args(Operation))

# What each operation can be refused for (the table of operations), so that a reason that was never met is noticed.
REFUSALS: dict[str, tuple[Reason, ...]] = {
    "add": (Reason.DUPLICATE, Reason.EMPTY, Reason.TOO_LONG, Reason.NO_SPACE),
    "extend": (Reason.DUPLICATE, Reason.UNKNOWN, Reason.BAD_COUNT, Reason.TOO_LONG, Reason.NO_SPACE),
    "fork": (Reason.UNKNOWN, Reason.DUPLICATE, Reason.BUSY),
    "launch": (Reason.DUPLICATE, Reason.UNKNOWN, Reason.BAD_COUNT, Reason.BUSY),
    "execute": (),
    "retire": (Reason.UNKNOWN_LAUNCH,),
    "release": (Reason.UNKNOWN,),
}


def apply(state: State, operation: Operation, choice: Outcome | None = None) -> Result:
    """Apply an operation to a state: the next state and what was decided, or `Refused`."""
    return _FUNCTIONS[type(operation)](state, *operation, choice=choice)


def describe(operation: Operation) -> str:
    """Return an operation as a person would write it: `extend 1+2 3+1`, `launch 1+1 on 0`, `retire #4`."""
    match operation:
        case Extend(rows):
            return "extend " + _batch(rows)
        case Submit(rows, stream):
            return f"launch {_batch(rows)} on stream {stream}"
        case Execute(launch) | Retire(launch):
            return f"{KINDS[type(operation)]} #{launch}"
        case Add(name, tokens):
            return f"add {name} with {tokens} tokens"
        case Fork(parent, child):
            return f"fork {parent} to {child}"
        case Release(name):
            return f"release {name}"


def _batch(rows: Rows) -> str:
    return " ".join(f"{name}+{count}" for name, count in rows) or "nothing"


def to_json(operation: Operation) -> list[Any]:
    """Return an operation as JSON can hold it: its word, then its arguments."""
    return [KINDS[type(operation)], *operation]


def from_json(words: object) -> Operation:
    """Return the operation that `to_json` wrote; `ValueError` says what is wrong with another text."""
    if not isinstance(words, list) or not words or not isinstance(words[0], str) or words[0] not in _BY_NAME:
        raise ValueError(f"{repr(words)[:60]} is no operation")
    kind = _BY_NAME[words[0]]
    fields = kind._fields
    if len(words) != 1 + len(fields):
        raise ValueError(f"{words[0]} takes {' and '.join(fields)}, not {len(words) - 1} arguments")
    read = {"rows": _rows}
    operation: Operation = kind(
        *[read.get(field, _integer)(word) for field, word in zip(fields, words[1:], strict=True)]
    )
    return operation


def _rows(value: object) -> Rows:
    if not isinstance(value, list) or not all(isinstance(row, list) and len(row) == 2 for row in value):
        raise ValueError(f"{repr(value)[:60]} is no list of [name, count]")
    return tuple((_integer(name), _integer(count)) for name, count in value)


def _integer(value: object) -> int:
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise ValueError(f"{repr(value)[:60]} is no 64-bit integer")
    return value

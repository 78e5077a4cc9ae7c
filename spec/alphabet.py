"""Operations as data, so that drivers can list, draw, print, shrink and replay them.

A *trace* is a list of these. Nothing else is needed to run it again, since every choice is made by the thing under
test or, failing that, by the spec.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, get_args

from . import operations
from .counts import counted
from .outcome import Outcome, Result, Rows, Telling
from .refusals import Reason
from .state import Handle, LaunchId, Name, State, Tokens


class Add(NamedTuple):
    """Start a sequence of so many tokens, or of these ids, under a tenant's salt."""

    name: Name
    tokens: int | Tokens
    salt: int = 0

    @property
    def length(self) -> int:
        """How many tokens it starts with."""
        return self.tokens if isinstance(self.tokens, int) else len(self.tokens)


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


class Publish(NamedTuple):
    """Tell sequences the next of their token ids, and let what is known and written be found."""

    rows: Telling
    retention: int = 0


class Pin(NamedTuple):
    """Hold what is published for these tokens."""

    handle: Handle
    tokens: Tokens
    salt: int = 0


class Unpin(NamedTuple):
    """Let a pin go."""

    handle: Handle


class Clear(NamedTuple):
    """Forget what is published: the weights have changed."""


Operation = Add | Extend | Fork | Submit | Execute | Retire | Release | Publish | Pin | Unpin | Clear

KINDS: dict[type, str] = {
    Add: "add",
    Extend: "extend",
    Fork: "fork",
    Submit: "launch",
    Execute: "execute",
    Retire: "retire",
    Release: "release",
    Publish: "publish",
    Pin: "pin",
    Unpin: "unpin",
    Clear: "clear",
}
SHARING = ("publish", "pin", "unpin", "clear")  # met only where prefixes are shared
_BY_NAME: dict[str, Any] = {word: kind for kind, word in KINDS.items()}
_FUNCTIONS: dict[type, Callable[..., Result]] = {
    Add: operations.add,
    Extend: operations.extend,
    Fork: operations.fork,
    Submit: operations.launch,
    Execute: operations.execute,
    Retire: operations.retire,
    Release: operations.release,
    Publish: operations.publish,
    Pin: operations.pin,
    Unpin: operations.unpin,
    Clear: operations.clear,
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
    "publish": (Reason.DUPLICATE, Reason.UNKNOWN, Reason.BAD_COUNT),
    "pin": (Reason.DUPLICATE, Reason.EMPTY),
    "unpin": (Reason.UNKNOWN,),
    "clear": (),
}


def apply(state: State, operation: Operation, choice: Outcome | None = None) -> Result:
    """Apply an operation to a state: the next state and what was decided, or `Refused`."""
    return _FUNCTIONS[type(operation)](state, *operation, choice=choice)


def describe(operation: Operation) -> str:  # noqa: PLR0911  (one return a kind)
    """Return an operation as a person would write it: `extend 1+2 3+1`, `launch 1+1 on 0`, `retire #4`."""
    match operation:
        case Extend(rows):
            return "extend " + _batch(rows)
        case Submit(rows, stream):
            return f"launch {_batch(rows)} on stream {stream}"
        case Execute(launch) | Retire(launch):
            return f"{KINDS[type(operation)]} #{launch}"
        case Add(name, tokens, salt):
            what = counted(tokens, "token") if isinstance(tokens, int) else f"tokens {_ids(tokens)}"
            return f"add {name} with {what}{_under(salt)}"
        case Fork(parent, child):
            return f"fork {parent} to {child}"
        case Release(name):
            return f"release {name}"
        case _:
            return _describe_sharing(operation)


def _describe_sharing(operation: Publish | Pin | Unpin | Clear) -> str:
    match operation:
        case Publish(rows, retention):
            told = [f"{name}: {_ids(tokens)}" if tokens else str(name) for name, tokens in rows]
            return f"publish {', '.join(told) or 'nothing'}" + (f" in class {retention}" if retention else "")
        case Pin(handle, tokens, salt):
            return f"pin {_ids(tokens)} as {handle}{_under(salt)}"
        case Unpin(handle):
            return f"unpin {handle}"
        case Clear():
            return "clear"


def _batch(rows: Rows) -> str:
    return " ".join(f"{name}+{count}" for name, count in rows) or "nothing"


def _ids(tokens: Tokens) -> str:
    return " ".join(map(str, tokens)) or "none"


def _under(salt: int) -> str:
    return f" under salt {salt}" if salt else ""


def to_json(operation: Operation) -> list[Any]:
    """Return an operation as JSON can hold it: its word, then its arguments."""
    return [KINDS[type(operation)], *operation]


def from_json(words: object) -> Operation:
    """Return the operation that `to_json` wrote; `ValueError` says what is wrong with another text."""
    if not isinstance(words, list) or not words or not isinstance(words[0], str) or words[0] not in _BY_NAME:
        raise ValueError(f"{repr(words)[:60]} is no operation")
    kind = _BY_NAME[words[0]]
    fields = kind._fields
    if not len(fields) - len(kind._field_defaults) <= len(words) - 1 <= len(fields):
        raise ValueError(f"{words[0]} takes {' and '.join(fields) or 'nothing'}, not {len(words) - 1} arguments")
    read = _READERS.get(kind, {})
    given = zip(fields, words[1:], strict=False)  # those left out have defaults
    operation: Operation = kind(*[read.get(field, _integer)(word) for field, word in given])
    return operation


def _rows(value: object) -> Rows:
    if not isinstance(value, list) or not all(isinstance(row, list) and len(row) == 2 for row in value):
        raise ValueError(f"{repr(value)[:60]} is no list of [name, count]")
    return tuple((_integer(name), _integer(count)) for name, count in value)


def _telling(value: object) -> Telling:
    if not isinstance(value, list) or not all(isinstance(row, list) and len(row) == 2 for row in value):
        raise ValueError(f"{repr(value)[:60]} is no list of [name, token ids]")
    return tuple((_integer(name), _tokens(tokens)) for name, tokens in value)


def _tokens(value: object) -> Tokens:
    if not isinstance(value, list):
        raise ValueError(f"{repr(value)[:60]} is no list of token ids")  # noqa: TRY004  (one error for all that is wrong)
    return tuple(_integer(token) for token in value)


def _count_or_tokens(value: object) -> int | Tokens:
    return _tokens(value) if isinstance(value, list) else _integer(value)


def _integer(value: object) -> int:
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise ValueError(f"{repr(value)[:60]} is no 64-bit integer")
    return value


_READERS: dict[type, dict[str, Callable[[object], Any]]] = {
    Add: {"tokens": _count_or_tokens},
    Extend: {"rows": _rows},
    Submit: {"rows": _rows},
    Publish: {"rows": _telling},
    Pin: {"tokens": _tokens},
}

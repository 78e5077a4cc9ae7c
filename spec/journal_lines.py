"""One line of a journal, from its fields to an operation of the alphabet and what was decided in it.

A line may hold anything: nothing here trusts a field to be there, to be of its type, to be of a sensible size, or to
stand once. What is wrong is a `ValueError` with words for a person, in one printable line whatever was quoted; the
reader (`journal`) adds where. Whether an operation makes sense is not asked here but by the audit.

Cost: linear in the line. Lists of a launch's rows are long, so they are passed over by built-in functions, a few
nanoseconds a number, and never by a loop of ours.
"""

import json
from collections.abc import Callable, Mapping
from itertools import repeat
from typing import Any

from .alphabet import Add, Clear, Extend, Fork, Operation, Pin, Publish, Release, Retire, Submit, Unpin
from .outcome import Merge, Outcome, Rows
from .quoting import cut, one_line
from .state import Copy

NUMBER_MIN, NUMBER_MAX = -(2**63), 2**63 - 1
QUOTED_CHARACTERS_MAX = 60

Fields = dict[str, Any]


def parse(text: str) -> Fields:
    """Return the fields of a line. Errors: `ValueError`."""
    try:
        fields, end = _DECODER.raw_decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"not JSON ({one_line(str(error))[:QUOTED_CHARACTERS_MAX]})") from None
    if not isinstance(fields, dict):
        raise ValueError(f"not a JSON object: {quoted(fields)}")  # noqa: TRY004  (one error for all that a line holds)
    if text[end:].strip():
        raise ValueError(f"more than one JSON object: {quoted(text[end:])}")
    return fields


def transition(word: object, fields: Fields) -> tuple[Operation, Outcome]:
    """Return the operation of a line and what was decided; `ValueError` says what is wrong with it."""
    read = _READERS.get(word) if isinstance(word, str) else None
    if read is None:
        raise ValueError(f"no operation: {quoted(word)}")
    found = read(fields)
    nothing_else(fields)
    return found


def _add(fields: Fields) -> tuple[Operation, Outcome]:
    count, tokens = number(fields, "n", 1), _numbers(fields, "tokens")
    if tokens and len(tokens) != count:
        raise ValueError(f"{len(tokens)} token ids, and `n` is {count}")
    operation = Add(number(fields, "seq"), tuple(tokens) or count, number(fields, "salt", 0))
    return operation, Outcome(blocks=tuple(_numbers(fields, "out")), hits=tuple(_numbers(fields, "hits")))


def _extend(fields: Fields) -> tuple[Operation, Outcome]:
    rows = _batch(fields, "seqs")
    copies = fields.pop("copies", [])
    if not isinstance(copies, list) or any(not isinstance(copy, list) or len(copy) != 4 for copy in copies):
        raise ValueError(f"`copies` must be a list of [sequence, source, target, extent]: {quoted(copies)}")
    planned = tuple(Copy(*_all_numbers("copies", copy)) for copy in copies)
    return Extend(rows), Outcome(blocks=tuple(_numbers(fields, "out")), copies=planned)


def _fork(fields: Fields) -> tuple[Operation, Outcome]:
    return Fork(number(fields, "parent"), number(fields, "child")), Outcome()


def _launch(fields: Fields) -> tuple[Operation, Outcome]:
    rows, stream = _batch(fields, "rows"), number(fields, "stream", 0)
    return Submit(rows, stream), Outcome(launch=number(fields, "id"), after=_distinct(fields, "after"))


def _retire(fields: Fields) -> tuple[Operation, Outcome]:
    return Retire(number(fields, "id")), Outcome(freed=_distinct(fields, "freed"))


def _release(fields: Fields) -> tuple[Operation, Outcome]:
    return Release(number(fields, "seq")), Outcome(freed=_distinct(fields, "freed"))


def _publish(fields: Fields) -> tuple[Operation, Outcome]:
    names = _numbers(fields, "seqs")
    told = fields.pop("tokens", [[]] * len(names))
    if not isinstance(told, list) or len(told) != len(names) or any(not isinstance(tokens, list) for tokens in told):
        raise ValueError(f"`tokens` must be a list of token ids for each of {len(names)} sequences: {quoted(told)}")
    merges = fields.pop("merged", [])
    if not isinstance(merges, list) or any(not isinstance(merge, list) or len(merge) != 4 for merge in merges):
        raise ValueError(f"`merged` must be a list of [sequence, index, old, new]: {quoted(merges)}")
    rows = tuple([(name, tuple(_all_numbers("tokens", ids))) for name, ids in zip(names, told, strict=True)])
    return Publish(rows, number(fields, "retention", 0)), Outcome(
        freed=_distinct(fields, "freed"),
        published=tuple(_numbers(fields, "published")),
        merges=tuple([Merge(*_all_numbers("merged", merge)) for merge in merges]),
    )


def _pin(fields: Fields) -> tuple[Operation, Outcome]:
    tokens = tuple(_numbers(fields, "tokens"))
    operation = Pin(number(fields, "pin"), tokens, number(fields, "salt", 0))
    return operation, Outcome(hits=tuple(_numbers(fields, "hits")))


def _unpin(fields: Fields) -> tuple[Operation, Outcome]:
    return Unpin(number(fields, "pin")), Outcome(freed=_distinct(fields, "freed"))


def _clear(fields: Fields) -> tuple[Operation, Outcome]:
    return Clear(), Outcome(freed=_distinct(fields, "freed"))


_READERS: Mapping[str, Callable[[Fields], tuple[Operation, Outcome]]] = {
    "add": _add,
    "extend": _extend,
    "fork": _fork,
    "launch": _launch,
    "retire": _retire,
    "release": _release,
    "publish": _publish,
    "pin": _pin,
    "unpin": _unpin,
    "clear": _clear,
}


def _batch(fields: Fields, key: str) -> Rows:
    names = _numbers(fields, key)
    if "counts" not in fields:
        return tuple(zip(names, repeat(1)))
    counts = _numbers(fields, "counts")
    if len(counts) != len(names):
        raise ValueError(f"{len(counts)} counts for {len(names)} rows")
    return tuple(zip(names, counts, strict=True))


def number(fields: Fields, key: str, default: int | None = None) -> int:
    """Take a field that must be an integer of 64 bits. Errors: `ValueError`."""
    value = fields.pop(key, default)
    if type(value) is int and NUMBER_MIN <= value <= NUMBER_MAX:
        return value
    if value is None:
        raise ValueError(f"no field `{key}`")
    return _all_numbers(key, [value])[0]  # says what is wrong


def _numbers(fields: Fields, key: str) -> list[int]:
    values = fields.pop(key, [])
    if not isinstance(values, list):
        raise ValueError(f"`{key}` must be a list: {quoted(values)}")  # noqa: TRY004  (one error for all that a line holds)
    return _all_numbers(key, values)


def _all_numbers(key: str, values: list[Any]) -> list[int]:
    """Return the values if all are integers of 64 bits. Passes over long lists, hence not a loop of ours."""
    if not values:
        return values
    if set(map(type, values)) != {int}:  # which true and false are not, here
        wrong = next(value for value in values if type(value) is not int)
        raise ValueError(f"`{key}` must be integers: {quoted(wrong)}")
    if max(values) > NUMBER_MAX or min(values) < NUMBER_MIN:
        raise ValueError(f"`{key}` has a number beyond 64 bits")
    return values


def _distinct(fields: Fields, key: str) -> frozenset[int]:
    values = _numbers(fields, key)
    distinct = frozenset(values)
    if len(distinct) < len(values):
        raise ValueError(f"`{key}` names something twice: {quoted(values)}")
    return distinct


def nothing_else(fields: Fields) -> None:
    """Refuse fields that nobody asked for. Errors: `ValueError`."""
    if fields:
        raise ValueError(f"no such field here: {', '.join(quoted(key) for key in fields)}"[:200])


def _without_duplicates(pairs: list[tuple[str, Any]]) -> Fields:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field stands twice")
    return fields


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is no number")


_DECODER = json.JSONDecoder(object_pairs_hook=_without_duplicates, parse_constant=_no_constant)


def quoted(value: object) -> str:
    """Return a value as Python would write it, cut to a length that fits into a message."""
    try:
        text = one_line(repr(value)[: 4 * QUOTED_CHARACTERS_MAX])
    except RecursionError:
        return "something nested too deeply"
    return cut(text, QUOTED_CHARACTERS_MAX)

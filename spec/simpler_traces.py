"""Which traces are simpler than one that fails: what shrinking tries where no operation can be left out any more.

One of its sequences less; one row of a batch, one count, one token id less; a stream, a salt, a retention class or a
token id that is 0, or no ids at all; an extension folded into the beginning of its sequence; requests numbered from 0.
Each candidate is simpler in one of these and never the trace itself, since each costs a run. `size` is what must become
smaller for it: first the number of operations, then what they name and count.

These are the operations of a cache; what is simpler of a scheduler's stands in `scheduler_alphabet`.
"""

from collections.abc import Iterator
from typing import Any

from . import scheduler_alphabet
from .alphabet import Add, Extend, Fork, Pin, Publish, Release, Submit
from .state import Name, Tokens
from .traces import Marked


def size(trace: tuple[Any, ...]) -> tuple[int, int]:
    """Return how large a trace is; less is simpler."""
    rows = [operation.rows for operation in trace if isinstance(operation, Extend | Submit)]
    lengths = sum(operation.length for operation in trace if isinstance(operation, Add))
    counts = sum(1 + count for batch in rows for _, count in batch)
    streams = sum(operation.stream > 0 for operation in trace if isinstance(operation, Submit))
    rest = sum(_told(operation) + scheduler_alphabet.weight(operation) for operation in trace)
    return len(trace), lengths + counts + streams + rest


def _told(operation: Any) -> int:
    """Return how much there is of token ids: their number, and what is not 0 among them or beside them."""
    match operation:
        case Add(_, tokens, salt) | Pin(_, tokens, salt):
            ids = () if isinstance(tokens, int) else tokens
            return len(ids) + sum(map(bool, (*ids, salt)))
        case Publish(rows, retention):
            return bool(retention) + sum(1 + len(tokens) + sum(map(bool, tokens)) for _, tokens in rows)
        case _:
            return 0


def simpler(marked: list[Marked]) -> Iterator[list[Marked]]:
    """Yield traces that are one step simpler: without a sequence, then with one number less, and so on."""
    yield from _without_one(marked)
    yield from _cut(marked)
    yield from _folded(marked)
    yield from _renumbered(marked)


def _without_one(marked: list[Marked]) -> Iterator[list[Marked]]:
    """Yield the trace without one of its sequences: its beginning, its end and its rows in between go together."""
    for name in dict.fromkeys(operation.name for operation, _ in marked if isinstance(operation, Add)):
        others = [Marked(_for_others(operation, name), launch) for operation, launch in marked]
        yield [each for each in others if each.operation is not None]


def _for_others(operation: Any, name: Name) -> Any:
    """Return an operation as far as it is for other sequences, None where nothing is left."""
    if isinstance(operation, Add | Release):
        return None if operation.name == name else operation
    if isinstance(operation, Fork):
        return None if name in operation else operation
    if isinstance(operation, Extend | Submit | Publish) and operation.rows:
        rows: tuple[Any, ...] = tuple(row for row in operation.rows if row[0] != name)
        return operation._replace(rows=rows) if rows else None
    return operation


def _cut(marked: list[Marked]) -> Iterator[list[Marked]]:
    """Yield the trace with one operation simpler: a row, count or id less, or a salt, stream, class or id made 0."""
    for at, (operation, launch) in enumerate(marked):
        for each in _simpler_operations(operation):
            yield [*marked[:at], Marked(each, launch), *marked[at + 1 :]]


def _folded(marked: list[Marked]) -> Iterator[list[Marked]]:
    """Yield the trace with one extension less: its sequence has those tokens from the start."""
    for at, (operation, _) in enumerate(marked):
        if isinstance(operation, Extend) and len(operation.rows) == 1:
            name, count = operation.rows[0]
            for start, (earlier, launch) in enumerate(marked[:at]):
                if isinstance(earlier, Add) and earlier.name == name and isinstance(earlier.tokens, int):
                    longer = Marked(earlier._replace(tokens=earlier.tokens + count), launch)
                    yield [*marked[:start], longer, *marked[start + 1 : at], *marked[at + 1 :]]


def _renumbered(marked: list[Marked]) -> Iterator[list[Marked]]:
    """Yield the trace with its requests numbered from 0, if they are not."""
    operations = [operation for operation, _ in marked]
    numbered = scheduler_alphabet.renumbered(operations)
    if numbered != operations:
        yield [each._replace(operation=operation) for each, operation in zip(marked, numbered, strict=True)]


def _simpler_operations(operation: Any) -> Iterator[Any]:
    if isinstance(operation, Add) and operation.length > 1:
        tokens = operation.tokens
        if isinstance(tokens, int) and tokens > 2:
            yield operation._replace(tokens=1)
        yield operation._replace(tokens=tokens - 1 if isinstance(tokens, int) else tokens[:-1])
    if isinstance(operation, Add | Pin):
        if operation.salt:
            yield operation._replace(salt=0)
        if not isinstance(operation.tokens, int):
            if isinstance(operation, Add):
                yield operation._replace(tokens=operation.length)
            yield from (operation._replace(tokens=plainer) for plainer in _plainer(operation.tokens))
    if isinstance(operation, Publish):
        yield from _simpler_publications(operation)
    yield from scheduler_alphabet.simpler(operation)
    if isinstance(operation, Extend | Submit):
        yield from _simpler_batches(operation)


def _simpler_batches(operation: Extend | Submit) -> Iterator[Extend | Submit]:
    if isinstance(operation, Submit) and operation.stream:
        yield operation._replace(stream=0)
    rows = operation.rows
    for at, (name, count) in enumerate(rows):
        if len(rows) > 1:
            yield operation._replace(rows=rows[:at] + rows[at + 1 :])
        if count > 1:
            yield operation._replace(rows=(*rows[:at], (name, count - 1), *rows[at + 1 :]))


def _simpler_publications(operation: Publish) -> Iterator[Publish]:
    rows = operation.rows
    if operation.retention:
        yield operation._replace(retention=0)
    for at, (name, tokens) in enumerate(rows):
        if len(rows) > 1:
            yield operation._replace(rows=rows[:at] + rows[at + 1 :])
        if tokens:
            yield operation._replace(rows=(*rows[:at], (name, tokens[:-1]), *rows[at + 1 :]))
        for plainer in _plainer(tokens):
            yield operation._replace(rows=(*rows[:at], (name, plainer), *rows[at + 1 :]))


def _plainer(tokens: Tokens) -> Iterator[Tokens]:
    """Yield the tokens with one of them made 0."""
    return ((*tokens[:at], 0, *tokens[at + 1 :]) for at, token in enumerate(tokens) if token)

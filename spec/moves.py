"""Which operations to try next: all of them (exhaustive), or one by lot (random).

Both offer what should be refused too: names that are not live, counts of zero, forks onto a living name, completions
that come twice or were never due. An operation that was never refused was never tried at its edge.
"""

from collections.abc import Iterator
from itertools import permutations, product
from random import Random
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from .alphabet import Add, Execute, Extend, Fork, Operation, Publish, Release, Retire, Submit
from .arithmetic import blocks_needed
from .counts import counted
from .moves_sharing import (
    DRAWN_TOO,
    Sharing,
    draw_batch,
    fresh_names,
    is_true,
    odd_sharing_move,
    salts,
    sharing_moves,
    texts,
)
from .operations import ready
from .state import Config, LaunchId, Name, State

if TYPE_CHECKING:
    from _typeshed import SupportsLenAndGetItem

Drawn = TypeVar("Drawn")


class Scope(NamedTuple):
    """How far the exhaustive driver goes: a pool, how many sequences, how long, how many rows a batch."""

    config: Config
    sequences: int = 2
    tokens: int = 4
    rows: int = 2
    sharing: Sharing | None = None  # None: no token id is told, so no prefix is shared

    def describe(self) -> str:
        """Return the scope as a person would say it."""
        config = self.config
        return (
            f"{counted(config.blocks, 'block')}, B = {config.block_size}, {counted(self.sequences, 'sequence')} "
            f"of up to {counted(self.tokens, 'token')}, {counted(config.launches, 'launch', 'launches')} in flight, "
            f"{counted(config.streams, 'stream')}, batches of up to {counted(self.rows, 'row')}"
            f"{self.sharing.describe() if self.sharing else ''}"
        )


def all_moves(state: State, scope: Scope) -> Iterator[Operation]:
    """Yield every operation within a scope, in batches of at least one row, and examples of each refusal.

    An extension of no row, which does nothing, is left out: it would cost a seventh of a walk, and count as one that
    fired. A launch of no row leads to more states, and is drawn by lot alone.
    """
    names = range(1, scope.sequences + 1)
    live = [name for name in names if name in state.sequences]
    fresh = [name for name in names if name not in state.sequences][:1]  # names not in use are alike
    stranger = scope.sequences + 1
    too_long = scope.config.blocks * scope.config.block_size + 1
    under = salts(state, scope.sharing) if scope.sharing else [0]
    yield from (
        Add(name, count, salt) for name in fresh for count in (*range(scope.tokens + 1), too_long) for salt in under
    )
    yield from (Add(name, 1) for name in live)
    yield from (Fork(parent, child) for parent, child in product(live, (*live[:1], *fresh)))
    yield Fork(stranger, stranger)
    yield from (Release(name) for name in (*live, stranger))
    for size in range(1, scope.rows + 1):
        for batch in permutations((*live, stranger) if size == 1 else live, size):
            yield from _extensions(state, scope, batch, too_long)
            yield from _submissions(state, scope, batch)
    if live:
        yield Extend(((live[0], 1), (live[0], 1)))
        yield Submit(((live[0], 1), (live[0], 1)))
    yield from (Execute(launch.id) for launch in state.launches if ready(state, launch))
    yield from (Retire(launch.id) for launch in state.launches if launch.executed)
    yield Retire(state.issued + 1)
    if gone := _gone(state):
        yield Retire(gone)
    if scope.sharing and fresh:
        yield from (Add(fresh[0], text, salt) for salt, text in texts(state, scope.tokens, scope.sharing))
    if scope.sharing:
        yield from sharing_moves(state, live, stranger, scope.rows, scope.sharing)


def _extensions(state: State, scope: Scope, batch: tuple[Name, ...], too_long: int) -> Iterator[Operation]:
    counts = []
    for name in batch:
        room = scope.tokens - state.sequences[name].allocated if name in state.sequences else 1
        counts.append((*range(room + 1), too_long) if len(batch) == 1 else range(1, room + 1))
    yield from (Extend(tuple(zip(batch, chosen, strict=True))) for chosen in product(*counts))


def _submissions(state: State, scope: Scope, batch: tuple[Name, ...]) -> Iterator[Operation]:
    counts = []
    for name in batch:
        planned = state.sequences[name].planned if name in state.sequences else 0
        counts.append(range(planned + 2) if len(batch) == 1 else range(1, planned + 1))
    for chosen in product(*counts):
        rows = tuple(zip(batch, chosen, strict=True))
        for stream in range(scope.config.streams if min(chosen) else 1):
            yield Submit(rows, stream)


def possible(state: State, operation: object) -> bool:
    """Whether the world can do this now: launches execute in their order and complete only then; told ids are true."""
    if isinstance(operation, Execute):
        return any(launch.id == operation.launch and ready(state, launch) for launch in state.launches)
    if isinstance(operation, Retire):
        return all(launch.executed for launch in state.launches if launch.id == operation.launch)
    return not isinstance(operation, Publish) or is_true(state, operation)


def _gone(state: State) -> LaunchId:
    """Return a launch that has left already, 0 if there is none: its completion may come a second time."""
    in_flight = {launch.id for launch in state.launches}
    return next((launch for launch in range(state.issued, 0, -1) if launch not in in_flight), 0)


class Lots(Random):
    """Lots for a driver: drawn by one multiplication, at a third of the cost of exact ones, uneven by 1 in 2 ** 50."""

    def choice(self, seq: "SupportsLenAndGetItem[Drawn]") -> Drawn:
        """Draw one of a sequence that is not empty."""
        return seq[int(self.random() * len(seq))]

    def randint(self, a: int, b: int) -> int:
        """Draw an integer from `a` up to `b`, both included."""
        return a + int(self.random() * (b - a + 1))


_ODD = 1 / 12  # how often something is asked that is likely to be refused
_ODD_SHARING = 1 / 3  # of these, where prefixes are shared


def draw_move(state: State, names: int, random: Random, *, sharing: bool = False) -> Operation:
    """Draw one possible operation for a world of `names` sequences: mostly sensible, now and then one to be refused.

    Where prefixes are shared, two of three sequences begin with ids, and what shares them is drawn as well.
    """
    if random.random() < _ODD:
        odd = odd_sharing_move if sharing and random.random() < _ODD_SHARING else _odd_move
        return odd(state, names, random)
    drawn = _DRAWN_SHARING if sharing else _DRAWN
    while True:  # an empty world has room for a sequence, and any other a sequence to release
        draw = random.choice(drawn)
        operation = draw(state, names, random)
        if operation is not None:  # one without arguments is an empty tuple
            return operation


def _draw_add(state: State, names: int, random: Random) -> Operation | None:
    size, blocks = state.config.block_size, state.config.blocks
    fresh = fresh_names(state, names)
    if not fresh or sum([blocks_needed(each.allocated, size) for each in state.sequences.values()]) >= blocks:
        return None
    return Add(random.choice(fresh), random.randint(1, min(blocks, 2) * size))


def _draw_extend(state: State, _names: int, random: Random) -> Operation | None:
    size, capacity = state.config.block_size, state.config.blocks * state.config.block_size
    room = [name for name, sequence in state.sequences.items() if sequence.allocated < capacity]
    batch = draw_batch(room, random)
    return Extend(tuple([(name, random.choice((1, 1, 1, 2, size))) for name in batch])) if batch else None


def _draw_fork(state: State, names: int, random: Random) -> Operation | None:
    parents = [name for name, sequence in state.sequences.items() if not sequence.planned]
    fresh = fresh_names(state, names)
    return Fork(random.choice(parents), random.choice(fresh)) if parents and fresh else None


def _draw_submit(state: State, _names: int, random: Random) -> Operation | None:
    if len(state.launches) >= state.config.launches:
        return None
    planned = {name: count for name, sequence in state.sequences.items() if (count := sequence.planned)}
    rows = tuple([(name, random.randint(1, planned[name])) for name in draw_batch([*planned], random)])
    return Submit(rows, random.randrange(state.config.streams)) if rows else None


def _draw_execute(state: State, _names: int, random: Random) -> Operation | None:
    able = [launch.id for launch in state.launches if ready(state, launch)]
    return Execute(random.choice(able)) if able else None


def _draw_retire(state: State, _names: int, random: Random) -> Operation | None:
    done = [launch.id for launch in state.launches if launch.executed]
    return Retire(random.choice(done)) if done else None


def _draw_release(state: State, _names: int, random: Random) -> Operation | None:
    return Release(random.choice([*state.sequences])) if state.sequences else None


# Each kind as often as it is drawn: growth and device work more often than arrivals, so that runs get deep.
_DRAWN = (
    *[_draw_add] * 2,
    *[_draw_extend] * 5,
    *[_draw_fork] * 4,
    *[_draw_submit] * 8,
    *[_draw_execute] * 6,
    *[_draw_retire] * 4,
    *[_draw_release] * 3,
)
_DRAWN_SHARING = (*_DRAWN, *DRAWN_TOO)


def _odd_move(state: State, names: int, random: Random) -> Operation:
    """Draw an operation that is likely to be refused, or that comes when it changes nothing."""
    live = list(state.sequences) or [names]
    one, stranger = random.choice(live), random.choice([n for n in range(names + 2) if n not in state.sequences])
    too_long = state.config.blocks * state.config.block_size + 1
    return random.choice(
        (
            lambda: Add(one, 1),
            lambda: Add(random.randrange(names), random.choice((0, too_long))),
            lambda: Extend(((one, 1), (random.choice((stranger, one)), 1))),
            lambda: Extend(((one, random.choice((0, too_long))),)),
            lambda: Fork(random.choice((one, stranger)), random.randrange(names)),
            lambda: Submit(((one, 1), (random.choice((stranger, one)), 1))),
            lambda: Submit(((one, random.choice((0, too_long))),)),
            lambda: Submit(()),
            lambda: Retire(random.choice((_gone(state), state.issued + 1))),
            lambda: Release(stranger),
        )
    )()

"""Which operations to try next: all of them (exhaustive), or one by lot (random).

Both offer what should be refused too: names that are not live, counts of zero, forks onto a living name, completions
that come twice or were never due. An operation that was never refused was never tried at its edge.
"""

from collections.abc import Iterator
from itertools import permutations, product
from random import Random
from typing import NamedTuple

from .alphabet import Add, Execute, Extend, Fork, Operation, Release, Retire, Submit
from .arithmetic import blocks_needed
from .operations import ready
from .state import Config, LaunchId, Name, State


class Scope(NamedTuple):
    """How far the exhaustive driver goes: a pool, how many sequences, how long, how many rows a batch."""

    config: Config
    sequences: int = 2
    tokens: int = 4
    rows: int = 2

    def describe(self) -> str:
        """Return the scope as a person would say it."""
        config = self.config
        return (
            f"{config.blocks} blocks, B = {config.block_size}, {self.sequences} sequences of up to {self.tokens} "
            "tokens, "
            f"{config.launches} launches in flight, {config.streams} streams, batches of up to {self.rows} rows"
        )


def all_moves(state: State, scope: Scope) -> Iterator[Operation]:
    """Yield every operation within a scope, those to be refused included."""
    names = range(1, scope.sequences + 1)
    live = [name for name in names if name in state.sequences]
    fresh = [name for name in names if name not in state.sequences][:1]  # names not in use are alike
    stranger = scope.sequences + 1
    too_long = scope.config.blocks * scope.config.block_size + 1
    yield from (Add(name, count) for name in fresh for count in (*range(scope.tokens + 1), too_long))
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
    if left := _left(state):
        yield Retire(left)


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
    """Whether the world can do this now: a device keeps its order, and tells of what it has done alone."""
    if isinstance(operation, Execute):
        return any(launch.id == operation.launch and ready(state, launch) for launch in state.launches)
    if isinstance(operation, Retire):
        return all(launch.executed for launch in state.launches if launch.id == operation.launch)
    return True


def _left(state: State) -> LaunchId:
    """Return a launch that has left already, 0 if there is none: its completion may come a second time."""
    in_flight = {launch.id for launch in state.launches}
    return next((launch for launch in range(state.issued, 0, -1) if launch not in in_flight), 0)


# How often each kind is drawn: growth and device work more often than arrivals, so that runs get deep.
_WEIGHTS = {"add": 2, "extend": 5, "fork": 4, "launch": 8, "execute": 6, "retire": 4, "release": 3}
_ODD = 1 / 12  # how often something is asked that is likely to be refused


def draw_move(state: State, names: int, random: Random) -> Operation:
    """Draw one operation for a world of `names` sequences: mostly sensible, now and then one to be refused."""
    draw = _odd_move if random.random() < _ODD else _sensible_move
    return draw(state, names, random)


def _sensible_move(state: State, names: int, random: Random) -> Operation:  # noqa: PLR0911  (one return a kind)
    """Draw an operation that may well be done: of each kind one that makes sense here, then a kind by its weight."""
    live = list(state.sequences)
    fresh = [name for name in range(names) if name not in state.sequences]
    planned = [name for name in live if state.sequences[name].planned]
    forkable = [name for name in live if name not in planned]
    size, capacity = state.config.block_size, state.config.blocks * state.config.block_size
    room = [name for name in live if state.sequences[name].allocated < capacity]
    able = [launch.id for launch in state.launches if ready(state, launch)]
    done = [launch.id for launch in state.launches if launch.executed]
    full = sum(blocks_needed(sequence.allocated, size) for sequence in state.sequences.values()) >= state.config.blocks
    sensible = {
        "add": bool(fresh) and not full,
        "extend": bool(room),
        "fork": bool(forkable and fresh),
        "launch": bool(planned) and len(state.launches) < state.config.launches,
        "execute": bool(able),
        "retire": bool(done),
        "release": bool(live),
    }
    kinds = [kind for kind, makes_sense in sensible.items() if makes_sense] or ["add"]
    match random.choices(kinds, [_WEIGHTS[kind] for kind in kinds])[0]:
        case "add":
            return Add(random.choice(fresh), random.randint(1, min(capacity, 2 * size)))
        case "extend":
            batch = random.sample(room, random.randint(1, min(3, len(room))))
            return Extend(tuple((name, random.choice((1, 1, 1, 2, size))) for name in batch))
        case "fork":
            return Fork(random.choice(forkable), random.choice(fresh))
        case "launch":
            batch = random.sample(planned, random.randint(1, min(3, len(planned))))
            rows = tuple((name, random.randint(1, state.sequences[name].planned)) for name in batch)
            return Submit(rows, random.randrange(state.config.streams))
        case "execute":
            return Execute(random.choice(able))
        case "retire":
            return Retire(random.choice(done))
        case _:
            return Release(random.choice(live))


def _odd_move(state: State, names: int, random: Random) -> Operation:
    """Draw an operation that is likely to be refused, or that comes when it changes nothing."""
    live = list(state.sequences) or [names]
    one, stranger = random.choice(live), random.choice([n for n in range(names + 2) if n not in state.sequences])
    too_long = state.config.blocks * state.config.block_size + 1
    return random.choice(
        (
            Add(one, 1),
            Add(random.randrange(names), random.choice((0, too_long))),
            Extend(((one, 1), (random.choice((stranger, one)), 1))),
            Extend(((one, random.choice((0, too_long))),)),
            Fork(random.choice((one, stranger)), random.randrange(names)),
            Submit(((one, 1), (random.choice((stranger, one)), 1))),
            Submit(((one, random.choice((0, too_long))),)),
            Submit(()),
            Retire(random.choice((_left(state), state.issued + 1))),
            Release(stranger),
        )
    )

"""Which operations to try next: all of them (exhaustive), or one by lot (random).

Both offer what should be refused too: names that are not live, counts of zero, forks onto a living name, completions
that come twice or were never due. An operation that was never refused was never tried at its edge.
"""

from collections.abc import Iterator
from itertools import permutations, product
from random import Random
from typing import NamedTuple

from .alphabet import Add, Execute, Extend, Fork, Operation, Release, Retire, Submit
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
            f"{config.blocks} blocks, B = {config.block_size}, {self.sequences} sequences of up to {self.tokens} tokens, "
            f"{config.launches} launches in flight, {config.streams} streams, batches of up to {self.rows} rows"
        )


def all_moves(state: State, scope: Scope) -> Iterator[Operation]:
    """Yield every operation within a scope, those to be refused included."""
    names = range(1, scope.sequences + 1)
    live = [name for name in names if name in state.sequences]
    fresh = [name for name in names if name not in state.sequences][:1]  # names not in use are alike
    stranger = scope.sequences + 1
    too_long = scope.config.blocks * scope.config.block_size + 1
    for name in (*live, *fresh):
        yield from (Add(name, count) for count in (*range(scope.tokens + 1), too_long))
    for parent, child in product((*live, stranger), (*live, *fresh)):
        yield Fork(parent, child)
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
        counts.append((*range(room + 1), too_long) if len(batch) == 1 else range(room + 1))
    yield from (Extend(tuple(zip(batch, chosen, strict=True))) for chosen in product(*counts))


def _submissions(state: State, scope: Scope, batch: tuple[Name, ...]) -> Iterator[Operation]:
    counts = []
    for name in batch:
        planned = state.sequences[name].planned if name in state.sequences else 0
        counts.append(range(planned + 2) if len(batch) == 1 else range(1, planned + 1))
    for chosen, stream in product(product(*counts), range(scope.config.streams)):
        yield Submit(tuple(zip(batch, chosen, strict=True)), stream)


def _left(state: State) -> LaunchId:
    """Return a launch that has left already, 0 if there is none: its completion may come a second time."""
    in_flight = {launch.id for launch in state.launches}
    return next((launch for launch in range(state.issued, 0, -1) if launch not in in_flight), 0)


# How often each kind is drawn: growth and device work more often than arrivals, so that runs get deep.
_WEIGHTS = {"add": 3, "extend": 6, "fork": 2, "launch": 6, "execute": 6, "retire": 5, "release": 2}
_KINDS, _SHARES = list(_WEIGHTS), list(_WEIGHTS.values())


def draw_move(state: State, names: int, random: Random) -> Operation:
    """Draw one operation: mostly sensible, one in twelve of any kind likely to be refused."""
    kind = random.choices(_KINDS, _SHARES)[0]
    live = list(state.sequences)
    odd = random.random() < 1 / 12 or not live
    capacity = state.config.blocks * state.config.block_size
    if kind == "execute":
        able = [launch.id for launch in state.launches if ready(state, launch)]
        return Execute(random.choice(able)) if able else _draw_submission(state, live, random)
    if kind == "retire":
        done = [launch.id for launch in state.launches if launch.executed]
        return (
            Retire(random.choice(done)) if done and not odd else Retire(random.choice((_left(state), state.issued + 1)))
        )
    if kind == "add" or not live:
        name = random.choice([name for name in range(names) if odd or name not in state.sequences] or live)
        return Add(name, random.choice((0, capacity + 1)) if odd and live else random.randint(1, max(1, capacity // 3)))
    if kind == "release":
        return Release(names if odd else random.choice(live))
    if kind == "fork":
        return Fork(
            random.choice(live), random.choice([n for n in range(names) if n not in state.sequences or odd] or live)
        )
    if kind == "launch":
        return _draw_submission(state, live, random)
    batch = random.sample(live, random.randint(1, min(3, len(live))))
    if odd:
        batch.append(random.choice((names, batch[0])))
    return Extend(tuple((name, random.choice((0, capacity)) if odd else random.randint(1, 3)) for name in batch))


def _draw_submission(state: State, live: list[Name], random: Random) -> Operation:
    able = [name for name in live if state.sequences[name].planned]
    batch = random.sample(able, random.randint(1, min(3, len(able)))) if able else live[:1]
    rows = tuple((name, random.randint(1, max(1, state.sequences[name].planned))) for name in batch)
    return Submit(rows, random.randrange(state.config.streams))

"""What engines do in a row where prefixes are shared: drawn as stories, told one operation at a time.

Moves that are drawn one by one seldom come in an order of ten that means something. A prompt is computed and forked,
the fork is cancelled while its step runs, the parent is published behind what another request had published first, and
gone before that step has ended: in such an order alone may a parent in the index be evictable before its child. So of
the operations of a run that shares prefixes half tell a story: the life of a request from its prompt to its end,
alone or with siblings, which go on, are told, published and released in any order; steps of a whole batch; a pin while
a launch ends. The other half are moves as always, in between. So nothing need be as the story left it: each operation
is chosen by the state of the moment, and left out where it can't be done.

A request is begun where there is room, else one leaves. So the index is seldom empty: a run publishes and merges three
times as many blocks as by moves alone, and evicts six times as many. Cost: as moves. Considered: to draw each kind of
move more or less often, run by run (swarm testing, Groce et al., 2012): a third of the publications of moves alone,
since a run that seldom does one kind of device work has few.
"""

from collections.abc import Iterator
from random import Random

from .alphabet import Add, Execute, Extend, Fork, Operation, Pin, Publish, Release, Retire, Submit, Unpin
from .moves_sharing import draw_pin, draw_text, fresh_names, truly
from .operations import ready
from .state import Name, State, held
from .world import World

_STEP = 1 / 4  # how often a story is a step of a whole batch
_AT_ONCE = (1, 2, 3)  # stories that are told in turn, in a run
_BLOCKS_MOST = 3  # of a prompt
_SALTS = (0, 0, 0, 1)
_RETENTIONS = (0, 0, 1, 2, 3)  # so that a parent may have children of different classes above its own
_PIN = 1 / 16
_STEPS = (1, 1, 2)  # of a batch, before it is told anything
_LATE = 1 / 3  # how often a fork's first step is launched later, so that its copy stays planned
_TELLINGS = 2  # in a life, before all are released
_PARTLY = 1 / 4  # how often some ids are told, not all
_TURNS = (0, 0, 1, 2)  # in a life, of siblings that go on


def stories(here: World, names: int, random: Random) -> Iterator[Operation]:
    """Yield the operations of stories without end, a few told in turn; each when it is asked for, by the state then."""
    most = random.choice(_AT_ONCE)
    begun: list[Iterator[Operation]] = []
    while True:
        if len(begun) < most:
            begun.append(_story(here, names, random))
        story = random.choice(begun)
        operation = next(story, None)
        if operation is None:
            begun.remove(story)
        else:
            yield operation


def _story(here: World, names: int, random: Random) -> Iterator[Operation]:
    """Tell one story."""
    state = here.state
    fresh, room = fresh_names(state, names), state.config.blocks - len(held(state)) - len(state.quarantine)
    if len(state.sequences) > 1 and random.random() < _STEP:
        yield from _steps(here, room, random)
    elif random.random() < _PIN:
        yield from _pinned(here, names, random)
    elif fresh and room:
        yield from _life(here, random.choice(fresh), names, min(room, _BLOCKS_MOST), random)
    else:
        yield random.choice(_leaving(state))


def _steps(here: World, room: int, random: Random) -> Iterator[Operation]:
    """Tell of steps of all sequences: room for one position each, where there is; launched, and told in the end."""
    batch = [*here.state.sequences]
    for _ in range(random.choice(_STEPS)):
        batch = random.sample(batch, len(batch))
        if room >= len(batch):
            yield Extend(tuple([(name, 1) for name in batch]))
        yield from _launched(here, batch, random)
    yield from _told(here, random.sample(batch, len(batch)), random)


def _pinned(here: World, names: int, random: Random) -> Iterator[Operation]:
    """Tell of a prefix that is pinned until something happens to the launches in flight."""
    pin = draw_pin(here.state, names, random)
    if isinstance(pin, Pin):
        yield pin
        yield random.choice([*_device(here.state), Unpin(pin.handle)])
        yield Unpin(pin.handle)


def _life(here: World, name: Name, names: int, blocks: int, random: Random) -> Iterator[Operation]:
    """Tell of a request of up to so many full blocks: computed, perhaps forked, told and published, released."""
    text = draw_text(here.state.config.block_size * random.randint(1, blocks) + random.choice((0, 0, 1)), random)
    yield Add(name, random.choice((text, len(text))), random.choice(_SALTS))
    yield from _computed(here, name, random)
    siblings = [name]
    for child in fresh_names(here.state, names)[: random.choice((0, 1, 1, 2))]:
        yield from _forked(here, name, child, random)
        siblings.append(child)
    turns = [*[_told] * _TELLINGS, *[_served] * random.choice(_TURNS), *[_released] * len(siblings)]
    for turn in random.sample(turns, len(turns)):
        yield from turn(here, [random.choice(siblings)], random)
    yield from _released(here, siblings, random)


def _served(here: World, batch: list[Name], random: Random) -> Iterator[Operation]:
    """Tell of a step of one sequence, and wait for its end."""
    for name in batch:
        if name in here.state.sequences:
            yield Extend(((name, 1),))
        yield from _computed(here, name, random)


def _computed(here: World, name: Name, random: Random) -> Iterator[Operation]:
    """Launch all that is planned of a sequence, and wait for the end of that."""
    yield from _launched(here, [name], random)
    while any(row.sequence == name for launch in here.state.launches for row in launch.computations):
        yield random.choice(_device(here.state))


def _launched(here: World, batch: list[Name], random: Random) -> Iterator[Operation]:
    """Launch all that is planned of some sequences, as soon as a launch may be."""
    while len(here.state.launches) == here.state.config.launches:
        yield random.choice(_device(here.state))
    live = here.state.sequences
    rows = tuple([(name, live[name].planned) for name in batch if name in live and live[name].planned])
    if rows:
        yield Submit(rows, random.randrange(here.state.config.streams))


def _forked(here: World, parent: Name, child: Name, random: Random) -> Iterator[Operation]:
    """Fork a sequence, and launch a step of the child's."""
    if parent in here.state.sequences and not here.state.sequences[parent].planned:
        yield Fork(parent, child)
    if child in here.state.sequences:
        yield Extend(((child, 1),))
    if random.random() > _LATE:
        yield from _launched(here, [child], random)


def _told(here: World, batch: list[Name], random: Random) -> Iterator[Operation]:
    """Tell sequences the ids of all their positions, or at times of some; what is written of that is published."""
    live = {name: here.state.sequences[name] for name in batch if name in here.state.sequences}
    unknown = {name: sequence.allocated - len(sequence.known) for name, sequence in live.items()}
    if random.random() < _PARTLY:
        unknown = {name: random.randint(0, count) for name, count in unknown.items()}
    wished = {name: draw_text(count, random) if count else () for name, count in unknown.items()}
    if wished:
        yield Publish(truly(here.state, wished), random.choice(_RETENTIONS))


def _released(here: World, batch: list[Name], _random: Random) -> Iterator[Operation]:
    for name in batch:
        if name in here.state.sequences:
            yield Release(name)


def _device(state: State) -> list[Operation]:
    """Return what may happen next to launches in flight: something, where there are any."""
    done: list[Operation] = [Retire(launch.id) for launch in state.launches if launch.executed]
    return done + [Execute(launch.id) for launch in state.launches if ready(state, launch)]


def _leaving(state: State) -> list[Operation]:
    """Return what makes room, or leads to it."""
    return [*map(Release, state.sequences), *map(Unpin, state.pins), *_device(state)]

"""What engines do in a row where prefixes are shared: drawn as stories, told one operation at a time.

Moves that are drawn one by one seldom come in an order of ten that means something. A prompt is computed and forked,
the fork is cancelled while its step runs, the parent is published behind what another request had published first, and
gone before that step has ended: in such an order alone may a parent in the index be evictable before its child. So of
the operations of a run that shares prefixes half tell a story: the life of a request from its prompt to its end,
alone or with siblings, which are told, published and released in any order; or a step of a whole batch. The other half
are moves as always, in between. So nothing need be as the story left it: each operation is chosen by the state of the
moment, and left out where it can't be done.

A request is begun where there is room, else one leaves. So the index is seldom empty: a run publishes and merges three
times as many blocks as by moves alone, and evicts six times as many. Cost: as moves. Considered: to draw each kind of
move more or less often, run by run (swarm testing, Groce et al., 2012): a third of the publications of moves alone,
since a run that seldom does one kind of device work has few.
"""

from collections.abc import Iterator
from random import Random

from .alphabet import Add, Execute, Extend, Fork, Operation, Publish, Release, Retire, Submit, Unpin
from .moves_sharing import draw_text, fresh_names, truly
from .operations import ready
from .state import Name, State, held
from .world import World

_STEP = 1 / 4  # how often a story is a step of a whole batch
_BLOCKS_MOST = 3  # of a prompt
_SALTS = (0, 0, 0, 1)
_RETENTIONS = (0, 0, 1, 2, 3)  # so that a parent may have children of different classes above its own
_TELLINGS = 2  # in a life, before all are released


def stories(here: World, names: int, random: Random) -> Iterator[Operation]:
    """Yield the operations of one story after another, without end; each when it is asked for, by the state then."""
    while True:
        state = here.state
        fresh, room = fresh_names(state, names), state.config.blocks - len(held(state)) - len(state.quarantine)
        if len(state.sequences) > 1 and random.random() < _STEP:
            yield from _step(here, room, random)
        elif fresh and room:
            yield from _life(here, random.choice(fresh), names, min(room, _BLOCKS_MOST), random)
        else:
            yield random.choice(_leaving(state))


def _step(here: World, room: int, random: Random) -> Iterator[Operation]:
    """Tell of a step that serves all sequences: room for one position each, where there is; launched, and told."""
    batch = random.sample([*here.state.sequences], len(here.state.sequences))
    if room >= len(batch):
        yield Extend(tuple([(name, 1) for name in batch]))
    yield from _launched(here, batch, random)
    yield from _told(here, batch, random)


def _life(here: World, name: Name, names: int, blocks: int, random: Random) -> Iterator[Operation]:
    """Tell of a request of up to so many full blocks: computed, perhaps forked, told and published, released."""
    text = draw_text(here.state.config.block_size * random.randint(1, blocks) + random.choice((0, 0, 1)), random)
    yield Add(name, random.choice((text, len(text))), random.choice(_SALTS))
    yield from _computed(here, name, random)
    siblings = [name]
    for child in fresh_names(here.state, names)[: random.choice((0, 1, 1, 2))]:
        yield from _forked(here, name, child, random)
        siblings.append(child)
    for told in random.sample([*[True] * _TELLINGS, *[False] * len(siblings)], _TELLINGS + len(siblings)):
        one = random.choice(siblings)
        yield from _told(here, [one], random) if told else _released(here, [one])
    yield from _released(here, siblings)


def _computed(here: World, name: Name, random: Random) -> Iterator[Operation]:
    """Launch all that is planned of a sequence, and wait for the end of that."""
    yield from _launched(here, [name], random)
    newest = here.state.issued
    while any(launch.id == newest for launch in here.state.launches):
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
    yield from _launched(here, [child], random)


def _told(here: World, batch: list[Name], random: Random) -> Iterator[Operation]:
    """Tell sequences the ids of all their positions; what is written of that is published."""
    live = {name: here.state.sequences[name] for name in batch if name in here.state.sequences}
    unknown = {name: sequence.allocated - len(sequence.known) for name, sequence in live.items()}
    wished = {name: draw_text(count, random) if count else () for name, count in unknown.items()}
    if wished:
        yield Publish(truly(here.state, wished), random.choice(_RETENTIONS))


def _released(here: World, batch: list[Name]) -> Iterator[Operation]:
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

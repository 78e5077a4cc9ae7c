"""What the seeded random driver runs: a small world of a cache, operations by lot, and a drain.

Each seed draws a world (1 to 8 blocks of 1 to 4 slots, 1 to 3 streams, up to 4 sequences and 4 launches in flight,
unless a scope is given) and then operations, mostly sensible, some that are to be refused (`moves`). Completions come
late, in any order across streams, twice, and after their sequences are gone. Where prefixes are shared there may be 8
sequences, and half of the operations tell `stories`. A run ends with a drain: every sequence and every pin is released,
every launch executed and retired, and then every block is free or idle.

Worlds are small so that blocks are always short: what goes wrong goes wrong where something is reused. What a manager
says of itself (streams, launches, block sizes, prefixes) limits what is drawn. A scheduler's plans are those of
`scheduler_drivers` and `foreign_drivers`; the driver asks all three the same.
"""

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from .alphabet import KINDS, SHARING, Add, Execute, Operation, Release, Retire, Submit, Unpin
from .foreign_drivers import ForeignPlan
from .manager import Factory
from .moves import draw_move
from .offers import NEEDED, Feature
from .operations import ready
from .outcome import Outcome
from .scheduler_drivers import SchedulerPlan
from .state import Config
from .stories import stories
from .traces import Case
from .world import World

SEQUENCES = 4
STREAMS = 3
SHARING_SHARE = 2 / 3  # of the runs tell token ids, where prefixes are shared
STORY_SHARE = 1 / 2  # of the operations of such a run
OPERATIONS = 400  # a run: long enough to reuse every block many times
HIT = "hit"


class Plan(NamedTuple):
    """What to fuzz."""

    factory: Factory
    config: Config | None = None  # None: each seed draws one
    lock_step: bool = True
    operations: int = OPERATIONS
    streams: int | None = None  # at most so many are drawn; None: as many as the factory's `streams_offered`
    launches: int | None = None  # at most so many may be in flight; None: as the factory's `launches_offered` says
    block_sizes: tuple[int, ...] = ()  # that are drawn; none: as the factory says
    sharing: bool | None = None  # whether prefixes are shared, in some of the runs; None: as the factory says
    lacks: frozenset[Feature] = frozenset()  # what a black box does not offer, as its maker says: for reports
    aside: frozenset[str] = frozenset()  # rules that a black box is not judged by

    def vocabulary(self) -> list[str]:
        """Return what runs may meet."""
        return [*KINDS.values(), HIT]

    def offered(self) -> list[str]:
        """Return what long runs meet: all but what a black box does not offer, and prefixes where none are shared."""
        never = {KINDS[kind] for kind, feature in NEEDED.items() if feature in self.lacks}
        never |= set() if self.shares_prefixes() else {*SHARING, HIT}
        return [word for word in self.vocabulary() if word not in never]

    def words(self, operation: Operation, decided: Outcome | None = None) -> list[str]:
        """Return what is met by an operation: a prompt that begins with blocks that were there, too."""
        word = KINDS[type(operation)]
        return [word, HIT] if decided and decided.hits and isinstance(operation, Add) else [word]

    def draw_case(self, random: Random) -> Case:
        """Draw what to run on."""
        config = self.config or self.limited(draw_config(random, self.streams_drawn()))
        return Case(config, self.factory, self.lock_step, self.aside)

    def draw(self, here: World, random: Random) -> Iterator[Operation]:
        """Yield operations that are possible in the state that the ones before have led to; then those of a drain."""
        sharing = self.shares_prefixes() and random.random() < SHARING_SHARE
        names = random.choice((SEQUENCES, 2 * SEQUENCES)) if sharing else SEQUENCES
        story = stories(here, names, random)
        for _ in range(self.operations):
            told = sharing and random.random() < STORY_SHARE
            operation = here.fit(next(story) if told else draw_move(here.state, names, random, sharing=sharing))
            if operation is not None:
                yield operation
        while here.state.sequences or here.state.launches or here.state.pins:
            yield random.choice(_drain(here))

    def streams_drawn(self) -> int:
        """Return how many streams a drawn world may have."""
        return min(STREAMS, self.streams or getattr(self.factory, "streams_offered", 1))

    def limited(self, config: Config) -> Config:
        """Return a drawn world within what the manager can be made with."""
        launches = self.launches or getattr(self.factory, "launches_offered", None) or config.launches
        sizes = self.block_sizes or tuple(getattr(self.factory, "block_sizes", ())) or (config.block_size,)
        size = config.block_size if config.block_size in sizes else sizes[config.block_size % len(sizes)]
        return config._replace(launches=min(config.launches, launches), block_size=size)

    def shares_prefixes(self) -> bool:
        """Return whether token ids are told."""
        return getattr(self.factory, "shares_prefixes", False) if self.sharing is None else self.sharing


AnyPlan = Plan | SchedulerPlan | ForeignPlan


def draw_config(random: Random, streams: int) -> Config:
    """Draw a world small enough that its blocks are always short."""
    streams = random.randint(1, streams)
    return Config(random.randint(1, 8), random.randint(1, 4), streams, random.randint(1, 4))


def _drain(here: World) -> list[Operation]:
    """Return what brings a world nearer to its end."""
    state = here.state
    choices: list[Operation | None] = [here.fit(Release(name)) for name in state.sequences]
    choices += [here.fit(Unpin(handle)) for handle in state.pins]
    choices += [Execute(launch.id) for launch in state.launches if ready(state, launch)]
    choices += [Retire(launch.id) for launch in state.launches if launch.executed]
    able: list[Operation] = [operation for operation in choices if operation is not None]
    if not able:  # what is planned must be launched before it can be released
        planned = tuple((name, sequence.planned) for name, sequence in state.sequences.items() if sequence.planned)
        able = [here.fit(Submit(planned)) or Submit(planned)]
    return able

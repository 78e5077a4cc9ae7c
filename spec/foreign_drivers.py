"""What the drivers need to drive a stranger's scheduler: what to run a trace on, what to draw.

Worlds are drawn as small as they can be, so that requests are always short of blocks; prompts begin alike, and lengths
are often exact multiples of the block size. A seed's run ends with every request served and one as long as the pool.
"""

from collections.abc import Iterator
from functools import partial
from random import Random
from typing import NamedTuple

from .foreign_alphabet import KINDS, Finish, Operation
from .foreign_asking import made
from .foreign_judge import FOREIGN_RULES, ForeignWorld, Happened
from .foreign_scheduler import ForeignFactory, ForeignScheduler
from .offers import Feature
from .requests import Limits, Request
from .scheduler_alphabet import Cancel, Complete, Schedule, Submit
from .state import Config

REQUESTS = 6  # live at once in a random run
OPERATIONS = 300  # of a random run, before all is finished
SHORT_RUNS = (15, 60)  # operations of some runs: what they find is short
BLOCKS_MAX = 8
DRAIN_MAX = 60  # rounds at the end of a run that are operations of their own
PROMPTS = [[0] * 64, [0, 0, 0] + [1] * 61, [0, 1] * 32, [1] * 64]  # so few that many begin alike
_OF_SOME_STEPS = {"R-PRE-1": "preemption", "R-OWN-4": "finish"}
MET_BY = {  # the word that runs must have met before a rule counts as kept
    rule: "hit" if rule.startswith("R-HASH") else _OF_SOME_STEPS.get(rule, "schedule") for rule in FOREIGN_RULES
}
_WEIGHTS = {Submit: 4, Schedule: 9, Complete: 6, Cancel: 0.7, Finish: 0.05}


class Offers(NamedTuple):
    """What a scheduler says of itself, as draws need it: plain data, for any process."""

    steps_ahead: int = 1
    shares_prefixes: bool = False
    tokens_kept_back: int = 0
    block_sizes: tuple[int, ...] = (1, 2, 3, 4)
    not_offered: frozenset[Feature] = frozenset()

    @classmethod
    def of(cls, scheduler: ForeignScheduler) -> "Offers":
        """Ask a scheduler."""
        return cls(
            scheduler.steps_ahead,
            scheduler.shares_prefixes,
            scheduler.tokens_kept_back,
            tuple(scheduler.block_sizes),
            frozenset(scheduler.not_offered),
        )

    def fitting_sizes(self) -> list[int]:
        """Return the block sizes with which a drawn pool can hold a request of a token and an output."""
        return [size for size in self.block_sizes if BLOCKS_MAX * size >= 2 + self.tokens_kept_back]


class ForeignCase(NamedTuple):
    """What to run a trace of a stranger's scheduler on."""

    config: Config
    factory: ForeignFactory
    limits: Limits

    @property
    def lock_step(self) -> bool:
        """Whether the spec goes along: never."""
        return False

    def start(self) -> ForeignWorld:
        """Return a new world. Errors: `Broken`, CRASH, where the scheduler can't be made."""
        fresh = partial(made, self.factory, self.config, self.limits)
        return ForeignWorld(self.config, self.limits, fresh(), fresh)

    def simpler_cases(self) -> Iterator["ForeignCase"]:
        """Yield the case with one thing less to think of: steps that hold all, nothing shared, a smaller pool."""
        config, limits = self.config, self.limits
        if limits.max_tokens_per_step < (most := config.blocks * config.block_size):
            yield self._replace(limits=limits._replace(max_tokens_per_step=most))
        if limits.max_running < REQUESTS <= limits.max_tokens_per_step:
            yield self._replace(limits=limits._replace(max_running=REQUESTS))
        if limits.prefix_cache:
            yield self._replace(limits=limits._replace(prefix_cache=False))
        if limits.steps_ahead > 1:
            yield self._replace(limits=limits._replace(steps_ahead=1))
        if config.blocks > 1:
            yield self._replace(config=config._replace(blocks=config.blocks - 1))


class ForeignPlan(NamedTuple):
    """What to fuzz."""

    factory: ForeignFactory
    offers: Offers
    config: Config | None = None  # None: each seed draws one
    operations: int = OPERATIONS
    sharing: bool = True  # whether some runs share prefixes, where the scheduler does
    # Rules that are no finding: a run ends where one is broken, for its judge cannot go on.
    aside: frozenset[str] = frozenset()

    @property
    def lock_step(self) -> bool:
        """Whether the spec goes along: never."""
        return False

    def words(self, operation: Operation, seen: Happened | None = None) -> list[str]:
        """Return what is met by an operation: what a step did to requests, too."""
        met = {"hit": seen.hit, "preemption": bool(seen.preempted)} if seen else {}
        return [KINDS[type(operation)], *(word for word, yes in met.items() if yes)]

    def vocabulary(self) -> list[str]:
        """Return what runs may meet."""
        return [*KINDS.values(), "hit", "preemption"]

    def draw_case(self, random: Random) -> ForeignCase:
        """Draw what to run on."""
        config = self.config or draw_config(self.offers, random)
        limits = draw_limits(self.offers, config, random)
        return ForeignCase(config, self.factory, limits if self.sharing else limits._replace(prefix_cache=False))

    def draw(self, here: ForeignWorld, random: Random) -> Iterator[Operation]:
        """Yield operations, chosen by what the ones before have led to; then those that end it."""
        for _ in range(random.choice((*SHORT_RUNS, self.operations))):
            yield draw_move(here, self.offers, random)
        for _ in range(DRAIN_MAX):
            if not (here.live or here.device.flights):
                break
            if len(here.device.flights) < here.limits.steps_ahead:
                yield Schedule()
            if here.device.flights:
                yield Complete()
        yield Finish()


def draw_config(offers: Offers, random: Random) -> Config:
    """Draw a pool in which a request of a token and an output fits."""
    size = random.choice(offers.fitting_sizes())
    least = -(-(2 + offers.tokens_kept_back) // size)
    return Config(random.randint(least, BLOCKS_MAX), size)


def draw_limits(offers: Offers, config: Config, random: Random) -> Limits:
    """Draw how much a step may hold; whole prompts, where there are no chunks."""
    tokens = random.choice((1, 2, 3, 5, 8, 16, 32))
    if Feature.CHUNKS in offers.not_offered:
        tokens = max(tokens, config.blocks * config.block_size)
    running = min(tokens, random.choice((1, 2, 3, 4, 6, 8)))
    sharing = offers.shares_prefixes and random.random() < 2 / 3
    return Limits(tokens, running, random.randint(1, offers.steps_ahead), prefix_cache=sharing)


def draw_request(here: ForeignWorld, offers: Offers, id_: int, random: Random) -> Request:
    """Draw a request that fits the empty pool; its length at the end is often a whole number of blocks."""
    size = here.config.block_size
    length = random.randint(2, min(here.longest, 4 * size + 1))
    if random.random() < 1 / 3:
        length = min(here.longest, max(2, length // size * size + random.randint(0, 1)))
    outputs = random.randint(1, min(length - 1, 8))
    count = length - outputs
    if not here.limits.prefix_cache or random.random() < 1 / 8:
        return Request(id_, count, outputs)
    salt = 0 if Feature.SALT in offers.not_offered else random.choice((0, 0, 0, 1))
    return Request(id_, tuple(random.choice(PROMPTS)[:count]), outputs, salt=salt)


def draw_move(here: ForeignWorld, offers: Offers, random: Random) -> Operation:
    """Draw one operation that makes sense now; no id is used twice."""
    leaving = [request for request in here.live if here.refusal(Cancel(request)) is None]
    sensible = {
        Submit: len(here.live) < REQUESTS,
        Schedule: len(here.device.flights) < here.limits.steps_ahead,
        Complete: bool(here.device.flights),
        Cancel: bool(leaving),
        Finish: True,
    }
    kinds = [kind for kind, makes_sense in sensible.items() if makes_sense]
    kind = random.choices(kinds, [_WEIGHTS[kind] for kind in kinds])[0]
    if kind is Submit:
        return Submit(draw_request(here, offers, len(here.live) + len(here.left), random))
    if kind is Cancel:
        return Cancel(random.choice(leaving))
    return Complete() if kind is Complete else Schedule() if kind is Schedule else Finish()

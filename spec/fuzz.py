"""The seeded random driver: fast, long runs; one seed is one run.

Each seed draws a small world (1 to 8 blocks of 1 to 4 slots, 1 to 3 streams, up to 4 sequences and 4 launches in
flight, unless a scope is given) and then operations, mostly sensible, some that are to be refused. Completions come
late, in any order across streams, twice, and after their sequences are gone. Where prefixes are shared there may be 8
sequences, and half of the operations tell `stories`. A run ends with a drain: every sequence and every pin is released,
every launch executed and retired, and then every block is free or idle. What breaks a rule is shrunk.

Seeds know nothing of each other, so they are shared out in batches (`crew`), and what was found does not depend on who
ran them. Seeds that were given out and did not come back are named in the tally (`LostSeeds`): nothing is known of
them, and they can be run again.
"""

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from random import Random
from typing import Any, NamedTuple

from .alphabet import KINDS, SHARING, Add, Execute, Operation, Release, Retire, Submit, Unpin
from .crew import Crew, Lost, ProcessCrew, share_out
from .foreign_drivers import ForeignPlan
from .manager import Factory
from .moves import Lots, draw_move
from .offers import NEEDED, Feature
from .operations import ready
from .outcome import Outcome
from .refusals import Broken, Reason, Refused
from .scheduler_drivers import SchedulerPlan
from .state import Config
from .stories import stories
from .traces import Case, Finding, shrink
from .world import World

SEQUENCES = 4
STREAMS = 3
SHARING_SHARE = 2 / 3  # of the runs tell token ids, where prefixes are shared
STORY_SHARE = 1 / 2  # of the operations of such a run
OPERATIONS = 400  # a run: long enough to reuse every block many times
ENOUGH = 4000  # operations, in which everything fires ten times and more in drawn worlds
ENOUGH_FOR_HITS = 40_000  # the same of hits, of which there is one in a thousand operations
HIT = "hit"
BATCH = 8  # seeds that are given out at a time: about half a second in lock-step


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


class LostSeeds(NamedTuple):
    """Seeds of which nothing is known, and why."""

    seeds: range
    why: str


@dataclass
class Tally:
    """What runs have seen."""

    runs: int = 0
    operations: int = 0
    seconds: float = 0.0
    fired: Counter[str] = field(default_factory=Counter)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    finding: Finding | None = None
    seed: int = 0  # of the finding
    lost: list[LostSeeds] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        """Add what another has seen; a finding of a lower seed goes first."""
        self.runs += other.runs
        self.operations += other.operations
        self.fired += other.fired
        self.refused += other.refused
        self.lost += other.lost
        if other.finding and (self.finding is None or other.seed < self.seed):
            self.finding, self.seed = other.finding, other.seed

    def refusals(self, kind: str) -> dict[str, int]:
        """Return how often an operation was refused, for each reason."""
        return {reason: count for (operation, reason), count in sorted(self.refused.items()) if operation == kind}

    def holes(self, plan: AnyPlan) -> list[str]:
        """Return what runs should have met and did not, where they were long: nothing was judged of that.

        In sizes that were given, not drawn, much can't be done; there only what was asked counts.
        """
        asked = {kind for kind, reason in self.refused if reason == Reason.NO_SPACE}
        return [
            f"{word} never fired{', it was refused each time' if word in asked else ''}"
            for word in ([] if self.finding else _expected(plan))
            if self.operations >= (ENOUGH_FOR_HITS if word == HIT else ENOUGH)
            and not self.fired[word]
            and (plan.config is None or word in asked)
        ]


def _expected(plan: AnyPlan) -> list[str]:
    """Return what long runs meet whoever is under test: of a scheduler, hits where it has a prefix cache."""
    if isinstance(plan, Plan):
        return plan.offered()
    return [HIT] if isinstance(plan, ForeignPlan) and plan.sharing and plan.offers.shares_prefixes else []


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


def draw_config(random: Random, streams: int) -> Config:
    """Draw a world small enough that its blocks are always short."""
    streams = random.randint(1, streams)
    return Config(random.randint(1, 8), random.randint(1, 4), streams, random.randint(1, 4))


def run(plan: Any, seed: int) -> Tally:
    """Run one seed."""
    random = Lots(seed)
    case = plan.draw_case(random)
    tally = Tally(runs=1)
    trace: list[Any] = []
    try:
        here: Any = case.start()
        for operation in plan.draw(here, random):
            trace.append(operation)
            decided = here.step(operation)
            if isinstance(decided, Refused):
                tally.refused[plan.words(operation)[0], str(decided.reason)] += 1
            else:
                for word in plan.words(operation, decided):  # Counter.update costs five times as much
                    tally.fired[word] += 1
    except Broken as broken:
        if broken.rule not in getattr(plan, "aside", ()):  # else it is known, and ends this run alone
            tally.finding, tally.seed = Finding(case, tuple(trace), broken), seed
    tally.operations = len(trace)
    return tally


def fuzz(
    plan: AnyPlan,
    *,
    seed: int = 0,
    seconds: float = 20.0,
    runs: int | None = None,
    operations: int | None = None,
    workers: int = 1,
    crew: Crew | None = None,
    progress: Callable[[Tally], None] = lambda _: None,
) -> Tally:
    """Run seeds from `seed` on until time is up or a rule is broken; then shrink what broke it.

    Where `runs` or `operations` are given, these end it and not time: so many seeds, or whole runs up to so many
    operations in all, of which with one worker each call runs the same.

    With more than one worker the factory must be importable by name: the processes are spawned. A crew that is given
    takes the place of processes, and is closed in the end.
    """
    began = time.monotonic()
    total = Tally()
    end = began + seconds if runs is None and operations is None else None
    batches = _batches(seed, None if runs is None else seed + runs)
    if crew is None and workers > 1:
        crew = ProcessCrew(workers)
    if crew is None:
        tallies = _one_by_one(plan, batches, end)
    else:
        tallies = _shared_out(plan, batches, end, crew, counted=runs is not None)
    with closing(tallies):  # nobody works on while what was found is shrunk
        for tally in tallies:
            total.add(tally)
            total.seconds = time.monotonic() - began
            progress(total)
            if operations is not None and total.operations >= operations:
                break
    if total.finding:
        total.finding = shrink(total.finding)
    total.seconds = time.monotonic() - began
    return total


def _one_by_one(plan: AnyPlan, batches: Iterator[range], end: float | None) -> Generator[Tally, None, None]:
    """Yield the tally of each run, here."""
    for batch in batches:
        for each in batch:
            tally = run(plan, each)
            yield tally
            if tally.finding or _is_late(end):
                return


def _shared_out(
    plan: AnyPlan, batches: Iterator[range], end: float | None, crew: Crew, *, counted: bool
) -> Generator[Tally, None, None]:
    """Yield the tally of each batch; what is under way at a finding is finished, so the lowest seed is found.

    Seeds that nobody took are lost: the rest of a `counted` number of them, else the next.
    """
    jobs = _jobs(plan, batches, end)
    try:
        for job, answer in share_out(crew, jobs):
            tally = Tally(lost=[LostSeeds(job.seeds, answer.why)]) if isinstance(answer, Lost) else answer
            if tally.finding:
                jobs.close()
            yield tally
        left = jobs if counted else islice(jobs, 1)  # none, unless nobody is left to take them
        for job in left:
            yield Tally(lost=[LostSeeds(job.seeds, "nobody was left to run them")])
    finally:
        crew.close()


def _jobs(plan: AnyPlan, batches: Iterator[range], end: float | None) -> Generator["Batch", None, None]:
    """Yield batches as jobs, as long as there is time."""
    for number, seeds in enumerate(batches):
        if number and _is_late(end):
            return
        yield Batch(plan, seeds, None if end is None else end - time.monotonic())


def _is_late(end: float | None) -> bool:
    return end is not None and time.monotonic() > end


def _batches(first: int, last: int | None) -> Iterator[range]:
    while last is None or first < last:
        yield range(first, first + BATCH if last is None else min(first + BATCH, last))
        first += BATCH


@dataclass(frozen=True)
class Batch:
    """A job: seeds of a plan, within so many seconds by whose clock it may be."""

    plan: AnyPlan
    seeds: range
    seconds: float | None

    def __call__(self) -> Tally:
        """Run seeds up to the first finding; at least one, and then only while there is time."""
        end = None if self.seconds is None else time.monotonic() + self.seconds
        total = Tally()
        for each in self.seeds:
            total.add(run(self.plan, each))
            if total.finding or _is_late(end):
                break
        return total

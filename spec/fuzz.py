"""The seeded random driver: fast, long runs; one seed is one run.

Each seed draws a small world (1 to 8 blocks of 1 to 4 slots, 1 to 3 streams, up to 4 sequences and 4 launches in
flight, unless a scope is given) and then operations, mostly sensible, some that are to be refused. Completions come
late, in any order across streams, twice, and after their sequences are gone. A run ends with a drain: every sequence
is released, every launch executed and retired, and then every block is free. What breaks a rule is shrunk.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing import get_context
from random import Random
from typing import NamedTuple

from .alphabet import KINDS, Execute, Operation, Release, Retire
from .manager import Factory
from .moves import draw_move, possible
from .operations import ready
from .refusals import Broken, Refused
from .state import Config
from .traces import Case, Finding, shrink
from .world import World

SEQUENCES = 4
OPERATIONS = 400  # a run: long enough to reuse every block many times


class Plan(NamedTuple):
    """What to fuzz."""

    factory: Factory
    config: Config | None = None  # None: each seed draws one
    lock_step: bool = True
    operations: int = OPERATIONS


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

    def add(self, other: "Tally") -> None:
        """Add what another has seen; a finding of a lower seed goes first."""
        self.runs += other.runs
        self.operations += other.operations
        self.fired += other.fired
        self.refused += other.refused
        if other.finding and (self.finding is None or other.seed < self.seed):
            self.finding, self.seed = other.finding, other.seed


def draw_config(random: Random, streams_offered: int) -> Config:
    """Draw a world small enough that its blocks are always short."""
    streams = random.randint(1, 3) if streams_offered > 1 else 1
    return Config(random.randint(1, 8), random.randint(1, 4), streams, random.randint(1, 4))


def run(plan: Plan, seed: int) -> Tally:
    """Run one seed."""
    random = Random(seed)
    offered = getattr(plan.factory, "streams_offered", 1)
    case = Case(plan.config or draw_config(random, offered), plan.factory, plan.lock_step)
    tally = Tally(runs=1)
    trace: list[Operation] = []
    try:
        here = case.start()
        for operation in _operations(here, random, plan.operations):
            if not possible(here.state, operation):
                continue
            trace.append(operation)
            decided = here.step(operation)
            kind = KINDS[type(operation)]
            if isinstance(decided, Refused):
                tally.refused[kind, str(decided.reason)] += 1
            else:
                tally.fired[kind] += 1
    except Broken as broken:
        tally.finding, tally.seed = Finding(case, tuple(trace), broken), seed
    tally.operations = len(trace)
    return tally


def _operations(here: World, random: Random, count: int) -> Iterator[Operation]:
    """Yield operations, chosen by the state that the ones before have led to; then those of a drain."""
    for _ in range(count):
        yield draw_move(here.state, SEQUENCES, random)
    while here.state.sequences or here.state.launches:
        choices: list[Operation] = [Release(name) for name in here.state.sequences]
        choices += [Execute(launch.id) for launch in here.state.launches if ready(here.state, launch)]
        choices += [Retire(launch.id) for launch in here.state.launches if launch.executed]
        yield random.choice(choices)


def fuzz(
    plan: Plan,
    *,
    seed: int = 0,
    seconds: float = 20.0,
    runs: int | None = None,
    workers: int = 1,
    progress: Callable[[Tally], None] = lambda _: None,
) -> Tally:
    """Run seeds from `seed` on until time is up, `runs` are done, or a rule is broken; then shrink what broke it.

    With more than one worker the factory must be importable by name: the processes are spawned.
    """
    began = time.monotonic()
    total = Tally()
    for tally in _tallies(plan, seed, began + seconds, runs, workers):
        total.add(tally)
        total.seconds = time.monotonic() - began
        progress(total)
    if total.finding:
        total.finding = shrink(total.finding)
    total.seconds = time.monotonic() - began
    return total


def _tallies(plan: Plan, seed: int, end: float, runs: int | None, workers: int) -> Iterator[Tally]:
    """Yield the tally of each batch of seeds, in the order of seeds where one process does them all."""
    last = seed + runs if runs is not None else None
    batches = _batches(seed, last)
    if workers == 1:
        for batch in batches:
            for each in batch:
                tally = run(plan, each)
                yield tally
                if tally.finding or (last is None and time.monotonic() > end):
                    return
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        pending: set[Future[Tally]] = set()
        more = True
        while more or pending:
            while more and len(pending) < 2 * workers:
                following = next(batches, None)
                more = following is not None and (last is not None or time.monotonic() < end)
                if following is not None and more:
                    pending.add(pool.submit(_run_batch, plan, following))
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                tally = future.result()
                more = more and not tally.finding
                yield tally


def _batches(first: int, last: int | None) -> Iterator[range]:
    size = 8
    while last is None or first < last:
        yield range(first, first + size if last is None else min(first + size, last))
        first += size


def _run_batch(plan: Plan, seeds: range) -> Tally:
    total = Tally()
    for each in seeds:
        total.add(run(plan, each))
        if total.finding:
            break
    return total

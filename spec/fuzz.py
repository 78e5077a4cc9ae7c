"""The seeded random driver: fast, long runs; one seed is one run.

A plan (`fuzz_plan`) says for each seed what to run on and which operation comes next; `run` takes them one by one until
a rule is broken or the plan has no more, and counts what was met (`fuzz_tally`). What breaks a rule is shrunk.

Seeds know nothing of each other, so they are shared out in batches (`crew`), and what was found does not depend on who
ran them.
"""

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any

from .crew import Crew, Lost, ProcessCrew, share_out
from .fuzz_plan import AnyPlan
from .fuzz_tally import LostSeeds, Tally
from .moves import Lots
from .refusals import Broken, Refused
from .shrinking import shrink
from .traces import Finding

BATCH = 8  # seeds that are given out at a time: about half a second in lock-step


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

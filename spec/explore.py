"""The exhaustive driver: every reachable state of a small world, every operation in it, breadth first.

Why this is the strongest check there is: most faults of a cache manager show with two or three blocks, two sequences
and two launches in flight, if the right few operations come in the right order. A breadth-first walk tries every
order, so what it finds comes with the shortest possible counterexample, and what it does not find is not there,
within the scope that it prints; `moves` says which operations those are, and of which refusals an example is tried.
(Jackson's small-scope hypothesis; model checkers such as TLC report states, edges and depth in the same way.)

States that differ in names alone are visited once (`canonical`). With `pairs` a state is what the spec and the manager
hold together, hidden state included; without, it is the spec's state, which is far less and assumes that the manager
hides nothing that matters. An operation that never fired, or a refusal that was never met, is a hole in the run, and
`Report.holes` names it.

Several processes share the work (`shards`); the answer does not depend on how many there are.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .refusals import Broken, Reason
from .shards import AnySettings, Candidate, Digest, Local, Pool


class Progress(NamedTuple):
    """Where a walk is, reported after each level."""

    depth: int
    states: int
    edges: int


@dataclass
class Report:
    """What a walk saw."""

    scope: str
    states: int = 1
    edges: int = 0
    depth: int = 0
    seconds: float = 0.0
    complete: bool = False  # every reachable state of the scope was expanded
    fired: Counter[str] = field(default_factory=Counter)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    broken: Broken | None = None
    trace: list[Any] = field(default_factory=list)  # the counterexample, shortest possible
    vocabulary: list[str] = field(default_factory=list)  # what it should meet
    refusals: dict[str, tuple[Reason, ...]] = field(default_factory=dict)

    def holes(self, *, refusals: bool = True) -> list[str]:
        """Return what a complete walk should have met and did not.

        Without `refusals` only what never fired: what makes no sense is never asked of a black box.
        """
        asked = {kind for kind, _ in self.refused}
        never = [
            f"{kind} never fired{', it was refused each time' if kind in asked else ''}"
            for kind in self.vocabulary
            if not self.fired[kind]
        ]
        if not refusals:
            return never
        return never + [
            f"{kind} was never refused as {reason}"
            for kind, reasons in self.refusals.items()
            for reason in reasons
            if not self.refused[kind, str(reason)]
        ]


def explore(
    settings: AnySettings,
    *,
    workers: int = 1,
    seconds: float | None = None,
    max_states: int | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
) -> Report:
    """Walk every state of a scope; stop at the first broken rule, at a limit, or when there is nothing new.

    With more than one worker the factory must be importable by name: the processes are spawned.
    """
    began = time.monotonic()
    report = Report(settings.scope.describe(), vocabulary=settings.vocabulary(), refusals=settings.refusals())
    pool: Local | Pool = Local(settings) if workers == 1 else Pool(settings, workers)
    try:
        atlas = Atlas(pool.start())
        while True:
            answers = pool.expand()
            report.edges = pool.edges()
            if fault := next((fault for _, fault in answers if fault), None):
                index, operations, report.broken = fault
                report.trace = [*atlas.path(index), *operations]
                break
            numbers = atlas.number([candidates for candidates, _ in answers])
            report.complete = atlas.size == report.states
            if not report.complete:
                report.depth += 1
            report.states = atlas.size
            progress(Progress(report.depth, report.states, report.edges))
            late = seconds is not None and time.monotonic() - began > seconds
            if report.complete or late or (max_states and report.states >= max_states):
                break
            pool.adopt(numbers)
        report.fired, report.refused = pool.statistics()
    finally:
        pool.close()
    report.seconds = time.monotonic() - began
    return report


class Atlas:
    """Which states are known, and how each was reached first."""

    def __init__(self, first: Digest) -> None:
        self._seen = {first}
        self._origin: list[tuple[int, Any]] = [(0, None)]

    @property
    def size(self) -> int:
        """How many states are known."""
        return len(self._origin)

    def number(self, answers: list[list[Candidate]]) -> list[list[int]]:
        """Number the new states of a level, 0 for a known one; what several found goes to the one with the least."""
        finders: dict[Digest, list[tuple[int, int]]] = {}
        for worker, candidates in enumerate(answers):
            for at, (digest, _, _) in enumerate(candidates):
                if digest not in self._seen:
                    finders.setdefault(digest, []).append((worker, at))
        numbers = [[0] * len(candidates) for candidates in answers]
        load = [0] * len(answers)
        for digest, found in sorted(finders.items(), key=lambda item: len(item[1])):
            worker, at = min(found, key=lambda place: load[place[0]])
            load[worker] += 1
            numbers[worker][at] = self.size
            _, index, operation = answers[worker][at]
            self._seen.add(digest)
            self._origin.append((index, operation))
        return numbers

    def path(self, index: int) -> list[Any]:
        """Return the operations that led to a state."""
        path: list[Any] = []
        while index:
            index, operation = self._origin[index]
            assert operation is not None
            path.append(operation)
        return path[::-1]

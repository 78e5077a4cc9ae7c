"""Exhaustive walks over several scopes: each scope is walked whole, and they are shared out.

One walk is shared by the processes of one machine (`shards`), which send each other keys at every level and would lose
the walk with any of them: its frontier is nowhere else. Over machines that may be lost it is scopes that are shared
out. A walk needs nothing of another, so its verdict is as good as if it had been the only one: *every state of this
scope*, or the shortest counterexample within it. What is lost with a machine is the scope that it had, by name.

It is also what the small-scope hypothesis asks for: many small scopes of different shapes, each to its end, rather than
one large scope to some depth. Holes are those of all walks together: an operation that no scope met.

After a finding no more scopes are given out; what is under way is finished. The shortest counterexample is taken, of
two of one length that of the scope named first.
"""

import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

from .crew import Crew, Lost, ProcessCrew, share_out
from .explore import Report, explore
from .refusals import Reason
from .shards import AnySettings


@dataclass
class Walks:
    """Walks over several scopes: their reports, or why there is none, in the order in which scopes were named."""

    settings: Sequence[AnySettings]
    outcomes: list[Report | Lost | None]  # None: not begun
    seconds: float = 0.0
    fired: Counter[str] = field(default_factory=Counter)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)

    def reports(self) -> list[Report]:
        """Return the reports of the walks that were walked."""
        return [walk for walk in self.outcomes if isinstance(walk, Report)]

    def first(self) -> tuple[AnySettings, Report] | None:
        """Return the shortest counterexample."""
        pairs = zip(self.settings, self.outcomes, strict=True)
        broken = [(settings, walk) for settings, walk in pairs if isinstance(walk, Report) and walk.broken]
        return min(broken, key=lambda pair: len(pair[1].trace), default=None)

    def complete(self) -> bool:
        """Return whether every scope was walked to its end."""
        return all(isinstance(walk, Report) and walk.complete for walk in self.outcomes)

    def vocabulary(self) -> list[str]:
        """Return what the walks together should meet."""
        return list(dict.fromkeys(kind for settings in self.settings for kind in settings.vocabulary()))

    def refusals(self) -> dict[str, tuple[Reason, ...]]:
        """Return what the walks together should be refused, by operation."""
        met: dict[str, tuple[Reason, ...]] = {}
        for settings in self.settings:
            for kind, reasons in settings.refusals().items():
                met[kind] = tuple(dict.fromkeys((*met.get(kind, ()), *reasons)))
        return met

    def holes(self) -> list[str]:
        """Return what all walks together should have met and did not: refusals, too, where all are in lock-step."""
        together = Report("", fired=self.fired, refused=self.refused)
        together.vocabulary, together.refusals = self.vocabulary(), self.refusals()
        return together.holes(refusals=all(settings.lock_step for settings in self.settings))


@dataclass(frozen=True)
class Walk:
    """A job: one scope, walked by one process."""

    number: int
    settings: AnySettings
    seconds: float | None

    def __call__(self) -> Report:
        """Walk it."""
        return explore(self.settings, seconds=self.seconds)


def explore_scopes(
    scopes: Sequence[AnySettings],
    *,
    workers: int = 1,
    crew: Crew | None = None,
    seconds: float | None = None,
    progress: Callable[[Walks], None] = lambda _: None,
) -> Walks:
    """Walk every scope, each within so many seconds, until a rule is broken.

    With more than one worker the factory must be importable by name. A crew that is given takes the place of processes,
    and is closed in the end. Cost: that of the walks; one is never shared, so a scope much larger than the others is
    what all wait for: name it first.
    """
    began = time.monotonic()
    walks = Walks(scopes, [None] * len(scopes))
    if crew is None and workers > 1:
        crew = ProcessCrew(min(workers, len(scopes)))
    jobs = _walks(scopes, seconds)
    try:
        answers = ((job, job()) for job in jobs) if crew is None else share_out(crew, jobs)
        for job, walk in answers:
            walks.outcomes[job.number] = walk
            walks.seconds = time.monotonic() - began
            if isinstance(walk, Report):
                walks.fired += walk.fired
                walks.refused += walk.refused
                if walk.broken:
                    jobs.close()
            progress(walks)
        for job in jobs:  # none, unless nobody is left to take them
            walks.outcomes[job.number] = Lost("nobody was left to walk it")
    finally:
        if crew is not None:
            crew.close()
    return walks


def _walks(scopes: Sequence[AnySettings], seconds: float | None) -> Generator[Walk, None, None]:
    for number, settings in enumerate(scopes):
        yield Walk(number, settings, seconds)

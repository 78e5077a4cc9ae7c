"""What runs by lot have seen: how often each operation fired or was refused, what was found, and what was missed.

Tallies add up, so it does not matter who ran which seed. Two things keep a search from passing for more than it was.
*Holes* are what runs should have met and did not, where they were long: nothing was judged of that, and a search with
holes has failed. *Lost* seeds are those that were given out and did not come back: nothing is known of them, and they
can be run again.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from .foreign_drivers import ForeignPlan
from .fuzz_plan import HIT, AnyPlan, Plan
from .refusals import Reason
from .traces import Finding

ENOUGH = 4000  # operations, in which everything fires ten times and more in drawn worlds
ENOUGH_FOR_HITS = 40_000  # the same of hits, of which there is one in a thousand operations


class LostSeeds(NamedTuple):
    """Seeds of which nothing is known, and why."""

    seeds: range
    why: str


class Hunted(NamedTuple):
    """How far a hunt of Hypothesis has come."""

    examples: int = 0  # at most so many: a round ends with the first that breaks a rule
    operations: int = 0
    seconds: float = 0.0


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

"""The rules that show from outside, brought together and checked: what any manager is judged by, whoever wrote it.

A manager that shows its state is compared with the spec. One that doesn't is judged by what a device reads (R-DATA)
and by what its block tables and answers show: most rules have a part that does. They stand on three pages,
`outside_blocks`, `outside_launches` and `outside_prefixes`; `outside_book` says what they look at.

Which of R-LIFE-1 and R-LIFE-2 a manager answers for depends on the discipline that it claims, and what it does not
offer is not asked of it (`offers`). Rules can be set aside, so that a campaign goes on behind a fault that is known.

Cost: a few sets a step, in proportion to the block tables of the live sequences.
"""

from . import outside_blocks, outside_launches, outside_prefixes
from .alphabet import KINDS
from .calls import call
from .manager import Manager, lacks
from .offers import Discipline, Feature
from .outside_book import OUTSIDE, OutsideStep
from .refusals import Broken
from .rule_book import Rule

PAGES = (outside_blocks, outside_launches, outside_prefixes)

# In the order in which they are looked at: the cause before what comes of it.
_ORDER = (
    "R-TXN-1",
    "R-LIFE-4",
    "R-CAP-1",
    "R-HASH-5",
    "R-HASH-6",
    "R-HASH-1",
    "R-HASH-2",
    "R-HASH-4",
    "R-HASH-3",
    "R-EVICT-1",
    "R-LIFE-1",
    "R-LIFE-8",
    "R-OWN-3",
    "R-TAB-1",
    "R-COW-3",
    "R-COW-1",
    "R-LIFE-2",
    "R-OWN-4",
    "R-OWN-5",
    "R-DATA",
)
assert set(_ORDER) == set(OUTSIDE)

_RULES_ON: dict[type, tuple[Rule, ...]] = {
    kind: tuple(OUTSIDE[name] for name in _ORDER if kind in (OUTSIDE[name].on or KINDS)) for kind in KINDS
}


def check(step: OutsideStep, aside: frozenset[str] = frozenset()) -> None:
    """Check every rule that bears on a step and is not set aside; raise `Broken` with the first that does not hold."""
    for each in _RULES_ON[type(step.operation)]:
        if each.name not in aside:
            for line in each.predicate(step):
                raise Broken(each.name, line)


def not_judged(manager: Manager) -> dict[str, str]:
    """Return the rules that say nothing of a manager, each with why: what it does not claim, offer or tell."""
    left_out, words = lacks(manager), dict[str, str]()
    if manager.discipline is not Discipline.FENCE:
        words["R-LIFE-1"] = f"it claims {manager.discipline}"
    if manager.streams_offered == 1:
        words["R-LIFE-2"] = "one stream"
    if not {Feature.FORK, Feature.COPY_ON_WRITE}.isdisjoint(left_out):
        words["R-COW-3"] = words["R-LIFE-8"] = "no copy is ever asked for"
    elif Feature.PARTIAL_STEPS in left_out:
        words["R-LIFE-8"] = str(Feature.PARTIAL_STEPS)
    if not manager.shares_prefixes:
        words |= {name: "no prefix cache" for name in OUTSIDE if name.startswith(("R-HASH", "R-EVICT"))}
    elif Feature.CLEAR in left_out:
        words["R-HASH-6"] = str(Feature.CLEAR)
    if call("free_blocks", manager.free_blocks) is None:
        words["R-OWN-5"] = "it does not tell which blocks are free"
    return words


__all__ = ["OUTSIDE", "PAGES", "OutsideStep", "check", "not_judged"]

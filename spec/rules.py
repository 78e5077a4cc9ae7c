"""The rules of a paged KV cache, each a named predicate with its sentence, brought together and checked.

They stand on four pages: `rules_contents` (what is read, who holds what), `rules_lifetime` (what is in flight),
`rules_tables` (writing, room, what a kernel sees) and `rules_sharing` (what is found again); `rule_book` says what a
rule is. `check` runs all that bear on a step and raises `Broken` at the first that does not hold.

The predicates are written apart from the operations on purpose: the operations say how, these say what must be true
whatever the how. The exhaustive driver evaluates every rule on every reachable state of a small world, so what is said
there has been tried on all of them. The sentences are the project's own copy of the rules; `README.md` beside this file
lists them with the operations.
"""

from . import rules_contents, rules_lifetime, rules_sharing, rules_tables
from .alphabet import KINDS
from .refusals import Broken, Reason, Refused
from .rule_book import RULES, Rule, Step

PAGES = (rules_contents, rules_lifetime, rules_tables, rules_sharing)


def check(step: Step) -> None:
    """Check every rule that bears on a step; raise `Broken` with the first that does not hold."""
    if isinstance(step.decided, Refused):
        relevant = _ON_WANT_OF_SPACE if step.decided.reason is Reason.NO_SPACE else _ON_A_REFUSAL
    elif step.old.prefixes or step.new.prefixes:
        relevant = _RULES_ON[type(step.operation)]
    else:
        relevant = _WITHOUT_INDEX_ON[type(step.operation)]
    for each in relevant:
        for line in each.predicate(step):
            raise Broken(each.name, line)


_ON_A_REFUSAL: tuple[Rule, ...] = (RULES["R-TXN-1"],)
_ON_WANT_OF_SPACE = (*_ON_A_REFUSAL, RULES["R-CAP-1"])
_RULES_ON: dict[type, tuple[Rule, ...]] = {
    kind: tuple(each for each in RULES.values() if each.on is None or kind in each.on) for kind in KINDS
}
_WITHOUT_INDEX_ON = {
    kind: tuple(each for each in relevant if not each.of_the_index) for kind, relevant in _RULES_ON.items()
}

__all__ = ["PAGES", "RULES", "Rule", "Step", "check"]

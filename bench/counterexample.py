"""A counterexample as it is told: the rule that broke, its sentence, and a line for each operation.

Of whatever alphabet: a cache's, a scheduler's, a stranger's. A rule's sentence is that of the book by which the case
was judged, since a name may stand in several. What a manager under test says is printed on one line, as it is, and
never taken for markup. The files that are kept of a counterexample are the business of `counterexample_files`.
"""

from collections.abc import Sequence
from typing import Any

from pagedkv.bench import foreign_search
from pagedkv.bench.operation_words import told_in_words, world_in_words
from pagedkv.spec.counts import counted
from pagedkv.spec.foreign_drivers import ForeignCase
from pagedkv.spec.foreign_judge import FOREIGN_RULES
from pagedkv.spec.outside import OUTSIDE
from pagedkv.spec.quoting import one_line
from pagedkv.spec.refusals import Broken
from pagedkv.spec.rules import RULES
from pagedkv.spec.rules_scheduling import SCHEDULING
from pagedkv.spec.scheduler_drivers import SchedulerCase
from pagedkv.spec.traces import Finding, Told
from rich.console import Console
from rich.markup import escape
from rich.table import Table


def show(console: Console, finding: Finding, told: Sequence[Told], broken: Broken | None) -> None:
    """Print a counterexample as it was told: the rule, its sentence, a line a step, the world, what differs."""
    rule = broken.rule if broken else finding.broken.rule
    if rule == "CRASH":
        ends = "crash" if broken else "no crash this time"
    else:
        ends = f"{rule} {'does not hold' if broken else 'held this time'}"
    caption = sentence_of(finding.case, rule)
    table = Table(
        title=escape(one_line(f"{ends} after {counted(len(told), 'operation')}")), caption=caption, title_justify="left"
    )
    for heading in ("step", "operation", "outcome"):
        table.add_column(heading, overflow="fold")
    for heading in ("free", "held", "quarantined" if getattr(finding.case, "lock_step", False) else "neither"):
        table.add_column(heading, justify="right")
    for number, step in enumerate(told, 1):
        last = broken is not None and number == len(told)
        counts = (str(step.free), str(step.held), str(step.quarantined))
        table.add_row(
            str(number),
            *words_of(finding.case, step),
            *counts,
            style="bold red" if last else "",
        )
    console.print(table)
    console.print(f"world: {world_in_words(finding.case)}", soft_wrap=True, highlight=False)
    left_out = len(finding.trace) - len(told)
    if left_out and not broken:
        said = f"{left_out} of {len(finding.trace)} operations were not possible this time"
        console.print(said, soft_wrap=True, markup=False, highlight=False)
    differs = broken.detail if broken else f"nothing this time; when it was found: {finding.broken.detail}"
    console.print(f"what differs: {one_line(differs)}", soft_wrap=True, markup=False, highlight=False)
    for line in own_calls(told):
        console.print(one_line(line), soft_wrap=True, markup=False, highlight=False)


def words_of(case: Any, step: Told) -> tuple[str, str]:
    """Return an operation and what came of it, in words."""
    in_words = foreign_search.told_in_words if isinstance(case, ForeignCase) else told_in_words
    return in_words(step.operation, step.offered)


def own_calls(told: Sequence[Told]) -> list[str]:
    """Return a counterexample in the calls of the manager's own interface, where its adapter tells them."""
    lines = [f"  {number}: {call}" for number, step in enumerate(told, 1) for call in step.own_calls]
    return ["in its own calls, by step:", *lines] if lines else []


def sentence_of(case: Any, rule: str) -> str:
    """Return the sentence of a rule, in the book by which a case is judged."""
    return sentences_of(case).get(rule, "Something went wrong in what is under test itself.")


def sentences_of(case: Any) -> dict[str, str]:
    """Return the sentences of all rules by which a case is judged."""
    if isinstance(case, ForeignCase):
        return dict(FOREIGN_RULES)
    book = RULES if case.lock_step else OUTSIDE
    if isinstance(case, SchedulerCase):
        book = book | SCHEDULING
    return {name: rule.sentence for name, rule in book.items()}

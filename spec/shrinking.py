"""A failing trace made shorter: the search for a smaller one that breaks the same rule.

Three ways, the next where the ones before get no further: operations are left out, in long runs first; what is left is
made simpler (`simpler_traces`); and the trace is moved to a smaller world (`Case.simpler_cases`). A candidate is taken
only where it breaks the same rule and is smaller, or no larger in a smaller world, so there is an end. Candidates are
run on a new manager each time, so nothing is remembered from one to the next, and shrinking knows as little of the
manager as the driver that found the trace.
"""

import time
from typing import Any

from .calls import AT
from .refusals import Broken
from .simpler_traces import simpler, size
from .traces import Finding, Marked, mark, run_marked


def shrink(finding: Finding, *, tries: int = 4000, seconds: float = 20.0) -> Finding:
    """Return a shorter trace that breaks the same rule: runs of operations and sequences out, batches and counts cut.

    A case that knows simpler ones (`simpler_cases`) is exchanged for one where the trace breaks the rule no later.

    Not the shortest there is (the exhaustive driver finds that); one from which nothing can be left out, unless tries
    or time ran out (a manager that does not answer costs seconds a try). After Zeller and Hildebrandt, "Simplifying
    and isolating failure-inducing input" (2002). Cost: about 2 n runs of a trace of n operations, each time shorter.
    """
    if not finding.trace:
        return finding
    shrinking = _Shrinking(finding, tries, time.monotonic() + seconds)
    while shrinking.leave_out() or shrinking.simplify() or shrinking.simplify_case():
        pass
    return shrinking.best


class _Shrinking:
    """The smallest failing trace so far, and what is left of tries and time."""

    def __init__(self, finding: Finding, tries: int, end: float) -> None:
        self.best = finding
        self.marked = mark(finding.case, finding.trace)
        self.tries = tries
        self.end = end

    def attempt(self, candidate: list[Marked], case: Any = None) -> bool:
        """Take a candidate for the best if it breaks the same rule, and is smaller or of a simpler case."""
        self.tries -= 1
        if self.tries < 0 or time.monotonic() > self.end:
            return False
        marked, broken = run_marked(case or self.best.case, candidate)
        trace = tuple(operation for operation, _ in marked)
        if broken is None or _kind(broken) != _kind(self.best.broken):
            return False
        now, least = size(trace), size(self.best.trace)
        if now > least or (now == least and case is None):
            return False
        self.best, self.marked = Finding(case or self.best.case, trace, broken), marked
        return True

    def leave_out(self) -> bool:
        """Leave out runs of operations, long ones first, from the end: what comes late depends on what came before."""
        improved = False
        width = max(1, len(self.marked) // 2)
        while width:
            start = len(self.marked) - width
            while start > -width:
                without = self.marked[: max(start, 0)] + self.marked[start + width :]
                improved |= self.attempt(without)
                start = min(start, len(self.marked)) - width
            width //= 2
        return improved

    def simplify(self) -> bool:
        """Make batches and counts smaller, and let a sequence start longer where it was extended."""
        return any(map(self.attempt, simpler(self.marked)))

    def simplify_case(self) -> bool:
        """Run the trace on a simpler case, if it knows any."""
        simpler_cases = getattr(self.best.case, "simpler_cases", tuple)
        return any(self.attempt(self.marked, case) for case in simpler_cases())


def _kind(broken: Broken) -> tuple[str, str]:
    """Return what must be the same of two findings: the rule, and of a crash what was raised."""
    words = broken.detail.split(": ")
    return broken.rule, words[1].partition(AT)[0] if broken.rule == "CRASH" and len(words) > 1 else ""

"""A manager and the spec, side by side.

After each operation every rule holds on the spec's side, and rows, lengths, references, block states, planned copies
and launches in flight are equal on both. A refusal on one side is a refusal on the other, with the same reason, and
nothing has changed. Where the spec allows a choice, the manager makes it and the spec follows.
"""

from collections.abc import Callable, Hashable
from typing import Any, Protocol

from . import rules
from .alphabet import Execute, Operation, Submit, apply, describe
from .asking import ask, rows_of, twin_of
from .calls import call
from .canonical import canonical, hidden
from .manager import Manager
from .observation import Observation
from .outcome import Outcome
from .refusals import Broken, Reason, Refused, rule_of
from .rule_book import edges
from .state import Block, Config, Launch, initial
from .views import observe

# Which rule is broken where the two observations differ, in the order in which they are compared.
_JUDGED_BY = {
    "counters": "R-OWN-5",
    "free": "R-OWN-1",
    "quarantined": "R-LIFE-5",
    "references": "R-OWN-2",
    "idle_counters": "R-OWN-5",
    "published": "R-HASH-3",
    "idle": "R-EVICT-1",
    "pins": "R-OWN-2",
    "copies": "R-LIFE-8",
    "in_flight": "R-LIFE-3",
    "sequences": "R-TAB-1",
}


class Showing(Protocol):
    """What can be compared with the spec."""

    def observe(self) -> Observation | None:
        """Return what it shows of itself."""


class LockStep:
    """A manager and the spec, side by side."""

    def __init__(self, config: Config, manager: Manager) -> None:
        self.state = initial(config)
        self.edges = edges(self.state)
        self.manager = manager
        self.offered: Outcome | Refused | None = None  # the manager's last answer
        self._right = (self.state, observe(self.state))  # what there was to be seen, and in which state

    def clone(self) -> "LockStep":
        """Return an independent copy, to branch from."""
        twin = object.__new__(LockStep)
        twin.state, twin.edges, twin.offered, twin._right = self.state, self.edges, None, self._right
        manager = twin_of(self.manager)
        if manager is None:
            raise Broken("CRASH", "clone: it can't be copied; the lock-step has no other way to branch")
        twin.manager = manager
        return twin

    def fit(self, operation: Operation) -> Operation:
        """Return an operation as it is: what is compared with the spec is asked everything."""
        return operation

    def refusal(self, operation: Operation) -> Refused | None:
        """Return the spec's refusal of an operation, None if it would do it, with some choice."""
        try:
            apply(self.state, operation)
        except Refused as refused:
            return refused.with_traceback(None)
        return None

    def step(self, operation: Operation) -> Outcome | Refused:
        """Take one operation on both sides, and compare all that can be observed afterwards."""
        self.offered = None  # lest a crash shows the answer before
        if isinstance(operation, Execute):
            launch = next(launch for launch in self.state.launches if launch.id == operation.launch)
            compare_rows(launch, rows_of(self.manager, operation.launch))
            self.offered = Outcome()
        else:
            self.offered = ask(self.manager, operation)
        old, choice = self.state, self.offered
        decided: Outcome | Refused
        try:
            new, decided = apply(old, operation, None if isinstance(choice, Refused) else choice)
        except Refused as refusal:
            new, decided = old, refusal.with_traceback(None)  # its frames would hold it in turn
        _same_answer(operation, decided, choice)
        step = rules.Step(old, operation, decided, new, self.edges)
        rules.check(step)
        self.state, self.edges = new, step.new_edges
        if not isinstance(operation, Execute):  # the host sees nothing of what a device does
            self.look()
        return decided

    def step_refused(self, operation: Operation, refusal: Refused) -> None:
        """Ask the manager for what the spec refuses; the caller looks afterwards whether something changed."""
        self.offered = None
        self.offered = ask(self.manager, operation)
        _same_answer(operation, refusal, self.offered)
        rules.check(rules.Step(self.state, operation, refusal, self.state, self.edges))

    def look(self) -> None:
        """Compare everything that the manager shows with the spec's state."""
        if self._right[0] is not self.state:  # a refusal leaves it as it was
            self._right = self.state, observe(self.state)
        if found := call("observe", difference, self.manager, self._right[1]):
            raise Broken(*found)

    def key(self, *, pairs: bool) -> Hashable:
        """Return what makes this world one with others: the spec's state, or the manager's hidden state as well."""
        key, naming = canonical(self.state)
        return (key, hidden(self.manager, naming, self.state)) if pairs else key

    def own_calls(self) -> tuple[str, ...]:
        """Return what an adapter says that it called at the last operation: nothing, its state is shown."""
        return ()

    def blocks(self) -> tuple[int, int, int]:
        """Return how many blocks are free or idle, held, and quarantined."""
        shown = observe(self.state)
        return len(shown.free) + len(shown.idle), len(shown.references), len(shown.quarantined)


def compare_rows(launch: Launch, rows: tuple[tuple[Block, ...], ...] | None) -> None:
    """R-LIFE-6: what the device reads when it executes is what was captured at the launch."""
    if rows is None:
        return
    if len(rows) != len(launch.computations):
        raise Broken("R-LIFE-6", f"launch {launch.id} reads {len(rows)} rows, not {len(launch.computations)}")
    for part, row in zip(launch.computations, rows, strict=True):
        seen = row[: len(part.row)]
        if seen != part.row:
            raise Broken(
                "R-LIFE-6", f"launch {launch.id} reads the row {seen} of sequence {part.sequence}, not {part.row}"
            )


def same_refusal(what: Callable[[], str], decided: object, offered: object) -> None:
    """Compare two answers to one question: both are done, or both refused, with the same reason."""
    right, given = _reason(decided), _reason(offered)
    if right is not given:
        words = [f"refused as {reason}" if reason else "done" for reason in (given, right)]
        refusal = right if given is None else given
        assert refusal is not None
        raise Broken(rule_of(refusal), f"{what()} was {words[0]}, by the spec {words[1]}")


def _reason(answer: object) -> Reason | None:
    return answer.reason if isinstance(answer, Refused) else None


def _same_answer(operation: Operation, decided: Outcome | Refused, offered: Outcome | Refused) -> None:
    """Compare the spec's answer with the manager's: the reason of a refusal, or what was decided."""
    same_refusal(lambda: describe(operation), decided, offered)
    if isinstance(decided, Refused) or isinstance(offered, Refused):
        return
    if decided == offered:
        return
    if isinstance(operation, Submit):  # an edge to what has left says nothing, and the spec has judged the others
        offered = offered._replace(after=decided.after)
    for field, rule in _DECIDED_BY.items():
        if getattr(decided, field) != getattr(offered, field):
            raise Broken(rule, f"{describe(operation)} gave {field} {getattr(offered, field)}, by the spec {decided}")


# Which rule is broken where the two outcomes differ. What is a choice has been checked by then, and followed.
_DECIDED_BY = {
    "copies": "R-COW-3",
    "launch": "R-LIFE-7",
    "blocks": "R-OWN-6",
    "freed": "R-OWN-6",
    "after": "R-LIFE-2",
    "hits": "R-HASH-5",
    "published": "R-HASH-3",
    "merges": "R-EVICT-3",
}


def difference(manager: Showing, right: Observation) -> tuple[str, str] | None:
    """Return the rule that is broken where a manager shows another thing than the spec, and what differs."""
    shown = manager.observe()
    if shown is None or shown == right:
        return None
    if not isinstance(shown, Observation):
        raise TypeError(f"{type(shown).__name__} is no Observation")
    for field, rule in _JUDGED_BY.items():
        theirs, ours = getattr(shown, field), getattr(right, field)
        if theirs != ours:
            return rule, f"{field.replace('_', ' ')}: {_only(theirs, ours)}, by the spec {_only(ours, theirs)}"
    return None


def _only(these: Any, those: Any) -> Any:
    """Return what makes these differ from those, to be read by a person."""
    if isinstance(these, frozenset):
        return sorted(these - those) or "none more"
    if isinstance(these, dict):
        return {name: value for name, value in these.items() if those.get(name) != value} or "none more"
    return these

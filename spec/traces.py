"""Traces: run one again, make a failing one shorter, tell what happened in it.

A trace is a list of operations, launch ids included. When operations are taken out of it, later launches get other
ids; so shrinking works on `Marked` operations, each submission marked with the id that it had, and a replay finds out
which id it has now. A completion whose submission is gone goes with it; one of a launch that never was stays one.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from . import scheduler_alphabet
from .alphabet import Add, Execute, Extend, Fork, Pin, Publish, Release, Retire, Submit
from .manager import Factory
from .moves import possible
from .refusals import Broken
from .state import Config, LaunchId, Name, State, Tokens
from .world import World, world


class Told(NamedTuple):
    """One step as it is told: what was done, what came of it, how the blocks stood afterwards."""

    operation: Any
    offered: Any  # what the manager answered; None where it gave no answer
    free: int
    held: int
    quarantined: int
    own_calls: tuple[str, ...] = ()  # what the adapter called its manager with, where it tells


class Steppable(Protocol):
    """What a trace is run in, of whatever alphabet."""

    offered: Any  # the last answer of the thing under test

    @property
    def state(self) -> State:
        """The state by which it is told what is possible."""

    def step(self, operation: Any) -> Any:
        """Take an operation; return what was decided. Errors: `Broken`."""

    def own_calls(self) -> tuple[str, ...]:
        """Return what the adapter says that it called at the last operation."""

    def blocks(self) -> tuple[int, int, int]:
        """Return how many blocks are free, held and quarantined."""


class Startable(Protocol):
    """What a trace can be run on."""

    @property
    def config(self) -> Config:
        """The sizes of the cache."""

    def start(self) -> Steppable:
        """Return a new world."""


class Case(NamedTuple):
    """What to run a trace on."""

    config: Config
    factory: Factory
    lock_step: bool = True
    aside: frozenset[str] = frozenset()  # rules that a black box is not judged by

    def start(self) -> World:
        """Return a new world."""
        return world(self.config, self.factory, lock_step=self.lock_step, aside=self.aside)

    def simpler_cases(self) -> Iterator["Case"]:
        """Yield the case in a smaller world, one step smaller each; a black box alone is moved to another world."""
        for field in () if self.lock_step else Config._fields:
            if (size := getattr(self.config, field)) > 1:
                yield self._replace(config=self.config._replace(**{field: size - 1}))


class Finding(NamedTuple):
    """A trace that ends in a broken rule."""

    case: Any  # a `Case`, or one of another alphabet, whose operations are in the trace
    trace: tuple[Any, ...]
    broken: Broken


def tell(case: Startable, trace: Iterable[Any]) -> tuple[list[Told], Broken | None]:
    """Run a trace and tell each step, up to the first that breaks a rule. What is not possible now is left out."""
    told: list[Told] = []
    try:
        here = case.start()
    except Broken as broken:
        return told, broken
    counts = (case.config.blocks, 0, 0)
    for operation in trace:
        if not possible(here.state, operation):
            continue
        fault = None
        try:
            here.step(operation)
        except Broken as broken:
            fault = broken
        with suppress(Broken):  # a manager that crashed may show nothing any more
            counts = here.blocks()
        told.append(Told(operation, here.offered, *counts, here.own_calls()))
        if fault:
            return told, fault
    return told, None


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


class Marked(NamedTuple):
    """An operation, and for a submission the launch id that it had."""

    operation: Any
    launch: LaunchId = 0  # NEVER: the completion of a launch that was never issued


NEVER = -1


def _mark(case: Startable, trace: tuple[Any, ...]) -> list[Marked]:
    """Mark each submission that fires with its id, by running the trace once."""
    here = case.start()
    marked = []
    for operation in trace:
        before = here.state.issued
        never = isinstance(operation, Retire) and operation.launch > before
        if possible(here.state, operation):
            with suppress(Broken):  # the last one
                here.step(operation)
        submitted = here.state.issued if here.state.issued > before else 0
        marked.append(Marked(operation, NEVER if never else submitted))
    return marked


def _size(trace: tuple[Any, ...]) -> tuple[int, int]:
    """Return how large a trace is: what `simplify` makes smaller must be."""
    rows = [operation.rows for operation in trace if isinstance(operation, Extend | Submit)]
    lengths = sum(operation.length for operation in trace if isinstance(operation, Add))
    counts = sum(1 + count for batch in rows for _, count in batch)
    streams = sum(operation.stream > 0 for operation in trace if isinstance(operation, Submit))
    rest = sum(_told(operation) + scheduler_alphabet.weight(operation) for operation in trace)
    return len(trace), lengths + counts + streams + rest


def _told(operation: Any) -> int:
    """Return how much there is of token ids: their number, and what is not 0 among them or beside them."""
    match operation:
        case Add(_, tokens, salt) | Pin(_, tokens, salt):
            ids = () if isinstance(tokens, int) else tokens
            return len(ids) + sum(map(bool, (*ids, salt)))
        case Publish(rows, retention):
            return bool(retention) + sum(1 + len(tokens) + sum(map(bool, tokens)) for _, tokens in rows)
        case _:
            return 0


class _Shrinking:
    """The smallest failing trace so far, and what is left of tries and time."""

    def __init__(self, finding: Finding, tries: int, end: float) -> None:
        self.best = finding
        self.marked = _mark(finding.case, finding.trace)
        self.tries = tries
        self.end = end

    def attempt(self, candidate: list[Marked], case: Any = None) -> bool:
        """Take a candidate for the best if it breaks the same rule, and is smaller or of a simpler case."""
        self.tries -= 1
        if self.tries < 0 or time.monotonic() > self.end:
            return False
        marked, broken = _run_marked(case or self.best.case, candidate)
        trace = tuple(operation for operation, _ in marked)
        if broken is None or _kind(broken) != _kind(self.best.broken):
            return False
        size, least = _size(trace), _size(self.best.trace)
        if size > least or (size == least and case is None):
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
        simpler = (*_without_one(self.marked), *_cut(self.marked), *_folded(self.marked), *_renumbered(self.marked))
        return any(map(self.attempt, simpler))

    def simplify_case(self) -> bool:
        """Run the trace on a simpler case, if it knows any."""
        simpler_cases = getattr(self.best.case, "simpler_cases", tuple)
        return any(self.attempt(self.marked, case) for case in simpler_cases())


def _kind(broken: Broken) -> tuple[str, str]:
    """Return what must be the same of two findings: the rule, and of a crash what was raised."""
    words = broken.detail.split(": ")
    return broken.rule, words[1] if broken.rule == "CRASH" and len(words) > 1 else ""


def _without_one(marked: list[Marked]) -> Iterator[list[Marked]]:
    """Yield the trace without one of its sequences: its beginning, its end and its rows in between go together."""
    for name in dict.fromkeys(operation.name for operation, _ in marked if isinstance(operation, Add)):
        others = [Marked(_for_others(operation, name), launch) for operation, launch in marked]
        yield [each for each in others if each.operation is not None]


def _for_others(operation: Any, name: Name) -> Any:
    """Return an operation as far as it is for other sequences, None where nothing is left."""
    if isinstance(operation, Add | Release):
        return None if operation.name == name else operation
    if isinstance(operation, Fork):
        return None if name in operation else operation
    if isinstance(operation, Extend | Submit | Publish) and operation.rows:
        rows: tuple[Any, ...] = tuple(row for row in operation.rows if row[0] != name)
        return operation._replace(rows=rows) if rows else None
    return operation


def _cut(marked: list[Marked]) -> Iterator[list[Marked]]:
    """Yield the trace with one count less by one, or one row of a batch less."""
    for at, (operation, launch) in enumerate(marked):
        for simpler in _simpler(operation):
            yield [*marked[:at], Marked(simpler, launch), *marked[at + 1 :]]


def _folded(marked: list[Marked]) -> Iterator[list[Marked]]:
    """Yield the trace with one extension less: its sequence has those tokens from the start."""
    for at, (operation, _) in enumerate(marked):
        if isinstance(operation, Extend) and len(operation.rows) == 1:
            name, count = operation.rows[0]
            for start, (earlier, launch) in enumerate(marked[:at]):
                if isinstance(earlier, Add) and earlier.name == name and isinstance(earlier.tokens, int):
                    longer = Marked(earlier._replace(tokens=earlier.tokens + count), launch)
                    yield [*marked[:start], longer, *marked[start + 1 : at], *marked[at + 1 :]]


def _renumbered(marked: list[Marked]) -> Iterator[list[Marked]]:
    """Yield the trace with its requests numbered from 0, if they are not."""
    operations = [operation for operation, _ in marked]
    numbered = scheduler_alphabet.renumbered(operations)
    if numbered != operations:
        yield [each._replace(operation=operation) for each, operation in zip(marked, numbered, strict=True)]


def _simpler(operation: Any) -> Iterator[Any]:
    if isinstance(operation, Add) and operation.length > 1:
        tokens = operation.tokens
        if isinstance(tokens, int):
            yield operation._replace(tokens=1)
        yield operation._replace(tokens=tokens - 1 if isinstance(tokens, int) else tokens[:-1])
    if isinstance(operation, Add | Pin):
        yield operation._replace(salt=0)
        if isinstance(operation, Add):
            yield operation._replace(tokens=operation.length)
        if not isinstance(operation.tokens, int):
            yield from (operation._replace(tokens=plainer) for plainer in _plainer(operation.tokens))
    if isinstance(operation, Publish):
        yield from _simpler_publications(operation)
    yield from scheduler_alphabet.simpler(operation)
    if isinstance(operation, Extend | Submit):
        yield from _simpler_batches(operation)


def _simpler_batches(operation: Extend | Submit) -> Iterator[Extend | Submit]:
    if isinstance(operation, Submit) and operation.stream:
        yield operation._replace(stream=0)
    rows = operation.rows
    for at, (name, count) in enumerate(rows):
        if len(rows) > 1:
            yield operation._replace(rows=rows[:at] + rows[at + 1 :])
        if count > 1:
            yield operation._replace(rows=(*rows[:at], (name, count - 1), *rows[at + 1 :]))


def _simpler_publications(operation: Publish) -> Iterator[Publish]:
    rows = operation.rows
    if operation.retention:
        yield operation._replace(retention=0)
    for at, (name, tokens) in enumerate(rows):
        if len(rows) > 1:
            yield operation._replace(rows=rows[:at] + rows[at + 1 :])
        if tokens:
            yield operation._replace(rows=(*rows[:at], (name, tokens[:-1]), *rows[at + 1 :]))
        for plainer in _plainer(tokens):
            yield operation._replace(rows=(*rows[:at], (name, plainer), *rows[at + 1 :]))


def _plainer(tokens: Tokens) -> Iterator[Tokens]:
    """Yield the tokens with one of them made 0."""
    return ((*tokens[:at], 0, *tokens[at + 1 :]) for at, token in enumerate(tokens) if token)


def _run_marked(case: Startable, marked: list[Marked]) -> tuple[list[Marked], Broken | None]:
    """Run marked operations; return what was run, marked anew, up to what broke a rule."""
    try:
        here = case.start()
    except Broken:  # it can't be made like this
        return [], None
    now: dict[LaunchId, LaunchId] = {}
    done: list[Marked] = []
    for operation, launch in marked:
        asked = operation
        if launch == NEVER:
            asked = Retire(here.state.issued + 1)
        elif isinstance(asked, Execute | Retire) and asked.launch > 0:
            if asked.launch not in now:
                continue
            asked = asked._replace(launch=now[asked.launch])
        if not possible(here.state, asked):
            continue
        before = here.state.issued
        broken = None
        try:
            here.step(asked)
        except Broken as fault:
            broken = fault
        submitted = here.state.issued if here.state.issued > before else 0
        done.append(Marked(asked, NEVER if launch == NEVER else submitted))
        if broken:
            return done, broken
        if launch > 0 and submitted:
            now[launch] = submitted
    return done, None

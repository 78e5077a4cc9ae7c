"""The proof is about our cache: every transition of the spec is one that the proved formulas allow.

The spec is walked exhaustively in small scopes, with blocks freed as early as is safe and as late as is allowed. Of
each transition the relations of `ownership_model` are read off before and after, and its formula is evaluated on them.
Were it not so, the proof would be of something else. To know that the formulas can say no, single facts are altered:
each alteration must contradict them, so they leave nothing undetermined.

Many transitions look alike in these relations; each look is evaluated once.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import product
from typing import Any

import pytest
from pagedkv.spec.alphabet import Add, Execute, Extend, Fork, Operation, Release, Retire, Submit, apply
from pagedkv.spec.canonical import canonical
from pagedkv.spec.moves import Scope, all_moves
from pagedkv.spec.outcome import Outcome
from pagedkv.spec.refusals import Broken, Refused
from pagedkv.spec.state import Config, State, initial

from ownership_model import BLOCK, LAUNCH, SEQUENCE, SIGNATURE, Ownership, Relations
from relational_logic import Finite, Relation

BATCHES = Scope(Config(blocks=3, block_size=2, streams=1, launches=1), sequences=2, tokens=3, rows=2)
STREAMS = Scope(Config(blocks=2, block_size=2, streams=2, launches=2), sequences=2, tokens=3, rows=2)
LARGE = Scope(Config(blocks=3, block_size=2, streams=2, launches=2), sequences=2, tokens=3, rows=2)

Facts = dict[str, frozenset[tuple[int, ...]]]


def facts(state: State, base: int) -> Facts:
    """Read the relations off a state; launches are counted from a base, since how old they are is no matter."""
    size, sequences = state.config.block_size, state.sequences.items()
    return {
        "free": frozenset((block,) for block in state.free),
        "quarantined": frozenset((block,) for block in state.quarantine),
        "owns": frozenset((name, block) for name, sequence in sequences for block in sequence.row),
        "writes": frozenset(
            (name, block)
            for name, sequence in sequences
            for block in (sequence.row[sequence.launched // size :] if sequence.planned else ())
        ),
        "copies": frozenset((name, sequence.copy.source) for name, sequence in sequences if sequence.copy),
        "touches": frozenset(
            (launch.id - base, block) for launch in state.launches for block in (*launch.reads, *launch.writes)
        ),
    }


def within(things: Iterable[Any]) -> Relation:
    """Return things, or tuples of them, as a relation."""
    tuples = {thing if isinstance(thing, tuple) else (thing,) for thing in things}
    return lambda *places: places in tuples


def relations(known: Facts) -> Relations:
    """Return facts as relations."""
    return Relations(**{name: within(tuples) for name, tuples in known.items()})


class Transition:
    """A transition of the spec, as the operation of the model that it must be an instance of."""

    def __init__(self, old: State, operation: Operation, outcome: Outcome, new: State) -> None:
        self.old, self.new = facts(old, old.issued), facts(new, old.issued)
        self.name, self.chosen = self._read_off(operation, outcome)
        self.members = {
            BLOCK: frozenset(range(1, old.config.blocks + 1)),
            SEQUENCE: frozenset(old.sequences.keys() | new.sequences.keys()),
            LAUNCH: frozenset(launch.id - old.issued for launch in (*old.launches, *new.launches)),
        }
        self.model = Ownership(Finite(self.members))

    def _read_off(self, operation: Operation, outcome: Outcome) -> tuple[str, tuple[Any, ...]]:
        """Return the model's operation, and what it is told: things, and sets of things or of tuples."""
        old, new = self.old, self.new
        match operation:
            case Add() | Extend():
                takes = new["owns"] - old["owns"]
                copied = frozenset((copy.sequence, copy.source) for copy in outcome.copies)
                return "grow", (takes, copied, new["writes"] - old["writes"] - takes)
            case Fork(parent, child):
                return "fork", (parent, child)
            case Submit(rows, _):
                (launched,) = {launch for launch, _ in new["touches"] - old["touches"]}
                touched = frozenset(block for launch, block in new["touches"] if launch == launched)
                return "launch", (launched, frozenset(name for name, _ in rows), touched, new["writes"])
            case Execute():
                return "execute", ()
            case Retire():
                left = {launch for launch, _ in old["touches"]} - {launch for launch, _ in new["touches"]}
                return "retire", (frozenset(left), outcome.freed)
            case Release(name):
                return "release", (name, outcome.freed)
            case _:
                raise AssertionError(f"the model has no {operation}")

    @property
    def look(self) -> Hashable:
        """All that the model sees of it."""
        return self.name, self.chosen, *self.old.values(), *self.new.values()

    def holds(self, new: Facts | None = None) -> bool:
        """Whether the model allows the transition, or one with other facts after it."""
        step: Callable[..., bool] = getattr(self.model, self.name)
        chosen = (within(choice) if isinstance(choice, frozenset) else choice for choice in self.chosen)
        return step(relations(self.old), relations(new or self.new), *chosen)

    def altered(self) -> Iterator[Facts]:
        """Yield the facts after the transition with one of them added or lost, each in turn."""
        for name, kinds in SIGNATURE.items():
            for place in product(*(self.members[kind] for kind in kinds)):
                yield {**self.new, name: self.new[name] ^ {place}}


def outcomes(state: State, operation: Operation) -> Iterator[tuple[Outcome, State]]:
    """Yield what can come of an operation: as the spec decides, and with every block freed as late as is allowed."""
    for choice in (None, Outcome(freed=frozenset())):
        if choice is None or isinstance(operation, Retire | Release):
            try:
                new, outcome = apply(state, operation, choice)
            except (Refused, Broken):
                continue
            yield outcome, new


def walk(scope: Scope) -> Iterator[tuple[State, Operation, Outcome, State]]:
    """Yield every transition of the spec within a scope."""
    seen = set()
    frontier = [initial(scope.config)]
    while frontier:
        state = frontier.pop()
        for operation in all_moves(state, scope):
            for outcome, new in outcomes(state, operation):
                yield state, operation, outcome, new
                key, _ = canonical(new)
                if key not in seen:
                    seen.add(key)
                    frontier.append(new)


def check_walk(scope: Scope) -> Counter[str]:
    """Hold every transition within a scope against the model; return how often each kind was met."""
    met: Counter[str] = Counter()
    looks = set()
    for old, operation, outcome, new in walk(scope):
        transition = Transition(old, operation, outcome, new)
        met[transition.name] += 1
        met["batch"] += isinstance(operation, Extend) and len(operation.rows) > 1
        met["copy"] += bool(outcome.copies)
        met["freed late"] += bool(new.quarantine) and not new.launches
        met["source alone"] += any(source in new.quarantine for _, source in transition.new["copies"])
        if transition.look in looks:
            continue
        looks.add(transition.look)
        assert transition.holds(), (old, operation, outcome, new)
        assert transition.model.invariant(relations(transition.new)), new
        if len(looks) % 20 == 0:
            met["altered"] += 1
            assert not any(map(transition.holds, transition.altered())), (old, operation, outcome, new)
    return met


KINDS = [
    "grow",
    "fork",
    "launch",
    "execute",
    "retire",
    "release",
    "batch",
    "copy",
    "freed late",
    "source alone",
]


@pytest.mark.parametrize("scope", [BATCHES, STREAMS], ids=Scope.describe)
def test_every_transition_of_the_spec_is_one_of_the_model(scope: Scope) -> None:
    met = check_walk(scope)
    assert all(met[kind] >= 20 for kind in (*KINDS, "altered")), met


@pytest.mark.deep
def test_every_transition_of_a_larger_scope_is_one_of_the_model() -> None:
    met = check_walk(LARGE)
    assert all(met[kind] > 100 for kind in KINDS), met

"""No free block is held or touched, for any number of blocks, sequences and launches.

z3 shows that the invariant of `ownership_model` holds at the beginning and that each operation keeps it. Each wrong
variant gives a counterexample of a few blocks, which is read back and evaluated, so that the two meanings of a formula
are known to agree. That the model is about our cache, `test_ownership_tie` shows. A few milliseconds a proof.
"""

from typing import Any

import pytest
import z3  # type: ignore[import-untyped]  # it ships no types

from ownership_model import (
    BLOCK,
    LAUNCH,
    SEQUENCE,
    SIGNATURE,
    ForgetAtRelease,
    ForkPlanned,
    LastHolderCopies,
    LateCompletionFrees,
    Ownership,
    Relations,
    ReleaseWhatOthersHold,
    ReuseInFlight,
    ReusePlannedSource,
    TakeHeld,
    TakeQuarantined,
    WriteShared,
)
from relational_logic import Example, Symbolic, Truth, satisfied

# What each operation is told besides the relations before and after: a thing of a kind, or a relation over kinds.
CHOICES: dict[str, tuple[str | tuple[str, ...], ...]] = {
    "grow": ((SEQUENCE, BLOCK), (SEQUENCE, BLOCK), (SEQUENCE, BLOCK)),
    "fork": (SEQUENCE, SEQUENCE),
    "launch": (LAUNCH, (SEQUENCE,), (BLOCK,), (SEQUENCE, BLOCK)),
    "execute": (),
    "retire": ((LAUNCH,), (BLOCK,)),
    "release": (SEQUENCE, (BLOCK,)),
}

# Each wrong variant, and the operations that must lose the invariant to it.
PLANTED: dict[type[Ownership], set[str]] = {
    ReuseInFlight: {"retire", "release"},
    ReusePlannedSource: {"retire", "release"},
    ReleaseWhatOthersHold: {"release"},
    ForgetAtRelease: {"release"},
    LateCompletionFrees: {"retire"},
    TakeQuarantined: {"grow"},
    TakeHeld: {"grow"},
    LastHolderCopies: {"grow"},
    WriteShared: {"grow"},
    ForkPlanned: {"fork"},
}


class Question:
    """One operation in a universe of any size: the relations before and after, and what was chosen, all unknown."""

    def __init__(self, variant: type[Ownership], operation: str) -> None:
        self.universe = Symbolic(BLOCK, SEQUENCE, LAUNCH)
        self.model = variant(self.universe)
        self.old, self.new = (self._moment(tag) for tag in ("before", "after"))
        self.chosen = [self._unknown(f"chosen {at}", kind) for at, kind in enumerate(CHOICES[operation])]
        self.step: Truth = getattr(self.model, operation)(self.old, self.new, *self.chosen)

    def _moment(self, tag: str) -> Relations:
        return Relations(**{name: self.universe.relation(f"{name} {tag}", *kinds) for name, kinds in SIGNATURE.items()})

    def _unknown(self, name: str, kind: str | tuple[str, ...]) -> Any:
        return self.universe.thing(kind, name) if isinstance(kind, str) else self.universe.relation(name, *kind)

    def counterexample(self) -> z3.ModelRef | None:
        """Return a step from the invariant out of it, if there is one."""
        return satisfied(self.model.invariant(self.old), self.step, z3.Not(self.model.invariant(self.new)))


def test_the_invariant_holds_at_the_beginning() -> None:
    question = Question(Ownership, "execute")
    beginning = question.model.empty(question.old)
    assert satisfied(beginning) is not None
    assert satisfied(beginning, z3.Not(question.model.invariant(question.old))) is None


@pytest.mark.parametrize("operation", CHOICES)
def test_each_operation_keeps_the_invariant(operation: str) -> None:
    question = Question(Ownership, operation)
    assert question.counterexample() is None


@pytest.mark.parametrize("operation", CHOICES)
def test_each_operation_can_happen_among_many_things(operation: str) -> None:
    """The proof is not empty: there are worlds of five blocks, sequences and launches in which the step is taken."""
    question = Question(Ownership, operation)
    many = [
        z3.Distinct(*(question.universe.thing(kind, f"{kind} {number}") for number in range(5)))
        for kind in (BLOCK, SEQUENCE, LAUNCH)
    ]
    before = question.model.invariant(question.old)
    changed = z3.Not(question.model.same(question.old, question.new, *SIGNATURE))
    conditions = [] if operation == "execute" else [changed]
    assert satisfied(before, question.step, *many, *conditions) is not None


@pytest.mark.parametrize("variant", PLANTED)
def test_each_wrong_variant_has_a_counterexample(variant: type[Ownership]) -> None:
    broken = set()
    for operation in CHOICES:
        question = Question(variant, operation)
        if (model := question.counterexample()) is not None:
            broken.add(operation)
            check_counterexample(question, operation, Example(question.universe, model))
    assert broken == PLANTED[variant]


def check_counterexample(question: Question, operation: str, example: Example) -> None:
    """Evaluate what z3 found: the wrong variant allows the step, the right one does not, and the invariant is lost."""
    assert len(example.members[BLOCK]) <= 3
    old, new = (
        Relations(*(example.relation(relation) for relation in moment)) for moment in (question.old, question.new)
    )
    chosen = [
        example.thing(unknown) if isinstance(kind, str) else example.relation(unknown)
        for kind, unknown in zip(CHOICES[operation], question.chosen, strict=True)
    ]
    wrong, right = type(question.model)(example.finite), Ownership(example.finite)
    assert wrong.invariant(old)
    assert getattr(wrong, operation)(old, new, *chosen)
    assert not wrong.invariant(new)
    assert not getattr(right, operation)(old, new, *chosen)

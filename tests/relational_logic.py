"""One formula, two meanings: evaluated on a few real things, or proved for any number of them.

A formula is a Python function over a `Universe`, which says what *every*, *some* and *no* mean; `&`, `|` and `==` mean
what they mean anyway. `Finite` answers with a bool. `Symbolic` answers with a z3 formula over uninterpreted sorts:
things of which nothing is known, not even how many there are. So what is proved is, word for word, what can be checked
on the states of a program: there is no second copy of it that could drift away.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import z3  # type: ignore[import-untyped]  # it ships no types

Truth = Any  # a bool in a finite universe, a z3 formula in a symbolic one
Relation = Callable[..., Truth]
Property = Callable[[Any], Truth]


class Universe(Protocol):
    """What there is to quantify over, and what the words of logic mean there."""

    def every(self, sort: str, holds: Property) -> Truth:
        """For every thing of a sort it holds."""

    def some(self, sort: str, holds: Property) -> Truth:
        """For some thing of a sort it holds."""

    def no(self, truth: Truth) -> Truth:
        """It does not hold."""


class Finite:
    """A universe of a few things: formulas are evaluated, in time proportional to what is quantified over."""

    def __init__(self, members: Mapping[str, frozenset[Any]]) -> None:
        self.members = members

    def every(self, sort: str, holds: Property) -> Truth:
        """For every thing of a sort it holds."""
        return all(holds(thing) for thing in self.members[sort])

    def some(self, sort: str, holds: Property) -> Truth:
        """For some thing of a sort it holds."""
        return any(holds(thing) for thing in self.members[sort])

    def no(self, truth: Truth) -> Truth:
        """It does not hold."""
        return not truth


class Symbolic:
    """A universe of any size: formulas are built, for z3 to decide."""

    def __init__(self, *sorts: str) -> None:
        self.sorts = {sort: z3.DeclareSort(sort) for sort in sorts}

    def every(self, sort: str, holds: Property) -> Truth:
        """For every thing of a sort it holds."""
        thing = z3.FreshConst(self.sorts[sort], sort)
        return z3.ForAll([thing], holds(thing))

    def some(self, sort: str, holds: Property) -> Truth:
        """For some thing of a sort it holds."""
        thing = z3.FreshConst(self.sorts[sort], sort)
        return z3.Exists([thing], holds(thing))

    def no(self, truth: Truth) -> Truth:
        """It does not hold."""
        return z3.Not(truth)

    def thing(self, sort: str, name: str) -> Any:
        """Return a thing of which nothing is known."""
        return z3.Const(name, self.sorts[sort])

    def relation(self, name: str, *sorts: str) -> Relation:
        """Return a relation of which nothing is known."""
        relation: Relation = z3.Function(name, *(self.sorts[sort] for sort in sorts), z3.BoolSort())
        return relation


class Example:
    """What z3 found that satisfies formulas of a symbolic universe, read back for `Finite` to evaluate."""

    def __init__(self, universe: Symbolic, model: z3.ModelRef) -> None:
        self.model = model
        found = {
            kind: model.get_universe(sort) or [model.eval(z3.Const(f"a {kind}", sort), model_completion=True)]
            for kind, sort in universe.sorts.items()
        }
        # Things go by their names: to compare two z3 things gives a formula, not an answer.
        self.things = {str(thing): thing for things in found.values() for thing in things}
        self.members = {kind: frozenset(map(str, things)) for kind, things in found.items()}
        self.finite = Finite(self.members)

    def thing(self, unknown: Any) -> str:
        """Return which thing an unknown is."""
        return str(self.model.eval(unknown, model_completion=True))

    def relation(self, unknown: Relation) -> Relation:
        """Return a relation as a function to bool."""

        def holds(*names: str) -> bool:
            things = (self.things[name] for name in names)
            return bool(z3.is_true(self.model.eval(unknown(*things), model_completion=True)))

        return holds


def satisfied(*formulas: Truth) -> z3.ModelRef | None:
    """Return a model of the formulas, None where there can be none; undecided is an error, never an answer."""
    solver = z3.Solver()
    solver.set("timeout", 60_000)  # ms; it takes a few
    solver.add(*formulas)
    answer = solver.check()
    if answer == z3.unknown:
        raise RuntimeError(f"z3 gave up: {solver.reason_unknown()}")
    return solver.model() if answer == z3.sat else None

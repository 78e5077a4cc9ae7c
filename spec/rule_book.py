"""What a rule is, and what it looks at.

A rule is a named predicate over a *step*: the state before, the operation, what was decided, the state after. It yields
a line for each place where it does not hold; no line, and it holds. Its docstring begins with its sentence. Some look
at the state after alone, others at the transition; each says on which operations it can fail. The rules themselves are
in `rules_contents`, `rules_lifetime` and `rules_tables`; `rules` brings them together.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from .alphabet import Operation
from .operations import Outcome
from .refusals import Refused
from .state import Block, Name, State

Edge = tuple[Name, Block]


class Step:
    """A transition, with what several rules need worked out once."""

    def __init__(
        self,
        old: State,
        operation: Operation,
        decided: Outcome | Refused,
        new: State,
        old_edges: frozenset[Edge] | None = None,  # where they are known from the step before
    ) -> None:
        self.old = old
        self.operation = operation
        self.decided = decided
        self.new = new
        self.old_edges = edges(old) if old_edges is None else old_edges  # holder edges before
        self.new_edges = self.old_edges if new.sequences is old.sequences else edges(new)  # and after
        self.held = {block for _, block in self.new_edges}  # blocks that somebody holds after
        self.taken = decided.blocks if isinstance(decided, Outcome) else ()  # blocks that the operation took


def edges(state: State) -> frozenset[Edge]:
    """Return the holder edges of a state: who holds what."""
    return frozenset([(name, block) for name, sequence in state.sequences.items() for block in sequence.row])


Slot = tuple[Block, int]  # a block and an offset in it
Lines = Iterator[str]


class Rule(NamedTuple):
    """A rule: its name everywhere, its sentence, and the predicate over a step (state rules look at `step.new`)."""

    name: str
    sentence: str
    predicate: Callable[[Step], Lines]
    on: tuple[type, ...] | None  # the operations whose steps it can fail on; None: any that changes the state


RULES: dict[str, Rule] = {}


def rule(name: str, *on: type) -> Callable[[Callable[[Step], Lines]], Callable[[Step], Lines]]:
    """Register a predicate under its rule's name; its docstring begins with the sentence."""

    def register(predicate: Callable[[Step], Lines]) -> Callable[[Step], Lines]:
        sentence = (predicate.__doc__ or "").split("\n\n")[0]
        RULES[name] = Rule(name, " ".join(sentence.split()), predicate, on or None)
        return predicate

    return register

"""What a rule is, and what it looks at.

A rule is a named predicate over a *step*: the state before, the operation, what was decided, the state after. It yields
a line for each place where it does not hold; no line, and it holds. Its docstring begins with its sentence. Some look
at the state after alone, others at the transition; each says on which operations it can fail. A device changes contents
and what is executed, and R-TXN-1 says that it changes nothing else: a rule that looks at neither is one on the
operations of the host. What is as it was, was looked at when it became so: a rule on each sequence, or each launch, by
itself goes over those that the step has `changed` or `submitted`. The rules themselves are in `rules_contents`,
`rules_lifetime`, `rules_tables` and `rules_sharing`; `rules` brings them together.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from .alphabet import KINDS, Execute, Operation, Submit
from .outcome import Outcome
from .refusals import Refused
from .state import Block, Launch, Name, Sequence, State, held

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
        self.changed = changed(old, new)  # sequences that it began or changed, as they are after
        # The launch that it submitted: those before it stay as they were then (R-LIFE-6).
        self.submitted: tuple[Launch, ...] = new.launches[-1:] if isinstance(operation, Submit) else ()
        self._held: set[Block] | None = None
        self.taken = decided.blocks if isinstance(decided, Outcome) else ()  # blocks that the operation took

    @property
    def held(self) -> set[Block]:
        """Blocks that somebody holds after."""
        if self._held is None:
            self._held = held(self.new)
        return self._held


def changed(old: State, new: State) -> dict[Name, Sequence]:
    """Return the sequences that are in a state and were not, or not so, in the one before."""
    if new.sequences is old.sequences:
        return {}
    was = old.sequences
    return {name: now for name, now in new.sequences.items() if now is not was.get(name) and now != was.get(name)}


def edges(state: State) -> frozenset[Edge]:
    """Return the holder edges of the sequences: who holds what. A pin's edges are what it is (`State.pins`)."""
    return frozenset([(name, block) for name, sequence in state.sequences.items() for block in sequence.row])


def planned_blocks(sequence: Sequence, size: int) -> tuple[Block, ...]:
    """Return the blocks of a sequence that its planned positions will be written to."""
    return sequence.row[sequence.launched // size :] if sequence.planned else ()


HOST = tuple(kind for kind in KINDS if kind is not Execute)  # the operations of the host
Slot = tuple[Block, int]  # a block and an offset in it
Lines = Iterator[str]


class Rule(NamedTuple):
    """A rule: its name everywhere, its sentence, and the predicate over a step (state rules look at `step.new`)."""

    name: str
    sentence: str
    predicate: Callable[[Any], Lines]  # over a `Step`, or what another book has its rules look at
    on: tuple[type, ...] | None  # the operations whose steps it can fail on; None: every operation
    of_the_index: bool = False  # of published blocks alone: where none is published before or after, it can't fail


Book = dict[str, Rule]
RULES: Book = {}
Predicate = TypeVar("Predicate", bound=Callable[[Any], Lines])


def rule(name: str, *on: type, book: Book = RULES, of_the_index: bool = False) -> Callable[[Predicate], Predicate]:
    """Register a predicate under its rule's name; its docstring begins with the sentence."""

    def register(predicate: Predicate) -> Predicate:
        sentence = (predicate.__doc__ or "").split("\n\n")[0]
        book[name] = Rule(name, " ".join(sentence.split()), predicate, on or None, of_the_index)
        return predicate

    return register

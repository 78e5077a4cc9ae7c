"""States that differ in names alone are one state.

Sequences, blocks, contents, streams, launch ids, pins, salts and token ids are names: permuting them changes nothing
that a rule can see. `canonical` gives a state's key under the best naming: sequences in the order that makes the key
smallest, blocks, contents and streams by first use, launches by age; what is known and published by its shape alone
(`canonical_prefixes`). The exhaustive driver keeps one state a key, which is 9 to 80 times fewer than all.

What cannot matter any more is left out of the key, else there is no end to states: the contents of blocks that nobody
will read, contents that no living text mentions (they are equal to nothing that may be asked for), epochs.
"""

from collections.abc import Hashable, Iterator
from collections.abc import Sequence as InOrder
from itertools import permutations, product
from typing import Any, Protocol

from .calls import call
from .canonical_prefixes import shape
from .observation import Naming
from .state import Block, Content, Launch, Name, Sequence, State

StateKey = tuple[Any, ...]


class Hiding(Protocol):
    """What may have state that nothing else shows: a manager, or a scheduler with its cache."""

    first_block: int

    def free_order(self) -> InOrder[Block]:
        """Return the free blocks in the order in which they will be taken, if there is one."""

    def fingerprint(self, naming: Naming) -> Hashable:
        """Return all state on which future behaviour depends and which nothing else shows, in new names."""


def canonical(state: State) -> tuple[StateKey, Naming]:
    """Return the key of a state, equal for states that are equal but for names, and the naming that led to it."""
    return min((_encode(state, order) for order in _orders(state)), key=lambda found: found[0])


def in_order(state: State, order: tuple[Name, ...]) -> tuple[StateKey, Naming]:
    """Return the key of a state whose sequences cannot be permuted: they are told apart by the order given."""
    return _encode(state, order)


def _orders(state: State) -> Iterator[tuple[Name, ...]]:
    """Yield the orders of the sequences that may be best: sorted by what can be told apart, ties in every order."""
    groups: dict[StateKey, list[Name]] = {}
    for name, sequence in state.sequences.items():
        groups.setdefault(_looks(sequence), []).append(name)
    for ties in product(*(permutations(groups[looks]) for looks in sorted(groups))):
        yield tuple(name for tie in ties for name in tie)


def _looks(sequence: Sequence) -> StateKey:
    return len(sequence.text), sequence.launched, sequence.copy is None, len(sequence.known)


class _Names(dict[Any, int]):
    """Numbers from 1, given at first use."""

    def __missing__(self, thing: Any) -> int:
        self[thing] = len(self) + 1
        return self[thing]


def _encode(state: State, order: tuple[Name, ...]) -> tuple[StateKey, Naming]:
    blocks: dict[Block, int] = _Names()
    contents: dict[Content | None, int] = _Names()
    ages = {launch.id: age for age, launch in enumerate(state.launches, 1)}

    def row(names: tuple[Block, ...]) -> StateKey:
        return tuple([blocks[block] for block in names])

    def text(names: tuple[Content, ...]) -> StateKey:
        return tuple([contents[content] for content in names])

    sequences = tuple(
        [
            (
                sequence.launched,
                text(sequence.text),
                row(sequence.row),
                (blocks[sequence.copy.source], sequence.copy.extent) if sequence.copy else (),
            )
            for sequence in [state.sequences[name] for name in order]
        ]
    )
    streams: dict[int, int] = _Names()
    launches = tuple([_launch(launch, streams[launch.stream], ages, row, text) for launch in state.launches])
    fences = {block: sum(launch.id <= fence for launch in state.launches) for block, fence in state.quarantine.items()}
    named = tuple([fences.pop(block, -1) for block in blocks])
    memory = tuple([tuple([contents.get(content, 0) for content in state.memory[block]]) for block in blocks])
    known, idle = shape(state, order, blocks, contents)
    # The last but one: whether a launch has left, whose completion may come a second time.
    left = state.issued > len(state.launches)
    key = (sequences, launches, named, tuple(sorted(fences.values())), memory, left, known)
    for block in idle:
        blocks[block]
    return key, Naming(blocks, {name: index for index, name in enumerate(order)}, ages)


def _launch(launch: Launch, stream: int, ages: dict[int, int], row: Any, text: Any) -> StateKey:
    return (
        stream,
        launch.executed,
        tuple(sorted([ages[edge] for edge in launch.after if edge in ages])),
        tuple([(*row((copy.source, copy.target)), copy.extent) for copy in launch.copies]),
        tuple([(part.start, part.stop, row(part.row), text(part.text)) for part in launch.computations]),
    )


def hidden(manager: Hiding, naming: Naming, state: State) -> Hashable:
    """Return the manager's hidden state, its blocks renamed with the spec's: named ones, waiting ones, free ones."""
    blocks = dict(naming.blocks)
    waiting = sorted((fence, block) for block, fence in state.quarantine.items() if block not in blocks)
    first = manager.first_block
    unseen = range(first, first + state.config.blocks)  # what a black box hides: told apart by id, which is safe
    free = call("free_order", lambda: tuple(manager.free_order()))
    for block in (*(block for _, block in waiting), *free, *unseen):
        blocks.setdefault(block, len(blocks) + 1)
    return call("fingerprint", manager.fingerprint, Naming(blocks, naming.sequences, naming.launches))

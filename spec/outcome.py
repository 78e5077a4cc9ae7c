"""What an operation decided, as every operation says it.

An outcome names the choices that were made among what the spec allows (which blocks, when a block leaves its wait) and
what follows from them. The spec fills it in, an implementation fills it in, and the two are compared; a journal is a
list of operations with their outcomes. Fields that an operation does not have stay empty.
"""

from typing import NamedTuple

from .state import Block, Copy, LaunchId, Name, State, Tokens

Rows = tuple[tuple[Name, int], ...]  # a batch: (sequence, count) for each
Telling = tuple[tuple[Name, Tokens], ...]  # a batch: (sequence, the ids of its next positions) for each


class Merge(NamedTuple):
    """A row was pointed at a published block with the contents of its own, which it let go."""

    sequence: Name
    at: int  # place in its row
    old: Block
    new: Block


class Outcome(NamedTuple):
    """What an operation decided: the choices among what the spec allows, and what follows from them."""

    blocks: tuple[Block, ...] = ()  # taken, in order of taking: free ones first, then evicted ones
    copies: tuple[Copy, ...] = ()
    launch: LaunchId = 0
    after: frozenset[LaunchId] = frozenset()
    freed: frozenset[Block] = frozenset()  # what became free, or evictable where published
    hits: tuple[Block, ...] = ()  # found in the index and held, from the first
    published: tuple[Block, ...] = ()
    merges: tuple[Merge, ...] = ()


Result = tuple[State, Outcome]

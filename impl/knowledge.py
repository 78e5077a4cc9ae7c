"""What the cache knows of each row's tokens: how many, for whom, and how much of it is published.

The ids themselves lie with the blocks (`PrefixIndex.tokens`): two sequences that share a block share what stands in it.
Beside the block table stand three numbers a row. They are made when sharing is first used, so that a cache that is told
counts alone pays for none of it. A sequence that began under weights of before publishes no more, which is noted as if
all that it will ever have were published (`CLOSED`): so a step looks at one number. Cost: 24 bytes a row. Considered:
ids a row (four bytes a position of the longest row, for every row); the weights epoch of each row (a number more to
look at in each step, for what changes once a day).
"""

from typing import Self

import numpy as np

from .arrays import Int64Array, grown

CLOSED = 2**62  # as a number of blocks published: no further one will be


class Knowledge:
    """Three numbers a row of the block table: `known`, `salts`, `published`."""

    __slots__ = ("known", "published", "salts")

    def __init__(self, rows: int, published: int) -> None:
        self.known = np.zeros(rows, np.int64)  # leading positions whose token ids are known
        self.salts = np.zeros(rows, np.int64)
        # Leading blocks that are published, as far as this row has seen (fewer than are costs time alone); or CLOSED.
        self.published = np.full(rows, published, np.int64)

    def begin(self, row: int, known: int, salt: int, published: int) -> None:
        """Note what is known of a new sequence. O(1)."""
        self.known[row] = known
        self.salts[row] = salt
        self.published[row] = published

    def inherit(self, row: int, twin: int) -> None:
        """Let a row know what another does. O(1)."""
        for field in self._fields():
            field[twin] = field[row]

    def end(self, row: int) -> None:
        """Forget a row. O(1)."""
        self.begin(row, 0, 0, 0)

    def close(self) -> None:
        """Let no sequence that lives publish any more, since weights have changed. O(rows)."""
        self.published.fill(CLOSED)

    def of(self, row: int) -> tuple[int, bool]:
        """Return how many ids of a row are known, and whether it publishes what it computes. O(1)."""
        return self.known.item(row), self.published.item(row) != CLOSED

    def grow(self, rows: int) -> None:
        """Make room for more rows, all or nothing. O(rows)."""
        self.known, self.salts, self.published = [grown(field, rows) for field in self._fields()]

    def clone(self) -> Self:
        """Return an independent copy."""
        twin = object.__new__(type(self))
        twin.known, twin.salts, twin.published = [field.copy() for field in self._fields()]
        return twin

    def _fields(self) -> tuple[Int64Array, ...]:
        return self.known, self.salts, self.published

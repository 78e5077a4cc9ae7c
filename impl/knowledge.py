"""What the cache knows of each row's tokens: how many, for whom, under which weights, and how much is published.

The ids themselves lie with the blocks (`PrefixIndex.tokens`): two sequences that share a block share what stands in it.
Beside the block table stand four numbers a row. They are zero for a row without sequence, and made when sharing is
first used, so that a cache that is told counts alone pays for none of it. Cost: 32 bytes a row. Considered: ids a row
(four bytes a position of the longest row, for every row).
"""

from typing import Self

import numpy as np

from .arrays import Int64Array, grown


class Knowledge:
    """Four numbers a row of the block table: `known`, `salts`, `weights`, `published`.

    The weights epoch counts how often weights have changed; `now` is the present one.
    """

    __slots__ = ("known", "now", "published", "salts", "weights")

    def __init__(self, rows: int, weights: int) -> None:
        self.now = max(weights, 0)  # the present weights epoch
        self.known = np.zeros(rows, np.int64)  # leading positions whose token ids are known
        self.salts = np.zeros(rows, np.int64)
        self.weights = np.full(rows, weights, np.int64)  # the weights epoch under which the sequence began
        self.published = np.zeros(rows, np.int64)  # leading blocks that are published, as far as this row has seen

    def begin(self, row: int, known: int, salt: int, weights: int, published: int = 0) -> None:
        """Note what is known of a new sequence. O(1)."""
        self.known[row] = known
        self.salts[row] = salt
        self.weights[row] = weights
        self.published[row] = published

    def inherit(self, row: int, twin: int) -> None:
        """Let a row know what another does. O(1)."""
        for field in self._fields():
            field[twin] = field[row]

    def end(self, row: int) -> None:
        """Forget a row. O(1)."""
        self.begin(row, 0, 0, 0)

    def of(self, row: int) -> tuple[int, bool]:
        """Return how many ids of a row are known, and whether it began under the present weights. O(1)."""
        return self.known.item(row), self.weights.item(row) == self.now

    def grow(self, rows: int) -> None:
        """Make room for more rows, all or nothing. O(rows)."""
        self.known, self.salts, self.weights, self.published = [grown(field, rows) for field in self._fields()]

    def clone(self) -> Self:
        """Return an independent copy."""
        twin = object.__new__(type(self))
        twin.now = self.now
        twin.known, twin.salts, twin.weights, twin.published = [field.copy() for field in self._fields()]
        return twin

    def _fields(self) -> tuple[Int64Array, ...]:
        return self.known, self.salts, self.weights, self.published

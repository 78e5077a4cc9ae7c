"""The tokens that were sampled: a segment of one array for each sample, appended to a batch at a time.

A step of 2,000 sequences samples 2,000 tokens; a list for each would cost a Python call a token. So a sample has a
segment as long as its output may become, and one scatter writes them all. Segments are cut from the array one behind
the other. When it is full, those in use move together, into a larger one if they fill more than half of it: a token
moves once on average, as in a copying garbage collector (Cheney, "A nonrecursive list compacting algorithm", 1970).

Guarantees: a segment is never written beyond its end, since no sample is given more tokens than it asked for.
Cost: 4 bytes a token that may be sampled, twice that at worst. Considered: a table of one row a sample (as wide as the
longest output); keeping no tokens and letting the engine give them back (what is preempted has to be added by its ids).
"""

from typing import Self

import numpy as np

from .arrays import IndexArray, Int32Array, Int64Array, grown


class SampledTokens:
    """A segment for each slot that has one: `open`, `append`, `last`, `of`, `close`."""

    __slots__ = ("_capacity", "_end", "_start", "_tokens", "_top", "_used")

    def __init__(self, slots: int) -> None:
        self._tokens = np.zeros(1024, np.int32)
        self._start = np.zeros(slots, np.int64)
        self._end = np.zeros(slots, np.int64)  # behind the last token so far
        self._capacity: dict[int, int] = {}  # slot -> how many tokens it may get
        self._top = 0  # behind the last segment
        self._used = 0  # the sum of all capacities

    def open(self, slot: int, capacity: int) -> None:
        """Give a slot that has none a segment for so many tokens. O(1), and now and then O(all)."""
        if self._top + capacity > self._tokens.size:
            self._move_together(capacity)
        self._start[slot] = self._end[slot] = self._top
        self._capacity[slot] = capacity
        self._top += capacity
        self._used += capacity

    def close(self, slot: int) -> None:
        """Take a slot's segment away. O(1)."""
        self._used -= self._capacity.pop(slot)

    def append(self, slots: IndexArray, tokens: Int32Array | Int64Array) -> None:
        """Give each of these distinct slots one more token. O(slots)."""
        ends = self._end[slots]
        self._tokens[ends] = tokens
        self._end[slots] = ends + 1

    def last(self, slots: IndexArray) -> Int32Array:
        """Return the last token of each slot, which has one. O(slots)."""
        return self._tokens[self._end[slots] - 1]

    def of(self, slot: int) -> Int32Array:
        """Return the tokens of a slot so far. A view that is valid until the next call."""
        return self._tokens[self._start.item(slot) : self._end.item(slot)]

    def grow(self, slots: int) -> None:
        """Make room for more slots. O(slots)."""
        self._start, self._end = grown(self._start, slots), grown(self._end, slots)

    def clone(self) -> Self:
        """Return an independent copy."""
        twin = object.__new__(type(self))
        twin._tokens, twin._start, twin._end = self._tokens.copy(), self._start.copy(), self._end.copy()
        twin._capacity, twin._top, twin._used = self._capacity.copy(), self._top, self._used
        return twin

    def _move_together(self, more: int) -> None:
        """Close the gaps between segments, and grow if they and one more would leave less than half."""
        size = max(self._tokens.size, 2 * (self._used + more))
        tokens, top = np.zeros(size, np.int32), 0
        for slot, capacity in self._capacity.items():
            old = self.of(slot)
            tokens[top : top + old.size] = old
            self._start[slot], self._end[slot] = top, top + old.size
            top += capacity
        self._tokens, self._top = tokens, top

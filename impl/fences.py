"""Fences: for each block and stream, the newest launch that may touch the block.

They are written when an edge to a block is dropped and not when a launch is submitted, so a launch costs nothing a
block: what a sequence's own launches touch is known from its row's fences until it leaves. Of a free block all fences
have retired, so they need no clearing when it is taken.

Kept in 32 bits relative to a base a stream, which moves up to what has retired before a launch id would not fit: once
in two billion launches. Guarantees: a fence only rises, until its launch has retired. Cost: 4 bytes a block and stream,
and a few passes over the blocks given. Considered: 64 bits (twice the memory, for ids that are never far apart).
"""

from typing import Self

import numpy as np
from numpy.typing import NDArray

from .arrays import IndexArray
from .launches import LaunchLog

LARGEST_INT32 = 2**31 - 1


class Fences:
    """Fences of blocks 0 to `blocks`, on every stream of a launch log.

    Written: `set_row`, `raise_to`, `cover`. Read: `late`, `equal`, `of`, `pending`.
    """

    __slots__ = ("_base", "launches", "newest", "newest_held")

    def __init__(self, blocks: int, launches: LaunchLog) -> None:
        self.launches = launches
        self.newest = np.zeros((launches.streams, blocks + 1), np.int32)
        self._base = [0] * launches.streams
        self.newest_held = 0  # no block that is held has a newer fence; most fences are of blocks that nobody holds

    def set_row(self, ids: IndexArray, fences: list[int]) -> int:
        """Give a row's fences to its blocks, whose own have all retired; return one that has not. O(ids)."""
        pending = 0  # any will do: a block waits for one after the other
        for stream, fence in enumerate(fences):
            if fence > self.launches.retired[stream]:
                self.newest[stream][ids] = fence - self._base_for(stream, fence)
                pending = fence
        return pending

    def raise_to(self, ids: IndexArray, stream: int, fence: int) -> None:
        """Raise the fences of blocks on one stream to at least `fence`, if that has not retired. O(ids)."""
        if fence > self.launches.retired[stream]:
            relative = np.int32(fence - self._base_for(stream, fence))
            self.newest_held = max(self.newest_held, fence)
            fences = self.newest[stream]
            fences[ids] = np.maximum(fences[ids], relative)

    def cover(self, chain: IndexArray) -> None:
        """Raise each block's fences to at least those of the blocks behind it in a chain. O(chain)."""
        for fences in self.newest:
            fences[chain] = np.maximum.accumulate(fences[chain[::-1]])[::-1]

    def late(self, ids: IndexArray, stream: int) -> tuple[NDArray[np.bool_], list[int]]:
        """Return which blocks a launch in flight on a stream may touch, and the distinct launches. O(ids)."""
        fences = self.newest[stream][ids]
        late = fences > self.launches.retired[stream] - self._base[stream]
        if not np.count_nonzero(late):
            return late, []
        waited_for = fences[late]
        first: int = waited_for.item(0)
        one = not np.count_nonzero(waited_for != first)  # mostly so, and much cheaper than sorting
        return late, [fence + self._base[stream] for fence in ([first] if one else np.unique(waited_for).tolist())]

    def equal(self, ids: IndexArray, stream: int, launch: int) -> NDArray[np.bool_]:
        """Return which blocks have exactly this fence. O(ids)."""
        found: NDArray[np.bool_] = self.newest[stream][ids] == launch - self._base[stream]
        return found

    def of(self, block: int) -> list[int]:
        """Return for each stream the newest launch in flight that may touch a block, 0 where none may."""
        fences = [fence + base for fence, base in zip(self.newest[:, block].tolist(), self._base, strict=True)]
        return [fence if fence > done else 0 for fence, done in zip(fences, self.launches.retired, strict=True)]

    def pending(self) -> NDArray[np.bool_]:
        """Return for every block whether a fence of it has not retired. O(blocks)."""
        marks = [done - base for done, base in zip(self.launches.retired, self._base, strict=True)]
        found: NDArray[np.bool_] = np.logical_or.reduce(self.newest > np.array(marks)[:, None], axis=0)
        return found

    def clone(self, launches: LaunchLog) -> Self:
        """Return an independent copy over another log."""
        twin = object.__new__(type(self))
        twin.launches, twin.newest = launches, self.newest.copy()
        twin._base, twin.newest_held = self._base.copy(), self.newest_held
        return twin

    def _base_for(self, stream: int, fence: int) -> int:
        """Return the base to which a fence is written, moved up to what has retired if the fence would not fit."""
        base = self._base[stream]
        if fence - base <= LARGEST_INT32:
            return base
        moved = self.newest[stream].astype(np.int64) - (self.launches.retired[stream] - base)
        self.newest[stream] = np.maximum(moved, 0)
        self._base[stream] = self.launches.retired[stream]
        return self._base[stream]

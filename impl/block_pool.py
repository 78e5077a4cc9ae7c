"""The pool of blocks: who may have one, and when one that was let go may be had again.

A block is *free* (on the stack), *held* (by one sequence or more), or *quarantined*: nobody holds it, and a launch in
flight or a planned copy may still touch it. One mechanism covers every way in which a block is let go (finish, cancel,
copy-on-write, a dropped copy). The holder that leaves merges its *fences* into the block: for each stream, the newest
launch that may touch it. A block without holder waits with the first of those launches that has not retired; when that
one leaves, the block goes on to the next stream's, or becomes free. So cost follows blocks released (times streams),
never blocks held, and nothing is polled. The idea is epoch-based reclamation (Fraser, "Practical lock-freedom", 2004)
with launches for epochs.

A planned copy reads its source and holds nothing. A source without holder is *parked*: quarantined with no launch to
wait for, until the copy is launched or dropped.

What is counted is `co_holders`: holders besides one. A free block's one holder is the pool itself, which passes it to
the taker and back, so that taking and giving back touch no count at all (a fifth of what a request costs); above 0 a
block is shared, and -1 says that nobody holds it: quarantined.

Guarantees: what is handed out is free. `held` and `quarantined` are counted apart from the stack, so that they can be
compared with it after each operation. Memory, bytes a block: 8 stack, 4 co-holders, 4 since when, 4 a stream for
fences, which are kept relative to a base that moves up before they would overflow. All of it is committed as it is
used. Considered: one fence a block (wrong: launch 5 on a compute stream still reads what launch 6 on a copy stream is
done with); giving blocks back at once and ordering the next writer behind the last reader (an edge a reuse, and the
host can't wait on it).
"""

from typing import Self

import numpy as np
from numpy.typing import NDArray

from .arrays import NO_IDS, IndexArray, Int32Array, Int64Array
from .launches import LaunchLog

QUARANTINED = -1  # in `co_holders`: nobody holds it
LARGEST_INT32 = 2**31 - 1


class BlockPool:
    """Blocks 1 to `blocks`, and the null block 0 that is nobody's.

    Free and held: `take`, `take_to_grow`, `share`, `give_back`, `drop`. Planned copies: `plan_copies`, `launch_copies`,
    `drop_copy`. Launches that leave: `discharge`. Views: `available`, `free_ids`, `state`, `fences_of`, `grown_since`.
    """

    __slots__ = (
        "_fence_base",
        "_newest_shared_fence",
        "_operation_base",
        "_ready",
        "_stack",
        "blocks",
        "co_holders",
        "copy_readers",
        "fences",
        "grown_at",
        "held",
        "launches",
        "quarantined",
        "shared_edges",
        "taken",
    )

    def __init__(self, blocks: int, launches: LaunchLog) -> None:
        self.blocks = blocks
        self.launches = launches
        self.taken = 0  # blocks that are not free
        self.held = 0
        self.quarantined = 0
        self.shared_edges = 0  # the sum of all co-holders: 0 says that nothing at all is shared
        self.copy_readers: dict[int, int] = {}  # source -> planned copies that read it
        self.co_holders = np.zeros(blocks + 1, np.int32)
        self.fences = np.zeros((launches.streams, blocks + 1), np.int32)  # of a free block all have retired
        self.grown_at = np.zeros(blocks + 1, np.int32)  # the operation at which a row grew by the block
        self._stack = np.empty(blocks, np.intp)  # from `taken` on: the free blocks, next to be taken first
        self._ready = 0  # from here on the stack is not written yet: blocks that were never taken, in order
        self._newest_shared_fence = [0] * launches.streams  # no block that is held has a newer fence
        self._fence_base = [0] * launches.streams
        self._operation_base = 0

    @property
    def available(self) -> int:
        """How many blocks can be taken now."""
        return self.blocks - self.taken

    def free_ids(self) -> IndexArray:
        """Return the free blocks, next to be taken first. A view."""
        self._make_ready(self.blocks)
        return self._stack[self.taken :]

    def take(self, count: int) -> IndexArray:
        """Take `count` free blocks, for one holder each. A view that is valid until the next call. O(count)."""
        first = self.taken
        self.taken = end = first + count
        self.held += count
        if end > self._ready:
            self._make_ready(end)
        return self._stack[first:end]

    def take_to_grow(self, count: int, operation: int) -> IndexArray:
        """Take blocks for rows that began earlier: when, is noted with the block. O(count)."""
        ids = self.take(count)
        self.grown_at[ids] = self._relative_operation(operation)
        return ids

    def share(self, ids: IndexArray) -> None:
        """Add one holder to each of these distinct held blocks. O(ids)."""
        self.co_holders[ids] += 1
        self.shared_edges += ids.size

    def give_back(self, ids: IndexArray | Int32Array) -> None:
        """Free blocks of one holder that nothing may touch; they are the next to be taken, in this order. O(ids)."""
        end = self.taken
        self.taken = first = end - ids.size
        self.held -= ids.size
        self._stack[first:end] = ids

    def drop(self, ids: IndexArray, touched: int, fences: list[int]) -> IndexArray:
        """Drop one holder's edges and return the blocks that are free now. O(ids x streams).

        `ids` is the holder's row; launches up to `fences`, one a stream, may have touched the first `touched` of it.
        """
        pending = self.launches.pending(fences)
        if not (self.shared_edges or self.copy_readers or self.launches.pending(self._newest_shared_fence)):
            if pending:
                self._quarantine_row(ids[:touched], fences)
                if touched == ids.size:
                    return NO_IDS
                ids = ids[touched:]
            self.give_back(ids)
            return ids
        if pending:
            for stream, fence in enumerate(fences):
                self._raise_fences(ids[:touched], stream, fence)
        return self._free_or_wait(self._orphans(ids))

    def plan_copies(self, sources: IndexArray, fences: Int64Array) -> None:
        """Turn holders of these blocks into readers: a source may stand several times, and keeps a holder.

        `fences` is [streams, sources]: up to where the launches of each leaving holder go. O(sources x streams).
        """
        np.subtract.at(self.co_holders, sources, 1)
        assert (self.co_holders[sources] >= 0).all(), "R-COW-2: the last holder of a block copied it"
        self.shared_edges -= sources.size
        self._merge(sources, fences)
        for source in sources.tolist():
            self.copy_readers[source] = self.copy_readers.get(source, 0) + 1

    def launch_copies(self, sources: list[int], stream: int, launch: int) -> None:
        """Let a launch in flight take planned copies over: from here on its fence keeps their sources. O(sources)."""
        self._raise_fences(np.array(sources, np.intp), stream, launch)
        for source in sources:
            self.drop_copy(source)

    def drop_copy(self, source: int) -> IndexArray:
        """Forget a planned copy; return its source if that is free now. O(streams).

        If it was the last copy of a source that nobody holds, fences alone keep the source from here on.
        """
        self.copy_readers[source] -= 1
        if self.copy_readers[source]:
            return NO_IDS
        del self.copy_readers[source]
        if self.co_holders[source] != QUARANTINED:
            return NO_IDS
        self._leave_quarantine(1)
        return self._free_or_wait(np.array([source], np.intp))

    def discharge(self, ids: IndexArray) -> IndexArray:
        """Free blocks whose launch has left, as far as no other stream's keeps them; return those. O(ids x streams)."""
        self._leave_quarantine(ids.size)
        return self._free(ids) if len(self._fence_base) == 1 else self._free_or_wait(ids)

    def state(self, block: int) -> str:
        """Return "free", "held", "quarantined", or "reserved" for the null block. O(free blocks)."""
        if block == 0:
            return "reserved"
        if self.co_holders[block] == QUARANTINED:
            return "quarantined"
        return "free" if np.count_nonzero(self.free_ids() == block) else "held"

    def fences_of(self, block: int) -> list[int]:
        """Return for each stream the newest launch in flight that may touch a block, 0 where none may."""
        fences = [fence + base for fence, base in zip(self.fences[:, block].tolist(), self._fence_base, strict=True)]
        return [fence if fence > done else 0 for fence, done in zip(fences, self.launches.retired, strict=True)]

    def fenced(self) -> NDArray[np.bool_]:
        """Return for every block whether a launch in flight may touch it, as far as its own fences tell. O(blocks)."""
        marks = [done - base for done, base in zip(self.launches.retired, self._fence_base, strict=True)]
        found: NDArray[np.bool_] = np.logical_or.reduce(self.fences > np.array(marks)[:, None], axis=0)
        return found

    def grown_since(self, block: int) -> int:
        """Return the last operation at which a row grew by this block; a sequence that began later began with it."""
        return int(self.grown_at[block]) + self._operation_base

    def clone(self, launches: LaunchLog) -> Self:
        """Return an independent copy that waits for the launches of another log."""
        twin = object.__new__(type(self))
        twin.blocks, twin.launches, twin.taken = self.blocks, launches, self.taken
        twin.held, twin.quarantined, twin.shared_edges = self.held, self.quarantined, self.shared_edges
        twin.copy_readers, twin.co_holders = self.copy_readers.copy(), self.co_holders.copy()
        twin.fences, twin.grown_at = self.fences.copy(), self.grown_at.copy()
        twin._stack, twin._ready = self._stack.copy(), self._ready
        twin._fence_base, twin._operation_base = self._fence_base.copy(), self._operation_base
        twin._newest_shared_fence = self._newest_shared_fence.copy()
        return twin

    def _make_ready(self, end: int) -> None:
        """Write the stack up to `end`, in steps that double: a pool of any size is made at once."""
        if end > self._ready:
            end = min(max(end, 2 * self._ready), self.blocks)
            self._stack[self._ready : end] = np.arange(self._ready + 1, end + 1)
            self._ready = end

    def _orphans(self, ids: IndexArray) -> IndexArray:
        """Drop one edge to each block; return those that nobody holds and no planned copy reads."""
        left = self.co_holders[ids] - np.int32(1)
        assert not np.count_nonzero(left < QUARANTINED), "R-OWN-3: an edge was dropped that nobody held"
        self.co_holders[ids] = left
        orphans: IndexArray = ids[left == QUARANTINED]
        self.shared_edges -= ids.size - orphans.size
        if self.copy_readers:
            parked = np.array([block in self.copy_readers for block in orphans.tolist()], bool)
            self._quarantine(orphans[parked])
            orphans = orphans[~parked]
        return orphans

    def _merge(self, ids: IndexArray, fences: Int64Array) -> None:
        """Raise the fences of blocks to at least `fences`, [streams, ids]; an id may stand several times."""
        for stream, newest in enumerate(fences.max(axis=1).tolist()):
            if newest > self.launches.retired[stream]:
                base = self._note_fence(stream, newest)
                np.maximum.at(self.fences[stream], ids, np.maximum(fences[stream] - base, 0).astype(np.int32))

    def _raise_fences(self, ids: IndexArray, stream: int, fence: int) -> None:
        """Raise the fences of blocks on one stream to at least `fence`, a launch that may have retired."""
        if fence > self.launches.retired[stream]:
            base = self._note_fence(stream, fence)
            fences = self.fences[stream]
            fences[ids] = np.maximum(fences[ids], np.int32(fence - base))

    def _note_fence(self, stream: int, fence: int) -> int:
        """Note that held blocks may have a fence as new as this one; return the base of the stream's fences."""
        if fence - self._fence_base[stream] > LARGEST_INT32:
            self._move_base(stream)
        self._newest_shared_fence[stream] = max(self._newest_shared_fence[stream], fence)
        return self._fence_base[stream]

    def _quarantine_row(self, ids: IndexArray, fences: list[int]) -> None:
        """Quarantine the blocks of one row whose own fences have all retired: the row's are theirs."""
        first = 0
        for stream, fence in enumerate(fences):
            if fence > self.launches.retired[stream]:
                if fence - self._fence_base[stream] > LARGEST_INT32:
                    self._move_base(stream)
                self.fences[stream][ids] = fence - self._fence_base[stream]
                first = first or fence
        self._wait_for(first, ids)

    def _free_or_wait(self, ids: IndexArray) -> IndexArray:
        """Let each block without holder wait for the first launch in flight among its fences; free the others."""
        for stream, retired in enumerate(self.launches.retired):
            if not self.launches.busy(stream):
                continue
            fences = self.fences[stream][ids]
            late = fences > retired - self._fence_base[stream]
            if np.count_nonzero(late):
                for fence in _distinct(fences[late]):
                    self._wait_for(fence + self._fence_base[stream], ids[fences == fence])
                ids = ids[~late]
        return self._free(ids)

    def _free(self, ids: IndexArray) -> IndexArray:
        """Free blocks that nobody holds: the pool is their holder."""
        self.co_holders[ids] = 0
        self.give_back(ids)
        return ids

    def _wait_for(self, launch: int, ids: IndexArray) -> None:
        """Quarantine blocks until a launch in flight has retired."""
        self._quarantine(ids)
        self.launches.in_flight[launch].waiting_blocks.append(ids)

    def _quarantine(self, ids: IndexArray) -> None:
        """Mark blocks as held by nobody."""
        self.co_holders[ids] = QUARANTINED
        self.quarantined += ids.size
        self.held -= ids.size

    def _leave_quarantine(self, count: int) -> None:
        """Count blocks as held for as long as it takes to look at their fences."""
        self.quarantined -= count
        self.held += count

    def _move_base(self, stream: int) -> None:
        """Move the base of a stream's fences up to what has retired: once in two billion launches, O(blocks)."""
        distance = self.launches.retired[stream] - self._fence_base[stream]
        self._fence_base[stream] += distance
        self.fences[stream] = np.maximum(self.fences[stream].astype(np.int64) - distance, 0)

    def _relative_operation(self, operation: int) -> int:
        """Return an operation's number relative to a base, which moves up by half the range where it would not fit."""
        if operation - self._operation_base > LARGEST_INT32:
            half = LARGEST_INT32 // 2
            self._operation_base += half
            self.grown_at = np.maximum(self.grown_at, half) - np.int32(half)
        return operation - self._operation_base


def _distinct(fences: Int32Array) -> list[int]:
    """Return the distinct values of an array that isn't empty, in order; mostly there is one."""
    first: int = fences.item(0)
    values: list[int] = np.unique(fences).tolist() if np.count_nonzero(fences != first) else [first]
    return values

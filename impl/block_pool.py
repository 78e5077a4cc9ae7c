"""The pool of blocks: who may have one, and when one that was let go may be had again.

A block is *free* (on the stack), *held* (`references` counts its holders: an edge a sequence), or *quarantined*: nobody holds it, and
a launch in flight or a planned copy may still touch it. One mechanism covers every way in which a block is let go (finish,
cancel, copy-on-write, a dropped copy): the holder that leaves merges its *fences* into the block, for each stream the newest launch that may touch it; without
holder, the block waits with the first of those launches that has not retired; when that one leaves, the block
goes on to the next stream's, or becomes free. So cost follows blocks released (x streams), never blocks held, and nothing is
polled. The idea is epoch-based reclamation (Fraser, "Practical lock-freedom", 2004) with launches for epochs.

A planned copy reads its source and holds nothing. A source without holder is *parked*: quarantined with no launch to wait for, until
the copy is launched or dropped.

Memory, bytes a block: 8 stack, 4 references, 4 since when, and 4 a stream for fences. Fences are kept relative to a base
that moves up when they would overflow. Guarantees: what is handed out is free; free + held + quarantined = blocks, from counters kept apart.
Considered: one fence a block (wrong: launch 5 on a compute stream still reads what launch 6 on a copy stream has finished with); returning blocks to the pool
at once and ordering their next writer behind their last reader (needs an edge a reuse, and host-side copies can't wait).
"""

import numpy as np

from .arrays import IndexArray, Int32Array, Int64Array
from .launches import LaunchLog

QUARANTINED = -1  # in `references`
LARGEST_FENCE = 2**31 - 1
NO_IDS: IndexArray = np.empty(0, np.intp)


class BlockPool:
    """Blocks 1 to `blocks`, and the null block 0 that is nobody's."""

    __slots__ = (
        "_fence_base",
        "_newest_shared_fence",
        "_operation_base",
        "blocks",
        "copy_readers",
        "fences",
        "grown_at",
        "held",
        "launches",
        "quarantined",
        "references",
        "shared_edges",
        "stack",
        "taken",
    )

    def __init__(self, blocks: int, launches: LaunchLog) -> None:
        self.blocks = blocks
        self.launches = launches
        self.stack = np.arange(1, blocks + 1, dtype=np.intp)  # from `taken` on: the free blocks, next to be taken first
        self.references = np.ones(blocks + 1, np.int32)  # holders: of a free block the pool itself; or QUARANTINED
        self.fences = np.zeros((launches.streams, blocks + 1), np.int32)  # valid for blocks whose edge was dropped
        self.grown_at = np.zeros(blocks + 1, np.int32)
        self.held = 0
        self.quarantined = 0
        self.shared_edges = 0  # edges beyond a block's first: 0 says that nothing at all is shared
        self.copy_readers: dict[int, int] = {}  # source -> planned copies that read it
        self.taken = 0  # blocks that are not free
        self._newest_shared_fence = [0] * launches.streams  # no block that is still held has a newer fence
        self._fence_base = [0] * launches.streams
        self._operation_base = 0

    @property
    def available(self) -> int:
        """How many blocks can be taken now."""
        return self.blocks - self.taken

    def free_ids(self) -> IndexArray:
        """Return the free blocks, next to be taken first. A view."""
        return self.stack[self.taken :]

    def take(self, count: int) -> IndexArray:
        """Take `count` free blocks for one holder each. A view that is valid until the next call. O(count)."""
        ids = self.stack[self.taken : self.taken + count]
        self.taken += count
        self.held += count
        return ids

    def take_to_grow(self, count: int, operation: int) -> IndexArray:
        """Take blocks for rows that began earlier: when, is noted with the block. O(count)."""
        ids = self.take(count)
        self.grown_at[ids] = self._relative_operation(operation)
        return ids

    def share(self, ids: IndexArray) -> None:
        """Add one holder to each of these distinct held blocks. O(ids)."""
        self.references[ids] += 1
        self.shared_edges += ids.size

    def give_back(self, ids: IndexArray | Int32Array) -> None:
        """Free blocks that had one holder, and that nothing may touch: they are the next to be taken, in this order. O(ids)."""
        top = self.taken
        self.taken = rest = top - ids.size
        self.held -= ids.size
        self.stack[rest:top] = ids

    def drop(self, ids: IndexArray, touched: int, fences: list[int]) -> IndexArray:
        """Drop one holder's edges and return the blocks that are free now. O(ids x streams).

        `ids` is the holder's row; launches up to `fences`, one a stream, may have touched the first `touched` of it.
        """
        pending = self.launches.pending(fences)
        simple = not self.shared_edges and not self.copy_readers
        if simple and not self.launches.pending(self._newest_shared_fence):
            if pending:
                self._quarantine_row(ids[:touched], fences)
                if touched == ids.size:
                    return NO_IDS
                ids = ids[touched:]
            self.give_back(ids)
            return ids
        if pending and touched:
            self._merge(ids[:touched], np.array(fences, np.int64)[:, None])
        return self._free_or_wait(self._orphans(ids))

    def plan_copies(self, sources: IndexArray, fences: Int64Array) -> None:
        """Turn holders of these blocks into readers: a source may stand several times, and keeps a holder.

        `fences` is [streams, sources]: up to where the launches of each leaving holder go. O(sources x streams).
        """
        np.subtract.at(self.references, sources, 1)
        assert (self.references[sources] > 0).all(), "R-COW-2: the last holder of a block copied it"
        self.shared_edges -= sources.size
        self._merge(sources, fences)
        for source in sources.tolist():
            self.copy_readers[source] = self.copy_readers.get(source, 0) + 1

    def launch_copy(self, source: int, stream: int, launch: int) -> None:
        """Let a launch in flight take a planned copy over: from here on its fence keeps the source. O(streams)."""
        ids = np.array([source], np.intp)
        fences = np.zeros((self.launches.streams, 1), np.int64)
        fences[stream] = launch
        self._merge(ids, fences)
        self._forget_reader(source)

    def drop_copy(self, source: int) -> IndexArray:
        """Forget a planned copy whose sequence leaves; return its source if it is free now. O(streams)."""
        return self._forget_reader(source)

    def discharge(self, ids: IndexArray) -> IndexArray:
        """Take blocks whose launch has left out of quarantine, as far as nothing else keeps them. O(ids x streams)."""
        self.quarantined -= ids.size
        self.held += ids.size  # for as long as it takes to settle them
        return self._free_or_wait(ids)

    def state(self, block: int) -> str:
        """Return "free", "held", "quarantined", or "reserved" for the null block. O(free blocks)."""
        if block == 0:
            return "reserved"
        if self.references[block] == QUARANTINED:
            return "quarantined"
        return "free" if np.count_nonzero(self.free_ids() == block) else "held"

    def fences_of(self, block: int) -> list[int]:
        """Return for each stream the newest launch in flight up to which a block is fenced, 0 where none."""
        fences = [int(fence) + base for fence, base in zip(self.fences[:, block], self._fence_base, strict=True)]
        return [fence if fence > done else 0 for fence, done in zip(fences, self.launches.retired, strict=True)]

    def grown_since(self, block: int) -> int:
        """Return the newest operation at which a row grew by this block. A row that began later has it from its beginning."""
        return int(self.grown_at[block]) + self._operation_base

    def clone(self, launches: LaunchLog) -> "BlockPool":
        """Return an independent copy that waits for the launches of another log."""
        twin = type(self).__new__(type(self))
        twin.blocks, twin.launches = self.blocks, launches
        twin.stack, twin.taken = self.stack.copy(), self.taken
        twin.references, twin.fences, twin.grown_at = self.references.copy(), self.fences.copy(), self.grown_at.copy()
        twin.held, twin.quarantined, twin.shared_edges = self.held, self.quarantined, self.shared_edges
        twin.copy_readers = self.copy_readers.copy()
        twin._newest_shared_fence = self._newest_shared_fence.copy()
        twin._fence_base, twin._operation_base = self._fence_base.copy(), self._operation_base
        return twin

    def _orphans(self, ids: IndexArray) -> IndexArray:
        """Drop one edge to each block; return those that nobody holds and no planned copy reads."""
        self.references[ids] -= 1
        left = self.references[ids]
        assert ids.size == 0 or left.min() >= 0, "R-OWN-3: an edge was dropped that nobody held"
        orphans: IndexArray = ids[left == 0]
        self.shared_edges -= ids.size - orphans.size
        if self.copy_readers:
            parked = np.array([block in self.copy_readers for block in orphans.tolist()], bool)
            self._quarantine(orphans[parked])
            orphans = orphans[~parked]
        return orphans

    def _forget_reader(self, source: int) -> IndexArray:
        """A planned copy of a source is no more. If it was the last and nobody holds the source, fences alone keep it."""
        self.copy_readers[source] -= 1
        if self.copy_readers[source]:
            return NO_IDS
        del self.copy_readers[source]
        return self.discharge(np.array([source], np.intp)) if self.references[source] == QUARANTINED else NO_IDS

    def _merge(self, ids: IndexArray, fences: Int64Array) -> None:
        """Raise the fences of blocks to at least `fences`, [streams, 1 or ids]. An id may stand several times."""
        for stream, newest in enumerate(fences.max(axis=1).tolist()):
            if newest > self.launches.retired[stream]:
                if newest - self._fence_base[stream] > LARGEST_FENCE:
                    self._move_base(stream)
                relative = np.maximum(fences[stream] - self._fence_base[stream], 0)
                np.maximum.at(self.fences[stream], ids, relative.astype(np.int32))
                self._newest_shared_fence[stream] = max(self._newest_shared_fence[stream], newest)

    def _quarantine_row(self, ids: IndexArray, fences: list[int]) -> None:
        """Quarantine the blocks of one row whose own fences have all retired: the row's are theirs."""
        first = 0
        for stream, fence in enumerate(fences):
            if fence > self.launches.retired[stream]:
                if fence - self._fence_base[stream] > LARGEST_FENCE:
                    self._move_base(stream)
                self.fences[stream][ids] = fence - self._fence_base[stream]
                first = first or fence
        self._wait_for(first, ids)

    def _free_or_wait(self, ids: IndexArray) -> IndexArray:
        """Let each block without holder wait for the first launch in flight among its fences; free the others."""
        for stream, retired in enumerate(self.launches.retired):
            if not ids.size or not self.launches.busy(stream):
                continue
            fences = self.fences[stream][ids]
            late = fences > retired - self._fence_base[stream]
            if np.count_nonzero(late):
                for fence in np.unique(fences[late]).tolist():
                    self._wait_for(fence + self._fence_base[stream], ids[fences == fence])
                ids = ids[~late]
        self.references[ids] = 1
        self.give_back(ids)
        return ids

    def _wait_for(self, launch: int, ids: IndexArray) -> None:
        """Quarantine blocks until a launch in flight has retired."""
        self._quarantine(ids)
        self.launches.in_flight[launch].waiting_blocks.append(ids)

    def _quarantine(self, ids: IndexArray) -> None:
        """Mark blocks without holder as quarantined."""
        self.references[ids] = QUARANTINED
        self.quarantined += ids.size
        self.held -= ids.size

    def _move_base(self, stream: int) -> None:
        """Move the base of a stream's fences up to what has retired: once in two billion launches, O(blocks)."""
        distance = self.launches.retired[stream] - self._fence_base[stream]
        self._fence_base[stream] += distance
        self.fences[stream] = np.maximum(self.fences[stream].astype(np.int64) - distance, 0)

    def _relative_operation(self, operation: int) -> int:
        """Return an operation's number relative to a base that moves up by half when it would not fit."""
        if operation - self._operation_base > LARGEST_FENCE:
            half = LARGEST_FENCE // 2
            self._operation_base += half
            self.grown_at = np.maximum(self.grown_at - np.int32(half), 0)
        return operation - self._operation_base

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

A *published* block (`prefix_index`) without holder is *idle*: kept for the next prompt that begins like its prefix, it
is evictable (`retention`), or *fenced* while it waits as above. It counts as available once it is evictable, and is
taken where no block is free. Both parts are made when sharing is first used.

What is counted is `co_holders`: holders besides one. The one holder of a free or evictable block is the pool itself,
which passes it to the taker and back, so that taking and giving back touch no count at all (a fifth of what a request
costs); above 0 a block is shared, and -1 says that nobody holds it and it is not available: quarantined, or fenced.

Guarantees: what is handed out is free. `held` and `quarantined` are counted apart from the stack, so that they can be
compared with it after each operation. Memory, bytes a block: 8 stack, 4 co-holders, 4 since when, and 4 a stream for
fences; all of it is committed as it is used. Considered: one fence a block (wrong: launch 5 on a compute stream still
reads what launch 6 on a copy stream is done with); giving blocks back at once and ordering the next writer behind the
last reader (an edge for each reuse, and the host can't wait on it).
"""

from typing import Self

import numpy as np

from .arrays import NO_IDS, IndexArray, Int32Array
from .events import EventLog
from .fences import LARGEST_INT32, Fences
from .launches import LaunchLog
from .prefix_index import PrefixIndex
from .retention import Retention

UNHELD = -1  # in `co_holders`: nobody holds it, and it is not available


class BlockPool:
    """Blocks 1 to `blocks`, and the null block 0 that is nobody's.

    Free and held: `take`, `take_to_grow`, `share`, `let_go`, `drop`. Planned copies: `plan_copies`, `launch_copies`,
    `drop_copy`. Launches that leave: `discharge`. Idle blocks: see `idle_blocks`. Views: `available`, `free_ids`,
    `state`, `grown_since`.
    """

    __slots__ = (
        "_operation_base",
        "_ready",
        "_stack",
        "blocks",
        "co_holders",
        "copy_readers",
        "fences",
        "grown_at",
        "held",
        "idle",
        "index",
        "launches",
        "quarantined",
        "retention",
        "shared_edges",
        "taken",
    )

    def __init__(self, blocks: int, launches: LaunchLog) -> None:
        self.blocks = blocks
        self.launches = launches
        self.taken = 0  # blocks that are not free
        self.held = 0
        self.quarantined = 0  # not published, nobody holds them
        self.idle = 0  # published, nobody holds them
        self.index: PrefixIndex | None = None
        self.retention: Retention | None = None
        self.shared_edges = 0  # the sum of all co-holders: 0 says that nothing at all is shared
        self.copy_readers: dict[int, int] = {}  # source -> planned copies that read it
        self.co_holders = np.zeros(blocks + 1, np.int32)
        self.fences = Fences(blocks, launches)
        self.grown_at = np.zeros(blocks + 1, np.int32)  # the operation at which a row grew by the block
        self._stack = np.empty(blocks, np.intp)  # from `taken` on: the free blocks, next to be taken first
        self._ready = 0  # from here on the stack is not written yet: blocks that were never taken, in order
        self._operation_base = 0

    @property
    def available(self) -> int:
        """How many blocks can be taken now: those that are free, and those that can be evicted."""
        return self.blocks - self.taken + (0 if self.retention is None else self.retention.size)

    def free_ids(self) -> IndexArray:
        """Return the free blocks, next to be taken first. A view."""
        self._make_ready(self.blocks)
        return self._stack[self.taken :]

    def take(self, count: int) -> IndexArray:
        """Take `count` available blocks, for one holder each: free ones first, then evicted ones. O(count).

        A view that is valid until the next call.
        """
        first = self.taken
        end = first + count
        if end > self.blocks:
            evicted = self._evict(end - self.blocks)
            return np.concatenate((self.take(self.blocks - first), evicted))
        self.taken = end
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

    def start_sharing(self, block_size: int, events: EventLog | None = None) -> PrefixIndex:
        """Make what published blocks need: an index, and an order of eviction. O(1): memory comes as it is used."""
        index = PrefixIndex(self.blocks, block_size, events)
        self.retention = Retention(index.parents)
        self.index = index
        return index

    def let_go(self, ids: IndexArray | Int32Array, *, one_row: bool = True) -> None:
        """Do as `give_back` does where prefixes are shared: published blocks are evictable, only the others free.

        O(ids) for `one_row`, in order; O(ids log ids) for blocks of several.
        """
        assert self.index is not None
        assert self.retention is not None
        ids = ids.astype(np.intp)
        published = self.index.published.take(ids)
        count = int(np.count_nonzero(published))
        if count:
            if one_row:  # its published blocks are the first ones, and the deepest go first
                idle = ids[:count][::-1]
                ids = ids[count:]
            else:
                idle = ids[published]
                idle = idle[np.argsort(-self.index.depths[idle], kind="stable")]
                ids = ids[~published]
            self.held -= count
            self.idle += count
            self.retention.append(idle)
        if ids.size:
            self.give_back(ids)

    def give_back(self, ids: IndexArray | Int32Array) -> None:
        """Free blocks of one holder that nothing may touch and nobody finds; they are the next to be taken. O(ids)."""
        end = self.taken
        self.taken = first = end - ids.size
        self.held -= ids.size
        self._stack[first:end] = ids

    def drop(self, ids: IndexArray, touched: int, fences: list[int]) -> IndexArray:
        """Drop one holder's edges and return the blocks that are free now. O(ids x streams).

        `ids` is the holder's row; launches up to `fences`, one a stream, may have touched the first `touched` of it.
        """
        pending = self.launches.pending(fences)
        if not self.shared_edges and not self.copy_readers and self.fences.newest_held < self.launches.oldest:
            # Nothing is shared, and what dropped edges left on these blocks has retired: their fences are the row's.
            if pending:
                self._wait_for(self.fences.set_row(ids[:touched], fences), ids[:touched])
                if touched == ids.size:
                    return NO_IDS
                ids = ids[touched:]
            if self.index is None:
                self.give_back(ids)
            else:
                self.let_go(ids)
            return ids
        if pending:
            for stream, fence in enumerate(fences):
                self.fences.raise_to(ids[:touched], stream, fence)
        return self._free_or_wait(self._orphans(ids))

    def plan_copies(self, sources: IndexArray) -> None:
        """Turn holders of these blocks into readers: a source may stand several times, and keeps a holder. O(sources).

        Who leaves merges no fences: a sequence is forked when all it has is launched, and has a tail of its own before
        it launches more. So whoever shares a partly filled tail has the same launches in flight on it, and who stays
        keeps their fences.
        """
        np.subtract.at(self.co_holders, sources, 1)
        assert not np.count_nonzero(self.co_holders[sources] < 0), "R-COW-2: the last holder of a block copied it"
        self.shared_edges -= sources.size
        for source in sources.tolist():
            self.copy_readers[source] = self.copy_readers.get(source, 0) + 1

    def launch_copies(self, sources: list[int], stream: int, launch: int) -> None:
        """Let a launch in flight take planned copies over: from here on its fence keeps their sources. O(sources)."""
        self.fences.raise_to(np.array(sources, np.intp), stream, launch)
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
        if self.co_holders[source] != UNHELD:
            return NO_IDS
        ids = np.array([source], np.intp)
        self._keep_no_more(ids)
        return self._free_or_wait(ids)

    def discharge(self, ids: IndexArray) -> IndexArray:
        """Free blocks whose launch has left, as far as no other stream's keeps them; return those. O(ids x streams)."""
        if self.launches.streams > 1 or self.index is not None:
            self._keep_no_more(ids)
            return self._free_or_wait(ids)
        self.quarantined -= ids.size  # by the short way, which most go
        self.held += ids.size
        self.co_holders[ids] = 0
        self.give_back(ids)
        return ids

    def state(self, block: int) -> str:
        """Return "free", "held", "idle", "quarantined", or "reserved" for the null block. O(free blocks)."""
        if block == 0:
            return "reserved"
        if self.co_holders[block] == UNHELD:
            return "idle" if self.index is not None and self.index.published[block] else "quarantined"
        if self.retention is not None and self.retention.holds(np.array([block])):
            return "idle"
        return "free" if np.count_nonzero(self.free_ids() == block) else "held"

    def grown_since(self, block: int) -> int:
        """Return the last operation at which a row grew by this block; a sequence that began later began with it."""
        return int(self.grown_at[block]) + self._operation_base

    def clone(self, launches: LaunchLog) -> Self:
        """Return an independent copy that waits for the launches of another log."""
        twin = object.__new__(type(self))
        twin.blocks, twin.launches, twin.taken = self.blocks, launches, self.taken
        twin.held, twin.quarantined, twin.shared_edges = self.held, self.quarantined, self.shared_edges
        twin.copy_readers, twin.co_holders = self.copy_readers.copy(), self.co_holders.copy()
        twin.fences, twin.grown_at = self.fences.clone(launches), self.grown_at.copy()
        twin._stack, twin._ready = self._stack.copy(), self._ready
        twin._operation_base = self._operation_base
        twin.idle = self.idle
        twin.index = self.index and self.index.clone()
        twin.retention = None
        if self.retention is not None and twin.index is not None:
            twin.retention = self.retention.clone(twin.index.parents)
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
        assert not np.count_nonzero(left < UNHELD), "R-OWN-3: an edge was dropped that nobody held"
        self.co_holders[ids] = left
        orphans: IndexArray = ids[left == UNHELD]
        self.shared_edges -= ids.size - orphans.size
        if self.copy_readers:
            parked = np.array([block in self.copy_readers for block in orphans.tolist()], bool)
            self._keep(orphans[parked])
            orphans = orphans[~parked]
        return orphans

    def _free_or_wait(self, ids: IndexArray) -> IndexArray:
        """Let each block without holder wait for the first launch in flight among its fences; free the others."""
        for stream in range(self.launches.streams):
            if self.launches.busy(stream):
                late, launches = self.fences.late(ids, stream)
                for launch in launches:
                    self._wait_for(launch, ids[self.fences.equal(ids, stream, launch)])
                ids = ids[~late] if launches else ids
        return self._free(ids)

    def _free(self, ids: IndexArray) -> IndexArray:
        """Free blocks that nobody holds: the pool is their holder. Published ones are evictable."""
        self.co_holders[ids] = 0
        if self.index is None:
            self.give_back(ids)
        else:
            self.let_go(ids, one_row=False)
        return ids

    def _wait_for(self, launch: int, ids: IndexArray) -> None:
        """Keep blocks that nobody holds until a launch in flight has retired."""
        self._keep(ids)
        self.launches.in_flight[launch].waiting_blocks.append(ids)

    def _keep(self, ids: IndexArray) -> None:
        """Mark blocks as held by nobody, and not free: quarantined, or idle if they are published."""
        self.co_holders[ids] = UNHELD
        self.held -= ids.size
        self.quarantined += ids.size
        if self.index is not None:
            self._count_idle(ids, 1)

    def _keep_no_more(self, ids: IndexArray) -> None:
        """Count such blocks as held for as long as it takes to look at their fences."""
        self.held += ids.size
        self.quarantined -= ids.size
        if self.index is not None:
            self._count_idle(ids, -1)

    def _count_idle(self, ids: IndexArray, sign: int) -> None:
        """Count published ones of these blocks as idle, not as quarantined."""
        assert self.index is not None
        idle = sign * int(np.count_nonzero(self.index.published[ids]))
        self.idle += idle
        self.quarantined -= idle

    def _evict(self, count: int) -> IndexArray:
        """Take idle blocks out of the index, for one holder each."""
        assert self.index is not None
        assert self.retention is not None
        ids = self.retention.pop(count)
        self.index.remove(ids)
        self.idle -= count
        self.held += count
        return ids

    def _relative_operation(self, operation: int) -> int:
        """Return an operation's number relative to a base, which moves up by half the range where it would not fit."""
        if operation - self._operation_base > LARGEST_INT32:
            half = LARGEST_INT32 // 2
            self._operation_base += half
            self.grown_at = np.maximum(self.grown_at, half) - np.int32(half)
        return operation - self._operation_base

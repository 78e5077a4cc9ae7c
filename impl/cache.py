"""The facade: a paged KV cache's bookkeeping for an inference engine, one call a batch.

An engine's step is `extend` (room for the next positions: slot mapping, table edits, copies), `launch` (the device will write them and
read all before), and later `retire` (the host has learnt that the device did). Requests come by `add` or `fork` and leave by
`release`, at any time, finished or cancelled. What a launch in flight may touch is not given to anybody else before that launch has
retired: blocks, table rows and planned copies alike.

Guarantees: a refused call has changed nothing; its class says why (`refusals`), in the order of the table of operations. Free, held and
quarantined blocks add up after every operation, by counters kept apart; `check()` walks everything. One thread of control: calls must not overlap.

Cost: a call is a few passes over its batch; add, fork and release are O(blocks of the sequence); retire is O(what becomes free). Nothing
depends on how many sequences or blocks there are. Source of the ideas: paging and copy-on-write, Kwon et al., "Efficient Memory Management for Large
Language Model Serving with PagedAttention" (SOSP 2023); struct-of-arrays batching, as in SGLang's pools.
"""

import os
from collections.abc import Callable, Hashable, Mapping
from types import TracebackType
from typing import Self, SupportsIndex

import numpy as np

from . import arguments
from .arguments import Integers, integer
from .arithmetic import Paging, blocks_needed
from .arrays import NO_BLOCKS, NO_INTEGERS, IndexArray, Int32Array, Int64Array
from .block_pool import BlockPool
from .block_tables import BlockTables
from .extension import NO_EDITS, extend
from .inspect import Holding, fingerprint, who_holds, written
from .invariants import check
from .journal import JournalWriter
from .launches import LaunchLog
from .refusals import BadCount, Busy, Duplicate, Empty, NoSpace, TooLong, Unknown
from .results import NO_COPIES, Added, Copies, Counts, Extension, Forked, Launch, Lengths, copies_of

LOST = "R-OWN-5: free, held and quarantined blocks do not add up to all blocks"
MOST_BLOCKS = 2**31 - 2  # ids are int32
MOST_SLOTS = 2**62  # positions and slots are int64, with room to add


class BlockCache:
    """Blocks, rows and launches of one paged KV cache.

    `blocks` are usable blocks of `block_size` positions, ids 1 to `blocks` (the null block 0 is extra). `streams` are device streams,
    numbered from 0; at most `launches_in_flight` launches wait for their retirement at a time. `journal` is a file name (a name that ends in
    .gz is compressed) or a `JournalWriter`; it is complete once the cache is closed. `rows` and `max_blocks_per_row` are
    initial capacities of the table, which grows by itself.

    Requests: `add`, `fork`, `release`. Steps: `extend`, `launch`, `retire`. Views: `table`, `block_table`, `lengths`, `sequences`, `planned_copies`,
    `in_flight`, `launched`, `counts`, `block_state`, `free_order`, `who_holds`. For tests: `check`, `clone`, `fingerprint`.
    """

    __slots__ = ("_journal", "_launches", "_operations", "_pool", "_tables", "block_size", "blocks")

    def __init__(
        self,
        blocks: int,
        block_size: int,
        *,
        streams: int = 1,
        launches_in_flight: int = 64,
        journal: JournalWriter | str | os.PathLike[str] | None = None,
        rows: int = 64,
        max_blocks_per_row: int = 64,
    ) -> None:
        self.blocks = integer("blocks", blocks, 1, MOST_BLOCKS)
        self.block_size = integer("block_size", block_size, 1, MOST_SLOTS // (self.blocks + 1))
        streams = integer("streams", streams, 1, 1024)
        limit = integer("launches_in_flight", launches_in_flight, 1)
        rows = integer("rows", rows, 1, 2**24) + 1
        columns = min(integer("max_blocks_per_row", max_blocks_per_row, 1, 2**24), self.blocks)
        self._launches = LaunchLog(streams, limit)
        self._pool = BlockPool(self.blocks, self._launches)
        self._tables = BlockTables(Paging(self.block_size), streams, rows, columns)
        self._operations = 0
        self._journal = self._open(journal, streams, limit)

    # ---- requests -------------------------------------------------------------------------------------------------

    def add(self, seq: int, tokens: int | Integers, salt: int = 0) -> Added:
        """Start a sequence of `tokens` known tokens (a count, or their ids): a row of ceil(tokens / B) blocks.

        `salt` keeps tenants apart where prefixes are shared. Refused: `Duplicate`, `Empty`, `TooLong`, `NoSpace`. O(blocks taken).
        """
        name = seq if type(seq) is int and -(2**63) <= seq < 2**63 else integer("a sequence name", seq)
        count = tokens if type(tokens) is int else arguments.token_count(tokens)
        if salt != 0:
            integer("a salt", salt)
        tables, pool = self._tables, self._pool
        if name in tables.names.row_of:
            raise Duplicate(f"sequence {name} is live already")
        if count < 1:
            raise Empty(f"sequence {name} must start with at least 1 token, not {count}")
        need = blocks_needed(count, self.block_size)
        if need > self.blocks:
            raise TooLong(f"sequence {name} needs {need} blocks and the whole pool has {self.blocks}")
        if need > self.blocks - pool.taken:
            raise NoSpace(f"sequence {name} needs {need} blocks and {pool.available} are available")
        self._operations += 1
        blocks = pool.take(need).astype(np.int32)
        row = tables.begin(name, self._operations, count, blocks)
        if self._journal is not None:
            self._journal.add(name, count, blocks.tolist())
        assert pool.held + pool.quarantined == pool.taken, LOST
        return Added(row, blocks)

    def fork(self, parent: int, child: int) -> Forked:
        """Start `child` as `parent` is now: its lengths, its blocks (one more edge to each), its launches to wait for.

        Refused: `Unknown`, `Duplicate`, `Busy` (the parent has planned positions). O(blocks of the parent).
        """
        parent, child = integer("a sequence name", parent), integer("a sequence name", child)
        tables, pool = self._tables, self._pool
        row = tables.names.row(parent)
        if child in tables.names.row_of:
            raise Duplicate(f"sequence {child} is live already")
        planned = int(tables.allocated[row] - tables.launched[row])
        if planned:
            raise Busy(f"sequence {parent} has {planned} planned positions: launch them before it is forked")
        self._operations += 1
        twin = tables.fork(row, child, self._operations, self._launches)
        blocks = tables.blocks(twin).copy()
        pool.share(blocks.astype(np.intp))
        if self._journal is not None:
            self._journal.fork(parent, child)
        assert pool.held + pool.quarantined == pool.taken, LOST
        return Forked(twin, blocks)

    def release(self, seq: int) -> Int32Array:
        """Let a sequence go, finished or cancelled; return the blocks that are free now.

        Its planned copy is dropped. Blocks that launches in flight may touch become free as these retire. Refused: `Unknown`. O(its blocks).
        """
        name = seq if type(seq) is int else integer("a sequence name", seq)
        tables, pool = self._tables, self._pool
        row = tables.names.row_of.get(name)
        if row is None:
            raise Unknown(f"no live sequence is called {name}")
        self._operations += 1
        if not (self._launches.in_flight or pool.shared_edges or pool.copy_readers):
            freed = tables.end_at_once(name, row)
            pool.give_back(freed)
        else:
            freed = self._drop(row)
            tables.end(name, row, self._launches)
        if self._journal is not None:
            self._journal.release(name, freed.tolist())
        assert pool.held + pool.quarantined == pool.taken, LOST
        return freed

    # ---- steps ----------------------------------------------------------------------------------------------------

    def extend(self, seqs: Integers, counts: int | Integers = 1) -> Extension:
        """Make room for the next positions of a batch, all or nothing; copy a shared tail block before it is written.

        `counts` is one number for all rows or one a row. Refused: `Duplicate`, `Unknown`, `BadCount`, `TooLong`, `NoSpace`.
        O(batch + positions + blocks of rows that move); a moved row appears in the edits in full.
        """
        names = arguments.names(seqs)
        amounts = arguments.counts(counts, names.size)
        if not names.size:
            return Extension(NO_INTEGERS, NO_EDITS, NO_COPIES, NO_BLOCKS)
        pool = self._pool
        batch = self._tables.names.resolve(names)
        extension = extend(self._tables, pool, batch, amounts, self._operations + 1)
        self._operations += 1
        if self._journal is not None:
            copies = [array.tolist() for array in extension.copies]
            self._journal.extend(batch.names, amounts, extension.blocks.tolist(), list(zip(*copies, strict=True)))
        assert pool.held + pool.quarantined == pool.taken, LOST
        return extension

    def launch(self, seqs: Integers, counts: int | Integers = 1, stream: int = 0) -> Launch:
        """Hand a step to the device: planned copies first, then `counts` planned positions of each row, reading all before.

        Refused: `Duplicate`, `Unknown`, `BadCount` (below 1, or more than is planned), `Busy` (too many in flight). O(batch x streams).
        An empty batch is a fence: a launch that touches nothing, retired like any other.
        """
        names = arguments.names(seqs)
        amounts = arguments.counts(counts, names.size)
        tables, pool, launches = self._tables, self._pool, self._launches
        if stream != 0 or type(stream) is not int:
            stream = integer("a stream", stream, 0, launches.streams - 1)
        batch = tables.names.resolve(names)
        rows = batch.rows
        starts = tables.launched[rows]
        ends = self._ends(rows, starts, amounts)
        if len(launches.in_flight) >= launches.limit:
            raise Busy(f"{launches.limit} launches are in flight, the most there may be: retire one first")
        self._operations += 1
        after = launches.edges(stream, tables.fences, rows) if launches.streams > 1 and rows.size else ()
        tables.launched[rows] = ends
        copies = self._take_copies(rows, batch.names) if tables.copies else NO_COPIES
        launch = Launch(
            launches.issued + 1,
            stream,
            after,
            batch.device_rows,
            starts,
            ends,
            copies,
            tables.table,
            batch.names,
            batch.epochs,
        )
        launches.submit(launch, self._operations)
        tables.fences[stream][rows] = launch.id  # a view first: twice as fast as one index in two dimensions
        if copies is not NO_COPIES:
            for source in copies.sources.tolist():
                pool.launch_copy(source, stream, launch.id)
        if self._journal is not None:
            self._journal.launch(launch.id, batch.names, amounts, stream, after)
        assert pool.held + pool.quarantined == pool.taken, LOST
        return launch

    def retire(self, launch_id: int) -> Int32Array:
        """Learn that a launch has been executed, and with it all that happens before it; return the blocks that became free.

        A launch that has left already changes nothing. Refused: `UnknownLaunch`. O(launches that leave + blocks they kept).
        """
        pool = self._pool
        if type(launch_id) is not int:
            launch_id = integer("a launch id", launch_id)
        leaving = self._launches.retire(launch_id)
        self._operations += 1
        waiting = [ids for flight in leaving for ids in flight.waiting_blocks]
        freed = NO_BLOCKS
        if waiting:
            ids = waiting[0] if len(waiting) == 1 else np.concatenate(waiting)
            freed = pool.discharge(ids).astype(np.int32)
        for flight in leaving:
            for row in flight.waiting_rows:
                self._tables.retire_row(row, self._launches)
        if self._journal is not None:
            self._journal.retire(launch_id, freed.tolist())
        assert pool.held + pool.quarantined == pool.taken, LOST
        return freed

    # ---- views ----------------------------------------------------------------------------------------------------

    @property
    def table(self) -> Int32Array:
        """The block table, [rows, max_blocks] int32; null behind each row's blocks. Row 0 is all null, for padding."""
        return self._tables.table

    @property
    def counts(self) -> Counts:
        """Blocks by state. O(1)."""
        return Counts(self._pool.available, self._pool.held, self._pool.quarantined, self.blocks)

    def block_table(self, seq: int) -> Int32Array:
        """Return a sequence's blocks: exactly ceil(allocated / B) of them."""
        return self._tables.blocks(self._row(seq)).copy()

    def lengths(self, seq: int) -> Lengths:
        """Return a sequence's lengths. `written` is worked out here: O(launches in flight x their batch)."""
        row = self._row(seq)
        allocated, launched = int(self._tables.allocated[row]), int(self._tables.launched[row])
        return Lengths(allocated, allocated, launched, written(self._tables, self._launches, row))

    def sequences(self) -> list[int]:
        """Return the names of all live sequences, oldest name first."""
        return list(self._tables.names.row_of)

    def planned_copies(self) -> list[tuple[int, int, int, int]]:
        """Return (sequence, source, target, extent) of each copy that is planned and not launched."""
        return [(int(self._tables.names.name_of[row]), *copy) for row, copy in self._tables.copies.items()]

    def in_flight(self) -> list[int]:
        """Return the launches in flight, oldest first."""
        return list(self._launches.in_flight)

    def launched(self, launch_id: int) -> Launch:
        """Return a launch in flight; `KeyError` where it is none."""
        return self._launches.in_flight[launch_id].launch

    def block_state(self, block: int) -> str:
        """Return "free", "held", "quarantined", or "reserved" for the null block. O(free blocks)."""
        return self._pool.state(integer("a block", block, 0, self.blocks))

    def references(self, block: int) -> int:
        """Return how many sequences hold a block. O(1)."""
        return max(0, int(self._pool.references[integer("a block", block, 0, self.blocks)]))

    def row_of(self, seq: int) -> int:
        """Return which row of the table a sequence has now; copy-on-write may move it. O(1)."""
        return self._row(seq)

    def free_order(self) -> list[int]:
        """Return the free blocks, next to be taken first."""
        order: list[int] = self._pool.free_ids().tolist()
        return order

    def who_holds(self, block: int) -> Holding:
        """Tell who holds a block, since when, and why it is not free. O(rows + launches in flight)."""
        return who_holds(self._tables, self._pool, integer("a block", block, 0, self.blocks))

    # ---- for tests and for closing ----------------------------------------------------------------------------------

    def check(self) -> None:
        """Walk everything; `CorruptState` names the first invariant that does not hold."""
        check(self._tables, self._pool)

    def clone(self) -> "BlockCache":
        """Return an independent copy, which writes no journal. Its launches in flight are under `launched`."""
        twin = type(self).__new__(type(self))
        twin.blocks, twin.block_size, twin._operations = self.blocks, self.block_size, self._operations
        twin._tables = self._tables.clone()
        twin._launches = self._launches.clone(self._tables.table, twin._tables.table)
        twin._pool = self._pool.clone(twin._launches)
        twin._journal = None
        return twin

    def fingerprint(
        self, block: Mapping[int, int], sequence: Mapping[int, int], launch: Callable[[int], int]
    ) -> Hashable:
        """Return all state on which future behaviour depends, with blocks, sequences and launches renamed."""
        return fingerprint(self._tables, self._pool, block, sequence, launch)

    def close(self) -> None:
        """Complete the journal, if one is written."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._journal is not None and kind is not None:
            self._journal.abandon()
            self._journal = None
        self.close()

    def _open(
        self, journal: JournalWriter | str | os.PathLike[str] | None, streams: int, limit: int
    ) -> JournalWriter | None:
        if isinstance(journal, JournalWriter) or journal is None:
            return journal
        return JournalWriter(journal, blocks=self.blocks, block_size=self.block_size, streams=streams, launches=limit)

    def _row(self, seq: SupportsIndex) -> int:
        return self._tables.names.row(integer("a sequence name", seq))

    def _drop(self, row: int) -> Int32Array:
        """Drop a sequence's edges and its planned copy; return the blocks that are free now."""
        tables, pool = self._tables, self._pool
        copy = tables.copies.pop(row, None)
        touched = blocks_needed(tables.launched.item(row), self.block_size)
        if copy is not None:  # its target is the last block that launches could have touched, and none has
            tables.copying[row] = False
            touched -= 1
        freed = pool.drop(tables.blocks(row).astype(np.intp), touched, tables.fences[:, row].tolist())
        if copy is not None:
            freed = np.concatenate((freed, pool.drop_copy(copy.source)))
        return freed.astype(np.int32) if freed.size else NO_BLOCKS

    def _ends(self, rows: IndexArray, starts: Int64Array, amounts: int | Int64Array) -> Int64Array:
        """Return up to where a launch of so many positions of each row goes, or refuse it with `BadCount`."""
        if not rows.size:
            return starts
        least, most = (amounts, amounts) if isinstance(amounts, int) else (int(amounts.min()), int(amounts.max()))
        if 1 <= least and most <= self.blocks * self.block_size:  # so that the sums stay within int64
            ends: Int64Array = starts + amounts
            if not np.count_nonzero(ends > self._tables.allocated[rows]):
                return ends
        raise BadCount("a row must launch at least 1 position and at most those that are planned")

    def _take_copies(self, rows: IndexArray, names: Int64Array) -> Copies:
        """Take the planned copies of a batch out of the plan, in batch order."""
        places = self._tables.copying[rows].nonzero()[0].tolist()
        self._tables.copying[rows] = False
        return copies_of([(int(names[place]), *self._tables.copies.pop(int(rows[place]))) for place in places])

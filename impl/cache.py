"""The facade: a paged KV cache's bookkeeping for an inference engine, one call a batch.

An engine's step is `extend` (room for the next positions: slot mapping, table edits, copies), `launch` (the device will
write them and read all before), and later `retire` (the host has learnt that the device did). Requests come by `add` or
`fork` and leave by `release`, at any time, finished or cancelled. What a launch in flight may touch is given to nobody
else before that launch has retired: blocks, table rows and the sources of planned copies alike. Prompts that come by
their token ids begin with what others have computed; that half stands in `prefix_sharing`.

Guarantees: a refused call has changed nothing; its class says why (`refusals`), in the order of the spec's table of
operations. Held, idle and quarantined blocks are compared with the free stack after each operation; `check()` walks
everything. One thread of control: calls must not overlap, and a call that Ctrl-C or a want of memory cuts short may
leave a state that `check()` refuses: throw such a cache away.

Cost: a call is a few passes over its batch; add, fork and release are O(blocks of the sequence), retire is O(what
becomes free). Nothing depends on how many sequences or blocks there are. Source of the ideas: paging and copy-on-write,
Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention" (SOSP 2023); arrays a
batch wide, as in SGLang's pools. Considered: an object a block (a free list of these costs ten times as much a step).
"""

import os
from collections.abc import Sequence
from types import TracebackType
from typing import Self, SupportsIndex

import numpy as np

from . import arguments
from .arguments import Integers, integer, shown
from .arithmetic import Paging, blocks_needed
from .arrays import NO_BLOCKS, NO_IDS, NO_SLOTS, Int32Array
from .block_pool import BlockPool
from .block_tables import BlockTables
from .events import EventLog
from .extension import extend
from .invariants import CorruptState
from .journal import JournalWriter
from .launches import LaunchLog
from .prefix_sharing import LOST, PrefixSharing
from .refusals import Busy, Duplicate, Empty, InvalidArgument, NoSpace, TooLong
from .results import NO_COPIES, NO_EDITS, Added, Extension, Forked, Launch
from .submission import submit

MOST_BLOCKS = 2**31 - 2  # ids are int32
MOST_ROWS = 2**24
MOST_SLOTS = 2**61  # positions and slots are int64, and sums of two stay so


class BlockCache(PrefixSharing):
    """Blocks, rows and launches of one paged KV cache.

    `blocks` are usable blocks of `block_size` positions, ids 1 to `blocks` (the null block 0 is extra). `streams` are
    device streams, numbered from 0; at most `launches_in_flight` launches wait for their retirement at a time.
    `journal` is a file name (one that ends in .gz is compressed) or a `JournalWriter`; it is complete once the cache is
    closed. `rows` and `max_blocks_per_row` are initial capacities of the table, which grows by itself. Without
    `prefix_cache` nothing is published, whatever is told. With `events` the cache notes what is published and evicted,
    with `event_tokens` also the token ids of it.

    Requests: `add`, `fork`, `release`. Steps: `extend`, `launch`, `retire`. Sharing: see `PrefixSharing`; views: see
    `CacheViews`. Also: `clone`, `close`; as a context manager a cache closes its journal, or abandons it where an
    exception ends the context.
    """

    __slots__ = ()

    def __init__(
        self,
        blocks: int,
        block_size: int,
        *,
        streams: int = 1,
        launches_in_flight: int = 64,
        prefix_cache: bool = True,
        events: bool = False,
        event_tokens: bool = False,
        journal: JournalWriter | str | os.PathLike[str] | None = None,
        rows: int = 64,
        max_blocks_per_row: int = 64,
    ) -> None:
        blocks = integer("blocks", blocks, 1, MOST_BLOCKS)
        block_size = integer("block_size", block_size, 1, MOST_SLOTS // (blocks + 1))
        streams = integer("streams", streams, 1, 1024)
        launches_in_flight = integer("launches_in_flight", launches_in_flight, 1)
        rows = integer("rows", rows, 1, MOST_ROWS) + 1  # row 0 is nobody's
        columns = min(integer("max_blocks_per_row", max_blocks_per_row, 1, MOST_BLOCKS), blocks)
        try:
            pool = BlockPool(blocks, LaunchLog(streams, launches_in_flight))
            super().__init__(BlockTables(Paging(block_size), streams, rows, columns), pool)
        except MemoryError:
            raise InvalidArgument(
                f"no memory for {blocks} blocks and a table of {rows} rows of {columns}: ask for fewer"
            ) from None
        self._operations = 0
        self._prefix_cache = prefix_cache
        self._event_log = EventLog(with_tokens=event_tokens) if events or event_tokens else None
        self._sharing = None
        if journal is not None and not isinstance(journal, JournalWriter):
            journal = JournalWriter(
                journal, blocks=blocks, block_size=block_size, streams=streams, launches=launches_in_flight
            )
        self._journal = journal

    # ---- requests ---------------------------------------------------------------------------------------------------

    def add(self, seq: int, tokens: SupportsIndex | Integers, salt: int = 0) -> Added:
        """Start a sequence of so many tokens, or with these ids: a row of ceil(tokens / B) blocks.

        With ids, the longest published prefix under this `salt` (a tenant's; tenants never share) is the row's
        beginning, up to the last token but one: the first position to compute is hits * B. A count hits nothing; the
        sequence may be told its ids by `publish`. Refused: `Duplicate`, `Empty`, `TooLong`, `NoSpace`.
        O(blocks taken + ids).
        """
        name = seq if type(seq) is int and -(2**63) <= seq < 2**63 else integer("a sequence name", seq)
        salt = salt if type(salt) is int and salt == 0 else integer("a salt", salt)
        if type(tokens) is not int:
            return self._add_by(name, tokens, salt)
        count = tokens
        tables, pool = self._tables, self._pool
        if name in tables.names.row_of:
            raise Duplicate(f"sequence {name} is live already")
        if count < 1:
            raise Empty(f"sequence {name} must start with at least 1 token, not {shown(count)}")
        need = blocks_needed(count, self.block_size)
        if need > self.blocks:
            raise TooLong(f"sequence {name} needs {shown(need)} blocks and the whole pool has {self.blocks}")
        if need > self.blocks - pool.taken and need > pool.available:
            raise NoSpace(f"no space for sequence {name}: blocks needed {need}, available {pool.available}")
        if need > tables.columns or not tables.free_rows:
            tables.make_room(need, 1)
        self._operations += 1
        blocks = pool.take(need).astype(np.int32)
        row = tables.begin(name, self._operations, count, blocks)
        if salt != 0 or self._sharing is not None:
            self._begin_unknown(row, salt)
        if self._journal is not None:
            self._journal.add(name, count, blocks.tolist(), salt=salt)
        if pool.held + pool.quarantined + pool.idle != pool.taken:
            raise CorruptState(LOST)
        return Added(row, blocks)

    def _add_by(self, name: int, tokens: SupportsIndex | Integers, salt: int) -> Added:
        """Add a sequence by the ids of its tokens, or by a count that isn't Python's own integer."""
        if isinstance(tokens, np.ndarray | Sequence):
            return self._add_known(name, arguments.token_ids(tokens), salt)
        return self.add(name, integer("the token count", tokens), salt)

    def fork(self, parent: int, child: int) -> Forked:
        """Start `child` as `parent` is now: its lengths, its blocks (an edge more to each), its launches to wait for.

        Refused: `Unknown`, `Duplicate`, `Busy` (the parent has planned positions). O(blocks of the parent).
        """
        parent, child = integer("a sequence name", parent), integer("a sequence name", child)
        tables, pool = self._tables, self._pool
        row = tables.names.row(parent)
        if child in tables.names.row_of:
            raise Duplicate(f"sequence {child} is live already")
        planned = tables.allocated.item(row) - tables.launched.item(row)
        if planned:
            raise Busy(f"sequence {parent} has {planned} planned positions: launch them before it is forked")
        tables.make_room(0, 1)
        self._operations += 1
        twin = tables.fork(row, child, self._operations, self._launches)
        blocks = tables.blocks(twin).copy()
        pool.share(blocks.astype(np.intp))
        if self._journal is not None:
            self._journal.fork(parent, child)
        if pool.held + pool.quarantined + pool.idle != pool.taken:
            raise CorruptState(LOST)
        return Forked(twin, blocks)

    def release(self, seq: int) -> Int32Array:
        """Let a sequence go, finished or cancelled; return the blocks that are free now.

        Its planned copy is dropped. Blocks that launches in flight may touch become free as these retire. Refused:
        `Unknown`. O(its blocks x streams).
        """
        name = seq if type(seq) is int else integer("a sequence name", seq)
        tables, pool = self._tables, self._pool
        row = tables.names.row(name)
        self._operations += 1
        if not (self._launches.in_flight or pool.shared_edges or pool.copy_readers):
            freed = tables.end_at_once(name, row)
            if pool.index is None:
                pool.give_back(freed)
            else:
                pool.let_go(freed)
        else:
            freed = self._drop(row)
            tables.end(name, row, self._launches)
        if self._journal is not None:
            self._journal.release(name, freed.tolist())
        if pool.held + pool.quarantined + pool.idle != pool.taken:
            raise CorruptState(LOST)
        return freed

    def make_room(self, blocks: int) -> None:
        """Make room in the table for rows of so many blocks, before there is one.

        Refused: `InvalidArgument`, if there is no memory for that. O(1) where there is room, else O(table).
        """
        try:
            self._tables.make_room(blocks)
        except MemoryError:
            raise InvalidArgument(f"no memory for a table with rows of {blocks} blocks: ask for less") from None

    # ---- steps ------------------------------------------------------------------------------------------------------

    def extend(self, seqs: Integers, counts: SupportsIndex | Integers = 1) -> Extension:
        """Make room for the next positions of a batch, all or nothing; a shared tail is copied before it is written.

        `counts` is one number for all rows or one a row. Refused: `Duplicate`, `Unknown`, `BadCount`, `TooLong`,
        `NoSpace`. O(batch + positions + blocks of rows that move).
        """
        names = arguments.names(seqs)
        amounts = arguments.counts(counts, names.size)
        if not names.size:
            return Extension(NO_SLOTS, NO_EDITS, NO_COPIES, NO_BLOCKS)
        pool = self._pool
        batch = self._tables.names.resolve(names)
        extension = extend(self._tables, pool, batch, amounts, self._operations + 1)
        self._operations += 1
        if self._journal is not None:
            copies = list(zip(*(column.tolist() for column in extension.copies), strict=True))
            self._journal.extend(batch.names, amounts, extension.blocks.tolist(), copies)
        if pool.held + pool.quarantined + pool.idle != pool.taken:
            raise CorruptState(LOST)
        return extension

    def launch(self, seqs: Integers, counts: SupportsIndex | Integers = 1, stream: int = 0) -> Launch:
        """Hand a step to the device: planned copies, then `counts` planned positions of each row, reading all before.

        An empty batch is a fence: a launch that touches nothing, retired like any other. Refused: `Duplicate`,
        `Unknown`, `BadCount` (below 1, or more than is planned), `Busy` (too many in flight). O(batch x streams).
        """
        names = arguments.names(seqs)
        amounts = arguments.counts(counts, names.size)
        if stream != 0 or type(stream) is not int:
            stream = integer("a stream", stream, 0, self._launches.streams - 1)
        pool = self._pool
        batch = self._tables.names.resolve(names)
        launch = submit(self._tables, pool, batch, amounts, stream, self._operations + 1)
        self._operations += 1
        if self._journal is not None:
            self._journal.launch(launch.id, batch.names, amounts, stream, launch.after)
        if pool.held + pool.quarantined + pool.idle != pool.taken:
            raise CorruptState(LOST)
        return launch

    def retire(self, launch_id: int) -> Int32Array:
        """Learn that a launch has been executed, and with it all that happens before it; return the blocks freed.

        A launch that has left already changes nothing. Refused: `UnknownLaunch`. O(launches up to it + what it frees).
        """
        if type(launch_id) is not int:
            launch_id = integer("a launch id", launch_id)
        pool = self._pool
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
        if pool.held + pool.quarantined + pool.idle != pool.taken:
            raise CorruptState(LOST)
        return freed

    # ---- the cache as a whole ---------------------------------------------------------------------------------------

    def clone(self) -> Self:
        """Return an independent copy, which writes no journal; its launches in flight read its own table."""
        twin = object.__new__(type(self))
        tables = self._tables.clone()
        launches = self._launches.clone(self._tables.table, tables.table)
        PrefixSharing.__init__(twin, tables, self._pool.clone(launches))
        twin._prefix_cache = self._prefix_cache
        twin._sharing = self._sharing and self._sharing.clone(twin._pool, tables)
        twin._event_log = None if self._event_log is None else self._event_log.clone()
        if twin._pool.index is not None:
            twin._pool.index.events = twin._event_log
        twin._operations = self._operations
        twin._journal = None
        return twin

    def close(self) -> None:
        """Complete the journal, if one is written. A second call does nothing.

        Errors: `OSError` where a part of it could not be written; no file is left then.
        """
        journal, self._journal = self._journal, None
        if journal is not None:
            journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._journal is not None and kind is not None:
            self._journal.abandon()
            self._journal = None
        self.close()

    def _drop(self, row: int) -> Int32Array:
        """Drop a sequence's edges and its planned copy; return the blocks that are free now."""
        tables, pool = self._tables, self._pool
        touched = blocks_needed(tables.launched.item(row), self.block_size)
        source = NO_IDS
        if tables.copying.item(row):  # the target is the last block that launches could have touched, and none has
            tables.copying[row] = False
            touched -= 1
            source = pool.drop_copy(tables.copies.pop(row).source)  # before its parent, if it is published
        freed = pool.drop(tables.blocks(row).astype(np.intp), touched, tables.fences_of(row))
        if source is not NO_IDS:
            freed = np.concatenate((freed, source))
        return freed.astype(np.int32) if freed.size else NO_BLOCKS

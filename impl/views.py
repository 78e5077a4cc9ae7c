"""What can be seen of a cache without changing it: tables, lengths, blocks and their states, launches in flight.

The table itself is handed out as it is, since an engine mirrors it and a device reads it; everything else is a copy or
a value. Where a view costs more than O(1), its docstring says so.
"""

from collections.abc import Callable, Hashable, Mapping

import numpy as np

from . import arguments
from .arguments import Integers, integer
from .arrays import Int32Array, Int64Array
from .block_pool import BlockPool
from .block_tables import BlockTables
from .extension import blocks_to_extend
from .inspect import fingerprint, lengths, pending_of, pending_writes, writes_by_epoch
from .launches import LaunchLog
from .results import Counts, Csr, Launch, Lengths


class CacheViews:
    """The views of a `BlockCache`.

    For kernels: `table`, `block_table`, `csr`. For engines: `sequences`, `row_of`, `lengths`, `live`,
    `blocks_to_extend`, `planned_copies`, `in_flight`, `launches_in_flight`, `launched`, `counts`, `available`. For
    operators: `block_state`, `references`, `holders`, `free_order`. For tests: `fingerprint`.
    """

    _tables: BlockTables
    _pool: BlockPool
    _launches: LaunchLog
    __slots__ = ("_launches", "_pool", "_tables", "block_size", "blocks")

    def __init__(self, tables: BlockTables, pool: BlockPool) -> None:
        self.blocks = pool.blocks
        self.block_size = tables.paging.block_size
        self._tables = tables
        self._pool = pool
        self._launches = pool.launches

    @property
    def table(self) -> Int32Array:
        """The block table, [rows, max_blocks] int32; null behind each row's blocks. Row 0 is all null, for padding."""
        return self._tables.table

    @property
    def launches_in_flight(self) -> int:
        """How many launches may wait for their retirement at a time."""
        return self._launches.limit

    @property
    def counts(self) -> Counts:
        """Blocks by state."""
        pool = self._pool
        return Counts(self.blocks - pool.taken, pool.held, pool.quarantined, pool.idle, self.blocks)

    @property
    def available(self) -> int:
        """How many blocks can be taken now: free ones, and idle ones that no launch in flight may touch."""
        return self._pool.available

    def block_table(self, seq: int) -> Int32Array:
        """Return a sequence's blocks: exactly ceil(allocated / B) of them."""
        return self._tables.blocks(self.row_of(seq)).copy()

    def csr(self, seqs: Integers) -> Csr:
        """Return the rows of a batch one behind the other, as FlashInfer reads them. O(blocks of the batch)."""
        rows = self._tables.names.resolve(arguments.names(seqs)).rows
        lengths = self._tables.allocated[rows]
        ends = np.cumsum(self._tables.paging.blocks_needed(lengths))
        indptr = np.zeros(rows.size + 1, np.int32)
        indptr[1:] = ends
        indices = np.concatenate([np.empty(0, np.int32), *(self._tables.blocks(row) for row in rows.tolist())])
        return Csr(indptr, indices, self._tables.paging.last_block_length(lengths).astype(np.int32))

    def sequences(self) -> list[int]:
        """Return the names of all live sequences, in the order in which they began or last moved. O(sequences)."""
        return list(self._tables.names.row_of)

    def row_of(self, seq: int) -> int:
        """Return which row of the table a sequence has now; copy-on-write may move it."""
        return self._tables.names.row(integer("a sequence name", seq))

    def lengths(self, seq: int) -> Lengths:
        """Return a sequence's lengths. O(launches in flight x their batch), for `written` is worked out here."""
        row = self.row_of(seq)
        return lengths(self._tables, row, pending_of(self._tables, self._launches, row))

    def live(self) -> list[tuple[int, int, Lengths]]:
        """Return (sequence, row, lengths) of all live sequences. O(sequences + launches in flight x their batch)."""
        tables, writes = self._tables, writes_by_epoch(self._launches)
        return [
            (seq, row, lengths(tables, row, pending_writes(tables, row, writes) if writes else []))
            for seq, row in tables.names.row_of.items()
        ]

    def blocks_to_extend(self, seqs: Integers) -> Int64Array:
        """Return for each sequence how many blocks it and all before it take if each is extended by one. O(batch)."""
        return blocks_to_extend(self._tables, self._pool, self._tables.names.resolve(arguments.names(seqs)))

    def planned_copies(self) -> list[tuple[int, int, int, int]]:
        """Return (sequence, source, target, extent) of each copy that is planned and not launched. O(copies)."""
        return [(int(self._tables.names.name_of[row]), *copy) for row, copy in self._tables.copies.items()]

    def in_flight(self) -> list[int]:
        """Return the launches in flight, oldest first."""
        return list(self._launches.in_flight)

    def launched(self, launch_id: int) -> Launch:
        """Return a launch in flight; `KeyError` where it is none."""
        return self._launches.in_flight[launch_id].launch

    def block_state(self, block: int) -> str:
        """Return "free", "held", "idle", "quarantined", or "reserved" for the null block. O(free blocks)."""
        return self._pool.state(self._block(block))

    def references(self, block: int) -> int:
        """Return how many sequences and pins hold a block. O(free blocks)."""
        block = self._block(block)
        return int(self._pool.co_holders[block]) + 1 if self._pool.state(block) == "held" else 0

    def holders(self) -> Int32Array:
        """Return each block's number of holders, [blocks + 1]: sequences and pins. O(blocks)."""
        pool = self._pool
        holders: Int32Array = pool.co_holders + np.int32(1)
        holders[pool.free_ids()] = 0  # their one holder is the pool
        if pool.retention is not None and pool.retention.size:
            holders[pool.retention.order()] = 0
        holders[0] = 0
        return holders

    def free_order(self) -> list[int]:
        """Return the free blocks, next to be taken first. O(free blocks)."""
        order: list[int] = self._pool.free_ids().tolist()
        return order

    def fingerprint(
        self, block: Mapping[int, int], sequence: Mapping[int, int], launch: Callable[[int], int]
    ) -> Hashable:
        """Return all state on which future behaviour depends, with blocks, sequences and launches renamed."""
        return fingerprint(self._tables, self._pool, block, sequence, launch)

    def _block(self, block: int) -> int:
        return integer("a block", block, 0, self.blocks)

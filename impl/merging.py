"""Blocks of several rows that are published, or give way to the published blocks with the same key.

A key has one block. Where an equal prefix is published already, a row is *merged*: its entry becomes the published
block, and its own block is let go (R-EVICT-3). A launch in flight reads its row as it was, so then the sequence moves
to a fresh row, as copy-on-write does.

A row's published blocks are its first ones, and a chain of the index; so whoever holds a block holds its parent.
Forks could break that: of two that share blocks, one merges the first of them and publishes the second, which the
other holds behind its own first. Such a block is left unpublished until the other has merged, too.

Blocks of one holder whose key nobody else can have, which is nearly all of them, are published together, in a dozen
passes over them; hashes decide that alone, since different hashes are different keys. Other rows go one by one, in the
order given. Cost: O(blocks); a row that merges costs some 30 passes over its blocks. Considered: to merge the rows of
all siblings at once (rows that nobody spoke of would change, and all rows would have to be searched).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import idle_blocks
from .arrays import NO_BLOCKS, IndexArray, Int64Array, before, cells
from .block_pool import BlockPool
from .block_tables import BlockTables
from .names import Batch
from .results import NO_EDITS, NO_MERGES, Edits, Merges, Publication
from .sharing import Sharing


class _Cells(NamedTuple):
    """All table entries to be looked at, row by row."""

    blocks: IndexArray
    columns: Int64Array
    hashes: Int64Array
    parents: IndexArray
    salts: Int64Array


class RowsToPublish:
    """One publication: rows with blocks to publish, and what has been done so far."""

    def __init__(
        self,
        tables: BlockTables,
        pool: BlockPool,
        sharing: Sharing,
        batch: Batch,
        places: IndexArray,
        first: Int64Array,
        reach: Int64Array,
        retention: int,
    ) -> None:
        self.tables, self.pool, self.sharing, self.retention = tables, pool, sharing, retention
        self.rows, self.names = batch.rows[places], batch.names[places]
        self.first, self.reach = first, reach
        self.counts = reach - first
        self.starts = before(self.counts)
        self.cells = self._cells()
        self.published = np.zeros(self.cells.blocks.size, bool)
        self.merges: list[tuple[int, int, int, int]] = []
        self.edits: list[tuple[IndexArray, IndexArray]] = []
        self.freed: list[IndexArray] = []

    def publish(self) -> Publication:
        """Publish, together what can be, else row by row."""
        plain = self._plain()
        if plain.all():
            self._insert(slice(None))
            self.sharing.knowledge.published[self.rows] = self.reach
            return Publication(self.cells.blocks.astype(np.int32), NO_MERGES, NO_EDITS, NO_BLOCKS)
        together = np.logical_and.reduceat(plain, self.starts)
        at = np.repeat(together, self.counts)
        self._insert(at)
        self.sharing.knowledge.published[self.rows[together]] = self.reach[together]
        for place in (~together).nonzero()[0].tolist():
            self._publish_row(place)
        return Publication(
            self.cells.blocks[self.published].astype(np.int32),
            _merges(self.merges),
            self._edits(),
            np.concatenate((NO_BLOCKS, *self.freed)).astype(np.int32),
        )

    def _cells(self) -> _Cells:
        """Look at the entries from the first that may be unpublished on; compute their keys' hashes."""
        index, table = self.sharing.index, self.tables.table
        rows, columns = cells(self.rows, self.first, self.counts)
        blocks = table[rows, columns].astype(np.intp)
        salts = self.sharing.knowledge.salts[rows]
        parents = np.empty_like(blocks)
        parents[1:] = blocks[:-1]
        parents[self.starts] = table[self.rows, self.first - 1] * (self.first > 0)
        base = index.hashes[parents[self.starts]]
        for place in (self.first == 0).nonzero()[0].tolist():
            base[place] = index.hash.root(salts.item(self.starts.item(place)))
        hashes = index.hash.chains(index.tokens[blocks], columns, base, self.starts)
        return _Cells(blocks, columns, hashes, parents, salts)

    def _plain(self) -> NDArray[np.bool_]:
        """Return which entries hold unpublished blocks of one holder, with a key that nobody else has or will have."""
        found = self.cells
        plain: NDArray[np.bool_] = self.pool.co_holders[found.blocks] == 0
        plain &= ~self.sharing.index.published[found.blocks]
        plain &= self.sharing.index.all_new(found.hashes)
        if len(set(found.hashes.tolist())) < plain.size:
            _, inverse, counts = np.unique(found.hashes, return_inverse=True, return_counts=True)
            plain &= counts[inverse] == 1
        return plain

    def _insert(self, at: slice | IndexArray | NDArray[np.bool_]) -> None:
        """Publish the blocks of these entries, parents before children."""
        chosen = _Cells(*(column[at] for column in self.cells))
        self.sharing.index.salts[chosen.blocks] = chosen.salts
        self.sharing.index.insert(chosen.blocks, chosen.hashes, chosen.parents, chosen.columns)
        assert self.pool.retention is not None
        self.pool.retention.publish(chosen.blocks, self.retention)
        self.published[at] = True

    def _publish_row(self, place: int) -> None:
        """Merge a row's next blocks with those that are published, and publish the others."""
        index = self.sharing.index
        first, end = self.starts.item(place), self.starts.item(place) + self.counts.item(place)
        while first < end and index.published[self.cells.blocks[first]]:  # by a sibling, with which it is shared
            first += 1
        row = self.rows.item(place)
        if first < end:
            blocks, hashes = self.cells.blocks[first:end], self.cells.hashes[first:end]
            salt, parent = self.cells.salts.item(first), self.cells.parents.item(first)
            found = index.find(index.tokens[blocks], hashes, parent, salt)
            if found.size:
                row = self._merge(place, first, found)
                first += found.size
        if first < end:
            if self.cells.columns[first]:
                self.cells.parents[first] = self.tables.table[row, self.cells.columns[first] - 1]
            if self._held_behind_others(first):
                end = first
            else:
                self._insert(np.arange(first, end))
        self.sharing.knowledge.published[row] = self.first.item(place) + end - self.starts.item(place)

    def _held_behind_others(self, at: int) -> bool:
        """Whether a sequence holds this block behind another one than its parent-to-be. O(rows) if it is shared."""
        block, column = self.cells.blocks.item(at), self.cells.columns.item(at)
        if not column or not self.pool.co_holders.item(block):
            return False
        table, names = self.tables.table, self.tables.names
        holding = (table[:, column] == block) & (table[:, column - 1] != self.cells.parents[at])
        return any(names.row_of.get(names.name_of.item(row)) == row for row in holding.nonzero()[0].tolist())

    def _merge(self, place: int, at: int, found: IndexArray) -> int:
        """Let a row name the published blocks instead of its own; return the row, which may be another one then."""
        tables, pool = self.tables, self.pool
        name, row = self.names.item(place), self.rows.item(place)
        moves = tables.read_in_flight(row, pool.launches)
        if moves:
            tables.make_room(0, 1)
            row = tables.move(name, pool.launches)
        idle_blocks.hold(pool, found)
        old, columns = self.cells.blocks[at : at + found.size], self.cells.columns[at : at + found.size]
        tables.table[row, columns] = found
        length = tables.blocks(row).size
        if columns[-1] == length - 1:
            tables.tail[row] = found[-1]
        self.freed.append(pool.drop(old, old.size, tables.fences[:, row].tolist()))
        self.merges += zip([name] * found.size, columns.tolist(), old.tolist(), found.tolist(), strict=True)
        edited = np.arange(length) if moves else columns
        self.edits.append((np.full(edited.size, row), edited))
        return row

    def _edits(self) -> Edits:
        if not self.edits:
            return NO_EDITS
        rows, columns = (np.concatenate(column) for column in zip(*self.edits, strict=True))
        return Edits(rows.astype(np.int32), columns.astype(np.int32), self.tables.table[rows, columns])


def _merges(merges: list[tuple[int, int, int, int]]) -> Merges:
    """Return merges as arrays."""
    if not merges:
        return NO_MERGES
    seqs, *columns = zip(*merges, strict=True)
    return Merges(np.array(seqs, np.int64), *(np.array(column, np.int32) for column in columns))

"""Blocks of several rows that are published, or give way to the published blocks with the same key.

A key has one block. Where an equal prefix is published already, a row is *merged*: its entry becomes the published
block, and its own block is let go (R-EVICT-3). A launch in flight reads its row as it was, so then the sequence moves
to a fresh row, as copy-on-write does.

A row's published blocks are its first ones, and a chain of the index; so whoever holds a block holds its parent.
Forks could break that: of two that share blocks, one merges the first of them and publishes the second, which the
other holds, or is about to copy, behind its own first. Such a block is left unpublished until the other has merged or
copied, too.

A parent is not evictable before its child (R-EVICT-2): its fences are never below the child's. Whoever leaves from here
on raises both. But what had held the child and left before, it held behind another block, perhaps; so what is published
hands its fences up the chain.

Decoding rows, each with one block of its own behind a block that has no child yet, are published together, in a dozen
passes: nobody can have such a key, but for rows between them that go by themselves. Those go in the order given, and
what stands before them is published before them. Cost: O(blocks); a row that goes by itself costs some 30 passes over
its blocks. Considered: to merge the rows of all siblings at once (rows that nobody spoke of would change, and all rows
would have to be searched).
"""

import numpy as np
from numpy.typing import NDArray

from . import idle_blocks
from .arrays import NO_BLOCKS, IndexArray, Int64Array
from .block_pool import BlockPool
from .block_tables import BlockTables
from .names import Batch
from .results import NO_EDITS, NO_MERGES, Edits, Merges, Publication
from .sharing import Sharing


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
        self.first, self.reach = first, reach  # the blocks to be looked at, row by row
        self.published: dict[int, list[int]] = {}  # place -> blocks
        self.merges: list[tuple[int, int, int, int]] = []
        self.edits: list[tuple[IndexArray, IndexArray]] = []
        self.freed: list[IndexArray] = []

    def publish(self) -> Publication:
        """Publish, together what can be, else row by row."""
        blocks = self.tables.table[self.rows, self.first].astype(np.intp)
        parents = self.tables.table[self.rows, self.first - 1].astype(np.intp)
        plain = self._plain(blocks, parents)
        if np.count_nonzero(plain) == plain.size:
            self._insert_leaves(blocks, parents, self.rows, self.reach)
            return Publication(blocks.astype(np.int32), NO_MERGES, NO_EDITS, NO_BLOCKS)
        together, begin = plain.nonzero()[0], 0
        for place in (~plain).nonzero()[0].tolist():
            end = int(np.searchsorted(together, place))
            self._publish_leaves(together[begin:end], blocks, parents)
            self._publish_row(place)
            begin = end
        self._publish_leaves(together[begin:], blocks, parents)
        return Publication(
            np.array([block for _, row in sorted(self.published.items()) for block in row], np.int32),
            _merges(self.merges),
            self._edits(),
            np.concatenate((NO_BLOCKS, *self.freed)).astype(np.int32),
        )

    def _publish_leaves(self, places: IndexArray, blocks: IndexArray, parents: IndexArray) -> None:
        """Publish the one block of each of these rows, but of those whose parent has got a child meanwhile."""
        if not places.size:
            return
        still = self.sharing.index.childless(parents[places])
        for place in places[~still].tolist():
            self._publish_row(place)
        places = places[still]
        self._insert_leaves(blocks[places], parents[places], self.rows[places], self.reach[places])
        self.published |= {
            place: [block] for place, block in zip(places.tolist(), blocks[places].tolist(), strict=True)
        }

    def _insert_leaves(self, leaves: IndexArray, parents: IndexArray, rows: IndexArray, reach: Int64Array) -> None:
        """Publish a block for each of these rows, behind a parent without a child."""
        self.sharing.index.insert_leaves(leaves, parents)
        self._retain(leaves)
        self.sharing.knowledge.published[rows] = reach  # else they would be looked at again
        if self.pool.fences.newest_held >= self.pool.launches.oldest:
            for row, end in zip(rows.tolist(), reach.tolist(), strict=True):
                cover_chain(self.tables, self.pool, row, end)

    def _plain(self, blocks: IndexArray, parents: IndexArray) -> NDArray[np.bool_]:
        """Return which rows have one block to publish, of theirs alone, with a key that nobody has or will have."""
        pool, index = self.pool, self.sharing.index
        plain: NDArray[np.bool_] = (self.reach - self.first == 1) & (self.first > 0)
        plain &= index.childless(parents)  # so none is published by a sibling: it would be its parent's child
        if pool.copy_readers:
            plain &= ~np.isin(blocks, list(pool.copy_readers))
        if pool.shared_edges:
            plain &= pool.co_holders[blocks] == 0
            if np.count_nonzero(pool.co_holders[parents]):  # else no two of these rows have one parent
                _, inverse, counts = np.unique(parents, return_inverse=True, return_counts=True)
                plain &= counts[inverse] == 1
        return plain

    def _retain(self, blocks: IndexArray) -> None:
        assert self.pool.retention is not None
        self.pool.retention.publish(blocks, self.retention)

    def _publish_row(self, place: int) -> None:
        """Merge a row's next blocks with those that are published, and publish the others."""
        index, row, first, reach = (
            self.sharing.index,
            *(column.item(place) for column in (self.rows, self.first, self.reach)),
        )
        blocks = self.tables.table[row, first:reach].astype(np.intp)
        known = int(np.count_nonzero(index.published[blocks]))  # by a sibling, with which they are shared
        first, blocks = first + known, blocks[known:]
        salt = self.sharing.knowledge.salts.item(row)
        if blocks.size:
            parent = self.tables.table.item(row, first - 1) if first else 0
            found = index.find(index.tokens[blocks], parent, salt)
            if found.size:
                row = self._merge(place, first, blocks[: found.size], found)
                first, blocks = first + found.size, blocks[found.size :]
        if blocks.size:
            parent = self.tables.table.item(row, first - 1) if first else 0
            if not self._held_behind_others(blocks.item(0), first, parent):
                index.insert_chain(blocks, parent, salt)
                self._retain(blocks)
                self.published[place] = blocks.tolist()
                first = reach
                cover_chain(self.tables, self.pool, row, reach)
        self.sharing.knowledge.published[row] = first

    def _held_behind_others(self, block: int, column: int, parent: int) -> bool:
        """Whether a sequence holds this block, or will copy it, behind another one than its parent-to-be.

        O(rows) if it is shared.
        """
        pool = self.pool
        if not column or not (pool.co_holders.item(block) or block in pool.copy_readers):
            return False
        table, names, copies = self.tables.table, self.tables.names, self.tables.copies
        if any(copy.source == block and table.item(row, column - 1) != parent for row, copy in copies.items()):
            return True
        holding = (table[:, column] == block) & (table[:, column - 1] != parent)
        return any(names.row_of.get(names.name_of.item(row)) == row for row in holding.nonzero()[0].tolist())

    def _merge(self, place: int, first: int, old: IndexArray, found: IndexArray) -> int:
        """Let a row name the published blocks instead of its own; return the row, which may be another one then."""
        tables, pool = self.tables, self.pool
        name, row = self.names.item(place), self.rows.item(place)
        moves = tables.read_in_flight(row, pool.launches)
        if moves:
            tables.make_room(0, 1)
            row = tables.move(name, pool.launches)
        idle_blocks.hold(pool, found)
        columns = np.arange(first, first + found.size)
        tables.table[row, columns] = found
        length = tables.blocks(row).size
        if columns[-1] == length - 1:
            tables.tail[row] = found[-1]  # read by nobody before the row grows, for it is full
        self.freed.append(pool.drop(old, old.size, tables.fences_of(row)))
        self.merges += zip([name] * found.size, columns.tolist(), old.tolist(), found.tolist(), strict=True)
        edited = np.arange(length) if moves else columns
        self.edits.append((np.full(edited.size, row), edited))
        return row

    def _edits(self) -> Edits:
        if not self.edits:
            return NO_EDITS
        rows, columns = (np.concatenate(column) for column in zip(*self.edits, strict=True))
        return Edits(rows.astype(np.int32), columns.astype(np.int32), self.tables.table[rows, columns])


def cover_chain(tables: BlockTables, pool: BlockPool, row: int, reach: int) -> None:
    """Give the first `reach` blocks of a row fences no older than those of the blocks behind them. O(reach)."""
    if pool.fences.newest_held >= pool.launches.oldest:  # else they have all retired
        pool.fences.cover(tables.table[row, :reach].astype(np.intp))


def _merges(merges: list[tuple[int, int, int, int]]) -> Merges:
    """Return merges as arrays."""
    if not merges:
        return NO_MERGES
    seqs, *columns = zip(*merges, strict=True)
    return Merges(np.array(seqs, np.int64), *(np.array(column, np.int32) for column in columns))

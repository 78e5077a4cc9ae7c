"""`publish` and the state behind prefix sharing: what is known, what is published, and under which weights.

An engine tells the cache the ids of a step's tokens once it has them. Ids go to the blocks that hold their positions; a
block that is full of known ids, all written by retired launches, is *published*: a later prompt that begins with the
same tokens under the same salt hits it. A key has one block. Where an equal prefix is published already, the row is
*merged*: its entry becomes the published block, and its own block is let go (R-EVICT-3). A launch in flight reads its
row as it was, so then the sequence moves to a fresh row, as copy-on-write does.

A row's published blocks are its first ones, and a chain of the index; so whoever holds a block holds its parent.
Forks could break that: of two that share blocks, one merges the first of them and publishes the second, which the
other holds behind its own first. Such a block is left unpublished until the other has merged, too.

Blocks whose key nobody else can have, which is nearly all of them, are published together, in a dozen passes over them;
hashes decide that alone, since different hashes are different keys. The others go row by row, in the order given.
Cost: O(ids + blocks published), and a pass over the launches in flight to see what is written. Considered: publishing
at `release` only (what a running sequence computed is hit by nobody; its siblings all compute the same prompt).
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import idle_blocks
from .arguments import shown
from .arrays import NO_BLOCKS, NO_IDS, IndexArray, Int32Array, Int64Array, before, cells
from .block_pool import BlockPool
from .block_tables import BlockTables
from .inspect import lengths, pending_of
from .knowledge import Knowledge
from .names import Batch
from .prefix_index import PrefixIndex
from .refusals import BadCount
from .results import NO_EDITS, NO_MERGES, NO_PUBLICATION, Edits, Merges, Publication
from .retention import CLASSES

NEVER = -1  # a weights epoch that never comes: what began under it is not published
FEW = 4  # rows, up to which what is written is asked row by row


@dataclass(slots=True)
class Sharing:
    """What prefix sharing adds to tables and pool."""

    index: PrefixIndex
    knowledge: Knowledge
    weights: int = 0  # the epoch; how often they have changed
    pins: dict[int, IndexArray] = field(default_factory=dict)  # handle -> the blocks it holds

    def pinned(self) -> IndexArray:
        """Return the blocks of all pins, one behind the other."""
        return np.concatenate((NO_IDS, *self.pins.values()))

    def clone(self, pool: BlockPool, tables: BlockTables) -> "Sharing":
        """Return an independent copy over copies of pool and tables."""
        assert pool.index is not None
        assert tables.knowledge is not None
        return Sharing(pool.index, tables.knowledge, self.weights, self.pins.copy())


def publish(
    tables: BlockTables,
    pool: BlockPool,
    sharing: Sharing,
    batch: Batch,
    tokens: Int32Array,
    counts: int | Int64Array,
    retention: int,
) -> Publication:
    """Tell rows their next ids, and publish what is full, known and written; or refuse. O(ids + blocks published)."""
    knowledge, rows = sharing.knowledge, batch.rows
    if rows.size == 1 and isinstance(counts, int):
        return _publish_one(tables, pool, sharing, batch, tokens, retention)
    known = knowledge.known[rows]
    ends: Int64Array = known + counts
    _refuse(bool(np.count_nonzero(ends > tables.allocated[rows])), retention)
    if tokens.size:
        _learn(tables, sharing.index, rows, known, counts, tokens)
        knowledge.known[rows] = ends
    reach, _ = tables.paging.locate(np.minimum(ends, _written(tables, pool, batch)))
    reach[knowledge.weights[rows] != sharing.weights] = 0
    first = knowledge.published[rows]
    places = (reach > first).nonzero()[0]
    if not places.size:
        return NO_PUBLICATION
    return _Work(tables, pool, sharing, batch, places, first[places], reach[places], retention).publish()


def _refuse(too_many: bool, retention: int) -> None:  # noqa: FBT001  (what there is to refuse)
    if too_many:
        raise BadCount("a sequence can be told no more ids than it has positions allocated behind those it knows")
    if not 0 <= retention < CLASSES:
        raise BadCount(f"a retention is 0 to {CLASSES - 1}, not {shown(retention)}")


def _publish_one(
    tables: BlockTables, pool: BlockPool, sharing: Sharing, batch: Batch, tokens: Int32Array, retention: int
) -> Publication:
    """Do the same for one row, mostly a prompt that was computed: integers cost a tenth of arrays of one."""
    knowledge, index, row = sharing.knowledge, sharing.index, batch.rows.item()
    known = knowledge.known.item(row)
    end = known + tokens.size
    _refuse(end > tables.allocated.item(row), retention)
    if tokens.size:
        _learn(tables, index, batch.rows, np.array([known]), tokens.size, tokens)
        knowledge.known[row] = end
    if knowledge.weights.item(row) != sharing.weights:
        return NO_PUBLICATION
    done = _written_of(tables, pool, row) if pool.launches.in_flight else tables.launched.item(row)
    first, reach = knowledge.published.item(row), min(end, done) // tables.paging.block_size
    if reach <= first:
        return NO_PUBLICATION
    blocks = tables.table[row, first:reach].astype(np.intp)
    if not (pool.shared_edges and np.count_nonzero(pool.co_holders[blocks])):
        parent = tables.table.item(row, first - 1) if first else 0
        salt = knowledge.salts.item(row)
        before = index.hashes.item(parent) if first else index.hash.root(salt)
        hashes = index.hash.chain(index.tokens.take(blocks, axis=0), before, first)
        if index.new(hashes.item(0)):
            parents = np.empty_like(blocks)
            parents[0], parents[1:] = parent, blocks[:-1]
            index.insert(blocks, hashes, parents, np.arange(first, reach))
            if not first:
                index.salts[blocks.item(0)] = salt
            assert pool.retention is not None
            pool.retention.publish(blocks, retention)
            knowledge.published[row] = reach
            return Publication(tables.table[row, first:reach].copy(), NO_MERGES, NO_EDITS, NO_BLOCKS)
    whole = np.zeros(1, np.intp), np.array([first]), np.array([reach])
    return _Work(tables, pool, sharing, batch, *whole, retention).publish()


def _learn(
    tables: BlockTables,
    index: PrefixIndex,
    rows: IndexArray,
    known: Int64Array,
    counts: int | Int64Array,
    ids: Int32Array,
) -> None:
    """Write ids to the blocks of their positions. What is published stays as it is (R-COW-4)."""
    positions = known
    if not isinstance(counts, int) or counts != 1:
        rows, positions = cells(rows, known, np.broadcast_to(np.asarray(counts), rows.shape))
    columns, offsets = tables.paging.locate(positions)
    blocks = tables.table[rows, columns]
    fixed = index.published[blocks]
    if np.count_nonzero(fixed):
        blocks, offsets, ids = blocks[~fixed], offsets[~fixed], ids[~fixed]
    index.tokens[blocks, offsets] = ids


def _written(tables: BlockTables, pool: BlockPool, batch: Batch) -> Int64Array:
    """Return how many leading positions of each row retired launches have written. O(batch + rows in flight)."""
    rows, in_flight = batch.rows, pool.launches.in_flight
    done = tables.launched[rows]
    if not in_flight:
        return done
    if rows.size <= FEW:
        return np.array([_written_of(tables, pool, row) for row in rows.tolist()], np.int64)
    pending = np.full(tables.allocated.size, np.iinfo(np.int64).max)  # for each row, the first position in flight
    for flight in in_flight.values():
        launch = flight.launch
        if launch.rows is batch.device_rows:  # the batch that was launched: mostly so
            np.minimum(done, launch.starts, out=done)
        else:
            own = tables.names.epoch_of[launch.rows] == launch.epochs
            at = launch.rows[own]
            pending[at] = np.minimum(pending[at], launch.starts[own])
    np.minimum(done, pending[rows], out=done)
    for place in (tables.born_after[rows] >= pool.launches.oldest).nonzero()[0].tolist():
        done[place] = _written_of(tables, pool, rows.item(place))  # it moved or was forked: others write for it
    return done


def _written_of(tables: BlockTables, pool: BlockPool, row: int) -> int:
    """Return how many leading positions of one row retired launches have written."""
    return lengths(tables, row, pending_of(tables, pool.launches, row)).written


class _Cells(NamedTuple):
    """All table entries to be looked at, row by row."""

    blocks: IndexArray
    columns: Int64Array
    hashes: Int64Array
    parents: IndexArray
    salts: Int64Array


class _Work:
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
        self.sharing.index.insert(chosen.blocks, chosen.hashes, chosen.parents, chosen.columns)
        self.sharing.index.salts[chosen.blocks] = chosen.salts
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

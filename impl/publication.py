"""`publish`: sequences are told their next token ids, and what is full, known and written can be hit from then on.

An engine tells the cache the ids of a step's tokens once it has them. Ids go to the blocks that hold their positions; a
block that is full of known ids, all written by retired launches, is *published*: a later prompt that begins with the
same tokens under the same salt hits it (R-HASH-4).

Three ways to the same effect. One row, mostly a prompt that was computed, whose blocks nobody else has: integers, and
few arrays. Many rows of a decoding batch, of which one in B has filled a block: passes over the batch; what may meet
blocks that others hold or have published goes row by row (both in `merging`).

Cost: O(ids + blocks published), and a pass over the launches in flight to see what is written. Considered: publishing
at `release` only (what a running sequence computed is hit by nobody; its siblings all compute the same prompt).
"""

import numpy as np

from .arguments import shown
from .arrays import NO_BLOCKS, IndexArray, Int32Array, Int64Array, cells
from .block_pool import BlockPool
from .block_tables import BlockTables
from .inspect import lengths, pending_of
from .merging import RowsToPublish, cover_chain
from .names import Batch
from .prefix_index import PrefixIndex
from .refusals import BadCount
from .results import NO_EDITS, NO_MERGES, NO_PUBLICATION, Publication
from .retention import CLASSES
from .sharing import Sharing

FEW = 4  # rows, up to which what is written is asked row by row


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
    known, allocated = knowledge.known[rows], tables.allocated[rows]
    ends: Int64Array = known + counts
    newest = not np.count_nonzero(ends != allocated)  # what is told is all there is, as in each step of decoding
    _refuse(not newest and bool(np.count_nonzero(ends > allocated)), retention)
    if tokens.size:
        if newest and isinstance(counts, int) and counts == 1:
            _learn_newest(tables, sharing.index, rows, known, tokens)
        else:
            _learn(tables, sharing.index, rows, known, counts, tokens)
        knowledge.known[rows] = ends
    reach, _ = tables.paging.locate(np.minimum(ends, _written(tables, pool, batch)))
    first = knowledge.published[rows]
    places = (reach > first).nonzero()[0]
    if not places.size:
        return NO_PUBLICATION
    if places.size == 1:
        place = places.item()
        return _publish_row(tables, pool, sharing, batch, place, first.item(place), reach.item(place), retention)
    return RowsToPublish(tables, pool, sharing, batch, places, first[places], reach[places], retention).publish()


def _refuse(too_many: bool, retention: int) -> None:  # noqa: FBT001  (what there is to refuse)
    if too_many:
        raise BadCount(
            "a sequence can be told no more ids than it has positions allocated behind those it knows"
            " (ids given to `add` are known already)"
        )
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
    done = _written_of(tables, pool, row) if pool.launches.in_flight else tables.launched.item(row)
    first, reach = knowledge.published.item(row), min(end, done) // tables.paging.block_size
    if reach <= first:
        return NO_PUBLICATION
    return _publish_row(tables, pool, sharing, batch, 0, first, reach, retention)


def _publish_row(
    tables: BlockTables,
    pool: BlockPool,
    sharing: Sharing,
    batch: Batch,
    place: int,
    first: int,
    reach: int,
    retention: int,
) -> Publication:
    """Publish these blocks of one row of a batch; or merge them, where some have a key that is there."""
    knowledge, index, row = sharing.knowledge, sharing.index, batch.rows.item(place)
    blocks = tables.table[row, first:reach].astype(np.intp)
    if not pool.copy_readers and not (pool.shared_edges and np.count_nonzero(pool.co_holders[blocks])):
        parent = tables.table.item(row, first - 1) if first else 0
        salt = knowledge.salts.item(row)
        if not index.child(parent, salt, index.tokens[blocks.item(0)]):
            index.insert_chain(blocks, parent, salt)
            assert pool.retention is not None
            pool.retention.publish(blocks, retention)
            cover_chain(tables, pool, row, reach)
            knowledge.published[row] = reach
            return Publication(tables.table[row, first:reach].copy(), NO_MERGES, NO_EDITS, NO_BLOCKS)
    whole = np.array([place]), np.array([first]), np.array([reach])
    return RowsToPublish(tables, pool, sharing, batch, *whole, retention).publish()


def _learn(
    tables: BlockTables,
    index: PrefixIndex,
    rows: IndexArray,
    known: Int64Array,
    counts: int | Int64Array,
    ids: Int32Array,
) -> None:
    """Write ids to the blocks of their positions."""
    positions = known
    if not isinstance(counts, int) or counts != 1:
        rows, positions = cells(rows, known, np.broadcast_to(np.asarray(counts), rows.shape))
    columns, offsets = tables.paging.locate(positions)
    index.tell(tables.table[rows, columns].astype(np.intp), offsets, ids)


def _learn_newest(
    tables: BlockTables, index: PrefixIndex, rows: IndexArray, positions: Int64Array, ids: Int32Array
) -> None:
    """Do so where each row is told the id of its last position: that is in the tail."""
    index.tell(tables.tail[rows], tables.paging.locate(positions)[1], ids)


def _written(tables: BlockTables, pool: BlockPool, batch: Batch) -> Int64Array:
    """Return how many leading positions of each row retired launches have written.

    O(batch + rows in flight), and a pass over all rows of the table where another batch is in flight.
    """
    rows, in_flight = batch.rows, pool.launches.in_flight
    done = tables.launched[rows]
    if not in_flight:
        return done
    if rows.size <= FEW:
        return np.array([_written_of(tables, pool, row) for row in rows.tolist()], np.int64)
    pending: Int64Array | None = None  # for each row of the table, the first position in flight
    for flight in in_flight.values():
        launch = flight.launch
        if launch.rows is batch.device_rows:  # the batch that was launched: mostly so
            np.minimum(done, launch.starts, out=done)
        else:
            if pending is None:
                pending = np.full(tables.allocated.size, np.iinfo(np.int64).max)
            at = launch.rows  # whoever has such a row has had it since the launch: it is used again when none reads it
            pending[at] = np.minimum(pending[at], launch.starts)
    if pending is not None:
        np.minimum(done, pending[rows], out=done)
    for place in (tables.born_after[rows] >= pool.launches.oldest).nonzero()[0].tolist():
        done[place] = _written_of(tables, pool, rows.item(place))  # it moved or was forked: others write for it
    return done


def _written_of(tables: BlockTables, pool: BlockPool, row: int) -> int:
    """Return how many leading positions of one row retired launches have written."""
    return lengths(tables, row, pending_of(tables, pool.launches, row)).written

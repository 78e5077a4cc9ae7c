"""`extend`: room for the next positions of a batch, with copy-on-write; all or nothing.

Two ways to the same effect. Where one position a row is asked for and no row's tail is shared, which is every step of
plain decoding, a row either has room in its tail or takes one block: a handful of passes over the batch. All else goes the general
way. Both find what they need first, refuse if it isn't there, and change state only then (R-TXN-1, R-CAP-1).

Copy-on-write: the block of the first new position is copied if another sequence holds it. Rows see the effect of the rows before
them, so of the r holders and k writers of one tail the first min(k, r - 1) in batch order copy, and a last holder writes in
place (R-COW-2). The copy is planned: it reads its source until a launch takes it along or its sequence leaves.
"""

from typing import NamedTuple

import numpy as np

from .arrays import NO_BLOCKS, IndexArray, Int64Array
from .block_pool import BlockPool
from .block_tables import BlockTables, PlannedCopy
from .names import Batch
from .refusals import BadCount, NoSpace, TooLong
from .results import NO_COPIES, Copies, Edits, Extension

NO_EDITS = Edits(NO_BLOCKS, NO_BLOCKS, NO_BLOCKS)


def extend(tables: BlockTables, pool: BlockPool, batch: Batch, counts: int | Int64Array, operation: int) -> Extension:
    """Grow each row by its count of positions. O(batch + positions), as a few passes of numpy."""
    most = counts if isinstance(counts, int) else int(counts.max())
    if (counts if isinstance(counts, int) else counts.min()) < 1:
        raise BadCount("every row must be extended by at least 1 position")
    if most > pool.blocks * tables.paging.block_size:
        raise TooLong(f"a row cannot be extended by {most} positions: the whole pool has {pool.blocks} blocks")
    if most == 1:
        by_one = _extend_by_one(tables, pool, batch, operation)
        if by_one is not None:
            return by_one
    return _extend(tables, pool, batch, np.broadcast_to(np.asarray(counts), batch.rows.shape), operation)


def _extend_by_one(tables: BlockTables, pool: BlockPool, batch: Batch, operation: int) -> Extension | None:
    """Extend by one position each; None, and nothing changed, where a row must copy its tail first."""
    paging, rows = tables.paging, batch.rows
    length = tables.allocated[rows]
    index, offset = paging.locate(length)
    full = offset == 0
    if pool.shared_edges and np.count_nonzero((pool.references[tables.tail[rows]] > 1) & ~full):
        return None
    growing = full.nonzero()[0]
    blocks, edits = NO_BLOCKS, NO_EDITS
    if growing.size:
        grown_rows, columns = rows[growing], index[growing]
        _refuse_without_space(pool, growing.size, int(columns.max()) + 1)
        tables.make_columns(int(columns.max()) + 1)
        taken = pool.take_to_grow(growing.size, operation)
        tables.table[grown_rows, columns] = taken
        tables.tail[grown_rows] = taken
        blocks = taken.astype(np.int32)
        edits = Edits(batch.device_rows[growing], columns.astype(np.int32), blocks)
    slots = tables.tail[rows]
    slots *= paging.block_size
    slots += offset
    length += 1
    tables.allocated[rows] = length
    return Extension(slots, edits, NO_COPIES, blocks)


class _Plan(NamedTuple):
    """What a batch needs, row by row."""

    length: Int64Array  # allocated so far
    after: Int64Array  # allocated then
    have: Int64Array  # blocks so far
    growth: Int64Array  # blocks to take behind them
    copying: IndexArray  # places in the batch of the rows that copy their tail
    first: Int64Array  # where a row's blocks begin among all that are taken


def _extend(tables: BlockTables, pool: BlockPool, batch: Batch, counts: Int64Array, operation: int) -> Extension:
    """Extend the general way: counts of any size, and copy-on-write."""
    plan = _plan(tables, pool, batch, counts)
    total = int(plan.growth.sum()) + plan.copying.size
    most = int((plan.have + plan.growth).max())
    _refuse_without_space(pool, total, most)
    tables.make_columns(most)
    taken = pool.take_to_grow(total, operation).copy()

    targets = taken[plan.first[plan.copying]]
    copies = _plan_copies(tables, pool, batch, plan, targets) if plan.copying.size else NO_COPIES
    rows, moved = _make_writeable(tables, pool, batch, plan.copying)
    tables.table[rows[plan.copying], plan.have[plan.copying] - 1] = targets

    grows = np.ones(total, bool)
    grows[plan.first[plan.copying]] = False
    grown_rows = np.repeat(rows, plan.growth)
    columns = np.repeat(plan.have - _before(plan.growth), plan.growth) + np.arange(grown_rows.size)
    tables.table[grown_rows, columns] = taken[grows]

    tables.allocated[rows] = plan.after
    last, _ = tables.paging.locate(plan.after - 1)
    tables.tail[rows] = tables.table[rows, last]
    for place, source, target, extent in zip(
        plan.copying.tolist(), copies.sources.tolist(), copies.targets.tolist(), copies.extents.tolist(), strict=True
    ):
        tables.copies[int(rows[place])] = PlannedCopy(source, target, extent)
        tables.copying[rows[place]] = True
    edits = _edits(tables, rows, plan, moved)
    return Extension(_slots(tables, rows, plan, counts), edits, copies, taken.astype(np.int32))


def _plan(tables: BlockTables, pool: BlockPool, batch: Batch, counts: Int64Array) -> _Plan:
    length = tables.allocated[batch.rows]
    after = length + counts
    have = tables.paging.blocks_needed(length)
    growth = tables.paging.blocks_needed(after) - have
    copying = _copying(tables, pool, batch.rows, length)
    taking = growth.copy()
    taking[copying] += 1
    return _Plan(length, after, have, growth, copying, _before(taking))


def _copying(tables: BlockTables, pool: BlockPool, rows: IndexArray, length: Int64Array) -> IndexArray:
    """Return the places of the rows that must copy: the first min(k, r - 1) writers of each shared tail."""
    _, offset = tables.paging.locate(length)
    writers = ((pool.references[tables.tail[rows]] > 1) & (offset > 0)).nonzero()[0]
    tails = tables.tail[rows[writers]]
    order = np.argsort(tails, kind="stable")
    _, starts, sizes = np.unique(tails[order], return_index=True, return_counts=True)
    rank = np.empty(writers.size, np.intp)  # how many writers of the same tail come before
    rank[order] = np.arange(writers.size) - np.repeat(starts, sizes)
    return writers[rank < pool.references[tails] - 1]


def _plan_copies(tables: BlockTables, pool: BlockPool, batch: Batch, plan: _Plan, targets: IndexArray) -> Copies:
    """Let go of the tails that are copied, and keep them as sources."""
    rows = batch.rows[plan.copying]
    sources = tables.tail[rows]
    _, extents = tables.paging.locate(plan.length[plan.copying])
    pool.plan_copies(sources, tables.fences[:, rows])
    return Copies(
        batch.names[plan.copying], sources.astype(np.int32), targets.astype(np.int32), extents.astype(np.int32)
    )


def _make_writeable(
    tables: BlockTables, pool: BlockPool, batch: Batch, copying: IndexArray
) -> tuple[IndexArray, IndexArray]:
    """Move the copying sequences whose row a launch in flight reads; return all rows, and the places of those that moved."""
    rows = batch.rows
    moved: list[int] = []
    for place in copying.tolist():
        if tables.read_in_flight(int(rows[place]), pool.launches):
            rows = rows if moved else rows.copy()
            rows[place] = tables.move(int(batch.names[place]), pool.launches)
            moved.append(place)
    return rows, np.array(moved, np.intp)


def _edits(tables: BlockTables, rows: IndexArray, plan: _Plan, moved: IndexArray) -> Edits:
    """Return what changed: moved rows in full, of others the copied tail and the growth behind."""
    first = plan.have.copy()
    first[plan.copying] -= 1
    first[moved] = 0
    changed = plan.have + plan.growth - first
    edited = np.repeat(rows, changed)
    columns = np.repeat(first - _before(changed), changed) + np.arange(edited.size)
    return Edits(edited.astype(np.int32), columns.astype(np.int32), tables.table[edited, columns])


def _slots(tables: BlockTables, rows: IndexArray, plan: _Plan, counts: Int64Array) -> Int64Array:
    """Return the slots of all new positions, in batch order."""
    repeated = np.repeat(rows, counts)
    positions = np.repeat(plan.length - _before(counts), counts) + np.arange(repeated.size)
    index, offset = tables.paging.locate(positions)
    slots: Int64Array = tables.table[repeated, index].astype(np.int64) * tables.paging.block_size + offset
    return slots


def _before(counts: Int64Array) -> Int64Array:
    """Return for each row the sum of the counts before it."""
    return np.cumsum(counts) - counts


def _refuse_without_space(pool: BlockPool, need: int, longest: int) -> None:
    """Refuse a batch that needs more blocks than there are. A row that outgrows the whole pool always needs more."""
    if need <= pool.available:
        return
    if longest > pool.blocks:
        raise TooLong(f"a row of {longest} blocks is longer than the whole pool of {pool.blocks}")
    raise NoSpace(f"{need} blocks are needed and {pool.available} are available")

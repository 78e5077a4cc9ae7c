"""`extend`: room for the next positions of a batch, with copy-on-write; all or nothing.

Two ways to the same effect. Where one position a row is asked for and no row's tail is shared, which is every step of
plain decoding, a row either has room in its tail or takes one block: a dozen passes over the batch. All else goes the
general way. Both find first what they need, refuse if it isn't there, and change state only then (R-TXN-1, R-CAP-1).

Copy-on-write: the block of the first new position is copied if another sequence holds it, too. Rows see the effect of
the rows before them, so of the r holders and k writers of one tail the first min(k, r - 1) in batch order copy it, and
a last holder writes in place (R-COW-2). The copy is planned: it reads its source until a launch takes it along or its
sequence leaves. Source: copy-on-write of KV blocks, Kwon et al. (SOSP 2023).
"""

from typing import NamedTuple

import numpy as np

from .arguments import shown
from .arrays import NO_BLOCKS, NO_IDS, IndexArray, Int64Array, before, cells
from .block_pool import BlockPool
from .block_tables import BlockTables, PlannedCopy
from .names import Batch
from .refusals import BadCount, NoSpace, TooLong
from .results import NO_COPIES, NO_EDITS, Copies, Edits, Extension


def extend(tables: BlockTables, pool: BlockPool, batch: Batch, counts: int | Int64Array, operation: int) -> Extension:
    """Grow each row of a batch that isn't empty by its count of positions, or refuse. O(batch + positions)."""
    least, most = (counts, counts) if isinstance(counts, int) else (int(counts.min()), int(counts.max()))
    if least < 1:
        raise BadCount(f"every row must be extended by at least 1 position, not {shown(least)}")
    if most > pool.blocks * tables.paging.block_size:  # what is larger could overflow, too
        raise TooLong(f"a row cannot be extended by {shown(most)} positions: the whole pool has {pool.blocks} blocks")
    if most == 1:
        extension = _extend_by_one(tables, pool, batch, operation)
        if extension is not None:
            return extension
    return _extend(tables, pool, batch, np.full(batch.rows.size, counts), operation)


def blocks_to_extend(tables: BlockTables, pool: BlockPool, batch: Batch) -> Int64Array:
    """Return for each row how many blocks it and all rows before it take if each is extended by one. O(batch).

    What `extend` would take, told without taking it, for every batch that begins like this one.
    """
    length = tables.allocated[batch.rows]
    _, offset = tables.paging.locate(length)
    taking = offset == 0
    if pool.shared_edges:
        taking[_copying(tables, pool, batch.rows, length)] = True
    return np.cumsum(taking)


def _extend_by_one(tables: BlockTables, pool: BlockPool, batch: Batch, operation: int) -> Extension | None:
    """Extend by one position each; None, and nothing changed, where a row must copy its tail first."""
    rows = batch.rows
    length = tables.allocated[rows]
    index, offset = tables.paging.locate(length)
    full = offset == 0
    if pool.shared_edges and np.count_nonzero((pool.co_holders[tables.tail[rows]] > 0) & ~full):
        return None
    growing = full.nonzero()[0]
    blocks, edits = NO_BLOCKS, NO_EDITS
    if growing.size:
        grown_rows, columns = rows[growing], index[growing]
        if growing.size > pool.available or np.count_nonzero(columns >= tables.columns):
            longest = int(columns.max()) + 1
            _refuse_without_space(pool, growing.size, longest)
            tables.make_room(longest)
        taken = pool.take_to_grow(growing.size, operation)
        tables.table[grown_rows, columns] = taken
        tables.tail[grown_rows] = taken
        blocks = taken.astype(np.int32)
        edits = Edits(batch.device_rows[growing], columns.astype(np.int32), blocks)
    slots = tables.tail[rows]
    slots *= tables.paging.block_size
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
    moving: IndexArray  # those of them whose row a launch in flight reads
    targets: IndexArray  # where the copies' targets stand among all blocks that are taken: each before its row's growth


def _extend(tables: BlockTables, pool: BlockPool, batch: Batch, counts: Int64Array, operation: int) -> Extension:
    """Extend the general way: counts of any size, and copy-on-write."""
    plan = _plan(tables, pool, batch, counts)
    total = int(plan.growth.sum()) + plan.copying.size
    longest = int((plan.have + plan.growth).max())
    _refuse_without_space(pool, total, longest)
    tables.make_room(longest, plan.moving.size)

    taken = pool.take_to_grow(total, operation).copy() if total else NO_IDS
    rows = batch.rows.copy()
    for place in plan.moving.tolist():
        rows[place] = tables.move(int(batch.names[place]), pool.launches)
    copies, edits, growth = NO_COPIES, NO_EDITS, taken
    if plan.copying.size:
        copies = _copy_tails(tables, pool, batch, rows, plan, taken)
        behind = np.ones(total, bool)
        behind[plan.targets] = False
        growth = taken[behind]
    if total:
        new = cells(rows, plan.have, plan.growth)
        tables.table[new] = growth
        edits = _edits(tables, _cells_changed(rows, plan) if plan.copying.size else new)
    tables.allocated[rows] = plan.after
    tables.tail[rows] = tables.table[rows, plan.have + plan.growth - 1]
    return Extension(_slots(tables, rows, plan.length, counts), edits, copies, taken.astype(np.int32))


def _plan(tables: BlockTables, pool: BlockPool, batch: Batch, counts: Int64Array) -> _Plan:
    length = tables.allocated[batch.rows]
    after = length + counts
    have = tables.paging.blocks_needed(length)
    growth = tables.paging.blocks_needed(after) - have
    copying = _copying(tables, pool, batch.rows, length)
    if not copying.size:
        return _Plan(length, after, have, growth, NO_IDS, NO_IDS, NO_IDS)
    moving = [place for place in copying.tolist() if tables.read_in_flight(int(batch.rows[place]), pool.launches)]
    taking = growth.copy()
    taking[copying] += 1
    return _Plan(length, after, have, growth, copying, np.array(moving, np.intp), before(taking)[copying])


def _copying(tables: BlockTables, pool: BlockPool, rows: IndexArray, length: Int64Array) -> IndexArray:
    """Return the places of the rows that must copy: the first min(k, r - 1) writers of each shared tail."""
    if not pool.shared_edges:
        return NO_IDS
    _, offset = tables.paging.locate(length)
    writers = ((pool.co_holders[tables.tail[rows]] > 0) & (offset > 0)).nonzero()[0]
    if writers.size < 2:
        return writers
    tails = tables.tail[rows[writers]]
    order = np.argsort(tails, kind="stable")
    in_order = tails[order]
    rank = np.empty(writers.size, np.intp)  # how many writers of the same tail come before
    rank[order] = np.arange(writers.size) - in_order.searchsorted(in_order)
    return writers[rank < pool.co_holders[tails]]


def _copy_tails(
    tables: BlockTables, pool: BlockPool, batch: Batch, rows: IndexArray, plan: _Plan, taken: IndexArray
) -> Copies:
    """Replace the tails that are copied, and plan the copies: the old tails are let go and kept as sources."""
    copiers = rows[plan.copying]
    sources, targets = tables.tail[copiers], taken[plan.targets]
    _, extents = tables.paging.locate(plan.length[plan.copying])
    pool.plan_copies(sources)
    tables.table[copiers, plan.have[plan.copying] - 1] = targets
    tables.copying[copiers] = True
    if pool.index is not None:
        pool.index.tokens[targets] = pool.index.tokens[sources]
    for row, *copy in zip(copiers.tolist(), sources.tolist(), targets.tolist(), extents.tolist(), strict=True):
        tables.copies[row] = PlannedCopy(*copy)
    blocks = (array.astype(np.int32) for array in (sources, targets, extents))
    return Copies(batch.names[plan.copying], *blocks)


def _cells_changed(rows: IndexArray, plan: _Plan) -> tuple[IndexArray, Int64Array]:
    """Return where the table changed: rows that moved in full, of the others a copied tail and the growth behind."""
    first = plan.have.copy()
    first[plan.copying] -= 1
    first[plan.moving] = 0
    return cells(rows, first, plan.have + plan.growth - first)


def _edits(tables: BlockTables, changed: tuple[IndexArray, Int64Array]) -> Edits:
    """Return what stands in cells of the table now."""
    rows, columns = changed
    return Edits(rows.astype(np.int32), columns.astype(np.int32), tables.table[changed])


def _slots(tables: BlockTables, rows: IndexArray, length: Int64Array, counts: Int64Array) -> Int64Array:
    """Return the slots of all new positions, in batch order."""
    repeated, positions = cells(rows, length, counts)
    index, offset = tables.paging.locate(positions)
    return tables.paging.slot(tables.table[repeated, index].astype(np.int64), offset)


def _refuse_without_space(pool: BlockPool, need: int, longest: int) -> None:
    """Refuse a batch that needs more blocks than there are. A row that outgrows the whole pool always does."""
    if need <= pool.available:
        return
    if longest > pool.blocks:
        raise TooLong(f"a row of {longest} blocks is longer than the whole pool of {pool.blocks}")
    raise NoSpace(f"no space: blocks needed {need}, available {pool.available}")

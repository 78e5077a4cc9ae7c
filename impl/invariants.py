"""`check()`: every invariant of the implementation's state, in order, each with its sentence.

It walks everything and trusts nothing that it can count again: holders from the rows, waiting blocks from the launches,
readers from the plan. It is for tests, and for the day when something looks wrong; in use, counters are compared after
each operation. Cost: O(blocks + table + rows in flight).
"""

from collections import Counter

import numpy as np

from .arrays import NO_IDS, IndexArray
from .block_pool import UNHELD, BlockPool
from .block_tables import BlockTables
from .inspect import blocks_touched
from .names import NOBODY


class CorruptState(AssertionError):  # noqa: N818  (it says what the state is)
    """An invariant does not hold: the cache has a bug, or somebody has written into its arrays."""


def check(tables: BlockTables, pool: BlockPool, pinned: IndexArray = NO_IDS) -> None:
    """Walk everything; raise `CorruptState` with the first invariant that does not hold.

    `pinned` are the blocks of all pins, one behind the other. What prefix sharing adds, `sharing_invariants` walks.
    """
    _check_states(pool)
    _check_holders(tables, pool, pinned)
    _check_waiting(pool)
    _check_rows(tables)
    _check_names(tables)
    _check_free_rows(tables, pool)
    _check_plan(tables, pool)
    _check_launches(pool)
    _check_lifetimes(tables, pool)


def must(holds: bool, sentence: str) -> None:  # noqa: FBT001  (reads as the sentence it is)
    """Raise `CorruptState` with a sentence that does not hold."""
    if not holds:
        raise CorruptState(sentence)


def _check_states(pool: BlockPool) -> None:
    free = pool.free_ids()
    # A free block is on the stack once, and the null block never.
    must(np.unique(free).size == free.size, "R-OWN-1: a block is on the free stack twice")
    must(bool(((free >= 1) & (free <= pool.blocks)).all()), "R-OWN-1: the free stack has an id that is no block")
    # A free block, and the null block, have one holder: the pool.
    must(not pool.co_holders[free].any(), "R-OWN-1: a block on the free stack is shared or quarantined")
    must(pool.co_holders[0] == 0, "R-OWN-1: the null block is shared or quarantined")
    # No launch in flight may touch it.
    must(not pool.fences.pending()[free].any(), "R-LIFE-1: a block on the free stack is fenced by a launch in flight")
    # The counters are those of a walk: what is neither free nor quarantined nor idle is held.
    unheld = pool.co_holders == UNHELD
    fenced = 0 if pool.index is None else np.count_nonzero(unheld & pool.index.published)
    quarantined = np.count_nonzero(unheld) - fenced
    idle = fenced if pool.retention is None else fenced + pool.retention.size
    must(pool.quarantined == quarantined, f"R-OWN-5: blocks quarantined {quarantined}, counted {pool.quarantined}")
    must(pool.idle == idle, f"R-OWN-5: blocks idle {idle}, counted {pool.idle}")
    held = pool.blocks - free.size - quarantined - idle
    must(pool.held == held, f"R-OWN-5: blocks held {held}, counted {pool.held}")


def _check_holders(tables: BlockTables, pool: BlockPool, pinned: IndexArray) -> None:
    holders: Counter[int] = Counter(pinned.tolist())
    for row in tables.names.row_of.values():
        holders.update(set(tables.blocks(row).tolist()))
    others = np.zeros_like(pool.co_holders)
    others[list(holders)] = np.fromiter(holders.values(), np.int32, len(holders)) - 1
    # A block has as many holders as rows and pins name it; a quarantined or idle one has none.
    wrong = np.flatnonzero((pool.co_holders != others) & (pool.co_holders != UNHELD))
    must(not wrong.size, f"R-OWN-2: the counts of holders of blocks {wrong.tolist()[:5]} are wrong")
    # A free block stands in no row; so what is held is what rows name, and no block is lost (R-OWN-4).
    must(not holders.keys() & set(pool.free_ids().tolist()), "R-OWN-1: a free block stands in a row")
    must(len(holders) == pool.held, f"R-OWN-4: blocks held {pool.held}, named by rows and pins {len(holders)}")
    # Edges beyond a block's first are counted, since 0 of them is what lets a step skip copy-on-write.
    shared = holders.total() - len(holders)
    must(pool.shared_edges == shared, f"R-OWN-5: edges shared {shared}, counted {pool.shared_edges}")


def _check_waiting(pool: BlockPool) -> None:
    waiting: Counter[int] = Counter()
    for flight in pool.launches.in_flight.values():
        for block in (block for ids in flight.waiting_blocks for block in ids.tolist()):
            waiting[block] += 1
            # It waits for the first launch in flight among its fences.
            first = next((fence for fence in pool.fences.of(block) if fence), None)
            must(first == flight.launch.id, f"R-LIFE-4: block {block} waits for {flight.launch.id}, not {first}")
    parked = {block for block in pool.copy_readers if pool.co_holders[block] == UNHELD}
    unheld = pool.co_holders == UNHELD
    kept = set(np.flatnonzero(unheld).tolist())
    # A quarantined block waits for one launch, or for a planned copy; nothing else waits.
    must(waiting.total() == len(waiting), "R-LIFE-4: a block waits for two launches at a time")
    must(not parked & waiting.keys(), "R-LIFE-8: a block that a planned copy reads waits for a launch")
    must(parked | waiting.keys() == kept, "R-LIFE-4: what is quarantined and what waits are not the same")


def _check_rows(tables: BlockTables) -> None:
    for name, row in tables.names.row_of.items():
        allocated, launched = int(tables.allocated[row]), int(tables.launched[row])
        blocks = tables.blocks(row)
        # What a kernel sees: exactly ceil(allocated / B) blocks, and null behind them.
        must(0 <= launched <= allocated, f"R-CAP-2: sequence {name} has launched {launched} of {allocated} positions")
        must(bool((blocks > 0).all()), f"R-TAB-1: a null block stands inside the row of sequence {name}")
        must(not tables.table[row, blocks.size :].any(), f"R-TAB-1: something stands behind the row of {name}")
        must(int(tables.tail[row]) == blocks[-1], f"R-TAB-1: sequence {name} ends in another block than its tail")
        must(np.unique(blocks).size == blocks.size, f"R-OWN-2: a block stands twice in the row of sequence {name}")
    must(not tables.table[NOBODY].any(), "R-TAB-2: the null row is not null")


def _check_names(tables: BlockTables) -> None:
    rows = list(tables.names.row_of.values())
    must(len(set(rows)) == len(rows) and NOBODY not in rows, "R-OWN-1: two sequences have one row")
    homes = tables.names.homes()
    for name, row in tables.names.row_of.items():
        must(int(tables.names.name_of[row]) == name, f"the row of sequence {name} bears another name")
    for home, row in homes.items():
        name = int(tables.names.name_of[row])
        # A home points to a live row whose name it is the home of, so that a stale name is never met.
        must(tables.names.row_of.get(name) == row, f"home {home} points to row {row}, which is not live")
        must(tables.names.home(name) == home, f"home {home} is not the home of sequence {name}")


def _check_free_rows(tables: BlockTables, pool: BlockPool) -> None:
    free = tables.free_rows
    waiting = [row for flight in pool.launches.in_flight.values() for row in flight.waiting_rows]
    everything = [NOBODY, *free, *waiting, *tables.names.row_of.values()]
    # A row is nobody's, free, waiting or a sequence's; a free one is clear.
    must(sorted(everything) == list(range(tables.allocated.size)), "R-LIFE-6: a row is lost, or has two owners")
    must(not tables.table[free].any(), "R-LIFE-6: a free row was not cleared")


def _check_plan(tables: BlockTables, pool: BlockPool) -> None:
    readers = Counter(copy.source for copy in tables.copies.values())
    must(readers == Counter(pool.copy_readers), "R-LIFE-8: the planned copies and the count of their readers differ")
    must(
        sorted(tables.copies) == np.flatnonzero(tables.copying).tolist(), "R-LIFE-8: the rows that copy are not marked"
    )
    free = set(pool.free_ids().tolist())
    for row, copy in tables.copies.items():
        index, extent = tables.paging.locate(int(tables.launched[row]))
        # A planned copy fills the block in which its sequence writes on, up to where it writes on.
        must(row in tables.names.row_of.values(), f"R-LIFE-8: {copy} is planned for a sequence that has left")
        must(
            int(tables.table[row, index]) == copy.target and extent == copy.extent,
            f"R-COW-3: {copy} does not fit its row",
        )
        must(pool.co_holders[copy.target] == 0, f"R-COW-1: the target of {copy} has not one holder")
        must(copy.source not in free, f"R-LIFE-8: the source of {copy} is free")


def _check_launches(pool: BlockPool) -> None:
    launches = pool.launches
    # Launches in flight are in order of submission, and none of them is at or below its stream's retired mark.
    must(list(launches.in_flight) == sorted(launches.in_flight), "R-LIFE-2: launches in flight are out of order")
    must(len(launches.in_flight) <= launches.limit, "more launches are in flight than there may be")
    for flight in launches.in_flight.values():
        mark = launches.retired[flight.launch.stream]
        must(
            mark < flight.launch.id <= launches.issued, f"R-LIFE-4: launch {flight.launch.id} has retired and not left"
        )
        must(
            flight.clock[flight.launch.stream] == flight.launch.id,
            f"R-LIFE-2: launch {flight.launch.id} is not on its clock",
        )


def _check_lifetimes(tables: BlockTables, pool: BlockPool) -> None:
    readers: dict[int, list[int]] = {}
    for flight in pool.launches.in_flight.values():
        for block in blocks_touched(tables, flight):
            readers.setdefault(block, []).append(flight.launch.id)
    free = set(pool.free_ids().tolist())
    # What the device may still touch is not free, and what waits waits long enough.
    for block, launch_ids in readers.items():
        must(block not in free, f"R-LIFE-1: block {block} is free and launch {launch_ids[0]} may touch it")
        if pool.co_holders[block] == UNHELD:  # also of an idle block, until it is held again
            for launch_id in launch_ids:
                stream = pool.launches.in_flight[launch_id].launch.stream
                enough = pool.fences.of(block)[stream] >= launch_id
                must(enough, f"R-LIFE-1: block {block} does not wait for launch {launch_id}, which may touch it")

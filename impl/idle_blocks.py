"""Idle blocks: published, held by nobody, and kept for the next prompt that begins like theirs.

What happens to them: a hit holds them again, in whichever way they wait (`hold`); where no block is free the one that
is worth least is evicted (`BlockPool.take`); and when the weights change nothing is published any more
(`unpublish_all`). A block that a launch in flight may still touch is hit like any other, since reading what others
read is no conflict, but it is not evicted: it waits for its fences, and is evictable when these have retired.

Cost: O(blocks) of what is hit; a hit of blocks that wait also costs a pass over what waits with them.
"""

import numpy as np

from .arrays import IndexArray
from .block_pool import UNHELD, BlockPool


def evictable_among(pool: BlockPool, ids: IndexArray) -> int:
    """Return how many of these blocks count as available. O(ids)."""
    return 0 if pool.retention is None else int(np.count_nonzero(pool.retention.holds(ids)))


def hold(pool: BlockPool, ids: IndexArray) -> None:
    """Add one holder to each of these distinct published blocks, held or idle. O(ids + blocks that wait)."""
    if not ids.size:
        return
    assert pool.retention is not None, "R-HASH-3: a hit where nothing is published"
    evictable = pool.retention.holds(ids)
    if np.count_nonzero(evictable) < ids.size:
        _hold_others(pool, ids[~evictable])
        ids = ids[evictable]
    pool.retention.remove(ids)
    pool.idle -= ids.size
    pool.held += ids.size


def _hold_others(pool: BlockPool, ids: IndexArray) -> None:
    """Add one holder to published blocks that are held or fenced."""
    fenced = ids[pool.co_holders[ids] == UNHELD]
    pool.share(ids[pool.co_holders[ids] != UNHELD])
    if fenced.size:
        pool.co_holders[fenced] = 0
        pool.idle -= fenced.size
        pool.held += fenced.size
        _wait_no_more(pool, fenced)


def unpublish_all(pool: BlockPool) -> IndexArray:
    """Empty the index: evictable blocks are free, fenced ones quarantined; return what is free now. O(blocks)."""
    assert pool.index is not None
    assert pool.retention is not None
    freed = np.array(pool.retention.order(), np.intp)
    pool.index.clear()
    pool.retention.clear()
    pool.idle -= freed.size
    pool.held += freed.size
    pool.give_back(freed)
    pool.quarantined += pool.idle
    pool.idle = 0
    return freed


def _wait_no_more(pool: BlockPool, ids: IndexArray) -> None:
    """Take fenced blocks, which are held again, from the launches they wait for; their fences stay."""
    pool.fences.newest_held = max(pool.fences.newest_held, pool.launches.issued)
    chosen = np.zeros(pool.blocks + 1, bool)
    chosen[ids] = True
    for flight in pool.launches.in_flight.values():
        if flight.waiting_blocks:
            waiting = np.concatenate(flight.waiting_blocks)
            flight.waiting_blocks[:] = [waiting[~chosen[waiting]]]

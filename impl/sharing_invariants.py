"""`check()`, the part on prefix sharing: index, order of eviction, pins, and what rows know.

Like `invariants` it trusts nothing that it can count or compute again: keys from tokens, children from parents, who
holds a chain from rows and pins. Cost: O(blocks + table).
"""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from .block_pool import UNHELD, BlockPool
from .block_tables import BlockTables
from .invariants import must
from .knowledge import CLOSED
from .prefix_index import PrefixIndex
from .retention import CLASSES, Retention
from .sharing import Sharing


def check_sharing(tables: BlockTables, pool: BlockPool, sharing: Sharing) -> None:
    """Walk everything that prefix sharing adds; raise `CorruptState` with the first invariant that does not hold."""
    assert pool.retention is not None
    _check_index(pool, sharing.index)
    _check_classes(sharing.index, pool.retention)
    _check_eviction(pool, sharing.index, pool.retention)
    _check_chains(tables, sharing)
    _check_knowledge(tables, sharing)


def _check_index(pool: BlockPool, index: PrefixIndex) -> None:
    published = index.published_ids().tolist()
    free = set(pool.free_ids().tolist())
    must(index.entries() == len(published), f"R-HASH-3: {len(published)} published, {index.entries()} in the index")
    keys = set()
    for block in published:
        parent, depth, ancestors = index.parents.item(block), index.depths.item(block), [*_chain(index, block)]
        salt = index.salts.item(ancestors[-1])
        must(block not in free, f"R-HASH-3: block {block} is free and published")
        # Children go before parents, so what is published can be reached from its root.
        must(not parent or index.published.item(parent), f"R-EVICT-2: block {block} is published, its parent is not")
        must(depth == (index.depths.item(parent) + 1 if parent else 0), f"R-HASH-3: block {block} is not at {depth}")
        key = (parent, salt, tuple(index.tokens[block].tolist()))
        must(key not in keys, f"R-HASH-3: block {block} has the key of another block")
        keys.add(key)
        # It is found, by itself and behind its ancestors.
        found = index.child(parent, salt, index.tokens[block])
        must(found == block, f"R-HASH-3: block {found} is found for block {block}")
        chain = index.find(index.tokens[ancestors[::-1]], 0, salt).tolist()
        must(chain == ancestors[::-1], f"R-HASH-3: {chain} is found for the chain of block {block}")


def _chain(index: PrefixIndex, block: int) -> Iterator[int]:
    """Yield a published block and its ancestors."""
    while block:
        yield block
        block = index.parents.item(block)


def _check_classes(index: PrefixIndex, retention: Retention) -> None:
    highest: dict[int, int] = {}
    published = index.published_ids().tolist()
    for block in published:
        for link in _chain(index, block):
            highest[link] = max(highest.get(link, 0), retention.own.item(block))
    children = Counter((index.parents.item(block), highest[block]) for block in published)
    for block in published:
        must(retention.own.item(block) in range(CLASSES), f"R-EVICT-2: block {block} has no retention class")
        effective, heirs = retention.effective.item(block), retention.heirs(block)
        must(effective == highest[block], f"R-EVICT-2: block {block} is not as dear as its dearest descendant")
        right = [children[block, level] for level in range(1, CLASSES)]
        must(heirs == right, f"R-EVICT-2: block {block} has {right} dear children, and {heirs} are counted")


def _check_eviction(pool: BlockPool, index: PrefixIndex, retention: Retention) -> None:
    order = retention.order()
    must(len(set(order)) == len(order) == retention.size, "R-EVICT-1: the evictable blocks are not those counted")
    pending = pool.fences.pending()
    # An evictable block is published, one that anything touches is not evictable, and one that nothing touches is.
    must(bool(index.published[order].all()), "R-EVICT-1: a block is evictable and not published")
    must(not pending[order].any(), "R-EVICT-1: a block is evictable, and a launch in flight may touch it")
    must(not pool.co_holders[order].any(), "R-EVICT-1: a block is evictable and held")
    for block in np.flatnonzero((pool.co_holders == UNHELD) & index.published).tolist():
        must(bool(pending[block]) or block in pool.copy_readers, f"R-EVICT-1: idle block {block} waits for nothing")
    place = {block: at for at, block in enumerate(order)}
    for block in index.published_ids().tolist():
        parent = index.parents.item(block)
        if parent in place:
            # So the head of the lowest queue is a leaf.
            must(block in place, f"R-EVICT-1: block {parent} is evictable, and its child {block} is not")
            must(place[block] < place[parent], f"R-EVICT-2: block {parent} would be evicted before its child {block}")


def _check_chains(tables: BlockTables, sharing: Sharing) -> None:
    index = sharing.index
    holdings = [(f"sequence {name}", tables.blocks(row).tolist()) for name, row in tables.names.row_of.items()]
    holdings += [(f"pin {handle}", blocks.tolist()) for handle, blocks in sharing.pins.items()]
    for holder, blocks in holdings:
        published = [index.published.item(block) for block in blocks]
        # Whoever holds a published block holds its ancestors, as the blocks before it.
        must(published == sorted(published, reverse=True), f"R-EVICT-1: {holder} holds a block and not its parent")
        chain = blocks[: sum(published)]
        parents = [index.parents.item(block) for block in chain]
        must(parents == [0, *chain[:-1]][: len(chain)], f"R-HASH-3: the published blocks of {holder} are no chain")
    for handle, blocks in sharing.pins.items():
        must(bool(index.published[blocks].all()), f"R-EVICT-1: pin {handle} holds what is not published")


def _check_knowledge(tables: BlockTables, sharing: Sharing) -> None:
    knowledge, index = sharing.knowledge, sharing.index
    for name, row in tables.names.row_of.items():
        known, published = knowledge.known.item(row), knowledge.published.item(row)
        must(0 <= known <= tables.allocated.item(row), f"R-CAP-2: sequence {name} knows more than is allocated")
        if published != CLOSED:
            blocks = tables.blocks(row)[:published]
            must(published == blocks.size, f"R-HASH-3: sequence {name} has published more blocks than it has")
            must(bool(index.published[blocks].all()), f"R-HASH-3: sequence {name} takes blocks for published")
            same = not blocks.size or index.salts[blocks[0]] == knowledge.salts[row]
            must(bool(same), f"R-HASH-1: sequence {name} holds blocks of another salt")
            must(known >= blocks.size * index.block_size, f"R-HASH-4: blocks of sequence {name} are published unknown")

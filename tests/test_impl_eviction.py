"""Which idle blocks are evicted, in which order, and which are not: worked out by hand.

Blocks hold 4 tokens. Free blocks are taken lowest first from a fresh pool, and those given back last are taken first.
"""

import numpy as np
import pytest
from pagedkv.impl.refusals import NoSpace

from sharing_helpers import TEN, compute, made, prompt, publish, serve

# ---- eviction -------------------------------------------------------------------------------------------------------


def test_free_blocks_are_taken_before_idle_ones_and_children_before_parents() -> None:
    cache = made()
    serve(cache, 1, TEN)  # 1, 2 idle
    added = cache.add(2, 30)
    assert added.blocks.tolist()[-2:] == [2, 1]
    assert cache.published().size == 0
    assert cache.match(TEN) == 0
    cache.check()


def test_the_least_recently_used_prefix_goes_first() -> None:
    cache = made(8)
    for first in (100, 200, 300):
        serve(cache, 1, prompt(8, first=first))  # blocks 1, 2; 3, 4; 5, 6
    cache.add(2, np.append(prompt(8, first=100), 0))  # uses 1, 2, and 7
    cache.release(2)
    assert cache.add(3, 12).blocks.tolist() == [7, 8, 4]
    assert [cache.match(prompt(9, first=first)) for first in (100, 200, 300)] == [8, 4, 8]
    cache.check()


def test_a_higher_class_goes_later_and_lifts_its_ancestors() -> None:
    cache = made(6)
    serve(cache, 1, prompt(8), retention=0)  # 1, 2
    compute(cache, 1, prompt(12))  # hits 1 and 2, and computes 3
    assert publish(cache, 1, retention=2) == [3]
    cache.release(1)
    serve(cache, 1, prompt(8, first=500), retention=1)  # 4, 5
    assert cache.add(2, 12).blocks.tolist() == [6, 5, 4]  # class 1 goes before all that the class 2 stands on
    cache.release(2)
    cache.check()
    assert cache.add(3, 16).blocks.tolist()[3:] == [3]
    cache.check()
    cache.release(3)
    serve(cache, 4, prompt(4, first=700), retention=1)
    assert cache.add(5, 16).blocks.tolist()[3:] == [2]  # without 3, blocks 1 and 2 are of class 0
    assert cache.match(prompt(9)) == 4
    assert cache.match(prompt(5, first=700)) == 4
    cache.check()


def test_a_published_block_is_not_evicted_while_it_is_held_or_hit_by_the_same_add() -> None:
    cache = made(3)
    serve(cache, 1, prompt(8))  # 1, 2 idle and 3 free
    assert cache.room(prompt(12)) == (1, 1)
    assert cache.add(2, prompt(12)).blocks.tolist() == [1, 2, 3]
    with pytest.raises(NoSpace, match="blocks needed 1, available 0"):
        cache.add(3, [9])
    cache.check()


def test_an_idle_hit_is_not_counted_as_room() -> None:
    cache = made(4)
    serve(cache, 1, prompt(8))  # 1, 2 idle; 3, 4 free
    assert cache.available == 4
    assert cache.room(prompt(16)) == (2, 2)
    assert cache.room(16) == (4, 4)
    cache.add(9, 4)
    assert cache.room(prompt(16)) == (2, 1)
    with pytest.raises(NoSpace):
        cache.add(2, prompt(16))
    assert cache.add(2, 12).blocks.size == 3


def test_extend_evicts_too() -> None:
    cache = made(3)
    serve(cache, 1, prompt(8))
    cache.add(2, 4)
    assert cache.extend([2], 8).blocks.tolist() == [2, 1]
    assert cache.counts == (0, 3, 0, 0, 3)
    cache.check()


def test_a_fenced_block_is_hit_but_neither_available_nor_evicted() -> None:
    cache = made(3)
    compute(cache, 1, prompt(8))
    publish(cache, 1)
    cache.extend([1])
    launch = cache.launch([1])
    assert cache.release(1).tolist() == []
    assert cache.counts == (0, 0, 1, 2, 3)  # block 3 isn't published
    assert cache.available == 0
    assert [cache.block_state(block) for block in range(4)] == ["reserved", "idle", "idle", "quarantined"]
    assert str(cache.who_holds(2)) == (
        "block 2 is idle; published behind block 1; in flight and touching it: launch 2; "
        "not evictable before the retirement of launch 2 on stream 0"
    )
    with pytest.raises(NoSpace):
        cache.add(2, 1)
    assert cache.retire(launch.id).tolist() == [1, 2, 3]
    assert cache.available == 3
    cache.check()


def test_a_fenced_block_that_was_hit_waits_no_more() -> None:
    cache = made(4)
    compute(cache, 1, prompt(8))
    publish(cache, 1)
    launch = cache.launch([1], 1) if cache.extend([1]) else None
    assert launch
    cache.release(1)
    assert cache.add(2, prompt(9)).blocks.tolist() == [1, 2, 4]
    cache.check()
    assert cache.retire(launch.id).tolist() == [3]
    assert [cache.block_state(block) for block in (1, 2, 3, 4)] == ["held", "held", "free", "held"]
    cache.check()


def test_a_hit_of_a_fenced_block_keeps_its_fence() -> None:
    cache = made(4)
    compute(cache, 1, prompt(8))
    publish(cache, 1)
    cache.extend([1])
    launch = cache.launch([1])
    cache.release(1)
    cache.add(2, prompt(9))
    assert cache.release(2).tolist() == [4]  # never launched: yet launch 2 still reads 1 and 2
    assert cache.available == 1
    assert sorted(cache.retire(launch.id).tolist()) == [1, 2, 3]
    cache.check()

"""Weights, pins and tenants; and what is refused: a refusal changes nothing.

Blocks hold 4 tokens. Free blocks are taken lowest first from a fresh pool, and those given back last are taken first.
"""

import numpy as np
import pytest
from pagedkv.impl.cache import BlockCache
from pagedkv.impl.refusals import BadCount, Duplicate, Empty, InvalidArgument, NoSpace, Refused, TooLong, Unknown

from sharing_helpers import NO_TOKENS, TEN, compute, made, prompt, publish, serve

# ---- weights, pins, tenants -----------------------------------------------------------------------------------------


def test_clear_forgets_everything_and_old_sequences_publish_no_more() -> None:
    cache = made()
    serve(cache, 1, prompt(8))  # 1 2 idle
    compute(cache, 2, prompt(12))  # 1 2 held, 3
    publish(cache, 2)
    serve(cache, 3, prompt(4, first=90))  # 4 idle
    cache.pin(7, prompt(4, first=90))
    compute(cache, 4, prompt(4, first=80))  # 5
    publish(cache, 4)
    cache.extend([4])
    launch = cache.launch([4])
    cache.release(4)  # 5 idle and fenced, 6 quarantined
    assert cache.counts == (2, 4, 1, 1, 8)
    assert cache.clear().tolist() == [4]
    assert cache.counts == (3, 3, 2, 0, 8)
    assert cache.pins() == {}
    assert cache.published().size == 0
    cache.extend([2])
    cache.retire(cache.launch([2]).id)
    assert cache.publish([2], [12]).blocks.size == 0
    assert cache.lengths(2).known == 13
    cache.fork(2, 5)
    assert publish(cache, 5) == []
    assert publish(cache, 2) == []
    assert cache.match(prompt(9)) == 0
    cache.check()
    cache.retire(launch.id)
    assert serve(cache, 6, prompt(8)).blocks.size == 2
    cache.check()


def test_a_pin_holds_a_prefix_without_a_sequence() -> None:
    cache = made(4)
    serve(cache, 1, prompt(8))
    assert cache.pin(5, prompt(11)).tolist() == [1, 2]
    assert cache.pin(6, prompt(7)).tolist() == [1]
    assert cache.counts == (2, 2, 0, 0, 4)
    assert cache.references(1) == 2
    assert "held by pin 5, 6" in str(cache.who_holds(1))
    with pytest.raises(NoSpace):
        cache.add(2, 9)
    assert cache.unpin(5).tolist() == [2]
    assert cache.unpin(6).tolist() == [1]
    assert cache.counts == (2, 0, 0, 2, 4)
    cache.check()


def test_a_pin_holds_all_full_blocks_of_its_tokens() -> None:
    cache = made(4)
    serve(cache, 1, prompt(8))
    assert cache.pin(1, prompt(8)).tolist() == [1, 2]  # nothing is left to compute for it


def test_tenants_never_share() -> None:
    cache = made(12)
    serve(cache, 1, TEN, salt=1)
    for salt in (0, 2, -1, 2**63 - 1, -(2**63)):
        assert cache.match(TEN, salt) == 0
        with pytest.raises(Empty):
            cache.pin(1, TEN, salt)
        assert cache.room(TEN, salt) == (3, 12)
    assert cache.match(TEN, 1) == 8
    compute(cache, 2, TEN, salt=2)
    assert publish(cache, 2) == [3, 4]  # though 1 and 2 hold the same tokens
    assert cache.add(3, TEN, 2).hits == 2
    cache.check()


def test_a_salt_goes_with_a_count_too() -> None:
    cache = made()
    cache.add(1, 8, salt=3)
    cache.retire(cache.launch([1], 8).id)
    cache.publish([1], prompt(8), 8)
    assert (cache.match(prompt(9)), cache.match(prompt(9), 3)) == (0, 8)
    cache.check()


def test_a_cache_without_prefix_cache_is_told_ids_and_shares_nothing() -> None:
    cache = made(prefix_cache=False)
    assert serve(cache, 1, TEN).blocks.size == 0
    assert cache.add(2, TEN).hits == 0
    assert cache.lengths(2) == (10, 10, 0, 0)
    assert cache.clear().size == 0
    assert serve(cache, 3, TEN).blocks.size == 0
    cache.check()


def test_a_cache_that_is_told_counts_makes_no_room_for_tokens() -> None:
    cache = made()
    cache.add(1, 9)
    cache.retire(cache.launch([1], 9).id)
    cache.fork(1, 2)
    cache.release(1)
    assert cache._pool.index is None
    assert cache._tables.knowledge is None
    assert cache.match(TEN) == 0
    assert cache.room(TEN) == (3, 5)
    assert cache._pool.index is None


@pytest.mark.parametrize("block_size", [2**58, 2**61 // 5])
def test_what_cannot_be_shared_for_want_of_memory_is_refused(block_size: int) -> None:
    cache = BlockCache(4, block_size)
    with pytest.raises(InvalidArgument, match="no memory for the token ids of 4 blocks"):
        cache.add(1, [1, 2])
    assert cache.add(1, 2).blocks.tolist() == [1]
    cache.check()


def test_a_clone_goes_its_own_way() -> None:
    cache = made(events=True)
    serve(cache, 1, TEN)
    cache.pin(1, TEN)
    twin = cache.clone()
    twin.unpin(1)
    twin.add(2, 32)
    assert twin.match(TEN) == 0
    assert cache.match(TEN) == 8
    twin.clear()
    assert cache.pins()[1].tolist() == [1, 2]
    assert len(cache.events()) == 2
    cache.check()
    twin.check()


# ---- what is refused, and what it changes ---------------------------------------------------------------------------

REFUSED: list[tuple[type[Refused], str, tuple[object, ...]]] = [
    (Duplicate, "add", (1, TEN)),
    (Empty, "add", (9, NO_TOKENS)),
    (TooLong, "add", (9, prompt(200))),
    (NoSpace, "add", (9, prompt(24, first=77))),
    (InvalidArgument, "add", (9, [1, -1])),
    (InvalidArgument, "add", (9, [1, 2**31])),
    (InvalidArgument, "add", (9, [1.5])),
    (InvalidArgument, "add", (9, [[1, 2]])),
    (InvalidArgument, "add", (9, np.array([1, -2], np.int32))),
    (InvalidArgument, "add", (9, np.array([[1, 2]], np.int32))),
    (InvalidArgument, "add", (9, np.array([0.0]))),
    (InvalidArgument, "add", (9, "tokens")),
    (InvalidArgument, "add", (9, [True, False])),
    (InvalidArgument, "add", (9, np.ma.masked_array(TEN, TEN > 5))),
    (InvalidArgument, "add", (9, TEN, 0.5)),
    (InvalidArgument, "add", (9, TEN, 2**63)),
    (Duplicate, "publish", ([1, 1], [1, 2], 1)),
    (Unknown, "publish", ([9], [1], 1)),
    (BadCount, "publish", ([1], [1], 1)),
    (BadCount, "publish", ([1, 2], [1, 2], [0, 2])),
    (BadCount, "publish", ([1], [], 0, 4)),
    (BadCount, "publish", ([1], [], 0, -1)),
    (BadCount, "publish", ([1, 2], [], 0, 4)),
    (InvalidArgument, "publish", ([1], [1, 2], 1)),
    (InvalidArgument, "publish", ([1, 2], [1, 2], [3, -1])),
    (InvalidArgument, "publish", ([1], [-1], 1)),
    (InvalidArgument, "publish", ([1], [1], 1.0)),
    (InvalidArgument, "publish", ([1], [], 0, 0.5)),
    (Duplicate, "pin", (4, TEN)),
    (Empty, "pin", (5, prompt(3))),
    (Empty, "pin", (5, prompt(9, first=5))),
    (InvalidArgument, "pin", ("x", TEN)),
    (InvalidArgument, "pin", (5, [-1] * 8)),
    (Unknown, "unpin", (5,)),
    (InvalidArgument, "unpin", (None,)),
]


@pytest.mark.parametrize(("reason", "operation", "arguments"), REFUSED)
def test_a_refusal_is_one_line_and_changes_nothing(
    reason: type[Refused], operation: str, arguments: tuple[object, ...]
) -> None:
    cache = made()
    compute(cache, 1, TEN)
    publish(cache, 1)
    cache.add(2, 4)
    cache.publish([2], [5, 6, 7], 3)
    cache.pin(4, TEN)

    def state() -> list[object]:
        return [cache.counts, cache.table.tolist(), cache.free_order(), cache.published().tolist(), *cache.live()]

    before = state()
    with pytest.raises(Refused) as refused:
        getattr(cache, operation)(*arguments)
    assert type(refused.value) is reason
    assert len(str(refused.value).splitlines()) == 1
    assert state() == before
    cache.check()

"""Prefix sharing in the implementation's own terms, with expectations worked out by hand.

Blocks hold 4 tokens unless said otherwise. Free blocks are taken lowest first from a fresh pool, and those given back
last are taken first.
"""

import numpy as np
import pytest
from pagedkv.impl.cache import BlockCache
from pagedkv.impl.refusals import BadCount, Duplicate, Empty, InvalidArgument, NoSpace, Refused, TooLong, Unknown

from sharing_helpers import compute, prompt, publish, serve

TEN = prompt(10)  # two full blocks and a half
NO_TOKENS = prompt(0)


def made(blocks: int = 8, **options: object) -> BlockCache:
    return BlockCache(blocks, 4, **options)  # type: ignore[arg-type]


# ---- hits -----------------------------------------------------------------------------------------------------------


def test_a_prompt_hits_the_blocks_of_an_earlier_one() -> None:
    cache = made()
    assert serve(cache, 1, TEN).blocks.tolist() == [1, 2]
    assert cache.counts == (6, 0, 0, 2, 8)
    assert cache.available == 8
    added = cache.add(2, TEN)
    assert (added.blocks.tolist(), added.hits) == ([1, 2, 3], 2)
    assert cache.lengths(2) == (10, 10, 8, 8)
    assert cache.counts == (5, 3, 0, 0, 8)
    cache.check()


def test_what_runs_is_hit_as_well_as_what_has_left() -> None:
    cache = made()
    compute(cache, 1, TEN)
    publish(cache, 1)
    assert cache.add(2, TEN).blocks.tolist() == [1, 2, 4]
    assert [cache.references(block) for block in (1, 2, 3, 4)] == [2, 2, 1, 1]
    assert cache.release(1).tolist() == [3]
    cache.check()


@pytest.mark.parametrize(("length", "hits"), [(1, 0), (4, 0), (5, 1), (8, 1), (9, 2), (12, 2), (13, 2)])
def test_one_token_is_left_to_compute(length: int, hits: int) -> None:
    cache = made()
    serve(cache, 1, TEN)
    other = np.append(TEN[:8], prompt(8, first=900))[:length].astype(np.int32)
    assert cache.match(other) == 4 * hits
    assert cache.add(2, other).hits == hits


def test_a_hit_ends_where_prompts_part() -> None:
    cache = made(16)
    serve(cache, 1, prompt(16))
    parted = prompt(16)
    parted[5] += 1  # in the second block
    assert cache.add(2, parted).hits == 1
    parted[0] += 1
    assert cache.add(3, parted).hits == 0


def test_equal_blocks_behind_different_beginnings_are_different() -> None:
    cache = made(16)
    same = prompt(4, first=50)
    serve(cache, 1, np.concatenate((prompt(4), same)))
    assert cache.match(np.concatenate((same, same))) == 0
    assert cache.match(np.concatenate((prompt(4), same, same))) == 8


def test_ids_are_known_in_every_form_an_engine_has() -> None:
    cache = made()
    serve(cache, 1, TEN)
    forms = [TEN.tolist(), tuple(TEN.tolist()), TEN.astype(np.int64), TEN.astype(np.uint16), np.repeat(TEN, 2)[::2]]
    assert [cache.match(form) for form in forms] == [8] * 5


def test_what_is_not_written_or_not_known_is_not_published() -> None:
    cache = made()
    cache.add(1, TEN)
    assert publish(cache, 1) == []  # nothing launched
    launch = cache.launch([1], 6)
    assert publish(cache, 1) == []  # in flight
    cache.retire(launch.id)
    assert publish(cache, 1) == [1]  # positions 0..5 are written
    cache.add(2, 10)
    cache.retire(cache.launch([2], 10).id)
    assert cache.publish([2], TEN[:7], 7).blocks.tolist() == []  # merged, and 3 known of the second block
    assert cache.publish([2], TEN[7:9], 2).blocks.tolist() == [5]
    cache.check()


def test_a_launch_of_a_parent_writes_for_its_child() -> None:
    cache = made()
    cache.add(1, TEN)
    launch = cache.launch([1], 10)
    cache.fork(1, 2)
    assert publish(cache, 2) == []
    cache.retire(launch.id)
    assert publish(cache, 2) == [1, 2]
    assert publish(cache, 1) == []  # its blocks are the child's, and published
    cache.check()


def test_a_batch_in_flight_is_published_up_to_what_is_written() -> None:
    cache = made(64)
    for seq in range(6):
        cache.add(seq, prompt(8, first=100 * seq))
    cache.retire(cache.launch(range(6), 4).id)
    cache.launch([5, 3, 1], 4)
    blocks = cache.publish(range(6), NO_TOKENS, 0).blocks.tolist()
    assert blocks == [1, 3, 5, 7, 9, 11]
    cache.launch([0, 2, 4], 4)
    cache.retire(2)
    assert cache.publish(range(6), NO_TOKENS, 0).blocks.tolist() == [4, 8, 12]
    cache.check()


def test_decoding_publishes_what_fills_up() -> None:
    cache = made()
    compute(cache, 1, prompt(6))
    for token in range(6, 12):
        cache.extend([1])
        cache.retire(cache.launch([1]).id)
        cache.publish([1], prompt(1, first=token))
    assert cache.published().tolist() == [1, 2, 3]
    assert cache.match(prompt(13)) == 12
    cache.check()


def test_a_copy_on_write_takes_the_known_ids_along() -> None:
    cache = made()
    compute(cache, 1, prompt(6))
    cache.fork(1, 2)
    cache.extend([1, 2], 2)  # 1 copies, 2 writes in place
    cache.retire(cache.launch([1, 2], 2).id)
    cache.publish([1, 2], [6, 7, 60, 70], 2)
    assert cache.match(prompt(9)) == 8
    assert cache.match([0, 1, 2, 3, 4, 5, 60, 70, 8]) == 8
    cache.check()


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
    with pytest.raises(NoSpace, match="1 blocks and 0 are available"):
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


# ---- merges ---------------------------------------------------------------------------------------------------------


def test_equal_prompts_computed_side_by_side_become_one() -> None:
    cache = made()
    compute(cache, 1, TEN)  # 1 2 3
    cache.add(2, 10)  # 4 5 6: added by its count, so it hits nothing
    cache.retire(cache.launch([2], 10).id)
    publish(cache, 1)
    publication = cache.publish([2], TEN, 10)
    assert publication.blocks.tolist() == []
    assert [column.tolist() for column in publication.merges] == [[2, 2], [0, 1], [4, 5], [1, 2]]
    assert publication.freed.tolist() == [4, 5]
    assert cache.block_table(2).tolist() == [1, 2, 6]
    row = cache.row_of(2)
    assert [column.tolist() for column in publication.edits] == [[row, row], [0, 1], [1, 2]]
    assert cache.extend([2]).slots.tolist() == [6 * 4 + 2]
    cache.check()


def test_of_equal_rows_in_one_call_the_first_publishes() -> None:
    cache = made()
    cache.add(1, 8)
    cache.add(2, 8)
    cache.retire(cache.launch([1, 2], 8).id)
    publication = cache.publish([2, 1], [*range(8), *range(8)], 8)
    assert publication.blocks.tolist() == [3, 4]
    assert publication.merges.seqs.tolist() == [1, 1]
    assert cache.block_table(1).tolist() == [3, 4]
    assert cache.extend([1]).slots.tolist() == [4]  # in block 1, free again: the merged tail is full
    cache.check()


def test_a_row_in_flight_is_not_edited() -> None:
    cache = made()
    compute(cache, 1, prompt(8))
    publish(cache, 1)
    cache.add(2, 8)
    cache.retire(cache.launch([2], 8).id)
    cache.extend([2])
    launch = cache.launch([2])
    before = cache.row_of(2)
    publication = cache.publish([2], prompt(8), 8)
    after = cache.row_of(2)
    assert after != before
    assert launch.table[before].tolist()[:3] == [3, 4, 5]
    assert cache.block_table(2).tolist() == [1, 2, 5]
    assert [column.tolist() for column in publication.edits] == [[after] * 3, [0, 1, 2], [1, 2, 5]]
    assert publication.freed.tolist() == []  # launch 3 reads 3 and 4
    assert cache.retire(launch.id).tolist() == [3, 4]
    cache.check()


def test_a_planned_copy_moves_along_with_its_row() -> None:
    cache = made(12)
    compute(cache, 1, prompt(8))  # 1 2
    publish(cache, 1)
    cache.add(2, 10)  # 3 4 5
    first = cache.launch([2], 10)
    cache.fork(2, 3)
    second = cache.launch([], stream=0)
    cache.retire(first.id)
    cache.extend([2])
    third = cache.launch([2])
    cache.extend([3])
    del second, third
    cache.publish([3], prompt(8), 8)
    assert cache.block_table(3).tolist()[:2] == [1, 2]
    cache.check()
    cache.release(3)
    cache.check()


def test_what_a_fork_holds_behind_another_block_is_published_later() -> None:
    cache = made(12)
    serve(cache, 1, prompt(4))  # 1
    cache.add(2, 8)  # 2 3
    cache.retire(cache.launch([2], 8).id)
    cache.fork(2, 3)
    publication = cache.publish([2], prompt(8), 8)
    assert [column.tolist() for column in publication.merges] == [[2], [0], [2], [1]]
    assert publication.blocks.tolist() == []  # 3 holds block 3 behind block 2
    cache.check()
    publication = cache.publish([3], prompt(8), 8)
    assert publication.merges.seqs.tolist() == [3]
    assert publication.freed.tolist() == [2]
    assert publication.blocks.tolist() == [3]
    cache.check()
    assert publish(cache, 2) == []


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
    assert publish(cache, 2) == [5, 6] or cache.published().size == 4
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

"""What prompts hit, what is published, and how equal blocks become one, with expectations worked out by hand.

Blocks hold 4 tokens. Free blocks are taken lowest first from a fresh pool, and those given back last are taken first.
"""

import numpy as np
import pytest
from pagedkv.impl.refusals import BadCount

from sharing_helpers import NO_TOKENS, TEN, compute, made, prompt, publish, serve

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


def test_ids_told_at_add_are_known_and_a_prompt_is_published_by_telling_nothing() -> None:
    cache = made()
    compute(cache, 1, TEN)
    with pytest.raises(BadCount, match=r"\(ids given to `add` are known already\)"):
        cache.publish([1], TEN, len(TEN))
    assert cache.publish([1], [], counts=0).blocks.tolist() == [1, 2]


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

"""Copy-on-write by example: who copies, what is copied, and what keeps a source alive. B is 4 throughout."""

import pytest
from pagedkv.impl.cache import BlockCache
from pagedkv.impl.refusals import NoSpace
from pagedkv.impl.results import Copies


def forked(children: int, tokens: int = 6, *, blocks: int = 32, streams: int = 1) -> BlockCache:
    """Return a cache where sequence 0 has `tokens` retired positions and `children` forks, 1 and up."""
    cache = BlockCache(blocks, 4, streams=streams, rows=2, max_blocks_per_row=1)
    cache.add(0, tokens)
    cache.retire(cache.launch([0], tokens).id)
    for child in range(1, children + 1):
        cache.fork(0, child)
    return cache


def listed(copies: Copies) -> list[tuple[int, ...]]:
    """Return copies as (sequence, source, target, extent)."""
    return list(zip(*(column.tolist() for column in copies), strict=True))


def test_a_fork_shares_every_block_once_and_takes_none() -> None:
    cache = forked(2)
    assert cache.counts == (30, 2, 0, 0, 32)
    assert [cache.references(block) for block in (1, 2, 3)] == [3, 3, 0]
    assert cache.holders()[:4].tolist() == [0, 3, 3, 0]
    assert cache.block_table(2).tolist() == [1, 2]
    assert cache.lengths(2) == (0, 6, 6, 6)
    assert cache.release(0).size == 0
    assert cache.references(2) == 2
    cache.check()


def test_the_first_writer_copies_and_the_last_holder_writes_in_place() -> None:
    cache = forked(1)
    child = cache.extend([1])
    assert listed(child.copies) == [(1, 2, 3, 2)]  # 6 positions: two lie in the second block
    assert child.blocks.tolist() == [3]
    assert child.slots.tolist() == [3 * 4 + 2]
    assert [column.tolist() for column in child.edits] == [[cache.row_of(1)], [1], [3]]
    parent = cache.extend([0])
    assert listed(parent.copies) == []
    assert parent.slots.tolist() == [2 * 4 + 2]
    assert (cache.block_table(0).tolist(), cache.block_table(1).tolist()) == ([1, 2], [1, 3])
    cache.check()


@pytest.mark.parametrize("counts", [1, 2, [1, 2, 1], [3, 1, 9]])
def test_of_r_holders_and_k_writers_the_first_min_of_k_and_r_less_1_copy(counts: object) -> None:
    for children in range(5):
        for writers in range(1, children + 2):
            cache = forked(children)
            batch = list(range(children, children - writers, -1))
            amount = counts if isinstance(counts, int) else [*counts, 1, 1][:writers]  # type: ignore[misc]
            copies = listed(cache.extend(batch, amount).copies)
            assert [seq for seq, *_ in copies] == batch[: min(writers, children)]
            assert {source for _, source, *_ in copies} <= {2}
            cache.check()


def test_a_full_tail_is_shared_for_good() -> None:
    cache = forked(1, tokens=8)
    extension = cache.extend([1, 0])
    assert listed(extension.copies) == []
    assert extension.blocks.tolist() == [3, 4]
    assert cache.references(2) == 2


def test_several_tails_in_one_batch_each_have_their_own_count() -> None:
    cache = forked(2)  # 0, 1, 2 share block 2
    cache.add(10, 5)  # blocks 3 and 4
    cache.retire(cache.launch([10], 5).id)
    cache.fork(10, 11)
    cache.add(20, 3)  # block 5, its own
    extension = cache.extend([11, 2, 20, 10, 1, 0], [4, 1, 2, 1, 1, 1])
    # 11 copies 4 to 6 and grows by 7; 2 copies 2 to 8; 20 grows by 9; 10 writes in place; 1 copies 2 to 10; 0 in place.
    assert extension.blocks.tolist() == [6, 7, 8, 9, 10]
    assert listed(extension.copies) == [(11, 4, 6, 1), (2, 2, 8, 2), (1, 2, 10, 2)]
    assert extension.slots.tolist() == [25, 26, 27, 28, 34, 23, 36, 17, 42, 10]
    cache.check()


def test_a_refused_batch_plans_nothing() -> None:
    cache = forked(3, blocks=3)
    with pytest.raises(NoSpace):
        cache.extend([1, 2, 3])  # three copies, one block
    assert cache.planned_copies() == []
    assert cache.references(2) == 4
    cache.check()


def test_a_launch_takes_the_copies_of_its_rows_in_batch_order() -> None:
    cache = forked(3)
    cache.extend([1, 2, 3])
    assert len(cache.planned_copies()) == 3
    launch = cache.launch([3, 1])
    assert listed(launch.copies) == [(3, 2, 5, 2), (1, 2, 3, 2)]
    assert cache.planned_copies() == [(2, 2, 4, 2)]
    assert listed(cache.launch([2]).copies) == [(2, 2, 4, 2)]
    cache.check()


def test_a_copy_goes_with_the_first_launch_of_its_row() -> None:
    cache = forked(1)
    cache.extend([1], 3)
    assert len(listed(cache.launch([1], 1).copies)) == 1
    assert listed(cache.launch([1], 2).copies) == []


def test_a_planned_copy_keeps_a_source_that_nobody_holds() -> None:
    cache = forked(1)
    cache.extend([1])
    assert cache.release(0).tolist() == []  # block 1 is the child's, block 2 is to be copied
    assert cache.block_state(2) == "quarantined"
    launch = cache.launch([1])
    assert cache.block_state(2) == "quarantined"
    assert cache.retire(launch.id).tolist() == [2]
    cache.check()


def test_a_dropped_copy_lets_its_source_go_and_frees_its_target() -> None:
    cache = forked(1)
    cache.extend([1])
    cache.release(0)
    assert sorted(cache.release(1).tolist()) == [1, 2, 3]
    assert cache.planned_copies() == []
    cache.check()


def test_a_source_waits_for_the_last_of_its_copies() -> None:
    cache = forked(2, streams=2)
    cache.extend([1, 2])
    cache.release(0)
    first = cache.launch([1], stream=0)
    assert cache.retire(first.id).size == 0  # sequence 2's copy is still planned
    assert cache.block_state(2) == "quarantined"
    second = cache.launch([2], stream=1)
    assert cache.retire(second.id).tolist() == [2]
    cache.check()


def test_a_released_copier_frees_its_target_at_once_though_its_row_is_in_flight() -> None:
    cache = forked(1)
    cache.extend([1])
    launch = cache.launch([0, 1][:0])  # something is in flight, and touches nothing
    reading = cache.fork(0, 2)
    assert reading.blocks.tolist() == [1, 2]
    assert cache.release(1).tolist() == [3]
    cache.retire(launch.id)
    cache.check()


def test_copying_a_row_in_flight_moves_the_sequence_to_a_fresh_row() -> None:
    cache = BlockCache(16, 4)
    cache.add(0, 6)
    launch = cache.launch([0], 6)  # in flight: it reads the row [1, 2] when it executes
    cache.fork(0, 1)
    old = cache.row_of(0)
    extension = cache.extend([0])
    assert listed(extension.copies) == [(0, 2, 3, 2)]
    assert cache.row_of(0) != old
    edits = list(zip(*(column.tolist() for column in extension.edits), strict=True))
    assert edits == [(cache.row_of(0), 0, 1), (cache.row_of(0), 1, 3)]
    assert launch.table[old, :3].tolist() == [1, 2, 0]
    cache.check()
    cache.retire(launch.id)
    assert cache.table[old].tolist() == [0] * cache.table.shape[1]
    cache.check()


def test_a_child_that_no_launch_reads_yet_keeps_its_row() -> None:
    cache = BlockCache(16, 4)
    cache.add(0, 6)
    cache.launch([0], 6)
    row = cache.fork(0, 1).row
    cache.extend([1])
    assert cache.row_of(1) == row


def test_a_fork_of_a_fork_after_copying_shares_the_copy() -> None:
    cache = forked(1)
    cache.extend([1])
    cache.retire(cache.launch([1]).id)
    cache.fork(1, 2)
    assert cache.block_table(2).tolist() == [1, 3]
    assert [cache.references(block) for block in (1, 2, 3)] == [3, 1, 2]
    assert listed(cache.extend([2]).copies) == [(2, 3, 4, 3)]
    cache.check()

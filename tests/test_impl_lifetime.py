"""Lifetime by example: what a launch in flight may touch is nobody else's before that launch has retired."""

import pytest
from pagedkv.impl.cache import BlockCache


def added(tokens: int, *, streams: int = 1, blocks: int = 16) -> BlockCache:
    """Return a cache of blocks of 2 where sequence 1 has `tokens` planned positions."""
    cache = BlockCache(blocks, 2, streams=streams, rows=2)
    cache.add(1, tokens)
    return cache


def test_blocks_in_flight_wait_for_their_launch() -> None:
    cache = added(4)
    launch = cache.launch([1], 4)
    assert cache.release(1).tolist() == []
    assert cache.counts == (14, 0, 2, 16)
    assert [cache.block_state(block) for block in (0, 1, 2, 3)] == ["reserved", "quarantined", "quarantined", "free"]
    assert cache.retire(launch.id).tolist() == [1, 2]
    assert cache.counts == (16, 0, 0, 16)


@pytest.mark.parametrize(
    ("launched", "at_once"), [(0, [1, 2, 3]), (1, [2, 3]), (2, [2, 3]), (3, [3]), (4, [3]), (5, [])]
)
def test_blocks_that_no_launch_has_touched_are_free_at_once(launched: int, at_once: list[int]) -> None:
    cache = added(5)
    launch = cache.launch([1], launched) if launched else cache.launch([])
    assert cache.release(1).tolist() == at_once
    assert sorted(at_once + cache.retire(launch.id).tolist()) == [1, 2, 3]


def test_a_completion_delivered_twice_changes_nothing() -> None:
    cache = added(4)
    launch = cache.launch([1], 4)
    cache.release(1)
    cache.retire(launch.id)
    assert cache.add(2, 4).blocks.tolist() == [1, 2]
    later = cache.launch([2], 4)
    assert cache.retire(launch.id).tolist() == []
    assert cache.counts == (14, 2, 0, 16)
    assert cache.in_flight() == [later.id]


def test_a_later_retirement_on_a_stream_retires_what_is_older_there() -> None:
    cache = added(3)
    first, second, third = cache.launch([1]), cache.launch([1]), cache.launch([1])
    cache.release(1)
    assert cache.retire(second.id).tolist() == []
    assert cache.in_flight() == [third.id]
    assert cache.retire(first.id).tolist() == []
    assert cache.retire(third.id).tolist() == [1, 2]


def test_one_fence_a_stream() -> None:
    cache = added(2, streams=2)
    cache.retire(cache.launch([1], 2).id)
    cache.fork(1, 2)
    cache.extend([1, 2])
    compute = cache.launch([1], stream=0)  # reads block 1
    other = cache.launch([2], stream=1)  # reads block 1, too, and is younger
    assert other.after == ()
    cache.release(1)
    cache.release(2)
    assert cache.retire(other.id).tolist() == [3]
    assert cache.block_state(1) == "quarantined"
    assert sorted(cache.retire(compute.id).tolist()) == [1, 2]


def test_a_block_goes_on_to_the_next_streams_launch() -> None:
    cache = added(2, streams=3)
    cache.retire(cache.launch([1], 2).id)
    for child in (2, 3, 4):
        cache.fork(1, child)
    cache.extend([2, 3, 4])
    launches = [cache.launch([child], stream=stream) for child, stream in ((2, 2), (3, 0), (4, 1))]
    for seq in cache.sequences():
        cache.release(seq)
    assert cache.who_holds(1).fences == (launches[1].id, launches[2].id, launches[0].id)
    assert [cache.retire(launches[place].id).tolist() for place in (1, 2, 0)] == [[3], [4], [2, 1]]
    cache.check()


def test_a_launch_names_the_other_streams_launches_it_needs_and_no_more() -> None:
    cache = added(4, streams=3)
    cache.add(2, 2)
    writer = cache.launch([1], 2, stream=1)
    unrelated = cache.launch([2], 2, stream=2)
    reader = cache.launch([1], 1, stream=0)
    assert (writer.after, unrelated.after, reader.after) == ((), (), (writer.id,))
    assert cache.launch([1], 1, stream=0).after == ()  # stream 0 is ordered after the writer already
    both = cache.launch([], stream=2)
    assert both.after == ()
    cache.retire(writer.id)
    cache.extend([1, 2])
    assert cache.launch([1, 2], stream=2).after == (4,)  # the newest of stream 0 that touched sequence 1


def test_what_had_retired_needs_no_edge() -> None:
    cache = added(4, streams=2)
    cache.retire(cache.launch([1], 2, stream=1).id)
    assert cache.launch([1], 2, stream=0).after == ()


def test_a_child_waits_for_its_parents_launches() -> None:
    cache = added(3, streams=2)
    prefill = cache.launch([1], 3, stream=0)
    cache.fork(1, 2)
    cache.release(1)
    cache.extend([2])
    assert cache.launch([2], stream=1).after == (prefill.id,)
    assert cache.lengths(2) == (4, 4, 4, 0)


def test_retiring_a_launch_retires_what_it_was_ordered_after() -> None:
    cache = added(4, streams=2)
    writer = cache.launch([1], 2, stream=0)
    bystander = cache.launch([], stream=0)
    reader = cache.launch([1], 1, stream=1)
    assert reader.after == (writer.id,)
    cache.retire(reader.id)
    assert cache.in_flight() == [bystander.id]
    cache.check()


def written(cache: BlockCache) -> dict[int, int]:
    """Return of each live sequence what is written, the same whether all are looked at together or each alone."""
    together = cache.live()
    assert together == [(seq, cache.row_of(seq), cache.lengths(seq)) for seq in cache.sequences()]
    return {seq: lengths.written for seq, _, lengths in together}


def test_written_counts_retired_launches_of_the_ancestors_up_to_the_fork() -> None:
    cache = added(4, streams=1)
    first, second = cache.launch([1], 3), cache.launch([1], 1)
    cache.fork(1, 2)
    cache.fork(2, 3)
    cache.extend([1])
    third = cache.launch([1])  # after the fork: not the children's
    assert written(cache) == {1: 0, 2: 0, 3: 0}
    cache.retire(first.id)
    assert written(cache) == {1: 3, 2: 3, 3: 3}
    cache.release(1)
    cache.retire(second.id)
    assert written(cache) == {2: 4, 3: 4}
    assert cache.in_flight() == [third.id]


def test_a_row_that_a_launch_will_read_is_not_recycled() -> None:
    cache = added(4)
    row = cache.row_of(1)
    launch = cache.launch([1], 4)
    cache.release(1)
    used = {cache.add(seq, 2).row for seq in range(10, 16)}
    assert row not in used
    assert launch.table[row, :2].tolist() == [1, 2]
    cache.retire(launch.id)
    assert not cache.table[row].any()
    assert cache.add(2, 2).row == row


def test_a_row_waits_for_every_stream() -> None:
    cache = added(4, streams=2)
    row = cache.row_of(1)
    first, second = cache.launch([1], 2, stream=0), cache.launch([1], 2, stream=1)
    cache.release(1)
    assert cache.retire(first.id).tolist() == []
    assert second.table[row, :2].tolist() == [1, 2]
    cache.check()
    assert sorted(cache.retire(second.id).tolist()) == [1, 2]
    assert not cache.table[row].any()


def test_a_table_that_grows_leaves_what_launches_read_as_it_was() -> None:
    cache = BlockCache(2000, 2, rows=1, max_blocks_per_row=1)
    cache.add(1, 2)
    launch = cache.launch([1], 2)
    for seq in range(2, 40):
        cache.add(seq, 2 * seq)
    assert launch.table is not cache.table
    cache.release(1)
    cache.retire(launch.id)
    cache.check()
    assert launch.table[launch.rows[0]].tolist() == [1]


def test_a_clone_is_independent_and_its_launches_read_its_own_table() -> None:
    cache = added(4)
    launch = cache.launch([1], 4)
    twin = cache.clone()
    assert twin.launched(launch.id).table is twin.table
    cache.release(1)
    cache.retire(launch.id)
    cache.add(2, 8)
    assert twin.sequences() == [1]
    assert twin.launched(launch.id).table[launch.rows[0], :2].tolist() == [1, 2]
    assert twin.counts == (14, 2, 0, 16)
    twin.release(1)
    assert twin.retire(launch.id).tolist() == [1, 2]
    twin.check()
    cache.check()


def test_launch_numbers_beyond_32_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fences and times are kept in 32 bits, relative to a base: what happens must not depend on when it moves."""
    outcomes = []
    for largest in (2**31 - 1, 9):
        monkeypatch.setattr("pagedkv.impl.fences.LARGEST_INT32", largest)
        monkeypatch.setattr("pagedkv.impl.block_pool.LARGEST_INT32", largest)
        cache = added(2, streams=2)
        outcome: list[object] = []
        for step in range(2, 60):
            cache.extend([step - 1])
            first = cache.launch([step - 1], cache.lengths(step - 1).allocated - cache.lengths(step - 1).launched, 0)
            cache.fork(step - 1, step)
            cache.extend([step, step - 1])
            second = cache.launch([step], stream=1)
            outcome += [first.after, second.after, cache.release(step - 1).tolist()]
            outcome += [cache.retire(second.id).tolist(), cache.retire(first.id).tolist(), cache.counts]
            outcome.append([str(cache.who_holds(block)) for block in cache.block_table(step)])
            cache.check()
            if step % 7 == 0:
                cache.release(step)
                cache.add(step, 1)
        outcomes.append(outcome)
    assert outcomes[0] == outcomes[1]

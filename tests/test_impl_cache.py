"""The cache's operations by example: every number below was worked out by hand."""

import numpy as np
import pytest
from pagedkv.impl.cache import BlockCache
from pagedkv.impl.refusals import (
    BadCount,
    Busy,
    Duplicate,
    Empty,
    InvalidArgument,
    NoSpace,
    Refused,
    TooLong,
    Unknown,
    UnknownLaunch,
)


def seen(cache: BlockCache) -> tuple[object, ...]:
    """Return all that can be seen of a cache, to compare before and after."""
    tables = {seq: (cache.block_table(seq).tolist(), cache.lengths(seq)) for seq in cache.sequences()}
    return tables, cache.counts, cache.free_order(), cache.planned_copies(), cache.in_flight(), cache.table.tolist()


def test_add_takes_the_blocks_that_free_order_announced() -> None:
    cache = BlockCache(8, 4)
    assert cache.free_order() == [1, 2, 3, 4, 5, 6, 7, 8]
    added = cache.add(7, 9)  # 9 positions need 3 blocks of 4
    assert added.blocks.tolist() == [1, 2, 3]
    assert added.blocks.dtype == np.int32
    assert cache.table[added.row, :4].tolist() == [1, 2, 3, 0]
    assert cache.lengths(7) == (0, 9, 0, 0)
    assert cache.counts == (5, 3, 0, 0, 8)
    assert cache.free_order() == [4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("tokens", "of_4", "of_3", "of_1"),
    [(1, 1, 1, 1), (3, 1, 1, 3), (4, 1, 2, 4), (5, 2, 2, 5), (12, 3, 4, 12), (13, 4, 5, 13)],
)
def test_a_length_needs_its_ceiling_of_blocks(tokens: int, of_4: int, of_3: int, of_1: int) -> None:
    assert BlockCache(16, 4).add(0, tokens).blocks.size == of_4
    assert BlockCache(16, 3).add(0, tokens).blocks.size == of_3
    assert BlockCache(16, 1).add(0, tokens).blocks.size == of_1


def test_add_takes_token_ids_as_well_as_a_count() -> None:
    cache = BlockCache(8, 4)
    cache.add(1, np.array([11, 12, 13, 14, 15], np.int32), salt=3)
    cache.add(2, [11, 12])
    assert cache.lengths(1).allocated == 5
    assert cache.lengths(2).allocated == 2


@pytest.mark.parametrize("block_size", [4, 6])
def test_extend_by_one_grows_where_a_block_is_full(block_size: int) -> None:
    cache = BlockCache(8, block_size)
    full = cache.add(1, block_size)
    cache.add(2, block_size + 1)  # blocks 2 and 3
    extension = cache.extend([1, 2])
    assert extension.blocks.tolist() == [4]
    assert extension.slots.tolist() == [4 * block_size, 3 * block_size + 1]
    assert extension.slots.dtype == np.int64
    assert [column.tolist() for column in extension.edits] == [[full.row], [1], [4]]
    assert all(column.size == 0 for column in extension.copies)
    assert cache.block_table(1).tolist() == [1, 4]
    assert cache.lengths(1).allocated == block_size + 1


def test_extend_by_several_takes_row_by_row_in_batch_order() -> None:
    cache = BlockCache(12, 4)
    first, second = cache.add(1, 3), cache.add(2, 4)  # blocks 1 and 2
    extension = cache.extend(np.array([2, 1]), [5, 6])
    # Sequence 2: positions 4..8 in blocks 3 and 4. Sequence 1: position 3 in block 1, 4..8 in blocks 5 and 6.
    assert extension.blocks.tolist() == [3, 4, 5, 6]
    assert extension.slots.tolist() == [12, 13, 14, 15, 16, 7, 20, 21, 22, 23, 24]
    edits = sorted(zip(*(column.tolist() for column in extension.edits), strict=True))
    assert edits == sorted([(second.row, 1, 3), (second.row, 2, 4), (first.row, 1, 5), (first.row, 2, 6)])
    assert cache.block_table(1).tolist() == [1, 5, 6]
    assert cache.block_table(2).tolist() == [2, 3, 4]


def test_the_same_counts_as_one_number_or_as_many() -> None:
    outcomes = []
    for counts in (3, [3, 3], np.array([3, 3], np.int16), np.int64(3)):
        cache = BlockCache(12, 4)
        cache.add(1, 3)
        cache.add(2, 4)
        outcomes.append(cache.extend([1, 2], counts).slots.tolist())
    assert outcomes == [[7, 12, 13, 16, 17, 18]] * 4


def test_launch_captures_rows_and_lengths_and_counts_up() -> None:
    cache = BlockCache(8, 4)
    row = cache.add(5, 6).row
    prefill = cache.launch([5], 4)
    rest = cache.launch(np.array([5]), 2)
    assert (prefill.id, rest.id) == (1, 2)
    assert (prefill.starts.tolist(), prefill.lengths.tolist()) == ([0], [4])
    assert (rest.starts.tolist(), rest.lengths.tolist()) == ([4], [6])
    assert rest.rows.tolist() == [row]
    assert rest.rows.dtype == np.int32
    assert rest.table is cache.table
    assert rest.seqs.tolist() == [5]
    assert rest.epochs.tolist() == prefill.epochs.tolist()
    assert cache.in_flight() == [1, 2]
    assert cache.lengths(5) == (0, 6, 6, 0)
    cache.retire(1)
    assert cache.lengths(5) == (0, 6, 6, 4)
    cache.retire(2)
    assert cache.lengths(5) == (0, 6, 6, 6)


def test_a_namesake_has_another_epoch() -> None:
    cache = BlockCache(8, 4)
    cache.add(5, 1)
    old = cache.launch([5])
    cache.release(5)
    cache.add(5, 1)
    assert cache.launch([5]).epochs.tolist() != old.epochs.tolist()
    assert cache.lengths(5).written == 0
    cache.retire(old.id)
    assert cache.lengths(5).written == 0


def test_what_was_given_back_last_is_taken_first() -> None:
    cache = BlockCache(6, 4)
    cache.add(1, 8)
    cache.add(2, 8)
    assert cache.release(1).tolist() == [1, 2]
    assert cache.free_order() == [1, 2, 5, 6]
    assert cache.add(3, 12).blocks.tolist() == [1, 2, 5]


def test_empty_batches_do_nothing_and_an_empty_launch_is_a_fence() -> None:
    cache = BlockCache(4, 4)
    cache.add(1, 1)
    before = seen(cache)
    for seqs, counts in (([], 1), ([], []), (np.empty(0, np.int64), 0)):
        extension = cache.extend(seqs, counts)
        assert extension.slots.size == extension.blocks.size == 0
    assert seen(cache) == before
    fence = cache.launch([])
    assert cache.in_flight() == [fence.id]
    assert cache.retire(fence.id).size == 0
    assert cache.in_flight() == []


def test_any_int64_is_a_name() -> None:
    cache = BlockCache(12, 4)
    names = [0, -1, 2**63 - 1, -(2**63), 63, -(2**40)]
    for name in names:
        cache.add(name, 4)
    assert cache.extend(names).blocks.tolist() == [7, 8, 9, 10, 11, 12]
    assert [cache.block_table(name).tolist() for name in names] == [[place, place + 6] for place in range(1, 7)]
    assert sorted(cache.sequences()) == sorted(names)


def test_extend_refuses_space_before_anything_changes() -> None:
    cache = BlockCache(3, 2)
    cache.add(1, 2)
    cache.add(2, 2)
    before = seen(cache)
    with pytest.raises(NoSpace):
        cache.extend([1, 2])  # two blocks for one that is left
    assert seen(cache) == before
    with pytest.raises(TooLong):
        cache.extend([1], 5)  # 7 positions in a pool of 6
    assert seen(cache) == before
    assert cache.extend([2]).blocks.tolist() == [3]


def ready() -> BlockCache:
    """Return a cache of 4 blocks of 2: sequence 1 launched, 2 planned, launches 1 and 2 in flight of 2."""
    cache = BlockCache(4, 2, launches_in_flight=2)
    cache.add(1, 2)
    cache.add(2, 3)
    cache.launch([1], 2)
    cache.launch([])
    return cache


# Each call breaks the guards named after it, too: the first in the order of the table is the one that is raised.
REFUSED = [
    (Duplicate, lambda cache: cache.add(1, 0)),  # Empty
    (Empty, lambda cache: cache.add(9, 0)),
    (Empty, lambda cache: cache.add(9, -5)),
    (Empty, lambda cache: cache.add(9, [])),
    (TooLong, lambda cache: cache.add(9, 9)),  # NoSpace
    (TooLong, lambda cache: cache.add(9, 10**30)),
    (NoSpace, lambda cache: cache.add(9, 3)),
    (Duplicate, lambda cache: cache.extend([8, 8], 0)),  # Unknown, BadCount
    (Unknown, lambda cache: cache.extend([1, 8], 0)),  # BadCount
    (BadCount, lambda cache: cache.extend([1, 2], [9, 0])),  # TooLong
    (BadCount, lambda cache: cache.extend([1], -(10**30))),
    (TooLong, lambda cache: cache.extend([1], 7)),  # NoSpace
    (TooLong, lambda cache: cache.extend([1], 2**63 - 1)),
    (TooLong, lambda cache: cache.extend([1, 2], [1, 2**63 - 1])),
    (TooLong, lambda cache: cache.extend([1], 10**30)),
    (NoSpace, lambda cache: cache.extend([1, 2], [2, 2])),
    (Unknown, lambda cache: cache.fork(8, 1)),  # Duplicate
    (Duplicate, lambda cache: cache.fork(2, 1)),  # Busy
    (Duplicate, lambda cache: cache.fork(1, 1)),
    (Busy, lambda cache: cache.fork(2, 9)),
    (Duplicate, lambda cache: cache.launch([8, 8], 0)),  # Unknown, BadCount, Busy
    (Unknown, lambda cache: cache.launch([8, 2], 0)),  # BadCount, Busy
    (BadCount, lambda cache: cache.launch([2], 0)),  # Busy
    (BadCount, lambda cache: cache.launch([2], 4)),  # Busy
    (BadCount, lambda cache: cache.launch([1, 2], [1, 1])),  # Busy
    (BadCount, lambda cache: cache.launch([1, 2], [1, 2**63 - 1])),  # Busy
    (BadCount, lambda cache: cache.launch([2], 10**30)),  # Busy
    (Busy, lambda cache: cache.launch([2], 3)),
    (Busy, lambda cache: cache.launch([])),
    (UnknownLaunch, lambda cache: cache.retire(0)),
    (UnknownLaunch, lambda cache: cache.retire(3)),
    (UnknownLaunch, lambda cache: cache.retire(-(10**5000))),
    (Unknown, lambda cache: cache.release(8)),
    (Unknown, lambda cache: cache.release(10**5000)),
    (Unknown, lambda cache: cache.block_table(8)),
    (Unknown, lambda cache: cache.lengths(8)),
]


@pytest.mark.parametrize(("reason", "call"), REFUSED)
def test_a_refusal_has_its_reason_and_changes_nothing(reason: type[Refused], call: object) -> None:
    cache = ready()
    before = seen(cache)
    with pytest.raises(reason) as refusal:
        call(cache)  # type: ignore[operator]
    assert type(refusal.value) is reason
    assert "\n" not in str(refusal.value)
    assert seen(cache) == before
    cache.check()


HOSTILE = [
    lambda cache: cache.add(1.0, 1),
    lambda cache: cache.add("1", 1),
    lambda cache: cache.add(None, 1),
    lambda cache: cache.add(np.True_, 1),
    lambda cache: cache.add(seq=True, tokens=1),
    lambda cache: cache.add(2**63, 1),
    lambda cache: cache.add(10**5000, 1),
    lambda cache: cache.add(9, 1.5),
    lambda cache: cache.add(9, "abc"),
    lambda cache: cache.add(9, [1.5]),
    lambda cache: cache.add(9, [[1, 2]]),
    lambda cache: cache.add(9, [[1], [1, 2]]),
    lambda cache: cache.add(9, np.ones(3)),
    lambda cache: cache.add(9, 1, salt="a"),
    lambda cache: cache.add(9, 1, salt=0.0),
    lambda cache: cache.add(9, 1, salt=False),
    lambda cache: cache.add(9, 1, salt=np.array([1, 2])),
    lambda cache: cache.extend(1),
    lambda cache: cache.extend("12"),
    lambda cache: cache.extend(None),
    lambda cache: cache.extend([1, None]),
    lambda cache: cache.extend([1.0]),
    lambda cache: cache.extend([2**64]),
    lambda cache: cache.extend([2**63]),
    lambda cache: cache.extend(np.array([[1]])),
    lambda cache: cache.extend(np.array([True, False])),
    lambda cache: cache.extend([True, 2]),
    lambda cache: cache.extend(np.ma.masked_array([1, 2], [False, True])),
    lambda cache: cache.extend(np.array([1], np.uint64)),
    lambda cache: cache.extend([1, 2], [1]),
    lambda cache: cache.extend([1], [1, 1]),
    lambda cache: cache.extend([1], 1.0),
    lambda cache: cache.extend([1], None),
    lambda cache: cache.extend([], [1]),
    lambda cache: cache.launch([2], 1, stream=1),
    lambda cache: cache.launch([2], 1, stream=-1),
    lambda cache: cache.launch([2], 1, stream="0"),
    lambda cache: cache.launch([2], 1, stream=0.0),
    lambda cache: cache.launch({2: 1}),
    lambda cache: cache.retire("1"),
    lambda cache: cache.retire(1.0),
    lambda cache: cache.release(2.0),
    lambda cache: cache.release(None),
    lambda cache: cache.fork(1, "x"),
    lambda cache: cache.block_state(5),
    lambda cache: cache.block_state(-1),
    lambda cache: cache.who_holds(2**40),
]


@pytest.mark.parametrize("call", HOSTILE)
def test_what_is_no_argument_is_refused_in_one_line_and_changes_nothing(call: object) -> None:
    cache = ready()
    before = seen(cache)
    with pytest.raises(InvalidArgument) as refusal:
        call(cache)  # type: ignore[operator]
    assert "\n" not in str(refusal.value)
    assert seen(cache) == before


@pytest.mark.parametrize(
    "arguments",
    [
        {"blocks": 0},
        {"blocks": -1},
        {"blocks": 2**31},
        {"blocks": 1.0},
        {"block_size": 0},
        {"block_size": 2**62},
        {"block_size": "16"},
        {"streams": 0},
        {"streams": 10**9},
        {"launches_in_flight": 0},
        {"rows": 0},
        {"rows": 2**24, "blocks": 2**31 - 2, "max_blocks_per_row": 2**31 - 2},
        {"max_blocks_per_row": 0},
    ],
)
def test_a_cache_of_impossible_size_is_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument):
        BlockCache(**({"blocks": 4, "block_size": 4} | arguments))  # type: ignore[arg-type]


@pytest.mark.parametrize(("blocks", "block_size"), [(1, 1), (1, 16), (5, 1), (5, 3)])
def test_the_smallest_pools_fill_and_drain(blocks: int, block_size: int) -> None:
    cache = BlockCache(blocks, block_size)
    cache.add(1, 1)
    for length in range(1, blocks * block_size):
        assert cache.extend([1]).slots.tolist() == [cache.block_table(1)[-1] * block_size + length % block_size]
    with pytest.raises(TooLong):
        cache.extend([1])
    launch = cache.launch([1], blocks * block_size)
    assert cache.release(1).size == 0
    assert cache.counts == (0, 0, blocks, 0, blocks)
    assert sorted(cache.retire(launch.id).tolist()) == list(range(1, blocks + 1))
    cache.check()


def test_rows_in_csr_form() -> None:
    cache = BlockCache(12, 4)
    for seq, tokens in ((1, 9), (2, 4), (3, 2)):
        cache.add(seq, tokens)  # blocks 1 2 3, 4, 5
    csr = cache.csr([3, 1, 2])
    assert csr.indptr.tolist() == [0, 1, 4, 5]
    assert csr.indices.tolist() == [5, 1, 2, 3, 4]
    assert csr.last_block_lengths.tolist() == [2, 1, 4]
    assert {column.dtype for column in csr} == {np.dtype(np.int32)}
    assert cache.csr([]).indptr.tolist() == [0]


def test_the_table_grows_and_keeps_what_it_held() -> None:
    cache = BlockCache(1000, 2, rows=1, max_blocks_per_row=1)
    for seq in range(50):
        cache.add(seq, 2 * (seq % 7) + 1)
    for _ in range(20):
        cache.extend(list(range(50)))
        cache.check()
    assert [cache.lengths(seq).allocated for seq in range(50)] == [2 * (seq % 7) + 21 for seq in range(50)]
    for seq in range(50):
        cache.release(seq)
    assert not cache.table.any()
    assert cache.counts.free == 1000


def test_shared_results_are_read_only() -> None:
    cache = BlockCache(8, 4)
    cache.add(1, 4)
    cache.add(2, 4)
    launch = cache.launch([1, 2], 4)
    for array in (launch.rows, launch.seqs, launch.epochs, launch.copies.sources):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0

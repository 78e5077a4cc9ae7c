"""The work list by itself: it covers every visible position once, and looks at no other sequence."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pagedkv.kernels.plan import AttentionPlan, PlanCapacity, plan_attention
from pagedkv.kernels.tiles import TileRows, split_length


def _covered(plan: AttentionPlan) -> dict[int, list[int]]:
    """Positions that the items of each query token cover."""
    covered: dict[int, list[int]] = {}
    for work in (plan.small, plan.large):
        for _, token, tokens, _, begin, end, _ in work.items.tolist():
            for t in range(token, token + tokens):
                covered.setdefault(t, []).extend(range(begin, end))
    return covered


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    rows=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 80)), min_size=1, max_size=4),
    group=st.sampled_from([1, 3, 4, 8, 40]),
    window=st.sampled_from([None, 1, 17, 100]),
    divisor=st.sampled_from([1, 16, 64]),
)
def test_every_visible_position_is_covered_once(
    rows: list[tuple[int, int]], group: int, window: int | None, divisor: int
) -> None:
    lengths, queries = [n for n, _ in rows], [min(n, c) for n, c in rows]
    starts = [0, *np.cumsum(queries).tolist()]
    plan = plan_attention(starts, lengths, q_heads=group, kv_heads=1, window=window, split_divisor=divisor)
    covered = _covered(plan)
    for row, (length, count) in enumerate(zip(lengths, queries, strict=True)):
        for index in range(count):
            position = length - count + index
            seen = set(range(0 if window is None else max(0, position - window + 1), position + 1))
            positions = covered[starts[row] + index]
            assert len(positions) == len(set(positions))
            assert seen <= set(positions) <= set(range(length))


def test_scratch_rows_are_each_used_once() -> None:
    """Items with several splits and the merges that join them name the same scratch rows, none twice, none left."""
    plan = plan_attention([0, 1, 6, 70], [2000, 900, 3000], q_heads=4, kv_heads=1)
    written = [
        row
        for work in (plan.small, plan.large)
        for _, _, tokens, _, _, _, partial in work.items.tolist()
        if partial >= 0
        for row in range(partial, partial + tokens)
    ]
    read = [first + k * step for _, first, count, step in plan.merges.tolist() for k in range(count)]
    assert sorted(written) == sorted(read) == list(range(plan.partial_rows))


def test_split_lengths_are_those_of_the_design() -> None:
    """512 for one token of a group of 4, 8,192 for a full tile, powers of two between, from the tile alone."""
    lengths = split_length(np.array([1, 2, 4, 8, 16, 32]), 4)
    assert lengths.tolist() == [512, 512, 1024, 2048, 4096, 8192]


def test_a_sequence_is_planned_the_same_in_any_batch() -> None:
    """R-KRN-9: its items do not depend on batch mates, but for the row, the token and the scratch they start at."""
    alone = plan_attention([0, 5], [5000], q_heads=8, kv_heads=2)
    mates = plan_attention([0, 1, 6, 300], [40000, 5000, 9000], q_heads=8, kv_heads=2)

    def fixed(plan: AttentionPlan, row: int) -> list[list[int]]:
        items = plan.small.items
        return [item[2:6] for item in items[items[:, 0] == row].tolist()]

    assert fixed(alone, 0) == fixed(mates, 1)


def test_programs_grow_smoothly_with_work() -> None:
    """One position, one row or one query token more never adds more than the items of one tile's splits."""
    counts = [len(plan_attention([0, 1], [n], q_heads=4, kv_heads=1).small.items) for n in range(1, 6000, 37)]
    assert max(b - a for a, b in pairwise(counts)) == 1
    by_rows = [len(plan_attention(range(n + 1), [2048] * n, q_heads=4, kv_heads=1).small.items) for n in range(1, 300)]
    assert by_rows == [4 * n for n in range(1, 300)]


@pytest.mark.parametrize(("group", "small", "large"), [(1, 16, 128), (4, 16, 128), (8, 32, 128), (71, 128, 128)])
def test_four_token_verify_is_one_tile(group: int, small: int, large: int) -> None:
    assert TileRows.of(group) == TileRows(small, large)
    plan = plan_attention([0, 4], [500], q_heads=group, kv_heads=1)
    tiles = {token for work in (plan.small, plan.large) for _, token, *_ in work.items.tolist()}
    assert len(tiles) == (1 if group < 71 else 4)  # 71 heads fill a tile of 128 rows by themselves


def test_the_longest_items_come_first() -> None:
    plan = plan_attention([0, 64, 65], [64, 9000], q_heads=4, kv_heads=1)
    for work in (plan.small, plan.large):
        spans = (work.items[:, 5] - work.items[:, 4]).tolist()
        assert spans == sorted(spans, reverse=True)


def test_capacity_pads_with_records_that_do_nothing() -> None:
    plan = plan_attention(
        [0, 1], [600], q_heads=4, kv_heads=1,
        capacity=PlanCapacity(small_items=5, large_items=2, merges=3, partial_rows=7),
    )  # fmt: skip
    assert plan.small.items.shape == (5, 7)
    assert plan.small.items[2:].eq(0).all()
    assert plan.large.items.shape == (2, 7)
    assert plan.merges.shape == (3, 4)
    assert plan.partial_rows == 7


def test_lengths_may_be_lists_arrays_or_tensors() -> None:
    plans = [
        plan_attention(make([0, 1, 3]), make([9, 20]), q_heads=2, kv_heads=1)
        for make in (list, np.array, lambda values: torch.tensor(values, dtype=torch.int32))
    ]
    for plan in plans:
        assert torch.equal(plan.small.items, plans[0].small.items)

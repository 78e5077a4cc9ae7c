"""Results that must be equal to the bit: whatever the block ids, the order of the batch, and the batch mates.

An engine that reuses prefixes, preempts and batches would otherwise give other tokens for the same request (R-KRN-4,
R-KRN-9). How a prompt was cut into chunks may only change a result within the dtype's tolerance.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from pagedkv.bench import kernel_checks
from pagedkv.kernels import dispatch
from pagedkv.kernels import plan as planning
from pagedkv.kernels.arguments import PagedCache
from pagedkv.spec.attention import dense_attention
from torch import Tensor

from triton_cases import BACKENDS, TOLERANCES, Case, Problem, TestedBackend, attend, build, check, kernels_on

MIXED = Case(lengths=(150, 37, 0, 64, 100), queries=(1, 2, 1, 20, 4), kv_heads=1, sinks=True)


def _results_by_row(problem: Problem, backend: TestedBackend) -> list[tuple[Tensor, Tensor]]:
    output, lse = attend(problem, backend)
    starts = problem.plan.query_starts
    return [(output[a:b], lse[a:b]) for a, b in pairwise(starts)]


def _select(problem: Problem, rows: list[int]) -> Problem:
    """Keep these rows, in this order, over the same cache."""
    starts = problem.plan.query_starts
    case = problem.case
    case = replace(case, lengths=tuple(case.lengths[r] for r in rows), queries=tuple(case.queries[r] for r in rows))
    plan = planning.plan_attention(
        [0, *np.cumsum(case.queries).tolist()], case.lengths,
        q_heads=case.q_heads, kv_heads=case.kv_heads, split_divisor=case.split_divisor,
    )  # fmt: skip
    query = torch.cat([problem.query[starts[r] : starts[r + 1]] for r in rows])
    return replace(
        problem, case=case, query=query, block_table=problem.block_table[rows].contiguous(), plan=plan,
        keys=[problem.keys[r] for r in rows], values=[problem.values[r] for r in rows],
    )  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
def test_batch_mates_and_order_change_nothing(backend: TestedBackend) -> None:
    """R-KRN-9: alone, in another order, in a larger batch: the same bits."""
    problem = build(MIXED)
    together = _results_by_row(problem, backend)
    check(problem, *attend(problem, backend))
    order = [3, 0, 4, 2, 1]
    reordered = dict(zip(order, _results_by_row(_select(problem, order), backend), strict=True))
    for row in range(5):
        alone = _results_by_row(_select(problem, [row]), backend)[0]
        for other in (alone, reordered[row]):
            assert torch.equal(together[row][0], other[0])
            assert torch.equal(together[row][1], other[1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_block_ids_change_nothing(backend: TestedBackend) -> None:
    """R-KRN-4: any renaming of blocks, in a pool of any size, gives the same bits."""
    problem = build(MIXED)
    before = attend(problem, backend)
    check(problem, *before)
    blocks = problem.cache.blocks
    names = torch.cat([torch.tensor([0]), torch.randperm(blocks + 40, generator=torch.Generator().manual_seed(9)) + 1])
    pools = []
    for held in (problem.cache.key, problem.cache.value):
        pool = torch.full((blocks + 41, *held.shape[1:]), float("nan"), dtype=held.dtype)
        pool[names[:blocks]] = held
        pools.append(pool)
    renamed = replace(
        problem,
        cache=PagedCache(key=pools[0], value=pools[1]),
        block_table=names[problem.block_table.long()].to(torch.int32),
    )
    for got, wanted in zip(attend(renamed, backend), before, strict=True):
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("backend", BACKENDS)
def test_block_ids_beyond_32_bits(backend: TestedBackend) -> None:
    """R-KRN-4: id x stride passes 2**31 elements. The pool is committed lazily: 4.6 GB virtual, little resident."""
    blocks, block_size, kv_heads, head_size = 140_000, 16, 8, 128
    key, value = (torch.empty(blocks, block_size, kv_heads, head_size, dtype=torch.float16) for _ in range(2))
    ids = torch.tensor([[139_999, 70_000, 131_072]], dtype=torch.int32)
    random = torch.Generator().manual_seed(0)
    new = torch.randn(2, 40, kv_heads, head_size, generator=random).half()
    slots = torch.cat([block.long() * block_size + torch.arange(block_size) for block in ids[0]])[:40]
    query = torch.randn(1, 8, head_size, generator=random).half()
    plan = planning.plan_attention([0, 1], [40], q_heads=8, kv_heads=kv_heads)
    cache = PagedCache(key, value)
    output = torch.empty_like(query)
    with kernels_on(backend):
        dispatch.append(new[0], new[1], cache, slots, backend=backend)
        dispatch.attention(query, cache, ids, plan, output=output, backend=backend)
    expected, _ = dense_attention(query, new[0], new[1])
    assert (output - expected).abs().max().item() <= TOLERANCES[torch.float16]
    staging = torch.empty(1, 1, 2, block_size, kv_heads, head_size, dtype=torch.float16)
    pool = key[None, None].expand(1, 2, *key.shape)  # as K and as V: a gather only reads it
    with kernels_on(backend):
        dispatch.gather_blocks(pool, torch.tensor([139_999]), staging, backend=backend)
    assert torch.equal(staging[0, 0, 0], key[139_999])


@pytest.mark.parametrize("backend", BACKENDS)
def test_chunks_of_a_prompt_agree_within_tolerance(backend: TestedBackend) -> None:
    """R-KRN-9: a prompt in chunks against the prompt whole."""
    case = Case(lengths=(70,), queries=(70,), kv_heads=1)
    problem = build(case)
    whole, _ = attend(problem, backend)
    for begin, end in ((0, 5), (5, 6), (6, 50), (50, 70)):
        plan = planning.plan_attention([0, end - begin], [end], q_heads=4, kv_heads=1, split_divisor=16)
        part = replace(problem, query=problem.query[begin:end], plan=plan)
        assert (attend(part, backend)[0] - whole[begin:end]).abs().max().item() <= TOLERANCES[torch.float16]


@pytest.mark.parametrize("backend", BACKENDS)
def test_room_in_a_captured_plan_changes_nothing(backend: TestedBackend) -> None:
    """A plan with spare records, refreshed in place for another step, gives that step's bits."""
    problem = build(MIXED)
    plan = problem.plan
    room = planning.PlanCapacity(
        len(plan.small.items) + 3, len(plan.large.items) + 2, len(plan.merges) + 4, plan.partial_rows + 5
    )
    longer = planning.plan_attention(
        plan.query_starts, [200, 64, 20, 80, 90], q_heads=4, kv_heads=1, split_divisor=16,
        capacity=replace(room, small_items=40, merges=40, partial_rows=400),
    )  # fmt: skip
    longer.refresh_(plan)
    captured = replace(longer, query_starts=plan.query_starts, kv_lengths=plan.kv_lengths, kv_starts=plan.kv_starts)
    for got, wanted in zip(attend(replace(problem, plan=captured), backend), attend(problem, backend), strict=True):
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("seed", [36, 55, 67, 109, 206, 217, 277, 308, 345])
def test_a_row_alone_is_computed_as_among_others(seed: int) -> None:
    """Found by `pagedkv verify`: a lone tile ran its operations on two threads, which add up in another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(max(2, before))
    try:
        assert kernel_checks._batch_mates(torch.device("cpu"), seed) == ""
    finally:
        torch.set_num_threads(before)

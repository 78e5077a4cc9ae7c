"""Paged attention problems with an oracle's answer: drawn, poisoned, run on either backend, compared row by row.

A `Case` is what a test names; `build` makes tensors of it. Everything that must not be read is NaN: block 0, which
padding entries of rows point at; every slot behind a length; blocks of nobody; outputs and scratch before the call.
Block ids are shuffled, and rows may share their first blocks.

Errors are taken per number, never as a mean, relative to the row's largest |output| where that passes 1 (a stored
number has a relative rounding) and to the row's largest |logit| / 10 where that passes 1: a float32 logit of 1e3 has an
ulp of 6e-5, so a plain float32 log-sum-exp misses float64 by that.
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import pagedkv.kernels.append
import pagedkv.kernels.attention
import pagedkv.kernels.attention_kernel
import pagedkv.kernels.copy
import pagedkv.kernels.merge
import torch
from pagedkv.kernels import dispatch
from pagedkv.kernels import plan as planning
from pagedkv.kernels.arguments import Layout, PagedCache, Scoring
from pagedkv.kernels.plan import AttentionPlan
from pagedkv.spec.attention import dense_attention
from torch import Tensor

from triton_interpreter import interpreted

BACKENDS = ("torch", "triton")
TestedBackend = Literal["torch", "triton"]
KERNEL_MODULES = (
    pagedkv.kernels.append,
    pagedkv.kernels.attention,
    pagedkv.kernels.attention_kernel,
    pagedkv.kernels.copy,
    pagedkv.kernels.merge,
)

# Largest error of an output. Why: float32 sums of up to some thousand terms, and exp2 against exp, leave a few 1e-6.
# float16 rounds weights and results to 11 bits (5e-4 each), bfloat16 to 8 bits (4e-3 each), and a sum of rounded
# weights adds up to twice that. fp8 is compared on the same quantised cache, so it has the tolerance of its dots.
TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
LSE_TOLERANCE = 1e-5  # products of 16-bit numbers are exact in float32, so the log-sum-exp is a float32 result always


@dataclass(frozen=True)
class Case:
    """One problem. `queries[r]` tokens of row r stand at the end of its `lengths[r]` positions."""

    lengths: tuple[int, ...] = (33,)
    queries: tuple[int, ...] = (1,)
    q_heads: int = 4
    kv_heads: int = 2
    head_size: int = 32
    block_size: int = 16
    dtype: torch.dtype = torch.float16
    cache_dtype: torch.dtype | None = None  # the dtype of the query unless given
    layout: Layout = "NHD"
    interleaved: bool = False  # K and V side by side in one tensor, head by head
    causal: bool = True
    window: int | None = None
    soft_cap: float | None = None
    alibi: bool = False
    sinks: bool = False
    scales: Literal["none", "tensor", "head"] = "none"
    logit_shift: float = 0.0  # added to every logit, about
    shared_blocks: int = 0  # blocks that all rows begin with, where long enough
    spare_blocks: int = 3
    split_divisor: int = 16
    seed: int = 0


@dataclass(frozen=True)
class Problem:
    """A case as tensors, and `keys[r]`, `values[r]` `[length, kv_heads, D]` as the cache stores them."""

    case: Case
    query: Tensor
    cache: PagedCache
    block_table: Tensor
    plan: AttentionPlan
    scoring: Scoring
    keys: list[Tensor]
    values: list[Tensor]


def build(case: Case, *, poison: float = math.nan) -> Problem:
    """Draw a problem; slots that must not be read hold `poison`."""
    random = torch.Generator().manual_seed(case.seed)
    cache = _poisoned_cache(case, random, poison)
    table = _block_table(case, cache.blocks, random)
    keys, values = _fill_rows(case, cache, table, random)
    starts = [0]
    for count in case.queries:
        starts.append(starts[-1] + count)
    query = torch.randn(starts[-1], case.q_heads, case.head_size, generator=random)
    if case.logit_shift:
        # Keys have 1 in their first lane (see _fill_rows), so this much in the query's first lane shifts each logit.
        query[:, :, 0] = case.logit_shift * math.sqrt(case.head_size)
    scoring = Scoring(
        soft_cap=case.soft_cap,
        alibi_slopes=torch.rand(case.q_heads, generator=random) if case.alibi else None,
        sinks=torch.randn(case.q_heads, generator=random) + 2.0 if case.sinks else None,
    )
    plan = planning.plan_attention(
        starts, case.lengths, q_heads=case.q_heads, kv_heads=case.kv_heads,
        causal=case.causal, window=case.window, split_divisor=case.split_divisor,
    )  # fmt: skip
    return Problem(case, query.to(case.dtype), cache, table, plan, scoring, keys, values)


def _poisoned_cache(case: Case, random: torch.Generator, poison: float) -> PagedCache:
    needed = sum(-(-length // case.block_size) for length in case.lengths)
    blocks = 1 + needed + case.spare_blocks
    axes = [blocks, case.block_size, case.kv_heads]
    if case.layout == "HND":
        axes[1], axes[2] = axes[2], axes[1]
    dtype = case.cache_dtype or case.dtype
    shape = (*axes, 2, case.head_size) if case.interleaved else (2, *axes, case.head_size)
    pool = torch.full(shape, poison).to(dtype)
    key, value = pool.unbind(3 if case.interleaved else 0)
    length = {"none": 0, "tensor": 1, "head": case.kv_heads}[case.scales]
    scales = [torch.rand(length, generator=random) + 0.25 if length else None for _ in range(2)]
    return PagedCache(key, value, case.layout, key_scale=scales[0], value_scale=scales[1])


def _block_table(case: Case, blocks: int, random: torch.Generator) -> Tensor:
    """Shuffled ids, padded with the null block; one column more than any row needs."""
    ids = torch.randperm(blocks - 1, generator=random).to(torch.int32) + 1
    counts = [-(-length // case.block_size) for length in case.lengths]
    table = torch.zeros(len(counts), max(counts, default=0) + 1, dtype=torch.int32)
    used = 0
    for row, count in enumerate(counts):
        table[row, :count] = ids[used : used + count]
        shared = min(case.shared_blocks, case.lengths[row] // case.block_size, counts[0])
        table[row, :shared] = table[0, :shared]
        used += count
    return table


def _fill_rows(
    case: Case, cache: PagedCache, table: Tensor, random: torch.Generator
) -> tuple[list[Tensor], list[Tensor]]:
    """Write random K and V where rows say, position by position, and read them back as the rows' logical K and V."""
    written: dict[int, tuple[Tensor, Tensor]] = {}
    keys, values = [], []
    for row, length in enumerate(case.lengths):
        k = torch.randn(length, case.kv_heads, case.head_size, generator=random)
        v = torch.randn(length, case.kv_heads, case.head_size, generator=random)
        if case.logit_shift:
            k[:, :, 0] = 1.0
        k, v = (x.to(cache.key.dtype) for x in (k, v))
        for position in range(length):
            block, offset = int(table[row, position // case.block_size]), position % case.block_size
            first = written.setdefault(block * case.block_size + offset, (k[position], v[position]))
            k[position], v[position] = first
            cache.keys[block, offset], cache.values[block, offset] = first
        keys.append(k)
        values.append(v)
    return keys, values


@contextlib.contextmanager
def kernels_on(backend: TestedBackend) -> Iterator[None]:
    """Make a backend usable here: Triton interpreted and watched, with fresh tensors full of NaN on either."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(mode=True)  # fills what `empty` gives with NaN
    try:
        with interpreted(*KERNEL_MODULES) if backend == "triton" else contextlib.nullcontext():
            yield
    finally:
        torch.use_deterministic_algorithms(mode=before)


def attend(problem: Problem, backend: TestedBackend) -> tuple[Tensor, Tensor]:
    """Run the problem; returns output and log-sum-exp."""
    with kernels_on(backend):
        output = torch.full_like(problem.query, math.nan)
        lse = torch.full(problem.query.shape[:2], math.nan)
        dispatch.attention(
            problem.query, problem.cache, problem.block_table, problem.plan,
            scoring=problem.scoring, output=output, log_sum_exp=lse, backend=backend,
        )  # fmt: skip
    return output, lse


def expected(problem: Problem, row: int) -> tuple[Tensor, Tensor]:
    """Ask the oracle for one row."""
    case, cache = problem.case, problem.cache
    starts = problem.plan.query_starts
    return dense_attention(
        problem.query[starts[row] : starts[row + 1]], problem.keys[row], problem.values[row],
        causal=case.causal, window=case.window, soft_cap=case.soft_cap,
        alibi_slopes=problem.scoring.alibi_slopes, sinks=problem.scoring.sinks,
        key_scale=1.0 if cache.key_scale is None else cache.key_scale,
        value_scale=1.0 if cache.value_scale is None else cache.value_scale,
    )  # fmt: skip


def check(problem: Problem, output: Tensor, lse: Tensor) -> None:
    """Compare every row with the oracle; fails with the row and its error."""
    starts = problem.plan.query_starts
    for row in range(len(problem.case.lengths)):
        expected_output, expected_lse = expected(problem, row)
        tokens = slice(starts[row], starts[row + 1])
        leeway = max(1.0, _largest_logit(problem, row) / 10)
        size = expected_output.abs().amax(dim=2, keepdim=True).clamp(min=1.0)
        _compare(f"row {row}, output", output[tokens] / size, expected_output / size, leeway * _tolerance(problem))
        _compare(f"row {row}, log-sum-exp", lse[tokens], expected_lse, leeway * LSE_TOLERANCE)


def _tolerance(problem: Problem) -> float:
    return TOLERANCES[problem.query.dtype]


def _compare(what: str, got: Tensor, wanted: Tensor, tolerance: float) -> None:
    error = torch.where(got.double() == wanted, 0.0, (got.double() - wanted).abs())  # equal infinities are equal
    assert not error.isnan().any(), f"{what}: NaN"
    assert error.numel() == 0 or error.max().item() <= tolerance, f"{what}: error {error.max():.2e} > {tolerance:.2e}"


def _largest_logit(problem: Problem, row: int) -> float:
    starts = problem.plan.query_starts
    query = problem.query[starts[row] : starts[row + 1]].double()
    key = problem.keys[row].double()
    if problem.cache.key_scale is not None:
        key = key * problem.cache.key_scale.double().reshape(1, -1, 1)
    if not key.numel() or not query.numel():
        return 0.0
    key = key.repeat_interleave(problem.plan.group, dim=1)
    return torch.einsum("ihd,jhd->hij", query, key).abs().max().item() / math.sqrt(problem.case.head_size)

"""Inputs for the kernels, at any size: for checks against the oracle, and for timing.

A `Shape` says what, `make` draws it. Blocks are shuffled over the pool, lengths are all alike unless given. For timing,
a cache that would fit a GPU's L2 is made several times over, and calls take turns over the copies (`Problem.caches`):
an engine has another layer's cache to read next, and never finds this one's in the L2.
"""

import math
from dataclasses import dataclass

import torch
from pagedkv.kernels.arguments import FLOAT8_DTYPES, PagedCache, Scoring
from pagedkv.kernels.plan import AttentionPlan, plan_attention
from torch import Tensor

L2_BYTES_MAX = 100 * 2**20
ROTATION_BYTES = 400 * 2**20


@dataclass(frozen=True, slots=True)
class Shape:
    """Sequences with `queries` new tokens each at the end of `lengths` positions (one length: `batch` of them)."""

    name: str
    batch: int
    length: int
    queries: int = 1
    block_size: int = 16
    q_heads: int = 32
    kv_heads: int = 8
    head_size: int = 128
    dtype: torch.dtype = torch.bfloat16
    cache_dtype: torch.dtype | None = None
    lengths: tuple[int, ...] = ()
    window: int | None = None
    soft_cap: float | None = None
    sinks: bool = False

    @property
    def all_lengths(self) -> tuple[int, ...]:
        """Positions of each sequence."""
        return self.lengths or (self.length,) * self.batch

    @property
    def cache_bytes(self) -> int:
        """Bytes of K and V that a call must read at least once."""
        size = (self.cache_dtype or self.dtype).itemsize
        return 2 * sum(self.all_lengths) * self.kv_heads * self.head_size * size

    @property
    def moved_bytes(self) -> int:
        """Bytes of K, V, query and output."""
        return self.cache_bytes + 2 * self.batch * self.queries * self.q_heads * self.head_size * self.dtype.itemsize

    @property
    def flops(self) -> int:
        """Operations of both matrix products over the visible positions, a multiply-add counted as two."""
        seen = sum(self.queries * n - self.queries * (self.queries - 1) // 2 for n in self.all_lengths)
        return 4 * seen * self.q_heads * self.head_size


@dataclass(frozen=True, slots=True)
class Problem:
    """A shape as tensors; `caches` are alike in all but contents."""

    shape: Shape
    query: Tensor
    caches: list[PagedCache]
    block_table: Tensor
    plan: AttentionPlan
    scoring: Scoring


def make(shape: Shape, device: torch.device, seed: int = 0, *, poison: bool = False, rotate: bool = False) -> Problem:
    """Draw a problem. `poison`: what must not be read is NaN. `rotate`: as many caches as an L2 cannot hold."""
    random = torch.Generator(device).manual_seed(seed)
    lengths = shape.all_lengths
    counts = [-(-length // shape.block_size) for length in lengths]
    ids = torch.randperm(sum(counts), generator=random, device=device).to(torch.int32) + 1
    block_table = torch.zeros(len(lengths), max(counts), dtype=torch.int32, device=device)
    used = 0
    for row, count in enumerate(counts):
        block_table[row, :count] = ids[used : used + count]
        used += count
    copies = math.ceil(ROTATION_BYTES / shape.cache_bytes) if rotate and shape.cache_bytes < L2_BYTES_MAX else 1
    caches = [_cache(shape, sum(counts) + 1, random, device) for _ in range(copies)]
    if poison:
        for cache in caches:
            _poison(cache, block_table, lengths)
    starts = range(0, shape.queries * len(lengths) + 1, shape.queries)
    plan = plan_attention(starts, lengths, q_heads=shape.q_heads, kv_heads=shape.kv_heads, window=shape.window)
    query = torch.randn(starts[-1], shape.q_heads, shape.head_size, generator=random, device=device, dtype=shape.dtype)
    sinks = torch.randn(shape.q_heads, generator=random, device=device) if shape.sinks else None
    scoring = Scoring(soft_cap=shape.soft_cap, sinks=sinks)
    return Problem(shape, query, caches, block_table, plan.to(device), scoring)


def _cache(shape: Shape, blocks: int, random: torch.Generator, device: torch.device) -> PagedCache:
    """Draw K and V; fp8 ones with a scale."""
    dtype = shape.cache_dtype or shape.dtype
    axes = (blocks, shape.block_size, shape.kv_heads, shape.head_size)
    drawn_as = torch.float16 if dtype in FLOAT8_DTYPES else dtype
    key, value = (torch.randn(axes, generator=random, device=device, dtype=drawn_as).to(dtype) for _ in range(2))
    scale = torch.full((1,), 0.5, device=device) if dtype in FLOAT8_DTYPES else None
    return PagedCache(key, value, key_scale=scale, value_scale=scale)


def _poison(cache: PagedCache, block_table: Tensor, lengths: tuple[int, ...]) -> None:
    """Fill with NaN the null block and every slot behind a length."""
    for tensor in (cache.key, cache.value):
        tensor[0] = math.nan
        for row, length in enumerate(lengths):
            if length % cache.block_size:
                tensor[block_table[row, length // cache.block_size].long(), length % cache.block_size :] = math.nan


def logical(problem: Problem, row: int) -> tuple[Tensor, Tensor]:
    """Return a row's K and V `[length, kv_heads, D]` in order, as stored, on the host."""
    cache, length = problem.caches[0], problem.shape.all_lengths[row]
    blocks = problem.block_table[row, : -(-length // cache.block_size)].long()
    key, value = (
        tensor.view(torch.uint8)[blocks].flatten(0, 1)[:length].view(tensor.dtype).cpu()
        for tensor in (cache.keys, cache.values)
    )
    return key, value

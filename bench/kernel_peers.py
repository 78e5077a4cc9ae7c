"""Other ways to the same result, for timing beside ours in one run: whatever of them can be imported here.

Each peer takes a `Problem` and returns a call, or None where it does not apply or is not installed. They get what they
like best: contiguous SDPA is no paged attention at all, its K and V are laid out beforehand; FlashInfer plans
beforehand; flex_attention is compiled and its mask made beforehand, except in torch's own `PagedAttention` path, which
has to convert its mask each step.
"""

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import torch
from pagedkv.bench.kernel_problems import Problem
from pagedkv.bench.kernel_timing import Call
from pagedkv.kernels.arguments import PagedCache
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

SDPA_BYTES_MAX = 16 * 2**30  # beside the cache, it needs room for two copies

Peer = Callable[[Problem], Call | None]


def contiguous_sdpa(problem: Problem) -> Call | None:
    """SDPA on contiguous K and V, the heads of a group packed as query rows where there is one query token."""
    if not _is_plain(problem):
        return None
    laid_out = [_gathered(problem, cache) for cache in problem.caches]
    turns = cycle([(key.contiguous(), value.contiguous()) for key, value in laid_out])
    query = _batched_query(problem)
    return lambda: _sdpa(query, *next(turns), causal=problem.shape.queries > 1)


def gathered_sdpa(problem: Problem) -> Call | None:
    """Gather the whole batch through its block table, then SDPA."""
    if not _is_plain(problem):
        return None
    query, turns = _batched_query(problem), cycle(problem.caches)
    return lambda: _sdpa(query, *_gathered(problem, next(turns)), causal=problem.shape.queries > 1)


def _is_plain(problem: Problem) -> bool:
    """Equal lengths in whole blocks, one dtype: what SDPA can take in one call."""
    shape = problem.shape
    whole = all(n % shape.block_size == 0 for n in shape.all_lengths)
    small = shape.cache_bytes <= SDPA_BYTES_MAX
    return len(set(shape.all_lengths)) == 1 and whole and small and shape.cache_dtype in {None, shape.dtype}


def _gathered(problem: Problem, cache: PagedCache) -> tuple[Tensor, Tensor]:
    """K and V as `[batch, kv_heads, positions, D]`."""
    shape = problem.shape
    axes = (shape.batch, -1, shape.kv_heads, shape.head_size)
    flat = problem.block_table.flatten()
    key, value = (t.index_select(0, flat).view(axes).transpose(1, 2) for t in (cache.key, cache.value))
    return key, value


def _batched_query(problem: Problem) -> Tensor:
    """`[batch, kv_heads, group, D]` for one token, `[batch, q_heads, queries, D]` for more."""
    shape = problem.shape
    if shape.queries == 1:
        return problem.query.view(shape.batch, shape.kv_heads, -1, shape.head_size)
    return problem.query.view(shape.batch, shape.queries, shape.q_heads, shape.head_size).transpose(1, 2)


def _sdpa(query: Tensor, key: Tensor, value: Tensor, *, causal: bool) -> Tensor:
    if not causal:
        return scaled_dot_product_attention(query, key, value)
    queries, positions = query.shape[2], key.shape[2]
    if queries == positions:
        return scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    bias = importlib.import_module("torch.nn.attention.bias").causal_lower_right(queries, positions)
    return scaled_dot_product_attention(query, key, value, attn_mask=bias, enable_gqa=True)


class _Paged:
    """torch's `PagedAttention` set up for a problem: its page table, our cache as its pool."""

    def __init__(self, problem: Problem) -> None:
        shape = problem.shape
        self.flex = importlib.import_module("torch.nn.attention.flex_attention")
        paged = importlib.import_module("torch.nn.attention.experimental._paged_attention")
        cache = problem.caches[0]
        device = str(problem.query.device)
        self.pages = paged.PagedAttention(cache.blocks, shape.block_size, shape.batch, device=device)
        table = problem.block_table.long()
        self.pages.page_table[:, : table.shape[1]] = table
        rows = torch.arange(shape.batch, device=table.device)[:, None]
        self.pages.physical_to_logical[rows, table] = torch.arange(table.shape[1], device=table.device)
        self.logical = self.flex.create_block_mask(
            lambda _b, _h, _q, _k: torch.ones((), dtype=torch.bool, device=device),
            shape.batch, None, 1, shape.length, device=device, BLOCK_SIZE=(128, shape.block_size),
        )  # fmt: skip
        self.query = problem.query.view(shape.batch, shape.q_heads, 1, shape.head_size)
        pools = [
            (c.key.flatten(0, 1).transpose(0, 1)[None], c.value.flatten(0, 1).transpose(0, 1)[None])
            for c in problem.caches
        ]
        self.turns = cycle(pools)
        self.compiled: Callable[..., object] = torch.compile(self.flex.flex_attention, dynamic=False)

    def mask(self) -> Any:
        """The logical mask in terms of physical pages."""
        return self.pages.convert_logical_block_mask(self.logical)

    def attend(self, mask: Any) -> object:
        """One call of compiled flex_attention."""
        key, value = next(self.turns)
        return self.compiled(self.query, key, value, block_mask=mask, enable_gqa=True)


def flex_paged_mask(problem: Problem) -> Call | None:
    """Compiled flex_attention with a paged mask that was made beforehand."""
    if not _is_plain(problem) or problem.shape.queries != 1:
        return None
    paged = _Paged(problem)
    mask = paged.mask()
    return lambda: paged.attend(mask)


def torch_paged_attention(problem: Problem) -> Call | None:
    """The path of torch's `PagedAttention`: convert the mask, then compiled flex_attention, each step."""
    if not _is_plain(problem) or problem.shape.queries != 1:
        return None
    paged = _Paged(problem)
    return lambda: paged.attend(paged.mask())


def flashinfer(problem: Problem) -> Call | None:
    """FlashInfer's batch wrapper, planned beforehand; decode or paged prefill."""
    if importlib.util.find_spec("flashinfer") is None or problem.query.device.type != "cuda":
        return None
    library = importlib.import_module("flashinfer")
    shape, device = problem.shape, problem.query.device
    counts = [-(-n // shape.block_size) for n in shape.all_lengths]
    starts = torch.tensor([0, *counts], device=device).cumsum(0).int()
    ids = torch.cat([row[:count] for row, count in zip(problem.block_table, counts, strict=True)])
    last = torch.tensor([(n - 1) % shape.block_size + 1 for n in shape.all_lengths], device=device).int()
    workspace = torch.empty(256 * 2**20, dtype=torch.uint8, device=device)
    heads = (shape.q_heads, shape.kv_heads, shape.head_size, shape.block_size)
    dtypes = {"q_data_type": shape.dtype, "kv_data_type": shape.cache_dtype or shape.dtype}
    if shape.queries == 1:
        wrapper = library.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
        wrapper.plan(starts, ids, last, *heads, **dtypes)
    else:
        wrapper = library.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
        queries = torch.arange(0, shape.batch * shape.queries + 1, shape.queries, device=device).int()
        wrapper.plan(queries, starts, ids, last, *heads, causal=True, **dtypes)
    turns = cycle(problem.caches)

    def call() -> object:
        cache = next(turns)
        return wrapper.run(problem.query, (cache.key, cache.value))

    return call


def flash_attn(problem: Problem) -> Call | None:
    """flash-attn's `flash_attn_with_kvcache` over a block table; its blocks are multiples of 256."""
    shape = problem.shape
    if importlib.util.find_spec("flash_attn") is None or problem.query.device.type != "cuda":
        return None
    if shape.block_size % 256 or shape.cache_dtype not in {None, shape.dtype}:
        return None
    attend = importlib.import_module("flash_attn").flash_attn_with_kvcache
    query = problem.query.view(shape.batch, shape.queries, shape.q_heads, shape.head_size)
    lengths = torch.tensor(shape.all_lengths, device=problem.query.device).int()
    turns = cycle(problem.caches)

    def call() -> object:
        cache = next(turns)
        return attend(
            query, cache.key, cache.value, cache_seqlens=lengths, block_table=problem.block_table, causal=True
        )

    return call


CHEAP: dict[str, Peer] = {
    "contiguous SDPA": contiguous_sdpa,
    "gather, then SDPA": gathered_sdpa,
    "FlashInfer": flashinfer,
    "flash-attn": flash_attn,
}
COMPILED: dict[str, Peer] = {
    "flex_attention, paged mask": flex_paged_mask,
    "torch PagedAttention": torch_paged_attention,
}


def peers_of(problem: Problem, *, compiled: bool) -> Iterator[tuple[str, Call]]:
    """Yield the peers that can do this problem; with `compiled` those, too, that take seconds to compile."""
    for name, peer in {**CHEAP, **(COMPILED if compiled else {})}.items():
        call = peer(problem)
        if call is not None:
            yield name, call

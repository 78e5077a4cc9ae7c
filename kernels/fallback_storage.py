"""Append, block copies, gather, scatter and merge in plain torch: one indexed operation each.

Each has the meaning, and the tests, of the Triton kernel of the same name. A negative slot is filtered out, never used
as an index: Python's -1 would name the last slot of the last block (vllm#43810).
"""

import math

import torch
from pagedkv.kernels.arguments import FLOAT8_DTYPES, Layout, PagedCache, position_major
from torch import Tensor


def append(key: Tensor, value: Tensor, cache: PagedCache, slots: Tensor) -> None:
    """Write new K and V `[tokens, kv_heads, D]` to slots `[tokens]` (block x B + offset; negative: nothing)."""
    kept = torch.nonzero(slots >= 0).flatten()
    chosen = slots[kept]
    blocks, offsets = chosen // cache.block_size, chosen % cache.block_size
    pairs = ((key, cache.keys, cache.key_scale), (value, cache.values, cache.value_scale))
    for new, held, scale in pairs:
        _bytes(held)[blocks, offsets] = _bytes(encode(new[kept], held.dtype, scale))


def encode(numbers: Tensor, dtype: torch.dtype, scale: Tensor | None) -> Tensor:
    """Turn `[tokens, kv_heads, D]` into what the cache stores: divided by the scale, saturated, not NaN, in fp8."""
    stored = numbers if scale is None else numbers.float() / scale.reshape(1, -1, 1)
    if dtype in FLOAT8_DTYPES:
        largest = torch.finfo(dtype).max
        stored = stored.float().clamp(-largest, largest)
    return stored.to(dtype)


def copy_blocks(pool: Tensor, sources: Tensor, targets: Tensor, extents: Tensor | None, layout: Layout) -> None:
    """Copy the first `extents` positions of each source block to its target block, in every layer, for K and V."""
    blocks = _bytes(position_major(pool, layout))  # [layers, 2, blocks, B, heads, D]
    if extents is None:
        blocks[:, :, targets] = blocks[:, :, sources]
        return
    inside = torch.arange(blocks.shape[3], device=pool.device)[None, :] < extents[:, None]
    which, position = torch.nonzero(inside, as_tuple=True)
    blocks[:, :, targets[which], position] = blocks[:, :, sources[which], position]


def gather_blocks(pool: Tensor, blocks: Tensor, staging: Tensor) -> None:
    """Fill staging `[n, layers, 2, ...]` with the n blocks named."""
    _bytes(staging).copy_(_bytes(pool)[:, :, blocks].movedim(2, 0))


def scatter_blocks(staging: Tensor, pool: Tensor, blocks: Tensor) -> None:
    """Write staging `[n, layers, 2, ...]` into the n blocks named."""
    _bytes(pool)[:, :, blocks] = _bytes(staging).to(pool.device).movedim(0, 2)


def merge(outputs: Tensor, log_sum_exps: Tensor, output: Tensor, log_sum_exp: Tensor) -> None:
    """Join states `[states, tokens, heads, D]` and `[states, tokens, heads]` into `output` and `log_sum_exp`."""
    maximum = log_sum_exps.amax(dim=0)
    reference = maximum.masked_fill(maximum == -math.inf, 0.0)
    weights = torch.exp(log_sum_exps - reference)
    total = weights.sum(dim=0)
    # (anything, -inf) is the identity: what stands beside -inf does not count, not even NaN.
    parts = outputs.float().masked_fill((log_sum_exps == -math.inf)[..., None], 0.0) * weights[..., None]
    output.copy_(parts.sum(dim=0) / total.masked_fill(total == 0, 1.0)[..., None])
    log_sum_exp.copy_(maximum + total.log())


def _bytes(tensor: Tensor) -> Tensor:
    """View fp8 as bytes, since torch indexes few fp8 tensors; others as they are."""
    return tensor.view(torch.uint8) if tensor.dtype in FLOAT8_DTYPES else tensor

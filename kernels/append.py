"""Append of new K and V to the cache, on Triton: a scatter by slot mapping, with the fp8 scale applied on the way.

One program takes 16 tokens of one KV head. A token with slot -1 writes nothing (R-TAB-2): it is masked before its slot
is divided into block and offset. Considered: one program a token over all heads (too little work in flight for small
batches); Python's floor division of -1, which names the last slot of the last block (vllm#43810).
"""
# mypy: disable-error-code="untyped-decorator"
# ruff: noqa: N803, PLR0917  (a kernel has the parameters that its launch passes; constexpr ones are upper case)

from typing import Any

import torch
import triton
import triton.language as tl
from pagedkv.kernels.arguments import FLOAT8_DTYPES, PagedCache
from pagedkv.kernels.attention import check_float8, scale_stride
from pagedkv.kernels.launch import KernelCall
from pagedkv.kernels.tiles import power_of_two_above
from torch import Tensor

TOKENS_A_PROGRAM = 16


@triton.jit(do_not_specialize=["tokens"])  # it varies with the batch, and would recompile
def append_kernel(
    new_key: tl.tensor, new_value: tl.tensor, key: tl.tensor, value: tl.tensor, slots: tl.tensor,
    key_scale: tl.tensor, value_scale: tl.tensor, tokens: tl.tensor, kv_heads: tl.tensor,
    new_key_token_stride: tl.tensor, new_key_head_stride: tl.tensor,
    new_value_token_stride: tl.tensor, new_value_head_stride: tl.tensor,
    key_block_stride: tl.tensor, key_position_stride: tl.tensor, key_head_stride: tl.tensor,
    value_block_stride: tl.tensor, value_position_stride: tl.tensor, value_head_stride: tl.tensor,
    key_scale_stride: tl.tensor, value_scale_stride: tl.tensor,
    BLOCK_SIZE: tl.constexpr, HEAD: tl.constexpr, HEAD_PADDED: tl.constexpr, TOKENS: tl.constexpr,
    LARGEST: tl.constexpr,
) -> None:  # fmt: skip
    """Write K and V of TOKENS tokens of one head to their slots. LARGEST: what an fp8 cache saturates at, else 0."""
    token = (tl.program_id(0) // kv_heads).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    head = (tl.program_id(0) % kv_heads).to(tl.int64)
    lane = tl.arange(0, HEAD_PADDED)
    slot = tl.load(slots + token, mask=token < tokens, other=-1)
    written = (slot >= 0)[:, None] & (lane < HEAD)[None, :]
    block = (slot // BLOCK_SIZE)[:, None]
    offset = (slot % BLOCK_SIZE)[:, None]

    source = new_key + token[:, None] * new_key_token_stride + head * new_key_head_stride + lane[None, :]
    target = key + block * key_block_stride + offset * key_position_stride + head * key_head_stride + lane[None, :]
    numbers = tl.load(source, mask=written, other=0.0)
    if key_scale is not None:
        numbers = numbers.to(tl.float32) / tl.load(key_scale + head * key_scale_stride)
    tl.store(target, _encode(numbers, target.dtype.element_ty, LARGEST), mask=written)

    source = new_value + token[:, None] * new_value_token_stride + head * new_value_head_stride + lane[None, :]
    target = value + block * value_block_stride + offset * value_position_stride + head * value_head_stride
    numbers = tl.load(source, mask=written, other=0.0)
    if value_scale is not None:
        numbers = numbers.to(tl.float32) / tl.load(value_scale + head * value_scale_stride)
    tl.store(target + lane[None, :], _encode(numbers, target.dtype.element_ty, LARGEST), mask=written)


@triton.jit
def _encode(numbers: tl.tensor, dtype: tl.constexpr, LARGEST: tl.constexpr) -> tl.tensor:
    """Turn numbers into what the cache stores; fp8 saturates (NaN stays NaN)."""
    if LARGEST > 0.0:
        numbers = tl.clamp(numbers.to(tl.float32), -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
    return numbers.to(dtype)


def append(key: Tensor, value: Tensor, cache: PagedCache, slots: Tensor) -> None:
    """Launch the append. Arguments are checked (`dispatch.append`)."""
    check_float8(cache)
    append_call(key, value, cache, slots).run()


def append_call(key: Tensor, value: Tensor, cache: PagedCache, slots: Tensor) -> KernelCall:
    """Build the launch: one program for 16 tokens of a KV head."""
    keys, values = cache.keys, cache.values
    is_float8 = cache.key.dtype in FLOAT8_DTYPES
    arguments: dict[str, Any] = {
        "new_key": key, "new_value": value, "key": cache.key, "value": cache.value, "slots": slots,
        "key_scale": cache.key_scale, "value_scale": cache.value_scale,
        "tokens": slots.shape[0], "kv_heads": cache.kv_heads,
        "new_key_token_stride": key.stride(0), "new_key_head_stride": key.stride(1),
        "new_value_token_stride": value.stride(0), "new_value_head_stride": value.stride(1),
        "key_block_stride": keys.stride(0), "key_position_stride": keys.stride(1), "key_head_stride": keys.stride(2),
        "value_block_stride": values.stride(0), "value_position_stride": values.stride(1),
        "value_head_stride": values.stride(2),
        "key_scale_stride": scale_stride(cache.key_scale), "value_scale_stride": scale_stride(cache.value_scale),
        "BLOCK_SIZE": cache.block_size, "HEAD": cache.head_size, "HEAD_PADDED": power_of_two_above(cache.head_size),
        "TOKENS": TOKENS_A_PROGRAM, "LARGEST": torch.finfo(cache.key.dtype).max if is_float8 else 0.0,
    }  # fmt: skip
    grid = (triton.cdiv(slots.shape[0], TOKENS_A_PROGRAM) * cache.kv_heads,)
    return KernelCall(append_kernel, grid, arguments, {"num_warps": 4})

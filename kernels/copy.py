"""Block copies on Triton: copy within a pool, gather to staging, scatter from staging, all layers and K and V at once.

One kernel does all three: it moves block `from_ids[n]` (or the n-th) of one tensor to block `to_ids[n]` (or the n-th)
of another, each with its own six strides, so that either layout and interleaved views work (R-KRN-5). Each program
moves 32 rows (position, head) of one block of one layer's K or V. Bytes are moved as they are: no number is decoded.
"""
# mypy: disable-error-code="untyped-decorator"
# ruff: noqa: N803, PLR0917  (a kernel has the parameters that its launch passes; constexpr ones are upper case)

from typing import Any

import torch
import triton
import triton.language as tl
from pagedkv.kernels.arguments import FLOAT8_DTYPES, Layout, position_major
from pagedkv.kernels.launch import KernelCall
from pagedkv.kernels.tiles import power_of_two_above
from torch import Tensor

ROWS_A_PROGRAM = 32


@triton.jit
def copy_kernel(
    source: tl.tensor, target: tl.tensor, source_ids: tl.tensor, target_ids: tl.tensor, extents: tl.tensor,
    kv_heads: tl.tensor,
    source_layer: tl.tensor, source_half: tl.tensor, source_block: tl.tensor, source_position: tl.tensor,
    source_head: tl.tensor,
    target_layer: tl.tensor, target_half: tl.tensor, target_block: tl.tensor, target_position: tl.tensor,
    target_head: tl.tensor,
    BLOCK_SIZE: tl.constexpr, HEAD: tl.constexpr, HEAD_PADDED: tl.constexpr, ROWS: tl.constexpr,
) -> None:  # fmt: skip
    """Move ROWS rows of K or V of one layer of one block. The integers after `kv_heads` are strides in elements."""
    copy = tl.program_id(0)
    layer = (tl.program_id(1) // 2).to(tl.int64)
    half = (tl.program_id(1) % 2).to(tl.int64)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    lane = tl.arange(0, HEAD_PADDED)
    extent = BLOCK_SIZE
    if extents is not None:
        extent = tl.load(extents + copy)
    position = row // kv_heads
    moved = (position < extent)[:, None] & (lane < HEAD)[None, :]
    position = position.to(tl.int64)
    head = (row % kv_heads).to(tl.int64)

    block = copy.to(tl.int64)
    if source_ids is not None:
        block = tl.load(source_ids + copy)
    base = source + layer * source_layer + half * source_half + block * source_block
    data = tl.load(base + (position * source_position + head * source_head)[:, None] + lane[None, :], mask=moved)

    block = copy.to(tl.int64)
    if target_ids is not None:
        block = tl.load(target_ids + copy)
    base = target + layer * target_layer + half * target_half + block * target_block
    tl.store(base + (position * target_position + head * target_head)[:, None] + lane[None, :], data, mask=moved)


def copy_blocks(pool: Tensor, sources: Tensor, targets: Tensor, extents: Tensor | None, layout: Layout) -> None:
    """Copy within a pool. Arguments are checked (`dispatch.copy_blocks`)."""
    blocks = position_major(pool, layout)
    copy_call(blocks, blocks, sources, targets, extents, len(sources)).run()


def gather_blocks(pool: Tensor, blocks: Tensor, staging: Tensor) -> None:
    """Gather blocks into staging `[n, layers, 2, ...]`. Arguments are checked (`dispatch.gather_blocks`)."""
    copy_call(pool, staging.movedim(0, 2), blocks, None, None, len(blocks)).run()


def scatter_blocks(staging: Tensor, pool: Tensor, blocks: Tensor) -> None:
    """Scatter staging into blocks. Arguments are checked (`dispatch.scatter_blocks`)."""
    copy_call(staging.movedim(0, 2), pool, None, blocks, None, len(blocks)).run()


def copy_call(
    source: Tensor, target: Tensor, source_ids: Tensor | None, target_ids: Tensor | None, extents: Tensor | None,
    count: int,
) -> KernelCall:  # fmt: skip
    """Build one launch that moves `count` blocks between `[layers, 2, blocks, B, heads, D]` views."""
    layers, halves, _, block_size, kv_heads, head_size = source.shape
    if source.dtype in FLOAT8_DTYPES:
        source, target = source.view(torch.uint8), target.view(torch.uint8)
    names = ("layer", "half", "block", "position", "head")
    arguments: dict[str, Any] = {
        "source": source, "target": target, "source_ids": source_ids, "target_ids": target_ids, "extents": extents,
        "kv_heads": kv_heads, "BLOCK_SIZE": block_size, "HEAD": head_size,
        "HEAD_PADDED": power_of_two_above(head_size), "ROWS": ROWS_A_PROGRAM,
        **{f"source_{name}": stride for name, stride in zip(names, source.stride()[:5], strict=True)},
        **{f"target_{name}": stride for name, stride in zip(names, target.stride()[:5], strict=True)},
    }  # fmt: skip
    grid = (count, layers * halves, triton.cdiv(block_size * kv_heads, ROWS_A_PROGRAM))
    return KernelCall(copy_kernel, grid, arguments, {"num_warps": 4})

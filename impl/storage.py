"""Where the bookkeeping meets the bytes: the K/V tensors of all layers, and the kernels that follow its block tables.

`Storage` owns one pool tensor, `[layers, 2, blocks + 1, ...]` with the null block in front, so that a block copy moves
K and V of all layers in one launch. It follows what `BlockCache` decides and decides nothing itself: `copy` does a
launch's planned copies, `append` writes new K and V at its slot mapping, `attend` reads by its rows of the cache's
table. In that order within a step, layer by layer for the last two, on one stream: that is what a launch is.

Guarantees: the null block is zero and stays so, so that padding can never bring a NaN into a result (R-TAB-2); sizes
come from one function, which sizing and allocation share (R-MEM-1). Cost: that of the kernels, and of sending a batch's
rows and slots to the device. Considered: one tensor a layer, which needs a launch a layer for each copy-on-write.
"""

from dataclasses import dataclass

import numpy as np
import torch
from pagedkv.kernels import dispatch
from pagedkv.kernels.arguments import PLAIN, InvalidKernelArgument, Layout, PagedCache, Scoring
from pagedkv.kernels.checks import LARGEST_HEAD, SMALLEST_HEAD, check_cache
from pagedkv.kernels.plan import AttentionPlan, plan_attention
from torch import Tensor

from .arguments import integer, shown
from .arithmetic import Paging
from .arrays import Int32Array, Int64Array
from .device import existing
from .refusals import InvalidArgument
from .results import Launch


@dataclass(frozen=True, slots=True)
class KvShape:
    """What one position of K and V is: layers x 2 x kv_heads x head_size numbers of a dtype, on this rank."""

    layers: int
    kv_heads: int
    head_size: int
    dtype: torch.dtype = torch.bfloat16
    layout: Layout = "NHD"


def pool_shape(shape: KvShape, blocks: int, block_size: int) -> tuple[int, ...]:
    """Return the shape of the pool tensor, the null block among its blocks."""
    inner = (block_size, shape.kv_heads) if shape.layout == "NHD" else (shape.kv_heads, block_size)
    return (shape.layers, 2, blocks + 1, *inner, shape.head_size)


def bytes_needed(shape: KvShape, blocks: int, block_size: int) -> int:
    """Return the bytes of the pool tensor: what an engine has to set aside for so many usable blocks."""
    return int(np.prod(pool_shape(shape, blocks, block_size), dtype=object)) * shape.dtype.itemsize


def new_positions(launch: Launch) -> Int64Array:
    """Return the positions `[tokens]` that a launch writes, row by row. O(tokens)."""
    counts = launch.lengths - launch.starts
    if counts.max(initial=0) == 1:  # a step of decode
        return launch.starts
    before = np.cumsum(counts) - counts
    positions: Int64Array = np.repeat(launch.starts - before, counts) + np.arange(counts.sum())
    return positions


def slot_mapping(launch: Launch, positions: Int64Array, paging: Paging) -> Int64Array:
    """Return the slots `[tokens]` of a launch's new positions, by its rows as they are now. O(tokens)."""
    rows = launch.rows.astype(np.intp)
    if positions is not launch.starts:
        rows = np.repeat(rows, launch.lengths - launch.starts)
    index, offset = paging.locate(positions)
    return paging.slot(launch.table[rows, index].astype(np.int64), offset)


class Storage:
    """K and V of all layers in blocks, beside a `BlockCache` of the same `blocks` and `block_size`.

    `key_scale` and `value_scale` are float32 `[1]` or `[kv_heads]`, for fp8 pools. Errors: `InvalidArgument` for what
    no kernel could read, before the pool is allocated; `pagedkv.kernels.arguments.InvalidKernelArgument` for tensors
    that do not fit, before anything is written.
    """

    __slots__ = ("_key_scale", "_value_scale", "block_size", "blocks", "device", "paging", "pool", "shape")

    def __init__(
        self,
        shape: KvShape,
        blocks: int,
        block_size: int,
        *,
        device: torch.device | str = "cpu",
        key_scale: Tensor | None = None,
        value_scale: Tensor | None = None,
    ) -> None:
        _check_shape(shape)
        integer("blocks", blocks, 1, 2**31 - 2)
        integer("block_size", block_size, 1, 2**31 - 1)
        self.shape = shape
        self.blocks, self.block_size, self.paging = blocks, block_size, Paging(block_size)
        self.device = existing(device)
        position = torch.empty(pool_shape(shape, 1, 1)[2:], dtype=shape.dtype, device=self.device)
        try:  # what every launch would be refused for is refused here
            check_cache(PagedCache(position, position, shape.layout, key_scale, value_scale))
        except InvalidKernelArgument as error:
            raise InvalidArgument(f"the kernels take no such storage: {error}") from None
        self.pool = torch.zeros(pool_shape(shape, blocks, block_size), dtype=shape.dtype, device=self.device)
        self._key_scale, self._value_scale = key_scale, value_scale

    def layer(self, layer: int) -> PagedCache:
        """Return one layer's K and V as strided views of the pool. O(1)."""
        layer = integer("a layer", layer, 0, self.shape.layers - 1)
        key, value = self.pool[layer, 0], self.pool[layer, 1]
        return PagedCache(key, value, self.shape.layout, self._key_scale, self._value_scale)

    def copy(self, launch: Launch) -> None:
        """Do a launch's planned copies, all layers at once: before anything of the launch is written (R-COW-3)."""
        if launch.copies.sources.size:
            self.copy_blocks(*(self._send(ids.astype(np.int64)) for ids in launch.copies[1:]))

    def copy_blocks(self, sources: Tensor, targets: Tensor, extents: Tensor) -> None:
        """Copy the first `extents[i]` positions of each source to its target, `[copies]` int64 on the device each."""
        dispatch.copy_blocks(self.pool, sources, targets, extents=extents, layout=self.shape.layout)

    def slots(self, launch: Launch) -> Tensor:
        """Return the slot mapping `[tokens]` int64 of a launch's new positions, row by row: once a step for all layers.

        What `extend` returned in parts, for what is launched together; for the known tokens of `add`, too.
        """
        return self._send(slot_mapping(launch, new_positions(launch), self.paging))

    def append(self, layer: int, key: Tensor, value: Tensor, slots: Tensor) -> None:
        """Write K and V `[tokens, kv_heads, D]` of one layer at the slots of a launch's new positions."""
        dispatch.append(key, value, self.layer(layer), slots)

    def plan(self, launch: Launch, q_heads: int, *, window: int | None = None) -> AttentionPlan:
        """Plan the attention of a launch: each row's new positions over all up to them. Once a step, for all layers."""
        starts = np.concatenate(([0], np.cumsum(launch.lengths - launch.starts)))
        return plan_attention(starts, launch.lengths, q_heads=q_heads, kv_heads=self.shape.kv_heads, window=window)

    def rows(self, launch: Launch) -> Tensor:
        """Return the block tables of a launch's rows as int32 on the device, as far as they are read."""
        longest = int(launch.lengths.max(initial=0))
        columns = -(-longest // self.block_size)
        return self._send(launch.table[launch.rows, :columns])

    def attend(
        self,
        layer: int,
        query: Tensor,
        rows: Tensor,
        plan: AttentionPlan,
        *,
        scoring: Scoring = PLAIN,
        output: Tensor | None = None,
    ) -> Tensor:
        """Attend with `[tokens, q_heads, D]` queries, the launch's new positions row by row, over its rows."""
        return dispatch.attention(query, self.layer(layer), rows, plan, scoring=scoring, output=output)

    def _send(self, array: Int32Array | Int64Array) -> Tensor:
        """Bring an array to the device; a copy of its own, so that the host may go on changing it."""
        return torch.from_numpy(np.ascontiguousarray(array).copy()).to(self.device, non_blocking=True)


def _check_shape(shape: KvShape) -> None:
    """Refuse what is no shape at all; whether kernels can read it they say themselves."""
    if not isinstance(shape, KvShape):
        raise InvalidArgument(f"a storage's shape must be a KvShape(layers, kv_heads, head_size), not {shown(shape)}")
    integer("layers", shape.layers, 1, 2**20)
    integer("kv_heads", shape.kv_heads, 1, 2**20)
    integer("head_size", shape.head_size, SMALLEST_HEAD, LARGEST_HEAD)
    if not isinstance(shape.dtype, torch.dtype):
        raise InvalidArgument(f"the dtype must be torch's, as torch.bfloat16, not {shown(shape.dtype)}")
    if shape.layout not in ("NHD", "HND"):
        raise InvalidArgument(f"the layout must be NHD or HND, not {shown(shape.layout)}")

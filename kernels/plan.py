"""Which program reads which positions: the work list of one step, made on the host once and used by every layer.

`tiles` says how the work is cut, and why so. A plan is that cut as int32 records, a few an item, which go to the device
once a step: items of small and of large row tiles, and what the merge kernel joins.

Costs. Vectorised numpy, O(rows + items). The lengths must be known on the host: a serving engine knows them, and a
device tensor is copied (which waits for the device) where one is given. A CUDA graph is captured over a plan with a
`capacity`, whose records are overwritten in place for the next step (`refresh_`); those left over mean nothing to do.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from pagedkv.kernels.arguments import InvalidKernelArgument
from pagedkv.kernels.tiles import (
    LONGEST_SPLIT,
    Int32Array,
    IntArray,
    TileRows,
    row_tiles,
    split_length,
    split_tiles,
)
from torch import Tensor

Lengths = Sequence[int] | IntArray | Tensor

SPLIT_DIVISORS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class WorkList:
    """The items of one kind of tile, `[items, 7]` int32, on the host or the device. `rows` is the tile's row count."""

    items: Tensor
    rows: int


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """One step's work: make it with `plan_attention`, pass it to the attention of every layer with the same visibility.

    `query_starts` `[rows + 1]`, `kv_lengths` and `kv_starts` `[rows]` are host arrays: row r owns the query tokens
    `query_starts[r] .. query_starts[r + 1]`, which stand at its last positions, and sees positions from `kv_starts[r]`
    to `kv_lengths[r]`. `merges` is `[tokens to merge, 4]` int32; `partial_rows` is scratch in query tokens.
    """

    query_starts: IntArray
    kv_lengths: IntArray
    kv_starts: IntArray
    group: int
    causal: bool
    window: int | None
    small: WorkList
    large: WorkList
    merges: Tensor
    partial_rows: int

    @property
    def tokens(self) -> int:
        """Query tokens of the batch."""
        return int(self.query_starts[-1])

    def to(self, device: torch.device) -> "AttentionPlan":
        """Put the work lists on a device; free where they are there. One copy a list, without waiting where pinned."""
        if self.merges.device == device:
            return self
        moved = {name: getattr(self, name) for name in ("small", "large")}
        lists = {name: replace(work, items=work.items.to(device, non_blocking=True)) for name, work in moved.items()}
        return replace(self, merges=self.merges.to(device, non_blocking=True), **lists)

    def refresh_(self, plan: "AttentionPlan") -> None:
        """Overwrite the work lists in place with those of `plan`, for the next replay of a captured CUDA graph.

        The captured plan was made with a `capacity`; a `plan` that needs more, or another visibility, is refused.
        """
        if (self.group, self.causal, self.window) != (plan.group, plan.causal, plan.window):
            raise InvalidKernelArgument("refresh_: the captured plan has another group size, causality or window")
        if plan.partial_rows > self.partial_rows:
            raise InvalidKernelArgument(f"refresh_: {plan.partial_rows} partial rows, captured {self.partial_rows}")
        pairs = [(self.small.items, plan.small.items), (self.large.items, plan.large.items), (self.merges, plan.merges)]
        for name, (held, new) in zip(("small items", "large items", "merges"), pairs, strict=True):
            if len(new) > len(held):
                raise InvalidKernelArgument(f"refresh_: {len(new)} {name}, captured with room for {len(held)}")
        for held, new in pairs:
            held.zero_()
            held[: len(new)].copy_(new, non_blocking=True)


@dataclass(frozen=True, slots=True)
class PlanCapacity:
    """How many records a captured plan has room for; unused ones do nothing. Take the largest step's own numbers."""

    small_items: int
    large_items: int
    merges: int
    partial_rows: int


def plan_attention(
    query_starts: Lengths,
    kv_lengths: Lengths,
    *,
    q_heads: int,
    kv_heads: int,
    causal: bool = True,
    window: int | None = None,
    kv_starts: Lengths | None = None,
    capacity: PlanCapacity | None = None,
    split_divisor: int = 1,
) -> AttentionPlan:
    """Plan one step. `query_starts` `[rows + 1]` begins at 0; `kv_lengths` `[rows]` counts the new tokens too.

    `window` keeps positions max(0, i - window + 1) .. i (R-KRN-8). `kv_starts` hides each row's first positions (the
    suffix part of a cascade). `split_divisor` makes splits shorter, for tests of many splits on short lengths: results
    are equal to the bit only between plans with the same one. Raises `InvalidKernelArgument`. Cost: O(rows + items).
    """
    starts, lengths = host_array(query_starts, "query_starts"), host_array(kv_lengths, "kv_lengths")
    lowest = np.zeros_like(lengths) if kv_starts is None else host_array(kv_starts, "kv_starts")
    _check(starts, lengths, lowest, q_heads, kv_heads, causal=causal, window=window, split_divisor=split_divisor)
    group = q_heads // kv_heads
    rows = TileRows.of(group)
    split_lengths = split_length(np.arange(rows.large // group + 1), group, split_divisor).astype(np.int32)  # by tokens
    counts = np.diff(starts)
    is_small = counts * group <= 2 * rows.small
    tables = []
    partial_rows = 0
    for tile_rows, chosen in ((rows.small, is_small), (rows.large, ~is_small)):
        tiles = row_tiles(chosen, starts, lengths, lowest, tile_rows // group, causal=causal, window=window)
        table, merges, partial_rows = split_tiles(tiles, split_lengths[tiles[2]], partial_rows)
        tables.append((table, merges))
    (small, small_merges), (large, large_merges) = tables
    merges = np.concatenate([small_merges, large_merges])
    room = capacity or PlanCapacity(len(small), len(large), len(merges), partial_rows)
    if partial_rows > room.partial_rows:
        raise InvalidKernelArgument(f"plan: {partial_rows} partial rows, capacity {room.partial_rows}")
    return AttentionPlan(
        starts, lengths, lowest, group, causal, window,
        small=WorkList(_records(small, room.small_items, "small items"), rows.small),
        large=WorkList(_records(large, room.large_items, "large items"), rows.large),
        merges=_records(merges, room.merges, "merges"),
        partial_rows=room.partial_rows,
    )  # fmt: skip


def host_array(values: Lengths, name: str) -> IntArray:
    """Bring lengths to a host int64 array `[n]`. A device tensor is copied, which waits for the device."""
    array: npt.NDArray[Any] = values.cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InvalidKernelArgument(f"{name}: need one axis of integers, not {array.dtype} {list(array.shape)}")
    return array.astype(np.int64)


def _check(
    starts: IntArray, lengths: IntArray, lowest: IntArray, q_heads: int, kv_heads: int,
    *, causal: bool, window: int | None, split_divisor: int,
) -> None:  # fmt: skip
    if kv_heads < 1 or q_heads < 1 or q_heads % kv_heads:
        raise InvalidKernelArgument(f"heads: {q_heads} query heads do not divide into {kv_heads} KV heads")
    if len(starts) != len(lengths) + 1 or len(lowest) != len(lengths):
        raise InvalidKernelArgument(
            f"lengths: {len(starts)} query_starts, {len(lengths)} kv_lengths and {len(lowest)} kv_starts do not agree:"
            " n + 1, n and n are needed"
        )
    if starts[0] != 0 or (np.diff(starts) < 0).any():
        raise InvalidKernelArgument("query_starts: must begin at 0 and never fall")
    if (lengths < 0).any() or (lowest < 0).any():
        raise InvalidKernelArgument("kv_lengths and kv_starts: must not be negative")
    if max(int(lengths.max(initial=0)), int(starts[-1])) >= 2**31 - LONGEST_SPLIT:
        raise InvalidKernelArgument("lengths: positions and query tokens must stay below 2**31 - 8192")
    if window is not None and (window < 1 or not causal):
        raise InvalidKernelArgument(f"window: {window} must be at least 1, and the attention causal")
    if split_divisor not in SPLIT_DIVISORS:
        raise InvalidKernelArgument(f"split_divisor: {split_divisor} is not among {SPLIT_DIVISORS}")


def _records(table: Int32Array, room: int, name: str) -> Tensor:
    """Turn records into an int32 tensor with `room` rows; those left over are zero and mean nothing to do."""
    if len(table) > room:
        raise InvalidKernelArgument(f"plan: {len(table)} {name}, capacity {room}")
    if len(table) == room:
        return torch.from_numpy(table)
    padded = np.zeros((room, table.shape[1]), dtype=np.int32)
    padded[: len(table)] = table
    return torch.from_numpy(padded)

"""Which program reads which positions: the work list of one step, made on the host once and used by every layer.

Queries of one sequence are cut into *row tiles*: (query tokens x heads of one KV group), so decode, multi-token verify
and chunked prefill are one design. The positions that a tile sees are cut into *splits* at fixed multiples of a length
which is a fixed function of the tile's own query count. Each (tile, split) is one *item*, and one program a KV head
works it off; a tile with more than one split leaves partial results that the merge kernel joins.

Guarantees. Batch invariance (R-KRN-9): nothing here looks at another sequence, at the batch size, at the longest length
or at the chip's load, so a sequence is computed by the same items wherever it stands. No cliffs: the number of items is
the work divided by fixed lengths, never a threshold on the batch. Scratch is sized exactly, by query rows.

Costs. Vectorised numpy, O(items); a few int32 records an item go to the device once a step. The lengths must be known
on the host: a serving engine knows them, and a device tensor is copied (which waits for the device) where one is given.

Why the split length grows with the tile. A split of L positions reads 4 L D bytes of bf16 K and V and leaves 8 rows D
bytes of partial results (written, then read): at 64 positions a row that is 3 % on top. With 512 positions everywhere,
2,048 new tokens after 32k would move 2.3 GB of partial results for a floor of 1.44 ms on an H200. Considered and
rejected: a split count chosen to fill the chip (FlashDecoding's heuristic): results then vary with the batch, and
latency jumps at the threshold (vllm#48076, sglang#21775).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from pagedkv.kernels.arguments import InvalidKernelArgument
from torch import Tensor

IntArray = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]
Lengths = Sequence[int] | IntArray | Tensor

ITEM_FIELDS = 7  # row, first token, tokens, first position, begin, end, partial row (-1: none)
MERGE_FIELDS = 4  # token, first partial row, partial results, rows between them
SHORTEST_SPLIT = 512
LONGEST_SPLIT = 8192
POSITIONS_PER_ROW = 64  # of a split, for each row of its tile
SPLIT_DIVISORS = (1, 2, 4, 8, 16, 32, 64)
VERIFY_TOKENS = 4  # what a small tile should hold, so that a verify of as many reads K and V once
SMALL_ROWS = (16, 64)  # at least what a matrix unit takes; at most what decode can afford to compute
LARGE_ROWS = 128


def split_length(tokens: IntArray, group: int, divisor: int = 1) -> IntArray:
    """Positions a split, from the tile's own query tokens and the group: 512 for one token, 8,192 for a full tile."""
    rows = np.maximum(tokens, 1) * group
    power: IntArray = 2 ** np.ceil(np.log2(rows * POSITIONS_PER_ROW)).astype(np.int64)
    return np.minimum(np.maximum(power, SHORTEST_SPLIT), LONGEST_SPLIT) // divisor


def power_of_two_above(number: int) -> int:
    """Return the smallest power of two that is not below `number` (at least 1)."""
    return 1 << max(0, number - 1).bit_length()


@dataclass(frozen=True, slots=True)
class TileRows:
    """Rows of the two kinds of row tile, powers of two: few for decode and verify, many for prefill.

    Four tokens' verify fits one small tile, so that it reads K and V once. Which kind a sequence gets depends on its
    own query count: up to two small tiles' worth, small.
    """

    small: int
    large: int

    @classmethod
    def of(cls, group: int) -> "TileRows":
        """Choose for a group size: for 4 heads a group 16 and 128 rows, that is 4 and 32 tokens a tile."""
        one_token = power_of_two_above(group)
        small = max(one_token, min(max(SMALL_ROWS[0], power_of_two_above(VERIFY_TOKENS * group)), SMALL_ROWS[1]))
        return cls(small=small, large=max(one_token, LARGE_ROWS))


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
        tiles = _tiles(chosen, starts, lengths, lowest, tile_rows // group, causal=causal, window=window)
        table, merges, partial_rows = _split(tiles, split_lengths[tiles[2]], partial_rows)
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


def _tiles(
    chosen: npt.NDArray[np.bool_], starts: IntArray, lengths: IntArray, lowest: IntArray, tokens_per_tile: int,
    *, causal: bool, window: int | None,
) -> Int32Array:  # fmt: skip
    """Cut the queries of the chosen rows into tiles: `[row, first token, tokens, first position, begin, end]` each."""
    row, counts, token = np.flatnonzero(chosen), np.diff(starts), starts[:-1]
    if not row.size:
        return np.empty((6, 0), np.int32)
    if row.size < chosen.size:
        counts, token, lengths, lowest = counts[row], token[row], lengths[row], lowest[row]
    position, tokens = lengths - counts, counts
    if counts.min() < 1 or counts.max() > tokens_per_tile:  # else a tile a row, as in every step of decode
        tiles = -(-counts // tokens_per_tile)
        first = _ordinal(tiles) * tokens_per_tile
        columns = (row, counts, token, lengths, lowest, position)
        row, counts, token, lengths, lowest, position = (np.repeat(column, tiles) for column in columns)
        token, position, tokens = token + first, position + first, np.minimum(tokens_per_tile, counts - first)
    end = np.minimum(lengths, position + tokens) if causal else lengths
    begin = lowest if window is None else np.maximum(lowest, position - window + 1)
    return np.stack([row, token, tokens, position, begin, np.maximum(begin, end)]).astype(np.int32)


def _split(tiles: Int32Array, length: Int32Array, partial_rows: int) -> tuple[Int32Array, Int32Array, int]:
    """Cut tiles at multiples of their split length, a power of two. Returns items, merge records, scratch rows so far.

    Items come the longest first: a long one begun last would leave the rest of the chip idle. Order changes no result.
    """
    row, first, tokens, position, begin, end = tiles
    if not row.size:
        return np.empty((0, ITEM_FIELDS), np.int32), np.empty((0, MERGE_FIELDS), np.int32), partial_rows
    shift = np.frexp(length)[1] - 1  # numpy divides five times slower than it shifts
    before = begin >> shift
    splits = np.maximum(1, -(-end >> shift) - before)
    if splits.max() == 1:
        order = _longest_first(begin, end)
        items = [column[order] for column in tiles]
        return _columns(*items, np.full(row.size, -1)), np.empty((0, MERGE_FIELDS), np.int32), partial_rows
    tile = np.repeat(np.arange(row.size), splits)
    ordinal = _ordinal(splits).astype(np.int32)
    split_begin = (before[tile] + ordinal) << shift[tile]
    item_begin = np.maximum(begin[tile], split_begin)
    item_end = np.minimum(end[tile], split_begin + length[tile])
    is_split = splits > 1
    needed = np.where(is_split, splits.astype(np.int64) * tokens, 0)
    total: IntArray = np.cumsum(needed)
    base: IntArray = np.where(is_split, partial_rows + total - needed, -1)

    order = _longest_first(item_begin, item_end)
    tile, ordinal = tile[order], ordinal[order]
    tokens_there = tokens[tile]
    partial = base[tile] + ordinal * tokens_there  # where nothing is split the ordinal is 0
    items = [row[tile], first[tile], tokens_there, position[tile], item_begin[order], item_end[order]]

    merged = np.flatnonzero(is_split)
    inside: IntArray | int = 0
    if tokens.max() > 1:
        inside = _ordinal(tokens[merged])
        merged = np.repeat(merged, tokens[merged])
    merges = _columns(first[merged] + inside, base[merged] + inside, splits[merged], tokens[merged])
    return _columns(*items, partial), merges, partial_rows + int(total[-1])


def _longest_first(begin: Int32Array, end: Int32Array) -> IntArray:
    """Return the order of items by length, which is LONGEST_SPLIT at most: 16 bits, which numpy sorts by radix."""
    return np.argsort((begin - end).astype(np.int16), kind="stable")


def _columns(*columns: Int32Array | IntArray) -> Int32Array:
    """Return records `[n, fields]` from their fields."""
    records = np.empty((columns[0].size, len(columns)), np.int32)
    for place, column in enumerate(columns):
        records[:, place] = column
    return records


def _ordinal(counts: Int32Array | IntArray) -> IntArray:
    """Count 0 .. count - 1 for each count in turn: [2, 3] gives [0, 1, 0, 1, 2]."""
    total = int(counts.sum())
    before: IntArray = np.cumsum(counts, dtype=np.int64) - counts
    return np.arange(total) - np.repeat(before, counts)


def _records(table: Int32Array, room: int, name: str) -> Tensor:
    """Turn records into an int32 tensor with `room` rows; those left over are zero and mean nothing to do."""
    if len(table) > room:
        raise InvalidKernelArgument(f"plan: {len(table)} {name}, capacity {room}")
    if len(table) == room:
        return torch.from_numpy(table)
    padded = np.zeros((room, table.shape[1]), dtype=np.int32)
    padded[: len(table)] = table
    return torch.from_numpy(padded)

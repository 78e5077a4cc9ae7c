"""How the work of a step is cut: queries into row tiles, and the positions that a tile sees into splits.

Queries of one sequence are cut into *row tiles*: (query tokens x heads of one KV group), so decode, multi-token verify
and chunked prefill are one design. The positions that a tile sees are cut into *splits* at fixed multiples of a length
which is a fixed function of the tile's own query count. Each (tile, split) is one *item*, and one program a KV head
works it off; a tile with more than one split leaves partial results that the merge kernel joins.

Guarantees. Batch invariance (R-KRN-9): nothing here looks at another sequence, at the batch size, at the longest length
or at the chip's load, so a sequence is computed by the same items wherever it stands. No cliffs: the number of items is
the work divided by fixed lengths, never a threshold on the batch. Scratch is sized exactly, by query rows.

Costs. Vectorised numpy, O(items); arguments are taken to be in order, as `plan` has checked them.

Why the split length grows with the tile. A split of L positions reads 4 L D bytes of bf16 K and V and leaves 8 rows D
bytes of partial results (written, then read): at 64 positions a row that is 3 % on top. With 512 positions everywhere,
2,048 new tokens after 32k would move 2.3 GB of partial results for a floor of 1.44 ms on an H200. Considered and
rejected: a split count chosen to fill the chip (FlashDecoding's heuristic): results then vary with the batch, and
latency jumps at the threshold (vllm#48076, sglang#21775).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]

ITEM_FIELDS = 7  # row, first token, tokens, first position, begin, end, partial row (-1: none)
MERGE_FIELDS = 4  # token, first partial row, partial results, rows between them
SHORTEST_SPLIT = 512
LONGEST_SPLIT = 8192
POSITIONS_PER_ROW = 64  # of a split, for each row of its tile
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


def row_tiles(
    chosen: npt.NDArray[np.bool_], starts: IntArray, lengths: IntArray, lowest: IntArray, tokens_per_tile: int,
    *, causal: bool, window: int | None,
) -> Int32Array:  # fmt: skip
    """Cut the queries of chosen rows into tiles `[6, tiles]`: row, first token, tokens, first position, begin, end."""
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


def split_tiles(tiles: Int32Array, length: Int32Array, partial_rows: int) -> tuple[Int32Array, Int32Array, int]:
    """Cut tiles at multiples of their split length, a power of two.

    Returns items `[items, 7]`, merge records `[tokens to merge, 4]` and the rows of scratch so far, these included.

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

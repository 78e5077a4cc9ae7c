"""The device code of paged attention: one program works off one item of the plan for one KV head.

Programs of one item run side by side, head by head, since the heads of a position lie side by side in memory (NHD).

A row of the tile is (query token, head of the group): row r is token r // GROUP, head r % GROUP. So decode, verify and
prefill are one kernel, and K and V are read once for all heads of a group. The loop over KV positions has two halves.
First the tiles that every row sees whole, with nothing masked; then those that lengths, causality or a window cut,
where the *loads* are masked and not only the scores, since 0 * NaN is NaN (R-KRN-1).

Numbers: dots accumulate in float32, scores are kept in units of log2 (exp2 is what the hardware has), sums in float32;
bfloat16 and fp8 appear only in loads, as dot operands and in the last store. Addresses are 64-bit (R-KRN-4): a
block id is widened before it meets a stride. Strides come from the tensors (R-KRN-5); head sizes, group sizes and block
sizes need not be powers of two, since padding lanes are masked on load and store (R-KRN-6).

The running softmax is FlashAttention-2's (Dao, 2023); splits are FlashDecoding's, at fixed positions. Considered: tiles
of one block (sizes limited to powers of two of at least 16, and slow for small blocks), tensor descriptors (a block of
a paged cache is too small a box, and interleaved views have strides they refuse).
"""
# mypy: disable-error-code="untyped-decorator"
# ruff: noqa: N803, PLR0917, FBT003  (a kernel has the parameters that its launch passes, by position)

import triton
import triton.language as tl
from pagedkv.kernels import tiles

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
ITEM_FIELDS = tl.constexpr(tiles.ITEM_FIELDS)


@triton.jit(do_not_specialize=["table_stride"])  # it varies with the batch, and would recompile
def attention_kernel(
    query: tl.tensor, key: tl.tensor, value: tl.tensor, block_table: tl.tensor, items: tl.tensor, output: tl.tensor,
    log_sum_exp: tl.tensor, partial_output: tl.tensor, partial_lse: tl.tensor, key_scale: tl.tensor,
    value_scale: tl.tensor, alibi_slopes: tl.tensor, sinks: tl.tensor, scale: tl.tensor, soft_cap: tl.tensor,
    window: tl.tensor, q_heads: tl.tensor, query_token_stride: tl.tensor, query_head_stride: tl.tensor,
    output_token_stride: tl.tensor, output_head_stride: tl.tensor, table_stride: tl.tensor,
    key_block_stride: tl.tensor, key_position_stride: tl.tensor, key_head_stride: tl.tensor,
    value_block_stride: tl.tensor, value_position_stride: tl.tensor, value_head_stride: tl.tensor,
    key_scale_stride: tl.tensor, value_scale_stride: tl.tensor,
    BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr, HEAD: tl.constexpr, HEAD_PADDED: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, CAPPED: tl.constexpr,
) -> None:  # fmt: skip
    """Attention of one row tile over one split. Shapes and meanings of all arguments: `attention.attention_calls`."""
    kv_heads = q_heads // GROUP
    item = items + (tl.program_id(0) // kv_heads).to(tl.int64) * ITEM_FIELDS
    kv_head = tl.program_id(0) % kv_heads
    tokens = tl.load(item + 2)
    if tl.program_id(1) * ROWS >= tokens * GROUP:  # no row is real here, or padding of a captured plan
        return
    table_row = block_table + tl.load(item).to(tl.int64) * table_stride
    first_position, begin, end, partial_row = tl.load(item + 3), tl.load(item + 4), tl.load(item + 5), tl.load(item + 6)

    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    lane = tl.arange(0, HEAD_PADDED)
    real = row // GROUP < tokens
    token = tl.load(item + 1).to(tl.int64) + row // GROUP
    head = kv_head * GROUP + row % GROUP
    position = first_position + row // GROUP
    stored = real[:, None] & (lane < HEAD)[None, :]
    query_address = query + token[:, None] * query_token_stride + head[:, None] * query_head_stride + lane[None, :]
    q = tl.load(query_address, mask=stored, other=0.0)
    if key_scale is not None:
        scale *= tl.load(key_scale + kv_head * key_scale_stride)
    slope = tl.zeros([ROWS], tl.float32)
    if alibi_slopes is not None:
        slope = tl.load(alibi_slopes + head, mask=real, other=0.0) * LOG2_E

    maximum = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    weighted = tl.zeros([ROWS, HEAD_PADDED], tl.float32)
    key_base = key + kv_head.to(tl.int64) * key_head_stride + lane[None, :]
    value_base = value + kv_head.to(tl.int64) * value_head_stride + lane[None, :]
    aligned = begin // TILE * TILE
    seen_by_all = _seen_by_all(first_position, begin, end, TILE, CAUSAL, WINDOWED)
    for start in tl.range(aligned, seen_by_all, TILE):
        maximum, total, weighted = _take_tile(
            maximum, total, weighted, q, key_base, value_base, table_row, start, begin, end, position, slope,
            scale, soft_cap, window, key_block_stride, key_position_stride, value_block_stride, value_position_stride,
            BLOCK_SIZE, HEAD, HEAD_PADDED, TILE, CAUSAL, WINDOWED, CAPPED, alibi_slopes is not None, False,
        )  # fmt: skip
    for start in tl.range(seen_by_all, end, TILE):
        maximum, total, weighted = _take_tile(
            maximum, total, weighted, q, key_base, value_base, table_row, start, begin, end, position, slope,
            scale, soft_cap, window, key_block_stride, key_position_stride, value_block_stride, value_position_stride,
            BLOCK_SIZE, HEAD, HEAD_PADDED, TILE, CAUSAL, WINDOWED, CAPPED, alibi_slopes is not None, True,
        )  # fmt: skip

    result, lse = _finish(maximum, total, weighted, sinks, head, real, partial_row)
    if value_scale is not None:
        result *= tl.load(value_scale + kv_head * value_scale_stride)
    if partial_row < 0:
        _store_rows(
            output, log_sum_exp, token, head, lane, result, lse, stored, real,
            output_token_stride, output_head_stride, q_heads,
        )  # fmt: skip
    else:
        _store_rows(
            partial_output, partial_lse, partial_row.to(tl.int64) + row // GROUP, head, lane, result, lse, stored, real,
            q_heads * HEAD, HEAD, q_heads,
        )  # fmt: skip


@triton.jit
def _finish(
    maximum: tl.tensor, total: tl.tensor, weighted: tl.tensor, sinks: tl.tensor, head: tl.tensor, real: tl.tensor,
    partial_row: tl.tensor,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """Divide by the sum, with the sink in it where this is the whole row; returns results and natural log-sum-exp."""
    if sinks is not None and partial_row < 0:  # counted once a row, where it is finished, and not once a split
        sink = tl.load(sinks + head, mask=real, other=float("-inf")) * LOG2_E
        maximum, total, weighted = _take_sink(maximum, total, weighted, sink)
    divisor = tl.where(total == 0.0, 1.0, total)  # a row that saw nothing: 0 / 1, and -inf + 0 (R-KRN-2)
    return weighted / divisor[:, None], (maximum + tl.log2(divisor)) * LN_2


@triton.jit
def _store_rows(
    output: tl.tensor, log_sum_exp: tl.tensor, token: tl.tensor, head: tl.tensor, lane: tl.tensor, result: tl.tensor,
    lse: tl.tensor, stored: tl.tensor, real: tl.tensor, token_stride: tl.tensor, head_stride: tl.tensor,
    q_heads: tl.tensor,
) -> None:  # fmt: skip
    """Store finished rows, or partial ones to scratch `[rows, q_heads, D]`; the log-sum-exp where there is a place."""
    address = output + token[:, None] * token_stride + head[:, None] * head_stride + lane[None, :]
    tl.store(address, result.to(output.dtype.element_ty), mask=stored)
    if log_sum_exp is not None:
        tl.store(log_sum_exp + token * q_heads + head, lse, mask=real)


@triton.jit
def _seen_by_all(
    first_position: tl.tensor, begin: tl.tensor, end: tl.tensor,
    TILE: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return the end of the leading KV tiles that every row of the tile sees whole."""
    aligned = begin // TILE * TILE
    last = end
    if CAUSAL:
        last = tl.minimum(end, first_position + 1)
    whole = aligned + tl.maximum(last - aligned, 0) // TILE * TILE
    if WINDOWED:  # the tile's last row may have left its first positions behind
        whole = aligned
    return tl.where(aligned == begin, whole, aligned)


@triton.jit
def _take_tile(
    maximum: tl.tensor, total: tl.tensor, weighted: tl.tensor, q: tl.tensor, key_base: tl.tensor,
    value_base: tl.tensor, table_row: tl.tensor, start: tl.tensor, begin: tl.tensor, end: tl.tensor,
    position: tl.tensor, slope: tl.tensor, scale: tl.tensor, soft_cap: tl.tensor, window: tl.tensor,
    key_block_stride: tl.tensor, key_position_stride: tl.tensor,
    value_block_stride: tl.tensor, value_position_stride: tl.tensor,
    BLOCK_SIZE: tl.constexpr, HEAD: tl.constexpr, HEAD_PADDED: tl.constexpr, TILE: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, CAPPED: tl.constexpr, BIASED: tl.constexpr, MASKED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """Take KV positions start .. start + TILE into the running softmax; MASKED where some row does not see some."""
    at = start + tl.arange(0, TILE)
    lane = tl.arange(0, HEAD_PADDED)
    if MASKED:
        inside = (at >= begin) & (at < end)
        block = tl.load(table_row + at // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
    else:
        block = tl.load(table_row + at // BLOCK_SIZE).to(tl.int64)
    offset = at % BLOCK_SIZE
    keys = key_base + (block * key_block_stride + offset * key_position_stride)[:, None]
    values = value_base + (block * value_block_stride + offset * value_position_stride)[:, None]
    if MASKED:
        k = tl.load(keys, mask=inside[:, None] & (lane < HEAD)[None, :], other=0.0)
        v = tl.load(values, mask=inside[:, None] & (lane < HEAD)[None, :], other=0.0)
    elif HEAD != HEAD_PADDED:
        k = tl.load(keys, mask=(lane < HEAD)[None, :], other=0.0)
        v = tl.load(values, mask=(lane < HEAD)[None, :], other=0.0)
    else:
        k = tl.load(keys)
        v = tl.load(values)

    scores = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision="ieee") * scale
    if CAPPED:
        scores = soft_cap * (1.0 - 2.0 / (tl.exp2(scores * (2.0 * LOG2_E / soft_cap)) + 1.0))
    scores *= LOG2_E
    distance = position[:, None] - at[None, :]
    if BIASED:
        scores -= slope[:, None] * tl.abs(distance).to(tl.float32)
    if MASKED:
        seen = inside[None, :]
        if CAUSAL:
            seen = seen & (distance >= 0)
        if WINDOWED:
            seen = seen & (distance < window)
        scores = tl.where(seen, scores, float("-inf"))

    new_maximum = tl.maximum(maximum, tl.max(scores, 1))
    # A row that has seen nothing yet has maximum -inf: -inf minus -inf must not happen (R-KRN-3).
    reference = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
    weights = tl.exp2(scores - reference[:, None])
    decay = tl.exp2(maximum - reference)
    total = total * decay + tl.sum(weights, 1)
    weighted = tl.dot(weights.to(q.dtype), v.to(q.dtype), weighted * decay[:, None], input_precision="ieee")
    return new_maximum, total, weighted


@triton.jit
def _take_sink(
    maximum: tl.tensor, total: tl.tensor, weighted: tl.tensor, sink: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Take in a score (in units of log2) that has weight and no value."""
    new_maximum = tl.maximum(maximum, sink)
    reference = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
    decay = tl.exp2(maximum - reference)
    return new_maximum, total * decay + tl.exp2(sink - reference), weighted * decay[:, None]

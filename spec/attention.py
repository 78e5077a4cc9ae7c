"""What attention over a KV cache means: dense, in float64, one sequence at a time.

Every kernel is held to this page. It knows nothing of blocks, tiles, splits or devices: it takes the logical K and V of
one sequence, forms all scores, and applies the textbook softmax. It costs O(queries x positions) memory and is never
fast; it is short enough to check by eye against its formula, and that is all it is for.

Considered and rejected: torch's `scaled_dot_product_attention` as the oracle (no log-sum-exp, no sinks, NaN for a row
that sees nothing); numpy (no bfloat16 and no fp8, so quantised caches would need a second decoder).
"""

import math

import torch
from torch import Tensor


def dense_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float | None = None,
    causal: bool = True,
    window: int | None = None,
    soft_cap: float | None = None,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    key_scale: Tensor | float = 1.0,
    value_scale: Tensor | float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Return output `[queries, q_heads, D]` and natural log-sum-exp `[queries, q_heads]`, both float64.

    `query` is `[queries, q_heads, D]`; `key` and `value` are `[positions, kv_heads, D]` as the cache stores them. The
    queries stand at the last positions: query row r is at position i = positions - queries + r. Query head h reads KV
    head g = h // (q_heads / kv_heads). With the stored K and V multiplied by their scales (one number, or one a KV
    head), for each query at i and head h:

        s_j   = scale * <q, k_j>                      scale = 1 / sqrt(D) unless given
        s_j   = soft_cap * tanh(s_j / soft_cap)       where a soft cap is given (Gemma 2)
        s_j   = s_j - slope_h * |i - j|               where ALiBi slopes [q_heads] are given (Press et al., 2021)
        seen  = { j : 0 <= j,  j <= i if causal,  j > i - window if there is a window }
        lse   = log( sum over seen of exp(s_j)  [+ exp(sink_h)] )     sinks [q_heads], as in gpt-oss: no value
        out   = sum over seen of exp(s_j - lse) * v_j

    Nothing seen and no sink: out = 0, lse = -inf (R-KRN-2). Attention that is not causal (cross attention) sees all.
    Cost: O(queries * positions * q_heads * D) time, O(queries * positions * q_heads) memory.
    """
    queries, query_heads, head_size = query.shape
    positions, kv_heads, _ = key.shape
    group = query_heads // kv_heads
    q = query.double()
    k = (key.double() * _per_head(key_scale)).repeat_interleave(group, dim=1)
    v = (value.double() * _per_head(value_scale)).repeat_interleave(group, dim=1)

    scores = torch.einsum("ihd,jhd->hij", q, k) * (1 / math.sqrt(head_size) if scale is None else scale)
    if soft_cap is not None:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    i = torch.arange(positions - queries, positions)[:, None]
    j = torch.arange(positions)[None, :]
    if alibi_slopes is not None:
        scores = scores - alibi_slopes.double()[:, None, None] * (i - j).abs()
    seen = torch.ones(queries, positions, dtype=torch.bool)
    if causal:
        seen &= j <= i
    if window is not None:
        seen &= j > i - window
    scores = scores.masked_fill(~seen, -math.inf)

    logits = scores
    if sinks is not None:
        logits = torch.cat([scores, sinks.double()[:, None, None].expand(-1, queries, 1)], dim=2)
    log_sum_exp = torch.logsumexp(logits, dim=2)
    # A row that sees nothing has lse = -inf; exp(-inf - 0) = 0 is what it must give, exp(-inf + inf) would be NaN.
    weights = torch.exp(scores - log_sum_exp.masked_fill(log_sum_exp == -math.inf, 0.0)[:, :, None])
    # 0 * NaN is NaN: a value that no query sees must not count at all, so it is taken out before the product.
    v = v.masked_fill(~seen.any(dim=0)[:, None, None], 0.0)
    return torch.einsum("hij,jhd->ihd", weights, v), log_sum_exp.T.contiguous()


def _per_head(scale: Tensor | float) -> Tensor:
    """Bring a scale, one for the tensor or one a KV head, to the shape that multiplies `[positions, kv_heads, D]`."""
    return torch.as_tensor(scale, dtype=torch.float64).reshape(1, -1, 1)

"""Attention of one tile of queries over one run of positions, in plain torch; `fallback` says which tiles and runs.

K and V are gathered through the row in chunks of 512 positions into scratch that stays in the cache, and chunks are
joined by a running softmax (FlashAttention-2; Dao, 2023). Chunks of 128 and 256 were tried, and were no faster. The G
query heads of a KV head are packed as rows of one matrix product, so K and V are read once for all of them. Scratch is
one chunk and the scores of one tile: bounded, whatever the batch and the lengths. All arithmetic is float32, whatever
the cache's dtype: bfloat16 products were tried, and torch rounds their scores to bfloat16, which costs a score of 10 an
error of 0.03.
"""

import math

import torch
from pagedkv.kernels.arguments import PagedCache, Scoring
from pagedkv.kernels.plan import AttentionPlan
from torch import Tensor

CHUNK_POSITIONS = 512
APART = 16  # numbers between the positions of a widened chunk


def attend_tile(
    query: Tensor, gather: "ChunkGather", row: Tensor, positions: range, keys: range, plan: AttentionPlan,
    scoring: Scoring, *, with_sinks: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return output `[tokens, q_heads, D]` and log-sum-exp `[tokens, q_heads]`, float32, of queries at `positions`.

    `row` is the sequence's block table row and `keys` the positions to take, which causality and window may still hide
    from some queries. Cost: K and V of `keys` are read once.
    """
    tokens, q_heads, head_size = query.shape
    kv_heads = q_heads // plan.group
    packed = query.float().reshape(tokens, kv_heads, plan.group, head_size).permute(1, 2, 0, 3)
    scale = 1 / math.sqrt(head_size) if scoring.scale is None else scoring.scale
    packed = packed.reshape(kv_heads, plan.group * tokens, head_size) * scale
    if gather.cache.key_scale is not None:
        packed = packed * gather.cache.key_scale.reshape(-1, 1, 1)
    state = _State(packed, kv_heads, plan.group, tokens, scoring.sinks if with_sinks else None)
    for start in range(keys.start, keys.stop, CHUNK_POSITIONS):
        chunk = range(start, min(start + CHUNK_POSITIONS, keys.stop))
        scores = torch.bmm(packed, gather.keys(row, chunk).transpose(1, 2))
        scores = _shape_scores(scores.view(kv_heads, plan.group, tokens, -1), plan, scoring, positions, chunk)
        state.add(scores, gather.values(row, chunk))
    return state.finish(gather.cache.value_scale)


class ChunkGather:
    """Gathers K or V of a run of positions as float32 `[kv_heads, positions, D]`, into one buffer that is reused.

    K and V take turns in it, so that it stays in the cache next to the core. Where numbers are widened, positions lie a
    little further apart than they need: at a power of two apart they would share cache sets, and products take half
    as long again.
    """

    def __init__(self, cache: PagedCache, device: torch.device) -> None:
        self.cache = cache
        self.block_size = cache.block_size
        _, _, kv_heads, head_size = cache.keys.shape
        blocks = CHUNK_POSITIONS // self.block_size + 2
        self._raw = torch.empty((blocks, *cache.keys.shape[1:]), dtype=cache.key.dtype, device=device)
        wide = torch.empty(blocks * self.block_size, kv_heads * head_size + APART, device=device)
        self._wide = wide[:, :-APART].view(-1, kv_heads, head_size)

    def keys(self, row: Tensor, chunk: range) -> Tensor:
        """Gather K of the positions of a chunk. Entries of other blocks are not read (R-TAB-1)."""
        return self._gather(self.cache.keys, row, chunk)

    def values(self, row: Tensor, chunk: range) -> Tensor:
        """Gather V of the positions of a chunk, over the K gathered before."""
        return self._gather(self.cache.values, row, chunk)

    def _gather(self, source: Tensor, row: Tensor, chunk: range) -> Tensor:
        first = chunk.start // self.block_size
        ids = row[first : -(-chunk.stop // self.block_size)]
        raw = self._raw[: len(ids)]
        if source.element_size() == 1:  # index_select knows no fp8; bytes are bytes
            torch.index_select(source.view(torch.uint8), 0, ids, out=raw.view(torch.uint8))
        else:
            torch.index_select(source, 0, ids, out=raw)
        inside = slice(chunk.start - first * self.block_size, chunk.stop - first * self.block_size)
        found = raw.flatten(0, 1)[inside]
        if found.dtype != torch.float32:
            found = self._wide[: len(chunk)].copy_(found)
        return found.transpose(0, 1)


def _shape_scores(scores: Tensor, plan: AttentionPlan, scoring: Scoring, positions: range, keys: range) -> Tensor:
    """Apply soft cap, ALiBi and visibility to scores `[kv_heads, group, tokens, keys]`, in place where possible."""
    if scoring.soft_cap is not None:
        scores = scores.div_(scoring.soft_cap).tanh_().mul_(scoring.soft_cap)
    needs_mask = plan.causal and keys.stop - 1 > positions.start
    needs_mask |= plan.window is not None and keys.start <= positions.stop - 1 - plan.window
    if scoring.alibi_slopes is None and not needs_mask:
        return scores
    i = torch.arange(positions.start, positions.stop, device=scores.device)[:, None]
    j = torch.arange(keys.start, keys.stop, device=scores.device)
    if scoring.alibi_slopes is not None:
        slopes = scoring.alibi_slopes.reshape(scores.shape[0], scores.shape[1], 1, 1)
        scores = scores.sub_(slopes * (i - j).abs())
    if needs_mask:
        hidden = j > i
        if plan.window is not None:
            hidden |= j <= i - plan.window
        scores = scores.masked_fill_(hidden, -math.inf)
    return scores


class _State:
    """The running softmax of one tile: maximum, sum and weighted values, in the manner of FlashAttention."""

    def __init__(self, packed: Tensor, kv_heads: int, group: int, tokens: int, sinks: Tensor | None) -> None:
        self.shape = (kv_heads, group, tokens)
        self.maximum = packed.new_full((*self.shape, 1), -math.inf)
        self.total = packed.new_zeros((*self.shape, 1))
        self.weighted = torch.zeros_like(packed)
        if sinks is not None:  # a sink is where the softmax starts: counted once, before any chunk
            self.maximum = sinks.reshape(kv_heads, group, 1, 1).expand(*self.shape, 1).clone()
            self.total = torch.ones_like(self.total)

    def add(self, scores: Tensor, value: Tensor) -> None:
        """Take in one chunk: scores `[kv_heads, group, tokens, n]` (overwritten) and values `[kv_heads, n, D]`."""
        maximum = torch.maximum(self.maximum, scores.amax(dim=3, keepdim=True))
        # Where nothing was visible yet the maximum is -inf, and -inf minus -inf is never formed (R-KRN-3).
        reference = maximum.masked_fill(maximum == -math.inf, 0.0)
        weights = scores.sub_(reference).exp_()
        decay = torch.exp(self.maximum - reference)
        self.total = self.total * decay + weights.sum(dim=3, keepdim=True)
        flat = weights.view(weights.shape[0], -1, weights.shape[3])
        self.weighted = torch.baddbmm(self.weighted * decay.view(*flat.shape[:2], 1), flat, value)
        self.maximum = maximum

    def finish(self, value_scale: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return output `[tokens, q_heads, D]` and log-sum-exp `[tokens, q_heads]`; (0, -inf) where nothing is seen."""
        kv_heads, group, tokens = self.shape
        weighted = self.weighted.view(kv_heads, group, tokens, -1)
        if value_scale is not None:
            weighted = weighted * value_scale.reshape(-1, 1, 1, 1)
        result = weighted / self.total.masked_fill(self.total == 0, 1.0)
        lse = (self.maximum + self.total.log()).view(kv_heads * group, tokens)
        return result.permute(2, 0, 1, 3).flatten(1, 2), lse.T

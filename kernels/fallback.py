"""Paged attention in plain torch: the default on a CPU, and a second opinion on every other device.

One sequence at a time, its K and V are gathered through its row in chunks of 512 positions into one scratch buffer that
stays in the cache, and chunks are joined by log-sum-exp. The G query heads of a KV head are packed as rows of one
matrix product, so K and V are read once for all of them. Scratch is two chunks of K and V and the scores of one tile:
bounded, whatever the batch and the lengths. All arithmetic is float32, whatever the cache's dtype.

Considered, with times for 32 sequences x 2,048 positions, 32/8 heads, D = 128, float32, on two cores, where contiguous
SDPA took 42 ms: this design 51; SDPA a sequence on gathered K and V 116 (and no public log-sum-exp); `enable_gqa` 69
without paging; gathering the whole batch several times that, with memory to match. bfloat16 products were tried: torch
rounds scores to bfloat16, which costs a score of 10 an error of 0.03.
"""

import math

import torch
from pagedkv.kernels.arguments import PagedCache, Scoring
from pagedkv.kernels.plan import AttentionPlan
from torch import Tensor

CHUNK_POSITIONS = 512
TILE_TOKENS = 128


def attend(
    query: Tensor,
    cache: PagedCache,
    block_table: Tensor,
    plan: AttentionPlan,
    scoring: Scoring,
    output: Tensor,
    log_sum_exp: Tensor | None,
) -> None:
    """Fill `output` `[tokens, q_heads, D]` and, where given, `log_sum_exp` `[tokens, q_heads]`."""
    gather = _ChunkGather(cache, query.device)
    for row in range(len(plan.kv_lengths)):
        first, last = int(plan.query_starts[row]), int(plan.query_starts[row + 1])
        # Position of a query token = its index + this; negative where there are more queries than positions.
        to_position = int(plan.kv_lengths[row]) - last
        for begin in range(first, last, TILE_TOKENS):
            tokens = slice(begin, min(begin + TILE_TOKENS, last))
            positions = range(tokens.start + to_position, tokens.stop + to_position)
            result, lse = _attend_tile(query[tokens], gather, block_table[row], plan, row, positions, scoring)
            output[tokens] = result
            if log_sum_exp is not None:
                log_sum_exp[tokens] = lse


class _ChunkGather:
    """Gathers K and V of a run of positions into float32 `[kv_heads, positions, D]` views of reused scratch."""

    def __init__(self, cache: PagedCache, device: torch.device) -> None:
        self.cache = cache
        self.block_size = cache.block_size
        blocks = CHUNK_POSITIONS // self.block_size + 2
        shape = (blocks, *cache.keys.shape[1:])
        self._raw = [torch.empty(shape, dtype=t.dtype, device=device) for t in (cache.key, cache.value)]
        is_float = cache.key.dtype == torch.float32
        self._wide = self._raw if is_float else [torch.empty(shape, device=device) for _ in range(2)]

    def __call__(self, row: Tensor, begin: int, end: int) -> tuple[Tensor, Tensor]:
        """Gather positions `begin .. end` of a row. Entries of other blocks are not read (R-TAB-1)."""
        first = begin // self.block_size
        ids = row[first : -(-end // self.block_size)]
        inside = slice(begin - first * self.block_size, end - first * self.block_size)
        key, value = (self._fill(which, ids)[inside].transpose(0, 1) for which in (0, 1))
        return key, value

    def _fill(self, which: int, ids: Tensor) -> Tensor:
        source = (self.cache.keys, self.cache.values)[which]
        raw, wide = self._raw[which][: len(ids)], self._wide[which][: len(ids)]
        if source.element_size() == 1:  # index_select knows no fp8; bytes are bytes
            torch.index_select(source.view(torch.uint8), 0, ids, out=raw.view(torch.uint8))
        else:
            torch.index_select(source, 0, ids, out=raw)
        if wide is not raw:
            wide.copy_(raw)
        return wide.flatten(0, 1)


def _attend_tile(
    query: Tensor,
    gather: _ChunkGather,
    row: Tensor,
    plan: AttentionPlan,
    index: int,
    positions: range,
    scoring: Scoring,
) -> tuple[Tensor, Tensor]:
    """Attention of one tile of query tokens of row `index`, which stand at `positions`."""
    tokens, q_heads, head_size = query.shape
    kv_heads = q_heads // plan.group
    packed = query.float().reshape(tokens, kv_heads, plan.group, head_size).permute(1, 2, 0, 3)
    scale = 1 / math.sqrt(head_size) if scoring.scale is None else scoring.scale
    packed = packed.reshape(kv_heads, plan.group * tokens, head_size) * scale
    if gather.cache.key_scale is not None:
        packed = packed * gather.cache.key_scale.reshape(-1, 1, 1)

    end = int(plan.kv_lengths[index])
    begin = int(plan.kv_starts[index])
    if plan.causal:
        end = min(end, positions.stop)
    if plan.window is not None:
        begin = max(begin, positions.start - plan.window + 1)
    state = _State(packed, scoring, kv_heads, plan.group, tokens)
    for start in range(begin, end, CHUNK_POSITIONS):
        stop = min(start + CHUNK_POSITIONS, end)
        key, value = gather(row, start, stop)
        scores = torch.bmm(packed, key.transpose(1, 2)).view(kv_heads, plan.group, tokens, stop - start)
        state.add(_shape_scores(scores, plan, scoring, positions, range(start, stop)), value)
    result, log_sum_exp = state.finish(gather.cache.value_scale)
    return result, log_sum_exp


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

    def __init__(self, packed: Tensor, scoring: Scoring, kv_heads: int, group: int, tokens: int) -> None:
        self.shape = (kv_heads, group, tokens)
        self.maximum = packed.new_full((*self.shape, 1), -math.inf)
        self.total = packed.new_zeros((*self.shape, 1))
        self.weighted = torch.zeros_like(packed)
        if scoring.sinks is not None:  # a sink is where the softmax starts: counted once, before any chunk
            self.maximum = scoring.sinks.reshape(kv_heads, group, 1, 1).expand(*self.shape, 1).clone()
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

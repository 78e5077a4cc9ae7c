"""Attention of rows that begin with the same blocks: the shared prefix is read once for all rows, not once a row.

Cascade inference (FlashInfer, 2024): every query over the prefix, as one sequence that sees all of it; each row over
what follows; and the two results merged by log-sum-exp. It is made of the attention and the merge of `dispatch`, so it
has no kernel of its own, and runs wherever they do.

Equal to attention within tolerance and not to the bit: what is split and merged where is another matter than without a
cascade, so a sequence that moves between the two may sample another token. It costs two passes and a merge, and pays
where many rows share a long prefix.
"""

from dataclasses import dataclass

import torch
from pagedkv.kernels import checks, contents, dispatch
from pagedkv.kernels.arguments import PLAIN, PagedCache, Scoring
from pagedkv.kernels.plan import AttentionPlan, Lengths, host_array, plan_attention
from torch import Tensor


@dataclass(frozen=True, slots=True)
class CascadePlan:
    """The two parts of a cascade: every query over the shared prefix, and each row over what follows it."""

    prefix: AttentionPlan
    suffix: AttentionPlan
    shared_length: int

    def to(self, device: torch.device) -> "CascadePlan":
        """Put the work lists on a device."""
        return CascadePlan(self.prefix.to(device), self.suffix.to(device), self.shared_length)


def plan_cascade(
    query_starts: Lengths, kv_lengths: Lengths, shared_length: int, *, q_heads: int, kv_heads: int
) -> CascadePlan:
    """Plan attention of rows whose first `shared_length` positions lie in the same blocks (whole blocks).

    Arguments as in `plan_attention`; every query must stand behind the prefix. Raises `InvalidKernelArgument`.
    """
    starts, lengths = host_array(query_starts, "query_starts"), host_array(kv_lengths, "kv_lengths")
    suffix = plan_attention(
        starts, lengths, q_heads=q_heads, kv_heads=kv_heads, kv_starts=[max(0, shared_length)] * len(lengths)
    )
    first_positions = lengths - (starts[1:] - starts[:-1])
    checks.require(shared_length >= 1, f"shared_length: {shared_length} is below 1; without a prefix use attention")
    checks.require(
        not len(lengths) or int(first_positions.min()) >= shared_length,
        f"kv_lengths: row {int(first_positions.argmin()) if len(lengths) else 0} has a query inside the shared"
        f" {shared_length} positions; every query must stand behind them",
    )
    tokens, shared = ([0, int(starts[-1])], [shared_length]) if len(lengths) else ([0], [])
    prefix = plan_attention(tokens, shared, q_heads=q_heads, kv_heads=kv_heads, causal=False)
    return CascadePlan(prefix, suffix, shared_length)


def cascade_attention(
    query: Tensor,
    cache: PagedCache,
    block_table: Tensor,
    plan: CascadePlan,
    *,
    scoring: Scoring = PLAIN,
    output: Tensor | None = None,
    log_sum_exp: Tensor | None = None,
    backend: dispatch.Backend = "auto",
    checked: bool | None = None,
) -> Tensor:
    """Attention of rows that share their first blocks.

    Arguments and results as in `dispatch.attention`. ALiBi is refused: its bias differs by row, so the prefix cannot
    be shared. Cost: two passes, and a merge of `2 x tokens x q_heads x D` float32. Raises `InvalidKernelArgument`.
    """
    checks.require(scoring.alibi_slopes is None, "scoring: a cascade has no ALiBi; use attention")
    checks.require(
        plan.shared_length % cache.block_size == 0,
        f"shared_length: {plan.shared_length} is no multiple of the block size {cache.block_size}",
    )
    result = torch.empty_like(query, memory_format=torch.contiguous_format) if output is None else output
    checks.check_attention(query, cache, block_table, plan.suffix, scoring, result, log_sum_exp)
    if contents.is_checked(checked, query.device):
        contents.check_shared_entries(block_table, plan.shared_length // cache.block_size, len(plan.suffix.kv_lengths))
    outputs = query.new_empty((2, *query.shape), dtype=torch.float32)
    lses = query.new_empty((2, *query.shape[:2]), dtype=torch.float32)
    # The sink belongs to one part alone: counted in both, it would weigh twice.
    without_sinks = Scoring(scale=scoring.scale, soft_cap=scoring.soft_cap)
    for index, (part, how) in enumerate(((plan.prefix, without_sinks), (plan.suffix, scoring))):
        dispatch.attention(
            query, cache, block_table, part,
            scoring=how, output=outputs[index], log_sum_exp=lses[index], backend=backend, checked=checked,
        )  # fmt: skip
    dispatch.merge(outputs, lses, output=result, log_sum_exp=log_sum_exp, backend=backend)
    return result

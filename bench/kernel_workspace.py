"""What the kernels need besides the cache: scratch of split attention, work lists, slot mappings, in bytes.

The figures are read off the plan that the kernels themselves are given (R-MEM-1), so they follow its tile and split
lengths. A sequence's part of a plan does not depend on its batch mates (R-KRN-9), so one sequence is planned, once a
length, and multiplied. Scratch is used by one layer after the other: the largest counts; work lists are made once a
step for each window.

A step is either a decode step of all sequences or a prefill of `step_tokens` at the end of one sequence: the larger
counts. The torch fallback has scratch of its own, a chunk a thread, and is not meant here.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from pagedkv.kernels.plan import plan_attention
from pagedkv.spec.ledger import SLOT_BYTES, ModelShape, heads_on_rank, scratch_bytes


class _Needs(NamedTuple):
    """Of one sequence in one step: rows of partial results in the layer that has most, integers of work lists."""

    partial_rows: int
    records: int


def workspace_of(
    model: ModelShape, ranks: int, step_tokens: int, *, drops_windows: bool = True
) -> Callable[[int, int], int]:
    """Give the workspace of `sequences` of `tokens` each on one rank, in bytes, as a function of the two.

    A layer's window narrows what is read even where its manager keeps all blocks; with `drops_windows` off it is
    counted as full, like the blocks. Cost: a plan a length, some milliseconds where it is long.
    """
    q_heads = model.q_heads // ranks
    views = {
        (heads_on_rank(model.q_heads, group.kv_heads, ranks), group.window if drops_windows else None)
        for group in model.groups
    }

    @cache
    def needs(queries: int, tokens: int) -> _Needs:
        plans = [
            plan_attention([0, queries], [tokens], q_heads=q_heads, kv_heads=kv_heads, window=window)
            for kv_heads, window in views
        ]
        records = sum(plan.small.items.numel() + plan.large.items.numel() + plan.merges.numel() for plan in plans)
        return _Needs(max(plan.partial_rows for plan in plans), records)

    def workspace(sequences: int, tokens: int) -> int:
        decode, chunk = needs(1, tokens), min(step_tokens, tokens)
        prefill = needs(chunk, tokens)
        return max(
            scratch_bytes(sequences * decode.partial_rows, q_heads, model.head_size, sequences * decode.records)
            + sequences * SLOT_BYTES,
            scratch_bytes(prefill.partial_rows, q_heads, model.head_size, prefill.records) + chunk * SLOT_BYTES,
        )

    return workspace

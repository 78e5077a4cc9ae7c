"""From a trace to the queue of a replay: final lengths, refusals, arrival steps, and the size of the pool.

Everything about a request that does not depend on the engine is worked out here, once, on whole columns: a replay then
only moves along them. A request that can never be served is taken out by name (`Refusal`) before anybody waits:
`Empty` without prompt tokens, `TooLong` where its final length needs more blocks than the whole pool has.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from pagedkv.bench.failures import BadInput
from pagedkv.bench.traces import Int64Array, Trace
from pagedkv.impl.refusals import Empty, TooLong

BLOCKS_MAX = 1 << 26  # about 2 GB of tables and lists: beyond it a typing error is likelier than a pool
TABLE_ENTRIES_MAX = 1 << 30  # block tables are dense: rows times the longest of them, 4 bytes each


class FinalLength(StrEnum):
    """How many positions a finished request holds."""

    PROMPT_OUTPUT = "prompt+output"
    PROMPT_OUTPUT_LESS_ONE = "prompt+output-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySettings:
    """How to replay: `blocks` None is a pool for all requests at once, `step_ms` None an unclocked replay."""

    block_size: int = 16
    blocks: int | None = None
    step_ms: float | None = None
    final_length: FinalLength = FinalLength.PROMPT_OUTPUT_LESS_ONE


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request (by its index in the trace) that was refused, and the refusal's name."""

    request: int
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Queue:
    """The requests that can be served, in order of arrival; int64 arrays of one entry a request.

    `need_before[i]` (one entry more) is the number of blocks that the first i of them need in the end.
    """

    name: Int64Array
    arrival_step: Int64Array
    prompt: Int64Array
    final: Int64Array
    need: Int64Array
    need_before: Int64Array


def final_tokens(trace: Trace, convention: FinalLength) -> Int64Array:
    """Give the positions that each request of the trace holds when it is done (int64, file order)."""
    unwritten = 1 if convention is FinalLength.PROMPT_OUTPUT_LESS_ONE else 0
    return trace.prompt_tokens + np.maximum(trace.output_tokens - unwritten, 0)


def enqueue(trace: Trace, settings: ReplaySettings) -> tuple[Queue, tuple[Refusal, ...], int]:
    """Sort the requests by arrival, take out those to be refused, and size the pool."""
    final = final_tokens(trace, settings.final_length)
    need = -(-final // settings.block_size)
    empty = trace.prompt_tokens == 0
    blocks = settings.blocks or max(1, int(need[~empty].sum()))
    too_long = ~empty & (need > blocks)
    refusals = tuple(
        Refusal(int(request), (Empty if empty[request] else TooLong).__name__)
        for request in np.flatnonzero(empty | too_long)
    )
    order = trace.by_arrival()
    order = order[~(empty | too_long)[order]]
    check_size(trace, blocks, min(len(order), blocks) * int(need[order].max(initial=0)))
    arrival_step = arrival_steps(trace, order, settings.step_ms)
    need_before = np.concatenate((np.zeros(1, np.int64), np.cumsum(need[order])))
    return (
        Queue(order, arrival_step, trace.prompt_tokens[order], final[order], need[order], need_before),
        refusals,
        blocks,
    )


def arrival_steps(trace: Trace, order: Int64Array, step_ms: float | None) -> Int64Array:
    """Give the step from which on each request of `order` is there; without a clock, all are from the first."""
    if step_ms is None:
        return np.zeros(len(order), np.int64)
    return np.ceil(trace.arrival_s[order] * 1000 / step_ms).astype(np.int64)


def check_size(trace: Trace, blocks: int, table_entries: int) -> None:
    """Refuse a replay for which no machine would have the memory, before any is asked for."""
    remedy = "give --blocks, a larger --block-size or fewer --requests"
    if blocks > BLOCKS_MAX:
        raise BadInput(str(trace.path), f"a pool of {blocks:,} blocks, more than {BLOCKS_MAX:,}", remedy)
    if table_entries > TABLE_ENTRIES_MAX:
        what = f"block tables of {table_entries:,} entries, more than {TABLE_ENTRIES_MAX:,}"
        raise BadInput(str(trace.path), what, remedy)

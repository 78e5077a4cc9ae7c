"""Paged attention in plain torch: the default on a CPU, and a second opinion on every other device.

The work is cut into tasks, each the queries of one tile (up to 128 tokens of one sequence) over one piece of its
positions (up to 4,096, at fixed multiples), and `fallback_tile` works off a task. Pieces of one tile are joined by
log-sum-exp. What a task computes depends on its own sequence alone, so results are batch-invariant to the bit
(R-KRN-9).

On a CPU the tasks run on as many threads as torch has, each thread with single-threaded operations and scratch of its
own. One task is some thirty small operations; to spread each one over threads costs a barrier an operation, and where
another process wants a core each barrier waits for it. Measured against contiguous SDPA in the same run (medians; 32
sequences x 2,048 positions, 32/8 heads, D = 128, two threads on two cores that other processes used too): 1.2 to 1.6
times for float32 and 1.7 to 2.0 for bfloat16; with a barrier an operation 9 times.
Also considered: SDPA a sequence on gathered K and V (2.7 times SDPA; no public log-sum-exp), `enable_gqa` (1.6 times,
with nothing paged), gathering the whole batch (memory to match). Autograd is not supported: this is for inference.
"""

import itertools
import queue
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from pagedkv.kernels import fallback_storage
from pagedkv.kernels.arguments import PagedCache, Scoring
from pagedkv.kernels.fallback_tile import ChunkGather, attend_tile
from pagedkv.kernels.plan import AttentionPlan
from torch import Tensor

TILE_TOKENS = 128
PIECE_POSITIONS = 4096


@dataclass(frozen=True, slots=True)
class Task:
    """Queries `tokens` of `row`, which stand at `positions`, over KV positions `keys`; `piece` of `pieces`."""

    row: int
    tokens: slice
    positions: range
    keys: range
    piece: int
    pieces: int


@torch.no_grad()
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
    tasks = list(tasks_of(plan))
    parts: dict[int, list[tuple[Tensor, Tensor]]] = {}
    waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
    for task in sorted(tasks, key=lambda t: -len(t.keys) * len(t.positions)):
        waiting.put(task)
        if task.pieces > 1:
            parts[task.tokens.start] = [(query, query)] * task.pieces  # each is overwritten by its task

    def work() -> None:
        gather = ChunkGather(cache, query.device)
        with torch.no_grad():
            for task in iter(lambda: _take(waiting), None):
                result = attend_tile(
                    query[task.tokens], gather, block_table[task.row], task.positions, task.keys, plan, scoring,
                    with_sinks=task.piece == 0,
                )  # fmt: skip
                if task.pieces == 1:
                    _store(task.tokens, result, output, log_sum_exp)
                else:
                    parts[task.tokens.start][task.piece] = result

    _run(work, threads=min(torch.get_num_threads(), len(tasks)) if query.device.type == "cpu" else 1)
    for task in tasks:
        if task.pieces > 1 and task.piece == 0:
            outputs, lses = (torch.stack(states) for states in zip(*parts[task.tokens.start], strict=True))
            merged = torch.empty_like(outputs[0]), torch.empty_like(lses[0])
            fallback_storage.merge(outputs, lses, *merged)
            _store(task.tokens, merged, output, log_sum_exp)


def tasks_of(plan: AttentionPlan) -> Iterator[Task]:
    """Cut a plan into tasks, in the order of the batch. O(tasks)."""
    for row, (first, last) in enumerate(itertools.pairwise(plan.query_starts.tolist())):
        # Position of a query token = its index + this; negative where there are more queries than positions.
        to_position = int(plan.kv_lengths[row]) - last
        for begin in range(first, last, TILE_TOKENS):
            tokens = slice(begin, min(begin + TILE_TOKENS, last))
            positions = range(tokens.start + to_position, tokens.stop + to_position)
            keys = _visible(plan, row, positions)
            cuts = range(
                keys.start // PIECE_POSITIONS, max(keys.start // PIECE_POSITIONS + 1, -(-keys.stop // PIECE_POSITIONS))
            )
            for piece, cut in enumerate(cuts):
                start, stop = max(keys.start, cut * PIECE_POSITIONS), min(keys.stop, (cut + 1) * PIECE_POSITIONS)
                yield Task(row, tokens, positions, range(start, stop), piece, len(cuts))


def _visible(plan: AttentionPlan, row: int, positions: range) -> range:
    """Positions that some query at `positions` sees."""
    begin, end = int(plan.kv_starts[row]), int(plan.kv_lengths[row])
    if plan.causal:
        end = min(end, positions.stop)
    if plan.window is not None:
        begin = max(begin, positions.start - plan.window + 1)
    return range(begin, max(begin, end))


def _take(waiting: "queue.SimpleQueue[Task]") -> Task | None:
    """Take the next task, or None where none is left."""
    try:
        return waiting.get_nowait()
    except queue.Empty:
        return None


def _run(work: Callable[[], None], threads: int) -> None:
    """Run `work` on this thread and `threads` - 1 more, each with single-threaded operations, be it one or many.

    One alone, too: an operation on two threads adds up in another order, so a row's result would depend on whether it
    has batch mates (R-KRN-9).
    """

    def alone() -> None:
        torch.set_num_threads(1)
        work()

    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(max(1, threads - 1), thread_name_prefix="pagedkv-attention") as pool:
            others = [pool.submit(alone) for _ in range(threads - 1)]
            alone()
            for other in others:
                other.result()
    finally:
        torch.set_num_threads(before)


def _store(tokens: slice, result: tuple[Tensor, Tensor], output: Tensor, log_sum_exp: Tensor | None) -> None:
    output[tokens] = result[0]
    if log_sum_exp is not None:
        log_sum_exp[tokens] = result[1]

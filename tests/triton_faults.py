"""Faults to plant in the kernels, one a line of code, each with the rule it breaks and the test that must catch it.

A fault replaces one piece of a kernel module's source, the whole module is made anew from that, and everything that
was imported from it elsewhere is swapped, until the end of the block. If the source no longer holds the piece, or holds
it twice, planting fails: a fault cannot quietly stop being one.
"""

import contextlib
import importlib
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType


@dataclass(frozen=True)
class Fault:
    """What is wrong (`name`), the rule it breaks, where, and `caught_by`, a test as file::function."""

    name: str
    rule: str
    module: str
    right: str
    wrong: str
    caught_by: str


ATTENTION, INVARIANCE, STORAGE = "test_kernels_attention", "test_kernels_invariance", "test_kernels_storage"

FAULTS = [
    Fault(
        "unmasked V load", "R-KRN-1", "attention_kernel",
        "v = tl.load(values, mask=inside[:, None] & (lane < HEAD)[None, :], other=0.0)",
        "v = tl.load(values, mask=(at >= 0)[:, None] & (lane < HEAD)[None, :], other=0.0)",
        f"{ATTENTION}::test_slots_that_nobody_sees_change_nothing",
    ),
    Fault(
        "unmasked K load", "R-KRN-1", "attention_kernel",
        "seen = inside[None, :]", "seen = (at >= 0)[None, :]",
        f"{ATTENTION}::test_slots_that_nobody_sees_change_nothing",
    ),
    Fault(
        "division by zero where nothing is seen", "R-KRN-2", "attention_kernel",
        "divisor = tl.where(total == 0.0, 1.0, total)", "divisor = total",
        f"{ATTENTION}::test_length_zero_gives_zero",
    ),
    Fault(
        "-inf minus -inf in a tile", "R-KRN-3", "attention_kernel",
        'tl.where(new_maximum == float("-inf"), 0.0, new_maximum)\n    weights', "new_maximum\n    weights",
        f"{ATTENTION}::test_window_by_row",
    ),
    Fault(
        "-inf minus -inf in a merge", "R-KRN-3", "merge",
        'reference = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)', "reference = new_maximum",
        f"{STORAGE}::test_merge_has_an_exact_identity",
    ),
    Fault(
        "merge reads what stands beside -inf", "R-KRN-3", "merge",
        'counted = (lse != float("-inf"))', "counted = (state < count)",
        f"{STORAGE}::test_merge_has_an_exact_identity",
    ),
    Fault(
        "int32 offset in attention", "R-KRN-4", "attention_kernel",
        "other=0).to(tl.int64)", "other=0)",
        f"{INVARIANCE}::test_block_ids_beyond_32_bits",
    ),
    Fault(
        "int32 offset in append", "R-KRN-4", "append",
        "block = (slot // BLOCK_SIZE)[:, None]", "block = (slot // BLOCK_SIZE)[:, None].to(tl.int32)",
        f"{INVARIANCE}::test_block_ids_beyond_32_bits",
    ),
    Fault(
        "head stride taken for granted", "R-KRN-5", "attention_kernel",
        "key_base = key + kv_head.to(tl.int64) * key_head_stride", "key_base = key + kv_head.to(tl.int64) * HEAD",
        f"{ATTENTION}::test_strides_are_followed",
    ),
    Fault(
        "block table taken for contiguous", "R-KRN-5", "attention",
        '"table_stride": block_table.stride(0)', '"table_stride": block_table.shape[1]',
        f"{ATTENTION}::test_strides_are_followed",
    ),
    Fault(
        "padding lanes stored", "R-KRN-6", "attention_kernel",
        "stored = real[:, None] & (lane < HEAD)[None, :]", "stored = real[:, None] & (lane >= 0)[None, :]",
        f"{ATTENTION}::test_odd_shapes",
    ),
    Fault(
        "block size rounded to a power of two", "R-KRN-6", "attention",
        '"BLOCK_SIZE": cache.block_size', '"BLOCK_SIZE": power_of_two_above(cache.block_size)',
        f"{ATTENTION}::test_odd_shapes",
    ),
    Fault(
        "overlapping heads", "R-KRN-6", "attention_kernel",
        "head = kv_head * GROUP + row % GROUP", "head = kv_head * (GROUP - 1) + row % GROUP",
        f"{ATTENTION}::test_odd_shapes",
    ),
    Fault(
        "key scale applied twice", "R-KRN-7", "attention_kernel",
        "scale *= tl.load(key_scale + kv_head * key_scale_stride)",
        "scale *= tl.load(key_scale + kv_head * key_scale_stride) * tl.load(key_scale + kv_head * key_scale_stride)",
        f"{ATTENTION}::test_scales_are_applied_once",
    ),
    Fault(
        "value scale forgotten in partial results", "R-KRN-7", "attention_kernel",
        "if value_scale is not None:", "if value_scale is not None and partial_row < 0:",
        f"{ATTENTION}::test_scales_are_applied_once",
    ),
    Fault(
        "first head's scale for all", "R-KRN-7", "attention",
        "return int(scale is not None and scale.shape[0] > 1)", "return 0",
        f"{ATTENTION}::test_scales_are_applied_once",
    ),
    Fault(
        "append multiplies by the scale", "R-KRN-7", "append",
        "numbers.to(tl.float32) / tl.load(key_scale", "numbers.to(tl.float32) * tl.load(key_scale",
        f"{STORAGE}::test_what_is_appended_is_attended_to",
    ),
    Fault(
        "window one too wide", "R-KRN-8", "attention_kernel",
        "seen = seen & (distance < window)", "seen = seen & (distance <= window)",
        f"{ATTENTION}::test_window_by_row",
    ),
    Fault(
        "window one too narrow in the plan", "R-KRN-8", "tiles",
        "np.maximum(lowest, position - window + 1)", "np.maximum(lowest, position - window + 2)",
        f"{ATTENTION}::test_window_by_row",
    ),
    Fault(
        "window taken from the tile's last token", "R-KRN-8", "tiles",
        "np.maximum(lowest, position - window + 1)", "np.maximum(lowest, position + tokens - window)",
        f"{ATTENTION}::test_window_by_row",
    ),
    Fault(
        "split length by the batch", "R-KRN-9", "plan",
        "split_lengths[tiles[2]]", "split_length(tiles[2] + len(lengths), group, split_divisor)",
        f"{INVARIANCE}::test_batch_mates_and_order_change_nothing",
    ),
    Fault(
        "tile kind by the batch", "R-KRN-9", "plan",
        "is_small = counts * group <= 2 * rows.small", "is_small = counts * group * len(lengths) <= 2 * rows.small",
        f"{INVARIANCE}::test_batch_mates_and_order_change_nothing",
    ),
    Fault(
        "forgotten rescale", "softmax", "attention_kernel",
        "weighted * decay[:, None], input_precision", "weighted, input_precision",
        f"{ATTENTION}::test_rising_logits_over_tiles",
    ),
    Fault(
        "forgotten maximum", "softmax", "attention_kernel",
        "new_maximum = tl.maximum(maximum, tl.max(scores, 1))", "new_maximum = tl.zeros_like(maximum)",
        f"{ATTENTION}::test_large_logits_of_one_sign",
    ),
    Fault(
        "forgotten rescale in the merge", "softmax", "merge",
        "weighted = weighted * decay + ", "weighted = weighted + ",
        f"{STORAGE}::test_merge_is_attention_over_the_union",
    ),
    Fault(
        "log-sum-exp in base 2", "softmax", "attention_kernel",
        "(maximum + tl.log2(divisor)) * LN_2", "maximum + tl.log2(divisor)",
        f"{ATTENTION}::test_large_logits_of_one_sign",
    ),
    Fault(
        "causal edge one too early", "R-KRN-1", "attention_kernel",
        "seen = seen & (distance >= 0)", "seen = seen & (distance > 0)",
        f"{ATTENTION}::test_causal_edge_of_every_token",
    ),
    Fault(
        "whole tiles reach past the causal edge", "R-KRN-1", "attention_kernel",
        "last = tl.minimum(end, first_position + 1)", "last = tl.minimum(end, first_position + TILE)",
        f"{ATTENTION}::test_causal_edge_of_every_token",
    ),
    Fault(
        "wrong split stride", "splits", "tiles",
        "base[merged] + inside, splits[merged], tokens[merged])",
        "base[merged] + inside, splits[merged], np.ones_like(merged))",
        f"{INVARIANCE}::test_batch_mates_and_order_change_nothing",
    ),
    Fault(
        "a split left out", "splits", "tiles",
        "base[merged] + inside, splits[merged], tokens", "base[merged] + inside, splits[merged] - 1, tokens",
        f"{ATTENTION}::test_sink_counts_once_over_splits",
    ),
    Fault(
        "scratch sized a sequence", "splits", "attention",
        "scratch = (plan.partial_rows, q_heads)", "scratch = (len(plan.kv_lengths), q_heads)",
        f"{INVARIANCE}::test_batch_mates_and_order_change_nothing",
    ),
    Fault(
        "two splits write one scratch row", "splits", "tiles",
        "base[tile] + ordinal * tokens_there", "base[tile] + ordinal // 2 * tokens_there",
        f"{ATTENTION}::test_sink_counts_once_over_splits",
    ),
    Fault(
        "sink counted once a split", "sinks", "attention_kernel",
        "if sinks is not None and partial_row < 0:", "if sinks is not None:",
        f"{ATTENTION}::test_sink_counts_once_over_splits",
    ),
    Fault(
        "sink forgotten in the merge", "sinks", "attention",
        "output, log_sum_exp, scoring.sinks)", "output, log_sum_exp, None)",
        f"{ATTENTION}::test_sink_counts_once_over_splits",
    ),
    Fault(
        "read past a row", "R-TAB-1", "attention_kernel",
        "block = tl.load(table_row + at // BLOCK_SIZE, mask=inside, other=0)",
        "block = tl.load(table_row + at // BLOCK_SIZE + BLOCK_SIZE * TILE)",
        f"{ATTENTION}::test_slots_that_nobody_sees_change_nothing",
    ),
    Fault(
        "length rounded up to a block", "R-TAB-1", "tiles",
        "end = np.minimum(lengths, position + tokens) if causal else lengths",
        "end = -(-lengths // 16) * 16",
        f"{ATTENTION}::test_slots_that_nobody_sees_change_nothing",
    ),
    Fault(
        "slot -1 writes", "R-TAB-2", "append",
        "written = (slot >= 0)[:, None]", "written = (slot >= -1)[:, None]",
        f"{STORAGE}::test_append_writes_its_slots_and_no_other",
    ),
    Fault(
        "V appended over K", "R-KRN-5", "append",
        "target = value + block", "target = key + block",
        f"{STORAGE}::test_append_writes_its_slots_and_no_other",
    ),
    Fault(
        "one fp8 range for all", "R-KRN-7", "append",
        "torch.finfo(cache.key.dtype).max if is_float8", "448.0 if is_float8",
        f"{STORAGE}::test_append_quantises_with_the_scale_and_saturates",
    ),
    Fault(
        "copy ignores its extent", "R-COW-3", "copy",
        "extent = tl.load(extents + copy)", "extent = BLOCK_SIZE",
        f"{STORAGE}::test_copy_keeps_to_its_extents",
    ),
    Fault(
        "copy moves K alone", "R-COW-3", "copy",
        "grid = (count, layers * halves,", "grid = (count, layers,",
        f"{STORAGE}::test_copy_moves_whole_blocks_in_all_layers",
    ),
    Fault(
        "copy takes HND for NHD", "R-KRN-5", "copy",
        "blocks = position_major(pool, layout)", "blocks = pool",
        f"{STORAGE}::test_copy_keeps_to_its_extents",
    ),
]  # fmt: skip


@contextlib.contextmanager
def planted(fault: Fault, folder: Path) -> Iterator[None]:
    """Make the fault true in this process until the end of the block. `folder` takes the faulty source."""
    module = importlib.import_module(f"pagedkv.kernels.{fault.module}")
    source = inspect.getsource(module)
    if source.count(fault.right) != 1:
        raise LookupError(f"{fault.name}: {fault.module} holds {fault.right!r} {source.count(fault.right)} times")
    path = folder / f"{fault.module}_with_a_fault.py"
    path.write_text(source.replace(fault.right, fault.wrong))
    before = dict(vars(module))
    try:
        exec(compile(path.read_text(), str(path), "exec"), vars(module))  # noqa: S102  (our own source, changed)
        _swap(before, dict(vars(module)), module)
        yield
    finally:
        after = dict(vars(module))
        vars(module).clear()
        vars(module).update(before)
        _swap(after, before, module)


def _swap(old: dict[str, object], new: dict[str, object], source: ModuleType) -> None:
    """Wherever a kernel module or a test holds an object of `old` by import, give it the one of `new`."""
    changed = {id(value): new[name] for name, value in old.items() if name in new and new[name] is not value}
    for name, module in list(sys.modules.items()):
        if module is not source and name.startswith(("pagedkv.kernels.", "triton_cases", "test_kernels")):
            for key, value in list(vars(module).items()):
                if not key.startswith("__") and id(value) in changed:
                    setattr(module, key, changed[id(value)])

"""Merge of attention states by log-sum-exp, on Triton: partial results of splits, and whatever a caller wants joined.

Two states (o1, l1), (o2, l2) over disjoint positions join to o = sum(exp(li - m) oi) / sum(exp(li - m)) and
l = m + log(sum(exp(li - m))), with m = max(li) (natural logarithms). (anything, -inf) is
the identity, to the bit, so a row with one split is the same row whether it was merged or not (R-KRN-3). One program
a row (token, head); states are read once, 16 at a time, in a fixed order, so a result depends on its own states alone.
"""
# mypy: disable-error-code="untyped-decorator"
# ruff: noqa: N803, PLR0917  (a kernel has the parameters that its launch passes; constexpr ones are upper case)

import triton
import triton.language as tl
from pagedkv.kernels import tiles
from pagedkv.kernels.launch import KernelCall
from pagedkv.kernels.tiles import power_of_two_above
from torch import Tensor

STATES_A_READ = 16
MERGE_FIELDS = tl.constexpr(tiles.MERGE_FIELDS)


@triton.jit(do_not_specialize=["count", "rows_between"])  # they vary with the batch, and would recompile
def merge_kernel(
    merges: tl.tensor, states: tl.tensor, state_lse: tl.tensor, output: tl.tensor, log_sum_exp: tl.tensor,
    sinks: tl.tensor, count: tl.tensor, rows_between: tl.tensor, heads: tl.tensor, output_token_stride: tl.tensor,
    output_head_stride: tl.tensor, HEAD: tl.constexpr, HEAD_PADDED: tl.constexpr, STATES: tl.constexpr,
) -> None:  # fmt: skip
    """Join the states of one (token, head). `merges` says where they lie, or, where it is None, they lie regularly."""
    token = (tl.program_id(0) // heads).to(tl.int64)
    head = tl.program_id(0) % heads
    first = token
    if merges is not None:
        record = merges + token * MERGE_FIELDS
        token = tl.load(record).to(tl.int64)
        first = tl.load(record + 1).to(tl.int64)
        count = tl.load(record + 2)
        rows_between = tl.load(record + 3)
    if count == 0:  # padding of a captured plan
        return
    lane = tl.arange(0, HEAD_PADDED)
    maximum = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    weighted = tl.zeros([HEAD_PADDED], tl.float32)
    if sinks is not None:  # a score with weight and no value, once a row
        maximum = tl.load(sinks + head + tl.arange(0, 1))
        total = tl.full([1], 1.0, tl.float32)
    for start in tl.range(0, count, STATES):
        state = start + tl.arange(0, STATES)
        scratch = (first + state.to(tl.int64) * rows_between) * heads + head
        lse = tl.load(state_lse + scratch, mask=state < count, other=float("-inf"))
        # What stands beside -inf does not count, not even NaN: it is not loaded.
        counted = (lse != float("-inf"))[:, None] & (lane < HEAD)[None, :]
        part = tl.load(states + scratch[:, None] * HEAD + lane[None, :], mask=counted, other=0.0).to(tl.float32)
        new_maximum = tl.maximum(maximum, tl.max(lse, 0, keep_dims=True))
        reference = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
        weights = tl.exp(lse - reference)
        decay = tl.exp(maximum - reference)
        total = total * decay + tl.sum(weights, 0, keep_dims=True)
        weighted = weighted * decay + tl.sum(part * weights[:, None], 0)
        maximum = new_maximum
    divisor = tl.where(total == 0.0, 1.0, total)
    result = weighted / divisor
    address = output + token * output_token_stride + head.to(tl.int64) * output_head_stride + lane
    tl.store(address, result.to(output.dtype.element_ty), mask=lane < HEAD)
    if log_sum_exp is not None:
        tl.store(log_sum_exp + token * heads + head + tl.arange(0, 1), maximum + tl.log(divisor))


def merge(outputs: Tensor, log_sum_exps: Tensor, output: Tensor, log_sum_exp: Tensor) -> None:
    """Join states `[states, tokens, heads, D]` and `[states, tokens, heads]`. Arguments are checked (`dispatch`)."""
    merge_call(None, outputs, log_sum_exps, output, log_sum_exp, None).run()


def merge_partials_call(
    merges: Tensor,
    partial_output: Tensor,
    partial_lse: Tensor,
    output: Tensor,
    log_sum_exp: Tensor | None,
    sinks: Tensor | None,
) -> KernelCall:
    """Build the launch that joins what splits left in scratch `[partial rows, heads, D]`."""
    return merge_call(merges, partial_output[None], partial_lse[None], output, log_sum_exp, sinks)


def merge_call(
    merges: Tensor | None,
    states: Tensor,
    state_lse: Tensor,
    output: Tensor,
    log_sum_exp: Tensor | None,
    sinks: Tensor | None,
) -> KernelCall:
    """Build one merge launch: a program a (record or token, head)."""
    count, tokens, heads, head_size = states.shape
    arguments = {
        "merges": merges, "states": states, "state_lse": state_lse, "output": output, "log_sum_exp": log_sum_exp,
        "sinks": sinks, "count": count, "rows_between": tokens, "heads": heads,
        "output_token_stride": output.stride(0), "output_head_stride": output.stride(1),
        "HEAD": head_size, "HEAD_PADDED": power_of_two_above(head_size), "STATES": STATES_A_READ,
    }  # fmt: skip
    rows = tokens if merges is None else len(merges)
    return KernelCall(merge_kernel, (rows * heads,), arguments, {"num_warps": 1 if head_size <= 128 else 2})

"""Paged attention on Triton: tile shapes, scratch and launches. The device code is in `attention_kernel`.

At most three launches a call: small tiles (decode, verify), large tiles (prefill), and the merge of partial results; an
empty one is left out. Batch size and lengths are only grid sizes and plan contents, so nothing recompiles as they vary.
All is capturable in a CUDA graph: no host synchronisation, scratch from the caching allocator.

Tile shapes are a fixed function of head size and dtype, never of the batch and never autotuned, since both would make
results vary (R-KRN-9) and tuning would stall serving (vllm#37188). They were chosen by reading back what compiles
without spills within every chip's shared memory (`compile_report`).
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from pagedkv.kernels.arguments import FLOAT8_DTYPES, PagedCache, Scoring
from pagedkv.kernels.attention_kernel import attention_kernel
from pagedkv.kernels.checks import require
from pagedkv.kernels.launch import KernelCall, active_target
from pagedkv.kernels.merge import merge_partials_call
from pagedkv.kernels.plan import AttentionPlan, WorkList
from pagedkv.kernels.tiles import LARGE_ROWS, power_of_two_above
from torch import Tensor
from triton.backends.compiler import GPUTarget

SMALLEST_E4M3_ARCHITECTURE = 89


@dataclass(frozen=True, slots=True)
class TileShape:
    """How one program works: `rows` at once, `positions` an iteration, on `warps`, loading `stages` ahead.

    A tile of the plan with more rows than that takes several programs. A block id must be there before its K and V can
    be asked for, so the pipeline is two loads deep: of five stages two hold block ids and two K and V in flight.
    """

    rows: int
    positions: int
    warps: int
    stages: int

    @classmethod
    def of(
        cls, plan_rows: int, head_padded: int, dtype: torch.dtype, cache_dtype: torch.dtype, target: GPUTarget
    ) -> "TileShape":
        """Choose for a tile of `plan_rows`, a head size (padded to a power of two), the dtype of the dots, and a chip.

        float32 has no IEEE matrix unit and keeps its operands in registers: small tiles. Before wgmma (sm_80) and on
        AMD, K and V pass through registers: 32 positions, and 16 where fp8 is decoded there. AMD stages them in 64 KiB
        of LDS, too: a shallow pipeline.
        """
        is_amd = target.backend == "hip"
        stages = 2 if is_amd else 5
        if dtype == torch.float32:
            return cls(rows=min(plan_rows, 32), positions=16, warps=8, stages=1)
        if plan_rows < LARGE_ROWS:
            return cls(rows=plan_rows, positions=32, warps=4, stages=stages)
        rows = 128 if head_padded <= 128 else 64
        if is_amd or target.arch < 90:
            return cls(rows=rows, positions=16 if cache_dtype in FLOAT8_DTYPES else 32, warps=8, stages=stages)
        return cls(rows=rows, positions=64 if head_padded <= 128 else 32, warps=8, stages=stages)


def attend(
    query: Tensor,
    cache: PagedCache,
    block_table: Tensor,
    plan: AttentionPlan,
    scoring: Scoring,
    output: Tensor,
    log_sum_exp: Tensor | None,
) -> None:
    """Fill `output` and, where given, `log_sum_exp`. Arguments are checked (`dispatch.attention`)."""
    check_float8(cache)
    for call in attention_calls(query, cache, block_table, plan.to(query.device), scoring, output, log_sum_exp):
        call.run()


def check_float8(cache: PagedCache) -> None:
    """Refuse an e4m3 cache by name on an NVIDIA GPU that cannot convert it (before sm_89)."""
    target = active_target()
    able = target.backend != "cuda" or target.arch >= SMALLEST_E4M3_ARCHITECTURE
    require(
        able or cache.key.dtype != torch.float8_e4m3fn,
        f"cache: float8_e4m3fn needs sm_89 or later, this GPU is sm_{target.arch}; use float8_e5m2",
    )


def attention_calls(
    query: Tensor,
    cache: PagedCache,
    block_table: Tensor,
    plan: AttentionPlan,
    scoring: Scoring,
    output: Tensor,
    log_sum_exp: Tensor | None,
) -> list[KernelCall]:
    """Build the launches of one attention call, in order. `plan` is on the query's device."""
    q_heads = query.shape[1]
    scratch = (plan.partial_rows, q_heads)
    partial_output = query.new_empty((*scratch, cache.head_size), dtype=torch.float32)
    partial_lse = query.new_empty(scratch, dtype=torch.float32)
    shared: dict[str, Any] = {
        "query": query, "key": cache.key, "value": cache.value, "block_table": block_table,
        "output": output, "log_sum_exp": log_sum_exp, "partial_output": partial_output, "partial_lse": partial_lse,
        "key_scale": cache.key_scale, "value_scale": cache.value_scale,
        "alibi_slopes": scoring.alibi_slopes, "sinks": scoring.sinks,
        "scale": 1 / math.sqrt(cache.head_size) if scoring.scale is None else float(scoring.scale),
        "soft_cap": float(scoring.soft_cap or 0.0), "window": plan.window or 0, "q_heads": q_heads,
        "BLOCK_SIZE": cache.block_size, "GROUP": plan.group, "HEAD": cache.head_size,
        "HEAD_PADDED": power_of_two_above(cache.head_size),
        "CAUSAL": plan.causal, "WINDOWED": plan.window is not None, "CAPPED": scoring.soft_cap is not None,
        **_strides(query, cache, block_table, output),
    }  # fmt: skip
    calls = [_tile_call(work, shared, cache.kv_heads) for work in (plan.small, plan.large) if len(work.items)]
    if len(plan.merges):
        calls.append(merge_partials_call(plan.merges, partial_output, partial_lse, output, log_sum_exp, scoring.sinks))
    return calls


def _tile_call(work: WorkList, shared: dict[str, Any], kv_heads: int) -> KernelCall:
    shape = TileShape.of(work.rows, shared["HEAD_PADDED"], shared["query"].dtype, shared["key"].dtype, active_target())
    return KernelCall(
        attention_kernel,
        (len(work.items) * kv_heads, work.rows // shape.rows),
        {**shared, "items": work.items, "ROWS": shape.rows, "TILE": shape.positions},
        {"num_warps": shape.warps, "num_stages": shape.stages},
    )


def _strides(query: Tensor, cache: PagedCache, block_table: Tensor, output: Tensor) -> dict[str, int]:
    """Strides in elements, by the names that the kernel gives them."""
    keys, values = cache.keys, cache.values
    return {
        "query_token_stride": query.stride(0), "query_head_stride": query.stride(1),
        "output_token_stride": output.stride(0), "output_head_stride": output.stride(1),
        "table_stride": block_table.stride(0),
        "key_block_stride": keys.stride(0), "key_position_stride": keys.stride(1), "key_head_stride": keys.stride(2),
        "value_block_stride": values.stride(0), "value_position_stride": values.stride(1),
        "value_head_stride": values.stride(2),
        "key_scale_stride": scale_stride(cache.key_scale), "value_scale_stride": scale_stride(cache.value_scale),
    }  # fmt: skip


def scale_stride(scale: Tensor | None) -> int:
    """0 where one scale serves all heads."""
    return int(scale is not None and scale.shape[0] > 1)

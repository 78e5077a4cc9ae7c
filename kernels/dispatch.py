"""The one door to the kernels: each function checks its arguments, then runs on Triton or on torch.

`backend="auto"` takes Triton for tensors on a GPU and torch for all others; "torch" and "triton" force one. Both have
the same meaning and pass the same tests. Nothing is chosen by timing: a choice that changes while serving would change
results. Results are filled into `output` where one is given, so that a captured CUDA graph can replay the call; the
plan's work lists should then be on the device already (`plan.to(device)`).

`checked=True` also reads what tensors contain (ids, slots) before the launch and refuses what is out of range; the
default is on for CPU tensors and off otherwise, since it waits for the device.
"""

from importlib.util import find_spec
from typing import Literal

import torch
from pagedkv.kernels import checks, contents, fallback, fallback_storage
from pagedkv.kernels.arguments import PLAIN, InvalidKernelArgument, Layout, PagedCache, Scoring, position_major
from pagedkv.kernels.plan import AttentionPlan
from torch import Tensor

Backend = Literal["auto", "torch", "triton"]
HAS_TRITON = find_spec("triton") is not None


def choose_backend(device: torch.device, backend: Backend = "auto") -> Literal["torch", "triton"]:
    """Choose by device, or as told. Raises `InvalidKernelArgument` for an unknown name, or without Triton. O(1)."""
    if backend == "auto":
        # ROCm devices are called cuda, too; and Triton exists on Linux alone.
        return "triton" if device.type == "cuda" and HAS_TRITON else "torch"
    checks.require(backend in {"torch", "triton"}, f"backend: {backend!r} is none of 'auto', 'torch', 'triton'")
    checks.require(backend == "torch" or HAS_TRITON, "backend: Triton is not installed; use 'torch', or install it")
    return backend


def attention(
    query: Tensor,
    cache: PagedCache,
    block_table: Tensor,
    plan: AttentionPlan,
    *,
    scoring: Scoring = PLAIN,
    output: Tensor | None = None,
    log_sum_exp: Tensor | None = None,
    backend: Backend = "auto",
    checked: bool | None = None,
) -> Tensor:
    """Attention of `query` `[tokens, q_heads, D]` over the rows of `block_table` `[rows, max_blocks]` int32.

    The new tokens' K and V must be in the cache already (`append`). Rows, lengths, causality and window are the plan's
    (`plan_attention`). Fills and returns `output` (the query's dtype, or float32), and fills `log_sum_exp` `[tokens,
    q_heads]` float32 (natural) where given. A row that sees nothing gives 0 and -inf. What is computed is written in
    `pagedkv.spec.attention`; the running softmax is FlashAttention-2's (Dao, 2023), split and merge FlashDecoding's.
    Within one row tile what any of its tokens sees is loaded: a NaN there may reach the tile's other tokens.
    Raises `InvalidKernelArgument` before any launch. Cost: K and V are read once a tile; see `plan` for tiles.
    """
    result = torch.empty_like(query, memory_format=torch.contiguous_format) if output is None else output
    checks.check_attention(query, cache, block_table, plan, scoring, result, log_sum_exp)
    if contents.is_checked(checked, query.device):
        contents.check_entries(block_table, cache, plan)
    if query.shape[0] == 0:
        return result
    if choose_backend(query.device, backend) == "torch":
        fallback.attend(query, cache, block_table, plan, scoring, result, log_sum_exp)
    else:
        import pagedkv.kernels.attention as kernel  # noqa: PLC0415  (Triton exists on Linux alone)

        kernel.attend(query, cache, block_table, plan, scoring, result, log_sum_exp)
    return result


def merge(
    outputs: Tensor,
    log_sum_exps: Tensor,
    *,
    output: Tensor | None = None,
    log_sum_exp: Tensor | None = None,
    backend: Backend = "auto",
) -> tuple[Tensor, Tensor]:
    """Join attention over disjoint positions: `outputs` `[states, tokens, heads, D]`, natural `log_sum_exps` float32.

    Returns `[tokens, heads, D]` (of `outputs`' dtype, or `output`'s) and float32 `[tokens, heads]`. (anything, -inf) is
    the identity, exactly (R-KRN-3). Reads every state once. Raises `InvalidKernelArgument`.
    """
    checks.require(outputs.dim() == 4, f"outputs: [states, tokens, heads, D] needed, not {list(outputs.shape)}")
    checks.require(outputs.shape[0] >= 1, "outputs: no state to merge")
    checks.require(
        log_sum_exps.shape == outputs.shape[:3] and log_sum_exps.dtype == torch.float32,
        f"log_sum_exps: float32 {list(outputs.shape[:3])} needed, not {log_sum_exps.dtype} {list(log_sum_exps.shape)}",
    )
    checks.require(log_sum_exps.device == outputs.device, "log_sum_exps: not on the device of outputs")
    checks.require(
        outputs.is_contiguous() and log_sum_exps.is_contiguous(), "outputs and log_sum_exps: must be contiguous"
    )
    result = torch.empty_like(outputs[0]) if output is None else output
    lse = torch.empty_like(log_sum_exps[0]) if log_sum_exp is None else log_sum_exp
    checks.require(
        result.shape == outputs.shape[1:] and lse.shape == log_sum_exps.shape[1:],
        f"output: {list(result.shape)} and {list(lse.shape)}, but {list(outputs.shape[1:])} and its heads are needed",
    )
    checks.require(result.is_contiguous() and lse.is_contiguous(), "output and log_sum_exp: must be contiguous")
    if lse.numel() == 0:
        return result, lse
    if choose_backend(outputs.device, backend) == "torch":
        fallback_storage.merge(outputs, log_sum_exps, result, lse)
    else:
        import pagedkv.kernels.merge as kernel  # noqa: PLC0415  (Triton exists on Linux alone)

        kernel.merge(outputs, log_sum_exps, result, lse)
    return result, lse


def append(
    key: Tensor, value: Tensor, cache: PagedCache, slots: Tensor,
    *, backend: Backend = "auto", checked: bool | None = None,
) -> None:  # fmt: skip
    """Write new K and V `[tokens, kv_heads, D]` to the cache at `slots` `[tokens]` int64; -1 writes nothing (R-TAB-2).

    A slot is block id x B + offset. An fp8 cache stores number / scale, saturated. Raises `InvalidKernelArgument`.
    Cost: one read and one write of the new tokens.
    """
    checks.check_append(key, value, cache, slots)
    if contents.is_checked(checked, slots.device):
        contents.check_slots(slots, cache)
    if slots.shape[0] == 0:
        return
    if choose_backend(slots.device, backend) == "torch":
        fallback_storage.append(key, value, cache, slots)
    else:
        import pagedkv.kernels.append as kernel  # noqa: PLC0415  (Triton exists on Linux alone)

        kernel.append(key, value, cache, slots)


def copy_blocks(
    pool: Tensor, sources: Tensor, targets: Tensor,
    *, extents: Tensor | None = None, layout: Layout = "NHD", backend: Backend = "auto", checked: bool | None = None,
) -> None:  # fmt: skip
    """Copy blocks within a pool, K and V of all layers in one launch.

    `pool` is `[layers, 2, blocks, B, kv_heads, D]` (NHD) or `[layers, 2, blocks, kv_heads, B, D]` (HND), any strides
    but the last. Block `sources[n]` goes to `targets[n]` (int64): its first `extents[n]` positions, or all. Targets are
    distinct and no target is a source (R-COW-3). Cost: one read and one write of what is copied.
    """
    checks.require(pool.dim() == 6, f"pool: [layers, 2, blocks, ...] with 6 axes needed, not {list(pool.shape)}")
    checks.require(pool.stride(5) == 1, f"pool: stride of the last axis is {pool.stride(5)}, must be 1")
    checks.check_writable("pool", pool)
    indices = [("sources", sources), ("targets", targets)] + ([("extents", extents)] if extents is not None else [])
    for name, tensor in indices:
        _check_index(name, tensor, sources.shape[0] if sources.dim() == 1 else -1, pool.device)
    if contents.is_checked(checked, pool.device):
        contents.check_blocks("sources", sources, pool.shape[2], written=False)
        contents.check_blocks("targets", targets, pool.shape[2], written=True)
        contents.check_copy_order(sources, targets)
        if extents is not None:
            contents.check_extents(extents, position_major(pool, layout).shape[3])
    if sources.shape[0] == 0:
        return
    if choose_backend(pool.device, backend) == "torch":
        fallback_storage.copy_blocks(pool, sources, targets, extents, layout)
    else:
        import pagedkv.kernels.copy as kernel  # noqa: PLC0415  (Triton exists on Linux alone)

        kernel.copy_blocks(pool, sources, targets, extents, layout)


def gather_blocks(
    pool: Tensor, blocks: Tensor, staging: Tensor, *, backend: Backend = "auto", checked: bool | None = None
) -> None:
    """Gather blocks `[n]` int64 of a pool (as in `copy_blocks`) into `staging` `[n, layers, 2, ...]`, in one launch.

    Staging is on the pool's device or, for a pool on a GPU, in pinned host memory, which the kernel writes directly.
    """
    _check_staging(pool, blocks, staging)
    checks.check_writable("staging", staging)
    if contents.is_checked(checked, pool.device):
        contents.check_blocks("blocks", blocks, pool.shape[2], written=False)
    if blocks.shape[0] == 0:
        return
    if choose_backend(pool.device, backend) == "torch":
        fallback_storage.gather_blocks(pool, blocks, staging)
    else:
        import pagedkv.kernels.copy as kernel  # noqa: PLC0415  (Triton exists on Linux alone)

        kernel.gather_blocks(pool, blocks, staging)


def scatter_blocks(
    staging: Tensor, pool: Tensor, blocks: Tensor, *, backend: Backend = "auto", checked: bool | None = None
) -> None:
    """Scatter `staging` `[n, layers, 2, ...]` into blocks `[n]` int64 of a pool: the inverse of `gather_blocks`."""
    _check_staging(pool, blocks, staging)
    checks.check_writable("pool", pool)
    if contents.is_checked(checked, pool.device):
        contents.check_blocks("blocks", blocks, pool.shape[2], written=True)
    if blocks.shape[0] == 0:
        return
    if choose_backend(pool.device, backend) == "torch":
        fallback_storage.scatter_blocks(staging, pool, blocks)
    else:
        import pagedkv.kernels.copy as kernel  # noqa: PLC0415  (Triton exists on Linux alone)

        kernel.scatter_blocks(staging, pool, blocks)


def _check_index(name: str, tensor: Tensor, length: int, device: torch.device) -> None:
    checks.require(
        tensor.dtype == torch.int64 and tuple(tensor.shape) == (length,) and tensor.is_contiguous(),
        f"{name}: contiguous int64 of one length needed, not {tensor.dtype} {list(tensor.shape)}",
    )
    checks.require(tensor.device == device, f"{name}: on {tensor.device}, but the pool is on {device}")


def _check_staging(pool: Tensor, blocks: Tensor, staging: Tensor) -> None:
    checks.require(pool.dim() == 6, f"pool: [layers, 2, blocks, ...] with 6 axes needed, not {list(pool.shape)}")
    _check_index("blocks", blocks, blocks.shape[0] if blocks.dim() == 1 else -1, pool.device)
    shape = (blocks.shape[0], *pool.shape[:2], *pool.shape[3:])
    checks.require(
        tuple(staging.shape) == shape and staging.dtype == pool.dtype,
        f"staging: {pool.dtype} {list(shape)} needed, not {staging.dtype} {list(staging.shape)}",
    )
    checks.require(
        pool.stride(5) == 1 and staging.stride(5) == 1, "pool and staging: the stride of the last axis must be 1"
    )
    reachable = staging.device == pool.device or (staging.device.type == "cpu" and staging.is_pinned())
    if not reachable:
        raise InvalidKernelArgument(
            f"staging: on {staging.device}, not pinned; use the pool's device ({pool.device}) or pinned host memory"
        )

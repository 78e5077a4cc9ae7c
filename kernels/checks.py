"""Bad input is refused here, before any launch, with one line that says what, where and what to do.

Two levels. *Always*: shapes, dtypes, strides, devices, head counts, rows too short for their length: everything that
can be told from what the host holds, at a few microseconds a call and without waiting for a device. *Checked mode*:
what only the contents of tensors can tell (a block id or a slot out of range, two writes to one slot), which has to
read them; on by default on a CPU, where that is cheap, and off on a GPU, where it would wait for the device.

In checked mode the null block counts as out of range: nobody owns block 0, so no entry that is read may name it, and
nothing may be written to it (R-TAB-1, R-TAB-2).
"""

import torch
from pagedkv.kernels.arguments import COMPUTE_DTYPES, FLOAT8_DTYPES, InvalidKernelArgument, PagedCache, Scoring
from pagedkv.kernels.plan import AttentionPlan
from torch import Tensor

SMALLEST_HEAD, LARGEST_HEAD, HEAD_STEP = 16, 256, 8


def require(condition: object, message: str) -> None:
    """Raise `InvalidKernelArgument` with this message unless the condition holds."""
    if not condition:
        raise InvalidKernelArgument(message)


def check_cache(cache: PagedCache) -> None:
    """Refuse K and V that do not agree with each other, or that no kernel can address."""
    key, value = cache.key, cache.value
    require(cache.layout in {"NHD", "HND"}, f"cache: layout {cache.layout!r} is neither 'NHD' nor 'HND'")
    require(key.dim() == 4, f"cache.key: 4 axes needed, not {list(key.shape)}")
    require(key.shape == value.shape, f"cache: key {list(key.shape)} and value {list(value.shape)} must have one shape")
    require(key.dtype == value.dtype, f"cache: key is {key.dtype} and value {value.dtype}; they must agree")
    require(
        key.dtype in (*COMPUTE_DTYPES, *FLOAT8_DTYPES),
        f"cache: dtype {key.dtype} is not float32, float16, bfloat16, float8_e4m3fn or float8_e5m2",
    )
    size = cache.head_size
    require(
        SMALLEST_HEAD <= size <= LARGEST_HEAD and size % HEAD_STEP == 0,
        f"cache: head size {size} is not in 16..256 in steps of 8",
    )
    require(cache.block_size >= 1 and cache.kv_heads >= 1, f"cache: an axis of {list(key.shape)} is empty")
    for name, tensor in (("key", key), ("value", value)):
        require(tensor.stride(3) == 1, f"cache.{name}: stride of the last axis is {tensor.stride(3)}, must be 1")
    _check_device("cache.value", value, key.device)
    for name, scale in (("key_scale", cache.key_scale), ("value_scale", cache.value_scale)):
        if scale is not None:
            check_per_head(f"cache.{name}", scale, (1, cache.kv_heads), key.device)


def check_per_head(name: str, tensor: Tensor, lengths: tuple[int, ...], device: torch.device) -> None:
    """Refuse what is not a contiguous float32 `[n]` with n among `lengths`, on the device."""
    require(
        tensor.dtype == torch.float32 and tensor.dim() == 1 and tensor.shape[0] in lengths and tensor.is_contiguous(),
        f"{name}: {tensor.dtype} {list(tensor.shape)}, but contiguous float32 of length {sorted(set(lengths))} is"
        " needed",
    )
    _check_device(name, tensor, device)


def check_attention(
    query: Tensor, cache: PagedCache, block_table: Tensor, plan: AttentionPlan, scoring: Scoring,
    output: Tensor, log_sum_exp: Tensor | None,
) -> None:  # fmt: skip
    """Refuse arguments of `attention` that do not agree."""
    check_cache(cache)
    require(query.dim() == 3, f"query: [tokens, q_heads, D] needed, not {list(query.shape)}")
    tokens, q_heads, head_size = query.shape
    require(head_size == cache.head_size, f"query: head size {head_size}, but the cache has {cache.head_size}")
    require(
        q_heads == cache.kv_heads * plan.group,
        f"query: {q_heads} heads, but {cache.kv_heads} KV heads in groups of {plan.group} (the plan's) are needed",
    )
    require(tokens == plan.tokens, f"query: {tokens} tokens, but the plan has {plan.tokens}")
    require(query.dtype in COMPUTE_DTYPES, f"query: dtype {query.dtype} is not float32, float16 or bfloat16")
    require(
        cache.key.dtype in (query.dtype, *FLOAT8_DTYPES),
        f"cache: dtype {cache.key.dtype} does not go with a query of {query.dtype}; the same or fp8 is needed",
    )
    require(query.stride(2) == 1, f"query: stride of the last axis is {query.stride(2)}, must be 1")
    _check_device("query", query, cache.key.device)
    check_rows(block_table, cache, plan)
    for name, tensor in (("alibi_slopes", scoring.alibi_slopes), ("sinks", scoring.sinks)):
        if tensor is not None:
            check_per_head(f"scoring.{name}", tensor, (q_heads,), query.device)
    require(scoring.soft_cap is None or scoring.soft_cap > 0, f"scoring.soft_cap: {scoring.soft_cap} is not positive")
    check_results(query, output, log_sum_exp)


def check_rows(block_table: Tensor, cache: PagedCache, plan: AttentionPlan) -> None:
    """Refuse a block table whose rows cannot hold what the plan reads."""
    require(
        block_table.dim() == 2 and block_table.dtype == torch.int32,
        f"block_table: int32 [rows, max_blocks] needed, not {block_table.dtype} {list(block_table.shape)}",
    )
    rows = len(plan.kv_lengths)
    require(block_table.shape[0] >= rows, f"block_table: {block_table.shape[0]} rows, but the plan has {rows}")
    longest = int(plan.kv_lengths.max(initial=0))
    room = block_table.shape[1] * cache.block_size
    require(
        longest <= room,
        f"block_table: row {int(plan.kv_lengths.argmax()) if rows else 0} of {block_table.shape[1]} blocks x"
        f" {cache.block_size} is too short for its length {longest}",
    )
    require(
        block_table.shape[1] <= 1 or block_table.stride(1) == 1,
        f"block_table: stride of the last axis is {block_table.stride(1)}, must be 1",
    )
    _check_device("block_table", block_table, cache.key.device)


def check_results(query: Tensor, output: Tensor, log_sum_exp: Tensor | None) -> None:
    """Refuse result tensors that the kernel cannot fill."""
    require(output.shape == query.shape, f"output: {list(output.shape)}, but the query is {list(query.shape)}")
    require(
        output.dtype in (query.dtype, torch.float32),
        f"output: dtype {output.dtype} is neither the query's ({query.dtype}) nor float32",
    )
    require(output.stride(2) == 1, f"output: stride of the last axis is {output.stride(2)}, must be 1")
    check_writable("output", output)
    _check_device("output", output, query.device)
    if log_sum_exp is not None:
        require(
            log_sum_exp.shape == query.shape[:2] and log_sum_exp.dtype == torch.float32 and log_sum_exp.is_contiguous(),
            f"log_sum_exp: {log_sum_exp.dtype} {list(log_sum_exp.shape)}, but contiguous float32"
            f" {list(query.shape[:2])} is needed",
        )
        _check_device("log_sum_exp", log_sum_exp, query.device)


def check_append(key: Tensor, value: Tensor, cache: PagedCache, slots: Tensor) -> None:
    """Refuse arguments of `append` that do not agree."""
    check_cache(cache)
    shape = (slots.shape[0] if slots.dim() == 1 else -1, cache.kv_heads, cache.head_size)
    for name, new in (("key", key), ("value", value)):
        require(
            tuple(new.shape) == shape,
            f"{name}: {list(new.shape)}, but {list(shape)} (slots, KV heads, head size of the cache) is needed",
        )
        require(new.dtype in COMPUTE_DTYPES, f"{name}: dtype {new.dtype} is not float32, float16 or bfloat16")
        require(
            cache.key.dtype in (new.dtype, *FLOAT8_DTYPES),
            f"{name}: {new.dtype} cannot be appended to a cache of {cache.key.dtype}; the same or fp8 is needed",
        )
        require(new.stride(2) == 1, f"{name}: stride of the last axis is {new.stride(2)}, must be 1")
        _check_device(name, new, cache.key.device)
    require(key.dtype == value.dtype, f"append: key is {key.dtype} and value {value.dtype}; they must agree")
    require(
        slots.dtype == torch.int64 and slots.dim() == 1 and slots.is_contiguous(),
        f"slots: contiguous int64 [tokens] needed, not {slots.dtype} {list(slots.shape)}",
    )
    _check_device("slots", slots, cache.key.device)
    check_writable("cache.key", cache.key)
    check_writable("cache.value", cache.value)


def check_writable(name: str, tensor: Tensor) -> None:
    """Refuse a tensor in which two indices name one address along an axis."""
    overlaps = any(n > 1 and s == 0 for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    require(not overlaps, f"{name}: expanded (a stride is 0), so two writes would share an address")


def _check_device(name: str, tensor: Tensor, device: torch.device) -> None:
    require(tensor.device == device, f"{name}: on {tensor.device}, but the cache is on {device}")

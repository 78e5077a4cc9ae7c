"""What the kernels become on GPUs that are not there: `python -m pagedkv.kernels.compile_report`.

For the shapes of Llama-3-8B (8 KV heads of 128 in groups of 4) each launch of decode, prefill, merge, append and copy
is compiled for sm_80, sm_90, sm_100 and gfx942, through the very calls that serving makes, and one line says what came
out: registers, stack (where spills live), shared memory and the chip's limit, 128-bit loads, matrix instructions. A
last table counts compilations over 256 batch sizes and 256 lengths. The tests assert these lines; exit status 1 says
that the report itself found spills or too much shared memory.

Takes about three minutes of one core with a cold Triton cache, under one with a warm one; needs no GPU, and uses none.
`--quick` keeps to bfloat16 at block size 16.
"""

# ruff: noqa: T201  (a report prints)

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from pagedkv.kernels import append, attention, copy, merge
from pagedkv.kernels.arguments import PLAIN, PagedCache, Scoring
from pagedkv.kernels.attention_kernel import attention_kernel
from pagedkv.kernels.launch import KernelCall
from pagedkv.kernels.offline import SHARED_MEMORY_LIMIT, TARGETS, compiling_for, inspect
from pagedkv.kernels.plan import plan_attention
from torch import Tensor

Q_HEADS, KV_HEADS, HEAD_SIZE = 32, 8, 128
LONGEST = 32 * 1024
KERNELS = (attention_kernel, merge.merge_kernel, append.append_kernel, copy.copy_kernel)


@dataclass(frozen=True, slots=True)
class Shape:
    """What is compiled: a name, dtypes of query and cache, block size, query tokens a sequence.

    `all_options` adds scales a head, a soft cap, ALiBi, sinks, a window, and the log-sum-exp.
    """

    name: str
    dtype: torch.dtype
    cache_dtype: torch.dtype
    block_size: int
    queries: int
    all_options: bool = False


BF16, FP16, FP32, E4M3, E5M2 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2
QUICK_SHAPES = [Shape(f"{kind}", BF16, BF16, 16, queries) for kind, queries in (("decode", 1), ("prefill", 2048))]
SHAPES = [
    *(Shape("decode", BF16, BF16, block_size, 1) for block_size in (8, 16, 32, 64, 128)),
    *(Shape("prefill", BF16, BF16, block_size, 2048) for block_size in (8, 16, 32, 64, 128)),
    *(
        Shape(name, dtype, cache_dtype, 16, queries)
        for dtype, cache_dtype in ((FP16, FP16), (FP32, FP32), (BF16, E5M2), (BF16, E4M3))
        for name, queries in (("decode", 1), ("prefill", 2048))
    ),
    *(
        Shape(f"{name} (all options)", BF16, cache_dtype, 16, queries, all_options=True)
        for cache_dtype in (BF16, E5M2)
        for name, queries in (("decode", 1), ("prefill", 2048))
    ),
]


def calls_of(shape: Shape) -> Iterator[tuple[str, KernelCall]]:
    """Build, by name, the launches of attention after 32k positions, and of the append of its tokens."""
    axes = (4, shape.block_size, KV_HEADS, HEAD_SIZE)  # strides are all that counts, so four blocks will do
    key, value = (torch.empty(axes, dtype=shape.cache_dtype) for _ in range(2))
    cache, scoring, window, lse = PagedCache(key, value), PLAIN, None, None
    if shape.all_options:
        heads, scale = torch.ones(Q_HEADS), torch.ones(KV_HEADS)
        cache = PagedCache(key, value, key_scale=scale, value_scale=scale)
        scoring, window = Scoring(soft_cap=30.0, alibi_slopes=heads, sinks=heads), LONGEST // 2
        lse = torch.empty(shape.queries, Q_HEADS)
    length = LONGEST + shape.queries
    query = torch.empty(shape.queries, Q_HEADS, HEAD_SIZE, dtype=shape.dtype)
    plan = plan_attention([0, shape.queries], [length], q_heads=Q_HEADS, kv_heads=KV_HEADS, window=window)
    table = torch.zeros(1, -(-length // shape.block_size), dtype=torch.int32)
    for call in attention.attention_calls(query, cache, table, plan, scoring, torch.empty_like(query), lse):
        yield (shape.name if call.kernel is attention_kernel else f"merge ({shape.name})"), call
    new = torch.empty(shape.queries, KV_HEADS, HEAD_SIZE, dtype=shape.dtype)
    if shape.name.startswith("prefill"):
        slots = torch.zeros(shape.queries, dtype=torch.int64)
        yield "append", append.append_call(new, new, cache, slots)
        yield "copy", copy_call(shape)


def copy_call(shape: Shape) -> KernelCall:
    """Build the launch of a block copy in a pool of two layers."""
    pool: Tensor = torch.empty(2, 2, 4, shape.block_size, KV_HEADS, HEAD_SIZE, dtype=shape.cache_dtype)
    ids = torch.zeros(1, dtype=torch.int64)
    return copy.copy_call(pool, pool, ids, ids, None, 1)


def compile_shapes(target: str, shapes: list[Shape]) -> list[dict[str, Any]]:
    """Compile every launch of the shapes for one target; one row each. e4m3 on sm_80 is a row that says refused."""
    rows = []
    with compiling_for(target, *KERNELS):
        for shape in shapes:
            for name, call in calls_of(shape):
                row: dict[str, Any] = {
                    "target": target, "kernel": name, "dtype": _short(shape.dtype),
                    "cache_dtype": _short(shape.cache_dtype), "block_size": shape.block_size,
                }  # fmt: skip
                if target == "sm_80" and shape.cache_dtype == E4M3 and name in {"decode", "prefill", "append"}:
                    rows.append({**row, "refused": "float8_e4m3fn needs sm_89"})
                    continue
                result = asdict(inspect(call.compile(), target))
                rows.append({**row, **result, "shared_memory_limit": SHARED_MEMORY_LIMIT[target]})
    return rows


def count_compilations(target: str = "sm_90") -> dict[str, int]:
    """Count compilations a kernel over 256 batch sizes, 256 context lengths and 256 query counts."""
    counts: dict[str, int] = {}

    def compiled(*_args: Any, fn: Any, **_kwargs: Any) -> None:
        counts[fn.name.rsplit(".", 1)[-1]] = counts.get(fn.name.rsplit(".", 1)[-1], 0) + 1

    before = triton.knobs.runtime.jit_post_compile_hook
    triton.knobs.runtime.jit_post_compile_hook = compiled
    try:
        with compiling_for(target, *KERNELS):
            for varied in range(1, 257):
                for batch, length, queries in ((varied, 4096, 1), (1, varied * 131, 1), (2, 40_000 + varied, varied)):
                    for call in _step(batch, length, queries):
                        call.compile()
    finally:
        triton.knobs.runtime.jit_post_compile_hook = before
    return counts


def _step(batch: int, length: int, queries: int) -> Iterator[KernelCall]:
    """Build the launches of one step of equal sequences."""
    axes = (4, 16, KV_HEADS, HEAD_SIZE)
    cache = PagedCache(torch.empty(axes, dtype=BF16), torch.empty(axes, dtype=BF16))
    starts = [queries * row for row in range(batch + 1)]
    plan = plan_attention(starts, [length] * batch, q_heads=Q_HEADS, kv_heads=KV_HEADS)
    query = torch.empty(starts[-1], Q_HEADS, HEAD_SIZE, dtype=BF16)
    table = torch.zeros(batch, -(-length // 16), dtype=torch.int32)
    yield from attention.attention_calls(query, cache, table, plan, PLAIN, torch.empty_like(query), None)
    new = torch.empty(starts[-1], KV_HEADS, HEAD_SIZE, dtype=BF16)
    yield append.append_call(new, new, cache, torch.zeros(starts[-1], dtype=torch.int64))
    pool = torch.empty(2, 2, *axes, dtype=BF16)
    ids = torch.zeros(batch, dtype=torch.int64)
    yield copy.copy_call(pool, pool, ids, ids, None, batch)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def faults_of(rows: list[dict[str, Any]]) -> list[str]:
    """Say which rows spill or ask for more shared memory than the chip has."""
    compiled = [row for row in rows if "refused" not in row]
    spills = [row for row in compiled if row["stack"]]
    large = [row for row in compiled if row["shared_memory"] > row["shared_memory_limit"]]
    return [f"{_name(row)}: stack of {row['stack']} bytes" for row in spills] + [
        f"{_name(row)}: {row['shared_memory']} of {row['shared_memory_limit']} bytes of shared memory" for row in large
    ]


def _name(row: dict[str, Any]) -> str:
    return f"{row['target']} {row['kernel']} {row['dtype']}/{row['cache_dtype']} B={row['block_size']}"


def print_table(rows: list[dict[str, Any]], compilations: dict[str, int]) -> None:
    """Print the report as fixed columns."""
    columns = ("registers", "stack", "shared_memory", "loads_128")
    heading = f"{'kernel':<52}" + "".join(f"{column:>14}" for column in columns) + "  matrix instructions"
    print(heading)
    for row in rows:
        if "refused" in row:
            print(f"{_name(row):<52}  refused: {row['refused']}")
            continue
        matrix = ", ".join(f"{kind} {count}" for kind, count in row["matrix"].items()) or "-"
        print(f"{_name(row):<52}" + "".join(f"{row[column]:>14}" for column in columns) + f"  {matrix}")
    print("\ncompilations over 256 batch sizes, 256 lengths and 256 query counts:")
    for kernel, count in compilations.items():
        print(f"{kernel:<24}{count:>4}")


def main(arguments: list[str] | None = None) -> int:
    """Run the report; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m pagedkv.kernels.compile_report", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows as JSON")
    parser.add_argument("--quick", action="store_true", help="bfloat16 at block size 16 alone")
    parser.add_argument(
        "--target", choices=sorted(TARGETS), action="append", help="one target (repeatable); default all"
    )
    options = parser.parse_args(arguments)
    if options.json and (options.json.is_dir() or not options.json.parent.is_dir()):
        print(f"--json {options.json}: no file can be written there; name one in a folder that exists", file=sys.stderr)
        return 2
    shapes = QUICK_SHAPES if options.quick else SHAPES
    rows = [row for target in options.target or TARGETS for row in compile_shapes(target, shapes)]
    compilations = count_compilations()
    print_table(rows, compilations)
    if options.json:
        options.json.write_text(json.dumps({"rows": rows, "compilations": compilations}, indent=1))
    faults = faults_of(rows)
    for fault in faults:
        print(f"fault: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())

"""What is timed on a GPU, and the targets: shapes of Llama-3-8B's heads, one layer.

Floors (bytes over copy bandwidth, FLOPs over the matrix rate) come from the ceilings that the same run measured, so a
fraction means the same on any card.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle

import torch
from pagedkv.bench.kernel_peers import peers_of
from pagedkv.bench.kernel_problems import Problem, Shape, make
from pagedkv.bench.kernel_timing import Call, Ceilings, measure
from pagedkv.kernels import dispatch
from pagedkv.spec.quoting import one_line

MEBIBYTE = 2**20
K = 1024
STORAGE_MEBIBYTES = (64, 512)
REFERENCE = Shape("decode", 8, 8 * K)  # verify and fp8 are compared with it, and compiled peers run beside it

ATTENTION: list[Shape] = [
    *(Shape("decode", batch, length * K) for batch in (1, 8, 64, 256) for length in (1, 8, 32)),
    *(Shape("decode", batch, 8 * K, block_size=size) for batch in (8, 64) for size in (8, 32, 64, 128)),
    *(Shape("verify", 8, 8 * K, queries) for queries in (4, 8)),
    *(Shape("decode, fp8", 8, 8 * K, cache_dtype=dtype) for dtype in (torch.float8_e4m3fn, torch.float8_e5m2)),
    *(Shape("prefill", 1, length * K, length * K) for length in (2, 8)),
    *(Shape("prefill after 32k", 1, 32 * K + queries, queries) for queries in (512, 2 * K)),
]


@dataclass(slots=True)
class Row:
    """One line of the table. Fractions are of the ceilings of this run; `met` is None where there is no target."""

    name: str
    shape: str
    microseconds: float
    gb_per_s: float
    copy_fraction: float
    tflop_per_s: float
    matmul_fraction: float
    peers_microseconds: dict[str, float] = field(default_factory=dict)
    peers_failed: dict[str, str] = field(default_factory=dict)
    target: str = ""
    met: bool | None = None


def described(shape: Shape) -> str:
    """Name a shape in words."""
    dtype = str(shape.cache_dtype or shape.dtype).removeprefix("torch.")
    return f"{shape.batch} x {shape.length:,}, {shape.queries} new, B = {shape.block_size}, {dtype}"


def time_attention(
    shape: Shape, device: torch.device, ceilings: Ceilings, *, peers: bool, compiled: bool = False
) -> Row:
    """Time one shape, and its peers where asked."""
    problem = make(shape, device, rotate=True)
    ours = measure(attention_call(problem), device)
    row = _row(shape.name, described(shape), ours, shape.moved_bytes, shape.flops, ceilings)
    if peers:
        for name, call in peers_of(problem, compiled=compiled):
            try:
                row.peers_microseconds[name] = measure(call, device, capture=False)
            except Exception as error:  # noqa: BLE001  (a stranger's failure is a line of the report, not its end)
                row.peers_failed[name] = one_line(str(error))
    return row


def attention_call(problem: Problem) -> Call:
    """Our call, taking turns over the problem's caches, into one output."""
    turns, output = cycle(problem.caches), torch.empty_like(problem.query)
    return lambda: dispatch.attention(
        problem.query, next(turns), problem.block_table, problem.plan, scoring=problem.scoring, output=output,
        checked=False,
    )  # fmt: skip


def time_storage(device: torch.device, ceilings: Ceilings) -> Iterator[Row]:
    """Time append and copy from 64 MiB up; each reads and writes what it moves."""
    for mebibytes in STORAGE_MEBIBYTES:
        moved = 2 * mebibytes * MEBIBYTE
        for name, call in (("append", append_call(mebibytes, device)), ("copy", copy_call(mebibytes, device))):
            yield _row(name, f"{mebibytes} MiB", measure(call, device), moved, 0, ceilings)


def append_call(mebibytes: int, device: torch.device) -> Call:
    """Append this much K and V to shuffled blocks."""
    tokens = mebibytes * MEBIBYTE // (2 * 8 * 128 * 2)
    problem = make(Shape("append", 1, tokens), device)
    key, value = (torch.randn(tokens, 8, 128, device=device).bfloat16() for _ in range(2))
    offsets = torch.arange(tokens, device=device) % 16
    slots = problem.block_table[0].long().repeat_interleave(16) * 16 + offsets
    return lambda: dispatch.append(key, value, problem.caches[0], slots, checked=False)


def copy_call(mebibytes: int, device: torch.device) -> Call:
    """Copy this much in shuffled blocks of 32 layers."""
    layers = 32
    copies = mebibytes * MEBIBYTE // (layers * 2 * 16 * 8 * 128 * 2)
    pool = torch.zeros(layers, 2, 2 * copies + 1, 16, 8, 128, dtype=torch.bfloat16, device=device)
    ids = (torch.randperm(2 * copies) + 1).to(device)
    sources, targets = ids[:copies].contiguous(), ids[copies:].contiguous()
    return lambda: dispatch.copy_blocks(pool, sources, targets, checked=False)


def _row(name: str, shape: str, microseconds: float, moved: int, flops: int, ceilings: Ceilings) -> Row:
    seconds = microseconds / 1e6
    return Row(
        name, shape, microseconds,
        moved / seconds / 1e9, moved / seconds / ceilings.copy_bytes_per_s,
        flops / seconds / 1e12, flops / seconds / ceilings.matmul_flops_per_s,
    )  # fmt: skip


def judge(rows: dict[Shape, Row], ceilings: Ceilings) -> None:
    """Write targets and verdicts into the rows of attention. They are those of the project's issue on kernels."""
    reference_us = rows[REFERENCE].microseconds
    for shape, row in rows.items():
        if shape == Shape("decode", 1, 32 * K):
            limit_us = 1.3 * shape.moved_bytes / ceilings.copy_bytes_per_s * 1e6 + 10
            row.target, row.met = f"1.3 x floor + 10 us = {limit_us:.1f} us", row.microseconds <= limit_us
        elif row.name == "decode" and shape.block_size >= 16 and shape.cache_bytes >= 256 * MEBIBYTE:
            row.target, row.met = "85 % of copy bandwidth", row.copy_fraction >= 0.85
        elif row.name == "verify" and shape.queries == 4:
            row.target, row.met = "1.15 x one-token decode", row.microseconds <= 1.15 * reference_us
        elif row.name == "decode, fp8":
            row.target, row.met = "1.6 x faster than bf16", row.microseconds * 1.6 <= reference_us
        elif row.name.startswith("prefill") and (shape.length == 8 * K or shape.queries == 2 * K < shape.length):
            row.target, row.met = "400 TFLOP/s", row.tflop_per_s >= 400


def judge_storage(rows: list[Row]) -> None:
    """Write targets and verdicts into the rows of append and copy."""
    for row in rows:
        row.target, row.met = "80 % of copy bandwidth", row.copy_fraction >= 0.8

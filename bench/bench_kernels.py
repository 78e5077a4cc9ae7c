"""The kernels under pytest-benchmark, on the GPU where there is one, else on the CPU.

    pytest bench/bench_kernels.py --benchmark-only

One group a shape, in it ours and every peer that can be imported, so that pytest-benchmark prints their ratios. After
ours comes a line with bytes, FLOPs, time, and the fractions of the ceilings measured in the same run. On a GPU a call
below a few hundred microseconds is replayed from a CUDA graph. For the whole table with targets: `kernel_speed`.
"""

import functools
from collections.abc import Callable

import pytest
import torch
from pagedkv.bench.kernel_jobs import (
    ATTENTION,
    REFERENCE,
    STORAGE_MEBIBYTES,
    append_call,
    attention_call,
    copy_call,
    described,
)
from pagedkv.bench.kernel_peers import CHEAP, COMPILED
from pagedkv.bench.kernel_problems import Problem, Shape, make
from pagedkv.bench.kernel_speed import CPU_SHAPES
from pagedkv.bench.kernel_timing import CALLS_A_GRAPH, SHORT_US, Call, Ceilings, captured, measure, measure_ceilings
from pytest_benchmark.fixture import BenchmarkFixture

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SHAPES = ATTENTION if DEVICE.type == "cuda" else CPU_SHAPES
ROUNDS = 10


@functools.cache
def ceilings() -> Ceilings:
    return measure_ceilings(DEVICE)


@functools.lru_cache(maxsize=1)  # the largest cache takes a quarter of a large GPU
def problem_of(shape: Shape) -> Problem:
    return make(shape, DEVICE, rotate=True)


def run(benchmark: BenchmarkFixture, call: Call, *, capture: bool) -> float:
    """Measure a call; returns its median in seconds."""
    calls = 1
    if DEVICE.type == "cuda" and capture and measure(call, DEVICE) < SHORT_US:
        calls, call = CALLS_A_GRAPH, captured([call] * CALLS_A_GRAPH).replay

    def timed() -> None:
        call()
        if DEVICE.type == "cuda":
            torch.cuda.synchronize(DEVICE)

    benchmark.pedantic(timed, rounds=ROUNDS, warmup_rounds=2)  # type: ignore[no-untyped-call]  # it has no types
    benchmark.extra_info["calls_a_round"] = calls
    assert benchmark.stats is not None
    median_s: float = benchmark.stats.stats.median
    return median_s / calls


def say(capsys: pytest.CaptureFixture[str], what: str, moved: int, flops: int, seconds: float) -> None:
    """Print one line with the fractions of this run's ceilings."""
    copy, product = (
        moved / seconds / ceilings().copy_bytes_per_s,
        flops / seconds / ceilings().matmul_flops_per_s,
    )
    with capsys.disabled():
        print(  # noqa: T201  (what this file is for)
            f"\n{what}: {moved / 1e6:,.1f} MB, {flops / 1e9:,.1f} GFLOP, {seconds * 1e6:,.1f} us,"
            f" {copy:.0%} of copy bandwidth, {product:.0%} of the bf16 product"
        )


@pytest.mark.parametrize("who", ["ours", *CHEAP, *COMPILED])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape.name}: {described(shape)}")
def test_attention(benchmark: BenchmarkFixture, capsys: pytest.CaptureFixture[str], shape: Shape, who: str) -> None:
    if who in COMPILED and DEVICE.type == "cuda" and shape != REFERENCE:
        pytest.skip("compiled peers run beside the reference shape alone")
    problem = problem_of(shape)
    call = attention_call(problem) if who == "ours" else {**CHEAP, **COMPILED}[who](problem)
    if call is None:
        pytest.skip(f"{who} is not installed, or cannot do this shape")
    benchmark.group = f"{shape.name}: {described(shape)}"
    seconds = run(benchmark, call, capture=who == "ours")
    if who == "ours":
        say(capsys, benchmark.group, shape.moved_bytes, shape.flops, seconds)


@pytest.mark.parametrize("mebibytes", STORAGE_MEBIBYTES if DEVICE.type == "cuda" else STORAGE_MEBIBYTES[:1])
@pytest.mark.parametrize(("name", "job"), [("append", append_call), ("copy", copy_call)])
def test_storage(
    benchmark: BenchmarkFixture,
    capsys: pytest.CaptureFixture[str],
    name: str,
    job: Callable[[int, torch.device], Call],
    mebibytes: int,
) -> None:
    benchmark.group = f"{name} {mebibytes} MiB"
    seconds = run(benchmark, job(mebibytes, DEVICE), capture=True)
    say(capsys, benchmark.group, 2 * mebibytes * 2**20, 0, seconds)

"""Paged attention against the dense oracle, on torch and on interpreted Triton, over the shapes that serving meets."""

import math

import pytest
import torch
from pagedkv.kernels import dispatch

from triton_cases import BACKENDS, Case, TestedBackend, attend, build, check, kernels_on

FLOAT8 = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}

CASES = {
    "decode, ragged": Case(lengths=(1, 15, 16, 17, 100), queries=(1, 1, 1, 1, 1)),
    "decode, length zero between": Case(lengths=(0, 5, 0), queries=(1, 1, 1)),
    "decode, many splits": Case(lengths=(260,), queries=(1,), kv_heads=1),
    "verify, four tokens": Case(lengths=(70, 4, 33), queries=(4, 4, 4), q_heads=8),
    "verify, two small tiles": Case(lengths=(90,), queries=(8,), q_heads=8),
    "prefill, whole": Case(lengths=(45,), queries=(45,), q_heads=8),
    "prefill, chunk after context": Case(lengths=(150,), queries=(40,), kv_heads=1),
    "mixed batch": Case(lengths=(130, 64, 40, 0), queries=(1, 3, 40, 0), kv_heads=1),
    "more queries than positions": Case(lengths=(2,), queries=(5,)),
    "cross attention": Case(lengths=(37, 5), queries=(3, 4), causal=False),
    "cross attention, many queries": Case(lengths=(21,), queries=(40,), causal=False, kv_heads=1),
    "float32": Case(lengths=(49, 17), queries=(1, 3), dtype=torch.float32),
    "float32 prefill": Case(lengths=(40,), queries=(36,), kv_heads=1, dtype=torch.float32),
    "bfloat16": Case(lengths=(49, 17), queries=(1, 3), dtype=torch.bfloat16),
    "bfloat16 prefill": Case(lengths=(70,), queries=(60,), kv_heads=1, dtype=torch.bfloat16),
    "e4m3": Case(lengths=(49, 17), queries=(1, 3), cache_dtype=FLOAT8["e4m3"], scales="tensor"),
    "e5m2 under bfloat16": Case(
        lengths=(49,), queries=(3,), dtype=torch.bfloat16, cache_dtype=FLOAT8["e5m2"], scales="head"
    ),
    "e4m3 under float32": Case(lengths=(30,), queries=(2,), dtype=torch.float32, cache_dtype=FLOAT8["e4m3"]),
    "HND": Case(lengths=(40, 9), queries=(1, 2), layout="HND"),
    "interleaved": Case(lengths=(40, 9), queries=(1, 2), interleaved=True),
    "HND, interleaved": Case(lengths=(40, 9), queries=(1, 2), interleaved=True, layout="HND"),
    "block size 1": Case(lengths=(19,), queries=(2,), block_size=1),
    "block size 3": Case(lengths=(19, 8), queries=(2, 1), block_size=3),
    "block size 48": Case(lengths=(100,), queries=(1,), block_size=48),
    "block size 256": Case(lengths=(300,), queries=(1,), block_size=256, kv_heads=1),
    "group 1": Case(lengths=(40,), queries=(3,), q_heads=2, kv_heads=2),
    "group 3": Case(lengths=(40,), queries=(3,), q_heads=3, kv_heads=1),
    "group 5": Case(lengths=(40,), queries=(4,), q_heads=10, kv_heads=2),
    "group 7": Case(lengths=(40,), queries=(6,), q_heads=14, kv_heads=2),
    "group 16": Case(lengths=(40,), queries=(5,), q_heads=16, kv_heads=1),
    "group 6, prefill": Case(lengths=(50,), queries=(50,), q_heads=6, kv_heads=1),
    "head size 16": Case(lengths=(40,), queries=(2,), head_size=16),
    "head size 24": Case(lengths=(40,), queries=(2,), head_size=24),
    "head size 80": Case(lengths=(40,), queries=(2,), head_size=80),
    "head size 96, prefill": Case(lengths=(40,), queries=(40,), head_size=96, kv_heads=1),
    "head size 192": Case(lengths=(40,), queries=(2,), head_size=192),
    "head size 256, prefill": Case(lengths=(40,), queries=(36,), head_size=256, kv_heads=1),
    "window 1": Case(lengths=(40, 3), queries=(1, 3), window=1),
    "window 5": Case(lengths=(40, 3, 70), queries=(1, 3, 4), window=5),
    "window over splits": Case(lengths=(200,), queries=(2,), window=90, kv_heads=1),
    "window, prefill": Case(lengths=(80,), queries=(60,), window=20, kv_heads=1),
    "soft cap": Case(lengths=(40,), queries=(3,), soft_cap=2.0),
    "ALiBi": Case(lengths=(40, 100), queries=(3, 1), alibi=True),
    "ALiBi, not causal": Case(lengths=(40,), queries=(3,), alibi=True, causal=False),
    "sinks": Case(lengths=(40, 100), queries=(3, 1), sinks=True),
    "sinks, window, soft cap": Case(lengths=(90,), queries=(4,), sinks=True, window=33, soft_cap=5.0),
    "shared blocks": Case(lengths=(50, 61, 40), queries=(1, 1, 2), shared_blocks=2),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_matches_the_oracle(name: str, backend: TestedBackend) -> None:
    problem = build(CASES[name])
    check(problem, *attend(problem, backend))


@pytest.mark.parametrize("backend", BACKENDS)
def test_slots_that_nobody_sees_change_nothing(backend: TestedBackend) -> None:
    """R-KRN-1: NaN or zero behind lengths, in the null block, in other blocks, before the window: equal to the bit."""
    for case in (
        Case(lengths=(5, 40, 17), queries=(1, 2, 1), block_size=4),
        Case(lengths=(100, 37), queries=(1, 4), window=11, kv_heads=1),
        Case(lengths=(5,), queries=(2,), causal=False),
    ):
        poisoned, clean = build(case), build(case, poison=0.0)
        results = attend(poisoned, backend)
        check(poisoned, *results)
        for got, wanted in zip(results, attend(clean, backend), strict=True):
            assert torch.equal(got, wanted)


@pytest.mark.parametrize("backend", BACKENDS)
def test_entries_that_left_the_window_are_not_read(backend: TestedBackend) -> None:
    """R-SWA-2: entries wholly before the window are null, and the null block is NaN."""
    case = Case(lengths=(100, 70), queries=(1, 2), window=20, block_size=16, kv_heads=1)
    problem = build(case)
    for row, (length, queries) in enumerate(zip(case.lengths, case.queries, strict=True)):
        problem.block_table[row, : (length - queries - 20 + 1) // 16] = 0
    check(problem, *attend(problem, backend))


@pytest.mark.parametrize("backend", BACKENDS)
def test_length_zero_gives_zero(backend: TestedBackend) -> None:
    """R-KRN-2: output 0, log-sum-exp -inf; the row between is as if alone."""
    problem = build(Case(lengths=(0, 5, 0), queries=(1, 1, 3)))
    output, lse = attend(problem, backend)
    for token in (0, 2, 3, 4):
        assert output[token].eq(0).all()
        assert lse[token].eq(-math.inf).all()
    check(problem, output, lse)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shift", [1e3, -1e3])
def test_large_logits_of_one_sign(shift: float, backend: TestedBackend) -> None:
    """A forgotten maximum overflows or vanishes here; over several tiles and splits a forgotten rescale shows."""
    for dtype in (torch.float16, torch.float32):
        problem = build(Case(lengths=(150, 40), queries=(1, 2), kv_heads=1, logit_shift=shift, dtype=dtype))
        check(problem, *attend(problem, backend))


@pytest.mark.parametrize("backend", BACKENDS)
def test_rising_logits_over_tiles(backend: TestedBackend) -> None:
    """Each tile brings a larger logit than all before, so that what came before must be rescaled each time."""
    problem = build(Case(lengths=(150,), queries=(1,), kv_heads=1, split_divisor=1))
    problem.query[:] = 1.0
    for position in range(150):
        block, offset = int(problem.block_table[0, position // 16]), position % 16
        problem.cache.keys[block, offset] = position / 50
        problem.keys[0][position] = position / 50
    check(problem, *attend(problem, backend))


@pytest.mark.parametrize("backend", BACKENDS)
def test_strides_are_followed(backend: TestedBackend) -> None:
    """R-KRN-5: both layouts, interleaved K and V, one head of many, a strided query, output and block table."""
    for layout in ("NHD", "HND"):
        for interleaved in (False, True):
            problem = build(Case(lengths=(40, 9), queries=(1, 2), interleaved=interleaved, layout=layout))
            check(problem, *attend(problem, backend))
    problem = build(Case(lengths=(40, 9), queries=(1, 2), kv_heads=1, q_heads=2))
    wide_query = torch.full((3, 5, 64), math.nan, dtype=torch.float16)
    wide_query[:, 1:3, 8:40] = problem.query
    wide_output = torch.full((3, 6, 40), math.nan, dtype=torch.float16)
    wide_table = torch.zeros(2, 9, dtype=torch.int32)
    wide_table[:, : problem.block_table.shape[1]] = problem.block_table
    lse = torch.empty(3, 2)
    with kernels_on(backend):
        dispatch.attention(
            wide_query[:, 1:3, 8:40], problem.cache, wide_table[:, :6], problem.plan,
            output=wide_output[:, 2:4, 4:36], log_sum_exp=lse, backend=backend,
        )  # fmt: skip
    check(problem, wide_output[:, 2:4, 4:36], lse)
    wide_output[:, 2:4, 4:36] = math.nan
    assert wide_output.isnan().all()  # nothing around the output was written


@pytest.mark.parametrize("backend", BACKENDS)
def test_odd_shapes(backend: TestedBackend) -> None:
    """R-KRN-6: head size, group size, block size and head count that are no powers of two."""
    for case in (
        Case(lengths=(29,), queries=(4,), q_heads=15, kv_heads=3, head_size=40, block_size=7),
        Case(lengths=(29,), queries=(1,), q_heads=28, kv_heads=4, head_size=24, block_size=12),
    ):
        problem = build(case)
        check(problem, *attend(problem, backend))


@pytest.mark.parametrize("backend", BACKENDS)
def test_scales_are_applied_once(backend: TestedBackend) -> None:
    """R-KRN-7: distinct scales a head, with one split and with several, decode and prefill."""
    for lengths, queries in (((20,), (1,)), ((150,), (2,)), ((60,), (40,))):
        case = Case(
            lengths=lengths, queries=queries, q_heads=4, kv_heads=2, cache_dtype=torch.float8_e4m3fn, scales="head"
        )
        problem = build(case)
        check(problem, *attend(problem, backend))


@pytest.mark.parametrize("backend", BACKENDS)
def test_window_by_row(backend: TestedBackend) -> None:
    """R-KRN-8: a window is max(0, i - W + 1) .. i for each query token by itself."""
    for window in (1, 7, 16, 33):
        problem = build(Case(lengths=(50, 8), queries=(4, 8), window=window, kv_heads=1))
        check(problem, *attend(problem, backend))


@pytest.mark.parametrize("backend", BACKENDS)
def test_sink_counts_once_over_splits(backend: TestedBackend) -> None:
    problem = build(Case(lengths=(260, 20), queries=(1, 1), sinks=True, kv_heads=1))
    check(problem, *attend(problem, backend))


@pytest.mark.parametrize("backend", BACKENDS)
def test_causal_edge_of_every_token(backend: TestedBackend) -> None:
    """Keys of one hot value each: the output of token i is the mean of values 0 .. i, which shows each one missed."""
    problem = build(Case(lengths=(70,), queries=(70,), kv_heads=1, q_heads=2, head_size=16))
    problem.query[:] = 0.0
    check(problem, *attend(problem, backend))


@pytest.mark.parametrize("backend", BACKENDS)
def test_output_may_be_float32(backend: TestedBackend) -> None:
    problem = build(Case(lengths=(40, 9), queries=(1, 2), dtype=torch.bfloat16))
    output = torch.full(problem.query.shape, math.nan)
    lse = torch.empty(problem.query.shape[:2])
    with kernels_on(backend):
        dispatch.attention(
            problem.query, problem.cache, problem.block_table, problem.plan,
            output=output, log_sum_exp=lse, backend=backend,
        )  # fmt: skip
    check(problem, output, lse)


@pytest.mark.parametrize("backend", BACKENDS)
def test_log_sum_exp_is_optional(backend: TestedBackend) -> None:
    problem = build(Case(lengths=(150, 9), queries=(1, 2), kv_heads=1))
    expected_output, _ = attend(problem, backend)
    with kernels_on(backend):
        output = dispatch.attention(problem.query, problem.cache, problem.block_table, problem.plan, backend=backend)
    assert torch.equal(output, expected_output)


def test_long_rows_in_pieces_on_torch() -> None:
    """Rows beyond one piece of 4,096 positions are joined; sinks count once; the thread count is left as it was."""
    threads = torch.get_num_threads()
    problem = build(
        Case(
            lengths=(9000, 4097, 5, 4096),
            queries=(2, 1, 1, 3),
            kv_heads=1,
            q_heads=2,
            head_size=16,
            sinks=True,
            dtype=torch.float32,
        )
    )
    check(problem, *attend(problem, "torch"))
    assert torch.get_num_threads() == threads


def test_a_fault_on_another_thread_is_raised_on_torch() -> None:
    """An id beyond the pool, unchecked: an error and no silence, whichever thread met it; the thread count survives."""
    threads = torch.get_num_threads()
    problem = build(Case(lengths=(40,) * 8, queries=(1,) * 8))
    problem.block_table[5, 0] = 10**6
    with pytest.raises(IndexError):
        dispatch.attention(
            problem.query, problem.cache, problem.block_table, problem.plan, backend="torch", checked=False
        )
    assert torch.get_num_threads() == threads

"""Hypothesis draws problems for the kernels: shapes, lengths around every edge, dtypes, layouts, sharing, options."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from triton_cases import BACKENDS, Case, TestedBackend, attend, build, check

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


@st.composite
def cases(draw: st.DrawFn, longest: int) -> Case:
    """Draw a case: lengths at 0 and 1, and one around multiples of blocks, KV tiles and splits, more often than not."""
    block_size = draw(st.sampled_from([1, 3, 8, 16, 12, 64]))
    edge = st.builds(
        lambda base, near: max(0, base + near),
        st.sampled_from([0, block_size, 16, 32, 64, 128]),
        st.sampled_from([-1, 0, 1]),
    )
    length = st.one_of(edge, st.integers(0, longest)).filter(lambda n: n <= longest)
    lengths = draw(st.lists(length, min_size=1, max_size=3))
    queries = [draw(st.integers(0, max(1, min(n, draw(st.sampled_from([1, 1, 4, 12, 40])))))) for n in lengths]
    kv_heads = draw(st.sampled_from([1, 1, 2, 3]))
    dtype = draw(st.sampled_from([torch.float16, torch.bfloat16, torch.float16, torch.float32]))
    causal = draw(st.sampled_from([True, True, False]))
    return Case(
        lengths=tuple(lengths),
        queries=tuple(queries),
        q_heads=kv_heads * draw(st.sampled_from([1, 2, 3, 4, 5, 8])),
        kv_heads=kv_heads,
        head_size=draw(st.sampled_from([16, 24, 32, 64, 80])),
        block_size=block_size,
        dtype=dtype,
        cache_dtype=draw(st.sampled_from([None, None, *FLOAT8])),
        layout=draw(st.sampled_from(["NHD", "HND"])),
        interleaved=draw(st.booleans()),
        causal=causal,
        window=draw(st.sampled_from([None, None, 1, 7, 40])) if causal else None,
        soft_cap=draw(st.sampled_from([None, None, 3.0])),
        alibi=draw(st.sampled_from([False, False, True])),
        sinks=draw(st.sampled_from([False, False, True])),
        scales=draw(st.sampled_from(["none", "tensor", "head"])),
        logit_shift=draw(st.sampled_from([0.0, 0.0, 0.0, 200.0, -200.0])),
        shared_blocks=draw(st.sampled_from([0, 1, 2])),
        split_divisor=draw(st.sampled_from([1, 4, 16, 32])),
        seed=draw(st.integers(0, 1000)),
    )  # fmt: skip


def _run(case: Case, backend: TestedBackend) -> None:
    problem = build(case)
    check(problem, *attend(problem, backend))


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(case=cases(longest=140))
def test_drawn_problems_match_the_oracle_on_torch(case: Case) -> None:
    _run(case, "torch")


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(case=cases(longest=140))
def test_drawn_problems_match_the_oracle_on_triton(case: Case) -> None:
    _run(case, "triton")


@pytest.mark.deep
@pytest.mark.parametrize("backend", BACKENDS)
def test_many_drawn_problems_match_the_oracle(backend: TestedBackend) -> None:
    @settings(max_examples=1500, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=cases(longest=700))
    def search(case: Case) -> None:
        _run(case, backend)

    search()

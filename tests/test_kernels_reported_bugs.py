"""Publicly reported bugs of paged kernels, pinned: each trigger as reported, on both backends, against the oracle.

What other engines' kernels got wrong in public is what a new kernel gets wrong next. The ids of these tests are the
reports.
"""

import math

import pytest
import torch
from pagedkv.kernels import cascade, dispatch
from pagedkv.kernels.arguments import PagedCache
from pagedkv.kernels.plan import plan_attention
from pagedkv.spec.attention import dense_attention

from triton_cases import BACKENDS, TOLERANCES, Case, TestedBackend, attend, build, check, kernels_on

E4M3 = torch.float8_e4m3fn
HALF = torch.float16

SHAPES = {
    "vllm#57156: null block of NaN": Case(lengths=(3,), queries=(1,), block_size=4),
    "vllm-fork#318: lengths 3 and 0": Case(lengths=(3, 0), queries=(1, 1)),
    "vllm#936: NaN in the tail of the last block": Case(lengths=(5,), queries=(1,), block_size=4),
    "vllm#47305: cross attention past the length": Case(lengths=(5,), queries=(2,), causal=False),
    "simpler#72: partial last block": Case(lengths=(5,), queries=(5,), block_size=4),
    "flashinfer#4051: an empty split": Case(lengths=(65,), queries=(1,), kv_heads=1, split_divisor=32),
    "flashinfer#353: lengths 0, 5, 0": Case(lengths=(0, 5, 0), queries=(1, 1, 1)),
    "flashinfer#996: 28 heads over 4": Case(lengths=(20,), queries=(2,), q_heads=28, kv_heads=4),
    "flashinfer#996: 24 heads over 4": Case(lengths=(20,), queries=(2,), q_heads=24, kv_heads=4),
    "flashinfer#996: 40 heads over 8": Case(lengths=(20,), queries=(1,), q_heads=40, kv_heads=8),
    "flashinfer#996: 32 heads over 2": Case(lengths=(20,), queries=(2,), q_heads=32, kv_heads=2),
    "flashinfer#996: 3 heads over 1": Case(lengths=(20,), queries=(2,), q_heads=3, kv_heads=1),
    "aiter#2393: block size 1": Case(lengths=(20,), queries=(1,), block_size=1),
    "aiter#2393: block size 3": Case(lengths=(20,), queries=(1,), block_size=3),
    "aiter#2393: block size 12": Case(lengths=(20,), queries=(1,), block_size=12),
    "aiter#2393: block size 48": Case(lengths=(60,), queries=(1,), block_size=48),
    "sglang#1281: head size 80": Case(lengths=(20,), queries=(2,), head_size=80),
    "sglang#1281: head size 96": Case(lengths=(20,), queries=(2,), head_size=96),
    "sglang#1281: head size 192": Case(lengths=(20,), queries=(2,), head_size=192),
    "flashinfer#3864: window and 8 query rows": Case(
        lengths=(90,), queries=(8,), window=30, cache_dtype=E4M3, scales="tensor"
    ),
    "flashinfer#4347: block size 256": Case(lengths=(300,), queries=(1,), block_size=256, kv_heads=1),
    "vllm#40737: one KV head": Case(lengths=(20,), queries=(1,), kv_heads=1, interleaved=True),
    "aiter#3894: a scale a head": Case(lengths=(20,), queries=(1,), cache_dtype=E4M3, scales="head", layout="HND"),
    "flashinfer#1023: scales of their own for K and V": Case(
        lengths=(20,), queries=(1,), cache_dtype=torch.float8_e5m2, scales="tensor"
    ),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("report", SHAPES)
def test_the_reported_shape_is_right(report: str, backend: TestedBackend) -> None:
    problem = build(SHAPES[report])
    check(problem, *attend(problem, backend))


@pytest.mark.parametrize("backend", BACKENDS)
def test_vllm_43810_padding_slots_write_nothing(backend: TestedBackend) -> None:
    """5 blocks of 16: slots 19, -1, -1 change slot 19 alone, and not 79, where -1 // 16 and -1 % 16 point."""
    cache = PagedCache(torch.zeros(5, 16, 2, 32), torch.zeros(5, 16, 2, 32))
    new = torch.full((3, 2, 32), 7.0)
    with kernels_on(backend):
        dispatch.append(new, new, cache, torch.tensor([19, -1, -1]), backend=backend)
    for tensor in (cache.key, cache.value):
        assert tensor.flatten(0, 1).ne(0).any(dim=(1, 2)).nonzero().flatten().tolist() == [19]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("report", "stride", "block"),
    [
        ("vllm#50427", 32_768, 65_536),
        ("vllm#47671", 276_480, 7_768),
        ("aiter#4427", 1_435_968, 4_564),
        ("flash-attention#772", 2**30, 4),
    ],
)
def test_offsets_beyond_32_bits(report: str, stride: int, block: int, backend: TestedBackend) -> None:
    """K and V interleaved in one pool whose block stride times block id passes 2**31 elements (committed lazily)."""
    assert stride * block >= 2**31, report
    pool = torch.empty((block + 1) * stride, dtype=HALF)
    key, value = (pool.as_strided((block + 1, 16, 2, 32), (stride, 128, 64, 1), offset) for offset in (0, 32))
    new = torch.randn(2, 16, 2, 32, generator=torch.Generator().manual_seed(1)).half()
    query = torch.randn(1, 4, 32, generator=torch.Generator().manual_seed(2)).half()
    plan = plan_attention([0, 1], [16], q_heads=4, kv_heads=2)
    cache, table = PagedCache(key, value), torch.tensor([[block]], dtype=torch.int32)
    slots = torch.arange(16) + block * 16
    with kernels_on(backend):
        dispatch.append(new[0], new[1], cache, slots, backend=backend)
        output = dispatch.attention(query, cache, table, plan, backend=backend)
    expected, _ = dense_attention(query, new[0], new[1])
    assert (output - expected).abs().max().item() <= TOLERANCES[HALF]


@pytest.mark.parametrize("backend", BACKENDS)
def test_lmcache_2403_a_copy_follows_strides(backend: TestedBackend) -> None:
    """Contents are found by (position, head), whatever the memory order of the pool."""
    pool = torch.randn(1, 2, 4, 2, 3, 16).transpose(3, 4)  # HND memory seen as NHD
    before = pool.clone()
    with kernels_on(backend):
        dispatch.copy_blocks(pool, torch.tensor([1]), torch.tensor([3]), backend=backend)
    assert torch.equal(pool[:, :, 3], before[:, :, 1])
    assert torch.equal(pool[:, :, :3], before[:, :, :3])


@pytest.mark.parametrize("backend", BACKENDS)
def test_sglang_24198_warm_equals_cold(backend: TestedBackend) -> None:
    """With scales, a prompt whose prefix is cached gives what the whole prompt gives, within tolerance."""
    problem = build(Case(lengths=(40,), queries=(40,), cache_dtype=E4M3, scales="tensor", kv_heads=1))
    cold, _ = attend(problem, backend)
    with kernels_on(backend):
        plan = plan_attention([0, 8], [40], q_heads=4, kv_heads=1)
        warm = dispatch.attention(problem.query[32:], problem.cache, problem.block_table, plan, backend=backend)
    assert (warm - cold[32:]).abs().max().item() <= TOLERANCES[HALF]


@pytest.mark.parametrize("backend", BACKENDS)
def test_flashinfer_4979_every_entry_point_applies_scales(backend: TestedBackend) -> None:
    """Decode, verify, prefill and cascade over one fp8 cache with scales far from 1 agree with the oracle."""
    for queries in (1, 4, 40):
        problem = build(Case(lengths=(48,), queries=(queries,), cache_dtype=E4M3, scales="head"))
        check(problem, *attend(problem, backend))
    problem = build(Case(lengths=(48, 40), queries=(1, 1), cache_dtype=E4M3, scales="head", shared_blocks=2))
    plan = cascade.plan_cascade([0, 1, 2], (48, 40), 32, q_heads=4, kv_heads=2)
    output, lse = torch.full_like(problem.query, math.nan), torch.full((2, 4), math.nan)
    with kernels_on(backend):
        cascade.cascade_attention(
            problem.query, problem.cache, problem.block_table, plan, output=output, log_sum_exp=lse, backend=backend
        )
    check(problem, output, lse)

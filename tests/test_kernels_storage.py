"""Append, block copies, gather, scatter and merge, on torch and on interpreted Triton, against plain indexing."""

import math

import pytest
import torch
from pagedkv.kernels import cascade, dispatch
from pagedkv.kernels.arguments import Layout, PagedCache, position_major
from torch import Tensor

from triton_cases import BACKENDS, Case, TestedBackend, attend, build, check, kernels_on

LAYOUTS: tuple[Layout, ...] = ("NHD", "HND")
BLOCKS, BLOCK_SIZE, KV_HEADS, HEAD = 5, 3, 2, 24


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _cache(layout: Layout, *, interleaved: bool = False, dtype: torch.dtype = torch.float16) -> PagedCache:
    """Zeros, with K and V as views that have foreign memory between them where interleaved."""
    axes = (BLOCKS, BLOCK_SIZE, KV_HEADS) if layout == "NHD" else (BLOCKS, KV_HEADS, BLOCK_SIZE)
    pool = torch.zeros(*axes, 2, HEAD, dtype=dtype) if interleaved else torch.zeros(2, *axes, HEAD, dtype=dtype)
    key, value = pool.unbind(3 if interleaved else 0)
    return PagedCache(key, value, layout)


def _slot(cache: PagedCache, which: str, slot: int) -> Tensor:
    """One slot `[kv_heads, D]`, by the layout's own indexing."""
    tensor = cache.key if which == "key" else cache.value
    block, offset = divmod(slot, BLOCK_SIZE)
    return tensor[block, offset] if cache.layout == "NHD" else tensor[block, :, offset]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_append_writes_its_slots_and_no_other(layout: Layout, interleaved: bool, backend: TestedBackend) -> None:  # noqa: FBT001  (read with its name)
    """R-TAB-2: -1 writes nothing, in particular not the last slot of the last block."""
    cache = _cache(layout, interleaved=interleaved)
    key, value = _random(4, KV_HEADS, HEAD).half(), _random(4, KV_HEADS, HEAD, seed=1).half()
    slots = torch.tensor([7, -1, 14, -1])
    with kernels_on(backend):
        dispatch.append(key, value, cache, slots, backend=backend)
    for slot in range(BLOCKS * BLOCK_SIZE):
        written = {7: 0, 14: 2}.get(slot)
        for which, new in (("key", key), ("value", value)):
            wanted = torch.zeros(KV_HEADS, HEAD).half() if written is None else new[written]
            assert torch.equal(_slot(cache, which, slot), wanted)


@pytest.mark.parametrize("backend", BACKENDS)
def test_append_by_kv_heads_not_query_heads(backend: TestedBackend) -> None:
    """A canary behind the buffer stays: 8 query heads over 2 KV heads write 2 (flashinfer#16)."""
    memory = torch.zeros(2, BLOCKS * BLOCK_SIZE * KV_HEADS * HEAD + 8 * HEAD)
    key, value = (m[: BLOCKS * BLOCK_SIZE * KV_HEADS * HEAD].view(BLOCKS, BLOCK_SIZE, KV_HEADS, HEAD) for m in memory)
    memory[:, -8 * HEAD :] = 77.0
    new = _random(1, KV_HEADS, HEAD)
    with kernels_on(backend):
        dispatch.append(new, new, PagedCache(key, value), torch.tensor([14]), backend=backend)
    assert memory[:, -8 * HEAD :].eq(77.0).all()
    assert torch.equal(key[4, 2], new[0])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_append_quantises_with_the_scale_and_saturates(dtype: torch.dtype, backend: TestedBackend) -> None:
    """R-KRN-7: stored x scale is the number, to fp8's rounding; what is too large saturates, what is NaN stays NaN."""
    scales = torch.tensor([0.5, 0.125])
    plain = _cache("NHD", dtype=dtype)
    cache = PagedCache(plain.key, plain.value, key_scale=scales, value_scale=scales.flip(0).contiguous())
    new = _random(2, KV_HEADS, HEAD).bfloat16()
    new[1, 0, :3] = torch.tensor([1e30, -1e30, math.nan]).bfloat16()
    with kernels_on(backend):
        dispatch.append(new, new, cache, torch.tensor([5, 8]), backend=backend)
    for held, scale in ((cache.key, scales), (cache.value, scales.flip(0))):
        meant = held[1, 2].float() * scale[:, None]
        # Half a unit in the last place: 3 and 2 stored bits of fraction, and below the smallest normal a fixed step.
        step, smallest = (2**-4, 2**-10) if dtype == torch.float8_e4m3fn else (2**-3, 2**-17)
        error = (meant - new[0].float()).abs()
        assert (error <= new[0].float().abs() * step + smallest * scale[:, None]).all()
        largest = torch.finfo(dtype).max
        assert held[2, 2, 0, :2].float().tolist() == [largest, -largest]
        assert held[2, 2, 0, 2].float().isnan()


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_appended_is_attended_to(backend: TestedBackend) -> None:
    """The append of an fp8 cache and its attention agree on slots and scales."""
    case = Case(lengths=(40, 17), queries=(1, 2), cache_dtype=torch.float8_e4m3fn, scales="head", split_divisor=8)
    problem = build(case)
    slots = []
    for row, length in enumerate(case.lengths):
        slots += [int(problem.block_table[row, p // 16]) * 16 + p % 16 for p in range(length)]
    new_key, new_value = (_random(len(slots), 2, 32, seed=s).half() for s in (3, 4))
    with kernels_on(backend):
        dispatch.append(new_key, new_value, problem.cache, torch.tensor(slots), backend=backend)
    for row, (start, length) in enumerate(zip((0, 40), case.lengths, strict=True)):
        for logical, new, scale in (
            (problem.keys, new_key, problem.cache.key_scale),
            (problem.values, new_value, problem.cache.value_scale),
        ):
            assert scale is not None
            logical[row] = (new[start : start + length].float() / scale[:, None]).to(torch.float8_e4m3fn)
    check(problem, *attend(problem, backend))


def _pool(layout: Layout, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Three layers as a view into a larger tensor, each number its own."""
    axes = (BLOCKS, BLOCK_SIZE, KV_HEADS) if layout == "NHD" else (BLOCKS, KV_HEADS, BLOCK_SIZE)
    return _random(3, 2, *axes, HEAD + 8)[..., :HEAD].to(dtype)


def _raw(tensor: Tensor) -> Tensor:
    """Contents as bytes, so that NaN equals NaN and fp8 compares."""
    return tensor.contiguous().view(torch.uint8)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_copy_moves_whole_blocks_in_all_layers(layout: Layout, dtype: torch.dtype, backend: TestedBackend) -> None:
    pool = _pool(layout, dtype)
    wanted = _raw(pool).clone().view_as(_raw(pool))
    raw_axes = wanted.view(*pool.shape[:-1], -1)
    raw_axes[:, :, 4], raw_axes[:, :, 2] = raw_axes[:, :, 1].clone(), raw_axes[:, :, 3].clone()
    with kernels_on(backend):
        dispatch.copy_blocks(pool, torch.tensor([1, 3]), torch.tensor([4, 2]), layout=layout, backend=backend)
    assert torch.equal(_raw(pool), wanted)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_copy_keeps_to_its_extents(layout: Layout, backend: TestedBackend) -> None:
    """R-COW-3: positions behind the extent of a copy belong to the target, whatever it holds."""
    pool = _pool(layout)
    before = pool.clone()
    extents = torch.tensor([2, 0, 3])
    sources, targets = torch.tensor([1, 1, 0]), torch.tensor([4, 2, 3])
    with kernels_on(backend):
        # Block 0 as a source is refused in checked mode; here it is only one block more.
        dispatch.copy_blocks(pool, sources, targets, extents=extents, layout=layout, backend=backend, checked=False)
    after, before = position_major(pool, layout), position_major(before, layout)
    for position in range(BLOCK_SIZE):
        for block in range(BLOCKS):
            source = {4: 1 if position < 2 else 4, 3: 0}.get(block, block)
            assert torch.equal(after[:, :, block, position], before[:, :, source, position])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gather_then_scatter_restores(layout: Layout, backend: TestedBackend) -> None:
    """Through staging and back into other blocks: contents follow, strides are each tensor's own."""
    pool = _pool(layout)
    before = pool.clone()
    staging = torch.full((2, 3, 2, *pool.shape[3:]), math.nan, dtype=pool.dtype)
    with kernels_on(backend):
        dispatch.gather_blocks(pool, torch.tensor([3, 1]), staging, backend=backend)
        assert torch.equal(staging[0], before[:, :, 3])
        assert torch.equal(staging[1], before[:, :, 1])
        assert torch.equal(pool, before)
        dispatch.scatter_blocks(staging, pool, torch.tensor([2, 4]), backend=backend)
    for block, source in ((0, 0), (1, 1), (2, 3), (3, 3), (4, 1)):
        assert torch.equal(pool[:, :, block], before[:, :, source])


@pytest.mark.parametrize("backend", BACKENDS)
def test_merge_has_an_exact_identity(backend: TestedBackend) -> None:
    """R-KRN-3: (anything, -inf) changes nothing, to the bit; of nothing and nothing comes (0, -inf)."""
    outputs = torch.full((2, 3, 2, HEAD), math.nan)
    lses = torch.full((2, 3, 2), -math.inf)
    outputs[0, 0], lses[0, 0] = _random(2, HEAD), 3.7
    outputs[1, 1], lses[1, 1] = _random(2, HEAD, seed=1), -250.3
    with kernels_on(backend):
        output, lse = dispatch.merge(outputs, lses, backend=backend)
    for token, state in ((0, 0), (1, 1)):
        assert torch.equal(output[token], outputs[state, token])
        assert torch.equal(lse[token], lses[state, token])
    assert output[2].eq(0).all()
    assert lse[2].eq(-math.inf).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("states", [1, 2, 17, 33])
def test_merge_is_attention_over_the_union(states: int, backend: TestedBackend) -> None:
    """Against float64 arithmetic, for state counts around the 16 that the kernel reads at once."""
    outputs = _random(states, 2, 3, HEAD)
    lses = _random(states, 2, 3, seed=1) * 40
    weights = torch.softmax(lses.double(), dim=0)
    with kernels_on(backend):
        output, lse = dispatch.merge(outputs, lses, backend=backend)
    torch.testing.assert_close(output.double(), (weights[..., None] * outputs.double()).sum(0), rtol=0, atol=1e-5)
    torch.testing.assert_close(lse.double(), torch.logsumexp(lses.double(), dim=0), rtol=0, atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_cascade_equals_attention(backend: TestedBackend) -> None:
    """Rows over one shared prefix, read once: within tolerance of the oracle; sinks count once."""
    case = Case(
        lengths=(70, 49, 90), queries=(1, 1, 3), q_heads=4, kv_heads=1, shared_blocks=3, sinks=True, soft_cap=20.0,
        dtype=torch.bfloat16, cache_dtype=torch.float8_e5m2, scales="tensor",
    )  # fmt: skip
    problem = build(case)
    plan = cascade.plan_cascade([0, 1, 2, 5], case.lengths, 48, q_heads=4, kv_heads=1)
    output, lse = torch.full_like(problem.query, math.nan), torch.full((5, 4), math.nan)
    with kernels_on(backend):
        cascade.cascade_attention(
            problem.query, problem.cache, problem.block_table, plan,
            scoring=problem.scoring, output=output, log_sum_exp=lse, backend=backend,
        )  # fmt: skip
    check(problem, output, lse)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_to_do_is_no_error(backend: TestedBackend) -> None:
    """Empty batches: no rows, rows without queries, no slots, no copies, no states' tokens."""
    none = torch.empty(0, dtype=torch.int64)
    problem = build(Case(lengths=(5,), queries=(0,)))
    pool = _pool("NHD")
    with kernels_on(backend):
        assert attend(problem, backend)[0].shape == (0, 4, 32)
        dispatch.append(torch.empty(0, 2, HEAD), torch.empty(0, 2, HEAD), _cache("NHD", dtype=torch.float32), none)
        dispatch.copy_blocks(pool, none, none, backend=backend)
        dispatch.gather_blocks(pool, none, torch.empty(0, 3, 2, *pool.shape[3:], dtype=pool.dtype), backend=backend)
        assert dispatch.merge(torch.empty(2, 0, 2, HEAD), torch.empty(2, 0, 2), backend=backend)[0].shape[0] == 0

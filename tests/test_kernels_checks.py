"""Bad input: one clear line before any launch, and nothing changed. Each refusal is provoked once on its own."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from pagedkv.kernels import append, attention, cascade, dispatch
from pagedkv.kernels.arguments import InvalidKernelArgument, PagedCache, Scoring
from pagedkv.kernels.plan import PlanCapacity, plan_attention
from triton.backends.compiler import GPUTarget

from triton_cases import Case, Problem, build, kernels_on

PROBLEM = build(Case(lengths=(40, 9), queries=(1, 2)))
Change = Callable[[Problem], dict[str, Any]]


def _cache(**changes: Any) -> dict[str, Any]:
    return {"cache": replace(PROBLEM.cache, **changes)}


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """Give the same shape and numbers with a last stride of 2."""
    return tensor[..., None].expand(*tensor.shape, 2).contiguous()[..., 0]


def _plan(lengths: list[int], heads: int = 4) -> dict[str, Any]:
    return {"plan": plan_attention([0, 1, 3], lengths, q_heads=heads, kv_heads=2)}


QUERY, KEY, VALUE, TABLE = PROBLEM.query, PROBLEM.cache.key, PROBLEM.cache.value, PROBLEM.block_table
BAD_ATTENTION: dict[str, tuple[dict[str, Any], str]] = {
    "query of two axes": ({"query": QUERY[0]}, "query: .* needed"),
    "head sizes differ": ({"query": QUERY[..., :16]}, "head size 16, but the cache has 32"),
    "heads do not match the plan": (_plan([40, 9], heads=2), "4 heads, but 2 KV heads in groups of 1"),
    "tokens do not match the plan": ({"query": QUERY[:2]}, "2 tokens, but the plan has 3"),
    "dtypes differ": ({"query": QUERY.bfloat16()}, "does not go with a query of torch.bfloat16"),
    "integer query": ({"query": QUERY.int()}, "query: dtype torch.int32"),
    "query strides": ({"query": _wide(QUERY)}, "query: stride of the last axis is 2"),
    "devices differ": ({"query": QUERY.to("meta")}, "query: on meta, but the cache is on cpu"),
    "cache of three axes": (_cache(key=KEY[0], value=VALUE[0]), "cache.key: 4 axes"),
    "K and V shapes differ": (_cache(value=VALUE[:, :8]), "must have one shape"),
    "K and V dtypes differ": (_cache(value=VALUE.float()), "they must agree"),
    "K and V devices differ": (_cache(value=VALUE.to("meta")), "cache.value: on meta"),
    "cache of integers": (_cache(key=KEY.int(), value=VALUE.int()), "cache: dtype torch.int32"),
    "cache strides": (_cache(key=_wide(KEY)), "cache.key: stride of the last axis is 2"),
    "head size 20": (_cache(key=KEY[..., :20], value=VALUE[..., :20]), "head size 20 is not in 16..256"),
    "empty axis": (_cache(key=KEY[:, :0], value=VALUE[:, :0]), "is empty"),
    "layout": (_cache(layout="NDH"), "layout 'NDH'"),
    "scale of the wrong length": (_cache(key_scale=torch.ones(4)), "cache.key_scale: .*of length \\[1, 2\\]"),
    "scale of the wrong dtype": (_cache(value_scale=torch.ones(2).half()), "cache.value_scale: torch.float16"),
    "table of int64": ({"block_table": TABLE.long()}, "block_table: int32"),
    "too few table rows": ({"block_table": TABLE[:1]}, "1 rows, but the plan has 2"),
    "row too short": ({"block_table": TABLE[:, :2]}, "row 0 of 2 blocks x 16 is too short for its length 40"),
    "table strides": ({"block_table": _wide(TABLE)}, "block_table: stride of the last axis is 2"),
    "slopes of the wrong length": ({"scoring": Scoring(alibi_slopes=torch.ones(2))}, "scoring.alibi_slopes"),
    "sinks of the wrong dtype": ({"scoring": Scoring(sinks=torch.ones(4).half())}, "scoring.sinks"),
    "soft cap of zero": ({"scoring": Scoring(soft_cap=0.0)}, "soft_cap: 0.0 is not positive"),
    "output shape": ({"output": torch.empty(3, 4, 16).half()}, "output: \\[3, 4, 16\\]"),
    "output dtype": ({"output": torch.empty(3, 4, 32).bfloat16()}, "output: dtype torch.bfloat16"),
    "output expanded": ({"output": torch.empty(1, 4, 32).half().expand(3, 4, 32)}, "output: expanded"),
    "log-sum-exp dtype": ({"log_sum_exp": torch.empty(3, 4).half()}, "log_sum_exp: torch.float16"),
    "backend": ({"backend": "cuda"}, "backend: 'cuda' is none of"),
    "null block in a row": ({"block_table": torch.zeros_like(TABLE)}, "entry 0 of row 0 is 0, not in 1.."),
    "id beyond the pool": ({"block_table": TABLE + 100}, "entry 0 of row 0 is 1\\d\\d, not in 1.."),
    "negative id": ({"block_table": -TABLE}, "entry 0 of row 0 is -\\d+"),
    "Triton on a CPU": ({"backend": "triton"}, "on the CPU; the Triton kernels need a GPU"),
}


@pytest.mark.parametrize("name", BAD_ATTENTION)
def test_attention_refuses(name: str) -> None:
    changes, message = BAD_ATTENTION[name]
    arguments: dict[str, Any] = {
        "query": QUERY, "cache": PROBLEM.cache, "block_table": TABLE, "plan": PROBLEM.plan,
        "output": torch.full((3, 4, 32), 7.0).half(), **changes,
    }  # fmt: skip
    with pytest.raises(InvalidKernelArgument, match=message) as refusal:
        dispatch.attention(**arguments)
    assert "\n" not in str(refusal.value)
    if name != "output expanded" and arguments["output"].shape == (3, 4, 32) and "output" not in changes:
        assert arguments["output"].eq(7.0).all()


BAD_PLANS: dict[str, tuple[dict[str, Any], str]] = {
    "heads that do not divide": ({"q_heads": 5}, "5 query heads do not divide into 2"),
    "no KV heads": ({"kv_heads": 0}, "do not divide"),
    "starts not from 0": ({"query_starts": [1, 2, 3]}, "must begin at 0"),
    "starts that fall": ({"query_starts": [0, 3, 2]}, "never fall"),
    "counts that differ": ({"kv_lengths": [1]}, "3 query_starts, 1 kv_lengths and 1 kv_starts"),
    "negative length": ({"kv_lengths": [3, -1]}, "must not be negative"),
    "fractions": ({"kv_lengths": [3.5, 1.0]}, "kv_lengths: need one axis of integers"),
    "two axes": ({"kv_lengths": [[3, 1]]}, "kv_lengths: need one axis"),
    "too long": ({"kv_lengths": [2**31, 1]}, "must stay below"),
    "window of 0": ({"window": 0}, "window: 0 must be at least 1"),
    "window without causality": ({"window": 4, "causal": False}, "and the attention causal"),
    "odd divisor": ({"split_divisor": 3}, "split_divisor: 3"),
    "no room": ({"capacity": PlanCapacity(0, 0, 0, 0)}, "2 small items, capacity 0"),
    "no scratch": ({"kv_lengths": [5000, 1], "capacity": PlanCapacity(99, 9, 9, 1)}, "partial rows, capacity 1"),
}


@pytest.mark.parametrize("name", BAD_PLANS)
def test_plan_refuses(name: str) -> None:
    changes, message = BAD_PLANS[name]
    good: dict[str, Any] = {"query_starts": [0, 1, 2], "kv_lengths": [3, 4], "q_heads": 4, "kv_heads": 2}
    with pytest.raises(InvalidKernelArgument, match=message):
        plan_attention(**{**good, **changes})


def test_refresh_refuses_what_does_not_fit() -> None:
    small = plan_attention([0, 1], [40], q_heads=4, kv_heads=2)
    for other, message in (
        (plan_attention([0, 1], [40], q_heads=4, kv_heads=2, window=3), "another group size, causality or window"),
        (plan_attention([0, 1], [5000], q_heads=4, kv_heads=2), "partial rows, captured 0"),
        (plan_attention([0, 1, 2], [40, 40], q_heads=4, kv_heads=2), "2 small items, captured with room for 1"),
    ):
        before = small.small.items.clone()
        with pytest.raises(InvalidKernelArgument, match=message):
            small.refresh_(other)
        assert torch.equal(small.small.items, before)


def _zeros(dtype: torch.dtype = torch.float16) -> PagedCache:
    return PagedCache(torch.zeros(4, 16, 2, 32).to(dtype), torch.zeros(4, 16, 2, 32).to(dtype))


NEW, SLOTS = torch.ones(2, 2, 32).half(), torch.tensor([17, 20])
BAD_APPENDS: dict[str, tuple[dict[str, Any], str]] = {
    "query heads given as KV heads": ({"key": torch.ones(2, 4, 32).half()}, "key: \\[2, 4, 32\\]"),
    "tokens do not match slots": ({"value": NEW[:1]}, "value: \\[1, 2, 32\\]"),
    "dtype": ({"key": NEW.float(), "value": NEW.float()}, "cannot be appended to a cache of torch.float16"),
    "integers": ({"key": NEW.int()}, "key: dtype torch.int32"),
    "K and V dtypes": ({"cache": "float8", "value": NEW.float()}, "they must agree"),
    "strides": ({"value": _wide(NEW)}, "value: stride of the last axis is 2"),
    "device": ({"key": NEW.to("meta")}, "key: on meta"),
    "slots of int32": ({"slots": SLOTS.int()}, "slots: contiguous int64"),
    "slot -2": ({"slots": torch.tensor([17, -2])}, "entry 1 is -2"),
    "slot in the null block": ({"slots": torch.tensor([3, 17])}, "entry 0 is 3, neither -1 nor in 16.."),
    "slot beyond the pool": ({"slots": torch.tensor([17, 10**6])}, "entry 1 is 1000000"),
    "slot twice": ({"slots": torch.tensor([17, 17])}, "named twice"),
    "cache expanded": ({"cache": "expanded"}, "cache.key: expanded"),
}


@pytest.mark.parametrize("name", BAD_APPENDS)
def test_append_refuses(name: str) -> None:
    changes, message = BAD_APPENDS[name]
    row = torch.zeros(1, 16, 2, 32).half()
    caches = {
        "plain": _zeros(),
        "float8": _zeros(torch.float8_e5m2),
        "expanded": PagedCache(row.expand(4, 16, 2, 32), row.expand(4, 16, 2, 32)),
    }
    arguments: dict[str, Any] = {"key": NEW, "value": NEW, "slots": SLOTS, **changes}
    arguments["cache"] = caches[arguments.pop("cache", "plain")]
    with pytest.raises(InvalidKernelArgument, match=message):
        dispatch.append(**arguments)
    assert arguments["cache"].key.float().eq(0).all()


POOL = torch.zeros(1, 2, 5, 3, 2, 16)
ONE, TWO = torch.tensor([1, 2]), torch.tensor([3, 4])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dispatch.copy_blocks(POOL[0], ONE, TWO), "pool: .*6 axes"),
        (lambda: dispatch.copy_blocks(_wide(POOL), ONE, TWO), "pool: stride"),
        (lambda: dispatch.copy_blocks(POOL, ONE, TWO[:1]), "targets: contiguous int64 of one length"),
        (lambda: dispatch.copy_blocks(POOL, ONE, TWO.int()), "targets: contiguous int64"),
        (lambda: dispatch.copy_blocks(POOL, ONE, TWO.to("meta")), "targets: on meta"),
        (lambda: dispatch.copy_blocks(POOL, ONE, torch.tensor([3, 5])), "targets: entry 1 is 5, not in 1..4"),
        (lambda: dispatch.copy_blocks(POOL, torch.tensor([0, 1]), TWO), "sources: entry 0 is 0"),
        (lambda: dispatch.copy_blocks(POOL, ONE, torch.tensor([3, 3])), "written twice"),
        (lambda: dispatch.copy_blocks(POOL, ONE, torch.tensor([3, 1])), "block 1 is also a source"),
        (lambda: dispatch.copy_blocks(POOL, ONE, TWO, extents=torch.tensor([3, 4])), "extents: must be in 0..3"),
        (lambda: dispatch.gather_blocks(POOL, ONE, torch.zeros(2, 1, 2, 3, 2, 8)), "staging: .*needed"),
        (lambda: dispatch.gather_blocks(POOL, ONE, torch.zeros(2, 1, 2, 3, 2, 16).half()), "staging: torch.float32"),
        (lambda: dispatch.gather_blocks(POOL, torch.tensor([9]), torch.zeros(1, 1, 2, 3, 2, 16)), "blocks: entry 0"),
        (lambda: dispatch.gather_blocks(POOL, ONE, torch.zeros(2, 1, 2, 3, 2, 16, device="meta")), "not pinned"),
        (lambda: dispatch.scatter_blocks(torch.zeros(2, 1, 2, 3, 2, 16), POOL, torch.tensor([1, 1])), "written twice"),
        (lambda: dispatch.merge(torch.zeros(1, 2, 3), torch.zeros(1, 2)), "outputs: .*needed"),
        (lambda: dispatch.merge(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2)), "log_sum_exps: float32"),
        (lambda: dispatch.merge(torch.zeros(0, 2, 3, 4), torch.zeros(0, 2, 3)), "no state"),
        (
            lambda: dispatch.merge(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3), output=torch.zeros(3, 3, 4)),
            "output: \\[3, 3, 4\\]",
        ),
        (lambda: cascade.plan_cascade([0, 1], [20], 0, q_heads=2, kv_heads=1), "shared_length: 0 is below 1"),
        (lambda: cascade.plan_cascade([0, 5], [20], 16, q_heads=2, kv_heads=1), "row 0 has a query inside"),
        (lambda: _cascade(12), "12 is no multiple of the block size 16"),
        (lambda: _cascade(16), "row 1 does not begin with the 1 blocks of row 0"),
        (lambda: _cascade(16, Scoring(alibi_slopes=torch.ones(4))), "a cascade has no ALiBi"),
    ],
)
def test_the_others_refuse(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(InvalidKernelArgument, match=message):
        call()
    assert POOL.eq(0).all()


def _cascade(shared: int, scoring: Scoring | None = None) -> None:
    problem = build(Case(lengths=(40, 33), queries=(1, 1)))
    plan = cascade.plan_cascade([0, 1, 2], [40, 33], shared, q_heads=4, kv_heads=2)
    cascade.cascade_attention(problem.query, problem.cache, problem.block_table, plan, scoring=scoring or Scoring())


def test_the_backend_is_chosen_by_device(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda", 0)
    assert [dispatch.choose_backend(device) for device in (cpu, gpu)] == ["torch", "triton"]
    assert dispatch.choose_backend(gpu, "torch") == "torch"
    monkeypatch.setattr(dispatch, "HAS_TRITON", False)
    assert dispatch.choose_backend(gpu) == "torch"
    with pytest.raises(InvalidKernelArgument, match="Triton is not installed"):
        dispatch.choose_backend(gpu, "triton")


@pytest.mark.parametrize("arch", [80, 86])
def test_e4m3_is_refused_by_name_where_the_chip_cannot(arch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (attention, append):
        monkeypatch.setattr(module, "active_target", lambda: GPUTarget("cuda", arch, 32), raising=False)
    e4m3, e5m2 = _zeros(torch.float8_e4m3fn), _zeros(torch.float8_e5m2)
    plan = plan_attention([0, 2], [20], q_heads=4, kv_heads=2)
    with kernels_on("triton"):
        dispatch.append(NEW, NEW, e5m2, SLOTS, backend="triton")
        for call in (
            lambda: dispatch.append(NEW, NEW, e4m3, SLOTS, backend="triton"),
            lambda: dispatch.attention(
                torch.ones(2, 4, 32).half(), e4m3, torch.tensor([[1, 2]]).int(), plan, backend="triton"
            ),
        ):
            with pytest.raises(
                InvalidKernelArgument, match=f"float8_e4m3fn needs sm_89 or later, this GPU is sm_{arch}"
            ):
                call()
    assert e4m3.key.float().eq(0).all()


def test_checked_mode_can_be_asked_for_or_left_out() -> None:
    """Unchecked, a slot in the null block is written as told; checked, it is refused."""
    cache = _zeros()
    dispatch.append(NEW, NEW, cache, torch.tensor([3, 17]), checked=False)
    assert cache.key[0, 3].eq(1).all()
    with pytest.raises(InvalidKernelArgument):
        dispatch.append(NEW, NEW, cache, torch.tensor([3, 17]), checked=True)

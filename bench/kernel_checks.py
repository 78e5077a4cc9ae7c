"""The kernels against the oracle, on whatever device there is: the short set that `pagedkv verify` runs.

On a CPU that is the torch fallback, on a GPU the Triton kernels; the tests run the interpreted Triton kernels besides.
Each check either holds or says what broke. Rules: R-KRN-1 to R-KRN-9 and R-TAB-2.
"""

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from pagedkv.bench.kernel_problems import Problem, Shape, logical, make
from pagedkv.bench.kernel_timing import captured
from pagedkv.kernels import dispatch
from pagedkv.kernels.arguments import PagedCache
from pagedkv.kernels.plan import PlanCapacity, plan_attention
from pagedkv.spec.attention import dense_attention
from torch import Tensor

TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@dataclass(frozen=True, slots=True)
class KernelCheck:
    """One check: what was compared, how often, and what broke (empty where it held)."""

    name: str
    cases: int
    broken: str


def check_kernels(device: torch.device, *, seconds: float = 5.0, seed: int = 0) -> list[KernelCheck]:
    """Run every check for a share of `seconds`; at least one case each. One seed is one run of cases, time aside."""
    checks: list[tuple[str, Callable[[torch.device, int], str]]] = [
        ("attention against the dense oracle", _oracle),
        ("equal to the bit under batch mates and order", _batch_mates),
        ("equal to the bit under block ids", _block_ids),
        ("append, then attention", _append),
        ("merge has an exact identity", _merge),
    ]
    return [_repeat(name, check, device, seconds / len(checks), seed) for name, check in checks]


def _repeat(
    name: str, check: Callable[[torch.device, int], str], device: torch.device, seconds: float, seed: int
) -> KernelCheck:
    end = time.monotonic() + seconds
    cases = 0
    while True:
        broken = check(device, seed + cases)
        cases += 1
        if broken or time.monotonic() >= end:
            return KernelCheck(name, cases, broken and f"case {seed + cases - 1}: {broken}")


def _drawn_shape(seed: int, device: torch.device) -> Shape:
    """Draw a small shape of every kind: decode, verify, prefill, window, cap, sinks, fp8, odd sizes."""
    draw = random.Random(seed)
    queries = draw.choice([1, 1, 2, 4, 37])
    kv_heads = draw.choice([1, 2, 3])
    float8 = [None, None, torch.float8_e5m2]
    if device.type == "cpu" or torch.cuda.get_device_capability(device) >= (8, 9):
        float8.append(torch.float8_e4m3fn)
    dtype = draw.choice(list(TOLERANCES))
    lengths = tuple(max(queries, draw.choice([1, 15, 16, 17, 100, 511, 600, 1100])) for _ in range(draw.randint(1, 3)))
    return Shape(
        f"seed {seed}", len(lengths), 0, queries, lengths=lengths, dtype=dtype, cache_dtype=draw.choice(float8),
        block_size=draw.choice([1, 12, 16, 64]), kv_heads=kv_heads, q_heads=kv_heads * draw.choice([1, 4, 5, 8]),
        head_size=draw.choice([32, 64, 80, 128]), window=draw.choice([None, None, 19, 300]),
        soft_cap=draw.choice([None, None, 5.0]), sinks=draw.choice([False, True]),
    )  # fmt: skip


def _attend(problem: Problem) -> tuple[Tensor, Tensor]:
    output = torch.full_like(problem.query, math.nan)
    lse = torch.full(problem.query.shape[:2], math.nan, device=problem.query.device)
    dispatch.attention(
        problem.query, problem.caches[0], problem.block_table, problem.plan,
        scoring=problem.scoring, output=output, log_sum_exp=lse,
    )  # fmt: skip
    return output, lse


def _oracle(device: torch.device, seed: int) -> str:
    problem = make(_drawn_shape(seed, device), device, seed, poison=True)
    output, lse = _attend(problem)
    shape, starts = problem.shape, problem.plan.query_starts
    scale = 0.5 if problem.caches[0].key_scale is not None else 1.0
    sinks = None if problem.scoring.sinks is None else problem.scoring.sinks.cpu()
    for row in range(len(shape.all_lengths)):
        tokens = slice(starts[row], starts[row + 1])
        expected, expected_lse = dense_attention(
            problem.query[tokens].cpu(), *logical(problem, row), window=shape.window, soft_cap=shape.soft_cap,
            sinks=sinks, key_scale=scale, value_scale=scale,
        )  # fmt: skip
        size = expected.abs().amax(dim=2, keepdim=True).clamp(min=1.0)
        error = ((output[tokens].cpu() - expected).abs() / size).max().item()
        lse_error = (lse[tokens].cpu() - expected_lse).abs().max().item()
        if not error <= TOLERANCES[shape.dtype] or not lse_error <= 1e-5 * max(1.0, expected_lse.abs().max().item()):
            return f"row {row} of {shape}: output off by {error:.1e}, log-sum-exp by {lse_error:.1e}"
    return ""


def _batch_mates(device: torch.device, seed: int) -> str:
    problem = make(_drawn_shape(seed, device), device, seed)
    together = _attend(problem)
    queries = problem.shape.queries
    for row, length in enumerate(problem.shape.all_lengths):
        plan = plan_attention(
            [0, queries], [length], q_heads=problem.shape.q_heads, kv_heads=problem.shape.kv_heads,
            window=problem.shape.window,
        )  # fmt: skip
        tokens = slice(row * queries, (row + 1) * queries)
        alone = replace(problem, query=problem.query[tokens], block_table=problem.block_table[row : row + 1], plan=plan)
        if any(not torch.equal(got, all_[tokens]) for got, all_ in zip(_attend(alone), together, strict=True)):
            return f"row {row} of {problem.shape} differs alone and in its batch (R-KRN-9)"
    return ""


def _block_ids(device: torch.device, seed: int) -> str:
    problem = make(_drawn_shape(seed, device), device, seed)
    cache = problem.caches[0]
    names = torch.cat([torch.zeros(1, dtype=torch.long), torch.randperm(cache.blocks + 7)[: cache.blocks - 1] + 1])
    names = names.to(device)
    pools = []
    for held in (cache.key, cache.value):
        pool = torch.full((cache.blocks + 8, *held.shape[1:]), math.nan, device=device).to(held.dtype)
        pool.view(torch.uint8)[names] = held.view(torch.uint8)
        pools.append(pool)
    renamed = replace(
        problem,
        caches=[PagedCache(pools[0], pools[1], key_scale=cache.key_scale, value_scale=cache.value_scale)],
        block_table=names[problem.block_table.long()].to(torch.int32),
    )
    same = all(torch.equal(a, b) for a, b in zip(_attend(problem), _attend(renamed), strict=True))
    return "" if same else f"{problem.shape} differs under other block ids (R-KRN-4)"


def _append(device: torch.device, seed: int) -> str:
    shape = Shape("append", 2, 0, lengths=(40, 17), q_heads=8, kv_heads=2, head_size=64, dtype=torch.float16)
    problem = make(shape, device, seed)
    drawn = torch.Generator().manual_seed(seed)
    key, value = (torch.randn(57, 2, 64, generator=drawn).half() for _ in range(2))
    slots = [int(problem.block_table[row, p // 16]) * 16 + p % 16 for row, n in enumerate((40, 17)) for p in range(n)]
    padded = [torch.cat([new, torch.full((1, 2, 64), math.nan).half()]).to(device) for new in (key, value)]
    dispatch.append(padded[0], padded[1], problem.caches[0], torch.tensor([*slots, -1], device=device))
    output, _ = _attend(problem)
    for row, tokens in enumerate((slice(0, 40), slice(40, 57))):
        expected, _ = dense_attention(problem.query[row : row + 1].cpu(), key[tokens], value[tokens])
        error = (output[row].cpu() - expected[0]).abs().max().item()
        if not error <= TOLERANCES[torch.float16]:
            return f"row {row}: off by {error:.1e} after an append (R-TAB-2)"
    return ""


def _merge(device: torch.device, seed: int) -> str:
    drawn = torch.Generator().manual_seed(seed)
    outputs, lses = torch.randn(2, 3, 4, 64, generator=drawn), torch.randn(2, 3, 4, generator=drawn) * 100
    outputs[1], lses[1] = math.nan, -math.inf
    lses[0, 0] = -math.inf
    output, lse = dispatch.merge(outputs.to(device), lses.to(device))
    right = torch.equal(output[1:].cpu(), outputs[0, 1:]) and torch.equal(lse.cpu(), lses[0])
    return "" if right and bool((output[0] == 0).all()) else "(anything, -inf) is no identity of the merge (R-KRN-3)"


def check_graph(device: torch.device) -> KernelCheck:
    """Capture append, attention and copy into one CUDA graph, bring another step in, replay, and compare to the bit."""
    shape = Shape("graph", 3, 0, lengths=(700, 33, 90), queries=2, q_heads=8, kv_heads=2, head_size=64)
    problem = make(shape, device)
    longest = plan_attention([0, 2, 4, 6], [2000] * 3, q_heads=8, kv_heads=2)
    room = PlanCapacity(len(longest.small.items), 0, len(longest.merges), longest.partial_rows)
    plan = plan_attention([0, 2, 4, 6], [90, 700, 33], q_heads=8, kv_heads=2, capacity=room).to(device)
    new = torch.randn(6, 2, 64, device=device).bfloat16()
    slots = torch.full((6,), -1, device=device)
    ids = problem.block_table[0, :2].long()
    pool = torch.stack([problem.caches[0].key, problem.caches[0].value])[None].contiguous()
    output = torch.empty_like(problem.query)

    def step() -> None:
        dispatch.append(new, new, problem.caches[0], slots, checked=False)
        dispatch.copy_blocks(pool, ids[:1], ids[1:], checked=False)
        dispatch.attention(problem.query, problem.caches[0], problem.block_table, plan, output=output, checked=False)

    graph = captured([step])
    plan.refresh_(problem.plan)
    output.fill_(math.nan)
    graph.replay()
    wanted, _ = _attend(problem)
    same = torch.equal(output, wanted) and torch.equal(pool[:, :, ids[0]], pool[:, :, ids[1]])
    return KernelCheck("captured in a CUDA graph, refreshed, replayed", 1, "" if same else "replay differs from eager")

"""The manager under pytest-benchmark, each case beside its floor.

    pytest bench/bench_manager.py --benchmark-only

One group a case, and in each the floor beside the manager, so that pytest-benchmark prints their ratio. The cases and
floors are those of `manager_ratios`, which compares medians in turns and says whether the targets hold.
"""

from collections.abc import Callable

import pytest
from pagedkv.bench.manager_ratios import STEPS, Call, Decode, FloorDecode, FloorRequests, Requests
from pagedkv.bench.scheduler_cases import Cancel, Release, Serve
from pagedkv.bench.sharing_cases import HIT, PROMPT, Eviction, FullHit, HashFloor, NewPrompts
from pytest_benchmark.fixture import BenchmarkFixture

ROUNDS = STEPS - 2  # one step a round, as many as a batch has room for


def run(benchmark: BenchmarkFixture, group: str, call: Call, rounds: int = ROUNDS, iterations: int = 1) -> None:
    """Measure a call as one row of a group."""
    benchmark.group = group
    benchmark.pedantic(  # type: ignore[no-untyped-call]  # pytest-benchmark gives it no types
        call, rounds=rounds, iterations=iterations, warmup_rounds=2
    )


def nothing() -> None:
    """Do nothing: where a case needs no call before or after the one that is measured."""


def run_between(benchmark: BenchmarkFixture, group: str, before: Call, call: Call, after: Call, rounds: int) -> None:
    """Measure a call as one row of a group, each time between two others that are not measured."""
    benchmark.group = group
    pending = False

    def next_round() -> None:
        nonlocal pending
        if pending:
            after()
        pending = True
        before()

    benchmark.pedantic(  # type: ignore[no-untyped-call]  # pytest-benchmark gives it no types
        call, setup=next_round, rounds=rounds, iterations=1
    )


@pytest.mark.parametrize("make", [FloorDecode, Decode])
@pytest.mark.parametrize("sequences", [1, 16, 256, 2000, 100_000])
def test_extend(benchmark: BenchmarkFixture, sequences: int, make: Callable[[int], Decode | FloorDecode]) -> None:
    run(benchmark, f"extend {sequences:,} by one", make(sequences).extend)


@pytest.mark.parametrize("call", ["floor", "step", "changing_step"])
def test_step(benchmark: BenchmarkFixture, call: str) -> None:
    decode = FloorDecode(2000).extend if call == "floor" else getattr(Decode(2000), call)
    run(benchmark, "extend + launch + retire, 2,000", decode)


@pytest.mark.parametrize("call", ["floor", "add_release", "in_flight"])
def test_request(benchmark: BenchmarkFixture, call: str) -> None:
    requests = FloorRequests().add_release if call == "floor" else getattr(Requests(), call)
    run(benchmark, "add + release 1,024 tokens", requests, rounds=1000, iterations=20)


@pytest.mark.parametrize("call", ["floor", "hit"])
def test_full_hit(benchmark: BenchmarkFixture, call: str) -> None:
    run(
        benchmark, "hit 2,048 tokens + release", HashFloor(HIT).hash if call == "floor" else FullHit().add_release, 1000
    )


@pytest.mark.parametrize("call", ["floor", "serve", "serve_evicting"])
def test_new_prompt(benchmark: BenchmarkFixture, call: str) -> None:
    serve = HashFloor(PROMPT).hash if call == "floor" else NewPrompts(400, evicting=call == "serve_evicting").serve
    run(benchmark, "add + launch + retire + publish + release 1,024 tokens, no hit", serve)


@pytest.mark.parametrize("leaves", [1000, 100_000])
def test_evict(benchmark: BenchmarkFixture, leaves: int) -> None:
    run(benchmark, "evict one leaf", Eviction(leaves).replace, 1000)


@pytest.mark.parametrize("call", ["floor", "schedule", "complete"])
def test_serve(benchmark: BenchmarkFixture, call: str) -> None:
    serve = Serve(2000, 1000, STEPS)
    calls: dict[str, tuple[Call, Call, Call]] = {
        "floor": (nothing, FloorDecode(2000).extend, nothing),
        "schedule": (nothing, serve.schedule, serve.complete),
        "complete": (serve.schedule, serve.complete, nothing),
    }
    run_between(benchmark, "schedule and complete, 2,000 run and 1,000 wait", *calls[call], rounds=ROUNDS)


@pytest.mark.parametrize("in_flight", [False, True])
@pytest.mark.parametrize("make", [Release, Cancel])
def test_leave(benchmark: BenchmarkFixture, make: type[Release | Cancel], *, in_flight: bool) -> None:
    case = Cancel(1000, in_flight=in_flight) if make is Cancel else Release(in_flight=in_flight)
    group = f"leave with 1,024 tokens, {'in flight' if in_flight else 'written'}"
    run_between(benchmark, group, case.begin, case.leave, case.end, rounds=1000)

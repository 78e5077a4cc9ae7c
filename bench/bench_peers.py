"""Other people's managers beside ours under pytest-benchmark.

    pytest bench/bench_peers.py --benchmark-only

One group a case, and in each the managers that can be imported; who can't is skipped with how to get it. The cases are
those of `peer_speeds`, which has the managers take turns, and makes one table with ratios to ours.
"""

import pytest
from pagedkv.bench.peer_contenders import CONTENDERS, Contender
from pagedkv.bench.peer_speeds import Case, cases
from pytest_benchmark.fixture import BenchmarkFixture

ROUNDS = 15  # as many as the shortest case has room for


@pytest.mark.parametrize("contender", CONTENDERS, ids=lambda each: each.name)
@pytest.mark.parametrize("case", cases(), ids=lambda case: f"{case.name}, cache {case.caching}")
def test_case(benchmark: BenchmarkFixture, case: Case, contender: Contender) -> None:
    if reason := contender.missing() or case.refused(contender):
        pytest.skip(reason)
    benchmark.group = f"{case.name}, cache {case.caching}"
    contestant = case.make(contender)
    benchmark.pedantic(  # type: ignore[no-untyped-call]  # pytest-benchmark gives it no types
        contestant.turn, rounds=ROUNDS, iterations=1, warmup_rounds=2
    )

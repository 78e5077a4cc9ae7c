"""Real traces through the scheduler: all finish, and hits are what two independent counts of the traces say."""

from functools import cache

import pytest
from pagedkv.bench.replay_arrivals import TrafficSettings
from pagedkv.bench.replay_queue import ReplaySettings
from pagedkv.bench.replay_scheduler import replay_scheduled
from pagedkv.bench.scheduler_report import SchedulerReport
from pagedkv.bench.traces import Trace, read_trace
from pagedkv.impl.requests import Limits

from real_data import AZURE, MOONCAKE, SHAREGPT, real_data

BLOCK_SIZES = (8, 16, 32, 64, 128)
HIT_TOKENS = {
    SHAREGPT: (19_672, 19_520, 19_328, 18_880, 17_664),
    MOONCAKE: (54_097_888, 54_097_440, 54_096_416, 54_093_952, 54_089_728),
}
ORDINARY = {SHAREGPT: BLOCK_SIZES, MOONCAKE: (128,)}
PREFILL = TrafficSettings(prefill_only=True)
ONE_AT_A_TIME = Limits(max_running=1, max_tokens_per_step=1 << 20)


@cache
def _trace(name: str, requests: int | None = None) -> Trace:
    return read_trace(real_data(name), requests)


def _cases() -> list[object]:
    """Give every known answer; those that take long and show nothing that the others don't are for deep runs."""
    return [
        pytest.param(
            name,
            block_size,
            hits,
            marks=[] if block_size in ORDINARY[name] else [pytest.mark.deep],
            id=f"{name[:9]}-{block_size}",
        )
        for name, answers in HIT_TOKENS.items()
        for block_size, hits in zip(BLOCK_SIZES, answers, strict=True)
    ]


@pytest.mark.parametrize(("name", "block_size", "hit_tokens"), _cases())
def test_prefix_hits_one_after_the_other(name: str, block_size: int, hit_tokens: int) -> None:
    report = replay_scheduled(_trace(name), ReplaySettings(block_size=block_size), ONE_AT_A_TIME, PREFILL)
    assert report.counts.finished == report.requests == len(_trace(name))
    assert report.counts.hit_tokens == hit_tokens
    assert report.counts.launched_tokens == int(_trace(name).prompt_tokens.sum()) - hit_tokens
    assert report.counts.evictions == 0


@pytest.mark.deep
def test_hits_are_the_same_whether_or_not_outputs_are_published() -> None:
    report = replay_scheduled(_trace(SHAREGPT), ReplaySettings(block_size=16), ONE_AT_A_TIME, TrafficSettings())
    assert report.counts.hit_tokens == 19_520
    assert report.counts.launched_tokens == 257_239 + 195_753 - 300 - 19_520


def test_hits_grow_with_the_pool() -> None:
    """The first 1,000 requests of Mooncake, the longest of which needs more than 7,000 blocks of 16."""
    limits = Limits(max_tokens_per_step=8192)
    hits, evictions = [], []
    for blocks in (8_000, 32_000, 128_000, None):
        report = replay_scheduled(_trace(MOONCAKE, 1000), ReplaySettings(blocks=blocks), limits, PREFILL)
        assert report.counts.finished == 1000
        hits.append(report.counts.hit_tokens)
        evictions.append(report.counts.evictions)
    assert hits == sorted(hits)
    assert hits[-1] > 2 * hits[0] > 0
    assert evictions == sorted(evictions, reverse=True)
    assert evictions[-1] == 0


def _all_finish(blocks: int, requests: int | None, steps_ahead: int = 1) -> SchedulerReport:
    trace = _trace(AZURE, requests)
    report = replay_scheduled(
        trace, ReplaySettings(blocks=blocks), Limits(max_running=1024, steps_ahead=steps_ahead), TrafficSettings()
    )
    assert report.counts.finished == report.requests == len(trace)
    assert report.counts.prompt_tokens == int(trace.prompt_tokens.sum())
    final = int((trace.prompt_tokens + trace.output_tokens - 1).sum())
    assert final <= report.counts.launched_tokens <= final + report.counts.recomputed_tokens
    assert report.counts.peak_blocks <= blocks
    return report


def test_all_of_a_day_in_a_pool_of_20000() -> None:
    assert _all_finish(20_000, None).counts.recomputed_tokens < 1_000_000


@pytest.mark.parametrize("steps_ahead", [1, 2])
def test_a_pool_in_which_somebody_gives_way_all_the_time(steps_ahead: int) -> None:
    """2,588 blocks are what an RTX 4090 has beside a model of 8 billion parameters."""
    assert _all_finish(2588, 2000, steps_ahead=steps_ahead).counts.preemptions > 200


@pytest.mark.deep
def test_all_of_a_day_in_a_pool_of_2588() -> None:
    assert _all_finish(2588, None).counts.preemptions > 2000

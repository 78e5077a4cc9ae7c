"""Whole real traces through the implementation give the waste and the entries that arithmetic gives, to the unit."""

from functools import cache, partial

import pytest
from pagedkv.bench.impl_engine import open_impl_engine
from pagedkv.bench.replay import replay
from pagedkv.bench.replay_queue import FinalLength, ReplaySettings
from pagedkv.bench.replay_report import ReplayReport
from pagedkv.bench.traces import Trace, read_trace

from real_data import AZURE, MOONCAKE, SHAREGPT, real_data

BLOCK_SIZES = (8, 16, 32, 64, 128)
WITH_LAST = FinalLength.PROMPT_OUTPUT
WITHOUT_LAST = FinalLength.PROMPT_OUTPUT_LESS_ONE
TAIL_WASTE = {
    (AZURE, WITH_LAST): (67_753, 144_617, 300_185, 596_761, 1_210_521),
    (AZURE, WITHOUT_LAST): (67_911, 144_239, 299_295, 596_415, 1_208_511),
    (MOONCAKE, WITH_LAST): (42_257, 89_793, 185_121, 379_041, 766_177),
    (SHAREGPT, WITH_LAST): (1_144, 2_304, 4_608, 9_344, 18_560),
}
AZURE_ENTRIES_WITH_LAST = (3_314_786, 1_662_197, 835_960, 422_614, 216_102)
AZURE_GROWTH_WITH_LAST = (511_029, 255_260, 127_659, 63_434, 31_233)


@cache
def _trace(name: str, requests: int | None = None) -> Trace:
    return read_trace(real_data(name), requests)


@cache
def _replay(name: str, settings: ReplaySettings, requests: int | None = None) -> ReplayReport:
    return replay(_trace(name, requests), settings, partial(open_impl_engine, journal=None))


def _all_cases() -> list[object]:
    """Give every known answer; those that take long and show nothing that the others don't are for deep runs."""
    cases: list[object] = []
    for (name, final_length), answers in TAIL_WASTE.items():
        ordinary = {(AZURE, WITH_LAST): (16,), (MOONCAKE, WITH_LAST): (64, 128)}.get((name, final_length), BLOCK_SIZES)
        for block_size, tail_waste in zip(BLOCK_SIZES, answers, strict=True):
            marks = [] if block_size in ordinary else [pytest.mark.deep]
            cases.append(pytest.param(name, final_length, block_size, tail_waste, marks=marks))
    return cases


@pytest.mark.parametrize(("name", "final_length", "block_size", "tail_waste"), _all_cases())
def test_tail_waste(name: str, final_length: FinalLength, block_size: int, tail_waste: int) -> None:
    report = _replay(name, ReplaySettings(block_size=block_size, final_length=final_length))
    assert report.counts.finished == report.requests == len(_trace(name))
    assert report.tail_waste == tail_waste
    assert report.physical_slots - report.counts.logical_tokens == report.tail_waste
    if (name, final_length) == (AZURE, WITH_LAST):
        at = BLOCK_SIZES.index(block_size)
        assert report.counts.block_table_entries == AZURE_ENTRIES_WITH_LAST[at]
        assert report.counts.growth_allocations == AZURE_GROWTH_WITH_LAST[at]


def test_azure_as_an_engine_holds_it() -> None:
    """One step a token of the longest output; every block taken is in a table at the end, since nothing is shared."""
    report = _replay(AZURE, ReplaySettings(block_size=16))
    counts = report.counts
    assert (report.requests, counts.steps, counts.peak_running) == (19_366, 1000, 19_366)
    assert (counts.block_table_entries, counts.growth_allocations) == (1_660_963, 254_026)
    assert counts.allocations == counts.block_table_entries
    assert counts.logical_tokens == 22_361_870 + 4_088_665 - 19_366


def test_azure_in_a_pool_so_small_that_requests_wait() -> None:
    """Some prompts need more than 250 blocks of 16; all that fit finish, and the figures are those of their lengths."""
    report = _replay(AZURE, ReplaySettings(block_size=16, blocks=250), 1000)
    final = (_trace(AZURE).prompt_tokens + _trace(AZURE).output_tokens - 1)[:1000]
    fitting = final[final <= 250 * 16]
    assert {refusal.reason for refusal in report.refusals} == {"TooLong"}
    assert len(report.refusals) == len(final) - len(fitting) > 0
    assert report.counts.finished == len(fitting)
    assert report.counts.logical_tokens == int(fitting.sum())
    assert report.tail_waste == int((-fitting % 16).sum())
    assert report.counts.peak_blocks <= 250


def test_azure_with_arrivals() -> None:
    """At 30 ms a step the first requests come over some minutes: few run at a time, and the waste stays what it is."""
    unclocked = _replay(AZURE, ReplaySettings(block_size=16), 3000)
    clocked = _replay(AZURE, ReplaySettings(block_size=16, step_ms=30), 3000)
    assert clocked.tail_waste == unclocked.tail_waste
    assert clocked.counts.block_table_entries == unclocked.counts.block_table_entries
    assert clocked.counts.peak_running < unclocked.counts.peak_running == 3000
    assert clocked.counts.steps > unclocked.counts.steps

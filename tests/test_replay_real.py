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
def _trace(name: str) -> Trace:
    return read_trace(real_data(name))


def _replay(name: str, settings: ReplaySettings) -> ReplayReport:
    return replay(_trace(name), settings, partial(open_impl_engine, journal=None))


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize(("name", "final_length"), TAIL_WASTE)
def test_tail_waste(name: str, final_length: FinalLength, block_size: int) -> None:
    report = _replay(name, ReplaySettings(block_size=block_size, final_length=final_length))
    at = BLOCK_SIZES.index(block_size)
    assert report.counts.finished == report.requests == len(_trace(name))
    assert report.tail_waste == TAIL_WASTE[name, final_length][at]
    assert report.physical_slots - report.counts.logical_tokens == report.tail_waste
    if (name, final_length) == (AZURE, WITH_LAST):
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
    """The longest request needs 945 blocks of 16; all that fit finish, and the figures stay those of their lengths."""
    report = _replay(AZURE, ReplaySettings(block_size=16, blocks=500))
    final = _trace(AZURE).prompt_tokens + _trace(AZURE).output_tokens - 1
    fitting = final[final <= 500 * 16]
    assert {refusal.reason for refusal in report.refusals} == {"TooLong"}
    assert len(report.refusals) == len(final) - len(fitting) > 0
    assert report.counts.finished == len(fitting)
    assert report.counts.logical_tokens == int(fitting.sum())
    assert report.tail_waste == int((-fitting % 16).sum())
    assert report.counts.peak_blocks <= 500


def test_azure_with_arrivals() -> None:
    """At 30 ms a step the hour of the trace takes at least 3,501.7 s / 30 ms steps' time, and the waste is the same."""
    report = _replay(AZURE, ReplaySettings(block_size=16, step_ms=30))
    assert report.tail_waste == 144_239
    assert report.counts.peak_running < 19_366 / 10

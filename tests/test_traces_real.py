"""Real traces are read to the token: counts, sums, percentiles and rates that were worked out independently."""

import numpy as np
import pytest
from pagedkv.bench.traces import Trace, read_trace

from real_data import AZURE, BURSTGPT, MOONCAKE, SHAREGPT, real_data

PERCENTILES = (50, 90, 99, 100)


def _read(name: str) -> Trace:
    return read_trace(real_data(name))


@pytest.mark.parametrize(
    ("name", "trace_format", "requests", "prompt_tokens", "output_tokens"),
    [
        (AZURE, "azure", 19_366, 22_361_870, 4_088_665),
        (MOONCAKE, "mooncake", 12_031, 144_793_823, 4_122_048),
        (SHAREGPT, "sharegpt", 300, 257_239, 195_753),
    ],
)
def test_counts_and_sums(name: str, trace_format: str, requests: int, prompt_tokens: int, output_tokens: int) -> None:
    trace = _read(name)
    assert (trace.format.name, len(trace)) == (trace_format, requests)
    assert (int(trace.prompt_tokens.sum()), int(trace.output_tokens.sum())) == (prompt_tokens, output_tokens)


@pytest.mark.parametrize(
    ("name", "prompt", "output", "requests_per_s"),
    [
        (AZURE, (1020, 2734.5, 4142, 14050), (129, 424, 601, 1000), 5.5301),
        (MOONCAKE, (6909, 27367, 85400.4, 126195), (350, 597, 1118.5, 2000), 3.4012),
    ],
)
def test_percentiles_and_rate(
    name: str, prompt: tuple[float, ...], output: tuple[float, ...], requests_per_s: float
) -> None:
    trace = _read(name)
    assert np.percentile(trace.prompt_tokens, PERCENTILES) == pytest.approx(prompt)
    assert np.percentile(trace.output_tokens, PERCENTILES) == pytest.approx(output)
    assert trace.requests_per_s() == pytest.approx(requests_per_s, abs=5e-5)


def test_azure_times_keep_their_seven_digits() -> None:
    """18:15:46.6805900 to 18:15:50.9951690, and to the last row at 19:14:08.4025270."""
    trace = _read(AZURE)
    assert trace.arrival_s[1] == pytest.approx(4.314579, abs=1e-9)
    assert trace.arrival_s[-1] == pytest.approx(3501.721937, abs=1e-9)


def test_milliseconds_become_seconds() -> None:
    assert _read(MOONCAKE).arrival_s[-1] == pytest.approx(3536.999)
    assert _read(SHAREGPT).arrival_s[-1] == pytest.approx((29183.763203 - 46.926808) / 1000)


def test_mooncake_ids_and_leading_hits() -> None:
    """An infinite cache of known leading ids hits 54,098,411 tokens, 105,710 of 288,500 ids, in file order."""
    trace = _read(MOONCAKE)
    assert len(trace.prefix_ids) == 288_500
    known: dict[int, int] = {}
    hit_ids = hit_tokens = 0
    for request, prompt in enumerate(trace.prompt_tokens.tolist()):
        ids = trace.prefix_ids[trace.prefix_starts[request] : trace.prefix_starts[request + 1]].tolist()
        tokens = [min(trace.format.prefix_block_size, prompt - at * 512) for at in range(len(ids))]
        for name, count in zip(ids, tokens, strict=True):
            if known.get(name) != count:  # the last, partial block is shared only where lengths agree
                break
            hit_ids += 1
            hit_tokens += count
        known.update(zip(ids, tokens, strict=True))
    assert (hit_ids, hit_tokens) == (105_710, 54_098_411)


def test_sharegpt_ids_are_the_full_blocks_of_prompt_and_output() -> None:
    trace = _read(SHAREGPT)
    assert (trace.format.prefix_block_size, trace.format.prefix_covers_output) == (8, True)
    assert np.diff(trace.prefix_starts).tolist() == ((trace.prompt_tokens + trace.output_tokens) // 8).tolist()


def test_burstgpt_has_ties_of_nothing_and_zero_lengths() -> None:
    trace = _read(BURSTGPT)
    assert (trace.format.name, len(trace)) == ("burstgpt", 60)
    assert np.count_nonzero((trace.prompt_tokens == 0) & (trace.output_tokens == 0)) == 4
    assert trace.arrival_s[:3].tolist() == [0, 40, 113]

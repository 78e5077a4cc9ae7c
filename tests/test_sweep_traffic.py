"""Requests that come and go in a sweep: made of lengths, hits and evictions in a bounded pool, times on the clock."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pagedkv.bench.failures import BadInput
from pagedkv.bench.latency_meter import LatencyLimits
from pagedkv.bench.step_time import StepTime
from pagedkv.bench.sweep_lengths import drawn_lengths
from pagedkv.bench.sweep_traffic import (
    Traffic,
    TrafficFound,
    drawn_traffic,
    replay_traffic,
    require_prefix_ids,
    step_time_of,
    traffic_in_words,
)
from pagedkv.bench.traces import Trace, read_trace
from pagedkv.impl.requests import Limits

from real_data import SHAREGPT, real_data
from test_sweep_command import TRACE
from test_sweep_parts import lengths_of

ONE_AT_A_TIME = Limits(max_running=1)


def trace_of(folder: Path, *requests: tuple[int, int, int, list[int]]) -> Trace:
    """Write requests (ms, prompt, outputs, ids of blocks of 4) and read them."""
    path = folder / "trace.jsonl"
    keys = "timestamp", "input_length", "output_length", "hash_ids"
    rows = [json.dumps(dict(zip(keys, row, strict=True)) | {"block_size": 4}) for row in requests]
    path.write_text("\n".join(rows), encoding="utf-8")
    return read_trace(path)


def replayed(
    trace: Trace,
    block_size: int,
    blocks: int,
    *,
    speedup: float = 1.0,
    keeps: LatencyLimits | None = None,
    step_time: StepTime | None = None,
) -> TrafficFound:
    """Replay one request after the other."""
    traffic = Traffic(
        trace=trace,
        source="requests",
        pool_bytes=1,
        speedup=speedup,
        latency_limits=keeps or LatencyLimits(),
        limits=ONE_AT_A_TIME,
    )
    heard: list[int] = []
    found = replay_traffic(traffic, block_size, blocks, step_time or StepTime(base_ms=1.0), heard.append)
    assert found is not None
    assert heard == sorted(heard)
    assert heard[-1] == 2 * len(trace), "both replays are heard of"
    return found


# ---- requests made of lengths ---------------------------------------------------------------------------------------


def test_requests_made_of_lengths_hold_them_in_the_end() -> None:
    lengths = drawn_lengths(500, (0.25,) * 4, 3)
    made = drawn_traffic(lengths, 3)
    assert (made.prompt_tokens + made.output_tokens - 1).tolist() == lengths.final.tolist()
    assert made.output_tokens.tolist() == [min(max(length // 5, 1), 512) for length in lengths.final.tolist()]
    assert made.arrival_s[0] == 0
    assert (np.diff(made.arrival_s) > 0).all()
    assert made.requests_per_s() == pytest.approx(1, rel=0.15)


def test_they_begin_with_one_of_twenty_prompts_as_far_as_they_go() -> None:
    made = drawn_traffic(drawn_lengths(500, (0.25,) * 4, 3), 3)
    firsts = set()
    for request in range(len(made)):
        ids = made.prefix_ids[made.prefix_starts[request] : made.prefix_starts[request + 1]].tolist()
        assert len(ids) == min(made.prompt_tokens[request] // 64, 16)
        if ids:
            assert ids[0] % 16 == 0
            assert ids == list(range(ids[0], ids[0] + len(ids)))
            firsts.add(ids[0] // 16)
    assert firsts == set(range(20))


def test_a_seed_makes_the_same_requests() -> None:
    lengths = drawn_lengths(50, (0.25,) * 4, 0)
    first, again, other = (drawn_traffic(lengths, seed) for seed in (5, 5, 6))
    assert (first.arrival_s.tolist(), first.prefix_ids.tolist()) == (
        again.arrival_s.tolist(),
        again.prefix_ids.tolist(),
    )
    assert first.arrival_s.tolist() != other.arrival_s.tolist()


def test_the_shortest_length_is_a_request_too() -> None:
    made = drawn_traffic(lengths_of([1], [1]), 0)
    assert (made.prompt_tokens.tolist(), made.output_tokens.tolist(), made.prefix_ids.size) == ([1], [1], 0)


# ---- in order, without a clock --------------------------------------------------------------------------------------


def test_hits_and_evictions_by_hand(tmp_path: Path) -> None:
    """Prompts of 9 and one output take three blocks of 4; two of them are published, the third is free afterwards.

    In a pool of four, the second prompt takes two free blocks and evicts the first one's last. The third is the same
    prompt and hits two blocks. The fourth is the first prompt again: it hits the one that is left, and evicts one.
    """
    first, second = (9, 1, [1, 2]), (9, 1, [3, 4])
    trace = trace_of(tmp_path, (0, *first), (0, *second), (0, *second), (0, *first))
    counts = replayed(trace, 4, 4).counts_as_json()
    assert (counts["blocks"], counts["finished"], counts["prompt_tokens"]) == (4, 4, 36)
    assert (counts["hit_tokens"], counts["hit_percent"]) == (12, pytest.approx(100 * 12 / 36))
    assert counts["evictions"] == 2
    unbounded = replayed(trace, 4, 100).counts_as_json()
    assert (unbounded["hit_tokens"], unbounded["evictions"]) == (16, 0)


@pytest.mark.parametrize(("block_size", "hits"), [(8, 19_672), (16, 19_520), (32, 19_328), (64, 18_880)])
def test_hits_of_a_real_trace_are_the_known_ones(block_size: int, hits: int) -> None:
    """Each request ends with its first token: what is sampled is hit by nobody there, and takes most of the time."""
    trace = read_trace(real_data(SHAREGPT))
    trace = replace(trace, output_tokens=np.ones_like(trace.output_tokens))
    found = replayed(trace, block_size, 500_000 // block_size)
    assert (found.in_order.counts.hit_tokens, found.in_order.counts.evictions) == (hits, 0)
    assert found.clocked.outcome.scheduled.counts.hit_tokens == hits, "on the clock they come in the same order"


def test_a_request_beyond_the_pool_is_refused_and_counted(tmp_path: Path) -> None:
    counts = replayed(trace_of(tmp_path, (0, 9, 1, []), (0, 90, 1, [])), 4, 4).counts_as_json()
    assert (counts["finished"], counts["refused"]) == (1, 1)


def test_a_pool_without_a_block_has_no_outcome(tmp_path: Path) -> None:
    traffic = Traffic(trace=trace_of(tmp_path, (0, 9, 1, [])), source="requests", pool_bytes=1)
    assert replay_traffic(traffic, 4, 0, StepTime(base_ms=1.0), lambda _gone: None) is None


# ---- on the clock ---------------------------------------------------------------------------------------------------


def test_a_step_lasts_all_layers_in_proportion_to_what_it_reads() -> None:
    step_time = step_time_of(layers=32, layer_ms=2.0, positions=8000, model_step_ms=5.0)
    assert step_time.step_ms(0, 4, 8000) == 5 + 32 * 2
    assert step_time.step_ms(100, 0, 1000) == 5 + 32 * 2 / 8


def test_times_by_hand(tmp_path: Path) -> None:
    """A prompt of 8 and three tokens, 10 ms a step and 1 ms a position: steps of 18, 19 and 20 ms."""
    step_time = StepTime(base_ms=10, context_ms=1000)
    found = replayed(trace_of(tmp_path, (0, 8, 3, [])), 4, 10, step_time=step_time).times_as_json()
    assert (found["step_base_ms"], found["step_context_ms"]) == (10, 1000)
    assert found["ttft_ms"]["max"] == pytest.approx(18)
    assert found["tpot_ms"]["max"] == pytest.approx(19.5)
    assert found["makespan_s"] == pytest.approx(0.057)
    assert found["goodput_per_s"] == pytest.approx(1 / 0.057)


@pytest.mark.parametrize(("ttft_ms", "tpot_ms", "good"), [(18.1, 19.6, 1), (17.9, 19.6, 0), (18.1, 19.4, 0)])
def test_a_good_request_keeps_every_limit(tmp_path: Path, ttft_ms: float, tpot_ms: float, good: int) -> None:
    step_time, keeps = StepTime(base_ms=10, context_ms=1000), LatencyLimits(ttft_ms=ttft_ms, tpot_ms=tpot_ms)
    found = replayed(trace_of(tmp_path, (0, 8, 3, [])), 4, 10, step_time=step_time, keeps=keeps)
    assert found.clocked.latency.good_requests == good


def test_a_speedup_lets_them_arrive_faster(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, (0, 8, 1, []), (1000, 8, 1, []))
    step_time = StepTime(base_ms=10)
    assert replayed(trace, 4, 10, step_time=step_time).clocked.latency.makespan_s == pytest.approx(1.010)
    assert replayed(trace, 4, 10, step_time=step_time, speedup=10).clocked.latency.makespan_s == pytest.approx(0.110)


# ---- words and refusals ---------------------------------------------------------------------------------------------


def test_what_is_replayed_is_told(tmp_path: Path) -> None:
    some = Traffic(trace=trace_of(tmp_path, (0, 9, 1, [7])), source="requests of x", pool_bytes=1, speedup=2.0)
    assert traffic_in_words(some) == "replayed: 1 request of x, with prefix ids, arriving 2 times as fast"
    assert some.facts["prefix_ids"] == 1
    none = Traffic(trace=trace_of(tmp_path, (0, 9, 1, [])), source="requests of x", pool_bytes=1)
    assert traffic_in_words(none) == "replayed: 1 request of x, without prefix ids, so that nothing is hit"


def test_a_trace_without_prefix_ids_is_no_prefix_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE, encoding="utf-8")
    with pytest.raises(BadInput, match="no request of this burstgpt trace has prefix ids"):
        require_prefix_ids(read_trace(path))
    assert require_prefix_ids(trace_of(tmp_path, (0, 9, 1, [7]))).prefix_ids.tolist() == [7]

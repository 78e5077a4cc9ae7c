"""What a clocked replay is made of: the step-time model, quantiles, the timeline, arrivals, the calibration."""

import json
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pagedkv.bench import step_calibration
from pagedkv.bench.clocked_trace import ClockSettings, replay_clocked
from pagedkv.bench.failures import BadInput
from pagedkv.bench.latency_meter import LatencyMeter
from pagedkv.bench.meters import Stretch
from pagedkv.bench.quantiles import Quantiles
from pagedkv.bench.replay_arrivals import TrafficSettings, generated_arrivals, trace_arrivals
from pagedkv.bench.replay_queue import ReplaySettings
from pagedkv.bench.replay_scheduler import replay_scheduled
from pagedkv.bench.step_calibration import TimedStep, calibrate, fit
from pagedkv.bench.step_time import StepTime, read_step_time
from pagedkv.bench.timeline_meter import POINTS_MAX, TimelineMeter
from pagedkv.bench.trace_formats import TraceFormat
from pagedkv.bench.traces import Trace
from pagedkv.impl.requests import Limits


def trace_of(lengths: list[tuple[int, int]], arrival_s: list[float]) -> Trace:
    """Return a trace of (prompt, output) lengths without ids."""
    prompt, output = np.array(lengths, np.int64).reshape(-1, 2).T
    nothing = np.zeros(0, np.int64)
    starts = np.zeros(len(lengths) + 1, np.int64)
    return Trace(Path("by-hand"), TraceFormat("by hand"), np.array(arrival_s), prompt, output, nothing, starts)


# ---- step time ------------------------------------------------------------------------------------------------------


def test_a_step_time_is_what_its_coefficients_add_up_to() -> None:
    """0.5 + 0.25 * (100 + 8) + 2 * 8 + 4 * 3,500 / 1,000."""
    step_time = read_step_time("base=0.5,token=0.25,row=2,context=4")
    assert step_time == StepTime(base_ms=0.5, token_ms=0.25, row_ms=2, context_ms=4)
    assert step_time.step_ms(100, 8, 3500) == 0.5 + 27 + 16 + 14
    assert read_step_time(step_time.in_words()) == step_time
    assert read_step_time("row=3").step_ms(7, 2, 9) == 6


@pytest.mark.parametrize("facts", [{"base_ms": 2, "row_ms": 0.5}, {"step_time": {"base_ms": 2, "row_ms": 0.5}, "x": 1}])
def test_a_step_time_out_of_a_file(tmp_path: Path, facts: dict[str, object]) -> None:
    path = tmp_path / "step_time.json"
    path.write_text(json.dumps(facts))
    assert read_step_time(str(path)) == StepTime(base_ms=2, row_ms=0.5)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("base=-1", "base is -1.0, no time from 0 to 1e+09 ms"),
        ("base=1,token=-0.001", "token is -0.001"),
        ("base=nan", "base is nan"),
        ("base=inf", "base is inf"),
        ("base=1e10", "base is 10000000000.0"),
        ("base=", "'' is no number"),
        ("base=ten", "'ten' is no number"),
        ("base=1,base=2", "base is given twice"),
        ("speed=1", "no coefficient is called 'speed'"),
        ("=1", "no coefficient is called ''"),
        ("base=0", "a step would take no time"),
        ("", "cannot be read"),
        ("nowhere.json", "cannot be read"),
    ],
)
def test_coefficients_that_say_nothing_are_one_line(text: str, said: str) -> None:
    with pytest.raises(BadInput) as refused:
        read_step_time(text)
    assert said in str(refused.value)
    assert str(refused.value).startswith(f"--step-time {text}: ")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "no JSON"),
        (b"\xff", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[1]", "no JSON object"),
        (b'{"step_time": 3}', "no JSON object"),
        (b'{"base_ms": "3"}', "base is '3'"),
        (b'{"base_ms": true}', "base is True"),
        (b'{"base": 3}', "no coefficient is called 'base'"),
        (b"{}", "a step would take no time"),
    ],
)
def test_files_that_say_nothing_are_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "step_time.json"
    path.write_bytes(content)
    with pytest.raises(BadInput, match="--step-time") as refused:
        read_step_time(str(path))
    assert said in str(refused.value)


def test_a_fit_finds_the_coefficients_that_made_the_times() -> None:
    step_time = StepTime(base_ms=3, token_ms=0.02, row_ms=0.1, context_ms=0.5)
    sizes = [(0, 1, 100), (0, 32, 9000), (256, 0, 256), (200, 8, 4000), (100, 3, 20000), (0, 16, 100)]
    found = fit([TimedStep(*size, step_time.step_ms(*size)) for size in sizes])
    for name in ("base_ms", "token_ms", "row_ms", "context_ms"):
        assert getattr(found, name) == pytest.approx(getattr(step_time, name))


def test_no_coefficient_of_a_fit_is_negative() -> None:
    """Steps that get shorter with every row: the best without a negative term is a base alone."""
    found = fit([TimedStep(0, rows, 0, 10 - rows / 10) for rows in (1, 2, 4, 8)])
    assert (found.token_ms, found.row_ms, found.context_ms) == (0, 0, 0)
    assert 9.2 < found.base_ms < 9.9


def test_a_calibration_times_every_step_of_its_batches() -> None:
    """Two batches of at most 256 prompt tokens: a step of prompts and 15 of decode each."""
    calibration = calibrate(batches=((1, 16), (4, 64)), repeats=1)
    assert calibration.steps == 2 * 16
    assert calibration.step_time.step_ms(16, 0, 16) > 0
    assert calibration.median_error_percent >= 0


def test_of_every_step_the_shortest_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three runs of a step of one row: whatever else the machine did made two of them longer than 8 ms."""
    runs = [[TimedStep(0, 1, 0, took_ms)] for took_ms in (99.0, 9.0, 8.0, 700.0)]  # the first one is to warm up
    monkeypatch.setattr(step_calibration, "_run", lambda *_arguments: runs.pop(0))
    calibration = calibrate(batches=((1, 16),), repeats=3)
    assert calibration.step_time.step_ms(0, 1, 0) == pytest.approx(8)
    assert (calibration.steps, runs) == (1, [])


# ---- quantiles ------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.floats(0.001, 1e12, allow_nan=False), min_size=1, max_size=50),
    st.sampled_from([0.0, 0.01, 0.5, 0.9, 0.99, 1.0]),
)
def test_a_quantile_is_within_half_a_per_cent_of_the_time_of_that_rank(times: list[float], share: float) -> None:
    one_by_one, at_once = Quantiles(), Quantiles()
    for time_ms in times:
        one_by_one.add(time_ms)
    at_once.add_all(np.array(times))
    exact = sorted(times)[max(1, int(np.ceil(share * len(times)))) - 1]
    for quantiles in (one_by_one, at_once):
        assert quantiles.quantile(share) == pytest.approx(exact, rel=0.00501)
        assert quantiles.mean == pytest.approx(np.mean(times))
        assert (quantiles.count, quantiles.least, quantiles.most) == (len(times), min(times), max(times))


def test_quantiles_of_nothing_of_zeros_and_of_many_alike() -> None:
    nothing, zeros = Quantiles(), Quantiles()
    nothing.add_all(np.zeros(0))
    assert (nothing.quantile(0.5), nothing.mean, nothing.count) == (0, 0, 0)
    zeros.add(0.0, 9)
    zeros.add_all(np.array([0.0, 2e12]))
    assert (zeros.quantile(0.5), zeros.quantile(0.9), zeros.most) == (0, 0, 2e12)
    assert zeros.quantile(1.0) == pytest.approx(1e12, rel=0.01), "longer times than thirty years count as that"


def test_a_step_that_takes_no_time_gives_gaps_of_nothing() -> None:
    meter = LatencyMeter()
    meter.sampled(np.array([3, 200]), np.array([3, 200]), 5.0)
    meter.sampled(np.array([3, 70]), np.array([70]), 5.0)
    meter.sampled(np.array([70, 3, 200]), None, 9.0)
    assert (meter.itl.count, meter.itl.total, meter.itl.least) == (4, 0 + 4 + 4 + 4, 0)


# ---- timeline -------------------------------------------------------------------------------------------------------


def test_a_timeline_of_any_length_has_bounded_points_and_exact_averages() -> None:
    """5,000 steps of 2 ms, of which every tenth runs 30 and the others 10: 12 on average, in all points about that."""
    meter = TimelineMeter(100, 16)
    for step in range(5000):
        running = 30 if step % 10 == 0 else 10
        meter.passed(Stretch(100 + 2.0 * step, 102 + 2.0 * step, running, 3, held_blocks=20, tail_tokens=32))
    points, averages = meter.points(), meter.averages()
    assert POINTS_MAX // 2 <= len(points["begin_ms"]) <= POINTS_MAX
    assert averages["running"] == pytest.approx(12)
    assert (averages["waiting"], averages["cache_usage_percent"], averages["tail_waste_percent"]) == (3, 20, 10)
    durations = np.diff(np.append(points["begin_ms"], 10_100))
    assert points["begin_ms"][0] == 100
    assert (points["running"] * durations).sum() == pytest.approx(12 * 10_000)
    assert points["peak_running"].max() == 30
    assert durations.max() <= 3 * np.median(durations)


# ---- arrivals -------------------------------------------------------------------------------------------------------


def test_a_trace_arrives_in_order_with_ties_in_file_order() -> None:
    trace = trace_of([(4, 2), (5, 0), (6, 3)], [1.0, 0.0, 1.0])
    order = trace.by_arrival()
    arrivals = list(trace_arrivals(trace, order, trace.arrival_s[order] * 1000, TrafficSettings()))
    assert [arrival[:4] for arrival in arrivals] == [(1, 0, 5, 1), (0, 1000, 4, 2), (2, 1000, 6, 3)]
    assert {arrival.cancelled_after for arrival in arrivals} == {-1}


def test_generated_requests_have_lengths_of_the_trace_and_the_rate_that_is_asked_for() -> None:
    """10,000 gaps of 50 ms on average: their sum has a standard deviation of 1 %."""
    lengths = [(4, 2), (5, 0), (600, 3)]
    trace = trace_of(lengths, [0.0, 1.0, 2.0])
    arrivals = list(generated_arrivals(trace, 10_000, 20.0, TrafficSettings(seed=3)))
    assert [arrival.request for arrival in arrivals] == list(range(10_000))
    times = np.array([arrival.at for arrival in arrivals])
    assert (np.diff(times) >= 0).all()
    assert times[-1] == pytest.approx(500_000, rel=0.04)
    assert np.diff(times).std() == pytest.approx(50, rel=0.1)
    drawn = [(arrival.prompt_tokens, arrival.outputs) for arrival in arrivals]
    for prompt, output in lengths:
        assert drawn.count((prompt, max(output, 1))) == pytest.approx(3333, rel=0.06)
    assert arrivals == list(generated_arrivals(trace, 10_000, 20.0, TrafficSettings(seed=3)))
    assert arrivals != list(generated_arrivals(trace, 10_000, 20.0, TrafficSettings(seed=4)))


def test_generated_requests_are_made_as_they_are_asked_for() -> None:
    endless = generated_arrivals(trace_of([(4, 2)], [0.0]), 1 << 60, 1.0, TrafficSettings())
    assert [arrival.request for arrival in islice(endless, 3)] == [0, 1, 2]


@pytest.mark.parametrize("blocks", [9, 14, 60])
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_where_all_are_there_at_once_a_clock_changes_nothing(policy: Literal["fcfs", "priority"], blocks: int) -> None:
    """The replay whose clock counts steps and this one do the same, so they count the same."""
    random = np.random.default_rng(blocks)
    lengths = [(int(prompt), int(output)) for prompt, output in random.integers(0, 20, (40, 2))]
    trace, settings = trace_of(lengths, [0.0] * 40), ReplaySettings(block_size=4, blocks=blocks)
    limits, traffic = Limits(max_tokens_per_step=30, max_running=8, policy=policy), TrafficSettings(seed=2)
    counted = replay_scheduled(trace, settings, limits, traffic)
    clocked = replay_clocked(trace, settings, limits, traffic, ClockSettings(step_time=StepTime(base_ms=7)))
    assert clocked.outcome.scheduled.counts == counted.counts
    assert clocked.latency.makespan_s == pytest.approx(0.007 * counted.counts.steps)
    assert counted.counts.preemptions or blocks == 60

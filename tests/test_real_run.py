"""A measured run read, replayed and fitted: files by hand, sums by hand, and an engine whose step times are known."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pagedkv.bench.failures import BadInput
from pagedkv.bench.least_squares import non_negative_least_squares
from pagedkv.bench.real_run import EngineSettings, check_same_requests, read_real_run
from pagedkv.bench.real_run_command import fit_and_compare, run_settings
from pagedkv.bench.real_run_replay import ReplayedRun, RunSettings, replay_run
from pagedkv.bench.real_run_report import LIMITS_PERCENT, MAKESPAN, PEAK_RUNNING, SECOND_TPOT, halves
from pagedkv.bench.scheduler_report import SchedulerCounts
from pagedkv.bench.step_time import StepTime
from pagedkv.bench.step_time_fit import StepTimeFit, fit_step_time, lived_through
from pagedkv.bench.traces import Trace, read_trace
from pagedkv.impl.requests import Limits

from real_data import SHAREGPT, real_data
from real_run_files import KNOWN, REQUESTS, SETTINGS, MiniatureRun, write_run

RTX_4090 = "vllm_measured_RTX4090_Llama-3.1-8B.meta.json"
RTX_PRO_6000 = "vllm_measured_RTXPRO6000_Llama-3.1-8B.meta.json"


# ---- reading --------------------------------------------------------------------------------------------------------


def _write_three(folder: Path) -> Path:
    """Write a run of two requests; its wall clock is 970 s ahead of the engine's, and request 1 waited 2 s less."""
    meta = {
        "num_requests": 2,
        "vllm_version": "0.1",
        "engine_kwargs": {"max_num_seqs": 8, "max_num_batched_tokens": 64},
        "kv_cache": {"num_gpu_blocks": 11, "block_size": 4, "enable_prefix_caching": False},
        "hardware": {"device_name": "abacus"},
    }
    rows = [(1000.0, 33.0, 33.5, 34.0, 40.0, 5, 7), (1001.0, 32.0, 35.0, 36.0, 36.0, 9, 1)]
    keys = ("arrival_time", "queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts", "input_toks", "output_toks")
    (folder / "a.meta.json").write_text(json.dumps(meta), encoding="utf-8")
    lines = [json.dumps(dict(zip(keys, row, strict=True))) for row in rows]
    (folder / "a.requests.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (folder / "a.timeseries.csv").write_text("t,running,x,waiting,kv_cache_pct\n1,2,0,3,50\n2,0,0,0,0.0\n", "utf-8")
    return folder / "a.meta.json"


def test_times_are_seconds_after_the_first_arrival(tmp_path: Path) -> None:
    measured = read_real_run(_write_three(tmp_path))
    assert (measured.device, measured.engine) == ("abacus", "vLLM 0.1")
    assert measured.settings == EngineSettings(
        max_tokens_per_step=64, max_running=8, blocks=10, block_size=4, prefix_cache=False
    )
    # Request 1 was queued at once, at 32 of the engine's clock, which is its 1001 of the wall clock: zero is 31.
    assert measured.arrival_s.tolist() == [0, 1]
    assert measured.admitted_s.tolist() == [2.5, 4]
    assert measured.first_token_s.tolist() == [3, 5]
    assert measured.last_token_s.tolist() == [9, 5]
    assert measured.decode_s.tolist() == [6, 0]
    assert (measured.prompt_tokens.tolist(), measured.output_tokens.tolist()) == ([5, 9], [7, 1])
    ticks = measured.ticks
    assert ticks.usage_percent is not None
    columns = (ticks.at_s, ticks.running, ticks.waiting, ticks.usage_percent)
    assert [column.tolist() for column in columns] == [[1, 2], [2, 0], [3, 0], [50, 0]]


def test_what_the_files_do_not_say_is_none(tmp_path: Path) -> None:
    path = _write_three(tmp_path)
    path.write_text('{"engine_kwargs": {}}', encoding="utf-8")
    (tmp_path / "a.timeseries.csv").write_text("t,running,waiting,kv_cache_pct\n1,2,3,0.0\n", encoding="utf-8")
    measured = read_real_run(path)
    assert set(asdict(measured.settings).values()) == {None}
    assert (measured.device, measured.ticks.usage_percent) == ("a", None)


META, REQUEST_LINES, TICK_LINES = "meta.json", "requests.jsonl", "timeseries.csv"
HOSTILE = [
    (META, None, "cannot be read"),
    (REQUEST_LINES, None, "cannot be read"),
    (TICK_LINES, None, "cannot be read"),
    (META, "{", "no JSON"),
    (META, "[]", "no JSON object with engine_kwargs"),
    (META, '{"model": "x"}', "no JSON object with engine_kwargs"),
    (META, '{"engine_kwargs": {"max_num_seqs": "many"}}', "max_num_seqs is 'many'"),
    (META, '{"engine_kwargs": {"max_num_seqs": true}}', "max_num_seqs is True"),
    (META, '{"engine_kwargs": {"data_parallel_size": 2}}', "data_parallel_size is 2"),
    (META, '{"engine_kwargs": {}, "kv_cache": 3}', "kv_cache is 3"),
    (META, '{"engine_kwargs": {}, "kv_cache": {"num_gpu_blocks": 1}}', "num_gpu_blocks is 1"),
    (META, '{"engine_kwargs": {}, "kv_cache": {"enable_prefix_caching": 1}}', "enable_prefix_caching is 1"),
    (META, '{"engine_kwargs": {}, "num_requests": 3}', "num_requests is 3, and beside it are 2"),
    (REQUEST_LINES, "", "the file is empty"),
    (REQUEST_LINES, "7\n", "no JSON object"),
    (REQUEST_LINES, "{\n", "no JSON"),
    (REQUEST_LINES, '{"arrival_time": 1}\n', "queued_ts is None"),
    (REQUEST_LINES, '{"arrival_time": NaN}\n', "arrival_time is nan"),
    (TICK_LINES, "", "the file is empty"),
    (TICK_LINES, "t,running,waiting\n", "no column kv_cache_pct"),
    (TICK_LINES, "t,running,waiting,kv_cache_pct\n", "a header and no ticks"),
    (TICK_LINES, "t,running,waiting,kv_cache_pct\n1,2\n", "2 columns, the header has 4"),
    (TICK_LINES, "t,running,waiting,kv_cache_pct\n1,2,3,x\n", "kv_cache_pct is 'x'"),
    (TICK_LINES, "t,running,waiting,kv_cache_pct\n1,2,3,1_0\n", "kv_cache_pct is '1_0'"),
    (TICK_LINES, "t,running,waiting,kv_cache_pct\n1,2,3,4\n1,2,3,4\n", "the time 1 does not come after 1"),
]


@pytest.mark.parametrize(("name", "content", "says"), HOSTILE)
def test_a_file_that_is_wrong_is_named_with_what_is_wrong(
    tmp_path: Path, name: str, content: str | None, says: str
) -> None:
    meta = _write_three(tmp_path)
    file = tmp_path / f"a.{name}"
    if content is None:
        file.unlink()
    else:
        file.write_text(content, encoding="utf-8")
    with pytest.raises(BadInput) as caught:
        read_real_run(meta)
    assert str(file) in str(caught.value)
    assert says in str(caught.value)


def test_times_out_of_order_and_lengths_that_are_none(tmp_path: Path) -> None:
    meta = _write_three(tmp_path)
    lines = (tmp_path / "a.requests.jsonl").read_text(encoding="utf-8")
    for old, new, says in (
        ('"last_token_ts": 40.0', '"last_token_ts": 33.9', "not in the order of queued_ts, scheduled_ts"),
        ('"output_toks": 7', '"output_toks": 0', "output_toks is 0, no count of tokens"),
        ('"input_toks": 5', '"input_toks": 5.5', "input_toks is 5.5, no count of tokens"),
    ):
        assert old in lines
        (tmp_path / "a.requests.jsonl").write_text(lines.replace(old, new), encoding="utf-8")
        with pytest.raises(BadInput, match=says) as caught:
            read_real_run(meta)
        assert caught.value.where.endswith("a.requests.jsonl:1")


def test_the_name_of_the_meta_file_leads_to_the_others(tmp_path: Path) -> None:
    meta = _write_three(tmp_path)
    for name in (META, REQUEST_LINES, TICK_LINES):
        (tmp_path / f"a.{name}").rename(tmp_path / name)
    assert len(read_real_run(tmp_path / META)) == 2
    with pytest.raises(BadInput, match=r"does not end in meta\.json"):
        read_real_run(meta.with_name("a.requests.jsonl"))


def _trace(folder: Path, lengths: list[tuple[int, int]]) -> Trace:
    path = folder / "trace.jsonl"
    rows = [{"timestamp": 0, "input_length": prompt, "output_length": output} for prompt, output in lengths]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return read_trace(path)


def test_another_trace_is_refused(tmp_path: Path) -> None:
    measured = read_real_run(_write_three(tmp_path))
    check_same_requests(measured, _trace(tmp_path, [(5, 7), (9, 1)]))
    for lengths, says in (
        ([(5, 7)], "2 measured requests, and 1 in the trace"),
        ([(5, 7), (8, 1)], "request 1: 9 prompt tokens were measured, 8 are in the trace (requests that differ: 1)"),
        ([(5, 6), (9, 2)], "request 0: 7 output tokens were measured, 6 are in the trace (requests that differ: 2)"),
    ):
        with pytest.raises(BadInput) as caught:
            check_same_requests(measured, _trace(tmp_path, lengths))
        assert says in str(caught.value)


# ---- replaying ------------------------------------------------------------------------------------------------------


def test_a_replay_keeps_its_steps_and_every_request(tmp_path: Path) -> None:
    """Two requests at once, of 3 and 2 prompt tokens, 3 and 1 outputs; a step is 10 ms and 1 ms a token."""
    limits = Limits(max_tokens_per_step=8, max_running=4)
    settings = RunSettings(blocks=4, block_size=4, limits=limits)
    replayed = replay_run(_trace(tmp_path, [(3, 3), (2, 1)]), settings, StepTime(base_ms=10, token_ms=1))
    # Steps: both prompts (15 ms), then one row twice (11 ms each). Positions read: 3 + 2, 4, 5; blocks: 2, 1, 2.
    computed = [[0, 15, 2, 0, 2, 5, 0, 5], [15, 26, 1, 0, 1, 0, 1, 4], [26, 37, 1, 0, 2, 0, 1, 5]]
    assert replayed.steps.tolist() == computed
    assert replayed.first_token_s.tolist() == pytest.approx([0.015, 0.015])
    assert replayed.last_token_s.tolist() == pytest.approx([0.037, 0.015])
    running, waiting, usage = replayed.at(np.array([0.0, 0.0149, 0.015, 0.03, 0.037, 1.0]))
    assert running.tolist() == [2, 2, 1, 1, 0, 0]
    assert waiting.tolist() == [0, 0, 0, 0, 0, 0]
    assert usage.tolist() == [50, 50, 25, 50, 0, 0]


def test_between_steps_there_is_nothing() -> None:
    steps = np.array([[0, 10, 3, 1, 2, 1, 1, 1], [50, 60, 2, 0, 4, 1, 1, 1]], np.float64)
    nothing = np.zeros(0)
    replayed = ReplayedRun(nothing, nothing, nothing, nothing, steps, 4, SchedulerCounts())
    running, waiting, usage = replayed.at(np.array([0.009, 0.03, 0.05, 0.06]))
    assert (running.tolist(), waiting.tolist(), usage.tolist()) == ([3, 0, 2, 0], [1, 0, 0, 0], [50, 0, 100, 0])


def test_a_request_that_never_fits_ends_the_comparison(tmp_path: Path) -> None:
    settings = RunSettings(blocks=1, block_size=4, limits=Limits())
    with pytest.raises(BadInput, match=r"request 1 is refused \(TooLong\) with 1 block"):
        replay_run(_trace(tmp_path, [(3, 1), (30, 1)]), settings, KNOWN)


# ---- fitting --------------------------------------------------------------------------------------------------------


def test_what_a_request_lived_through_is_summed_up() -> None:
    """Three steps of 10, 20 and 30 ms with 5 ms of nothing between the last two."""
    steps = np.array([[0, 10, 1, 0, 1, 7, 0, 7], [10, 30, 1, 0, 1, 0, 2, 9_000], [35, 65, 1, 0, 1, 4, 1, 500]], float)
    times = np.array([0.010, 0.030]), np.array([0.030, 0.065])
    replayed = ReplayedRun(np.zeros(2), np.zeros(2), *times, steps, 1, SchedulerCounts())
    sums, idle_ms = lived_through(replayed, np.array([0, 1]))
    assert sums.tolist() == [[1, 2, 2, 9.0], [1, 5, 1, 0.5]]
    assert idle_ms.tolist() == pytest.approx([0, 5])


@given(st.integers(0, 1 << 20), st.integers(1, 4))
def test_non_negative_least_squares_is_the_optimum(seed: int, columns: int) -> None:
    """By its conditions (Karush, Kuhn, Tucker): no gradient where it is positive, none that leads up where it is 0."""
    random = np.random.default_rng(seed)
    design, target = random.normal(size=(9, columns)) * (1, 30, 0.01, 5)[:columns], random.normal(size=9)
    solution = non_negative_least_squares(design, target)
    assert (solution >= 0).all()
    gradient = design.T @ (design @ solution - target) / np.linalg.norm(design, axis=0)
    assert np.abs(gradient[solution > 0]).max(initial=0) < 1e-9
    assert (gradient[solution == 0] > -1e-9).all()


def _fit(miniature: MiniatureRun) -> StepTimeFit:
    trace, measured = read_trace(miniature.trace), read_real_run(miniature.meta)
    first_half, _ = halves(trace.arrival_s)
    return fit_step_time(trace, SETTINGS, first_half, 1000 * measured.decode_s[first_half])


@pytest.mark.parametrize("known", [KNOWN, StepTime(base_ms=20.0, token_ms=0.1)])
def test_a_known_engine_is_found_again(tmp_path: Path, known: StepTime) -> None:
    miniature = write_run(tmp_path, known)
    assert miniature.engine.counts.preemptions > 10
    fit = _fit(miniature)
    assert asdict(fit.best.step_time) == pytest.approx(asdict(known), rel=1e-4, abs=1e-6)
    assert fit.best.error < 1e-5
    assert fit.rounds[0].error > 1e-2  # it had something to find
    np.testing.assert_allclose(fit.best.replayed.last_token_s, miniature.engine.last_token_s, rtol=1e-5)


def _alter(miniature: MiniatureRun, requests: range) -> None:
    """Put other times into some requests of the run, and other ticks into all of it."""
    path = miniature.meta.with_name("tiny.requests.jsonl")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for number in requests:
        rows[number]["arrival_time"] += 0.25
        for place, name in enumerate(("scheduled_ts", "first_token_ts", "last_token_ts")):
            rows[number][name] += 3.0 + place * number
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    path.with_name("tiny.timeseries.csv").write_text("t,running,waiting,kv_cache_pct\n1,9,9,9\n", encoding="utf-8")


def test_nothing_measured_of_the_second_half_enters_the_fit(tmp_path: Path) -> None:
    """Other times there leave the coefficients equal to the last bit; in one request of the first half they do not."""
    miniature = write_run(tmp_path)
    before = _fit(miniature)
    _alter(miniature, range(REQUESTS // 2, REQUESTS))
    assert [each.step_time for each in _fit(miniature).rounds] == [each.step_time for each in before.rounds]
    _alter(miniature, range(REQUESTS // 2 - 1, REQUESTS // 2))
    assert _fit(miniature).best.step_time != before.best.step_time


def test_too_few_requests_cannot_be_fitted(tmp_path: Path) -> None:
    trace = _trace(tmp_path, [(3, 1)] * 20 + [(3, 2)] * 7)
    with pytest.raises(BadInput, match="7 requests with a decode time to be fitted, at least 8 are needed"):
        fit_step_time(trace, SETTINGS, np.arange(27), np.full(27, 5.0))


# ---- real runs ------------------------------------------------------------------------------------------------------


def test_the_rtx_4090_run_is_what_is_known_of_it() -> None:
    measured = read_real_run(real_data(RTX_4090))
    check_same_requests(measured, read_trace(real_data(SHAREGPT)))
    assert measured.settings == EngineSettings(
        max_tokens_per_step=2048, max_running=256, blocks=2587, block_size=16, prefix_cache=True
    )
    tpot_ms = 1000 * measured.decode_s / (measured.output_tokens - 1)
    assert np.percentile(tpot_ms, (50, 90, 99)).round(2).tolist() == [30.76, 38.13, 56.00]
    ticks = measured.ticks
    assert ticks.usage_percent is not None
    assert (ticks.running.max(), ticks.usage_percent.max()) == (49, 100)


def test_the_rtx_pro_6000_run_has_no_pool_and_no_usage() -> None:
    measured = read_real_run(real_data(RTX_PRO_6000))
    check_same_requests(measured, read_trace(real_data(SHAREGPT)))
    settings = measured.settings
    assert (settings.blocks, settings.block_size, settings.prefix_cache) == (None, None, None)
    assert (settings.max_running, measured.ticks.usage_percent, measured.ticks.running.max()) == (128, None, 128)


@pytest.mark.parametrize("meta", [RTX_4090, pytest.param(RTX_PRO_6000, marks=pytest.mark.deep)])
def test_the_replay_of_a_real_run_is_within_its_limits(meta: str) -> None:
    """Fitted on the first half alone: peak running, TPOT of the second half, makespan."""
    measured, trace = read_real_run(real_data(meta)), read_trace(real_data(SHAREGPT))
    settings, assumptions = run_settings(measured, trace, {})
    figures = fit_and_compare(measured, trace, settings, assumptions, None).figures
    assert set(LIMITS_PERCENT) == {PEAK_RUNNING, SECOND_TPOT, MAKESPAN}
    for key, limit in ((PEAK_RUNNING, 10), (SECOND_TPOT, 15), (MAKESPAN, 15)):
        figure = figures[key]
        assert abs(figure.ours / figure.measured - 1) <= limit / 100
        assert (LIMITS_PERCENT[key], figure.holds) == (limit, True)

"""`pagedkv replay --step-time` as a user meets it: figures by hand, what is printed, options at odds."""

import json
from pathlib import Path

import pytest
from pagedkv.bench.command_line import run

from real_data import SHAREGPT, real_data
from replayed_traces import replayed, written

Captured = pytest.CaptureFixture[str]
CLOCKED = ("--policy", "fcfs", "--step-time", "base=10")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Three requests, out of order: 9 + 1 tokens at 2 s, and two at 1 s that begin with the same two blocks of 4."""
    return written(tmp_path / "trace.jsonl", [(2000, 9, 1, [4, 5, 6]), (1000, 8, 2, [1, 2]), (1000, 12, 2, [1, 2, 3])])


def test_json_has_the_settings_and_the_figures(trace: Path) -> None:
    """One at a time: 10 and 20 ms, then 30 and 40, then 1,010. The second request finds two blocks, 8 tokens."""
    limits = ("--ttft-ms", "20", "--tpot-ms", "15")
    facts = replayed(trace, *CLOCKED, "--max-running", "1", *limits)
    settings = {
        "step_time": {"base_ms": 10, "token_ms": 0, "row_ms": 0, "context_ms": 0},
        "speedup": 1,
        "generate": None,
        "latency_limits": {"ttft_ms": 20, "tpot_ms": 15},
    }
    assert {key: facts[key] for key in settings} == settings
    figures = {"requests": 3, "finished": 3, "hit_tokens": 8, "steps": 5, "sequence_steps": 5, "good_requests": 2}
    assert {key: facts[key] for key in figures} == figures
    assert facts["makespan_s"] == pytest.approx(1.010)
    assert facts["goodput_per_s"] == pytest.approx(2 / 1.010)
    assert facts["ttft_ms"] == pytest.approx({"count": 3, "mean": 50 / 3, "p50": 10, "p90": 30, "p99": 30, "max": 30})
    assert facts["tpot_ms"] == {"count": 2, "mean": 10, "p50": 10, "p90": 10, "p99": 10, "max": 10}
    assert facts["peak_waiting"] == 1
    timeline = facts["timeline"]
    assert isinstance(timeline, dict)
    assert timeline["begin_ms"] == [0, 10, 20, 30, 40, 1000]
    assert timeline["running"] == [1, 1, 1, 1, 0, 1]


def test_speedup_lets_requests_arrive_so_many_times_as_fast(trace: Path) -> None:
    """50 times: the last arrives at 20 ms, and waits for the other two."""
    facts = replayed(trace, *CLOCKED, "--max-running", "1", "--speedup", "50")
    assert facts["makespan_s"] == pytest.approx(0.050)
    queueing = facts["queueing_ms"]
    assert isinstance(queueing, dict)
    assert (queueing["count"], queueing["max"]) == (3, 20)


def test_overload_is_said_and_long_times_are_in_seconds(capsys: Captured, tmp_path: Path) -> None:
    """101 requests in 1,000 s; one runs at a time and takes 20 s: 50 are done as the last comes, one has its turn.

    So 50 of 101 wait then; and the last waits for 100 before it, 20 s each, of which 1,000 s are over as it comes.
    """
    trace, page = tmp_path / "many.jsonl", tmp_path / "page.html"
    options = ("--policy", "fcfs", "--max-running", "1", "--step-time", "base=10000")
    written(trace, [(10_000 * at, 4, 2, []) for at in range(101)])
    facts = replayed(trace, *options, "--html", str(page))
    assert (facts["waiting_at_last_arrival"], facts["arrivals_per_s"]) == (50, pytest.approx(0.1))
    assert facts["admissions_per_s"] == pytest.approx(0.1 * 51 / 101)
    said = "Overloaded: 0.10 requests a second arrive, 0.05 are admitted; 50 of 101 wait as the last one comes"
    out = capsys.readouterr().out
    assert said in " ".join(out.split())
    assert said in page.read_text(encoding="utf-8")
    (queueing,) = [line.split("│") for line in out.splitlines() if line.startswith("│ queueing, s")]
    assert queueing[-2].strip() == "1,000.00"
    replayed(trace, *options, "--requests", "99")
    assert "Overloaded" not in capsys.readouterr().out, "too few to speak of a rate"
    replayed(trace, "--policy", "fcfs", "--max-running", "1", "--step-time", "base=5000")
    assert "Overloaded" not in capsys.readouterr().out, "each is done as the next one comes"


def test_the_table_says_the_same(capsys: Captured, trace: Path) -> None:
    replayed(trace, *CLOCKED, "--ttft-ms", "1")
    output = capsys.readouterr().out
    assert "trace.jsonl: sharegpt trace, engine impl, policy fcfs" in output
    assert "no request was within TTFT 1 ms" in output
    rows = {line.split("│")[1].strip(): line.split("│") for line in output.splitlines() if line.startswith("│")}
    assert rows["makespan_s"][2].strip() == "1.010"
    assert rows["goodput_per_s"][2].strip() == "0.0000"
    assert [cell.strip() for cell in rows["tpot"][2:-1]] == ["2", "10.00", "10.00", "10.00", "10.00", "10.00"]
    assert [cell.strip() for cell in rows["itl"][2:4]] == ["2", "10.00"]


def test_a_latency_that_no_request_has_is_no_figure(capsys: Captured, trace: Path) -> None:
    facts = replayed(trace, *CLOCKED, "--prefill-only")
    assert facts["tpot_ms"] is None
    rows = [line.split("│") for line in capsys.readouterr().out.splitlines() if line.startswith("│ tpot")]
    assert [cell.strip() for cell in rows[0][2:-1]] == ["0", "-", "-", "-", "-", "-"]


def test_generated_traffic(trace: Path) -> None:
    """500 requests at 100 a second: the same for one seed, and made of the three lengths, of which none is hit."""
    options = (*CLOCKED, "--generate", "500", "--rate", "50", "--speedup", "2", "--seed", "5")
    facts = replayed(trace, *options)
    assert (facts["finished"], facts["hit_tokens"], facts["generate"], facts["requests_per_s"]) == (500, 0, 500, 50)
    assert facts["makespan_s"] == pytest.approx(5, rel=0.2)
    assert 500 * 8 < int(str(facts["prompt_tokens"])) < 500 * 12
    times = {"seconds", "cpu_seconds", "sequence_steps_per_s", "sequence_steps_per_cpu_s"}
    again = replayed(trace, *options)
    assert {key: again[key] for key in facts if key not in times} == {
        key: facts[key] for key in facts if key not in times
    }


def test_the_journal_of_a_clocked_replay_audits(trace: Path, tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    limits = ("--blocks", "8", "--max-tokens-per-step", "5", "--max-running", "2", "--samples", "2")
    replayed(trace, *CLOCKED, *limits, "--steps-ahead", "2", "--speedup", "100", "--journal", str(journal))
    assert run(["compare", str(journal)]) == 0


def test_hits_of_a_real_trace_are_those_that_are_known(tmp_path: Path) -> None:
    """ShareGPT, one request after the other, each with its prompt alone: 19,520 tokens in full blocks of 16."""
    result = tmp_path / "replay.json"
    alone = ("--max-running", "1", "--max-tokens-per-step", "100000", "--prefill-only", "--blocks", "40000")
    assert run(["replay", str(real_data(SHAREGPT)), *CLOCKED, *alone, "--json", str(result)]) == 0
    facts = json.loads(result.read_text(encoding="utf-8"))
    assert (facts["hit_tokens"], facts["prompt_tokens"], facts["steps"]) == (19_520, 257_239, 300)


def test_zero_lengths_are_refused_or_end_with_their_prompt(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("Timestamp,Request tokens,Response tokens\n5,0,0\n5,3,0\n4,0,7\n")
    facts = replayed(path, *CLOCKED)
    assert (facts["refused"], facts["finished"], facts["sequence_steps"]) == (2, 1, 1)
    assert facts["refused_requests"] == [{"request": 2, "reason": "Empty"}, {"request": 0, "reason": "Empty"}]


def test_a_calibration_is_printed_and_saved(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, trace: Path, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pagedkv.bench.step_calibration.calibrate.__defaults__", (((1, 16),), 1, lambda _text: None))
    facts = replayed(trace, "--policy", "fcfs", "--step-time", "calibrate")
    saved = json.loads(Path("pagedkv-out/replay/step_time.json").read_text())
    assert facts["step_time"] == saved["step_time"]
    assert "saved in pagedkv-out/replay/step_time.json" in capsys.readouterr().out
    again = replayed(trace, "--policy", "fcfs", "--step-time", "pagedkv-out/replay/step_time.json")
    assert again["ttft_ms"] == facts["ttft_ms"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--step-time", "base=10"], "--step-time base=10: the policy reserve has no clock"),
        (["--policy", "fcfs", "--speedup", "2"], "--speedup: only a replay on simulated time has that"),
        (["--policy", "fcfs", "--ttft-ms", "2"], "--ttft-ms: only a replay on simulated time"),
        (["--generate", "5"], "--generate: only a replay on simulated time"),
        ([*CLOCKED, "--step-ms", "3"], "--step-ms 3: --step-time says how long a step lasts"),
        ([*CLOCKED, "--rate", "3"], "--rate: a trace has arrivals of its own"),
        ([*CLOCKED, "--speedup", "0"], "--speedup"),
        ([*CLOCKED, "--speedup", "-1"], "--speedup"),
        ([*CLOCKED, "--speedup", "nan"], "--speedup"),
        ([*CLOCKED, "--tpot-ms", "-1"], "--tpot-ms"),
        ([*CLOCKED, "--ttft-ms", "nan"], "--ttft-ms"),
        ([*CLOCKED, "--generate", "0"], "--generate"),
        ([*CLOCKED, "--generate", "5", "--rate", "0"], "--rate"),
        ([*CLOCKED, "--requests", "1", "--generate", "5"], "so it has no rate; give --rate"),
        ([*CLOCKED, "--samples", "3", "--max-running", "2"], "--samples: 3 samples a request"),
        (["--policy", "fcfs", "--step-time", "base=-10"], "base is -10.0, no time from 0"),
        (["--policy", "fcfs", "--step-time", "absent.json"], "--step-time absent.json: cannot be read"),
    ],
    ids=" ".join,
)
def test_options_that_say_nothing_together_are_one_line(
    capsys: Captured, trace: Path, options: list[str], said: str
) -> None:
    assert run(["replay", str(trace), *options]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert said in output.err
    assert output.err.count("\n") == 1

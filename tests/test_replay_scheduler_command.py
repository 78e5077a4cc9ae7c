"""`pagedkv replay --policy` as a user meets it: what it prints and writes, and options that say nothing together."""

from pathlib import Path

import pytest
from pagedkv.bench.command_line import run

from replayed_traces import replayed, written

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Three requests of 8, 12 and 9 prompt tokens: the first two begin with the same two blocks of 4."""
    return written(tmp_path / "trace.jsonl", [(0, 8, 2, [1, 2]), (0, 12, 2, [1, 2, 3]), (1000, 9, 1, [4, 5, 6])])


def test_json_has_the_settings_and_the_figures(trace: Path) -> None:
    facts = replayed(trace, "--policy", "fcfs", "--max-running", "1", "--seed", "7")
    settings = {
        "policy": "fcfs",
        "engine": "impl",
        "trace_format": "sharegpt",
        "max_running": 1,
        "max_tokens_per_step": 2048,
        "steps_ahead": 1,
        "watermark_blocks": 0,
        "prefix_cache": True,
        "samples": 1,
        "cancel_rate": 0.0,
        "prefill_only": False,
        "seed": 7,
    }
    assert {key: facts[key] for key in settings} == settings
    figures = {"finished": 3, "hit_tokens": 8, "launched_tokens": 9 + 13 + 9 - 8, "preemptions": 0, "cancelled": 0}
    assert {key: facts[key] for key in figures} == figures


def test_every_option_arrives(trace: Path) -> None:
    options = {
        "--max-running": "5",
        "--max-tokens-per-step": "3",
        "--steps-ahead": "2",
        "--samples": "2",
        "--cancel-rate": "1",
    }
    given = [word for option in options.items() for word in option]
    facts = replayed(trace, "--policy", "priority", *given, "--prefill-only", "--no-prefix-cache")
    assert [str(facts[option[2:].replace("-", "_")]) for option in options] == ["5", "3", "2", "2", "1.0"]
    assert (facts["prefill_only"], facts["prefix_cache"], facts["policy"]) == (True, False, "priority")


def test_the_table_says_the_same(capsys: Captured, trace: Path) -> None:
    facts = replayed(trace, "--policy", "fcfs", "--max-running", "1")
    output = capsys.readouterr().out
    assert "trace.jsonl: sharegpt trace, engine impl, policy fcfs" in output
    rows = {
        line.split()[1]: line.split()[3]
        for line in output.splitlines()
        if line.startswith("│") and line.split()[1] != "│"
    }
    for figure in ("requests", "finished", "steps", "launched_tokens", "hit_tokens", "peak_blocks", "peak_running"):
        assert rows[figure] == str(facts[figure])


def test_the_policy_reserve_is_the_default_and_what_it_was(trace: Path) -> None:
    facts = replayed(trace)
    assert (facts["policy"], facts["logical_tokens"], facts["tail_waste"]) == ("reserve", 9 + 13 + 9, 9)


def test_the_journal_of_a_scheduled_replay_audits(trace: Path, tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    limits = [
        "--blocks",
        "8",
        "--max-tokens-per-step",
        "5",
        "--max-running",
        "2",
        "--steps-ahead",
        "2",
        "--samples",
        "2",
    ]
    facts = replayed(trace, "--policy", "fcfs", *limits, "--journal", str(journal))
    assert facts["hit_tokens"]
    assert run(["compare", str(journal)]) == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--steps-ahead", "2"], "--steps-ahead: the policy reserve schedules nothing"),
        (["--no-prefix-cache"], "--prefix-cache: the policy reserve"),
        (["--prefill-only"], "--prefill-only: the policy reserve"),
        (["--policy", "fcfs", "--engine", "spec"], "--engine spec: only the implementation schedules"),
        (["--policy", "fcfs", "--final-length", "prompt+output"], "a scheduler never writes the last token"),
        (["--policy", "fcfs", "--samples", "3", "--max-running", "2"], "--samples: 3 samples a request"),
        (["--policy", "lottery"], "lottery"),
        (["--policy", "fcfs", "--max-running", "0"], "--max-running"),
        (["--policy", "fcfs", "--max-tokens-per-step", "0"], "--max-tokens-per-step"),
        (["--policy", "fcfs", "--steps-ahead", "3"], "--steps-ahead"),
        (["--policy", "fcfs", "--cancel-rate", "1.5"], "--cancel-rate"),
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

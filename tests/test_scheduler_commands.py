"""The scheduler on the command line: `explore`, `fuzz` and `verify`, a counterexample kept and run again, bad input."""

import json
from pathlib import Path
from typing import Any

import pytest
from pagedkv.bench import scheduler_search, verify_command
from pagedkv.bench.command_line import run
from pagedkv.bench.scheduler_adapter import ImplementedScheduler
from pagedkv.spec.requests import Request
from pagedkv.spec.scheduler_alphabet import Cancel, Complete, Drain, Fail, Preempt, Schedule, Submit, from_json, to_json

from scheduler_faults import HoldAndWait, Overtaking
from searching import Captured, refused

ONE = ("--scheduler", "--workers", "1")
SMALL = ("explore", *ONE, "--blocks", "2", "--sequences", "1")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing that a command leaves lie in the checkout."""
    monkeypatch.chdir(tmp_path)


def facts(exit_code: int, *arguments: str) -> dict[str, Any]:
    """Run a command with --json and return what it wrote."""
    assert run([*arguments, "--json", "facts.json"]) == exit_code
    read: dict[str, Any] = json.loads(Path("facts.json").read_text(encoding="utf-8"))
    return read


def test_explore_walks_requests(capsys: Captured) -> None:
    for target in ("impl", "spec"):
        told = facts(0, "explore", *ONE, "--blocks", "2", "--target", target)
        assert told["complete"]
        assert told["holes"] == []
        assert told["fired"]["preemption"] > 0
    assert "beside" not in capsys.readouterr().err


def test_explore_says_what_it_did_not_meet() -> None:
    """A request alone is never preempted by another."""
    assert facts(1, *SMALL)["holes"] == ["preemption never fired"]


def test_explore_shares_prefixes() -> None:
    told = facts(0, "explore", *ONE, "--sharing", "--seconds", "0.1")
    assert not told["complete"]
    assert "prefix cache on" in told["scope"]


def test_fuzz_runs_requests() -> None:
    told = facts(0, "fuzz", *ONE, "--runs", "3")
    assert told["runs"] == 3
    assert told["lock_step"]
    assert told["fired"]["admission"] > 0
    assert told["operations"] >= 900


def test_fuzz_takes_a_size() -> None:
    assert facts(0, "fuzz", *ONE, "--runs", "1", "--blocks", "3")["runs"] == 1


@pytest.mark.parametrize(
    "command", [("explore", *ONE), ("fuzz", *ONE, "--runs", "9"), ("fuzz", *ONE, "--seconds", "4")]
)
def test_a_counterexample_is_shown_kept_and_runs_again(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setitem(scheduler_search.SCHEDULERS, "impl", HoldAndWait)
    told = facts(1, *command, "--out", "found")
    assert (told["rule"], told["counterexample_length"]) == ("R-PRE-1", 3)
    shown = capsys.readouterr().out
    assert "R-PRE-1 does not hold after 3 operations" in shown
    assert "by the policy, release 0" in shown
    assert " ahead, watermark " in shown.partition("\nworld: ")[2].partition("\n")[0]
    assert [path.name for path in Path("found").iterdir()] == ["R-PRE-1-3.trace.json"]
    assert run(["fuzz", "--again", told["trace"]]) == 1
    assert "R-PRE-1 does not hold after 3 operations" in capsys.readouterr().out
    monkeypatch.setitem(scheduler_search.SCHEDULERS, "impl", ImplementedScheduler)
    assert run(["fuzz", "--again", told["trace"]]) == 0
    assert "R-PRE-1 held this time after" in capsys.readouterr().out


def test_explore_walks_a_scheduler_that_shows_its_cache() -> None:
    told = facts(1, "explore", *ONE, "--target", "scheduler_faults:HoldAndWait", "--out", "found")
    assert (told["rule"], told["counterexample_length"]) == ("R-PRE-1", 3)


def test_verify_has_a_line_for_the_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    held = verify_command._scheduler(1.0, 0)
    assert (held.check, held.result, held.finding) == ("scheduler, lock-step", "held", None)
    monkeypatch.setitem(scheduler_search.SCHEDULERS, "impl", Overtaking)
    monkeypatch.setattr(verify_command, "WORKERS", 1)
    broken = verify_command._scheduler(1.0, 0)
    assert broken.result == "R-CAP-4 broken"
    assert broken.finding is not None


def test_bad_input_is_said_in_one_line(capsys: Captured) -> None:
    assert "--streams" in refused(capsys, "explore", *ONE, "--streams", "2")
    assert "--contents-only" in refused(capsys, "fuzz", *ONE, "--contents-only")
    for command in ("explore", "fuzz"):
        assert "cannot be imported" in refused(capsys, command, *ONE, "--target", "somewhere:else")


@pytest.mark.parametrize(
    "operation",
    [
        Submit(Request(3, (1, 0), 2, 2, 1, 5)),
        Submit(Request(3, 7, 2)),
        Schedule(),
        Complete(1, (3, 4), -1),
        Fail(-1),
        Cancel(9),
        Preempt(0),
        Drain(),
    ],
)
def test_operations_are_written_and_read(operation: Any) -> None:
    assert from_json(json.loads(json.dumps(to_json(operation)))) == operation


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no operation"),
        ("schedule", "no operation"),
        (["launch", 1], "no operation"),
        (["cancel"], "takes request"),
        (["schedule", 1], "takes nothing"),
        (["cancel", "1"], "no number"),
        (["complete", 0, ["a"], 0], "no number"),
        (["submit", [1, 2]], "a request has"),
        (["fail", 2**40], "no number"),
    ],
)
def test_what_is_no_operation_is_said(words: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        from_json(words)


@pytest.mark.parametrize(
    "change",
    [
        {"limits": 7},
        {"limits": {}},
        {"limits": {"max_running": 0}},
        {"limits": {"policy": "best"}},
        {"operations": [["nothing"]]},
        {"target": "no:where"},
    ],
    ids=str,
)
def test_a_trace_file_that_says_something_else_is_bad_input(
    change: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setitem(scheduler_search.SCHEDULERS, "impl", HoldAndWait)
    told = facts(1, "explore", *ONE, "--out", "found")
    text = json.loads(Path(told["trace"]).read_text(encoding="utf-8"))
    part = change.get("limits")
    if isinstance(part, dict) and part:
        change = {"limits": {**text["limits"], **part}}
    Path(told["trace"]).write_text(json.dumps({**text, **change}), encoding="utf-8")
    capsys.readouterr()
    refused(capsys, "fuzz", "--again", told["trace"])

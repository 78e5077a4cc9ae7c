"""`pagedkv explore` and `pagedkv fuzz` as a user meets them: table, JSON, exit code, counterexample, Ctrl-C."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pagedkv.bench.command_line import run
from pagedkv.spec.alphabet import KINDS

from hostile_managers import MARKS

Captured = pytest.CaptureFixture[str]

TINY = ("--blocks", "1", "--block-size", "1", "--sequences", "1", "--launches", "1", "--streams", "1")
SMALL = ("--blocks", "2", "--block-size", "1", "--max-tokens", "2")  # 2 sequences, 2 launches, 2 streams
RUNS = ("--runs", "5", "--seed", "3")
ONE = ("--workers", "1")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing that a command leaves lie in the checkout."""
    monkeypatch.chdir(tmp_path)


def searched(exit_code: int, *arguments: str) -> dict[str, Any]:
    """Run a command with --json and return what it wrote."""
    assert run([*arguments, "--json", "facts.json"]) == exit_code
    facts: dict[str, Any] = json.loads(Path("facts.json").read_text(encoding="utf-8"))
    return facts


def rows(text: str) -> dict[str, tuple[str, str]]:
    """Return the printed table of operations: how often each fired, and for what it was refused."""
    table: dict[str, tuple[str, str]] = {}
    for line in text.splitlines():
        if line.startswith("│"):
            operation, fired, refused = (cell.strip() for cell in line.strip("│").split("│"))
            last = operation or list(table)[-1]  # a long cell goes on in the next line
            table[last] = (table[last][0], f"{table[last][1]} {refused}") if not operation else (fired, refused)
    return table


def in_words(reasons: dict[str, int]) -> str:
    """Return refusals as the table has them."""
    return ", ".join(f"{reason} {count:,}" for reason, count in sorted(reasons.items())) or "-"


def test_explore_walks_a_world_that_can_be_counted_by_hand(capsys: Captured) -> None:
    """One block of one slot, one sequence of one token: empty, added, launched, executed; retired, or released before.

    With nothing gone by these are 4 + 2 states (released before or after the device did it), and once a launch has
    left, the same 6 and the one where it is retired and held. The way to the last: a whole life (5 operations), then
    add, launch, execute, release.
    """
    facts = searched(1, "explore", *TINY, "--max-tokens", "1", *ONE)
    assert (facts["states"], facts["depth"], facts["complete"]) == (6 + 7, 9, True)
    out = capsys.readouterr().out
    assert f"13 states, {facts['edges']:,} edges, depth 9" in out
    assert "a hole in this run: extend never fired" in out
    assert out.count("a hole in this run") == len(facts["holes"])


def test_explore_holds_and_says_what_it_met(capsys: Captured) -> None:
    facts = searched(0, "explore", *SMALL, "--launches", "1", "--batch", "2", *ONE)
    out = capsys.readouterr().out
    assert out.startswith("explore impl: 2 blocks, B = 1, 2 sequences of up to 2 tokens, 1 launch in flight, 2 streams")
    assert "lock-step with the spec" in out
    assert (facts["target"], facts["lock_step"], facts["pairs"], facts["holes"]) == ("impl", True, False, [])
    assert (facts["rule"], facts["counterexample_length"]) == (None, None)
    assert rows(out) == {
        operation: (f"{facts['fired'][operation]:,}", in_words(facts["refused"][operation]))
        for operation in ("add", "extend", "fork", "launch", "execute", "retire", "release")
    }
    assert sum(facts["fired"].values()) + sum(sum(met.values()) for met in facts["refused"].values()) == facts["edges"]
    assert shlex.split(facts["command"])[:4] == ["pagedkv", "explore", "--blocks", "2"]


def test_a_refusal_that_was_never_met_fails_the_run(capsys: Captured) -> None:
    """Two tokens in two blocks of one: no third launch can be asked for while two are in flight."""
    facts = searched(1, "explore", *SMALL, *ONE)
    assert facts["holes"] == ["launch was never refused as Busy"]
    assert "a hole in this run: launch was never refused as Busy" in capsys.readouterr().out


def test_contents_alone_need_not_meet_every_refusal(capsys: Captured) -> None:
    facts = searched(0, "explore", *SMALL, "--launches", "1", "--contents-only", *ONE)
    assert (facts["lock_step"], facts["complete"], facts["holes"]) == (False, True, [])
    assert "judged from outside" in capsys.readouterr().out


def test_pairs_tell_more_states_apart() -> None:
    world = (*SMALL, "--launches", "1", *ONE)
    alone, pairs = searched(0, "explore", *world), searched(0, "explore", *world, "--pairs")
    assert pairs["pairs"]
    assert pairs["states"] > alone["states"]


def test_explore_stops_after_the_level_that_runs_over_its_time(capsys: Captured) -> None:
    facts = searched(0, "explore", "--deep", "--seconds", "0.1", *ONE)
    assert (facts["complete"], facts["holes"]) == (False, [])
    assert "stopped before the end" in capsys.readouterr().out


def test_fuzz_of_one_seed_is_one_run(capsys: Captured) -> None:
    facts = searched(0, "fuzz", *RUNS, *ONE)
    out = capsys.readouterr().out
    again = searched(0, "fuzz", *RUNS, *ONE)
    assert (facts["runs"], facts["rule"], facts["seed"]) == (5, None, None)
    assert again | {"seconds": 0} == facts | {"seconds": 0}
    assert rows(out) == {
        operation: (f"{facts['fired'].get(operation, 0):,}", in_words(facts["refused"].get(operation, {})))
        for operation in (*KINDS.values(), "hit")
    }
    assert facts["holes"] == []
    assert out.endswith("no rule broken\n")
    assert facts["operations"] == sum(facts["fired"].values()) - facts["fired"]["hit"] + sum(
        sum(met.values()) for met in facts["refused"].values()
    )


def test_fuzz_takes_one_size_and_chooses_the_others() -> None:
    assert searched(0, "fuzz", *RUNS, *ONE, "--blocks", "64")["runs"] == 5
    assert searched(0, "fuzz", *RUNS, *ONE, "--block-size", "3", "--contents-only")["lock_step"] is False


def test_fuzz_lets_hypothesis_look_first() -> None:
    assert searched(0, "fuzz", "--seconds", "0.4", *ONE)["runs"] >= 1
    found = searched(1, "fuzz", "--seconds", "20", *ONE, "--target", "planted_faults:OffByOne")
    assert (found["runs"], found["rule"]) == (0, "R-CAP-1")


@pytest.mark.parametrize(
    "command",
    [
        ("explore", "--blocks", "1", "--block-size", "1", "--max-tokens", "1", *ONE),
        ("fuzz", "--runs", "200", *ONE),
    ],
    ids=["explore", "fuzz"],
)
def test_a_planted_fault_ends_in_a_counterexample_that_runs_again(capsys: Captured, command: tuple[str, ...]) -> None:
    """Early reuse needs three operations: add, launch, release."""
    target = "planted_faults:EarlyReuse"
    facts = searched(1, *command, "--target", target, "--out", "found [it] here")
    out = capsys.readouterr().out
    assert "R-LIFE-1 does not hold after 3 operations" in out
    if command[0] == "explore":
        assert "\nworld: 1 block of 1 token, 2 streams, at most 2 launches in flight\n" in out
    assert "what differs: blocks [1] became free while device work may touch them" in out
    assert (facts["rule"], facts["counterexample_length"]) == ("R-LIFE-1", 3)
    trace, journal, picture = Path(facts["trace"]), Path(facts["journal"]), Path(facts["picture"])
    assert sorted(Path("found [it] here").iterdir()) == sorted([trace, journal, picture])
    assert picture.read_bytes().startswith(b"\x89PNG")
    saved = json.loads(trace.read_text(encoding="utf-8"))
    assert [operation[0] for operation in saved["operations"]] == ["add", "launch", "release"]
    lines = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    assert [line.get("op") for line in lines] == [None, "add", "launch", "release", "end"]

    assert out.splitlines()[-1] == f"again: {facts['again']}"
    words = shlex.split(facts["again"])
    assert words == ["pagedkv", "fuzz", "--again", str(trace)]
    again = searched(1, *words[1:])
    shown = capsys.readouterr().out
    assert shown in out, "the same table, and the same difference"
    assert (again["rule"], again["counterexample_length"], again["target"]) == ("R-LIFE-1", 3, target)

    sound = searched(0, *words[1:], "--target", "impl")
    assert (sound["rule"], sound["target"]) == (None, "impl")
    assert "R-LIFE-1 held this time after 3 operations" in capsys.readouterr().out
    trace.write_text(json.dumps(saved | {"target": "impl"}), encoding="utf-8")
    assert searched(0, *words[1:])["rule"] is None
    assert "R-LIFE-1 held this time after 3 operations" in capsys.readouterr().out


def test_a_counterexample_is_never_put_over_another() -> None:
    """The same fault in two worlds, of one block and of two; found again, each keeps its name."""
    command = ("explore", "--block-size", "1", "--max-tokens", "1", *ONE, "--target", "planted_faults:EarlyReuse")
    for _ in range(2):
        names = [searched(1, *command, "--blocks", blocks)["trace"] for blocks in ("1", "2")]
        assert names == ["pagedkv-out/R-LIFE-1-3.trace.json", "pagedkv-out/R-LIFE-1-3-2.trace.json"]
    for name in names:
        assert run(["fuzz", "--again", name]) == 1


def test_the_journal_of_a_counterexample_is_audited(capsys: Captured) -> None:
    facts = searched(1, "explore", *TINY, "--max-tokens", "1", *ONE, "--target", "planted_faults:EarlyReuse")
    capsys.readouterr()
    assert run(["compare", facts["journal"]]) == 1
    assert "R-LIFE-1" in "".join(capsys.readouterr())


def test_two_processes_find_what_one_finds() -> None:
    command = ("fuzz", "--runs", "200", "--target", "planted_faults:EarlyReuse")
    one, two = searched(1, *command, *ONE), searched(1, *command, "--workers", "2")
    assert {key: one[key] for key in ("rule", "seed", "counterexample_length")} == {
        key: two[key] for key in ("rule", "seed", "counterexample_length")
    }


@pytest.mark.parametrize("command", [("explore", *SMALL), ("fuzz", "--no-hypothesis")], ids=["explore", "fuzz"])
def test_ctrl_c_leaves_no_process_and_no_file(tmp_path: Path, command: tuple[str, ...]) -> None:
    """Both workers are deep inside a manager that never comes back when the whole group is interrupted."""
    marks, folder = tmp_path / "marks", tmp_path / "work"
    marks.mkdir()
    folder.mkdir()
    options = ("--workers", "2", "--target", "hostile_managers:Hangs", "--json", "facts.json", "--out", "out")
    environment = os.environ | {MARKS: str(marks), "PYTHONPATH": str(Path(__file__).parent)}
    process = subprocess.Popen(
        [sys.executable, "-m", "pagedkv.bench", *command, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment,
        start_new_session=True,
    )
    deadline_s = time.monotonic() + 60
    while len(list(marks.iterdir())) < 2:
        assert process.poll() is None
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "pagedkv: interrupted\n")
    assert list(folder.iterdir()) == []
    for mark in marks.iterdir():
        with pytest.raises(ProcessLookupError):
            os.kill(int(mark.name), 0)


def test_what_is_refused_each_time_fails_a_search(capsys: Captured) -> None:
    """No rule is broken: in a pool of one slot there is no room to grow. Nothing was judged of it, though."""
    one_slot = ("--blocks", "1", "--block-size", "1", "--target", "outside_managers:KeepsASpare")
    facts = searched(1, "fuzz", "--operations", "4000", *ONE, *one_slot)
    assert (facts["rule"], facts["holes"]) == (None, ["extend never fired, it was refused each time"])
    out = capsys.readouterr().out
    assert "a hole in this run: extend never fired, it was refused each time; nothing was judged of it" in out
    assert out.endswith("no rule broken, but not everything was tried\n")
    facts = searched(1, "explore", *one_slot, *ONE)
    assert (facts["rule"], facts["complete"]) == (None, True)
    assert facts["holes"] == ["extend never fired, it was refused each time"]
    assert "every state visited, no rule broken, but not everything was tried" in capsys.readouterr().out

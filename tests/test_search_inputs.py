"""What can be wrong with a trace file, with the place for results, with a size: one clear line and exit 2.

Never a traceback, never a half-written file; and looked at before the work, not after it.
"""

import copy
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pagedkv.bench.command_line import run

from searching import EXPLORE, FUZZ, Captured, refused


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing that a command leaves lie in the checkout, nor a folder with targets stay on the path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])


# ---- trace files ----------------------------------------------------------------------------------------------------

TRACE: dict[str, Any] = {
    "kind": "pagedkv trace",
    "version": 1,
    "target": "impl",
    "lock_step": True,
    "blocks": 1,
    "block_size": 1,
    "streams": 1,
    "launches": 1,
    "rule": "R-LIFE-1",
    "detail": "blocks [1] became free",
    "operations": [["add", 1, 1], ["launch", [[1, 1]], 0], ["execute", 1], ["retire", 1], ["release", 1]],
}


def _with(**fields: Any) -> str:
    return json.dumps({**copy.deepcopy(TRACE), **fields})


def _without(field: str) -> str:
    return json.dumps({name: value for name, value in TRACE.items() if name != field})


def _operations(*operations: Any) -> str:
    return _with(operations=list(operations))


def test_the_trace_that_the_hostile_ones_are_made_of_runs() -> None:
    Path("trace.json").write_text(_with(), encoding="utf-8")
    assert run(["fuzz", "--again", "trace.json"]) == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no JSON"),
        (_with()[:-20], "no JSON"),
        (_with() + "}", "no JSON"),
        (_with().encode("utf-16"), "no JSON"),
        (b"\x1f\x8b\x08\x00", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ('{"kind": ' + "9" * 5000 + "}", "no JSON"),
        ("null", "no pagedkv trace of version 1"),
        ("[]", "no pagedkv trace of version 1"),
        ("{}", "no pagedkv trace of version 1"),
        (_with(kind="something else"), "no pagedkv trace"),
        (_with(version=2), "no pagedkv trace of version 1"),
        *[(_without(field), f"{field} is None") for field in TRACE if field not in ("kind", "version")],
        *[
            (_with(**{size: wrong}), f"{size} is ")
            for size in ("blocks", "block_size", "streams", "launches")
            for wrong in (0, -1, 5000, 10**30, 1.5, float("nan"), "3", True, [3], None)
        ],
        (_with(target=5), "target is 5, not str"),
        (_with(target="no_such_module:x"), "cannot be imported"),
        (_with(lock_step="no"), "lock_step is 'no', not bool"),
        (_with(rule=["R-DATA"]), "rule is "),
        (_with(operations={}), "operations is {}, not list"),
        (_operations("add"), "'add' is no operation"),
        (_operations([]), "[] is no operation"),
        (_operations(["nonsense", 1]), "is no operation"),
        (_operations([["add"], 1, 1]), "is no operation"),
        (_operations(["add", 1]), "add takes name and tokens and salt, not 1 arguments"),
        (_operations(["add", 1, 1, 1, 1]), "add takes name and tokens and salt, not 4 arguments"),
        (_operations(["publish", [[1, 2]]]), "2 is no list of token ids"),
        (_operations(["publish", [1]]), "[1] is no list of [name, token ids]"),
        (_operations(["pin", 1, 2]), "2 is no list of token ids"),
        (_operations(["clear", 1]), "clear takes nothing, not 1 arguments"),
        (_operations(["add", "1", 1]), "'1' is no 64-bit integer"),
        (_operations(["add", 1, 1.0]), "1.0 is no 64-bit integer"),
        (_operations(["add", True, 1]), "True is no 64-bit integer"),
        (_operations(["add", None, 1]), "None is no 64-bit integer"),
        (_operations(["add", [[1, 1]], 1]), "is no 64-bit integer"),
        (_operations(["add", 2**63, 1]), "is no 64-bit integer"),
        (_operations(["extend", 1]), "1 is no list of [name, count]"),
        (_operations(["extend", [1]]), "is no list of [name, count]"),
        (_operations(["extend", [[1, 1, 1]]]), "is no list of [name, count]"),
        (_operations(["extend", [[1, [1]]]]), "is no 64-bit integer"),
        (_operations(["launch", [[1, 1]], 1]), "operation 1 is on stream 1 of 1"),
        (_operations(["launch", [[1, 1]], -1]), "operation 1 is on stream -1 of 1"),
        (_operations(["execute", 1]), "operation 1 executes launch 1, which was never launched before"),
        (_operations(["add", 1, 1], ["launch", [[1, 1]], 0], ["execute", 2]), "operation 3 executes launch 2"),
        (_operations(["launch", [], 0], ["execute", 1], ["execute", 1]), "which had been executed before"),
    ],
)
def test_a_trace_that_cannot_be_run(capsys: Captured, text: str | bytes, said: str) -> None:
    Path("trace.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert said in refused(capsys, "fuzz", "--again", "trace.json")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("missing.json", "No such file"),
        (".", "no plain file"),
        ("pipe", "no plain file"),
        ("/dev/zero", "no plain file"),
        ("a\0b", "null byte"),
        ("long" * 100, "cannot be read"),
    ],
)
def test_a_trace_that_cannot_be_read(capsys: Captured, name: str, said: str) -> None:
    os.mkfifo("pipe")
    assert said in refused(capsys, "fuzz", "--again", name)


@pytest.mark.parametrize(
    "operations",
    [
        [["add", -(2**63), 1], ["release", 2**63 - 1], ["retire", -5], ["retire", 2**62], ["extend", [[1, 2**62]]]],
        [["add", 1, 2**62], ["fork", 1, 1], ["launch", [[1, -3]], 0], ["extend", []], ["launch", [], 0]],
    ],
)
def test_odd_operations_are_refused_on_both_sides(operations: list[list[Any]]) -> None:
    Path("trace.json").write_text(_operations(*operations), encoding="utf-8")
    assert run(["fuzz", "--again", "trace.json"]) == 0


def test_what_is_not_possible_this_time_is_left_out_and_said(capsys: Captured) -> None:
    """The second launch is refused, since one may be in flight: so there is no launch 2 to execute."""
    operations = [["add", 1, 1], ["launch", [[1, 1]], 0], ["launch", [[1, 1]], 0], ["execute", 2], ["execute", 1]]
    Path("trace.json").write_text(_operations(*operations), encoding="utf-8")
    assert run(["fuzz", "--again", "trace.json"]) == 0
    assert "1 of 5 operations were not possible this time" in capsys.readouterr().out


def test_a_trace_of_a_manager_that_shows_nothing_is_judged_by_contents(capsys: Captured) -> None:
    Path("trace.json").write_text(_with(target="hostile_managers:BlackBox"), encoding="utf-8")
    assert run(["fuzz", "--again", "trace.json"]) == 0
    assert "it is judged from outside" in capsys.readouterr().out


def test_a_trace_of_a_manager_is_not_run_on_a_scheduler(capsys: Captured) -> None:
    Path("trace.json").write_text(_with(), encoding="utf-8")
    target = "foreign_scheduler_adapter:ForeignEngine"
    assert "drive it by" in refused(capsys, "fuzz", "--again", "trace.json", "--target", target)


def test_a_rule_that_nobody_knows_spoils_no_terminal(capsys: Captured) -> None:
    Path("trace.json").write_text(_with(rule="[/b]\x1b[2J", detail="[/b]\n\x1b[2J"), encoding="utf-8")
    assert run(["fuzz", "--again", "trace.json"]) == 0
    assert "\x1b" not in capsys.readouterr().out


# ---- where results go -----------------------------------------------------------------------------------------------


def _file() -> None:
    Path("out").write_text("mine", encoding="utf-8")


def _link_to_a_file() -> None:
    Path("file").write_text("mine", encoding="utf-8")
    Path("out").symlink_to("file")


def _loop() -> None:
    Path("out").symlink_to("out")


@pytest.mark.parametrize("command", [EXPLORE, FUZZ], ids=["explore", "fuzz"])
@pytest.mark.parametrize(
    ("make", "option", "name", "said"),
    [
        (_file, "--out", "out", "is no folder"),
        (_file, "--out", "out/deeper", "is no folder"),
        (_link_to_a_file, "--out", "out", "is no folder"),
        (_loop, "--out", "out", "is no folder"),
        (_file, "--out", "a\0b", "null byte"),
        (_file, "--out", "long" * 100, "no usable name"),
        (_file, "--out", "/dev/null", "is no folder"),
        (_file, "--json", ".", "no plain file"),
        (_file, "--json", "missing/facts.json", "there is no folder"),
    ],
)
def test_where_results_go_is_looked_at_before_the_work(
    capsys: Captured, command: tuple[str, ...], make: Callable[[], None], option: str, name: str, said: str
) -> None:
    make()
    assert said in refused(capsys, *command, "--target", "planted_faults:EarlyReuse", option, name)


def test_results_are_not_put_where_the_counterexample_goes(capsys: Captured) -> None:
    assert "--json" in refused(capsys, *EXPLORE, "--out", "both", "--json", "both")


@pytest.mark.parametrize("ending", [".trace.json", ".journal.jsonl", ".png", ".PNG"])
@pytest.mark.parametrize("command", [EXPLORE, FUZZ, ("verify",), ("peers", "impl")], ids=lambda words: words[0])
def test_results_are_not_called_like_a_counterexample(capsys: Captured, command: tuple[str, ...], ending: str) -> None:
    Path("found").mkdir()
    Path("link").symlink_to("found")
    for json_file in (f"found/R-LIFE-1-3{ending}", f"link/R-LIFE-1-3{ending}"):
        told = refused(capsys, *command, "--out", "found", "--json", json_file)
        assert "may be called that; name another file" in told


def test_results_may_lie_beside_counterexamples() -> None:
    target = ("--target", "planted_faults:EarlyReuse")
    Path("found").mkdir()
    Path("found/R-LIFE-1-3.png").write_text("mine", encoding="utf-8")
    assert run([*EXPLORE, *target, "--out", "found", "--json", "found/facts.json"]) == 1
    facts = json.loads(Path("found/facts.json").read_text(encoding="utf-8"))
    assert facts["trace"] == "found/R-LIFE-1-3-2.trace.json", "since something of that name was there"
    assert Path("found/R-LIFE-1-3.png").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("name", ["R-LIFE-1-5.trace.json", "R-LIFE-1-5.journal.jsonl", "R-LIFE-1-5.png"])
def test_a_trace_is_not_overwritten_by_its_results_nor_what_lies_beside_it(capsys: Captured, name: str) -> None:
    Path("R-LIFE-1-5.trace.json").write_text(_with(), encoding="utf-8")
    assert "in use" in refused(capsys, "fuzz", "--again", "R-LIFE-1-5.trace.json", "--json", name)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["explore", "--blocks", "0"], "--blocks"),
        (["explore", "--blocks", "17"], "--blocks"),
        (["explore", "--sequences", "0"], "--sequences"),
        (["explore", "--launches", "-1"], "--launches"),
        (["explore", "--streams", "9"], "--streams"),
        (["explore", "--max-tokens", "many"], "--max-tokens"),
        (["explore", "--seconds", "0"], "--seconds"),
        (["explore", "--workers", "0"], "--workers"),
        (["fuzz", "--seconds", "nan"], "--seconds"),
        (["fuzz", "--runs", "0"], "--runs"),
        (["fuzz", "--blocks", "4097"], "--blocks"),
        (["fuzz", "--seed", "-1"], "--seed"),
    ],
)
def test_sizes_within_reason(capsys: Captured, arguments: list[str], said: str) -> None:
    assert said in refused(capsys, *arguments)

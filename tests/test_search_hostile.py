"""What can be wrong with a target, a trace file or a folder: one clear line and exit 2, or a finding and exit 1.

A manager that cannot be had (not there, not made, no manager) is bad input. One that misbehaves while it is driven is
a finding, rule CRASH, with the operations that led to it. Never a traceback, never a half-written file.
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
from pagedkv.spec import calls

Captured = pytest.CaptureFixture[str]

SMALL = ("--blocks", "2", "--block-size", "1", "--max-tokens", "2", "--launches", "1", "--workers", "1")
EXPLORE = ("explore", *SMALL)
FUZZ = ("fuzz", "--runs", "30", "--workers", "1")
CONTENTS = ("--contents-only",)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing that a command leaves lie in the checkout; and let the modules of this folder be targets."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # a target may lie in the current folder, which goes on it


def refused(capsys: Captured, *arguments: str) -> str:
    """Run a command that must say in one line what is wrong, and leave nothing; return the line."""
    before = sorted(Path().iterdir())
    assert run(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("pagedkv: ")
    assert output.err.count("\n") == 1
    assert sorted(Path().iterdir()) == before
    return output.err


def found(capsys: Captured, *arguments: str) -> tuple[str, str]:
    """Run a command that must end in a finding, saved in full; return its rule and what differs."""
    assert run([*arguments, "--out", "found", "--json", "facts.json"]) == 1
    output = capsys.readouterr()
    assert output.err == ""
    assert output.out.isprintable() or all(line.isprintable() for line in output.out.splitlines())
    facts = json.loads(Path("facts.json").read_text(encoding="utf-8"))
    assert sorted(map(str, Path("found").iterdir())) == sorted([facts["trace"], facts["journal"], facts["picture"]])
    differs = next(line for line in output.out.splitlines() if line.startswith("what differs: "))
    return facts["rule"], differs.removeprefix("what differs: ")


# ---- targets that cannot be had -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("", "no target; give impl or spec, or package.module:factory"),
        ("hostile_managers", "no target"),
        ("hostile_managers:", "no target"),
        (":Raises", "no target"),
        ("no_such_module:Manager", "No module named 'no_such_module'"),
        ("hostile_managers:Nobody", "has no attribute 'Nobody'"),
        ("hostile_managers:Raises.nothing", "has no attribute 'nothing'"),
        (".hostile_managers:Raises", "cannot be imported (TypeError"),
        ("hostile managers:Raises", "cannot be imported"),
        ("a\0b:c", "cannot be imported"),
        ("hostile_managers:NOT_CALLABLE", "not callable"),
        ("hostile_managers:not_a_manager", "is no pagedkv.spec.manager.Manager"),
        ("hostile_managers:exits_when_made", "SystemExit: 0"),
        ("hostile_managers:RaisesWhenMade", r"ValueError: no\nway with"),
        ("hostile_managers:OddStreams", "streams_offered is None"),
        ("hostile_managers:OddFirstBlock", "first_block is 'a'"),
        ("module_exits:x", "SystemExit: 0"),
        ("module_raises:x", r"RuntimeError: a\nb"),
        ("module_is_none:x", "SyntaxError"),
    ],
)
@pytest.mark.parametrize("command", [EXPLORE, FUZZ], ids=["explore", "fuzz"])
def test_a_target_that_cannot_be_had(capsys: Captured, command: tuple[str, ...], target: str, said: str) -> None:
    Path("module_exits.py").write_text("raise SystemExit(0)", encoding="utf-8")
    Path("module_raises.py").write_text(r'raise RuntimeError("a\nb")', encoding="utf-8")
    Path("module_is_none.py").write_text("def f(:", encoding="utf-8")
    Path("__pycache__").mkdir()
    assert said in refused(capsys, *command, "--target", target)


# ---- targets that misbehave -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "rule", "said"),
    [
        ("Raises", "CRASH", r"RuntimeError: boom\n\x1b[2J [/x]"),
        ("RaisesTheUnsayable", "CRASH", "UnsayableError"),
        ("RaisesAVerdict", "CRASH", "Broken: ../R-DATA: a verdict of its own"),
        ("Exits", "CRASH", "SystemExit: 0"),
        ("RefusesForNoReason", "CRASH", "'because' is not a valid Reason"),
        ("NeverReleases", "R-OWN-4", "it must always be possible"),
        ("NeverRetires", "R-LIFE-4", "it must always be possible"),
        ("add_text", "CRASH", "the answer 'nonsense' is no Outcome"),
        ("add_number", "CRASH", "the answer 5 is no Outcome"),
        ("add_blocks_none", "CRASH", "is no Outcome"),
        ("add_blocks_float", "CRASH", "'float' object cannot be interpreted as an integer"),
        ("release_freed_none", "CRASH", "is no Outcome"),
        ("launch_after_unborn", "R-LIFE-2", "an edge to a launch that was never issued: [99]"),
        ("launch_after_none", "CRASH", "is no Outcome"),
        ("launch_id_text", "CRASH", "is no Outcome"),
        ("extend_copy_short", "CRASH", "is no Outcome"),
        ("extend_copy_of_another", "R-COW-3", "for no sequence of the batch"),
        ("extend_copy_too_long", "R-COW-3", "is not inside usable blocks"),
        ("table_none", "CRASH", "block_table: TypeError"),
        ("table_text", "CRASH", "block_table: TypeError"),
        ("table_float", "CRASH", "block_table: TypeError"),
        ("rows_text", "CRASH", "rows_read: TypeError"),
        ("rows_missing", "R-TAB-1", "has 0 rows to read, not 1"),
    ],
)
@pytest.mark.parametrize("command", [EXPLORE, FUZZ], ids=["explore", "fuzz"])
def test_what_a_manager_does_wrong_is_a_finding(
    capsys: Captured, command: tuple[str, ...], target: str, rule: str, said: str
) -> None:
    """By contents alone, as a stranger's manager is judged."""
    broken, differs = found(capsys, *command, *CONTENTS, "--target", f"hostile_managers:{target}")
    assert broken == rule
    assert said in differs


@pytest.mark.parametrize(
    ("target", "rule", "said"),
    [
        ("Raises", "CRASH", "fork 3 to 3: RuntimeError"),
        ("Exits", "CRASH", "SystemExit: 0"),
        ("observe_text", "CRASH", "observe: TypeError: str is no Observation"),
        ("observe_none_inside", "CRASH", "observe: AttributeError"),
        ("observe_letters", "R-OWN-1", "free: ['a', 'b', 'c'], by the spec"),
        ("RaisesAtAnUnknownLaunch", "CRASH", "KeyError: 1"),
        ("FallsAtTheSecondRefusal", "CRASH", "IndexError: one too many"),
    ],
)
def test_in_lock_step_too(capsys: Captured, target: str, rule: str, said: str) -> None:
    broken, differs = found(capsys, *EXPLORE, "--target", f"hostile_managers:{target}")
    assert broken == rule
    assert said in differs


def test_a_crash_is_shrunk_like_any_fault(capsys: Captured) -> None:
    """The completion of a launch that never was is all it takes, with nothing before it."""
    found(capsys, *FUZZ, "--target", "hostile_managers:RaisesAtAnUnknownLaunch")
    facts = json.loads(Path("facts.json").read_text(encoding="utf-8"))
    assert facts["counterexample_length"] == 1
    assert json.loads(Path(facts["trace"]).read_text(encoding="utf-8"))["operations"] == [["retire", 1]]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("CannotBeCloned", "clone: TypeError: cannot pickle"),
        ("clone_none", "clone: TypeError: None is no Manager"),
    ],
)
def test_what_shows_in_a_walk_alone_is_said_as_it_was_found(capsys: Captured, target: str, said: str) -> None:
    rule, differs = found(capsys, *EXPLORE, *CONTENTS, "--target", f"hostile_managers:{target}")
    assert rule == "CRASH"
    assert differs == f"nothing this time; when it was found: {differs.split('found: ')[1]}"
    assert said in differs


@pytest.mark.parametrize("target", ["fingerprint_object", "free_order_none"])
def test_a_walk_that_cannot_begin_says_so(capsys: Captured, target: str) -> None:
    assert run([*EXPLORE, *CONTENTS, "--target", f"hostile_managers:{target}"]) == 1
    assert capsys.readouterr().err.startswith(f"pagedkv: CRASH: {target.rpartition('_')[0]}: ")


def test_a_world_that_cannot_be_made_is_found_by_its_sizes(capsys: Captured) -> None:
    rule, differs = found(capsys, *FUZZ, "--target", "hostile_managers:SomeSizesAlone")
    assert rule == "CRASH"
    assert "block_size=3" in differs
    assert run([*FUZZ, "--target", "hostile_managers:SomeSizesAlone", "--blocks", "3", "--block-size", "2"]) == 0


def test_a_manager_that_never_comes_back_is_a_finding(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "CALL_S_MAX", 0.1)
    monkeypatch.setattr(calls, "TICK_S", 0.05)
    rule, differs = found(capsys, *EXPLORE, "--target", "hostile_managers:Hangs")
    assert rule == "CRASH"
    assert differs == "extend 3+0: no answer within 0.1 s"


def test_a_process_that_dies_is_missed(capsys: Captured) -> None:
    assert run(["fuzz", "--runs", "30", "--workers", "2", "--target", "hostile_managers:Dies"]) == 1
    output = capsys.readouterr()
    said = "pagedkv: CRASH: a worker process ended with exit code 3: killed, or out of memory\n"
    assert (output.out, output.err) == ("", said)


@pytest.mark.parametrize("target", ["lambda_target", "numpy_all_over"])
def test_what_is_odd_and_right_holds(target: str) -> None:
    """A factory that cannot be pickled goes to two processes by its name; numpy's integers are integers."""
    assert run(["fuzz", "--runs", "20", "--workers", "2", "--target", f"hostile_managers:{target}"]) == 0


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
        (_operations(["add", 1]), "add takes name and tokens, not 1 arguments"),
        (_operations(["add", 1, 1, 1]), "add takes name and tokens, not 3 arguments"),
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
    assert "by contents alone" in capsys.readouterr().out


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


def test_a_trace_is_not_overwritten_by_its_results(capsys: Captured) -> None:
    Path("trace.json").write_text(_with(), encoding="utf-8")
    assert "in use" in refused(capsys, "fuzz", "--again", "trace.json", "--json", "trace.json")


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

"""What can be wrong with the manager under test.

One that cannot be had (not there, not made, no manager) is bad input: one clear line and exit 2. One that misbehaves
while it is driven is a finding, rule CRASH or the one it broke, with the operations that led to it, and exit 1. Never a
traceback, never a half-written file.
"""

import inspect
import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pagedkv.bench.command_line import run
from pagedkv.spec import calls

import hostile_managers
from searching import EXPLORE, FUZZ, Captured, found, refused

CONTENTS = ("--contents-only",)
BY_SCHEDULER = ("fuzz", "--scheduler", "--workers", "1")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing that a command leaves lie in the checkout, nor a folder with targets stay on the path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])


# ---- targets that cannot be had -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("", "no target; give impl or spec, or package.module:factory"),
        ("hostile_managers", "no target"),
        ("hostile_managers:", "no target"),
        (":Raises", "no target"),
        ("no_such_module:Manager", "No module named 'no_such_module'); modules are looked for in"),
        ("hostile_managers.py:Raises", "give the module without .py"),
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
        ("hostile_managers:NotOfferedInText", "not_offered is 'batches', not a set of pagedkv.spec.manager.Feature"),
        (
            "hostile_managers:NotOfferedByValue",
            "not_offered holds 'several tokens', which is no pagedkv.spec.manager.F",
        ),
        ("hostile_managers:HalfWritten", "HalfWritten does not define release, block_table"),
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


@pytest.mark.parametrize(
    ("command", "target", "said"),
    [
        (
            EXPLORE,
            "foreign_scheduler_adapter:ForeignEngine",
            "from outside; drive it by pagedkv fuzz --scheduler --tar",
        ),
        (
            FUZZ,
            "foreign_scheduler_adapter:ForeignEngine",
            "from outside; drive it by pagedkv fuzz --scheduler --target",
        ),
        (FUZZ, "hostile_managers:a_scheduler", "drive it by pagedkv fuzz --scheduler --target hostile_managers:a_sch"),
        (FUZZ, "scheduler_faults:HoldAndWait", "a scheduler that shows its cache; drive it with --scheduler"),
        (BY_SCHEDULER, "foreign_adapter:Foreign", "a cache manager; drive it without --scheduler: pagedkv fuzz --tar"),
        (BY_SCHEDULER, "hostile_managers:lambda_target", "a cache manager; drive it without --scheduler"),
        (("explore", "--scheduler"), "foreign_adapter:Foreign", "a cache manager; drive it without --scheduler"),
        (("explore", "--scheduler"), "foreign_scheduler_adapter:ForeignEngine", "and explore walks those that show"),
        (BY_SCHEDULER, "collections:ChainMap", "gives ChainMap("),
    ],
)
def test_a_target_of_another_kind_is_told_with_its_command(
    capsys: Captured, command: tuple[str, ...], target: str, said: str
) -> None:
    assert said in refused(capsys, *command, "--target", target)


def test_a_name_is_printed_as_it_is(capsys: Captured) -> None:
    """Between two colons many a word has a picture, in the eyes of the library that prints."""
    Path("numbers_in_words.py").write_text("from pagedkv.spec.reference import Reference as two", encoding="utf-8")
    assert run([*EXPLORE, "--target", "numbers_in_words:two", "--seconds", "0.1"]) == 0
    assert capsys.readouterr().out.startswith("explore numbers_in_words:two: 2 blocks")


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
        ("launch_after_unborn", "R-LIFE-2", "waits for [99], which were never issued"),
        ("launch_after_none", "CRASH", "is no Outcome"),
        ("launch_id_text", "CRASH", "is no Outcome"),
        ("extend_copy_short", "CRASH", "is no Outcome"),
        ("table_endless", "CRASH", "more than 1,000,000 integers"),
        ("extend_pair", "CRASH", "expected a list of Copy(sequence, source, target, extent)"),
        ("table_from_zero", "R-TAB-1", ": (0,); the pool is 1 to "),
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


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("OneRowAlone", " in extend: if yours takes one row, put BATCHES into not_offered"),
        ("OneTokenAlone", " in extend: if yours takes one token, put SEVERAL_TOKENS into not_offered"),
    ],
)
def test_a_crash_at_what_many_do_not_offer_says_what_can_be_said(capsys: Captured, target: str, said: str) -> None:
    rule, differs = found(capsys, *FUZZ, "--target", f"hostile_managers:{target}")
    assert rule == "CRASH"
    assert differs.endswith(said)


def test_a_crash_is_told_with_its_place_and_without_advice_where_that_is_unlikely(capsys: Captured) -> None:
    place = f"hostile_managers.py:{_line_of(hostile_managers.OneNameAlone.extend, 'raise')} in extend"
    rule, differs = found(capsys, *FUZZ, "--target", "hostile_managers:OneNameAlone")
    assert rule == "CRASH"
    assert differs.endswith(f": KeyError: 2 at {place}")
    facts = json.loads(Path("facts.json").read_text(encoding="utf-8"))
    assert run(["fuzz", "--again", facts["trace"]]) == 1
    assert differs in capsys.readouterr().out


def _line_of(function: Callable[..., Any], word: str) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(at for at, line in enumerate(lines) if word in line)


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
    again = json.loads(Path("facts.json").read_text(encoding="utf-8"))["again"]
    assert run(shlex.split(again)[1:]) == 1, "and run again, it shows the same"
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


@pytest.mark.parametrize("target", ["lambda_target", "numpy_all_over", "NotOfferedInAList"])
def test_what_is_odd_and_right_holds(target: str) -> None:
    """A factory that cannot be pickled goes to two processes by its name; numpy's integers are integers."""
    assert run(["fuzz", "--runs", "20", "--workers", "2", "--target", f"hostile_managers:{target}"]) == 0

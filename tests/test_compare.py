"""`compare`: one journal held against the spec, two against each other."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pagedkv.bench.compare import Comparison, Difference, Verdict, compare, run_compare
from pagedkv.bench.failures import BadInput
from pagedkv.bench.impl_engine import open_impl_engine
from pagedkv.bench.replay import replay
from pagedkv.bench.replay_queue import ReplaySettings
from pagedkv.bench.spec_engine import open_spec_engine
from pagedkv.bench.traces import read_trace

from hand_written_journal import CHOICES, JOURNAL, change, ended, insert, lose, swap
from real_data import AZURE, real_data


def write(path: Path, lines: list[str]) -> Path:
    path.write_bytes(ended(lines))
    return path


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    return write(tmp_path / "sound.jsonl", JOURNAL)


def both(sound: Path, lines: list[str]) -> Comparison:
    return compare(sound, write(sound.with_name("other.jsonl"), lines))


def test_one_journal_holds(sound: Path) -> None:
    found = compare(sound)
    assert (found.verdict, found.exit_code, found.lines) == (Verdict.HOLDS, 0, (15,))
    assert found.operations == {"add": 2, "launch": 3, "fork": 1, "extend": 1, "retire": 3, "release": 3}


def test_one_journal_that_is_broken_names_line_and_rule(tmp_path: Path) -> None:
    found = compare(write(tmp_path / "broken.jsonl", change(7, ',"after":[1]', "")(JOURNAL)))
    assert (found.verdict, found.exit_code) == (Verdict.BROKEN, 1)
    assert found.fault is not None
    assert (found.fault.rule, found.fault.line) == ("R-LIFE-2", 7)


def test_equal_journals_are_equal(sound: Path) -> None:
    found = both(sound, JOURNAL)
    assert (found.verdict, found.exit_code, found.choices) == (Verdict.EQUAL, 0, {})


@pytest.mark.parametrize(
    ("kind", "choices"),
    [
        ("another free block", {"blocks": 1, "freed": 1}),
        ("more edges than needed", {"after": 1}),
        ("a block freed a little later", {"freed": 2}),
    ],
)
def test_journals_that_differ_in_choices_alone_are_equal_up_to_them(
    sound: Path, kind: str, choices: dict[str, int]
) -> None:
    found = both(sound, CHOICES[kind](JOURNAL))
    assert (found.verdict, found.exit_code, found.choices) == (Verdict.EQUAL_UP_TO_CHOICES, 0, choices)


def test_the_first_choice_is_shown(sound: Path) -> None:
    found = both(sound, CHOICES["another free block"](JOURNAL))
    words = ("add 3 with 4 tokens: blocks taken [2]", "add 3 with 4 tokens: blocks taken [5]")
    assert found.first_choice == Difference((13, 13), words)


def test_the_first_difference_is_shown_with_both_lines(sound: Path) -> None:
    found = both(sound, insert(13, '{"op":"extend"}')(JOURNAL))
    assert (found.verdict, found.exit_code) == (Verdict.DIFFERENT, 1)
    assert found.difference == Difference((13, 13), ("add 3 with 4 tokens", "extend nothing"))


def test_a_journal_that_ends_early_differs_there(sound: Path) -> None:
    shorter = lose(14)(JOURNAL)
    assert both(sound, shorter).difference == Difference((14, 0), ("release 3", "the journal has ended"))


def test_journals_of_different_sizes_differ_at_once(sound: Path) -> None:
    found = both(sound, change(1, '"blocks":6', '"blocks":7')(JOURNAL))
    assert found.difference is not None
    assert found.difference.lines == (1, 1)


def test_a_journal_that_is_broken_is_named_among_two(sound: Path) -> None:
    found = both(sound, swap(5)(JOURNAL))
    assert (found.verdict, found.exit_code) == (Verdict.BROKEN, 1)
    assert found.fault is not None
    assert (Path(found.fault.journal).name, found.fault.rule) == ("other.jsonl", "R-TXN-1")


def test_a_journal_with_a_broken_header_is_named_among_two(sound: Path) -> None:
    found = both(sound, change(1, '"blocks":6', '"blocks":0')(JOURNAL))
    assert found.fault is not None
    assert (Path(found.fault.journal).name, found.fault.rule) == ("other.jsonl", "JOURNAL")


@pytest.mark.parametrize("content", [b"", b"\x89PNG\r\n", b"prompt,output\n1,2\n"])
def test_what_is_no_journal_is_bad_input(tmp_path: Path, sound: Path, content: bytes) -> None:
    other = tmp_path / "other"
    other.write_bytes(content)
    for paths in ([other], [sound, other], [other, sound], [tmp_path / "missing"], [tmp_path], [], [sound] * 3):
        with pytest.raises(BadInput):
            run_compare(paths)


def test_results_are_printed_and_written(sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "results.json"
    assert run_compare([sound], results) == 0
    assert json.loads(results.read_text())["verdict"] == "holds"
    broken = write(tmp_path / "broken.jsonl", change(7, ',"after":[1]', "")(JOURNAL))
    assert run_compare([sound, broken], results) == 1
    assert json.loads(results.read_text())["fault"]["rule"] == "R-LIFE-2"
    for lines in (JOURNAL, CHOICES["another free block"](JOURNAL), lose(14)(JOURNAL)):
        run_compare([sound, write(tmp_path / "third.jsonl", lines)])
    printed = capsys.readouterr().out
    for words in (
        ": holds",
        ": broken",
        "R-LIFE-2: Two launches",
        ": equal\n",
        ": equal up to",
        "blocks taken in 1",
        "end",
    ):
        assert words in printed


def test_results_do_not_overwrite_a_journal(sound: Path) -> None:
    with pytest.raises(BadInput, match="in use"):
        run_compare([sound], sound)
    assert compare(sound).verdict is Verdict.HOLDS


# ---- journals of real managers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("requests", "blocks"), [(40, 300), pytest.param(200, None, marks=pytest.mark.deep)])
def test_journals_of_spec_and_implementation_are_equal_up_to_choices(
    tmp_path: Path, requests: int, blocks: int | None
) -> None:
    trace = read_trace(real_data(AZURE), requests)
    journals = [tmp_path / "spec.jsonl", tmp_path / "impl.jsonl.gz"]
    engines: list[Any] = [open_spec_engine, open_impl_engine]
    for journal, open_engine in zip(journals, engines, strict=True):
        replay(trace, ReplaySettings(blocks=blocks), partial(open_engine, journal=journal))
    found = compare(*journals)
    assert found.verdict is Verdict.EQUAL_UP_TO_CHOICES, (found.difference, found.fault)
    assert found.operations["add"] == found.operations["release"] == requests


@pytest.mark.deep
@pytest.mark.parametrize("step_ms", [None, 30.0])
def test_the_journal_of_a_whole_trace_holds(tmp_path: Path, step_ms: float | None) -> None:
    trace = read_trace(real_data(AZURE))
    journal = tmp_path / "azure.jsonl"
    replay(trace, ReplaySettings(step_ms=step_ms), partial(open_impl_engine, journal=journal))
    found = compare(journal)
    assert found.verdict is Verdict.HOLDS, found.fault
    assert found.operations["add"] == found.operations["release"] == 19_366

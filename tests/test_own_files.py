"""A file of ours that is named where another kind is taken: what it is, and the command that takes it."""

import gzip
import os
from pathlib import Path

import pytest
from pagedkv.bench.own_files import another_of_ours, beside

from hand_written_journal import JOURNAL, ended
from searching import Captured, refused

TRACE = '{\n  "kind": "pagedkv trace",\n  "version": 1\n}\n'


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("R-LIFE-1-3.trace.json").write_text(TRACE, encoding="utf-8")
    Path("day.jsonl").write_bytes(ended(JOURNAL))
    Path("day.jsonl.gz").write_bytes(gzip.compress(ended(JOURNAL)))
    Path("other.json").write_text('{"kind": "pagedkv traces"}', encoding="utf-8")


@pytest.mark.parametrize("command", [("show",), ("compare",), ("compare", "day.jsonl"), ("replay",), ("grid",)])
def test_a_trace_is_told_from_a_journal_and_from_requests(capsys: Captured, command: tuple[str, ...]) -> None:
    said = refused(capsys, *command, "R-LIFE-1-3.trace.json")
    assert "R-LIFE-1-3.trace.json: the trace of a counterexample; pagedkv fuzz --again R-LIFE-1-3.trace.json" in said
    assert ".png" not in said
    Path("R-LIFE-1-3.png").touch()
    assert "its picture is R-LIFE-1-3.png" in refused(capsys, *command, "R-LIFE-1-3.trace.json")


@pytest.mark.parametrize("command", [("fuzz", "--again"), ("replay",), ("baselines",), ("sweep", "--lengths")])
@pytest.mark.parametrize("name", ["day.jsonl", "day.jsonl.gz"])
def test_a_journal_is_told_from_a_trace_and_from_requests(
    capsys: Captured, command: tuple[str, ...], name: str
) -> None:
    said = refused(capsys, *command, name)
    assert f"the journal of a cache; pagedkv compare {name} audits it, pagedkv show {name} draws it" in said


def test_what_is_wanted_and_wrong_in_another_way_is_no_other_file(capsys: Captured) -> None:
    Path("R-LIFE-1-3.trace.json").write_text(TRACE[:-3], encoding="utf-8")
    assert "no JSON" in refused(capsys, "fuzz", "--again", "R-LIFE-1-3.trace.json")
    Path("day.jsonl").write_text(JOURNAL[0].replace('"version":1', '"version":2'), encoding="utf-8")
    for command in ("compare", "show"):
        assert "a journal of version 2, and this reads version 1" in refused(capsys, command, "day.jsonl")


def test_what_is_none_of_ours_is_not_said_to_be() -> None:
    os.mkfifo("pipe")
    Path("broken.gz").write_bytes(gzip.compress(ended(JOURNAL))[:20])
    for name in ("other.json", "missing", ".", "pipe", "broken.gz", "a\0b", "long" * 100):
        assert another_of_ours(name, Path(name)) is None


def test_the_files_of_a_counterexample_are_known_by_one_of_them() -> None:
    names = {str(path) for path in beside(Path("out/R-LIFE-1-3.trace.json"))}
    assert names == {f"out/R-LIFE-1-3{ending}" for ending in (".trace.json", ".journal.jsonl", ".png")}

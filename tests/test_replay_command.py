"""`pagedkv replay` as a user meets it: table, JSON, journal, and everything that can be wrong with its arguments."""

import gzip
import json
import os
import shlex
from pathlib import Path

import pytest
from pagedkv.bench.command_line import run

Captured = pytest.CaptureFixture[str]

TRACE = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
0,ChatGPT,4,2,6,API log
0,ChatGPT,3,1,4,API log
1,GPT-4,0,0,0,API log
1,GPT-4,9,9,18,API log
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Four requests: two that fit into two blocks of four, one without tokens, one of 17 positions."""
    path = tmp_path / "trace [1].csv"
    path.write_text(TRACE, encoding="utf-8")
    return path


def _replayed(tmp_path: Path, *arguments: str | Path) -> dict[str, object]:
    result = tmp_path / "replay.json"
    assert run(["replay", *map(str, arguments), "--json", str(result)]) == 0
    facts: dict[str, object] = json.loads(result.read_text(encoding="utf-8"))
    return facts


def test_json_has_the_figures_and_the_command(tmp_path: Path, trace: Path) -> None:
    facts = _replayed(tmp_path, trace, "--block-size", "4", "--blocks", "2", "--seed", "7")
    assert {key: facts[key] for key in ("requests", "finished", "refused", "logical_tokens", "tail_waste")} == {
        "requests": 4,
        "finished": 2,
        "refused": 2,
        "logical_tokens": 5 + 3,
        "tail_waste": 3 + 1,
    }
    assert facts["refused_requests"] == [{"request": 2, "reason": "Empty"}, {"request": 3, "reason": "TooLong"}]
    assert (facts["trace_format"], facts["engine"], facts["final_length"]) == ("burstgpt", "impl", "prompt+output-1")
    assert facts["seed"] == 7
    words = shlex.split(str(facts["command"]))
    assert words[:3] == ["pagedkv", "replay", str(trace)]
    again = run(words[1:])
    assert again == 0
    assert json.loads((tmp_path / "replay.json").read_text(encoding="utf-8")) | {"seconds": 0} == facts | {"seconds": 0}


def test_table_says_the_same_and_takes_no_file_name_for_markup(capsys: Captured, trace: Path) -> None:
    assert run(["replay", str(trace), "--block-size", "4"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    assert "trace [1].csv: burstgpt trace, engine impl" in output.out
    rows = {line.split()[1]: line.split()[3] for line in output.out.splitlines() if line.startswith("│")}
    assert (rows["requests"], rows["finished"], rows["refused"], rows["block_table_entries"]) == ("4", "3", "1", "8")
    assert output.out.splitlines()[-1] == shlex.join(["pagedkv", "replay", str(trace), "--block-size", "4"])


def test_first_requests_only(tmp_path: Path, trace: Path) -> None:
    assert _replayed(tmp_path, trace, "--requests", "2")["requests"] == 2


def test_final_length_with_the_last_token(tmp_path: Path, trace: Path) -> None:
    assert _replayed(tmp_path, trace, "--final-length", "prompt+output")["logical_tokens"] == 6 + 4 + 18


def test_clocked(tmp_path: Path, trace: Path) -> None:
    """At 1 s a step the third and the fourth arrive at step 1, when the first two have one step left between them."""
    facts = _replayed(tmp_path, trace, "--step-ms", "1000")
    assert (facts["steps"], facts["peak_running"], facts["step_ms"]) == (1 + 9, 2, 1000.0)


@pytest.mark.parametrize(
    ("option", "target", "said"),
    [
        ("--json", ".", "no plain file"),
        ("--json", "missing/replay.json", "there is no folder"),
        ("--json", "trace [1].csv", "in use"),
        ("--json", "link.csv", "in use"),
        ("--json", "a\0b", "null byte"),
        ("--json", "long" * 100, "no usable file name"),
        ("--journal", ".", "no plain file"),
        ("--json", "pipe", "no plain file"),
        ("--json", "loop", "no usable file name"),
        ("--journal", "pipe", "no plain file"),
        ("--journal", "missing/journal.gz", "there is no folder"),
        ("--journal", "trace [1].csv", "in use"),
    ],
)
def test_outputs_are_checked_before_the_work(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, trace: Path, option: str, target: str, said: str
) -> None:
    monkeypatch.chdir(trace.parent)
    Path("link.csv").symlink_to(trace)
    Path("loop").symlink_to("loop")
    os.mkfifo("pipe")
    assert run(["replay", trace.name, option, target]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert said in output.err
    assert output.err.count("\n") == 1
    assert trace.read_text(encoding="utf-8") == TRACE


def test_json_and_journal_are_two_files(capsys: Captured, tmp_path: Path, trace: Path) -> None:
    both = str(tmp_path / "both")
    assert run(["replay", str(trace), "--json", both, "--journal", both]) == 2
    assert "in use by the same command" in capsys.readouterr().err


def test_a_failure_leaves_the_old_result(tmp_path: Path, trace: Path) -> None:
    result = tmp_path / "old.json"
    result.write_text("old", encoding="utf-8")
    trace.write_text(TRACE + "0,ChatGPT,4", encoding="utf-8")
    assert run(["replay", str(trace), "--json", str(result)]) == 2
    assert result.read_text(encoding="utf-8") == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old.json", "trace [1].csv"]


def test_a_link_is_followed_and_stays_one(tmp_path: Path, trace: Path) -> None:
    link, target = tmp_path / "latest.json", tmp_path / "replay.json"
    link.symlink_to(target)
    assert run(["replay", str(trace), "--json", str(link)]) == 0
    assert link.is_symlink()
    assert json.loads(target.read_text(encoding="utf-8"))["finished"] == 3


@pytest.mark.parametrize("name", ["journal.jsonl", "journal.jsonl.gz"])
def test_journal_is_whole_and_beside_nothing_else(tmp_path: Path, trace: Path, name: str) -> None:
    journal = tmp_path / name
    assert run(["replay", str(trace), "--block-size", "4", "--blocks", "2", "--journal", str(journal)]) == 0
    opened = gzip.open if name.endswith(".gz") else open
    with opened(journal, "rt", encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    assert (lines[0]["journal"], lines[0]["blocks"], lines[0]["block_size"]) == ("pagedkv", 2, 4)
    operations = [(line["op"], line.get("seq", line.get("id", line.get("seqs")))) for line in lines[1:-1]]
    assert operations == [
        ("add", 0),
        ("launch", 1),
        ("extend", [0]),
        ("launch", 2),
        ("release", 0),
        ("retire", 1),
        ("retire", 2),
        ("add", 1),
        ("launch", 3),
        ("release", 1),
        ("retire", 3),
    ]
    assert (lines[-1]["op"], lines[-1]["lines"]) == ("end", len(lines) - 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, trace.name])

"""`pagedkv show` as a user calls it: pictures, exit codes, one line for what cannot be drawn."""

import gzip
import json
from pathlib import Path

import pytest
from pagedkv.bench.command_line import run
from pagedkv.bench.show_files import FORMATS

from hand_written_journal import JOURNAL, change, ended

BEGINNINGS = {".png": b"\x89PNG", ".svg": b"<?xml", ".html": b"<!doctype html>"}
Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder of one's own, with a sound journal in it and a broken one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sound.jsonl").write_bytes(ended(JOURNAL))
    (tmp_path / "broken.jsonl").write_bytes(ended(change(9, '"seq":1', '"seq":1,"freed":[3]')(JOURNAL)))
    return tmp_path


@pytest.mark.parametrize("ending", FORMATS)
def test_the_ending_of_the_name_says_what_is_drawn(capsys: Captured, ending: str) -> None:
    assert run(["show", "sound.jsonl", "-o", f"blocks{ending}"]) == 0
    assert Path(f"blocks{ending}").read_bytes().startswith(BEGINNINGS[ending])
    assert capsys.readouterr().out == f"blocks{ending}: sound.jsonl, 6 blocks, 13 of 13 operations\n"


def test_without_a_name_it_is_a_png() -> None:
    assert run(["show", "sound.jsonl"]) == 0
    assert Path("blocks.png").read_bytes().startswith(BEGINNINGS[".png"])


def test_a_compressed_journal_gives_the_same_picture() -> None:
    Path("sound.jsonl.gz").write_bytes(gzip.compress(ended(JOURNAL)))
    facts = []
    for name in ("sound.jsonl", "sound.jsonl.gz"):
        assert run(["show", name, "--json", "facts.json"]) == 0
        facts.append(json.loads(Path("facts.json").read_text(encoding="utf-8")))
    differ = {key for key in facts[0] if facts[0][key] != facts[1][key]}
    assert differ == {"journal", "command"}


def test_json_says_what_was_drawn() -> None:
    assert run(["show", "sound.jsonl", "--json", "facts.json", "-o", "p.svg"]) == 0
    assert json.loads(Path("facts.json").read_text(encoding="utf-8")) == {
        "blocks": 6,
        "block_size": 4,
        "streams": 2,
        "launches": 3,
        "steps": 13,
        "sampled": False,
        "blocks_used": 3,
        "blocks_drawn": [1, 2, 3, 4, 5, 6],
        "steps_drawn": 13,
        "copies": 1,
        "most_at_once": {"held": 2, "shared": 2, "quarantined": 2, "idle": 0, "in_flight": 3},
        "at_the_end": {"held": 0, "shared": 0, "quarantined": 0, "idle": 0, "in_flight": 0},
        "rule": None,
        "line": None,
        "detail": None,
        "journal": "sound.jsonl",
        "picture": "p.svg",
        "command": "pagedkv show sound.jsonl --json facts.json -o p.svg",
    }


def test_a_broken_rule_is_drawn_told_and_exit_one(capsys: Captured) -> None:
    assert run(["show", "broken.jsonl", "--json", "facts.json"]) == 1
    output = capsys.readouterr()
    assert output.err == ""
    lines = output.out.splitlines()
    assert lines[0] == "blocks.png: broken.jsonl, 6 blocks, 8 of 8 operations"
    assert lines[1] == "R-LIFE-1: No block is allocatable while a launch in flight reads or writes it."
    assert lines[2] == "line 9: block 3 became free too early: launches [2] in flight touch it"
    facts = json.loads(Path("facts.json").read_text(encoding="utf-8"))
    assert (facts["rule"], facts["line"], facts["steps"]) == ("R-LIFE-1", 9, 7)
    assert Path("blocks.png").exists()


def test_a_journal_cut_off_is_drawn_and_exit_one(capsys: Captured) -> None:
    Path("cut.jsonl").write_bytes("".join(JOURNAL[:6]).encode()[:-5])
    assert run(["show", "cut.jsonl"]) == 1
    assert "line 6: the line was cut off: it has no end" in capsys.readouterr().out
    assert Path("blocks.png").exists()


def test_an_empty_run_and_one_of_nothing_but_a_header_can_be_drawn() -> None:
    Path("empty.jsonl").write_bytes(ended(JOURNAL[:1]))
    assert run(["show", "empty.jsonl", "-o", "empty.html"]) == 0
    Path("header.jsonl").write_bytes(JOURNAL[0].encode())
    assert run(["show", "header.jsonl", "-o", "header.html"]) == 1


def test_sizes_that_cannot_be_are_a_broken_journal(capsys: Captured) -> None:
    Path("sizes.jsonl").write_bytes(ended([JOURNAL[0].replace('"blocks":6', '"blocks":0'), *JOURNAL[1:]]))
    assert run(["show", "sizes.jsonl"]) == 1
    assert "JOURNAL: line 1: every size must be at least 1" in capsys.readouterr().err
    assert not Path("blocks.png").exists()


def test_a_pool_of_any_size_and_names_of_any_length_can_be_drawn() -> None:
    header = (
        JOURNAL[0].replace('"blocks":6', f'"blocks":{2**63 - 1}').replace('"launches":3', f'"launches":{2**63 - 1}')
    )
    huge = [
        f'{{"op":"add","seq":{-(2**63) + 1},"out":[{2**63 - 1}]}}\n',
        f'{{"op":"add","seq":{2**63 - 1},"out":[1]}}\n',
    ]
    Path("huge.jsonl").write_bytes(ended([header, *huge]))
    assert run(["show", "huge.jsonl", "-o", "huge.html"]) == 0


NO_JOURNALS = {
    "missing": None,
    "empty": b"",
    "picture": b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
    "words": b"once upon a time\n",
    "other": b'{"journal":"of a plague year","version":1}\n',
    "newer": JOURNAL[0].replace('"version":1', '"version":2').encode(),
    "packed": b"\x1f\x8b" + b"no gzip data",
}


@pytest.mark.parametrize("name", NO_JOURNALS)
def test_what_is_no_journal_is_one_line_and_changes_nothing(capsys: Captured, name: str) -> None:
    content = NO_JOURNALS[name]
    if content is not None:
        Path(name).write_bytes(content)
    Path("blocks.png").write_bytes(b"old")
    before = sorted(Path().iterdir())
    assert run(["show", name]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(f"pagedkv: {name}: ")
    assert output.err.count("\n") == 1
    assert Path("blocks.png").read_bytes() == b"old"
    assert sorted(Path().iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "JOURNAL"),
        (["."], "."),
        (["a\0b"], "null byte"),
        (["sound.jsonl", "broken.jsonl"], "broken.jsonl"),
        (
            ["sound.jsonl", "-o", "blocks.gif"],
            "--out blocks.gif: no picture ends like that; end the name in .png, .svg",
        ),
        (["sound.jsonl", "-o", "blocks"], "no picture ends like that"),
        (["sound.jsonl", "-o", ""], "no picture ends like that"),
        (["sound.jsonl", "-o", "."], "no picture ends like that"),
        (["sound.jsonl", "-o", "nowhere/blocks.png"], "there is no folder"),
        (["sound.jsonl", "-o", "folder.png"], "no plain file"),
        (["sound.jsonl", "-o", "a\0.png"], "null byte"),
        (["sound.jsonl", "-o", f"{'a' * 300}.png"], "no usable file name"),
        (["linked.html", "-o", "linked.html"], "in use by the same command"),
        (["sound.jsonl", "--json", "sound.jsonl"], "in use by the same command"),
        (["sound.jsonl", "--json", "blocks.png"], "in use by the same command"),
        (["sound.jsonl", "--json", "."], "no plain file"),
        (["sound.jsonl", "--seed", "x"], "--seed"),
    ],
)
def test_wrong_usage_is_one_line(folder: Path, capsys: Captured, arguments: list[str], said: str) -> None:
    (folder / "folder.png").mkdir()
    (folder / "linked.html").symlink_to("sound.jsonl")
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert run(["show", *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert said in output.err
    assert output.err.count("\n") == 1
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_a_counterexample_comes_with_its_picture_and_its_journal_can_be_shown(capsys: Captured) -> None:
    world = ["--blocks", "2", "--block-size", "1", "--max-tokens", "2", "--workers", "1"]
    assert run(["explore", "--target", "planted_faults:EarlyReuse", *world, "--out", "found"]) == 1
    assert "picture: found/R-LIFE-1-3.png\n" in capsys.readouterr().out
    assert Path("found/R-LIFE-1-3.png").read_bytes().startswith(BEGINNINGS[".png"])
    assert run(["show", "found/R-LIFE-1-3.journal.jsonl", "-o", "found/page.html"]) == 1
    assert "R-LIFE-1" in capsys.readouterr().out


def test_a_manager_that_cannot_be_drawn_costs_the_picture_alone(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_picture(*_: object) -> None:
        raise TypeError("blocks of wool")

    monkeypatch.setattr("pagedkv.bench.counterexample_files.write_picture", no_picture)
    world = ["--blocks", "2", "--block-size", "1", "--max-tokens", "2", "--workers", "1"]
    assert run(["explore", "--target", "planted_faults:EarlyReuse", *world, "--out", "found"]) == 1
    assert "picture" not in capsys.readouterr().out
    assert {path.name for path in Path("found").iterdir()} == {"R-LIFE-1-3.trace.json", "R-LIFE-1-3.journal.jsonl"}

"""How the tests of `explore` and `fuzz` run them: expecting bad input, or a finding; in a folder of their own."""

import json
from pathlib import Path

import pytest
from pagedkv.bench.command_line import run

Captured = pytest.CaptureFixture[str]

SMALL = ("--blocks", "2", "--block-size", "1", "--max-tokens", "2", "--launches", "1", "--workers", "1")
EXPLORE = ("explore", *SMALL)
FUZZ = ("fuzz", "--runs", "30", "--workers", "1")


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

"""How the tests of `explore` and `fuzz` run them: expecting bad input, or a finding; in a folder of their own."""

import json
from pathlib import Path
from typing import Any

import pytest
from pagedkv.bench.command_line import run
from pagedkv.bench.foreign_search import foreign_plan
from pagedkv.spec.fuzz import run as run_seed
from pagedkv.spec.shrinking import shrink
from pagedkv.spec.traces import Finding

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
    assert sorted(map(str, Path("found").iterdir())) == sorted(
        facts[what] for what in ("trace", "journal", "picture") if what in facts
    )
    differs = next(line for line in output.out.splitlines() if line.startswith("what differs: "))
    return facts["rule"], differs.removeprefix("what differs: ")


def first_finding(scheduler: Any, rule: str | None = None, runs: int = 400) -> Finding | None:
    """Return what the first of many short runs of a stranger's scheduler finds that breaks this rule, or any."""
    plan = foreign_plan(scheduler)._replace(operations=60)
    found = (run_seed(plan, seed).finding for seed in range(runs))
    return next((finding for finding in found if finding and rule in (None, finding.broken.rule)), None)


def shortened(finding: Finding) -> Finding:
    """Return the finding with a shorter trace, however slow the machine is."""
    return shrink(finding, seconds=600)

"""The pages of text are true: what they show runs, what they list exists, what they state is what the code states.

A README that is not run is wrong within a month, so this one is: its demo as a doctest, its example manager under the
driver that it names, its commands through the parser of the command line, its tables against what they describe.
"""

import doctest
import pydoc
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import typer.core
import typer.main
from pagedkv.bench.command_line import application, run
from pagedkv.spec import foreign_scheduler, manager
from pagedkv.spec.alphabet import KINDS, REFUSALS, Execute
from pagedkv.spec.foreign_judge import FOREIGN_RULES
from pagedkv.spec.outside import OUTSIDE
from pagedkv.spec.rules import RULES, Rule
from pagedkv.spec.rules_scheduling import SCHEDULING
from pagedkv.spec.scheduler_alphabet import KINDS as SCHEDULER_KINDS
from pagedkv.spec.scheduler_alphabet import REFUSALS as SCHEDULER_REFUSALS

from checkout import ROOT, commands, fenced, modules, table, tracked
from foreign_scheduler_faults import FAULTS as FOREIGN_FAULTS
from test_outside_rules import BROKEN_BY
from test_planted_faults import CONTENTS, LOCK_STEP
from test_planted_sharing_faults import CONTENTS as SHARED_CONTENTS
from test_planted_sharing_faults import LOCK_STEP as SHARED
from test_scheduler_lock_step import FAULTS

SPEC = "spec/README.md"
PAGES = ("README.md", "spec/README.md", "kernels/README.md", "bench/README.md", "tests/README.md")


def words_in_code(cell: str) -> list[str]:
    """Return what a table's cell has between backticks."""
    return re.findall(r"`([^`]+)`", cell)


def command_lines(page: str) -> list[list[str]]:
    """Return the `pagedkv ...` lines of a page, split into words."""
    lines = [line for text in fenced(page, "bash") for line in text.splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("pagedkv ")]


# ---- README.md ------------------------------------------------------------------------------------------------------


def test_the_demo_runs_as_shown() -> None:
    (demo,) = fenced("README.md", "pycon")
    examples = doctest.DocTestParser().get_doctest(demo, {}, "README.md", "README.md", 0)
    assert len(examples.examples) > 10
    shown: list[str] = []
    outcome = doctest.DocTestRunner(verbose=False).run(examples, out=shown.append)
    assert outcome.failed == 0, "".join(shown)


def test_ci_runs_the_command_that_people_are_told() -> None:
    told = commands("README.md")
    assert told.keys() == {"verify", "tests"}
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert 'tests="$(.ci/readme_command tests)"' in script
    assert 'bash -euo pipefail -c "$tests"' in script
    for mark, text in told.items():
        printed = subprocess.run([".ci/readme_command", mark], cwd=ROOT, capture_output=True, check=True, text=True)
        assert printed.stdout == text
    assert "pip install -e '.[test]'" in told["tests"]
    assert told["tests"].rstrip().endswith("-m pytest")
    assert told["verify"].rstrip().endswith("pagedkv verify")


def test_a_command_without_a_mark_is_one_line() -> None:
    asked = subprocess.run([".ci/readme_command", "none"], cwd=ROOT, capture_output=True, check=False, text=True)
    assert (asked.returncode, asked.stdout, len(asked.stderr.splitlines())) == (2, "", 1)


def test_every_command_is_shown_and_every_option_shown_exists() -> None:
    group = typer.main.get_command(application)
    assert isinstance(group, typer.core.TyperGroup)
    offered = group.commands
    shown = command_lines("README.md")
    assert {words[0] for words in shown} == offered.keys()
    for first, *words in shown:
        options = {option for parameter in offered[first].params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options, first


def test_the_example_manager_holds_on_one_stream_and_not_on_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (source,) = fenced("README.md", "python")
    (tmp_path / "my_manager.py").write_text(source, encoding="utf-8")
    two = source.replace("    def __init__", "    streams_offered = 2\n\n    def __init__")
    (tmp_path / "my_manager_on_two_streams.py").write_text(two, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert ["fuzz", "--target", "my_manager:MyManager"] in command_lines("README.md")
    small = ["--runs", "20", "--workers", "1"]
    assert run(["fuzz", "--target", "my_manager:MyManager", *small]) == 0
    capsys.readouterr()
    assert run(["explore", "--target", "my_manager_on_two_streams:MyManager", "--workers", "1"]) == 1
    told = capsys.readouterr().out
    shown = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "R-LIFE-2 does not hold after 3 operations" in told
    for line in [line for line in shown.splitlines() if line.startswith(("│ ", "what differs:"))]:
        assert line in told


# ---- spec/README.md -------------------------------------------------------------------------------------------------


def test_the_table_of_operations_is_that_of_the_code() -> None:
    rows = {
        words_in_code(first)[0].partition("(")[0]: refused
        for first, refused, *_ in table("spec/README.md", "operation")
    }
    assert list(rows) == list(KINDS.values())
    for operation, refused in rows.items():
        assert words_in_code(refused) == [str(reason) for reason in REFUSALS[operation]], operation


def _on(rule: Rule) -> str:
    """Return on which operations a rule can fail; all, where the device's own is the only one that can be missing."""
    on = set(rule.on or KINDS)
    return "all" if on >= KINDS.keys() - {Execute} else ", ".join(KINDS[kind] for kind in rule.on or ())


def test_the_table_of_rules_is_that_of_the_code() -> None:
    found: dict[str, list[str]] = {name: [] for name in RULES}
    planted = [(e.rule, f"`{fault.__name__}` {e.length}") for fault, e in (*LOCK_STEP.items(), *CONTENTS.items())]
    planted += [(e.rule, f"`{fault.__name__}` {e.length}") for fault, e in (*SHARED.items(), *SHARED_CONTENTS.items())]
    for rule_name, words in dict.fromkeys(planted):
        if rule_name in found:  # CRASH is none
            found[rule_name].append(words)
    right = []
    for rule in RULES.values():
        on = _on(rule)
        right.append([rule.name, rule.sentence, on, ", ".join(found[rule.name])])
    lines = "\n".join(f"| {' | '.join(cells)} |".replace("  ", " ") for cells in right)
    assert table("spec/README.md", "rule") == right, f"the rows should be\n{lines}"


def test_the_table_of_rules_from_outside_is_that_of_the_code() -> None:
    right = []
    for rule in OUTSIDE.values():
        on = _on(rule)
        right.append([rule.name, rule.sentence, on, f"`{BROKEN_BY[rule.name].__name__}`"])
    lines = "\n".join(f"| {' | '.join(cells)} |" for cells in right)
    assert table(SPEC, "rule from outside") == right, f"the rows should be\n{lines}"


def test_the_table_of_a_schedulers_operations_is_that_of_the_code() -> None:
    told = table(SPEC, "scheduler operation")
    rows = {words_in_code(first)[0].partition("(")[0]: refused for first, refused, _ in told}
    assert list(rows) == list(SCHEDULER_KINDS.values())
    for operation, refused in rows.items():
        assert words_in_code(refused) == [str(reason) for reason in SCHEDULER_REFUSALS[operation]], operation


def test_the_table_of_scheduling_rules_is_that_of_the_code() -> None:
    right = []
    for rule in SCHEDULING.values():
        on = ", ".join(SCHEDULER_KINDS[kind] for kind in rule.on) if rule.on else "all"
        faults = [f"`{fault.__name__}` {found.length}" for fault, found in FAULTS.items() if found.rule == rule.name]
        right.append([rule.name, rule.sentence, on, ", ".join(faults)])
    assert table(SPEC, "scheduling rule") == right


def test_the_table_of_rules_of_a_strangers_scheduler_is_that_of_the_code() -> None:
    right = []
    for rule, sentence in FOREIGN_RULES.items():
        faults = [f"`{fault.__name__}`" for fault, broken in FOREIGN_FAULTS.items() if broken == rule]
        right.append([rule, sentence, ", ".join(faults)])
    assert table(SPEC, "rule of a stranger's scheduler") == right


def test_the_reading_order_names_every_module_once() -> None:
    heads = re.findall(r"^\| (module \S.*?) \|", (ROOT / SPEC).read_text(encoding="utf-8"), flags=re.MULTILINE)
    tables = [table(SPEC, head) for head in heads]
    named = [name for rows in tables for first, _ in rows for name in words_in_code(first)]
    assert sorted(named) == [module.stem for module in modules("spec") if module.stem != "__init__"]


def test_every_module_of_the_workbench_stands_in_one_row() -> None:
    rows = [words_in_code(first) for first, _ in table("bench/README.md", "modules")]
    for module in modules("bench"):
        if module.stem != "__init__":
            places = [row for row in rows if any(Path(module.stem).match(pattern) for pattern in row)]
            assert len(places) == 1, f"{module.stem} stands in {len(places)} rows"
    patterns = [pattern for row in rows for pattern in row]
    assert [each for each in patterns if not any(Path(module.stem).match(each) for module in modules("bench"))] == []


# ---- the protocols: their text is all that the author of an adapter is given -----------------------------------------


@pytest.mark.parametrize(("protocol", "classes"), [(manager, 1), (foreign_scheduler, 3)])
def test_the_help_of_a_protocol_tells_all_that_is_its_own_and_nothing_else(protocol: ModuleType, classes: int) -> None:
    shown = pydoc.plain(pydoc.render_doc(protocol))
    assert all(line.strip() in shown for line in (protocol.__doc__ or "").splitlines())
    told = re.findall(r"^    class (\w+)", shown, flags=re.MULTILINE)
    assert len(told) == classes, told
    assert all(getattr(protocol, name).__module__ == protocol.__name__ for name in told)


def test_the_text_for_adapters_names_every_feature_discipline_and_method() -> None:
    text = manager.__doc__ or ""
    features = [feature.name for feature in manager.Feature]
    assert [name for name in features if not re.search(rf"\b{name}\b", text)] == []
    assert [each.name for each in manager.Discipline if f"Discipline.{each.name}" not in text] == []
    methods = [name for name, value in vars(manager.Manager).items() if callable(value) and not name.startswith("__")]
    assert [name for name in methods if name not in text] == []


@pytest.mark.parametrize("protocol", [manager, foreign_scheduler])
def test_what_an_adapter_imports_is_there(protocol: ModuleType) -> None:
    imported = re.search(rf"from {re.escape(protocol.__name__)} import (.+)", protocol.__doc__ or "")
    assert imported
    assert [name for name in imported[1].split(", ") if not hasattr(protocol, name)] == []


# ---- tests/README.md, and all pages ---------------------------------------------------------------------------------


def test_every_test_file_has_its_place() -> None:
    patterns = [pattern for first, _ in table("tests/README.md", "files") for pattern in words_in_code(first)]
    tests = [module.name for module in modules("tests") if module.name.startswith("test_")]
    assert [name for name in tests if not any(Path(name).match(pattern) for pattern in patterns)] == []
    assert [pattern for pattern in patterns if not any(Path(name).match(pattern) for name in tests)] == []


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)", text):
        assert (ROOT / page).parent.joinpath(target).exists(), target
    for name in re.findall(r"`((?:spec|impl|kernels|bench|tests)/\w+\.py)`", text):
        assert (ROOT / name).exists(), name


def test_every_page_of_text_is_looked_at() -> None:
    assert {name for name in tracked() if name.endswith(".md")} == set(PAGES)


def test_the_oldest_interpreter_is_the_one_that_the_package_names() -> None:
    told = re.search(r"Python (\S+) or newer", (ROOT / "README.md").read_text(encoding="utf-8"))
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert told
    assert settings["project"]["requires-python"] == f">={told[1]}"

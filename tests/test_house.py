"""The house itself: its layout, who may import whom, its size, its style, its packaging.

What no reader should have to check by hand. Linter and type checker run here as they run by hand, with the
configuration of pyproject.toml and nothing else; each guard that is written out below is tried on something planted.
"""

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from checkout import PACKAGES, ROOT, modules, tracked

TOP_LEVEL = {"pyproject.toml", "README.md", "LICENSE", *PACKAGES, "tests", ".ci", ".gitignore", ".typings"}
MAY_IMPORT = {"spec": set(), "impl": {"kernels"}, "kernels": set(), "bench": {"spec", "impl", "kernels"}}
MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70
ESSAY_WORDS_MIN = 20
ALL = modules(*PACKAGES, "tests", ".ci")
OURS = modules(*PACKAGES)


def name_of(module: Path) -> str:
    """Return a module's place, for the names of tests."""
    return str(module.relative_to(ROOT))


def run_tool(*command: str, cwd: Path = ROOT) -> str:
    """Run a Python tool as a module and return what it says; a tool that found something says it in the failure."""
    done = subprocess.run([sys.executable, "-m", *command], cwd=cwd, capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def settings() -> dict[str, Any]:
    """Return pyproject.toml, read."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


# ---- style ----------------------------------------------------------------------------------------------------------


def test_the_linter_finds_nothing() -> None:
    run_tool("ruff", "check", "--quiet")


def test_the_formatter_would_change_nothing() -> None:
    run_tool("ruff", "format", "--check", "--quiet")


def test_the_type_checker_finds_nothing() -> None:
    counted = re.search(r"no issues found in (\d+) source files", run_tool("mypy"))
    assert counted, "mypy says how much it looked at"
    assert int(counted[1]) >= len(ALL)


def test_the_type_checker_is_strict_and_sees_every_package(tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / ".typings", tmp_path / ".typings", symlinks=True)
    for folder in (*PACKAGES, "tests", ".ci"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"planted_in_{folder.strip('.')}.py").write_text("def untyped(): ...\n")
    done = subprocess.run([sys.executable, "-m", "mypy"], cwd=tmp_path, capture_output=True, check=False, text=True)
    found = re.findall(r"planted_in_(\w+)\.py:1: error: .*\[no-untyped-def\]", done.stdout)
    assert sorted(found) == sorted([*PACKAGES, "tests", "ci"]), done.stdout + done.stderr


def test_every_linter_rule_is_on_and_each_exception_has_its_reason() -> None:
    lint = settings()["tool"]["ruff"]["lint"]
    assert lint["select"] == ["ALL"]
    excepted = [*lint["ignore"], *(code for codes in lint["per-file-ignores"].values() for code in codes)]
    lines = (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    for code in excepted:
        reasons = [line.partition("#")[2].split() for line in lines if f'"{code}"' in line.partition("#")[0]]
        assert reasons, code
        assert all(len(reason) >= 3 for reason in reasons), f"{code} is excepted without a reason"


# ---- layout ---------------------------------------------------------------------------------------------------------


def test_the_top_level_holds_what_belongs_there() -> None:
    assert {name.partition("/")[0] for name in tracked()} <= TOP_LEVEL


def test_packages_are_flat_and_listed_and_hold_only_what_the_wheel_takes() -> None:
    setuptools = settings()["tool"]["setuptools"]
    assert setuptools["packages"] == [f"pagedkv.{package}" for package in PACKAGES]
    assert setuptools["package-dir"] == {f"pagedkv.{package}": package for package in PACKAGES}
    taken = {".py", *(Path(pattern).suffix for pattern in setuptools["package-data"]["*"])}
    for name in tracked():
        folder, _, rest = name.partition("/")
        if folder in PACKAGES:
            assert "/" not in rest, f"{name}: a sub-package would be missing from the wheel"
            assert Path(rest).suffix in taken, f"{name}: package-data does not name its kind"


def test_every_package_is_typed_and_seen_by_type_checkers() -> None:
    for package in PACKAGES:
        assert (ROOT / package / "py.typed").is_file()
        assert (ROOT / ".typings" / "pagedkv" / package).resolve() == ROOT / package


def compare_wheel() -> ModuleType:
    """Return the script of .ci that compares wheel and git, as a module."""
    spec = importlib.util.spec_from_file_location("compare_wheel", ROOT / ".ci" / "compare_wheel.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_wheel_is_compared_with_git() -> None:
    differences = compare_wheel().differences
    own = [f"pagedkv/{name}" for name in tracked() if name.partition("/")[0] in PACKAGES]
    metadata = ["pagedkv-0.1.0.dist-info/METADATA", "pagedkv-0.1.0.dist-info/licenses/LICENSE"]
    assert len(own) > len(OURS)  # py.typed and pages of text besides the modules
    assert differences(tracked(), [*own, *metadata]) == []
    assert differences(tracked(), own[1:]) == [f"{own[0]} is tracked and missing from the wheel"]
    assert differences(tracked(), [*own, "spec/state.py"]) == ["spec/state.py is in the wheel and not tracked"]


def test_what_is_no_wheel_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.whl").write_text("no archive")
    assert [compare_wheel().main([str(tmp_path / name)]) for name in ("absent.whl", "text.whl")] == [2, 2]
    assert len(capsys.readouterr().err.splitlines()) == 2


# ---- imports --------------------------------------------------------------------------------------------------------


def imported(source: str) -> Iterator[str]:
    """Yield each package of ours that a module's text imports, wherever in it the import stands."""
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level >= 2:  # `from ..impl import x`, `from .. import impl`
            names = [f"pagedkv.{node.module or alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = ast.unparse(node.func)
            names = [str(node.args[0].value)] if called.endswith(("import_module", "__import__")) else []
        for name in names:
            first, _, rest = name.partition(".")
            if first == "pagedkv" or first in PACKAGES:
                yield rest.partition(".")[0] if first == "pagedkv" else first


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import pagedkv.impl.cache", ["impl"]),
        ("from pagedkv.impl import cache, names", ["impl", "impl"]),
        ("from pagedkv import bench", ["bench"]),
        ("def f():\n    from ..spec import state", ["spec"]),
        ("from .. import spec", ["spec"]),
        ("import importlib\nimportlib.import_module('pagedkv.spec.state')", ["spec"]),
        ("import spec.state", ["spec"]),
        ("from .state import State\nimport numpy", []),
    ],
)
def test_imports_are_found_wherever_they_stand(source: str, found: list[str]) -> None:
    assert list(imported(source)) == found


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_only_what_they_may(package: str) -> None:
    for module in modules(package):
        others = set(imported(module.read_text(encoding="utf-8"))) - {package}
        assert others <= MAY_IMPORT[package], f"{name_of(module)} imports {others - MAY_IMPORT[package]}"


def test_no_module_goes_by_the_bare_name_of_a_folder() -> None:
    # an adapter imports its peer, which may not be here, and may know other modules by these names (`kernels`)
    ours = [module for module in OURS if not module.stem.startswith(("__", "peer_"))]
    names = [f"pagedkv.{module.parent.name}.{module.stem}" for module in ours]
    lines = ["import importlib, sys", f"for name in {names!r}: importlib.import_module(name)"]
    lines.append(f"print(sorted(set(sys.modules) & {set(PACKAGES)!r}))")
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        check=False,
        text=True,
    )
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr
    assert not set(sys.modules) & set(PACKAGES), "in this process, where tests have imported theirs"


# ---- size and essays ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", ALL, ids=name_of)
def test_modules_and_functions_stay_short(module: Path) -> None:
    source = module.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= MODULE_LINES_MAX
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= FUNCTION_LINES_MAX, f"{node.name} has {lines} lines"


@pytest.mark.parametrize("module", OURS, ids=name_of)
def test_modules_open_with_an_essay(module: Path) -> None:
    essay = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    least = 1 if module.stem.startswith("__") else ESSAY_WORDS_MIN
    assert len(essay.split()) >= least, f"{name_of(module)} opens with {essay!r}"

"""The tests of the kernels, tested: each planted fault must be caught by the test that claims it.

Run with `-v` to see which test catches which fault: the ids of these tests are that table, and so is the one in
`kernels/README.md`, which `test_the_readme_shows_this_table` keeps true.
"""

import importlib
from itertools import product
from pathlib import Path

import pytest
from triton.runtime.errors import InterpreterError

import triton_cases  # noqa: F401  (loads the kernel modules that faults are planted in)
from triton_faults import FAULTS, Fault, planted

RULES_OF_KERNELS = {f"R-KRN-{n}" for n in range(1, 10)}


def _id(fault: Fault) -> str:
    return f"{fault.rule}: {fault.name} -> {fault.caught_by}"


@pytest.mark.parametrize("fault", FAULTS, ids=_id)
def test_fault_is_caught(fault: Fault, tmp_path: Path) -> None:
    with planted(fault, tmp_path):
        assert _is_caught(fault.caught_by), f"{fault.name}: {fault.caught_by} did not notice"


def _is_caught(test: str) -> bool:
    """Run a test on Triton over its parameters until one fails by a comparison or by the sanitizer."""
    file, name = test.split("::")
    function = getattr(importlib.import_module(file), name)
    for arguments in _parameters(function):
        try:
            function(**arguments, backend="triton")
        except AssertionError:
            return True
        except InterpreterError as error:
            if "MemoryFault" in str(error):
                return True
            raise
    return False


def _parameters(function: object) -> list[dict[str, object]]:
    """All combinations of what pytest would pass but for the backend."""
    marks = getattr(function, "pytestmark", [])
    axes = {mark.args[0]: mark.args[1] for mark in marks if mark.name == "parametrize" and mark.args[0] != "backend"}
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def test_every_kernel_rule_has_a_fault() -> None:
    assert {fault.rule for fault in FAULTS} >= RULES_OF_KERNELS


def test_lifting_a_fault_leaves_no_trace(tmp_path: Path) -> None:
    """Otherwise one fault would be blamed for another, and the tests after these would run on faulty kernels."""
    module = importlib.import_module("pagedkv.kernels.attention_kernel")
    before = dict(vars(module))
    with planted(FAULTS[0], tmp_path):
        assert vars(module)["_take_tile"] is not before["_take_tile"]
    assert vars(module) == before


def table() -> str:
    """Faults as a Markdown table."""
    rows = [f"| {f.rule} | {f.name} | `{f.caught_by.split('::')[1]}` |" for f in FAULTS]
    return "\n".join(["| rule | planted fault | caught by |", "|---|---|---|", *rows])


def test_the_readme_shows_this_table() -> None:
    readme = Path(str(importlib.import_module("pagedkv.kernels").__file__)).parent / "README.md"
    assert table() in readme.read_text(), f"kernels/README.md needs this table:\n{table()}"

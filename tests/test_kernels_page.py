"""`kernels/README.md` is true: its example runs, its table names every module, its tolerances are the tests'."""

import re
from typing import Any

import torch

from checkout import fenced, modules, table
from triton_cases import LSE_TOLERANCE, TOLERANCES

PAGE = "kernels/README.md"


def test_the_example_runs_and_appends_where_it_says() -> None:
    names: dict[str, Any] = {}
    (example,) = fenced(PAGE, "python")
    exec(example, names)  # noqa: S102  (the page's own words)
    assert names["output"].shape == (3, 32, 128)
    key, cache = names["key"], names["cache"]
    written = cache.key.flatten(0, 1)
    assert torch.equal(written[[20, 119, 120]], key)
    assert written.count_nonzero() == key.count_nonzero()


def test_the_table_names_every_module() -> None:
    named = [name for first, _ in table(PAGE, "module") for name in re.findall(r"`([^`]+)`", first)]
    assert sorted(named) == [module.stem for module in modules("kernels") if module.stem != "__init__"]


def test_the_tolerances_are_those_of_the_tests() -> None:
    shown = {first: float(largest) for first, largest, _ in table(PAGE, "dtype of the query")}
    wanted = {str(dtype).removeprefix("torch."): tolerance for dtype, tolerance in TOLERANCES.items()}
    assert shown == {**wanted, "any, log-sum-exp": LSE_TOLERANCE}

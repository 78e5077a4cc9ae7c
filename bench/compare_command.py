"""`pagedkv compare`: one journal audited against the spec, or two held against each other.

The command around `compare`. One journal: is every line a step that the spec allows from the state before? Two: do
they tell the same story, but for what the spec leaves to the manager (which free block, when exactly one is given
back)? Exit 0 where all holds, 1 with the first line that does not, 2 for a file that never was a journal.
"""

from pathlib import Path
from typing import Annotated

import typer
from pagedkv.bench.compare import run_compare
from pagedkv.bench.options import JsonFile, Seed

COMPARE_EXAMPLE = "Example: pagedkv compare day.jsonl.gz"


def compare_command(
    journals: Annotated[
        list[Path], typer.Argument(metavar="JOURNAL [JOURNAL]", help="One to audit, or two to compare.")
    ],
    *,
    json_file: JsonFile = None,
    seed: Seed = 0,  # noqa: ARG001  (nothing in it is random; every command takes one)
) -> None:
    """Audit a journal against the spec, or name the first difference between two that no allowed choice explains."""
    if run_compare(journals, json_file):
        raise typer.Exit(1)

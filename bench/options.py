"""What every command of the workbench has in common: its options and how it was called.

`--json` and `--seed` are the same everywhere, and every report names the exact command that made it; the command line
puts that into the context of each command as an `Invocation`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write the results there, too, for programs to read.")
]
Seed = Annotated[int, typer.Option("--seed", min=0, max=(1 << 63) - 1, help="All random choices follow from it.")]
StepMs = Annotated[
    float | None, typer.Option(min=0.001, max=1e9, help="Let requests arrive at their times, a step lasting so long.")
]


@dataclass(frozen=True, slots=True)
class Invocation:
    """The command line as it was given, in a form that a shell takes back; a command finds it in its context."""

    command: str


def invoked_as(context: typer.Context) -> str:
    """Give the exact command that runs this again."""
    invocation = context.find_object(Invocation)
    assert invocation is not None, "the command line passes one to every command"
    return invocation.command

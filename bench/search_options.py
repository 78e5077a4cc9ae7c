"""What the searching commands share: their options, and how a search ends.

`explore`, `fuzz` and `verify` end in the same way where a rule broke: the counterexample as a table, its files in the
folder of `--out`, and the command that runs it again.
"""

from pathlib import Path
from typing import Annotated

import typer
from pagedkv.bench.counterexample import save, show
from pagedkv.spec.traces import Finding
from rich.console import Console

Blocks = Annotated[int, typer.Option("--blocks", min=1, max=4096, help="Usable blocks of the pool.")]
BlockSize = Annotated[int, typer.Option("--block-size", min=1, max=4096, help="Tokens a block.")]
Streams = Annotated[int, typer.Option("--streams", min=1, max=8, help="Device streams.")]
Launches = Annotated[int, typer.Option("--launches", min=1, max=64, help="Launches that may be in flight.")]
ContentsOnly = Annotated[
    bool, typer.Option("--contents-only", help="No lock-step: judge by what a virtual device reads (R-DATA) alone.")
]
Workers = Annotated[int, typer.Option("--workers", min=1, max=256, help="Processes.")]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Where a counterexample is put.")]
OUT_DEFAULT = Path("pagedkv-out")


def end_in_counterexample(finding: Finding, out: Path, target: str) -> dict[str, str]:
    """Print and save a counterexample; return where it is, for a report."""
    console = Console()
    show(console, finding)
    saved = {what: str(name) for what, name in save(finding, out, target)._asdict().items() if name}
    for what, name in saved.items():
        console.print(f"{what}: {name}", soft_wrap=True, markup=False, highlight=False)
    return saved

"""What the searching commands share: their options, and how a search ends.

`explore`, `fuzz` and `verify` end in the same way where a rule broke: the counterexample as a table, its files in the
folder of `--out` (which is looked at before the search), and the command that runs it again.
"""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Annotated

import typer
from pagedkv.bench.counterexample import show
from pagedkv.bench.counterexample_files import LARGEST, save
from pagedkv.bench.failures import BadInput
from pagedkv.bench.result_files import output_file, takes_files
from pagedkv.spec.traces import Finding, tell
from rich.console import Console

BlockSize = Annotated[int | None, typer.Option("--block-size", min=1, max=LARGEST.block_size, help="Tokens a block.")]
Streams = Annotated[int | None, typer.Option("--streams", min=1, max=LARGEST.streams, help="Device streams.")]
Launches = Annotated[
    int | None, typer.Option("--launches", min=1, max=LARGEST.launches, help="Launches that may be in flight.")
]
ContentsOnly = Annotated[
    bool,
    typer.Option(
        "--contents-only",
        help="No lock-step: judge from outside, by what a virtual device reads and what answers show.",
    ),
]
Workers = Annotated[int, typer.Option("--workers", min=1, max=256, help="Processes.")]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Where a counterexample is put.")]
JUDGED_FROM_OUTSIDE = "judged from outside: what a virtual device reads (R-DATA), tables and answers"
OUT_DEFAULT = Path("pagedkv-out")


def output_folder(
    path: Path,
    json_file: Path | None,
    names: Iterable[str] = (),
    keep: Iterable[Path] = (),
    endings: tuple[str, ...] = (),
) -> Path:
    """Give the folder if results can be put there, made if need be: a search must not end in vain.

    Where it is known what its files are called, none of `names` may be a file of `keep`, which are read, nor the file
    of --json; where it is not, no file in it with one of these `endings` may be that of --json. Nothing is made yet.
    Errors: `BadInput`.
    """
    where = f"--out {path}"
    try:
        nearest_first = (path.absolute(), *path.absolute().parents)
        there = next(each for each in nearest_first if each.exists() or each.is_symlink())
        usable = there.is_dir() and takes_files(there)
    except (OSError, ValueError) as error:  # a name too long, a null byte
        raise BadInput(where, f"no usable name ({error})", "name another folder") from error
    if not usable or "\0" in str(path):
        raise BadInput(where, f"{there} is no folder that may be written to", "name another")
    if json_file is not None and json_file == path.resolve():
        raise BadInput(where, "is the file that --json names", "name another folder")
    if path.is_dir():  # else none of its files is there
        for name in names:
            output_file(path / name, "--out", [*keep, *([json_file] if json_file else [])])
    if json_file is not None and path.resolve() in json_file.parents and json_file.name.lower().endswith(endings):
        what = f"a file of a counterexample in the folder of --out {path} may be called that"
        raise BadInput(f"--json {json_file}", what, "name another file")
    return path


def output_places(
    out: Path, json_file: Path | None, names: Iterable[str], inputs: Collection[Path]
) -> tuple[Path, Path | None]:
    """Give the folder of --out and the file of --json, neither in the place of what is read. Errors: `BadInput`."""
    if json_file is not None:
        json_file = output_file(json_file, "--json", keep=inputs)
    return output_folder(out, json_file, names, inputs), json_file


def end_in_counterexample(finding: Finding, out: Path, target: str) -> dict[str, str]:
    """Print and save a counterexample; return where it is, for a report."""
    console = Console(emoji=False)
    told, broken = tell(finding.case, finding.trace)
    show(console, finding, told, broken)
    saved = {what: str(name) for what, name in save(finding, told, out, target)._asdict().items() if name}
    for what, name in saved.items():
        console.print(f"{what}: {name}", soft_wrap=True, markup=False, highlight=False)
    return saved

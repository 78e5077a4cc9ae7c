"""`pagedkv show`: a journal as a picture: who held which block when, and why it was not free.

The command around a film (`show_film`) and its picture (`show_files`). The audit is part of it: a journal that breaks a
rule is drawn up to the line that does, which is marked, and the exit code is that of `pagedkv compare`.
"""

from pathlib import Path
from typing import Annotated, Any

import typer
from pagedkv.bench.options import JsonFile, Seed, invoked_as
from pagedkv.bench.progress import LateProgress
from pagedkv.bench.result_files import output_file, write_json
from pagedkv.bench.show_files import picture_file, write_picture
from pagedkv.bench.show_film import Film
from pagedkv.bench.show_sources import film_of_journal
from pagedkv.spec.counts import counted
from rich.console import Console

SHOW_EXAMPLE = "Example: pagedkv show pagedkv-out/R-LIFE-1-3.journal.jsonl -o blocks.html"


def show_command(
    context: typer.Context,
    journal: Annotated[Path, typer.Argument(metavar="JOURNAL", help="A journal; may be compressed (.gz).")],
    *,
    out: Annotated[
        Path,
        typer.Option("-o", "--out", metavar="FILE", help="The picture: .png, .svg, or .html to point at its cells."),
    ] = Path("blocks.png"),
    json_file: JsonFile = None,
    seed: Seed = 0,  # noqa: ARG001  (nothing in it is random; every command takes one)
) -> None:
    """Draw blocks against steps: who holds each, what is in quarantine, and the first line that breaks a rule.

    Complete up to 40 blocks and 200 lines; beyond, a sample of both, with counts of all. The journal is audited
    on the way: exit code 1 where a rule is broken, and the picture ends there.
    """
    picture = picture_file(out, "--out", [journal])
    if json_file is not None:
        json_file = output_file(json_file, "--json", [journal, picture])
    with LateProgress("reading", journal.stat().st_size if journal.is_file() else None) as progress:
        film = film_of_journal(journal, lambda lines: progress.reached(lines.bytes_read))
    write_picture(film, picture)
    facts = _facts(film) | {"journal": str(journal), "picture": str(out), "command": invoked_as(context)}
    _print(film, journal, out)
    if json_file is not None:
        write_json(json_file, facts)
    if film.mark:
        raise typer.Exit(1)


def _print(film: Film, journal: Path, out: Path) -> None:
    console = Console(emoji=False, soft_wrap=True, markup=False, highlight=False)
    drawn = f"{counted(len(film.blocks), 'block')}, {len(film.stills):,} of {counted(_steps(film), 'operation')}"
    console.print(f"{out}: {journal}, {drawn}{' (a sample)' if film.sampled else ''}")
    if film.mark:
        console.print(f"{film.mark.rule}: {film.mark.sentence}")
        console.print(f"{film.unit} {film.mark.number}: {film.mark.detail}")


def _steps(film: Film) -> int:
    """Return how many operations were read, one that breaks a rule included."""
    broken = bool(film.mark and film.stills and film.stills[-1].number == film.mark.number)
    return film.steps + broken


def _facts(film: Film) -> dict[str, Any]:
    mark = film.mark
    return {
        **film.config._asdict(),
        "steps": film.steps,
        "sampled": film.sampled,
        "blocks_used": film.blocks_used,
        "blocks_drawn": film.blocks,
        "steps_drawn": len(film.stills),
        "copies": len(film.copies),
        "most_at_once": {what: max(series, default=0) for what, series in film.counts._asdict().items()},
        "at_the_end": {what: series[-1] if series else 0 for what, series in film.counts._asdict().items()},
        "rule": mark.rule if mark else None,
        "line": mark.number if mark else None,
        "detail": mark.detail if mark else None,
    }

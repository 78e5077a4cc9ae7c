"""`pagedkv grid`: one table of replays, every trace with every block size, policy and pool, in parallel, resumable.

The command around `grid`: lists become cells, those that a folder has are taken from it, the others are run by this
machine's processes or by Dask's workers, and each is put into the folder as soon as it is done. So the same command
goes on where it was stopped, and a larger grid in the same folder runs only what is new.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from pagedkv.bench.clocked_options import Speedup, StepTimeText, TpotMs, TtftMs, clock_settings
from pagedkv.bench.code_version import code_version
from pagedkv.bench.dask_workers import Dask, crew_of, refuse_beside_dask
from pagedkv.bench.failures import BadInput, quoted
from pagedkv.bench.grid import Cell, CellJob, CellSettings, Failed, cells_of, identity, requests_digest
from pagedkv.bench.grid_folder import CELLS, FinishedCells
from pagedkv.bench.grid_report import GridRow, as_csv, print_tables
from pagedkv.bench.grid_workers import CellOutcome, run_by, run_here
from pagedkv.bench.lists import numbers_of, words_of
from pagedkv.bench.options import JsonFile, Seed, StepMs, invoked_as
from pagedkv.bench.progress import LateProgress
from pagedkv.bench.replay_queue import BLOCKS_MAX, ReplaySettings
from pagedkv.bench.result_files import write_json, write_whole
from pagedkv.bench.scheduler_options import (
    CancelRate,
    MaxRunning,
    MaxTokensPerStep,
    PolicyName,
    PrefillOnly,
    PrefixCache,
    Samples,
    StepsAhead,
    scheduler_settings,
)
from pagedkv.bench.search_options import Workers, output_places
from pagedkv.bench.step_time import step_time_files
from pagedkv.bench.trace_formats import TOKENS_MAX
from pagedkv.bench.traces import REQUESTS_MAX, Trace, read_trace
from pagedkv.spec.counts import counted
from rich.console import Console

CELLS_MAX = 10_000
SLOTS_MAX = BLOCKS_MAX * TOKENS_MAX
OUT_FOLDER = Path("pagedkv-out/grid")
FILES = ("grid.json", "grid.csv")
GRID_EXAMPLE = (
    "Example: pagedkv grid AzureLLMInferenceTrace_conv.csv --block-sizes 8,16,32 --policies reserve,fcfs "
    "--slots 320000,640000 --out grid"
)

Traces = Annotated[list[Path], typer.Argument(metavar="TRACE...", help="Request traces, as `pagedkv replay` takes.")]
BlockSizes = Annotated[str, typer.Option("--block-sizes", metavar="LIST", help="Tokens a block.")]
Policies = Annotated[str, typer.Option("--policies", metavar="LIST", help="Out of reserve, fcfs, priority.")]
Pools = Annotated[
    str | None, typer.Option("--blocks", metavar="LIST", help="Usable blocks; by default one pool, enough for all.")
]
Slots = Annotated[
    str | None,
    typer.Option("--slots", metavar="LIST", help="Pools in tokens instead: the same bytes for each block size."),
]
Requests = Annotated[int | None, typer.Option(min=1, max=REQUESTS_MAX, help="Only the first so many of each trace.")]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Where finished cells and the table are put.")]


def grid_command(
    context: typer.Context,
    traces: Traces,
    *,
    block_sizes: BlockSizes = "8,16,32",
    policies: Policies = "reserve",
    blocks: Pools = None,
    slots: Slots = None,
    requests: Requests = None,
    step_ms: StepMs = None,
    prefix_cache: PrefixCache = None,
    steps_ahead: StepsAhead = None,
    max_tokens_per_step: MaxTokensPerStep = None,
    max_running: MaxRunning = None,
    samples: Samples = None,
    cancel_rate: CancelRate = None,
    prefill_only: PrefillOnly = None,
    step_time: StepTimeText = None,
    speedup: Speedup = None,
    ttft_ms: TtftMs = None,
    tpot_ms: TpotMs = None,
    workers: Workers = 2,
    dask: Dask = None,
    out: Out = OUT_FOLDER,
    json_file: JsonFile = None,
    seed: Seed = 0,
) -> None:
    """Replay every trace with every block size, policy and pool, in parallel, into one table.

    Each finished cell is kept in the folder of --out, and taken from there as long as its requests, its settings and
    the code are the same: so a grid that was stopped goes on. A cell that fails is a row that says why, and the exit
    code is then not 0. With --slots all block sizes have pools of the same bytes, with --blocks they have not. Options
    of a scheduler hold for the policies that have one; with --step-time its replays are clocked. Writes grid.json and
    grid.csv.
    """
    given = {"generate": None, "rate": None} | locals()  # by their names: those of scheduler and clock are looked up
    out, json_file = _outputs(out, json_file, [*traces, *step_time_files(step_time)])
    refuse_beside_dask(context, "workers")
    settings = [
        CellSettings(policy=policy, replay=ReplaySettings(block_size=size, blocks=pool, step_ms=step_ms), **parts)
        for policy, parts in _policies(policies, given, seed)
        for size, pool in _pools(numbers_of("--block-sizes", block_sizes, TOKENS_MAX), blocks, slots)
    ]
    read = _read(traces, requests)
    cells = cells_of(len(read), settings)
    if len(cells) > CELLS_MAX:
        raise BadInput("the grid", f"{len(cells):,} cells, more than {CELLS_MAX:,}", "give shorter lists")
    rows = _run(cells, list(read.values()), list(read), traces, out, workers, dask)
    _report(rows, out, json_file, invoked_as(context))
    if any(isinstance(row.outcome, Failed) for row in rows):
        raise typer.Exit(1)


def _outputs(out: Path, json_file: Path | None, inputs: list[Path]) -> tuple[Path, Path | None]:
    """Give folder and file if they can be written, and nothing is lost by it. Errors: `BadInput`."""
    out, json_file = output_places(out, json_file, FILES, inputs)
    if json_file is not None and json_file.parent == (out / CELLS).resolve():
        raise BadInput(f"--json {json_file}", f"in the folder of finished cells of --out {out}", "name another file")
    return out, json_file


def _pools(sizes: tuple[int, ...], blocks: str | None, slots: str | None) -> list[tuple[int, int | None]]:
    """Return each block size with each pool, in blocks; None: enough for all. Errors: `BadInput`.

    A pool in tokens has as many whole blocks as it holds. That is the same memory for each block size, which a number
    of blocks is not.
    """
    if slots is None:
        pools = (None,) if blocks is None else numbers_of("--blocks", blocks, BLOCKS_MAX)
        return [(size, pool) for size in sizes for pool in pools]
    if blocks is not None:
        raise BadInput("--slots", "pools are given by --blocks too", "give one of the two")
    pools_slots = numbers_of("--slots", slots, SLOTS_MAX)
    if min(pools_slots) < max(sizes):
        what = f"a pool of {min(pools_slots):,} tokens has no block of {max(sizes):,}"
        raise BadInput(f"--slots {quoted(slots)}", what, "give larger pools or smaller blocks")
    if max(pools_slots) // min(sizes) > BLOCKS_MAX:
        what = f"more than {BLOCKS_MAX:,} blocks of {min(sizes):,}"
        raise BadInput(f"--slots {quoted(slots)}", what, "give smaller pools or larger blocks")
    return [(size, pool // size) for size in sizes for pool in pools_slots]


def _policies(text: str, given: dict[str, Any], seed: int) -> list[tuple[PolicyName, dict[str, Any]]]:
    """Return each policy with what its scheduler and its clock are told, if it has them. Errors: `BadInput`."""
    policies = [PolicyName(word) for word in words_of("--policies", text, [policy.value for policy in PolicyName])]
    clock = None
    for policy in sorted(policies, key=lambda policy: policy is not PolicyName.RESERVE):  # first what has no clock
        clock = clock or clock_settings(policy, given["step_ms"], given)  # once: it may be measured, and is one model
    told: list[tuple[PolicyName, dict[str, Any]]] = []
    for policy in policies:
        without = policy is PolicyName.RESERVE and len(policies) > 1  # the options are another policy's
        both = scheduler_settings(policy, dict.fromkeys(given) if without else given, seed)
        told.append((policy, {} if both is None else {"limits": both[0], "traffic": both[1], "clock": clock}))
    return told


def _read(paths: list[Path], requests: int | None) -> dict[str, Trace]:
    """Read the traces; give them by the digests of their requests. Errors: `BadInput`."""
    read: dict[str, Trace] = {}
    for path in paths:
        with LateProgress(f"requests read, {path.name}", requests) as progress:
            trace = read_trace(path, requests, progress.reached)
        digest = requests_digest(trace)
        if digest in read:
            what = f"has the requests that {quoted(str(read[digest].path))} has"
            raise BadInput(str(path), what, "name each trace once")
        read[digest] = trace
    return read


def _run(
    cells: list[Cell],
    traces: list[Trace],
    digests: list[str],
    paths: list[Path],
    out: Path,
    workers: int,
    dask: str | None,
) -> list[GridRow]:
    """Take the cells that were finished earlier, run the others, keep each; give the rows of the table."""
    folder = FinishedCells(out)
    identities = [identity(digests[cell.trace_number], cell.settings) for cell in cells]
    outcomes: dict[int, CellOutcome] = {}
    for cell, each in zip(cells, identities, strict=True):
        if (figures := folder.find(each)) is not None:
            outcomes[cell.number] = figures
    earlier = set(outcomes)
    jobs = [CellJob(cell, traces[cell.trace_number]) for cell in cells if cell.number not in earlier]
    with LateProgress("cells run", len(jobs)) as progress, _runner(jobs, workers, dask) as run:
        progress.reached(0)
        for cell, outcome in run:
            outcomes[cell.number] = outcome
            if not isinstance(outcome, Failed):
                folder.keep(identities[cell.number], outcome)
            progress.reached(len(outcomes) - len(earlier))
    return [
        GridRow(
            str(paths[cell.trace_number]),
            digests[cell.trace_number],
            cell.settings,
            outcomes[cell.number],
            cell.number in earlier,
        )
        for cell in cells
    ]


@contextmanager
def _runner(jobs: list[CellJob], workers: int, dask: str | None) -> Iterator[Iterator[tuple[Cell, CellOutcome]]]:
    """Give whoever runs the cells; nobody is started where there are none. Errors: `BadInput`."""
    if not jobs:
        yield iter(())
        return
    with crew_of(dask) as crew:
        run = run_here(jobs, workers) if crew is None else run_by(crew, jobs)
        try:
            yield run
        finally:
            run.close()  # its processes end here, whatever ended the grid


def _report(rows: list[GridRow], out: Path, json_file: Path | None, command: str) -> None:
    """Print the table and write it."""
    facts = {"command": command, "code": code_version(), "cells": [row.as_json() for row in rows]}
    print_tables(Console(emoji=False), rows)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "grid.json", facts)
    write_whole(out / "grid.csv", as_csv(rows).encode())
    console = Console(emoji=False, soft_wrap=True, markup=False, highlight=False)
    earlier = sum(row.earlier for row in rows)
    console.print(f"{counted(len(rows), 'cell')}, {earlier:,} of them from earlier runs; {out}: grid.json, grid.csv")
    console.print(command)
    if json_file is not None:
        write_json(json_file, facts)

"""`pagedkv fuzz`: long random runs, by seeds and by Hypothesis; and a saved trace run again.

The command around `spec.fuzz` and `spec.machine`. Hypothesis looks first, for a quarter of the time, since what it
finds is minimal; seeds take the rest, since they are many times faster. Whatever is found is shrunk and saved, and
`--again` shows a saved trace on any machine.
"""

from pathlib import Path
from typing import Annotated, Any

import typer
from pagedkv.bench.counterexample import load, show
from pagedkv.bench.options import JsonFile, Seed, invoked_as
from pagedkv.bench.progress import LateSpinner
from pagedkv.bench.result_files import output_file, write_json
from pagedkv.bench.search_options import OUT_DEFAULT, ContentsOnly, Out, Workers, end_in_counterexample
from pagedkv.bench.targets import Target, load_target, trial
from pagedkv.spec.alphabet import KINDS
from pagedkv.spec.fuzz import Plan, Tally, fuzz
from pagedkv.spec.machine import hunt
from pagedkv.spec.state import Config
from pagedkv.spec.traces import Case, Finding, shrink, tell
from rich.console import Console
from rich.table import Table

FUZZ_EXAMPLE = "Example: pagedkv fuzz --target your_package.your_module:YourManager --seconds 60"
EXAMPLES_A_SECOND = 20  # of Hypothesis, to size its share of the time


def fuzz_command(
    context: typer.Context,
    *,
    target: Target = "impl",
    seconds: Annotated[float, typer.Option(min=0.1, max=1e7, help="How long to look.")] = 20.0,
    workers: Workers = 2,
    runs: Annotated[
        int | None, typer.Option(min=1, help="So many seeds instead of a time: repeatable to the operation.")
    ] = None,
    blocks: Annotated[
        int | None, typer.Option(min=1, max=4096, help="Blocks; by default each seed draws 1 to 8.")
    ] = None,
    block_size: Annotated[int, typer.Option(min=1, max=4096, help="Tokens a block, where --blocks is given.")] = 4,
    streams: Annotated[int, typer.Option(min=1, max=8, help="Device streams, where --blocks is given.")] = 2,
    launches: Annotated[int, typer.Option(min=1, max=64, help="Launches in flight, where --blocks is given.")] = 4,
    contents_only: ContentsOnly = False,
    hypothesis: Annotated[bool, typer.Option(help="Let Hypothesis look, too, for a quarter of the time.")] = True,
    again: Annotated[Path | None, typer.Option(metavar="FILE", help="Run a saved trace again and show it.")] = None,
    out: Out = OUT_DEFAULT,
    json_file: JsonFile = None,
    seed: Seed = 0,
) -> None:
    """Drive a cache manager with random operations and late, reordered, repeated completions; shrink what breaks.

    In lock-step with the spec where the target shows its state, else by contents alone. One seed is one run.
    """
    if json_file is not None:
        json_file = output_file(json_file, "--json", keep=[again] if again else [])
    if again is not None:
        _run_again(again, json_file, invoked_as(context))
        return
    factory = load_target(target)
    manager = trial(factory, f"--target {target}", Config(4, 2))
    lock_step = manager.observe() is not None and not contents_only
    config = Config(blocks, block_size, min(streams, manager.streams_offered), launches) if blocks else None
    finding = None
    with LateSpinner("fuzzing") as spinner:
        if hypothesis and runs is None:
            spinner.says("Hypothesis")
            small = config or Config(3, 2, min(2, manager.streams_offered), 2)
            examples = max(20, int(seconds / 4 * EXAMPLES_A_SECOND))
            finding = hunt(Case(small, factory, lock_step), number=seed, examples=examples)
            seconds *= 3 / 4

        def show_progress(tally: Tally) -> None:
            spinner.says(f"{tally.runs:,} runs, {tally.operations:,} operations")

        tally = Tally()
        if finding is None:
            plan = Plan(factory, config, lock_step)
            tally = fuzz(plan, seed=seed, seconds=seconds, runs=runs, workers=workers, progress=show_progress)
            finding = tally.finding
    _print(tally, target, lock_step=lock_step)
    results = _results(tally, finding, target, lock_step=lock_step) | {"command": invoked_as(context)}
    if finding is not None:
        results |= end_in_counterexample(shrink(finding), out, target)
    if json_file is not None:
        write_json(json_file, results)
    if finding is not None:
        raise typer.Exit(1)


def _run_again(path: Path, json_file: Path | None, command: str) -> None:
    saved, target = load(path)
    trial(saved.case.factory, f"--again {path}", saved.case.config)
    _, broken = tell(saved.case, saved.trace)
    show(Console(), Finding(saved.case, saved.trace, broken or saved.broken))
    if json_file is not None:
        write_json(json_file, {"target": target, "rule": broken.rule if broken else None, "command": command})
    if broken:
        raise typer.Exit(1)


def _print(tally: Tally, target: str, *, lock_step: bool) -> None:
    console = Console()
    judge = "lock-step with the spec" if lock_step else "contents alone (R-DATA)"
    rate = tally.operations / tally.seconds if tally.seconds else 0
    console.print(
        f"fuzz {target}: {tally.runs:,} runs, {tally.operations:,} operations, {tally.seconds:.1f} s "
        f"({rate:,.0f} a second); {judge}",
        soft_wrap=True,
    )
    table = Table("operation", "fired", "refused", title_justify="left")
    for kind in KINDS.values():
        refused = {reason: count for (operation, reason), count in sorted(tally.refused.items()) if operation == kind}
        words = ", ".join(f"{reason} {count:,}" for reason, count in refused.items())
        table.add_row(kind, f"{tally.fired[kind]:,}", words or "-")
    if tally.runs:
        console.print(table)


def _results(tally: Tally, finding: Finding | None, target: str, *, lock_step: bool) -> dict[str, Any]:
    return {
        "target": target,
        "lock_step": lock_step,
        "runs": tally.runs,
        "operations": tally.operations,
        "seconds": tally.seconds,
        "fired": dict(tally.fired),
        "refused": {f"{kind} {reason}": count for (kind, reason), count in sorted(tally.refused.items())},
        "rule": finding.broken.rule if finding else None,
        "counterexample_length": len(finding.trace) if finding else None,
        "seed": tally.seed if tally.finding else None,
    }

"""`pagedkv explore`: every state of a small world, breadth first.

The command around `spec.explore`: it turns options into a scope, shows where the walk is, prints what fired and what
was refused, and ends in a counterexample where a rule broke. What is asked of a walk that ran to its end is that it
met everything: an operation that never fired or a refusal never met is a hole, and fails the run.
"""

from collections import Counter
from typing import Annotated, Any

import typer
from pagedkv.bench.failures import BadInput
from pagedkv.bench.options import JsonFile, Seed, invoked_as
from pagedkv.bench.progress import LateSpinner
from pagedkv.bench.result_files import output_file, write_json
from pagedkv.bench.scheduler_search import OfScheduler, only_beside, scheduler_scope, settings_of
from pagedkv.bench.search_options import (
    JUDGED_FROM_OUTSIDE,
    OUT_DEFAULT,
    BlockSize,
    ContentsOnly,
    Launches,
    Out,
    Streams,
    Workers,
    end_in_counterexample,
    output_folder,
)
from pagedkv.bench.targets import Target, load_target, shows_itself, trial
from pagedkv.spec.calls import patience
from pagedkv.spec.explore import Progress, Report, explore
from pagedkv.spec.manager import lacks
from pagedkv.spec.moves import Scope
from pagedkv.spec.moves_sharing import Sharing
from pagedkv.spec.shards import AnySettings, Settings
from pagedkv.spec.state import Config
from pagedkv.spec.traces import Finding
from rich.console import Console
from rich.table import Table

SMALL_SHARING = Scope(Config(2, 1, 1, 1), sequences=2, tokens=2, rows=1, sharing=Sharing())
DEEP_SHARING = Scope(Config(3, 1, 1, 1), sequences=2, tokens=3, rows=1, sharing=Sharing())
EXPLORE_EXAMPLE = "Example: pagedkv explore --blocks 2 --block-size 2 --sequences 2 --launches 2 --max-tokens 2"


def explore_command(
    context: typer.Context,
    *,
    blocks: Annotated[int | None, typer.Option("--blocks", min=1, max=16, help="Usable blocks of the pool.")] = None,
    block_size: BlockSize = None,
    sequences: Annotated[int, typer.Option(min=1, max=6, help="Sequences that may live at once.")] = 2,
    launches: Launches = None,
    streams: Streams = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="Longest sequence; by default 3, 4 with --deep; one less with --sharing."),
    ] = None,
    batch: Annotated[int | None, typer.Option(min=1, max=6, help="Rows a batch; by default 1 (--deep: 2).")] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Longer sequences and batches of two rows: minutes.")] = False,
    sharing: Annotated[
        bool, typer.Option("--sharing", help="Tell token ids and share prefixes: sizes that are not given are smaller.")
    ] = False,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="Tell states apart by what the implementation hides, too: many more states.")
    ] = False,
    contents_only: ContentsOnly = False,
    scheduler: OfScheduler = False,
    target: Target = "impl",
    workers: Workers = 2,
    seconds: Annotated[float | None, typer.Option(min=0.1, help="Stop after the level that runs over this.")] = None,
    out: Out = OUT_DEFAULT,
    json_file: JsonFile = None,
    seed: Seed = 0,  # noqa: ARG001  (nothing in it is random; every command takes one)
) -> None:
    """Try every operation in every reachable state of a small world, in lock-step with the spec.

    Where no size is given: 3 blocks of 2 tokens, 2 launches, 2 streams; with --sharing 2 (--deep: 3) blocks of 1 token,
    1 launch, 1 stream. What breaks a rule is reported with the shortest sequence of operations that does it. An
    operation that never fired, or a refusal that was never met, fails the run: the scope was too small to show
    anything.
    """
    if json_file is not None:
        json_file = output_file(json_file, "--json")
    out = output_folder(out, json_file)
    with LateSpinner("exploring") as spinner, patience():
        settings: AnySettings
        if scheduler:
            only_beside(context)
            settings = settings_of(target, scheduler_scope(blocks, block_size, sequences, deep=deep, sharing=sharing))
        else:
            defaults = _scope_by_default(sharing=sharing, deep=deep)
            sizes = zip((blocks, block_size, streams, launches), defaults.config, strict=True)
            scope = defaults._replace(
                config=Config(*(given or default for given, default in sizes)),
                sequences=sequences,
                tokens=max_tokens or defaults.tokens,
                rows=batch or defaults.rows,
            )
            settings = _settings(scope, target, contents_only=contents_only, pairs=pairs)

        def show_progress(at: Progress) -> None:
            spinner.says(f"depth {at.depth}: {at.states:,} states, {at.edges:,} edges")

        report = explore(settings, workers=workers, seconds=seconds, progress=show_progress)
    _print(report, settings, target)
    results = _results(report, settings, target) | {"command": invoked_as(context)}
    if report.broken:
        finding = Finding(settings.case(), tuple(report.trace), report.broken)
        with patience():
            results |= end_in_counterexample(finding, out, target)
    if json_file is not None:
        write_json(json_file, results)
    if report.broken or results["holes"]:
        raise typer.Exit(1)


def _settings(scope: Scope, target: str, *, contents_only: bool, pairs: bool) -> Settings:
    """Return how a manager is walked: with as many streams as it offers, in lock-step if it shows itself."""
    factory = load_target(target)
    manager = trial(factory, f"--target {target}", scope.config)
    if scope.sharing and not manager.shares_prefixes:
        raise BadInput(f"--target {target}", "does not share prefixes", "leave out --sharing")
    launches = min(scope.config.launches, manager.launches_offered or scope.config.launches)
    config = scope.config._replace(streams=min(scope.config.streams, manager.streams_offered), launches=launches)
    lock_step = not contents_only and shows_itself(manager)
    left_out = frozenset() if lock_step else lacks(manager)
    return Settings(scope._replace(config=config), factory, lock_step, pairs, left_out)


def _scope_by_default(*, sharing: bool, deep: bool) -> Scope:
    """Return the scope where no size is given: with prefixes shared a state has many times as many successors."""
    if sharing:
        return DEEP_SHARING if deep else SMALL_SHARING
    return Scope(Config(3, 2, 2, 2), tokens=4 if deep else 3, rows=2 if deep else 1)


def _print(report: Report, settings: AnySettings, target: str) -> None:
    console = Console()
    judge = "lock-step with the spec" if settings.lock_step else JUDGED_FROM_OUTSIDE
    pairs = "; pairs" if settings.pairs else ""
    console.print(f"explore {target}: {report.scope}; {judge}{pairs}", soft_wrap=True, markup=False)
    table = Table("operation", "fired", "refused", title_justify="left")
    for kind in report.vocabulary:
        refused = ", ".join(f"{reason} {count:,}" for reason, count in _refusals(report.refused, kind).items())
        table.add_row(kind, f"{report.fired[kind]:,}", refused or "-")
    console.print(table)
    if isinstance(settings, Settings) and settings.lacks:
        console.print(f"not offered: {', '.join(sorted(settings.lacks))}", soft_wrap=True, markup=False)
    end = (
        "every state visited"
        if report.complete
        else "stopped before the end: longer histories were not tried; a smaller scope goes deeper"
    )
    console.print(
        f"{report.states:,} states, {report.edges:,} edges, depth {report.depth}, {report.seconds:.1f} s: {end}",
        soft_wrap=True,
    )
    for hole in _holes(report, settings):
        console.print(f"a hole in this run: {hole}; a larger scope would meet it", soft_wrap=True)


def _holes(report: Report, settings: AnySettings) -> list[str]:
    """Return what should have been met: by a walk that went to its end, where the spec says what can be refused."""
    return report.holes() if report.complete and settings.lock_step else []


def _refusals(refused: Counter[tuple[str, str]], kind: str) -> dict[str, int]:
    return {reason: count for (operation, reason), count in sorted(refused.items()) if operation == kind}


def _results(report: Report, settings: AnySettings, target: str) -> dict[str, Any]:
    return {
        "target": target,
        "scope": report.scope,
        "lock_step": settings.lock_step,
        "pairs": settings.pairs,
        "states": report.states,
        "edges": report.edges,
        "depth": report.depth,
        "complete": report.complete,
        "seconds": report.seconds,
        "fired": dict(report.fired),
        "refused": {kind: _refusals(report.refused, kind) for kind in report.refusals},
        "holes": _holes(report, settings),
        "rule": report.broken.rule if report.broken else None,
        "counterexample_length": len(report.trace) or None,
    }

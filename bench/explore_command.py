"""`pagedkv explore`: every state of a small world, breadth first.

The command around `spec.explore`: it turns options into a scope, shows where the walk is, prints what fired and what
was refused, and ends in a counterexample where a rule broke. What is asked of a walk that ran to its end is that it
met everything: an operation that never fired or a refusal never met is a hole, and fails the run.

With `--scopes` it walks several, here or on many machines: `explore_scopes`.
"""

from functools import partial
from typing import Annotated, Any

import typer
from pagedkv.bench.dask_workers import Dask, refuse_beside_dask
from pagedkv.bench.explore_scopes import (
    SCHEDULER_SIZES,
    MakeSettings,
    Scopes,
    Sizes,
    explore_several,
    judge_in_words,
    print_met,
    refusals_of,
    sizes_of,
)
from pagedkv.bench.failures import BadInput
from pagedkv.bench.options import JsonFile, Seed, invoked_as
from pagedkv.bench.own_files import ENDINGS
from pagedkv.bench.progress import LateSpinner
from pagedkv.bench.result_files import output_file, write_json
from pagedkv.bench.scheduler_search import OfScheduler, only_beside, scheduler_scope, settings_of
from pagedkv.bench.search_options import (
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
from pagedkv.spec.counts import counted
from pagedkv.spec.explore import Progress, Report, explore
from pagedkv.spec.manager import lacks
from pagedkv.spec.moves import Scope
from pagedkv.spec.moves_sharing import Sharing
from pagedkv.spec.scheduler_drivers import SchedulerSettings
from pagedkv.spec.shards import AnySettings, Settings
from pagedkv.spec.state import Config
from pagedkv.spec.traces import Finding
from rich.console import Console

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
    scopes: Scopes = None,
    dask: Dask = None,
    seconds: Annotated[float | None, typer.Option(min=0.1, help="Stop after the level that runs over this.")] = None,
    out: Out = OUT_DEFAULT,
    json_file: JsonFile = None,
    seed: Seed = 0,  # noqa: ARG001  (nothing in it is random; every command takes one)
) -> None:
    """Try every operation in every reachable state of a small world, in lock-step with the spec.

    Where no size is given: 3 blocks of 2 tokens, 2 launches, 2 streams; with --sharing 2 (--deep: 3) blocks of 1 token,
    1 launch, 1 stream. What breaks a rule is reported with the shortest sequence of operations that does it. An
    operation that never fired, or (in lock-step) a refusal that was never met, fails the run: the scope was too small
    to show anything.
    """
    if json_file is not None:
        json_file = output_file(json_file, "--json")
    out = output_folder(out, json_file, endings=ENDINGS)
    refuse_beside_dask(context, "workers")
    if scheduler:
        only_beside(context)
    if dask is not None and scopes is None:
        raise BadInput("--dask", "one scope is walked by one machine", "give --scopes, which are shared out")
    sizes = Sizes(blocks, block_size, sequences, launches, streams, max_tokens, batch)
    make_settings = partial(
        _scheduler_settings if scheduler else _cache_settings,
        target=target,
        deep=deep,
        sharing=sharing,
        contents_only=contents_only,
        pairs=pairs,
    )
    if scopes is None:
        results, finding = _explore_one(make_settings, sizes, target, workers, seconds)
    else:
        several = sizes_of(scopes, sizes, SCHEDULER_SIZES if scheduler else Sizes._fields)
        results, finding = explore_several(make_settings, several, target, workers, dask, seconds)
    results |= {"command": invoked_as(context)}
    if finding:
        with patience():
            results |= end_in_counterexample(finding, out, target)
    if json_file is not None:
        write_json(json_file, results)
    if finding or results["holes"] or results.get("lost"):
        raise typer.Exit(1)


def _explore_one(
    make_settings: MakeSettings, sizes: Sizes, target: str, workers: int, seconds: float | None
) -> tuple[dict[str, Any], Finding | None]:
    """Walk one scope and print what it met; return that, and the counterexample."""
    with LateSpinner("exploring") as spinner, patience():
        settings = make_settings(sizes)

        def show_progress(at: Progress) -> None:
            spinner.says(f"depth {at.depth}: {at.states:,} states, {at.edges:,} edges")

        report = explore(settings, workers=workers, seconds=seconds, progress=show_progress)
    _print(report, settings, target)
    finding = Finding(settings.case(), tuple(report.trace), report.broken) if report.broken else None
    return _results(report, settings, target), finding


def _cache_settings(
    sizes: Sizes, *, target: str, deep: bool, sharing: bool, contents_only: bool, pairs: bool
) -> Settings:
    """Return how a manager is walked: with as many streams as it offers, in lock-step if it shows itself."""
    defaults = _scope_by_default(sharing=sharing, deep=deep)
    given = zip((sizes.blocks, sizes.block_size, sizes.streams, sizes.launches), defaults.config, strict=True)
    scope = defaults._replace(
        config=Config(*(size or default for size, default in given)),
        sequences=sizes.sequences,
        tokens=sizes.max_tokens or defaults.tokens,
        rows=sizes.batch or defaults.rows,
    )
    factory = load_target(target)
    manager = trial(factory, f"--target {target}", scope.config)
    if scope.sharing and not manager.shares_prefixes:
        raise BadInput(f"--target {target}", "does not share prefixes", "leave out --sharing")
    launches = min(scope.config.launches, manager.launches_offered or scope.config.launches)
    config = scope.config._replace(streams=min(scope.config.streams, manager.streams_offered), launches=launches)
    lock_step = not contents_only and shows_itself(manager)
    left_out = frozenset() if lock_step else lacks(manager)
    return Settings(scope._replace(config=config), factory, lock_step, pairs, left_out)


def _scheduler_settings(sizes: Sizes, *, target: str, deep: bool, sharing: bool, **_others: bool) -> SchedulerSettings:
    """Return how a scheduler is walked."""
    return settings_of(
        target, scheduler_scope(sizes.blocks, sizes.block_size, sizes.sequences, deep=deep, sharing=sharing)
    )


def _scope_by_default(*, sharing: bool, deep: bool) -> Scope:
    """Return the scope where no size is given: with prefixes shared a state has many times as many successors."""
    if sharing:
        return DEEP_SHARING if deep else SMALL_SHARING
    return Scope(Config(3, 2, 2, 2), tokens=4 if deep else 3, rows=2 if deep else 1)


def _print(report: Report, settings: AnySettings, target: str) -> None:
    console = Console(emoji=False)
    console.print(f"explore {target}: {report.scope}; {judge_in_words(settings)}", soft_wrap=True, markup=False)
    print_met(console, report.vocabulary, report.fired, report.refused)
    if isinstance(settings, Settings) and settings.lacks:
        console.print(f"not offered: {', '.join(sorted(settings.lacks))}", soft_wrap=True, markup=False)
    holes = _holes(report, settings)
    if report.broken:
        end = "stopped at a broken rule"
    elif not report.complete:
        end = "no rule broken; stopped before the end: longer histories were not tried, a smaller scope goes deeper"
    else:
        end = f"every state visited, no rule broken{', but not everything was tried' if holes else ''}"
    console.print(
        f"{counted(report.states, 'state')}, {counted(report.edges, 'edge')}, depth {report.depth}, "
        f"{report.seconds:.1f} s: {end}",
        soft_wrap=True,
    )
    for hole in holes:
        console.print(f"a hole in this run: {hole}; a larger scope would meet it", soft_wrap=True)


def _holes(report: Report, settings: AnySettings) -> list[str]:
    """Return what should have been met by a walk that went to its end; refusals, where the spec says which."""
    return report.holes(refusals=settings.lock_step) if report.complete else []


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
        "refused": {kind: refusals_of(report.refused, kind) for kind in report.refusals},
        "holes": _holes(report, settings),
        "rule": report.broken.rule if report.broken else None,
        "counterexample_length": len(report.trace) or None,
    }

"""`pagedkv fuzz`: long random runs, by seeds and by Hypothesis; and a saved trace run again.

The command around `spec.fuzz` and `spec.machine`. Hypothesis looks first, for a quarter of the time, and looks
elsewhere; seeds take the rest, since they are many times faster. Whatever is found is shrunk and saved, and `--again`
shows a saved trace on any machine.

With `--dask` seeds are shared out among many machines, and Hypothesis, which looks in one process, does not look: they
would wait for it. Seeds that are lost with a machine are named, and fail the run, since nobody ran them.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from pagedkv.bench.counterexample import show
from pagedkv.bench.counterexample_files import LARGEST, load
from pagedkv.bench.dask_workers import Dask, DaskCrew, crew_of, refuse_beside_dask
from pagedkv.bench.foreign_search import WORDS
from pagedkv.bench.options import JsonFile, Seed, invoked_as
from pagedkv.bench.own_files import ENDINGS, beside
from pagedkv.bench.progress import LateSpinner
from pagedkv.bench.result_files import output_file, write_json
from pagedkv.bench.scheduler_search import HUNTED, OfScheduler, only_beside, scheduler_plan
from pagedkv.bench.search_options import (
    JUDGED_FROM_OUTSIDE,
    OUT_DEFAULT,
    ContentsOnly,
    Out,
    Workers,
    end_in_counterexample,
    output_folder,
)
from pagedkv.bench.targets import Target, load_target, plan_of, shows_itself, trial, world_for
from pagedkv.spec.alphabet import KINDS
from pagedkv.spec.asking import made
from pagedkv.spec.calls import patience
from pagedkv.spec.counts import counted
from pagedkv.spec.foreign_drivers import ForeignPlan
from pagedkv.spec.fuzz import fuzz
from pagedkv.spec.fuzz_plan import HIT, AnyPlan, Plan
from pagedkv.spec.fuzz_tally import Hunted, Tally
from pagedkv.spec.offers import NEEDED
from pagedkv.spec.refusals import Broken
from pagedkv.spec.scheduler_drivers import SchedulerCase, SchedulerPlan
from pagedkv.spec.state import Config
from pagedkv.spec.traces import Case, Finding, tell
from rich.console import Console
from rich.table import Table

FUZZ_EXAMPLE = "Example: pagedkv fuzz --target your_package.your_module:YourManager --seconds 60"
HYPOTHESIS_SHARE = 1 / 4  # of the time
EXAMPLES_MAX = 10**9  # time ends it
LOST_SHOWN_MAX = 5
DEFAULTS = Config(blocks=4, block_size=4, streams=2, launches=4)  # of the sizes, where only some are given


Runs = Annotated[int | None, typer.Option(min=1, help="So many seeds instead of a time: repeatable to the operation.")]
Operations = Annotated[int | None, typer.Option(min=1, help="Whole runs up to so many operations instead of a time.")]
Again = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Run a saved trace again and show it: on its own target, or on --target."),
]


class Search(NamedTuple):
    """How to look, and for how long."""

    seed: int
    seconds: float
    runs: int | None
    operations: int | None
    workers: int
    hypothesis: bool


def fuzz_command(
    context: typer.Context,
    *,
    target: Target = "impl",
    seconds: Annotated[float, typer.Option(min=0.1, max=1e7, help="How long to look.")] = 20.0,
    workers: Workers = 2,
    dask: Dask = None,
    runs: Runs = None,
    operations: Operations = None,
    blocks: Annotated[
        int | None,
        typer.Option(min=1, max=LARGEST.blocks, help="Blocks. Where no size is given, each seed draws a small world."),
    ] = None,
    block_size: Annotated[int | None, typer.Option(min=1, max=LARGEST.block_size, help="Tokens a block.")] = None,
    streams: Annotated[int | None, typer.Option(min=1, max=LARGEST.streams, help="Device streams.")] = None,
    launches: Annotated[
        int | None, typer.Option(min=1, max=LARGEST.launches, help="Launches that may be in flight.")
    ] = None,
    contents_only: ContentsOnly = False,
    sharing: Annotated[bool, typer.Option(help="Let seeds share prefixes, where the target does.")] = True,
    scheduler: OfScheduler = False,
    hypothesis: Annotated[bool, typer.Option(help="Let Hypothesis look, too, for a quarter of the time.")] = True,
    again: Again = None,
    out: Out = OUT_DEFAULT,
    json_file: JsonFile = None,
    seed: Seed = 0,
) -> None:
    """Drive a cache manager with random operations and late, reordered, repeated completions; shrink what breaks.

    In lock-step with the spec where the target shows its state, else by the rules that show from outside. One seed is
    one run. An operation that is offered and never fired in thousands fails the run: nothing was judged of it.
    """
    if json_file is not None:
        json_file = output_file(json_file, "--json", keep=beside(again) if again else [])
    if again is not None:
        given = context.get_parameter_source("target")
        other = target if given is not None and given.name == "COMMANDLINE" else None
        _run_again(again, other, json_file, invoked_as(context))
        return
    out = output_folder(out, json_file, endings=ENDINGS)
    refuse_beside_dask(context, "workers")
    if scheduler:
        only_beside(context)
    sizes = [blocks, block_size, streams, launches]
    config = Config(*(given or default for given, default in zip(sizes, DEFAULTS, strict=True))) if any(sizes) else None
    counted = runs is not None or operations is not None
    search = Search(seed, seconds, runs, operations, workers, hypothesis and not counted and dask is None)
    with LateSpinner("fuzzing") as spinner, patience():
        plan: AnyPlan = (
            scheduler_plan(target, config and config._replace(streams=1), sharing=sharing)
            if scheduler
            else _plan(target, config, contents_only=contents_only, sharing=sharing)
        )
        with crew_of(dask, target, None if counted else seconds) as crew:
            tally, finding, hunted = _look(plan, search, spinner, crew)
    _print(tally, plan, target, hunted, found=finding is not None)
    results = _results(tally, finding, plan, target) | {"command": invoked_as(context)}
    if finding is not None:
        with patience():
            results |= end_in_counterexample(finding, out, target)
    if json_file is not None:
        write_json(json_file, results)
    if finding is not None or tally.lost or results["holes"]:
        raise typer.Exit(1)


def _plan(target: str, config: Config | None, *, contents_only: bool, sharing: bool) -> Plan:
    """Return how a manager is fuzzed: with as many streams as it offers, in lock-step if it shows itself."""
    factory = load_target(target)
    manager = trial(factory, f"--target {target}", config or world_for(target, DEFAULTS))
    lock_step = not contents_only and shows_itself(manager)
    plan = plan_of(factory, manager, lock_step=lock_step, sharing=sharing)
    if config:
        launches = min(config.launches, manager.launches_offered or config.launches)
        config = config._replace(streams=min(config.streams, manager.streams_offered), launches=launches)
    return plan._replace(config=config)


def _hunt(plan: Plan | SchedulerPlan, search: Search, show_examples: Callable[[Hunted], None]) -> Finding | None:
    """Let Hypothesis look, for its share of the time."""
    from pagedkv.spec.machine import hunt  # noqa: PLC0415  (Hypothesis takes long to import, and only a hunt needs it)
    from pagedkv.spec.scheduler_machine import scheduler_machine  # noqa: PLC0415  (as above)

    share = search.seconds * HYPOTHESIS_SHARE
    how: dict[str, Any] = {"number": search.seed, "examples": EXAMPLES_MAX, "seconds": share, "progress": show_examples}
    if isinstance(plan, SchedulerPlan):
        config, limits = HUNTED
        case = SchedulerCase(plan.config or config, plan.factory, limits)
        return hunt(case, machine_of=scheduler_machine, **how)
    drawn = Config(3, 2, min(2, plan.streams_drawn()), 2)
    return hunt(Case(plan.config or drawn, plan.factory, plan.lock_step), **how)


def _look(
    plan: AnyPlan, search: Search, spinner: LateSpinner, crew: DaskCrew | None
) -> tuple[Tally, Finding | None, Hunted]:
    """Let Hypothesis look, then run seeds, here or by a crew; the finding is shrunk."""
    seconds, hunted = search.seconds, Hunted()
    if search.hypothesis and not isinstance(plan, ForeignPlan):
        seconds *= 1 - HYPOTHESIS_SHARE

        def show_examples(done: Hunted) -> None:
            nonlocal hunted
            hunted = done
            spinner.says(f"Hypothesis: {done.examples:,} examples, {done.operations:,} operations")

        if finding := _hunt(plan, search, show_examples):
            return Tally(), finding, hunted

    def show_progress(tally: Tally) -> None:
        spinner.says(f"{counted(tally.runs, 'run')}, {counted(tally.operations, 'operation')}")

    tally = fuzz(
        plan,
        seed=search.seed,
        seconds=seconds,
        runs=search.runs,
        operations=search.operations,
        workers=search.workers,
        crew=crew,
        progress=show_progress,
    )
    return tally, tally.finding, hunted


def _run_again(path: Path, other: str | None, json_file: Path | None, command: str) -> None:
    console = Console(emoji=False)
    with patience():
        saved, target = load(path, other)
        case = saved.case
        if case.lock_step and not _shows_itself(case):
            console.print("this manager does not show its state: it is judged from outside", soft_wrap=True)
            case = case._replace(lock_step=False)
        told, broken = tell(case, saved.trace)
    show(console, saved, told, broken)
    if json_file is not None:
        facts = {"target": target, "rule": broken.rule if broken else None, "counterexample_length": len(told)}
        write_json(json_file, facts | {"command": command})
    if broken:
        raise typer.Exit(1)


def _shows_itself(case: Case) -> bool:
    try:
        return shows_itself(made(case.factory, case.config))
    except Broken:
        return True  # it can't even be made, which running it will say


def _print(tally: Tally, plan: AnyPlan, target: str, hunted: Hunted, *, found: bool) -> None:
    console = Console(emoji=False)
    judge = "lock-step with the spec" if plan.lock_step else JUDGED_FROM_OUTSIDE
    if not tally.runs and not tally.lost:
        looked = f"found by Hypothesis in {counted(hunted.operations, 'operation')}, {hunted.seconds:.1f} s"
        console.print(f"fuzz {target}: {looked}; {judge}", soft_wrap=True, markup=False)
        return
    rate = tally.operations / tally.seconds if tally.seconds else 0
    console.print(
        f"fuzz {target}: {counted(tally.runs, 'run')}, {counted(tally.operations, 'operation')}, {tally.seconds:.1f} s "
        f"({rate:,.0f} a second); {judge}",
        soft_wrap=True,
        markup=False,
    )
    if hunted.operations:
        looked = (
            f"before that Hypothesis: {counted(hunted.operations, 'operation')}, {hunted.seconds:.1f} s, nothing found"
        )
        console.print(looked, soft_wrap=True, highlight=False)
    table = Table("operation", "fired", "refused", title_justify="left")
    left_out = plan.lacks if isinstance(plan, Plan) else frozenset()
    never = {KINDS[kind] for kind, feature in NEEDED.items() if feature in left_out}
    never |= {HIT} if isinstance(plan, Plan) and not plan.shares_prefixes() else set()
    for kind in plan.vocabulary():
        words = ", ".join(f"{reason} {count:,}" for reason, count in tally.refusals(kind).items())
        table.add_row(kind, *(("not offered", "-") if kind in never else (f"{tally.fired[kind]:,}", words or "-")))
    console.print(table)
    if isinstance(plan, ForeignPlan):
        console.print(WORDS, soft_wrap=True, highlight=False)
    if left_out:
        console.print(f"not offered: {', '.join(sorted(left_out))}", soft_wrap=True, markup=False)
    for seeds, why in tally.lost[:LOST_SHOWN_MAX]:
        said = f"lost: seeds {seeds[0]} to {seeds[-1]}, {why}; run them with --seed {seeds[0]} --runs {len(seeds)}"
        console.print(said, soft_wrap=True, markup=False, highlight=False)
    if len(tally.lost) > LOST_SHOWN_MAX:
        console.print(f"lost: {len(tally.lost) - LOST_SHOWN_MAX:,} more batches of seeds (all in --json)")
    holes = tally.holes(plan)
    for hole in holes:
        console.print(f"a hole in this run: {hole}; nothing was judged of it", soft_wrap=True)
    if not found:
        console.print(f"no rule broken{', but not everything was tried' if holes else ''}", soft_wrap=True)


def _results(tally: Tally, finding: Finding | None, plan: AnyPlan, target: str) -> dict[str, Any]:
    return {
        "target": target,
        "lock_step": plan.lock_step,
        "runs": tally.runs,
        "operations": tally.operations,
        "seconds": tally.seconds,
        "fired": dict(tally.fired),
        "refused": {kind: tally.refusals(kind) for kind in plan.vocabulary()},
        "holes": tally.holes(plan),
        "rule": finding.broken.rule if finding else None,
        "counterexample_length": len(finding.trace) if finding else None,
        "seed": tally.seed if tally.finding else None,
        "lost": [{"seed": seeds[0], "runs": len(seeds), "why": why} for seeds, why in tally.lost],
        "not_offered": sorted(plan.lacks) if isinstance(plan, Plan) else [],
    }

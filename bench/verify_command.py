"""`pagedkv verify`: the main job in a minute. Every driver once, one table.

Each check has a share of the time. Those that walk a scope to its end take what they need (sized for two cores) and
say so where they were stopped; those that look at random use their share up.
"""

import time
from typing import Annotated, NamedTuple

import typer
from pagedkv.bench.adapter import Implementation
from pagedkv.bench.options import JsonFile, Seed, invoked_as
from pagedkv.bench.own_files import ENDINGS
from pagedkv.bench.progress import LateSpinner
from pagedkv.bench.result_files import output_file, write_json
from pagedkv.bench.scheduler_search import SCHEDULERS, scheduler_scope, settings_of
from pagedkv.bench.search_options import OUT_DEFAULT, Out, end_in_counterexample, output_folder
from pagedkv.bench.verify_journals import audit_random_runs
from pagedkv.spec.calls import patience
from pagedkv.spec.counts import counted
from pagedkv.spec.explore import explore
from pagedkv.spec.fuzz import fuzz
from pagedkv.spec.fuzz_plan import Plan
from pagedkv.spec.fuzz_tally import Hunted
from pagedkv.spec.moves import Scope
from pagedkv.spec.moves_sharing import Sharing
from pagedkv.spec.scheduler_drivers import SchedulerPlan
from pagedkv.spec.shards import Settings
from pagedkv.spec.shrinking import shrink
from pagedkv.spec.state import Config
from pagedkv.spec.traces import Case, Finding
from rich.console import Console
from rich.table import Table

VERIFY_EXAMPLE = "Example: pagedkv verify --json verify.json"
WORKERS = 2
EXAMPLES_MAX = 10**9  # time ends it


class Checked(NamedTuple):
    """One line of the table."""

    check: str
    scope: str
    cases: str
    seconds: float
    result: str
    finding: Finding | None = None


def verify_command(
    context: typer.Context,
    *,
    seconds: Annotated[float, typer.Option(min=5, max=1e6, help="How long all of it may take, about.")] = 45.0,
    out: Out = OUT_DEFAULT,
    json_file: JsonFile = None,
    seed: Seed = 0,
) -> None:
    """Check the implementation with every driver, its journals with the audit, and the kernels with their oracle."""
    if json_file is not None:
        json_file = output_file(json_file, "--json")
    out = output_folder(out, json_file, endings=ENDINGS)
    checks = [
        _exhaustive,
        _exhaustive_pairs,
        _exhaustive_contents,
        _exhaustive_sharing,
        _hypothesis,
        _random_lock_step,
        _random_contents,
        _scheduler,
        _journals,
        _kernels,
    ]
    table = Table("check", "scope", "cases", "seconds", "result", title="pagedkv verify", title_justify="left")
    done: list[Checked] = []
    end = time.monotonic() + seconds
    with LateSpinner("verifying") as spinner, patience():
        for at, check in enumerate(checks):
            spinner.says((check.__doc__ or "").rstrip("."))
            share = max(0.5, (end - time.monotonic()) / (len(checks) - at))
            checked = check(share, seed)
            done.append(checked)
            table.add_row(checked.check, checked.scope, checked.cases, f"{checked.seconds:.1f}", checked.result)
    Console(emoji=False).print(table)
    failed = [checked for checked in done if checked.finding]
    files = [end_in_counterexample(checked.finding, out, "impl") for checked in failed if checked.finding]
    if json_file is not None:
        lines = [{**checked._asdict(), "finding": None} for checked in done]
        write_json(json_file, {"checks": lines, "counterexamples": files, "command": invoked_as(context)})
    if any(checked.result != HELD for checked in done):
        raise typer.Exit(1)


HELD = "held"


def _walk(name: str, settings: Settings, share: float) -> Checked:
    report = explore(settings, workers=WORKERS, seconds=1.5 * share)
    finding = None
    result = HELD
    if report.broken:
        case = Case(settings.scope.config, settings.factory, settings.lock_step)
        finding = Finding(case, tuple(report.trace), report.broken)
        result = f"{report.broken.rule} broken"
    elif report.complete and (holes := report.holes(refusals=settings.lock_step)):
        result = holes[0]
    config, end = settings.scope.config, "" if report.complete else f"; stopped at depth {report.depth}"
    scope = (
        f"{config.blocks} blocks, B = {config.block_size}, {settings.scope.sequences} sequences, "
        f"{settings.scope.tokens} tokens, {config.launches} in flight, {counted(config.streams, 'stream')}{end}"
    )
    return Checked(name, scope, f"{report.states:,} states, {report.edges:,} edges", report.seconds, result, finding)


def _exhaustive(share: float, seed: int) -> Checked:  # noqa: ARG001  (the signature is the protocol's)
    """Walk a small world in lock-step."""
    scope = Scope(Config(3, 2, 2, 2), sequences=2, tokens=2, rows=1)
    return _walk("exhaustive, lock-step", Settings(scope, Implementation), share)


def _exhaustive_pairs(share: float, seed: int) -> Checked:  # noqa: ARG001  (the signature is the protocol's)
    """Walk a smaller world, hidden state included."""
    scope = Scope(Config(2, 2, 2, 2), sequences=2, tokens=2, rows=1)
    return _walk("exhaustive, hidden state too", Settings(scope, Implementation, pairs=True), share)


def _exhaustive_contents(share: float, seed: int) -> Checked:  # noqa: ARG001  (the signature is the protocol's)
    """Walk a smaller world by contents alone."""
    scope = Scope(Config(2, 1, 2, 2), sequences=2, tokens=2, rows=1)
    return _walk("exhaustive, contents alone", Settings(scope, Implementation, lock_step=False), share)


def _exhaustive_sharing(share: float, seed: int) -> Checked:  # noqa: ARG001  (the signature is the protocol's)
    """Walk a small world with prefixes shared."""
    sharing = Sharing(letters=1, salts=1, retentions=1, pins=1)
    scope = Scope(Config(2, 1, 1, 1), sequences=2, tokens=2, rows=1, sharing=sharing)
    return _walk("exhaustive, prefixes shared", Settings(scope, Implementation), share)


def _hypothesis(share: float, seed: int) -> Checked:
    """Let Hypothesis look."""
    from pagedkv.spec.machine import hunt  # noqa: PLC0415  (Hypothesis takes long to import, and only this check needs it)

    began = time.monotonic()
    case = Case(Config(4, 2, 2, 3), Implementation)
    tried = [Hunted()]
    finding = hunt(case, number=seed, examples=EXAMPLES_MAX, seconds=share, progress=tried.append)
    result = f"{finding.broken.rule} broken" if finding else HELD
    scope = "4 blocks, B = 2, 4 sequences, 3 in flight, 2 streams"
    return Checked(
        "Hypothesis state machine", scope, f"{tried[-1].examples:,} examples", time.monotonic() - began, result, finding
    )


def _random(name: str, plan: Plan, share: float, seed: int) -> Checked:
    tally = fuzz(plan, seed=seed, seconds=share, workers=WORKERS)
    finding = tally.finding and shrink(tally.finding)
    result = f"{finding.broken.rule} broken" if finding else HELD
    scope = "1 to 8 blocks, B 1 to 4, 4 sequences, 1 to 3 streams"
    return Checked(name, scope, f"{tally.runs:,} runs, {tally.operations:,} operations", tally.seconds, result, finding)


def _random_lock_step(share: float, seed: int) -> Checked:
    """Run random operations in lock-step."""
    return _random("seeded random, lock-step", Plan(Implementation), share, seed)


def _random_contents(share: float, seed: int) -> Checked:
    """Run random operations by contents alone."""
    return _random("seeded random, contents alone", Plan(Implementation, lock_step=False), share, seed)


def _scheduler(share: float, seed: int) -> Checked:
    """Walk a small world of requests, then run random ones, beside the policy."""
    settings = settings_of("impl", scheduler_scope(2, None, 2, deep=False, sharing=False))
    walked = explore(settings, seconds=share)
    finding = Finding(settings.case(), tuple(walked.trace), walked.broken) if walked.broken else None
    tally = fuzz(
        SchedulerPlan(SCHEDULERS["impl"]), seed=seed, seconds=max(0.5, share - walked.seconds), workers=WORKERS
    )
    finding = finding or tally.finding
    result = f"{finding.broken.rule} broken" if finding else HELD
    scope = "scheduler and policy: 2 blocks, 2 requests, 2 steps ahead; random: 1 to 8 blocks, 6 requests"
    cases = f"{walked.states:,} states, {walked.edges:,} edges; {tally.runs:,} runs, {tally.operations:,} operations"
    return Checked("scheduler, lock-step", scope, cases, walked.seconds + tally.seconds, result, finding)


def _journals(share: float, seed: int) -> Checked:
    """Audit journals of random runs, and the same journals altered."""
    began = time.monotonic()
    audited = audit_random_runs(share, seed)
    scope = "journals of random runs, sound and altered"
    cases = f"{audited.journals:,} journals, {audited.lines:,} lines, {audited.altered:,} alterations"
    return Checked("journal audit", scope, cases, time.monotonic() - began, audited.fault or HELD)


def _kernels(share: float, seed: int) -> Checked:
    """Hold the kernels to the dense oracle."""
    import torch  # noqa: PLC0415  (seconds to import, and only this check needs it)
    from pagedkv.bench.kernel_checks import check_kernels  # noqa: PLC0415  (as above)

    began = time.monotonic()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    checks = check_kernels(device, seconds=share, seed=seed)
    broken = next((f"{check.name}: {check.broken}" for check in checks if check.broken), HELD)
    scope = f"{'Triton' if device.type == 'cuda' else 'torch fallback'} on {device.type}, drawn shapes"
    cases = f"{sum(check.cases for check in checks):,} cases of {len(checks)} checks"
    return Checked("kernels against the oracle", scope, cases, time.monotonic() - began, broken)

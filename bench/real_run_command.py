"""`pagedkv replay TRACE --compare-run META.json`: the same requests through our scheduler, beside a measured run.

The run's own settings hold: usable blocks, block size, tokens a step, sequences, prefix caching. An option fills in
what the run's files do not have; what neither has is assumed, and the report says so. An option that contradicts the
files is refused, since a replay with other settings could not be held against the measured times.

Two steps are in flight by default, as in an engine that schedules asynchronously. The step-time model is fitted on the
first half of the requests (`step_time_fit`), or is the one given by `--step-time`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pagedkv.bench.failures import BadInput
from pagedkv.bench.progress import LateProgress
from pagedkv.bench.real_run import EngineSettings, RealRun, check_same_requests, read_real_run
from pagedkv.bench.real_run_replay import RunSettings, replay_run
from pagedkv.bench.real_run_report import Comparison, compare, findings, halves
from pagedkv.bench.replay_arrivals import TrafficSettings, blocks_needed_of
from pagedkv.bench.replay_queue import check_size
from pagedkv.bench.result_files import write_json
from pagedkv.bench.step_time import StepTime
from pagedkv.bench.step_time_fit import ROUNDS_MAX, fit_step_time
from pagedkv.bench.traces import Trace, read_trace
from pagedkv.impl.requests import Limits
from rich.console import Console

DEFAULT_STEPS_AHEAD = 2
DEFAULT_BLOCK_SIZE = 16

Value = TypeVar("Value", int, bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenSettings:
    """What options say; None where one was not given. Blocks are the usable ones."""

    blocks: int | None = None
    max_tokens_per_step: int | None = None
    max_running: int | None = None
    prefix_cache: bool | None = None
    steps_ahead: int | None = None


def compare_with_run(
    trace_file: Path,
    meta_file: Path,
    given: GivenSettings,
    step_time: StepTime | None,
    out: Path,
    json_file: Path | None,
    command: str,
) -> None:
    """Do it all: read, fit, compare, print, write. Errors: `BadInput`."""
    run = read_real_run(meta_file)
    with LateProgress("requests read", len(run)) as progress:
        trace = read_trace(trace_file, None, progress.reached)
    check_same_requests(run, trace)
    settings, assumptions = run_settings(run, trace, given)
    comparison = compared(run, trace, settings, assumptions, step_time)
    title = f"{run.device}, {run.engine}: {len(run):,} requests of {trace_file.name}"
    console = Console(soft_wrap=True, markup=False, highlight=False)
    Console().print(comparison.as_table(title))
    for line in (_in_words(comparison), *findings(comparison), *(f"Assumed: {each}." for each in assumptions)):
        console.print(line)
    facts = {"command": command, "trace": str(trace_file), "run": str(meta_file)} | comparison.as_json()
    console.print(f"{out}: {', '.join(_write(out, comparison, facts, title))}")
    console.print(command)
    if json_file is not None:
        write_json(json_file, facts)


def compared(
    run: RealRun, trace: Trace, settings: RunSettings, assumptions: tuple[str, ...], step_time: StepTime | None
) -> Comparison:
    """Fit the model on the first half, where none is given, and put the replay with it beside the run."""
    if step_time is not None:
        with LateProgress("requests replayed", len(trace)) as progress:
            replayed = replay_run(trace, settings, step_time, progress.reached)
        return compare(run, replayed, settings, assumptions, step_time, None)
    first_half, _ = halves(trace.arrival_s)
    with LateProgress("rounds of replay and fit", ROUNDS_MAX) as progress:
        fit = fit_step_time(trace, settings, first_half, 1000 * run.decode_s[first_half], progress.reached)
    return compare(run, fit.best.replayed, settings, assumptions, fit.best.step_time, fit)


def run_settings(run: RealRun, trace: Trace, given: GivenSettings) -> tuple[RunSettings, tuple[str, ...]]:
    """Put together what the run's files say, what options say, and what is assumed. Errors: `BadInput`."""
    told: EngineSettings = run.settings
    assumptions: list[str] = []

    def settled(option: str, of_files: Value | None, of_options: Value | None, otherwise: Callable[[], Value]) -> Value:
        if of_files is not None and of_options is not None and of_files != of_options:
            what = f"{of_options} is given, and {run.path.name} says {of_files}"
            raise BadInput(option, what, "leave the option out: the run's own settings hold")
        if of_files is not None:
            return of_files
        if of_options is not None:
            return of_options
        assumed = otherwise()
        assumptions.append(f"{option} {assumed} ({run.path.name} does not say it; the option does)")
        return assumed

    block_size = settled("--block-size", told.block_size, None, lambda: DEFAULT_BLOCK_SIZE)
    all_at_once = blocks_needed_of(trace, block_size, TrafficSettings())
    blocks = settled("--blocks", told.blocks, given.blocks, lambda: max(1, int(all_at_once.sum())))
    check_size(trace, blocks, 0)
    limits = Limits(
        max_tokens_per_step=settled(
            "--max-tokens-per-step", told.max_tokens_per_step, given.max_tokens_per_step, lambda: 2048
        ),
        max_running=settled("--max-running", told.max_running, given.max_running, lambda: 256),
        prefix_cache=settled("--prefix-cache", told.prefix_cache, given.prefix_cache, lambda: True),
        steps_ahead=settled("--steps-ahead", None, given.steps_ahead, lambda: DEFAULT_STEPS_AHEAD),
    )
    return RunSettings(blocks=blocks, block_size=block_size, limits=limits), tuple(assumptions)


def _in_words(comparison: Comparison) -> str:
    """Say what the replay was done with."""
    limits, settings = comparison.settings.limits, comparison.settings
    return (
        f"Replayed with --step-time {comparison.step_time.in_words()}, {settings.blocks:,} blocks of"
        f" {settings.block_size}, at most {limits.max_tokens_per_step:,} tokens a step and {limits.max_running:,}"
        f" sequences, prefix cache {'on' if limits.prefix_cache else 'off'}, {limits.steps_ahead} steps ahead:"
        f" {comparison.replayed.counts.preemptions:,} preemptions,"
        f" {comparison.replayed.counts.peak_running:,} running at most."
    )


def _write(out: Path, comparison: Comparison, facts: dict[str, Any], title: str) -> list[str]:
    from pagedkv.bench.real_run_plot import draw_comparison  # noqa: PLC0415  (matplotlib takes a second to import)
    from pagedkv.bench.sweep_plots import write_figure  # noqa: PLC0415

    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "real_run.json", facts)
    pictures = write_figure(draw_comparison(comparison, title), out, "real_run")
    return ["real_run.json", *(picture.name for picture in pictures)]

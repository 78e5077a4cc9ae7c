"""`pagedkv replay TRACE --compare-run META.json`: the same requests through our scheduler, beside a measured run.

The run's own settings hold: usable blocks, block size, tokens a step, sequences, prefix caching. An option fills in
what the run's files do not have; what neither has is assumed, and the report says so. An option that contradicts the
files is refused, since a replay with other settings could not be held against the measured times.

Two steps are in flight by default, as in an engine that schedules asynchronously. The step-time model is fitted on the
first half of the requests (`step_time_fit`), or is the one given by `--step-time`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from pagedkv.bench.clocked_options import CALIBRATE
from pagedkv.bench.failures import BadInput
from pagedkv.bench.html_report import Plot, Section, report_page
from pagedkv.bench.options import invoked_as
from pagedkv.bench.progress import LateProgress
from pagedkv.bench.real_run import RealRun, check_same_requests, read_real_run, run_files
from pagedkv.bench.real_run_findings import findings
from pagedkv.bench.real_run_replay import RunSettings, replay_run
from pagedkv.bench.real_run_report import Comparison, compare, halves
from pagedkv.bench.replay_arrivals import TrafficSettings, blocks_needed_of
from pagedkv.bench.replay_queue import check_size
from pagedkv.bench.result_files import write_json, write_whole
from pagedkv.bench.search_options import output_places
from pagedkv.bench.step_time import StepTime, read_step_time, step_time_files
from pagedkv.bench.step_time_fit import ROUNDS_MAX, fit_step_time
from pagedkv.bench.traces import Trace, read_trace
from pagedkv.impl.requests import Limits
from pagedkv.spec.counts import counted
from rich.console import Console

CompareRun = Annotated[
    Path | None,
    typer.Option(metavar="META", help="Beside a measured run: the meta.json of its files; its settings hold."),
]
RunOut = Annotated[Path, typer.Option("--out", metavar="DIR", help="Where --compare-run puts figures and plots.")]
OUT_FOLDER = Path("pagedkv-out/real-run")
FILES = ("real_run.html", "real_run.json", "real_run.png", "real_run.svg")
OF_RUN = ("blocks", "block_size", "max_tokens_per_step", "max_running", "prefix_cache", "steps_ahead")
OPTIONS_ALLOWED = {"trace", "compare_run", "out", "json_file", "seed", "step_time", *OF_RUN}
ASSUMED: dict[str, int] = {
    "block_size": 16,
    "max_tokens_per_step": 2048,
    "max_running": 256,
    "prefix_cache": True,
    "steps_ahead": 2,
}


def compare_with_run(
    context: typer.Context, trace_file: Path, meta_file: Path, out: Path, json_file: Path | None
) -> None:
    """Do it all: read, fit, compare, print, write. Errors: `BadInput`."""
    given = _given(context)
    inputs = [trace_file, *run_files(meta_file), *step_time_files(given.get("step_time"))]
    out, json_file = output_places(out, json_file, FILES, inputs)
    step_time = _given_step_time(given)
    command = invoked_as(context)
    run = read_real_run(meta_file)
    with LateProgress("requests read", len(run)) as progress:
        trace = read_trace(trace_file, None, progress.reached)
    check_same_requests(run, trace)
    settings, assumptions = run_settings(run, trace, given)
    comparison = fit_and_compare(run, trace, settings, assumptions, step_time)
    title = f"{run.device}, {run.engine}, {counted(len(run), 'request')}"
    console = Console(emoji=False, soft_wrap=True, markup=False, highlight=False)
    Console(emoji=False).print(comparison.as_table(title))
    said = findings(comparison)
    lines = [_in_words(comparison), *said]
    if assumptions:
        lines.append(_assumed(comparison, meta_file))
    for line in lines:
        console.print(line)
    facts = {"command": command, "trace": str(trace_file), "run": str(meta_file), **comparison.as_json()}
    facts["what_the_data_says"] = said
    console.print(f"{out}: {', '.join(_write(out, comparison, facts, title, lines))}")
    console.print(command)
    if json_file is not None:
        write_json(json_file, facts)


def refuse_out_alone(context: typer.Context) -> None:
    """Refuse `--out` where nothing is put there. Errors: `BadInput`."""
    source = context.get_parameter_source("out")
    if source is not None and source.name == "COMMANDLINE":
        raise BadInput(
            "--out", "only a comparison with a measured run puts files there", "give --compare-run, or --json"
        )


def fit_and_compare(
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


def run_settings(run: RealRun, trace: Trace, given: Mapping[str, Any]) -> tuple[RunSettings, tuple[str, ...]]:
    """Put together what the run's files say, what options say, and what is assumed. Errors: `BadInput`."""
    told: dict[str, Any] = asdict(run.settings) | {"steps_ahead": None}
    chosen: dict[str, Any] = {}
    assumptions: list[str] = []
    for name in ("block_size", *(name for name in OF_RUN if name != "block_size")):
        option = f"--{name.replace('_', '-')}"
        if told[name] is not None and given.get(name, told[name]) != told[name]:
            what = f"{given[name]} is given, and {run.path.name} says {told[name]}"
            raise BadInput(option, what, "leave the option out: the run's own settings hold")
        chosen[name] = given.get(name) if told[name] is None else told[name]
        if chosen[name] is None:
            chosen[name] = ASSUMED[name] if name in ASSUMED else _blocks_of_all(trace, chosen["block_size"])
            assumptions.append(option if chosen[name] is True else f"{option} {chosen[name]}")
    blocks, block_size = chosen.pop("blocks"), chosen.pop("block_size")
    check_size(trace, blocks, 0)
    return RunSettings(blocks=blocks, block_size=block_size, limits=Limits(**chosen)), tuple(assumptions)


def _given(context: typer.Context) -> dict[str, Any]:
    """Give the options that were given. Errors: `BadInput` for one that says nothing beside a measured run."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    given = {name: context.params[name] for name, source in sources.items() if source and source.name == "COMMANDLINE"}
    for name in given:
        if name not in OPTIONS_ALLOWED:
            option = f"--{name.replace('_', '-')}"
            raise BadInput(option, "has no meaning beside --compare-run", "leave out one of the two")
    return given


def _given_step_time(given: Mapping[str, Any]) -> StepTime | None:
    text = given.get("step_time")
    if text == CALIBRATE:
        what = "this machine is not the one that was measured"
        raise BadInput(f"--step-time {text}", what, "leave it out: the model is fitted to the run")
    return None if text is None else read_step_time(text)


def _blocks_of_all(trace: Trace, block_size: int) -> int:
    """Give a pool that is never the limit: blocks for all requests at once."""
    return max(1, int(blocks_needed_of(trace, block_size, TrafficSettings()).sum()))


def _in_words(comparison: Comparison) -> str:
    """Say what the replay was done with."""
    limits, settings = comparison.settings.limits, comparison.settings
    return (
        f"Replayed with --step-time {comparison.step_time.in_words()}, {counted(settings.blocks, 'block')} of"
        f" {settings.block_size}, at most {counted(limits.max_tokens_per_step, 'token')} a step and"
        f" {counted(limits.max_running, 'sequence')}, prefix cache {'on' if limits.prefix_cache else 'off'},"
        f" {counted(limits.steps_ahead, 'step')} ahead:"
        f" {counted(comparison.replayed.counts.preemptions, 'preemption')},"
        f" {comparison.replayed.counts.peak_running:,} running at most, between the ticks of the measured run too."
    )


def _assumed(comparison: Comparison, meta_file: Path) -> str:
    """Say what was assumed, and of an assumed pool whether its size has made a difference."""
    text = f"Assumed, as {meta_file.name} does not say it: {', '.join(comparison.assumptions)}."
    if any(each.startswith("--blocks") for each in comparison.assumptions):
        peak = comparison.replayed.counts.peak_blocks
        text += f" Ours used {counted(peak, 'block')} at most: that pool was never the limit."
    return text


def _write(out: Path, comparison: Comparison, facts: dict[str, Any], title: str, lines: Sequence[str]) -> list[str]:
    """Write figures, plots, and a page with all of it."""
    from pagedkv.bench.plots import write_figure  # noqa: PLC0415
    from pagedkv.bench.real_run_plot import draw_comparison  # noqa: PLC0415  (matplotlib takes a second to import)

    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "real_run.json", facts)
    figure = draw_comparison(comparison, title)
    pictures = write_figure(figure, out, "real_run")
    sections = (
        Section("Beside the measured run", (comparison.as_table(title), *lines)),
        Section(
            "Over time, and TPOT", (Plot(figure, "Running, waiting, cache usage and TPOT, measured and replayed"),)
        ),
    )
    write_whole(out / "real_run.html", report_page("pagedkv replay: a measured run", sections, facts["command"]))
    return ["real_run.html", "real_run.json", *(picture.name for picture in pictures)]

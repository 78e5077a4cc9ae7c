"""`pagedkv replay`: a request trace through a cache manager, and what it cost in blocks.

The command around two loops: options become settings, output files are tried before the work begins, and the report is
printed and written. Which loop runs is `--policy`: under `reserve`, `replay`, whose figures are known beforehand and
which any engine can do (`--engine`: the implementation, or the spec's own model); under a scheduler's policy,
`replay_scheduled`.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from pagedkv.bench.clocked_options import Generate, Rate, Speedup, StepTimeText, TpotMs, TtftMs, clock_settings
from pagedkv.bench.clocked_report import ClockedReport
from pagedkv.bench.clocked_trace import ClockSettings, replay_clocked
from pagedkv.bench.engines import Engine, EngineOptions
from pagedkv.bench.failures import BadInput
from pagedkv.bench.impl_engine import open_impl_engine
from pagedkv.bench.options import JsonFile, Seed, StepMs, invoked_as
from pagedkv.bench.progress import LateProgress
from pagedkv.bench.real_run_command import OUT_FOLDER, CompareRun, RunOut, compare_with_run, refuse_out_alone
from pagedkv.bench.replay import replay
from pagedkv.bench.replay_arrivals import TrafficSettings
from pagedkv.bench.replay_page import HtmlFile, TimelineOption, page_files, watched, write_page
from pagedkv.bench.replay_queue import BLOCKS_MAX, FinalLength, ReplaySettings
from pagedkv.bench.replay_report import ReplayReport
from pagedkv.bench.replay_scheduler import replay_scheduled
from pagedkv.bench.replay_watch import ReplayWatch
from pagedkv.bench.result_files import output_file, write_json
from pagedkv.bench.scheduler_options import (
    CancelRate,
    MaxRunning,
    MaxTokensPerStep,
    Policy,
    PolicyName,
    PrefillOnly,
    PrefixCache,
    Samples,
    StepsAhead,
    scheduler_settings,
)
from pagedkv.bench.scheduler_report import SchedulerReport
from pagedkv.bench.spec_engine import open_spec_engine
from pagedkv.bench.step_time import step_time_files
from pagedkv.bench.trace_formats import TOKENS_MAX
from pagedkv.bench.traces import REQUESTS_MAX, Trace, read_trace
from pagedkv.impl.requests import Limits
from rich.console import Console


class EngineName(StrEnum):
    """Cache managers that a replay can drive."""

    IMPL = "impl"
    SPEC = "spec"


ENGINES: dict[EngineName, Callable[[EngineOptions, Path | None], AbstractContextManager[Engine]]] = {
    EngineName.IMPL: open_impl_engine,
    EngineName.SPEC: open_spec_engine,
}
COMMON_FACTS = ("engine", "policy", "final_length", "step_ms", "seed")  # of every replay, beside those of its kind
REPLAY_EXAMPLE = "Example: pagedkv replay AzureLLMInferenceTrace_conv.csv --block-size 16 --json replay.json"


TraceFile = Annotated[
    Path,
    typer.Argument(
        metavar="TRACE", help="Azure or BurstGPT CSV, Mooncake or derived ShareGPT JSONL; may be compressed (.gz)."
    ),
]
Engines = Annotated[EngineName, typer.Option(help="Which cache manager.")]
Blocks = Annotated[
    int | None, typer.Option(min=1, max=BLOCKS_MAX, help="Usable blocks; by default enough for all at once.")
]
BlockSize = Annotated[int, typer.Option(min=1, max=TOKENS_MAX, help="Tokens a block.")]
Requests = Annotated[int | None, typer.Option(min=1, max=REQUESTS_MAX, help="Only the first so many of the file.")]
FinalLengths = Annotated[
    FinalLength, typer.Option(help="What a finished request holds: with or without its last sampled token.")
]
JournalFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write every operation there (compressed: .gz).")
]


def replay_command(
    context: typer.Context,
    trace: TraceFile,
    *,
    engine: Engines = EngineName.IMPL,
    blocks: Blocks = None,
    block_size: BlockSize = 16,
    requests: Requests = None,
    step_ms: StepMs = None,
    final_length: FinalLengths = FinalLength.PROMPT_OUTPUT_LESS_ONE,
    policy: Policy = PolicyName.RESERVE,
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
    generate: Generate = None,
    rate: Rate = None,
    compare_run: CompareRun = None,
    out: RunOut = OUT_FOLDER,
    journal: JournalFile = None,
    html: HtmlFile = None,
    timeline: TimelineOption = None,
    json_file: JsonFile = None,
    seed: Seed = 0,
) -> None:
    """Replay a request trace step by step and report what it cost in blocks.

    Under the policy `reserve`: first come first served, the whole prompt at admission, then one token a step for each
    running sequence; a request is admitted when the pool can hold its final length and that of all that run; tail
    waste, table entries and allocations are reported. Under `fcfs` or `priority` the scheduler admits, chunks and
    preempts; hits, evictions, preemptions and recomputed tokens are reported. No trace has priorities: for `priority`
    they are drawn (0 to 255, by --seed).

    With `--step-time` such a replay is clocked: requests arrive at their times, a step lasts what the model says, and
    TTFT, TPOT, inter-token latency, queueing and goodput are reported, with what ran and waited over time.

    With `--compare-run` the replay takes a measured run's settings and stands beside what was measured; the step-time
    model is fitted on the first half of the requests and judged on the rest, where `--step-time` gives none.
    """
    given = locals()  # all options by their names: those of the scheduler and of the clock are looked up there
    if compare_run is not None:
        compare_with_run(context, trace, compare_run, out, json_file)
        return
    refuse_out_alone(context)
    inputs = [trace, *step_time_files(step_time)]
    if journal is not None:
        journal = output_file(journal, "--journal", keep=inputs)
    if json_file is not None:
        json_file = output_file(json_file, "--json", keep=inputs if journal is None else [*inputs, journal])
    html, timeline = page_files(html, timeline, policy, keep=[*inputs, journal, json_file])
    scheduling = scheduler_settings(policy, given, seed)
    if scheduling is not None:
        _refuse_what_a_scheduler_has_not(engine, final_length)
    clock = clock_settings(policy, step_ms, given)
    settings = ReplaySettings(block_size=block_size, blocks=blocks, step_ms=step_ms, final_length=final_length)
    command = invoked_as(context)
    facts = {"command": command, "trace": str(trace)} | {name: given[name] for name in COMMON_FACTS}
    manner = _Manner(settings, scheduling, clock, engine, journal)
    with watched(html, timeline, command, clocked=clock is not None) as watch:
        _run(trace, requests, manner, watch, html, json_file, facts)


def _refuse_what_a_scheduler_has_not(engine: EngineName, final_length: FinalLength) -> None:
    """Refuse options that say something of the policy `reserve` alone."""
    if engine is not EngineName.IMPL:
        raise BadInput(f"--engine {engine.value}", "only the implementation schedules", "leave --policy out")
    if final_length is not FinalLength.PROMPT_OUTPUT_LESS_ONE:
        raise BadInput(
            f"--final-length {final_length.value}", "a scheduler never writes the last token", "leave it out"
        )


@dataclass(frozen=True, slots=True)
class _Manner:
    """How a trace is replayed: without `scheduling` by reservation, with a `clock` on simulated time."""

    settings: ReplaySettings
    scheduling: tuple[Limits, TrafficSettings] | None
    clock: ClockSettings | None
    engine: EngineName
    journal: Path | None


def _run(
    trace: Path,
    requests: int | None,
    manner: _Manner,
    watch: ReplayWatch,
    html_file: Path | None,
    json_file: Path | None,
    facts: dict[str, Any],
) -> None:
    """Read the trace, replay it, print the report and write it."""
    with LateProgress("requests read", requests) as progress:
        requests_read = read_trace(trace, requests, progress.reached)
    total = len(requests_read) if manner.clock is None or manner.clock.generate is None else manner.clock.generate
    with LateProgress("requests finished", total) as progress:
        report = _replayed(requests_read, manner, watch, progress.reached)
    if manner.scheduling is not None:
        facts |= asdict(manner.scheduling[0]) | asdict(manner.scheduling[1])
    if manner.clock is not None:
        facts |= asdict(manner.clock)
    console = Console(emoji=False)
    title = f"{trace.name}: {requests_read.format.name} trace, engine {manner.engine.value}"
    title = title if manner.scheduling is None else f"{title}, policy {facts['policy']}"
    console.print(report.as_table(title))
    note = _without_ids(requests_read, manner.scheduling)
    if note is not None:
        console.print(note, highlight=False, soft_wrap=True)
    console.print(facts["command"], markup=False, highlight=False, soft_wrap=True)
    if html_file is not None:
        write_page(html_file, report, watch, title, facts["command"], note)
    if json_file is not None:
        write_json(json_file, facts | {"trace_format": requests_read.format.name} | report.as_json())


def _without_ids(trace: Trace, scheduling: tuple[Limits, TrafficSettings] | None) -> str | None:
    """Say why no request hits what another one left, where the trace does not say what they share."""
    if scheduling is None or not scheduling[0].prefix_cache or trace.prefix_ids.size:
        return None
    return "The trace has no prefix ids, so no request hits what another has left."


def _replayed(
    trace: Trace, manner: _Manner, watch: ReplayWatch, on_finished: Callable[[int], None]
) -> ReplayReport | SchedulerReport | ClockedReport:
    settings, journal = manner.settings, manner.journal
    if manner.scheduling is None:
        opened = watch.engine(lambda options: ENGINES[manner.engine](options, journal))
        return replay(trace, settings, opened, on_finished)
    limits, traffic = manner.scheduling
    if manner.clock is not None:
        return replay_clocked(trace, settings, limits, traffic, manner.clock, journal, on_finished, watch.meters())
    return replay_scheduled(trace, settings, limits, traffic, journal, on_finished, watch.scheduler)

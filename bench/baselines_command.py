"""`pagedkv baselines`: what paging buys on a trace, beside reserving the longest context and growing in one piece.

The command around `baselines`. Reservation provides for `--max-context` tokens a request, by default for the longest
request of the trace, which is generous: an engine does not know it and provides for the model's context.
"""

from pathlib import Path
from typing import Annotated, Any

import typer
from pagedkv.bench.baselines import PARTS, BaselineSettings, Outcome, run_scheme, schemes
from pagedkv.bench.failures import BadInput
from pagedkv.bench.options import JsonFile, Seed, invoked_as
from pagedkv.bench.progress import LateProgress
from pagedkv.bench.replay_queue import BLOCKS_MAX, FinalLength, final_tokens
from pagedkv.bench.result_files import write_json
from pagedkv.bench.search_options import output_places
from pagedkv.bench.trace_formats import TOKENS_MAX
from pagedkv.bench.traces import REQUESTS_MAX, read_trace
from pagedkv.spec.counts import counted
from rich.console import Console
from rich.table import Table
from rich.text import Text

BASELINES_EXAMPLE = "Example: pagedkv baselines AzureLLMInferenceTrace_conv.csv --requests 1000 --slots 41392"
OUT_FOLDER = Path("pagedkv-out/baselines")
FILES = ("baselines.json", "baselines.png", "baselines.svg")


def baselines_command(
    context: typer.Context,
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="A request trace; may be compressed (.gz).")],
    *,
    slots: Annotated[int, typer.Option(min=1, max=BLOCKS_MAX, help="Memory, in tokens.")] = 1 << 16,
    block_size: Annotated[int, typer.Option(min=1, max=TOKENS_MAX, help="Tokens a block, for paging.")] = 16,
    max_context: Annotated[
        int | None, typer.Option(min=1, max=TOKENS_MAX, help="What is reserved; by default for the longest request.")
    ] = None,
    requests: Annotated[int | None, typer.Option(min=1, max=REQUESTS_MAX, help="Only the first so many.")] = None,
    step_ms: Annotated[
        float | None,
        typer.Option(min=0.001, max=1e9, help="Let requests arrive at their times, a step lasting so long."),
    ] = None,
    final_length: Annotated[
        FinalLength, typer.Option(help="What a finished request holds: with or without its last sampled token.")
    ] = FinalLength.PROMPT_OUTPUT_LESS_ONE,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where figures and plots are put.")] = OUT_FOLDER,
    json_file: JsonFile = None,
    seed: Seed = 0,  # noqa: ARG001  (nothing in it is random; every command takes one)
) -> None:
    """Replay a trace three times in the same memory: paged, reserved for the longest, grown in one piece.

    Reports internal and external fragmentation over time, how many sequences fit at one time, and what exact growth
    has to copy. A request longer than what is reserved is refused there, as TooLong.
    """
    out, json_file = output_places(out, json_file, FILES, [trace])
    with LateProgress("requests read", requests) as progress:
        requests_read = read_trace(trace, requests, progress.reached)
    longest = max(1, int(final_tokens(requests_read, final_length).max()))
    settings = BaselineSettings(
        slots=slots,
        block_size=block_size,
        max_context=longest if max_context is None else max_context,
        step_ms=step_ms,
        final_length=final_length,
    )
    _check(settings)
    outcomes = []
    for scheme in schemes(settings):
        with LateProgress(f"requests finished, {scheme}", len(requests_read)) as progress:
            outcomes.append(run_scheme(requests_read, settings, scheme, progress.reached))
    facts = {"command": invoked_as(context), "trace": str(trace)} | _facts(settings, outcomes)
    _print(outcomes, settings, f"{trace.name}: {counted(len(requests_read), 'request')}")
    files = _write(out, outcomes, facts)
    console = Console(emoji=False, soft_wrap=True, markup=False, highlight=False)
    console.print(f"{out}: {', '.join(files)}")
    console.print(facts["command"])
    if json_file is not None:
        write_json(json_file, facts)


def _check(settings: BaselineSettings) -> None:
    """Refuse memory that is not one block of paging, or not one reservation."""
    for option, size in (("--block-size", settings.block_size), ("--max-context", settings.max_context)):
        if size > settings.slots:
            what = f"{size:,} tokens are more than all memory, {settings.slots:,}"
            raise BadInput(option, what, "give more --slots, or less of this")


def _facts(settings: BaselineSettings, outcomes: list[Outcome]) -> dict[str, Any]:
    return {
        "slots": settings.slots,
        "block_size": settings.block_size,
        "max_context": settings.max_context,
        "step_ms": settings.step_ms,
        "final_length": settings.final_length.value,
        "schemes": {outcome.scheme: _figures(outcome, settings.slots) for outcome in outcomes},
    }


def _figures(outcome: Outcome, slots: int) -> dict[str, Any]:
    """Give a scheme's figures; fragmentation in per cent of all slots, as means over launches."""
    counts, samples = outcome.report.counts, outcome.samples
    return {
        "finished": counts.finished,
        "refused": len(outcome.report.refusals) + outcome.beyond_reservation,
        "steps": counts.steps,
        "peak_running": counts.peak_running,
        "mean_running": samples.mean("running"),
        **{f"{part}_percent": 100 * samples.mean(part) / slots for part in PARTS},
        "internal_fragmentation_peak_percent": 100 * max(samples.internal, default=0) / slots,
        "external_fragmentation_peak_percent": 100 * max(samples.external, default=0) / slots,
        "relocations": outcome.relocations,
        "compactions": outcome.compactions,
        "copied_tokens": outcome.copied_tokens,
        "copied_tokens_a_token": outcome.copied_tokens_a_token,
        "seconds": outcome.report.seconds,
    }


_ROWS = (  # key, name, form
    ("finished", "requests finished", "{:,}"),
    ("refused", "refused", "{:,}"),
    ("steps", "launches", "{:,}"),
    ("mean_running", "sequences at one time", "{:,.1f}"),
    ("peak_running", "  at most", "{:,}"),
    ("used_percent", "used by tokens, %", "{:.2f}"),
    ("internal_percent", "internal fragmentation, %", "{:.2f}"),
    ("internal_fragmentation_peak_percent", "  at most", "{:.2f}"),
    ("external_percent", "external fragmentation, %", "{:.2f}"),
    ("external_fragmentation_peak_percent", "  at most", "{:.2f}"),
    ("in_flight_percent", "in flight, %", "{:.2f}"),
    ("free_percent", "free, %", "{:.2f}"),
    ("relocations", "relocations", "{:,}"),
    ("compactions", "compactions", "{:,}"),
    ("copied_tokens", "tokens copied", "{:,}"),
    ("copied_tokens_a_token", "  for each token held", "{:,.2f}"),
)


def _print(outcomes: list[Outcome], settings: BaselineSettings, title: str) -> None:
    figures = [_figures(outcome, settings.slots) for outcome in outcomes]
    table = Table(title=Text(f"{title} in {counted(settings.slots, 'slot')}"), title_justify="left")
    table.add_column("mean over launches")
    for outcome in outcomes:
        table.add_column(outcome.scheme, justify="right")
    for key, name, form in _ROWS:
        table.add_row(name, *(form.format(each[key]) for each in figures))
    console = Console(emoji=False)
    console.print(table)
    paging, reservation, growth = figures
    times = (
        f"{paging['mean_running'] / reservation['mean_running']:.1f} times as many sequences at one time as reservation"
        if reservation["mean_running"]
        else "where reservation runs none"
    )
    console.print(
        f"paging: blocks of {settings.block_size:,}; reservation: {counted(settings.max_context, 'token')} a request."
        f" Paging runs {times}, and copies nothing where exact growth copies"
        f" {counted(growth['copied_tokens'], 'token')}. All three admit a request once its final length fits beside"
        " those that run, so paging leaves free what these have yet to grow into, and what is too little for the next.",
        highlight=False,
        soft_wrap=True,
    )


def _write(out: Path, outcomes: list[Outcome], facts: dict[str, Any]) -> list[str]:
    from pagedkv.bench.baselines_plot import draw_baselines  # noqa: PLC0415  (matplotlib takes a second to import)
    from pagedkv.bench.plots import write_figure  # noqa: PLC0415

    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "baselines.json", facts)
    title = f"{Path(facts['trace']).name}: memory of {facts['slots']:,} slots"
    pictures = write_figure(draw_baselines(outcomes, facts["slots"], title), out, "baselines")
    return ["baselines.json", *(picture.name for picture in pictures)]

"""`pagedkv replay`: a request trace through a cache manager, and what it cost in blocks.

The command around `replay`: options become settings, output files are tried before the work begins, and the report is
printed and written. Which cache manager runs is `--engine`: the implementation, or the spec's own model.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from pagedkv.bench.engines import Engine, EngineOptions
from pagedkv.bench.impl_engine import open_impl_engine
from pagedkv.bench.options import JsonFile, Seed, invoked_as
from pagedkv.bench.progress import LateProgress
from pagedkv.bench.replay import replay
from pagedkv.bench.replay_queue import BLOCKS_MAX, FinalLength, ReplaySettings
from pagedkv.bench.result_files import output_file, write_json
from pagedkv.bench.spec_engine import open_spec_engine
from pagedkv.bench.trace_formats import TOKENS_MAX
from pagedkv.bench.traces import REQUESTS_MAX, read_trace
from rich.console import Console


class EngineName(StrEnum):
    """Cache managers that a replay can drive."""

    IMPL = "impl"
    SPEC = "spec"


ENGINES: dict[EngineName, Callable[[EngineOptions, Path | None], AbstractContextManager[Engine]]] = {
    EngineName.IMPL: open_impl_engine,
    EngineName.SPEC: open_spec_engine,
}
REPLAY_EXAMPLE = "Example: pagedkv replay AzureLLMInferenceTrace_conv.csv --block-size 16 --json replay.json"


def replay_command(
    context: typer.Context,
    trace: Annotated[
        Path,
        typer.Argument(
            metavar="TRACE", help="Azure or BurstGPT CSV, Mooncake or derived ShareGPT JSONL; may be compressed (.gz)."
        ),
    ],
    *,
    engine: Annotated[EngineName, typer.Option(help="Which cache manager.")] = EngineName.IMPL,
    blocks: Annotated[
        int | None, typer.Option(min=1, max=BLOCKS_MAX, help="Usable blocks; by default enough for all at once.")
    ] = None,
    block_size: Annotated[int, typer.Option(min=1, max=TOKENS_MAX, help="Tokens a block.")] = 16,
    requests: Annotated[
        int | None, typer.Option(min=1, max=REQUESTS_MAX, help="Only the first so many of the file.")
    ] = None,
    step_ms: Annotated[
        float | None,
        typer.Option(min=0.001, max=1e9, help="Let requests arrive at their times, a step lasting so long."),
    ] = None,
    final_length: Annotated[
        FinalLength, typer.Option(help="What a finished request holds: with or without its last sampled token.")
    ] = FinalLength.PROMPT_OUTPUT_LESS_ONE,
    journal: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write every operation there (compressed: .gz).")
    ] = None,
    json_file: JsonFile = None,
    seed: Seed = 0,
) -> None:
    """Replay a request trace step by step and report waste, table entries and allocations.

    First come first served, the whole prompt at admission, then one token a step for each running sequence; a
    request is admitted when the pool can hold its final length and that of all that run. Nothing in it is random.
    """
    if journal is not None:
        journal = output_file(journal, "--journal", keep=[trace])
    if json_file is not None:
        json_file = output_file(json_file, "--json", keep=[trace] if journal is None else [trace, journal])
    with LateProgress("requests read", requests) as progress:
        requests_read = read_trace(trace, requests, progress.reached)
    settings = ReplaySettings(block_size=block_size, blocks=blocks, step_ms=step_ms, final_length=final_length)
    with LateProgress("requests finished", len(requests_read)) as progress:
        report = replay(requests_read, settings, lambda options: ENGINES[engine](options, journal), progress.reached)
    command = invoked_as(context)
    console = Console()
    console.print(report.as_table(f"{trace.name}: {requests_read.format.name} trace, engine {engine.value}"))
    console.print(command, markup=False, highlight=False, soft_wrap=True)
    if json_file is not None:
        facts = {
            "command": command,
            "trace": str(trace),
            "trace_format": requests_read.format.name,
            "engine": engine.value,
            "final_length": final_length.value,
            "step_ms": step_ms,
            "seed": seed,
        }
        write_json(json_file, facts | report.as_json())

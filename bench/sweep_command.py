"""`pagedkv sweep`: which block size, from lengths, with bytes, waste, table entries and latency side by side.

The command around `sweep`, which runs it, and `sweep_pick`, which judges by the memory reserve and the TPOT that were
declared. TPOT is layers x the latency of one layer + a declared `--model-step-ms` for all else of a step; both are
printed. On a CPU the layer is scaled down, and its latency shows the mechanism only, not what a GPU would do:
`--kernel-times` takes what the kernel benchmark measured on one.

Still to come, and left out rather than guessed at: prefix hits and evictions under a bounded pool, which need the
prefix index, and goodput end to end, which needs the scheduler.
"""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, cast

import torch
import typer
from pagedkv.bench.amounts import bytes_of, in_words
from pagedkv.bench.failures import BadInput, quoted
from pagedkv.bench.model_configs import model_of
from pagedkv.bench.model_options import Dtype, KvDtype, Model
from pagedkv.bench.options import JsonFile, Seed, invoked_as
from pagedkv.bench.progress import LateProgress
from pagedkv.bench.replay_queue import FinalLength
from pagedkv.bench.result_files import output_file, write_json, write_whole
from pagedkv.bench.search_options import output_folder
from pagedkv.bench.sweep import Sweep, SweepSettings, sweep, work_of
from pagedkv.bench.sweep_lengths import (
    WEIGHTS_DEFAULT,
    Lengths,
    drawn_lengths,
    lengths_in_words,
    trace_lengths,
    weights_of,
)
from pagedkv.bench.sweep_pick import Limits, Pick, pick
from pagedkv.bench.sweep_report import as_csv, halvings, halvings_in_words, print_tables
from pagedkv.bench.trace_formats import TOKENS_MAX
from pagedkv.bench.traces import REQUESTS_MAX, read_trace
from pagedkv.kernels.arguments import Layout
from rich.console import Console

BLOCK_SIZES_MAX = 10
BUCKETS_WORD = "buckets"
OUT_FOLDER = Path("pagedkv-out/sweep")
SWEEP_EXAMPLE = "Example: pagedkv sweep --block-sizes 8,16,32,64 --model Llama-3.1-8B --reserve 5 --out sweep"


LengthsFrom = Annotated[
    str, typer.Option("--lengths", metavar="buckets|TRACE", help="Drawn from buckets, or those of a request trace.")
]
Sequences = Annotated[int, typer.Option("--sequences", min=1, max=1 << 20, help="How many to draw.")]
Weights = Annotated[
    str, typer.Option("--weights", help="Of the buckets 1-64, 65-512, 513-4096, 4097-16384; they sum to 1.")
]
Requests = Annotated[
    int | None, typer.Option("--requests", min=1, max=REQUESTS_MAX, help="Only the first so many of the trace.")
]
Final = Annotated[
    FinalLength,
    typer.Option("--final-length", help="What a request of the trace holds: with or without its last sampled token."),
]
BlockSizes = Annotated[str, typer.Option("--block-sizes", metavar="LIST", help="One to ten, with a comma between.")]
LayoutName = Annotated[str, typer.Option("--layout", help="NHD or HND: positions or heads first.")]
Memory = Annotated[
    str | None,
    typer.Option(
        "--memory", metavar="BYTES", help="For K and V (64GiB); by default a ninth more than the tokens take."
    ),
]
Reserve = Annotated[float, typer.Option("--reserve", min=0, max=100, help="Per cent of blocks that must stay free.")]
TpotMs = Annotated[float | None, typer.Option("--tpot-ms", min=0, help="Limit for the time a token; by default none.")]
ModelStepMs = Annotated[
    float, typer.Option("--model-step-ms", min=0, help="All of a step but attention, as you declare it.")
]
Steps = Annotated[int, typer.Option("--steps", min=2, max=1000, help="Decode steps.")]
SecondsMax = Annotated[
    float, typer.Option("--seconds", min=0, help="After these, steps go on without kernels, and are not timed.")
]
KernelTimesFile = Annotated[
    Path | None,
    typer.Option("--kernel-times", metavar="FILE", help="Latencies out of the kernel benchmark's kernel_speed.json."),
]
Device = Annotated[str | None, typer.Option("--device", help="cpu or cuda; by default the GPU where there is one.")]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Where table, plots and lengths are put.")]


def sweep_command(
    context: typer.Context,
    *,
    lengths: LengthsFrom = BUCKETS_WORD,
    sequences: Sequences = 2000,
    weights: Weights = WEIGHTS_DEFAULT,
    requests: Requests = None,
    final_length: Final = FinalLength.PROMPT_OUTPUT_LESS_ONE,
    block_sizes: BlockSizes = "8,16,32,64",
    model: Model = "Llama-3.1-8B",
    kv_dtype: Dtype = KvDtype.BF16,
    layout: LayoutName = "NHD",
    memory: Memory = None,
    reserve: Reserve = 5.0,
    tpot_ms: TpotMs = None,
    model_step_ms: ModelStepMs = 0.0,
    steps: Steps = 8,
    seconds: SecondsMax = 120.0,
    kernel_times: KernelTimesFile = None,
    device: Device = None,
    out: Out = OUT_FOLDER,
    json_file: JsonFile = None,
    seed: Seed = 0,
) -> None:
    """Compare block sizes on the same sequences, and pick one by a memory reserve and a TPOT limit.

    Writes sweep.json, sweep.csv, lengths.csv and plots (PNG, SVG). Exit code 1 where no block size satisfies both
    limits. Requests of a trace without prompt tokens are left out and counted.
    """
    limits = Limits(_finite("--reserve", reserve), None if tpot_ms is None else _finite("--tpot-ms", tpot_ms))
    if json_file is not None:
        json_file = output_file(json_file, "--json")
    out = output_folder(out, json_file)
    shares = weights_of(weights)
    settings = SweepSettings(
        model=model_of(model),
        lengths=drawn_lengths(sequences, shares, seed),
        block_sizes=block_sizes_of(block_sizes),
        dtype=kv_dtype.torch,
        layout=_layout(layout),
        pool_bytes=None if memory is None else bytes_of(memory, "--memory"),
        steps=steps,
        seconds_max=_finite("--seconds", seconds),
        model_step_ms=_finite("--model-step-ms", model_step_ms),
        seed=seed,
        device=_device(device),
        kernel_times=kernel_times,
    )
    if lengths != BUCKETS_WORD:
        settings = replace(settings, lengths=_of_trace(Path(lengths), requests, final_length))
    with LateProgress("allocations and decode steps", work_of(settings)) as progress:
        found = sweep(settings, progress.reached)
    _report(settings, found, limits, out, json_file, invoked_as(context))


def _of_trace(path: Path, requests: int | None, final_length: FinalLength) -> Lengths:
    with LateProgress("requests read", requests) as progress:
        return trace_lengths(read_trace(path, requests, progress.reached), final_length)


def _report(
    settings: SweepSettings, found: Sweep, limits: Limits, out: Path, json_file: Path | None, command: str
) -> None:
    """Judge, print and write. Raises `typer.Exit(1)` where nothing satisfies both limits."""
    picked = pick([row.candidate() for row in found.rows], limits)
    facts = {"command": command} | _facts(settings, found, limits, picked)
    _print(settings, found, limits, picked)
    files = _write(out, settings.lengths, found, facts)
    console = Console(soft_wrap=True, markup=False, highlight=False)
    console.print(f"{out}: {', '.join(files)}")
    console.print(command)
    if json_file is not None:
        write_json(json_file, facts)
    if picked.block_size is None:
        raise typer.Exit(1)


def block_sizes_of(text: str) -> tuple[int, ...]:
    """Read a list of block sizes, ascending. Errors: `BadInput`."""
    where, remedy = f"--block-sizes {quoted(text)}", "give one to ten, like 8,16,32,64"
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 11 for part in parts):
        raise BadInput(where, "not all of them are whole numbers", remedy)
    sizes = sorted(map(int, parts))
    if not 1 <= sizes[0] <= sizes[-1] <= TOKENS_MAX:
        raise BadInput(where, f"a block has from 1 to {TOKENS_MAX:,} tokens", remedy)
    if len(set(sizes)) < len(sizes) or len(sizes) > BLOCK_SIZES_MAX:
        raise BadInput(where, f"{len(sizes)} sizes, or one of them twice", remedy)
    return tuple(sizes)


def _finite(option: str, value: float) -> float:
    if value != value or value in {float("inf"), float("-inf")}:  # noqa: PLR0124  (that is what no number is)
        raise BadInput(option, f"{value} is no finite number", "give one")
    return value


def _layout(text: str) -> Layout:
    if text not in {"NHD", "HND"}:
        raise BadInput(f"--layout {quoted(text)}", "no layout", "give NHD or HND")
    return cast("Layout", text)


def _device(text: str | None) -> torch.device:
    if text not in {None, "cpu", "cuda"}:
        raise BadInput(f"--device {quoted(text)}", "no device", "give cpu or cuda")
    if text == "cuda" and not torch.cuda.is_available():
        raise BadInput("--device cuda", "no GPU that torch can use", "use --device cpu")
    return torch.device(text or ("cuda" if torch.cuda.is_available() else "cpu"))


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _facts(settings: SweepSettings, found: Sweep, limits: Limits, picked: Pick) -> dict[str, Any]:
    return {
        "model": settings.model.name,
        "layers": settings.model.layers,
        "kv_dtype": _word(settings.dtype),
        "layout": settings.layout,
        "seed": settings.seed,
        "lengths": settings.lengths.facts | {"sequences": len(settings.lengths), "tokens": settings.lengths.tokens},
        "memory_bytes": found.pool_bytes,
        "reserve_percent": limits.reserve_percent,
        "tpot_limit_ms": limits.tpot_ms,
        "model_step_ms": settings.model_step_ms,
        "layer": asdict(found.layer) | {"dtype": _word(found.layer.dtype)},
        "mechanism_only": found.mechanism_only,
        "block_sizes": [row.as_json() for row in found.rows],
        "halvings": halvings(found.rows),
        "times": {
            "measured": found.measured,
            "copy_bytes_per_s": found.copy_bytes_per_s,
            "pick": asdict(picked),
        },
    }


def _print(settings: SweepSettings, found: Sweep, limits: Limits, picked: Pick) -> None:
    console = Console()

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    for line in lengths_in_words(settings.lengths):
        say(line)
    say(f"pool: {in_words(found.pool_bytes)} of K and V, of which {limits.reserve_percent:g} % must stay free")
    label = " (*)" if found.mechanism_only else ""
    print_tables(console, found.rows, f"{settings.model.name}, {_word(settings.dtype)}, {settings.layout}", label)
    if found.mechanism_only:
        say("(*) mechanism only: what is timed is scaled to this machine, and says nothing of a GPU")
    say(f"decode: {found.measured}")
    if found.copy_bytes_per_s:
        say(f"memory limit: a copy of {found.copy_bytes_per_s / 1e9:,.2f} GB/s in this run")
    say(f"TPOT: {settings.model.layers} layers x decode + {settings.model_step_ms:g} ms, declared, for all the rest")
    for line in halvings_in_words(found.rows):
        say(line)
    say(f"pick: {picked.reason}")
    for line in picked.would_change:
        say(f"  {'what would help' if picked.block_size is None else 'what would change it'}: {line}")


def _write(out: Path, lengths: Lengths, found: Sweep, facts: dict[str, Any]) -> list[str]:
    """Write everything into the folder; give the names."""
    from pagedkv.bench.sweep_plots import draw_fragmentation, draw_latency, write_figure  # noqa: PLC0415  (slow)

    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "sweep.json", facts)
    write_whole(out / "sweep.csv", as_csv(found.rows).encode())
    write_whole(out / "lengths.csv", lengths.as_csv().encode())
    title = f"{facts['model']}: {lengths.source}"
    label = " (mechanism only)" if found.mechanism_only else ""
    pictures = [
        *write_figure(draw_fragmentation(found.rows, title), out, "fragmentation"),
        *write_figure(draw_latency(found.rows, title, label), out, "latency"),
    ]
    return ["sweep.json", "sweep.csv", "lengths.csv", *(picture.name for picture in pictures)]

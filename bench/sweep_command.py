"""`pagedkv sweep`: which block size, from lengths and traffic, with bytes, waste, latency and goodput side by side.

The command around `sweep`, which runs it, and `sweep_pick`, which judges by the memory reserve and the TPOT that were
declared. TPOT is layers x the latency of one layer + a declared `--model-step-ms` for all else of a step; both are
printed. On a CPU the layer is scaled down, and its latency shows the mechanism only, not what a GPU would do:
`--kernel-times` takes what the kernel benchmark measured on one.

Then requests come and go with each block size (`sweep_traffic`): those of `--prefix-trace`, else those of `--lengths`
where that is a trace, else requests made of the lengths that were drawn. `--no-traffic` leaves that out.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from pagedkv.bench.amounts import bytes_of
from pagedkv.bench.latency_meter import LatencyLimits
from pagedkv.bench.model_configs import model_files, model_of
from pagedkv.bench.model_options import Dtype, KvDtype, Model
from pagedkv.bench.options import JsonFile, Seed, invoked_as
from pagedkv.bench.progress import LateProgress
from pagedkv.bench.replay_queue import FinalLength
from pagedkv.bench.result_files import write_json
from pagedkv.bench.search_options import output_places
from pagedkv.bench.sweep_lengths import WEIGHTS_DEFAULT, drawn_lengths, trace_lengths, weights_of
from pagedkv.bench.sweep_options import (
    BUCKETS_WORD,
    SEQUENCES_DEFAULT,
    TRAFFIC_MEMORY_DEFAULT,
    BlockSizes,
    Device,
    Final,
    KernelTimesFile,
    LayoutName,
    LengthsFrom,
    Memory,
    ModelStepMs,
    Out,
    PrefixTrace,
    Requests,
    Reserve,
    SecondsMax,
    Sequences,
    Speedup,
    Steps,
    TpotMs,
    TrafficMemory,
    TtftMs,
    Weights,
    WithTraffic,
    block_sizes_of,
    device_of,
    finite,
    finite_or_none,
    layout_of,
    refuse_without_effect,
)
from pagedkv.bench.sweep_pick import Limits, pick
from pagedkv.bench.sweep_traffic import Traffic, drawn_traffic, require_prefix_ids
from pagedkv.bench.traces import Trace, read_trace
from rich.console import Console

if TYPE_CHECKING:
    from pagedkv.bench.sweep import Sweep, SweepSettings
    from pagedkv.bench.sweep_output import Outcome

OUT_FOLDER = Path("pagedkv-out/sweep")
SWEEP_EXAMPLE = "Example: pagedkv sweep --block-sizes 8,16,32,64 --model Llama-3.1-8B --reserve 5 --out sweep"


def sweep_command(
    context: typer.Context,
    *,
    lengths: LengthsFrom = BUCKETS_WORD,
    sequences: Sequences = None,
    weights: Weights = None,
    requests: Requests = None,
    final_length: Final = None,
    block_sizes: BlockSizes = "8,16,32,64",
    model: Model = "Llama-3.1-8B",
    kv_dtype: Dtype = KvDtype.BF16,
    layout: LayoutName = "NHD",
    memory: Memory = None,
    reserve: Reserve = 5.0,
    tpot_ms: TpotMs = None,
    ttft_ms: TtftMs = None,
    model_step_ms: ModelStepMs = 0.0,
    steps: Steps = 8,
    seconds: SecondsMax = 120.0,
    kernel_times: KernelTimesFile = None,
    with_traffic: WithTraffic = True,
    prefix_trace: PrefixTrace = None,
    traffic_memory: TrafficMemory = None,
    speedup: Speedup = None,
    device: Device = None,
    out: Out = OUT_FOLDER,
    json_file: JsonFile = None,
    seed: Seed = 0,
) -> None:
    """Compare block sizes on the same sequences, and pick one by a memory reserve and a TPOT limit.

    Writes sweep.html, sweep.json, sweep.csv, lengths.csv and plots (PNG, SVG). Exit code 1 where no block size
    satisfies both limits. Requests of a trace without prompt tokens are left out of the lengths and counted.
    """
    from pagedkv.bench.sweep import SweepSettings  # noqa: PLC0415  (torch takes seconds to import)
    from pagedkv.bench.sweep_output import FILES  # noqa: PLC0415  (as above)

    limits = Limits(finite("--reserve", reserve), finite_or_none("--tpot-ms", tpot_ms))
    latency_limits = LatencyLimits(ttft_ms=finite_or_none("--ttft-ms", ttft_ms), tpot_ms=limits.tpot_ms)
    inputs = [Path(lengths), *model_files(model), *filter(None, (prefix_trace, kernel_times))]
    out, json_file = output_places(out, json_file, FILES, inputs)
    shares = weights_of(WEIGHTS_DEFAULT if weights is None else weights)
    _refuse_without_effect(context.params)
    settings = SweepSettings(
        model=model_of(model),
        lengths=drawn_lengths(sequences or SEQUENCES_DEFAULT, shares, seed),
        block_sizes=block_sizes_of(block_sizes),
        dtype=kv_dtype.torch,
        layout=layout_of(layout),
        pool_bytes=None if memory is None else bytes_of(memory, "--memory"),
        steps=steps,
        seconds_max=finite("--seconds", seconds),
        model_step_ms=finite("--model-step-ms", model_step_ms),
        seed=seed,
        device=device_of(device),
        kernel_times=kernel_times,
    )
    pool_bytes = bytes_of(TRAFFIC_MEMORY_DEFAULT if traffic_memory is None else traffic_memory, "--traffic-memory")
    faster = finite("--speedup", 1.0 if speedup is None else speedup)
    trace = None if lengths == BUCKETS_WORD else _read(Path(lengths), requests)
    if trace is not None:
        final = final_length or FinalLength.PROMPT_OUTPUT_LESS_ONE
        settings = replace(settings, lengths=trace_lengths(trace, final))
    if prefix_trace is not None:
        trace = require_prefix_ids(_read(prefix_trace, requests))
    traffic = _traffic(trace, settings, pool_bytes, faster, latency_limits) if with_traffic else None
    _report(_judged(settings, traffic, limits, invoked_as(context)), out, json_file)


def _refuse_without_effect(given: Mapping[str, Any]) -> None:
    """Refuse options that were given and would be without effect, by what else was given. Errors: `BadInput`."""
    lengths = f"--lengths {given['lengths']}"
    if given["lengths"] != BUCKETS_WORD:
        remedy = "leave it out, or --lengths; --requests takes the first so many of a trace"
        refuse_without_effect(given, ("sequences", "weights"), f"nothing is drawn beside {lengths}", remedy)
    else:
        names = ["final_length", *(["requests"] if given["prefix_trace"] is None else [])]
        refuse_without_effect(
            given, names, f"no trace to apply it to with {lengths}", "leave it out, or give --lengths TRACE"
        )
    if not given["with_traffic"]:
        names = ["prefix_trace", "traffic_memory", "speedup", "ttft_ms"]
        refuse_without_effect(given, names, "nothing is replayed with --no-traffic", "leave out one of the two")


def _read(path: Path, requests: int | None) -> Trace:
    with LateProgress("requests read", requests) as progress:
        return read_trace(path, requests, progress.reached)


def _traffic(
    trace: Trace | None, settings: "SweepSettings", pool_bytes: int, speedup: float, latency_limits: LatencyLimits
) -> Traffic:
    """Give the requests that come and go: a trace's, or some made of the lengths."""
    made = f"requests made of {settings.lengths.source}"
    source = made if trace is None else f"requests of {trace.path.name} ({trace.format.name} trace)"
    return Traffic(
        trace=drawn_traffic(settings.lengths, settings.seed) if trace is None else trace,
        source=source,
        pool_bytes=pool_bytes,
        speedup=speedup,
        latency_limits=latency_limits,
        seed=settings.seed,
    )


def _sweep(settings: "SweepSettings", traffic: Traffic | None) -> "Sweep":
    from pagedkv.bench.sweep import add_traffic, sweep, traffic_blocks, work_of  # noqa: PLC0415  (see above)

    if traffic is not None:
        traffic_blocks(settings, traffic)  # a pool without one is found out before minutes are spent
    with LateProgress("allocations and decode steps", work_of(settings)) as progress:
        found = sweep(settings, progress.reached)
    if traffic is None:
        return found
    with LateProgress("requests replayed", 2 * len(settings.block_sizes) * len(traffic.trace)) as progress:
        return add_traffic(settings, found, traffic, progress.reached)


def _judged(settings: "SweepSettings", traffic: Traffic | None, limits: Limits, command: str) -> "Outcome":
    """Sweep, and pick."""
    from pagedkv.bench.sweep_output import Outcome, mark_of  # noqa: PLC0415  (see above)

    found = _sweep(settings, traffic)
    picked = pick([row.candidate(mark_of(found)) for row in found.rows], limits)
    return Outcome(settings=settings, traffic=traffic, found=found, limits=limits, picked=picked, command=command)


def _report(outcome: "Outcome", out: Path, json_file: Path | None) -> None:
    """Print and write. Raises `typer.Exit(1)` where nothing satisfies both limits."""
    from pagedkv.bench.sweep_output import print_outcome, write_outcome  # noqa: PLC0415  (see above)

    print_outcome(outcome)
    files = write_outcome(out, outcome)
    console = Console(emoji=False, soft_wrap=True, markup=False, highlight=False)
    console.print(f"{out}: {', '.join(files)}")
    console.print(outcome.command)
    if json_file is not None:
        write_json(json_file, outcome.facts())
    if outcome.picked.block_size is None:
        raise typer.Exit(1)

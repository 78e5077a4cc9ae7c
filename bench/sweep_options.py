"""The options of `pagedkv sweep`, and what their words become.

What is only for lengths that are drawn, or only for a trace, has no value until one is given: beside the other it would
be without effect, and is refused by name, not passed over.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from pagedkv.bench.failures import BadInput, quoted
from pagedkv.bench.replay_queue import FinalLength
from pagedkv.bench.trace_formats import TOKENS_MAX
from pagedkv.bench.traces import REQUESTS_MAX

if TYPE_CHECKING:
    import torch
    from pagedkv.kernels.arguments import Layout

BLOCK_SIZES_MAX = 10
BUCKETS_WORD = "buckets"
SEQUENCES_DEFAULT = 2000
TRAFFIC_MEMORY_DEFAULT = "64GiB"

LengthsFrom = Annotated[
    str, typer.Option("--lengths", metavar="buckets|TRACE", help="Drawn from buckets, or those of a request trace.")
]
Sequences = Annotated[
    int | None, typer.Option("--sequences", min=1, max=1 << 20, help=f"How many to draw ({SEQUENCES_DEFAULT}).")
]
Weights = Annotated[
    str | None,
    typer.Option(
        "--weights", help="Of the buckets 1-64, 65-512, 513-4096, 4097-16384; they sum to 1 (a quarter each)."
    ),
]
Requests = Annotated[
    int | None, typer.Option("--requests", min=1, max=REQUESTS_MAX, help="Only the first so many of a trace.")
]
Final = Annotated[
    FinalLength | None,
    typer.Option(
        "--final-length",
        help="What a request of --lengths TRACE holds: with or without its last sampled token (without).",
    ),
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
TtftMs = Annotated[
    float | None,
    typer.Option("--ttft-ms", min=0, help="Limit for the time to a first token, of goodput; by default none."),
]
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
PrefixTrace = Annotated[
    Path | None,
    typer.Option(
        "--prefix-trace",
        metavar="TRACE",
        help="Requests with prefix ids, to be replayed with each block size; by default those of --lengths TRACE, or"
        " requests made of the lengths drawn.",
    ),
]
WithTraffic = Annotated[
    bool, typer.Option("--traffic/--no-traffic", help="Replay requests with each block size, which takes longest.")
]
TrafficMemory = Annotated[
    str | None,
    typer.Option(
        "--traffic-memory",
        metavar="BYTES",
        help=f"For K and V of the replays: their bounded pool ({TRAFFIC_MEMORY_DEFAULT}).",
    ),
]
Speedup = Annotated[
    float | None,
    typer.Option("--speedup", min=0.001, max=1e6, help="Let the replays' requests arrive so many times as fast (1)."),
]
Device = Annotated[str | None, typer.Option("--device", help="cpu or cuda; by default the GPU where there is one.")]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Where tables, plots, page and lengths are put.")]


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


def finite(option: str, value: float) -> float:
    """Give a number that is one. Errors: `BadInput`."""
    if value != value or value in {float("inf"), float("-inf")}:  # noqa: PLR0124  (that is what no number is)
        raise BadInput(option, f"{value} is no finite number", "give one")
    return value


def finite_or_none(option: str, value: float | None) -> float | None:
    """Give a number that is one, or none. Errors: `BadInput`."""
    return None if value is None else finite(option, value)


def layout_of(text: str) -> "Layout":
    """Read a layout. Errors: `BadInput`."""
    if text not in {"NHD", "HND"}:
        raise BadInput(f"--layout {quoted(text)}", "no layout", "give NHD or HND")
    return cast("Layout", text)


def device_of(text: str | None) -> "torch.device":
    """Read a device that is there. Errors: `BadInput`."""
    import torch  # noqa: PLC0415  (it takes seconds)

    if text not in {None, "cpu", "cuda"}:
        raise BadInput(f"--device {quoted(text)}", "no device", "give cpu or cuda")
    if text == "cuda" and not torch.cuda.is_available():
        raise BadInput("--device cuda", "no GPU that torch can use", "use --device cpu")
    return torch.device(text or ("cuda" if torch.cuda.is_available() else "cpu"))


def refuse_without_effect(given: Mapping[str, Any], names: Iterable[str], why: str, remedy: str) -> None:
    """Refuse the first of these options that has a value. Errors: `BadInput`."""
    for name in names:
        if given[name] is not None:
            raise BadInput(f"--{name.replace('_', '-')}", why, remedy)

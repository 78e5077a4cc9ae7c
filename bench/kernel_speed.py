"""The speed of the kernels on this machine: `python -m pagedkv.bench.kernel_speed [--out DIR]`.

On a GPU: correctness on the card first (against the oracle, bits under batch mates and block ids, a captured CUDA
graph), then the whole set of shapes with the ceilings of the same run and whatever peers can be imported, in under four
minutes. On a CPU: the torch fallback beside its peers, in turns. Either way DIR gets `kernel_speed.json` and
`kernel_speed.md`, and the table is printed. Exit status 1 if a check broke or a target was missed, 2 for bad input.
"""

import argparse
import contextlib
import datetime as dt
import platform
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from pagedkv.bench.failures import BadInput
from pagedkv.bench.kernel_checks import KernelCheck, check_graph, check_kernels
from pagedkv.bench.kernel_jobs import (
    ATTENTION,
    REFERENCE,
    Row,
    attention_call,
    described,
    judge,
    judge_storage,
    time_attention,
    time_storage,
)
from pagedkv.bench.kernel_peers import peers_of
from pagedkv.bench.kernel_problems import Shape, make
from pagedkv.bench.kernel_timing import Ceilings, measure_ceilings, measure_in_turns
from pagedkv.bench.result_files import output_file, write_json
from pagedkv.spec.counts import counted
from rich.console import Console

GPU_SECONDS = 210.0  # after this, what is left runs without peers
CPU_SHAPES = [Shape("decode", 32, 2048, dtype=dtype) for dtype in (torch.float32, torch.bfloat16)]
CONTIGUOUS = "contiguous SDPA"


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m pagedkv.bench.kernel_speed", epilog="Example: python -m pagedkv.bench.kernel_speed --out speed"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="write kernel_speed.json and kernel_speed.md there")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: the GPU where there is one")
    parser.add_argument("--no-compiled-peers", action="store_true", help="leave out peers that compile for seconds")
    options = parser.parse_args(arguments)
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    try:
        require_device(device)
        files = _files(options.out)
    except BadInput as bad:
        print(bad, file=sys.stderr)  # noqa: T201  (a command's one line)
        return 2
    report = (_gpu if device.type == "cuda" else _cpu)(device, compiled=not options.no_compiled_peers)
    report["command"] = " ".join(["python -m pagedkv.bench.kernel_speed", *(arguments or sys.argv[1:])])
    text = as_markdown(report)
    Console(emoji=False, soft_wrap=True).print(text, markup=False, highlight=False)
    if files is not None:
        write_json(files[0], report)
        files[1].write_text(text, encoding="utf-8")
    broken = any(check["broken"] for check in report["checks"])
    return 1 if broken or any(row["met"] is False for row in report["rows"]) else 0


def require_device(device: torch.device) -> None:
    """Refuse a GPU that is not there. Errors: `BadInput`."""
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BadInput("--device cuda", "no GPU that torch can use", "use --device cpu")


def _files(folder: Path | None) -> tuple[Path, Path] | None:
    """Find out that the results can be written, before minutes are spent on them."""
    if folder is None:
        return None
    with contextlib.suppress(OSError):  # output_file says what is wrong with the folder
        folder.mkdir(parents=True, exist_ok=True)
    json_file, markdown_file = (output_file(folder / f"kernel_speed.{kind}", "--out") for kind in ("json", "md"))
    return json_file, markdown_file


def _gpu(device: torch.device, *, compiled: bool) -> dict[str, Any]:
    """Check and time on a GPU. Our own rows always run; peers run while there is time."""
    began = time.monotonic()
    checks = [*check_kernels(device, seconds=15), check_graph(device)]
    ceilings = measure_ceilings(device)
    rows: dict[Shape, Row] = {}
    # The reference first: its compiled peers take longest. Large caches last, where one copy fills the memory.
    for shape in sorted(ATTENTION, key=lambda s: (s != REFERENCE, s.cache_bytes)):
        in_time = time.monotonic() - began < GPU_SECONDS - 60
        rows[shape] = time_attention(shape, device, ceilings, peers=in_time, compiled=compiled and shape == REFERENCE)
        torch.cuda.empty_cache()
    storage = list(time_storage(device, ceilings))
    judge(rows, ceilings)
    judge_storage(storage)
    card = torch.cuda.get_device_name(device)
    return _report(card, ceilings, checks, [*(rows[shape] for shape in ATTENTION), *storage], began)


def _cpu(device: torch.device, *, compiled: bool) -> dict[str, Any]:
    """Check and time on a CPU: ours and every peer in turns, medians."""
    began = time.monotonic()
    checks = check_kernels(device, seconds=5)
    ceilings = measure_ceilings(device)
    rows = []
    for shape in CPU_SHAPES:
        problem = make(shape, device)
        calls = {"ours": attention_call(problem), **dict(peers_of(problem, compiled=compiled))}
        times = measure_in_turns(calls)
        seconds = times["ours"] / 1e6
        row = Row(
            "decode", described(shape), times.pop("ours"),
            shape.moved_bytes / seconds / 1e9, shape.moved_bytes / seconds / ceilings.copy_bytes_per_s,
            shape.flops / seconds / 1e12, shape.flops / seconds / ceilings.matmul_flops_per_s, times, {},
            f"2.5 x {CONTIGUOUS}, faster than the rest",
        )  # fmt: skip
        within = row.microseconds <= 2.5 * times[CONTIGUOUS]
        row.met = within and all(row.microseconds < taken for name, taken in times.items() if name != CONTIGUOUS)
        rows.append(row)
    return _report(
        f"{platform.processor() or platform.machine()}, {counted(torch.get_num_threads(), 'thread')}",
        ceilings,
        checks,
        rows,
        began,
    )


def _report(
    machine: str, ceilings: Ceilings, checks: list[KernelCheck], rows: list[Row], began: float
) -> dict[str, Any]:
    return {
        "machine": machine,
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
        "torch": torch.__version__,
        "seconds": round(time.monotonic() - began, 1),
        "ceilings": asdict(ceilings),
        "checks": [asdict(check) for check in checks],
        "rows": [asdict(row) for row in rows],
    }


def as_markdown(report: dict[str, Any]) -> str:
    """Write a report as a page: what it ran on, checks, and one table."""
    copy, product = report["ceilings"]["copy_bytes_per_s"] / 1e9, report["ceilings"]["matmul_flops_per_s"] / 1e12
    lines = [
        f"{report['machine']}, torch {report['torch']}, {report['date']}, {report['seconds']} s: `{report['command']}`",
        "",
        f"Ceilings of this run: device copy {copy:,.1f} GB/s, bf16 product {product:,.2f} TFLOP/s.",
        "",
        *(f"- {c['name']}: {c['broken'] or 'held'} ({c['cases']} cases)" for c in report["checks"]),
        "",
        "| job | shape | us | GB/s | of copy | TFLOP/s | of product | target | met | peers, us |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        timed = [f"{name} {taken:,.1f}" for name, taken in row["peers_microseconds"].items()]
        peers = ", ".join([*timed, *(f"{name} failed" for name in row["peers_failed"])]) or "-"
        met = {None: "-", True: "yes", False: "NO"}[row["met"]]
        lines.append(
            f"| {row['name']} | {row['shape']} | {row['microseconds']:,.1f} | {row['gb_per_s']:,.1f}"
            f" | {row['copy_fraction']:.0%} | {row['tflop_per_s']:,.2f} | {row['matmul_fraction']:.0%}"
            f" | {row['target'] or '-'} | {met} | {peers} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())

"""The loop under stress: `python -m pagedkv.bench.stress [--seconds 60] [--device cuda]`.

Worlds of `stress_world` one after the other, each drawn from a seed of its own, until the time is over; a world that
has begun is ended. Exit status 0 if every output row was right; 1 with the first one that was not, and the command that
shows it again; 2 for bad input. On a GPU the same worlds run on streams: written for one, not yet measured on one.
"""

import argparse
import sys
import time
from dataclasses import asdict
from itertools import count
from pathlib import Path

import torch
from pagedkv.bench.failures import BadInput
from pagedkv.bench.kernel_speed import require_device
from pagedkv.bench.progress import LateSpinner
from pagedkv.bench.result_files import output_file, write_json
from pagedkv.bench.stress_ledger import Tally, WrongRow
from pagedkv.bench.stress_world import World, run_world
from pagedkv.impl.device import open_device
from pagedkv.spec.counts import counted
from rich.console import Console

SECONDS = 60.0
SEED_MAX = 2**62
WORDS = {"failures": "failures (made on purpose)"}


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if not (options.seconds > 0 and 0 <= options.seed <= SEED_MAX):
        parser.error("--seconds must be above 0, and --seed from 0 to 2^62")
    try:
        device = torch.device(options.device)
        require_device(device)
        file = None if options.json is None else output_file(options.json, "--json")
    except BadInput as bad:
        print(bad, file=sys.stderr)  # noqa: T201  (a command's one line)
        return 2
    tally, worlds, wrong = run(device, options.seconds, options.seed)
    console = Console(emoji=False, soft_wrap=True, highlight=False)
    console.print(f"{counted(worlds, 'world')} on {device.type}: {_in_words(tally)}")
    if wrong is None:
        console.print("every output row as dense attention in float64: holds")
    else:
        console.print(f"[red]wrong:[/] {wrong}", f"again: python -m pagedkv.bench.stress --device {device.type}"
                      f" --seconds 0.1 --seed {options.seed + worlds}", sep="\n")  # fmt: skip
    if file is not None:
        write_json(file, {"worlds": worlds, **asdict(tally), "wrong": wrong})
    return 0 if wrong is None else 1


def run(device: torch.device, seconds: float, seed: int) -> tuple[Tally, int, str | None]:
    """Run worlds from a seed on; return what happened, how many worlds ended well, and the first wrong row."""
    tally, worlds, end = Tally(), 0, time.monotonic() + seconds
    with LateSpinner("stress") as spinner:
        for world in count(seed):
            try:
                tally.add(run_world(World.draw(world), open_device(device)))
            except WrongRow as wrong:
                return tally, worlds, str(wrong)
            worlds += 1
            spinner.says(f"{counted(worlds, 'world')}, {tally.rows:,} rows")
            if time.monotonic() >= end:
                break
    return tally, worlds, None


def _in_words(tally: Tally) -> str:
    """Say what happened: a number for each kind of event."""
    return ", ".join(f"{number:,} {WORDS.get(name, name.replace('_', ' '))}" for name, number in asdict(tally).items())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pagedkv.bench.stress",
        description="Run the loop with all that can happen to it at random, freed blocks poisoned and launches late,"
        " and compare every output row with dense attention in float64.",
        epilog="Example: python -m pagedkv.bench.stress --seconds 60",
    )
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"how long; default {SECONDS:g}")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default cpu")
    parser.add_argument("--seed", type=int, default=0, help="of the first world; default 0")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what happened there, too")
    return parser


if __name__ == "__main__":
    sys.exit(main())

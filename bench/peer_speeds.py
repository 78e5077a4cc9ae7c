"""Our manager and other people's, side by side in one process: `python -m pagedkv.bench.peer_speeds [--json FILE]`.

One table of each case and each manager that can be imported: the median microseconds, and how many times ours that is.
The managers take turns (A B C A B C ...), since wall times on a shared machine vary two- or threefold; each takes five
in a row, so that the median is of one that finds its own memory in the caches, and not that of the others. torch has
one thread. No garbage is collected within a case, since one manager's turn would pay for what another has made. What is
timed of a case says its class in `peer_cases` and `peer_step_cases`; what each manager is asked, the `*_sides` modules.

Nothing is left out silently: who is not here has a row that says how to get it, and a cell says what is not offered.
A slow manager takes fewer turns: each gets so many seconds a case, and five turns at least.

Exit status 0 if all that is wanted holds as far as it could be measured, 1 if something does not.
"""

import argparse
import csv
import gc
import io
import logging
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from pagedkv.bench.failures import BadInput
from pagedkv.bench.peer_cases import Cancel, Decode, Evicting, EvictingOneLeaf, FullHit, Prompt
from pagedkv.bench.peer_contenders import ALL_AT_ONCE, CONTENDERS, NO_CACHE, OURS, Contender, bytes_a_block
from pagedkv.bench.peer_speeds_table import AS_IT_IS, OFF, ON, Cell, print_tables, rows_of, verdicts
from pagedkv.bench.peer_step_cases import SchedulerStep
from pagedkv.bench.progress import LateSpinner
from pagedkv.bench.result_files import output_file, write_json, write_whole
from pagedkv.spec.calls import said
from pagedkv.spec.quoting import one_line

BURST = 5  # turns in a row
STEPS = {1: 200, 16: 200, 256: 100, 2000: 40, 10_000: 20}  # turns of a decode step by sequences
TURNS = 200
CACHED_PROMPTS = 400
LEAVES = (5000, 20_000)
RUNNING = (256, 2000)
SCHEDULED = 40  # steps
SECONDS = 1.0


class Contestant(Protocol):
    """A case, made for one manager."""

    def turn(self) -> float:
        """Do it once; return the seconds that took."""


class Case(NamedTuple):
    """A row of the table."""

    name: str
    caching: str  # on, off, or as each has it
    make: Callable[[Contender], Contestant]
    refused: Callable[[Contender], str]  # why a manager does not take part; empty if it does
    turns: int = TURNS


def cases() -> list[Case]:
    """Return all that is timed."""
    found = []
    for word in (ON, OFF):
        caching = word == ON
        for sequences, steps in STEPS.items():
            make = _maker(Decode, sequences, steps, caching=caching)
            found.append(Case(f"decode step, {sequences:,}", word, make, _asked(sequences, caching=caching), steps))
        for case, name in ((Prompt, "prompt of 1,024, no hit"), (Cancel, "cancel, 1,024")):
            found.append(Case(name, word, _maker(case, TURNS, caching=caching), _asked(caching=caching)))
    evict = _maker(Evicting, CACHED_PROMPTS, caching=True)
    found += [
        Case("full hit of 2,048", ON, _maker(FullHit, 10_000, caching=True), _asked(caching=True)),
        Case("prompt of 1,024, evicts 64 blocks", ON, evict, _evicts),
    ]
    for leaves in LEAVES:
        make = _maker(EvictingOneLeaf, leaves, caching=True)
        found.append(Case(f"prompt of 16, evicts 1 of {leaves:,}", ON, make, _evicts))
    return found + [
        Case(f"scheduler step, {requests:,}", ON, _stepper(requests), lambda each: each.no_stepping, SCHEDULED)
        for requests in RUNNING
    ]


def _maker(case: Callable[..., Contestant], *sizes: int, caching: bool) -> Callable[[Contender], Contestant]:
    return lambda contender: case(contender.side, *sizes, caching=caching)


def _stepper(requests: int) -> Callable[[Contender], Contestant]:
    def make(contender: Contender) -> Contestant:
        assert contender.stepping is not None
        return SchedulerStep(contender.stepping, requests, SCHEDULED)

    return make


def _asked(sequences: int = 1, *, caching: bool) -> Callable[[Contender], str]:
    def refused(contender: Contender) -> str:
        side = contender.side
        if caching not in side.caches:
            return NO_CACHE if caching else "not offered: its prefix cache is always on"
        if sequences > side.most_sequences:
            return f"not run: its tables for {sequences:,} sequences take more memory than there is"
        return ""

    return refused


def _evicts(contender: Contender) -> str:
    return _asked(caching=True)(contender) or ("" if contender.evicts_by_block else ALL_AT_ONCE)


def measure(case: Case, contenders: Sequence[Contender], seconds: float) -> list[Cell]:
    """Let managers take turns at a case; return a cell for each, and what went wrong in its note."""
    notes = {each.name: case.refused(each) for each in contenders}
    gc.collect()
    gc.disable()
    try:
        seen = _take_turns(case, contenders, seconds, notes)
    finally:
        gc.enable()
    medians = {name: statistics.median(times) * 1e6 for name, times in seen.items() if times and not notes[name]}
    return [
        Cell(case.name, case.caching, name, medians.get(name), "us", len(seen.get(name, ())), note)
        for name, note in notes.items()
    ]


def _take_turns(
    case: Case, contenders: Sequence[Contender], seconds: float, notes: dict[str, str]
) -> dict[str, list[float]]:
    """Return the seconds of each turn of each manager; note who fails."""
    contestants: dict[str, Contestant] = {}
    for contender in contenders:
        if not notes[contender.name]:
            try:
                contestants[contender.name] = case.make(contender)
            except Exception as error:  # noqa: BLE001  (a stranger's manager may fail in any way, and that is its cell)
                notes[contender.name] = f"failed: {one_line(said(error))}"
    seen: dict[str, list[float]] = {name: [] for name in contestants}
    for done in range(0, case.turns, BURST):
        for name, contestant in contestants.items():
            if not notes[name] and (not done or sum(seen[name]) < seconds):
                try:
                    seen[name] += [contestant.turn() for _ in range(min(BURST, case.turns - done))]
                except Exception as error:  # noqa: BLE001  (the same)
                    notes[name] = f"failed: {one_line(said(error))}"
    return seen


def weigh(contenders: Sequence[Contender]) -> list[Cell]:
    """Return the bytes a block of each manager, empty and full of what it caches."""
    cells = []
    for case, full in (("bytes a block, empty", False), ("bytes a block, cached", True)):
        for contender in contenders:
            note = NO_CACHE if full and True not in contender.side.caches else ""
            value = None if note else float(bytes_a_block(contender, full=full))
            cells.append(Cell(case, AS_IT_IS, contender.name, value, "bytes", 1, note))
    return cells


def run(contenders: Sequence[Contender], seconds: float) -> list[Cell]:
    """Measure everything."""
    cells = []
    with LateSpinner("managers side by side") as progress:
        for case in cases():
            progress.says(f"{case.name}, cache {case.caching}")
            cells += measure(case, contenders, seconds)
        progress.says("bytes a block")
        return cells + weigh(contenders)


def csv_of(rows: Sequence[dict[str, object]]) -> bytes:
    """Return rows as a CSV file."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0].keys(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, write; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m pagedkv.bench.peer_speeds",
        epilog="Example: python -m pagedkv.bench.peer_speeds --peers vllm,nano_vllm --json speeds.json",
    )
    names = ",".join(each.name for each in CONTENDERS[1:])
    parser.add_argument("--peers", default=names, help=f"who stands beside ours, with commas between; default {names}")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"of each manager at a case; default {SECONDS}")
    parser.add_argument("--json", type=Path, help="a file for the results")
    parser.add_argument("--csv", type=Path, help="the same, a line for each manager and case")
    options = parser.parse_args(arguments)
    chosen = options.peers.split(",")
    if unknown := {*chosen} - {*names.split(",")}:
        parser.error(f"--peers: unknown {', '.join(sorted(unknown))}; there are {names}")
    if not 0 < options.seconds <= 3600:
        parser.error(f"--seconds must be more than 0 and at most 3600, not {options.seconds}")
    try:
        json_file = options.json and output_file(options.json, "--json")
        csv_file = options.csv and output_file(options.csv, "--csv")
    except BadInput as error:
        parser.error(str(error))
    logging.disable(logging.WARNING)  # what an engine says of its missing parts while it is imported
    torch.set_num_threads(1)
    missing = {each.name: each.missing() for each in CONTENDERS if each.name in {OURS, *chosen}}
    there = [each for each in CONTENDERS if missing.get(each.name) == ""]
    versions = {each.name: each.version() for each in there}
    gc.collect()
    gc.freeze()  # what was imported: to look through it in each case would take longer than some cases
    try:
        rows = rows_of(run(there, options.seconds), missing, versions)
    finally:
        gc.unfreeze()
    wanted = verdicts(rows)
    print_tables(rows, missing, versions, wanted)
    if json_file:
        write_json(json_file, {"rows": rows, "wanted": wanted, "versions": versions, "missing": missing})
    if csv_file:
        write_whole(csv_file, csv_of(rows))
    return 1 if any(each["holds"] is False for each in wanted) else 0


if __name__ == "__main__":
    sys.exit(main())

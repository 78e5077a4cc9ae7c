"""What a driver leaves behind when a rule broke: a table, a picture, a journal to audit, a trace to run again.

The trace file holds everything that the run needs (target, sizes, operations with the device's own moves), so that
`pagedkv fuzz --again FILE` shows the same table on any machine. The journal holds what the manager said it did, for
`pagedkv compare`; the device's moves are not in it, since no host sees them.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from pagedkv.bench.failures import BadInput
from pagedkv.bench.operation_words import outcome_in_words
from pagedkv.bench.result_files import write_json
from pagedkv.bench.show_files import write_picture
from pagedkv.bench.show_sources import film_of_counterexample
from pagedkv.bench.targets import load_target
from pagedkv.impl.journal import JournalWriter
from pagedkv.spec.alphabet import (
    Add,
    Execute,
    Extend,
    Fork,
    Operation,
    Release,
    Retire,
    Submit,
    describe,
    from_json,
    to_json,
)
from pagedkv.spec.operations import Outcome
from pagedkv.spec.refusals import Broken
from pagedkv.spec.rules import RULES
from pagedkv.spec.state import Config
from pagedkv.spec.traces import Case, Finding, tell
from rich.console import Console
from rich.table import Table

KIND = "pagedkv trace"
VERSION = 1


class Saved(NamedTuple):
    """Where a counterexample was put, and how to run it again."""

    trace: Path
    journal: Path
    picture: Path | None  # none where what the manager shows of itself cannot be drawn
    command: str


def show(console: Console, finding: Finding) -> None:
    """Print a counterexample: the rule, its sentence, and a line a step."""
    told, broken = tell(finding.case, finding.trace)
    rule = broken.rule if broken else finding.broken.rule
    sentence = RULES[rule].sentence if rule in RULES else "The manager raised an error of its own."
    table = Table(title=f"{rule} does not hold after {len(told)} operations", caption=sentence, title_justify="left")
    for heading in ("step", "operation", "outcome"):
        table.add_column(heading, overflow="fold")
    for heading in ("free", "held", "quarantined"):
        table.add_column(heading, justify="right")
    for number, step in enumerate(told, 1):
        last = broken is not None and number == len(told)
        counts = (str(step.free), str(step.held), str(step.quarantined))
        table.add_row(
            str(number),
            describe(step.operation),
            outcome_in_words(step.operation, step.offered),
            *counts,
            style="bold red" if last else "",
        )
    console.print(table)
    console.print(
        f"what differs: {broken.detail if broken else 'nothing: the trace held this time'}",
        soft_wrap=True,
        markup=False,
    )


def save(finding: Finding, directory: Path, target: str) -> Saved:
    """Write trace, journal and picture into a folder, made if need be. Errors: `BadInput`, `OSError`."""
    if directory.exists() and not directory.is_dir():
        raise BadInput(f"--out {directory}", "not a folder", "name another")
    directory.mkdir(parents=True, exist_ok=True)
    stem = f"{finding.broken.rule}-{len(finding.trace)}"
    trace, journal = directory / f"{stem}.trace.json", directory / f"{stem}.journal.jsonl"
    config = finding.case.config
    write_json(
        trace,
        {
            "kind": KIND,
            "version": VERSION,
            "target": target,
            "lock_step": finding.case.lock_step,
            **config._asdict(),
            "rule": finding.broken.rule,
            "detail": finding.broken.detail,
            "operations": [to_json(operation) for operation in finding.trace],
        },
    )
    told, _ = tell(finding.case, finding.trace)
    with JournalWriter(
        journal, blocks=config.blocks, block_size=config.block_size, streams=config.streams, launches=config.launches
    ) as writer:
        for step in told:
            if isinstance(step.offered, Outcome):
                _journal(writer, step.operation, step.offered)
    return Saved(trace, journal, _draw(finding, directory / f"{stem}.png"), f"pagedkv fuzz --again {trace}")


def _draw(finding: Finding, picture: Path) -> Path | None:
    try:
        write_picture(film_of_counterexample(finding), picture)
    except OSError:
        raise
    except Exception:  # noqa: BLE001  (a stranger's manager may show anything; the counterexample is saved by now)
        return None
    return picture


def _journal(writer: JournalWriter, operation: Operation, outcome: Outcome) -> None:
    match operation:
        case Add(name, count):
            writer.add(name, count, list(outcome.blocks))
        case Extend(rows):
            writer.extend([n for n, _ in rows], [c for _, c in rows], list(outcome.blocks), list(outcome.copies))
        case Fork(parent, child):
            writer.fork(parent, child)
        case Submit(rows, stream):
            writer.launch(outcome.launch, [n for n, _ in rows], [c for _, c in rows], stream, sorted(outcome.after))
        case Retire(launch):
            writer.retire(launch, sorted(outcome.freed))
        case Release(name):
            writer.release(name, sorted(outcome.freed))
        case Execute():
            pass


def load(path: Path) -> tuple[Finding, str]:
    """Read a trace file: what to run again, and on which target. Errors: `BadInput`."""
    where = f"--again {path}"
    try:
        text = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(where, error.strerror or "cannot be read", "name a trace file") from error
    except (ValueError, RecursionError) as error:
        raise BadInput(where, f"no JSON ({error})", "name a file that pagedkv fuzz or explore has written") from error
    if not isinstance(text, dict) or text.get("kind") != KIND or text.get("version") != VERSION:
        raise BadInput(where, f"no {KIND} of version {VERSION}", "name a file that pagedkv fuzz or explore has written")
    try:
        sizes = [_size(text, field) for field in Config._fields]
        operations = tuple(from_json(words) for words in text["operations"])
        broken = Broken(str(text["rule"]), str(text["detail"]))
        target = str(text["target"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise BadInput(where, f"a field is missing or wrong ({error})", "run the search again") from error
    case = Case(Config(*sizes), load_target(target), bool(text.get("lock_step", True)))
    return Finding(case, operations, broken), target


def _size(text: dict[str, Any], field: str) -> int:
    value = text[field]
    if type(value) is not int or not 1 <= value <= 1_000_000:
        raise ValueError(f"{field} is {value!r}")
    return value

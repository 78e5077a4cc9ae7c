"""What a driver leaves behind when a rule broke: a table, a picture, a journal to audit, a trace to run again.

The trace file holds everything that the run needs (target, sizes, operations with the device's own moves), so that
`pagedkv fuzz --again FILE` shows the same table on any machine. The journal holds what the manager said it did, for
`pagedkv compare`; the device's moves are not in it, since no host sees them.
"""

import itertools
import json
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pagedkv.bench import foreign_search
from pagedkv.bench.failures import BadInput, one_line, quoted
from pagedkv.bench.operation_words import told_in_words, world_in_words
from pagedkv.bench.own_files import ENDINGS, JOURNAL, PICTURE, TRACE, TRACE_KIND, another_of_ours
from pagedkv.bench.result_files import write_whole
from pagedkv.bench.scheduler_search import case_from_json, case_to_json
from pagedkv.bench.show_files import write_picture
from pagedkv.bench.show_sources import film_of_counterexample
from pagedkv.bench.targets import load_target, of_another_kind
from pagedkv.impl.journal import JournalWriter
from pagedkv.spec.alphabet import (
    Add,
    Clear,
    Execute,
    Extend,
    Fork,
    Operation,
    Pin,
    Publish,
    Release,
    Retire,
    Submit,
    Unpin,
    from_json,
    to_json,
)
from pagedkv.spec.counts import counted
from pagedkv.spec.foreign_drivers import ForeignCase
from pagedkv.spec.foreign_judge import FOREIGN_RULES
from pagedkv.spec.manager import Manager
from pagedkv.spec.outcome import Outcome
from pagedkv.spec.outside import OUTSIDE
from pagedkv.spec.refusals import Broken
from pagedkv.spec.rules import RULES
from pagedkv.spec.rules_scheduling import SCHEDULING
from pagedkv.spec.scheduler_drivers import SchedulerCase
from pagedkv.spec.state import Config
from pagedkv.spec.traces import Case, Finding, Told
from rich.console import Console
from rich.markup import escape
from rich.table import Table

VERSION = 1
LARGEST = Config(blocks=4096, block_size=4096, streams=8, launches=64)  # that a search takes, or a trace may ask for


class Saved(NamedTuple):
    """Where a counterexample was put, and how to run it again."""

    trace: Path
    journal: Path | None  # none where the manager does not say which blocks it takes
    picture: Path | None  # none where what the manager shows of itself cannot be drawn
    again: str


def show(console: Console, finding: Finding, told: Sequence[Told], broken: Broken | None) -> None:
    """Print a counterexample as it was told: the rule, its sentence, a line a step, the world, what differs."""
    rule = broken.rule if broken else finding.broken.rule
    if rule == "CRASH":
        ends = "crash" if broken else "no crash this time"
    else:
        ends = f"{rule} {'does not hold' if broken else 'held this time'}"
    caption = sentence_of(finding.case, rule)
    table = Table(
        title=escape(one_line(f"{ends} after {counted(len(told), 'operation')}")), caption=caption, title_justify="left"
    )
    for heading in ("step", "operation", "outcome"):
        table.add_column(heading, overflow="fold")
    for heading in ("free", "held", "neither" if isinstance(finding.case, ForeignCase) else "quarantined"):
        table.add_column(heading, justify="right")
    for number, step in enumerate(told, 1):
        last = broken is not None and number == len(told)
        counts = (str(step.free), str(step.held), str(step.quarantined))
        table.add_row(
            str(number),
            *words_of(finding.case, step),
            *counts,
            style="bold red" if last else "",
        )
    console.print(table)
    console.print(f"world: {world_in_words(finding.case)}", soft_wrap=True, highlight=False)
    left_out = len(finding.trace) - len(told)
    if left_out and not broken:
        said = f"{left_out} of {len(finding.trace)} operations were not possible this time"
        console.print(said, soft_wrap=True, markup=False, highlight=False)
    differs = broken.detail if broken else f"nothing this time; when it was found: {finding.broken.detail}"
    console.print(f"what differs: {one_line(differs)}", soft_wrap=True, markup=False, highlight=False)
    for line in own_calls(told):
        console.print(one_line(line), soft_wrap=True, markup=False, highlight=False)


def words_of(case: Any, step: Told) -> tuple[str, str]:
    """Return an operation and what came of it, in words."""
    in_words = foreign_search.told_in_words if isinstance(case, ForeignCase) else told_in_words
    return in_words(step.operation, step.offered)


def own_calls(told: Sequence[Told]) -> list[str]:
    """Return a counterexample in the calls of the manager's own interface, where its adapter tells them."""
    lines = [f"  {number}: {call}" for number, step in enumerate(told, 1) for call in step.own_calls]
    return ["in its own calls, by step:", *lines] if lines else []


def sentence_of(case: Any, rule: str) -> str:
    """Return the sentence of a rule, in the book by which a case is judged."""
    if isinstance(case, ForeignCase) and rule in FOREIGN_RULES:
        return FOREIGN_RULES[rule]
    if isinstance(case, SchedulerCase) and rule in SCHEDULING:
        return SCHEDULING[rule].sentence
    book = RULES if case.lock_step else OUTSIDE
    return book[rule].sentence if rule in book else "Something went wrong in what is under test itself."


def save(finding: Finding, told: Iterable[Told], directory: Path, target: str, *, drawn: bool = True) -> Saved:
    """Write trace, journal and picture into a folder, made if need be. Errors: `OSError`.

    To draw it, it is run again, unless it is not to be `drawn`: of what ends its process there is no picture.
    """
    directory.mkdir(parents=True, exist_ok=True)
    config = finding.case.config
    facts = {
        "kind": TRACE_KIND,
        "version": VERSION,
        "target": target,
        "lock_step": finding.case.lock_step,
        **config._asdict(),
        "rule": finding.broken.rule,
        "detail": finding.broken.detail,
    }
    if isinstance(finding.case, Case) and finding.case.aside:
        facts["aside"] = sorted(finding.case.aside)
    if isinstance(finding.case, ForeignCase):
        facts |= foreign_search.case_to_json(finding.case, finding.trace)
    elif isinstance(finding.case, SchedulerCase):
        facts |= case_to_json(finding.case, finding.trace)
    else:
        facts["operations"] = [to_json(operation) for operation in finding.trace]
    content = (json.dumps(facts, indent=2) + "\n").encode()
    stem = _stem(directory, f"{finding.broken.rule}-{len(finding.trace)}", content)
    trace = directory / f"{stem}{TRACE}"
    write_whole(trace, content)
    journal = _journal_of(config, list(told), directory / f"{stem}{JOURNAL}")
    picture = _draw(finding, directory / f"{stem}{PICTURE}") if drawn else None
    return Saved(trace, journal, picture, shlex.join(["pagedkv", "fuzz", "--again", str(trace)]))


def _stem(directory: Path, wished: str, content: bytes) -> str:
    """Return a name for the files of a counterexample under which nothing lies, or the very same one."""
    stems = (wished if number == 1 else f"{wished}-{number}" for number in itertools.count(1))
    for stem in stems:
        there = [ending for ending in ENDINGS if (directory / f"{stem}{ending}").exists()]
        if not there or (TRACE in there and (directory / f"{stem}{TRACE}").read_bytes() == content):
            return stem
    raise AssertionError("numbers do not end")


def _draw(finding: Finding, picture: Path) -> Path | None:
    try:
        write_picture(film_of_counterexample(finding), picture)
    except OSError:
        raise
    except Exception:  # noqa: BLE001  (a stranger's manager may show anything; the counterexample is saved by now)
        return None
    return picture


def _journal_of(config: Config, told: list[Told], path: Path) -> Path | None:
    """Write what a manager said it did; not where it says nothing of blocks, since that would contradict the rules."""
    done = [(step.operation, step.offered) for step in told if isinstance(step.offered, Outcome)]
    if not done or any(isinstance(operation, Add) and not outcome.blocks for operation, outcome in done):
        return None
    with JournalWriter(
        path, blocks=config.blocks, block_size=config.block_size, streams=config.streams, launches=config.launches
    ) as writer:
        launches = 0
        for operation, outcome in done:
            launches += isinstance(operation, Submit)
            _journal(writer, operation, outcome, launches)
    return path


def _journal(writer: JournalWriter, operation: Operation, outcome: Outcome, launches: int) -> None:
    match operation:
        case Add(name, tokens, salt):
            ids = () if isinstance(tokens, int) else tokens
            writer.add(name, operation.length, [*outcome.blocks], tokens=ids, salt=salt, hits=outcome.hits)
        case Extend(rows):
            writer.extend([n for n, _ in rows], [c for _, c in rows], list(outcome.blocks), list(outcome.copies))
        case Fork(parent, child):
            writer.fork(parent, child)
        case Submit(rows, stream):
            launch = outcome.launch or launches  # a stranger's launches are numbered in the order of submission
            writer.launch(launch, [n for n, _ in rows], [c for _, c in rows], stream, sorted(outcome.after))
        case Retire(launch):
            writer.retire(launch, sorted(outcome.freed))
        case Release(name):
            writer.release(name, sorted(outcome.freed))
        case Execute():
            pass
        case _:
            _journal_sharing(writer, operation, outcome)


def _journal_sharing(writer: JournalWriter, operation: Publish | Pin | Unpin | Clear, outcome: Outcome) -> None:
    freed = sorted(outcome.freed)
    match operation:
        case Publish(rows, retention):
            told = [[*tokens] for _, tokens in rows]
            writer.publish([n for n, _ in rows], told, retention, [*outcome.published], outcome.merges, freed)
        case Pin(handle, tokens, salt):
            writer.pin(handle, [*tokens], salt, [*outcome.hits])
        case Unpin(handle):
            writer.unpin(handle, freed)
        case Clear():
            writer.clear(freed)


def load(path: Path, other: str | None = None) -> tuple[Finding, str]:
    """Read a trace file: what to run again, and on which target (its own or another), which is imported.

    Errors: `BadInput`.
    """
    where = f"--again {path}"
    remedy = "name a file that pagedkv fuzz or explore has written"
    try:
        if path.exists() and not path.is_file():
            raise BadInput(where, "no plain file", remedy)
        text = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(where, f"cannot be read ({error.strerror or error})", "name a trace file") from error
    except (ValueError, RecursionError) as error:
        raise another_of_ours(where, path, TRACE) or BadInput(where, f"no JSON ({error})", remedy) from error
    if not isinstance(text, dict) or text.get("kind") != TRACE_KIND or text.get("version") != VERSION:
        raise BadInput(where, f"no {TRACE_KIND} of version {VERSION}", remedy)
    try:
        config = Config(*(_size(text, field) for field in Config._fields))
        words, target = _field(text, "operations", list), other or _field(text, "target", str)
        if "limits" in text:
            case, operations = case_from_json(config, text["limits"], words, target)
        else:
            operations = tuple(from_json(each) for each in words)
            _possible_somewhere(operations, config)
            aside = frozenset(map(str, _field(text, "aside", list) if "aside" in text else ()))
            factory = load_target(target)
            if another := of_another_kind(factory, f"--target {target}", Manager):
                raise another
            case = Case(config, factory, _field(text, "lock_step", bool), aside)
        broken = Broken(_field(text, "rule", str), _field(text, "detail", str))
    except (ValueError, RecursionError) as error:
        raise BadInput(where, str(error), "mend it, or run the search again") from error
    return Finding(case, operations, broken), target


Value = TypeVar("Value")


def _field(text: dict[str, Any], field: str, kind: type[Value]) -> Value:
    value = text.get(field)
    if type(value) is not kind:
        raise ValueError(f"{field} is {quoted(value)}, not {kind.__name__}")
    return value


def _size(text: dict[str, Any], field: str) -> int:
    value, most = _field(text, field, int), getattr(LARGEST, field)
    if not 1 <= value <= most:
        raise ValueError(f"{field} is {quoted(value)}, not 1 to {most}")
    return value


def _possible_somewhere(operations: Sequence[Operation], config: Config) -> None:
    """Raise `ValueError` where a trace can be of no manager at all: a device does what was launched, and does it once.

    What is possible on one manager alone (another refuses the launch) is left to the run.
    """
    launches, executed = 0, set[int]()
    for step, operation in enumerate(operations, 1):
        match operation:
            case Submit(_, stream):
                launches += 1
                if not 0 <= stream < config.streams:
                    raise ValueError(f"operation {step} is on stream {stream} of {config.streams}")
            case Execute(launch):
                if not 1 <= launch <= launches or launch in executed:
                    done = "had been executed before" if launch in executed else "was never launched before"
                    raise ValueError(f"operation {step} executes launch {launch}, which {done}")
                executed.add(launch)
            case _:
                pass

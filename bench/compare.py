"""Journals held against the spec, one alone, or two also against each other.

One journal is audited (`pagedkv.spec.audit`): does every line follow from those before it? Two journals of the same
work are both audited and walked side by side to the first difference. They may differ in what the spec leaves to a
manager: which free blocks are taken, when within its bounds a block becomes free, edges beyond those that are needed.
All else has to be equal: the sizes, and line for line the operations with their arguments and launch ids.

Why that is enough for "equal up to allowed choices", with no search for a renaming of blocks: the spec is a function of
state, operation and choice. Its guards, lengths, row shapes, who copies and how much do not depend on which ids were
chosen. So if both journals hold and have the same operations, then logical block i of a sequence in the one always
stands for logical block i of it in the other, which is a consistent renaming of all blocks that are held.

A journal that fails its audit ends the comparison; lines behind the first difference are not looked at. Cost: that of
the audits, linear; one line of each is in memory.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pagedkv.bench.failures import BadInput
from pagedkv.bench.own_files import JOURNAL, another_of_ours
from pagedkv.bench.progress import LateProgress
from pagedkv.bench.result_files import output_file, write_json
from pagedkv.spec.alphabet import KINDS, Submit, describe
from pagedkv.spec.audit import Auditor, audited
from pagedkv.spec.journal import NO_LIMIT, InvalidJournal, Journal, Record, open_journal
from pagedkv.spec.quoting import cut
from pagedkv.spec.refusals import Broken
from pagedkv.spec.rules import RULES
from pagedkv.spec.state import Config
from rich.console import Console
from rich.table import Table

SHOWN_CHARACTERS_MAX = 100
CHOICES = {"blocks": "blocks taken", "copies": "blocks copied to", "after": "edges", "freed": "blocks that became free"}


class Verdict(StrEnum):
    """How a comparison ended; the first three are success."""

    HOLDS = "holds"
    EQUAL = "equal"
    EQUAL_UP_TO_CHOICES = "equal up to allowed choices"
    DIFFERENT = "different"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Fault:
    """The first line of a journal that contradicts those before it, and the rule."""

    journal: str
    line: int
    rule: str
    detail: str


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two journals part: the line in each (0 where it has ended) and what stands there."""

    lines: tuple[int, int]
    words: tuple[str, str]


@dataclass(slots=True)
class Comparison:
    """What was found. `choices` counts the lines that differ in a choice, by what; `first_choice` is the first."""

    journals: tuple[str, ...]
    verdict: Verdict = Verdict.HOLDS
    lines: tuple[int, ...] = ()
    operations: dict[str, int] = field(default_factory=dict)
    choices: dict[str, int] = field(default_factory=dict)
    first_choice: Difference | None = None
    difference: Difference | None = None
    fault: Fault | None = None

    @property
    def exit_code(self) -> int:
        """0 where all holds and nothing differs but choices, else 1."""
        return 1 if self.verdict in {Verdict.DIFFERENT, Verdict.BROKEN} else 0

    def results(self) -> dict[str, Any]:
        """Return what was found as JSON can hold it."""
        return asdict(self)


class _BrokenJournalError(Exception):
    """A journal fails its audit."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault)
        self.fault = fault


def compare(first: Path, second: Path | None = None) -> Comparison:
    """Audit one journal, or audit and compare two. Errors: `BadInput` for a file that is no journal."""
    paths = [first] if second is None else [first, second]
    found = Comparison(tuple(map(str, paths)))
    try:
        with ExitStack() as stack:
            journals = [_open(path, stack) for path in paths]
            progress = stack.enter_context(LateProgress("auditing", _bytes(paths)))
            if len(journals) == 1:
                _audit(journals[0], found, progress)
            else:
                _walk(journals[0], journals[1], found, progress)
            found.lines = tuple(journal.line for journal in journals)
    except InvalidJournal as invalid:
        bad = BadInput(invalid.where, invalid.what, invalid.remedy)
        raise another_of_ours(invalid.where, Path(invalid.where), JOURNAL) or bad from None
    except _BrokenJournalError as broken:
        found.verdict, found.fault = Verdict.BROKEN, broken.fault
    return found


def run_compare(paths: Sequence[Path], json_file: Path | None = None) -> int:
    """Compare one or two journals, print what was found, and return the exit code: 0 or 1.

    Errors: `BadInput` (exit code 2) for a file that is no journal, or more than two of them.
    """
    if not 1 <= len(paths) <= 2:
        raise BadInput("compare", f"{len(paths)} journals", "name one to audit it, or two to compare them")
    if json_file is not None:
        json_file = output_file(json_file, "--json", paths)
    found = compare(*paths)
    render(found, Console(emoji=False))
    if json_file is not None:
        write_json(json_file, found.results())
    return found.exit_code


def render(found: Comparison, console: Console) -> None:
    """Print a comparison: the verdict, and what it rests on."""
    console.print(f"{' and '.join(found.journals)}: {found.verdict}", soft_wrap=True, markup=False, highlight=False)
    if found.fault:
        fault = found.fault
        sentence = RULES[fault.rule].sentence if fault.rule in RULES else "A journal is in order, from header to end."
        console.print(f"{fault.journal}: {fault.detail}", soft_wrap=True, markup=False, highlight=False)
        console.print(f"{fault.rule}: {sentence}", soft_wrap=True, markup=False, highlight=False)
        return
    table = Table("line", *found.journals, title_justify="left")
    if found.difference:
        table.title = "the first difference"
        _add_row(table, found.difference)
    elif found.first_choice:
        table.title = "the first line that differs in a choice"
        _add_row(table, found.first_choice)
        told = ", ".join(f"{CHOICES[what]} in {count:,}" for what, count in found.choices.items())
        table.caption = f"lines that differ: {told}"
    else:
        table = Table("lines", *found.operations, title_justify="left")
        table.add_row(f"{found.lines[0]:,}", *(f"{count:,}" for count in found.operations.values()))
    console.print(table)


def _add_row(table: Table, difference: Difference) -> None:
    lines = [str(line) if line else "end" for line in dict.fromkeys(difference.lines)]
    table.add_row(" / ".join(lines), *difference.words)


def _open(path: Path, stack: ExitStack) -> Journal:
    try:
        return stack.enter_context(open_journal(path))
    except Broken as broken:
        raise _broken(str(path), broken) from None


def _audit(journal: Journal, found: Comparison, progress: LateProgress) -> None:
    for record in _right_lines(journal):
        _count(found.operations, KINDS[type(record.operation)])
        progress.reached(journal.bytes_read)


def _walk(first: Journal, second: Journal, found: Comparison, progress: LateProgress) -> None:
    """Walk two journals side by side, up to the first difference that is none of choice."""
    if first.config != second.config:
        found.verdict = Verdict.DIFFERENT
        found.difference = Difference((1, 1), (_sizes(first.config), _sizes(second.config)))
        return
    for one, other in zip_longest(_right_lines(first), _right_lines(second)):
        if not (one and other) or _fixed(one) != _fixed(other):
            found.verdict = Verdict.DIFFERENT
            lines = one.line if one else 0, other.line if other else 0
            found.difference = Difference(lines, (_shown(one), _shown(other)))
            return
        _count(found.operations, KINDS[type(one.operation)])
        if one.outcome != other.outcome:
            _count_choices(one, other, found)
        progress.reached(first.bytes_read + second.bytes_read)
    found.verdict = Verdict.EQUAL_UP_TO_CHOICES if found.choices else Verdict.EQUAL


def _right_lines(journal: Journal) -> Iterator[Record]:
    try:
        yield from audited(journal, Auditor(journal.config))
    except Broken as broken:
        raise _broken(journal.name, broken) from None


def _broken(journal: str, broken: Broken) -> _BrokenJournalError:
    line = broken.detail.removeprefix("line ").partition(":")[0]  # both the reader and the audit begin so
    return _BrokenJournalError(Fault(journal, int(line), broken.rule, broken.detail))


def _fixed(record: Record) -> tuple[object, int]:
    """Return what a manager has no choice in."""
    return record.operation, record.outcome.launch


def _count_choices(one: Record, other: Record, found: Comparison) -> None:
    differing = [what for what in CHOICES if getattr(one.outcome, what) != getattr(other.outcome, what)]
    for what in differing:
        _count(found.choices, what)
    if not found.first_choice:
        words = [
            f"{_shown(record)}: {CHOICES[differing[0]]} {_plain(getattr(record.outcome, differing[0]))}"
            for record in (one, other)
        ]
        found.first_choice = Difference((one.line, other.line), (words[0], words[1]))


def _plain(choice: frozenset[int] | tuple[Any, ...]) -> str:
    """Return a choice as a journal would write it, cut short."""
    return cut(str(sorted(choice) if isinstance(choice, frozenset) else [*choice]), SHOWN_CHARACTERS_MAX)


def _shown(record: Record | None) -> str:
    if record is None:
        return "the journal has ended"
    launch = f" as #{record.outcome.launch}" if isinstance(record.operation, Submit) else ""
    return cut(describe(record.operation), SHOWN_CHARACTERS_MAX) + launch


def _count(counts: dict[str, int], what: str) -> None:
    counts[what] = counts.get(what, 0) + 1


def _sizes(config: Config) -> str:
    sizes = {name: size for name, size in config._asdict().items() if size != NO_LIMIT}
    return ", ".join(f"{name} {size}" for name, size in sizes.items())


def _bytes(paths: Sequence[Path]) -> int | None:
    """Return how long the files are together; nothing where one is a pipe."""
    return sum(path.stat().st_size for path in paths) or None

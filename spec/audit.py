"""The audit of a journal: that every line is a step which the spec allows from the state before.

The pure spec could tell, by computing each state anew, at a cost that grows with all that is held and in flight. A
journal of a real day has hundreds of thousands of lines and millions of decoded tokens, so this is the spec a second
time, made for speed: it changes one state in place, and each line costs what the line itself says: its rows, the blocks
it takes and frees (a fork and a release: the blocks of the sequence). It shares nothing with any implementation.
Since it is an implementation, it is not believed either: `tests/test_audit_lockstep.py` walks all states of a small
world and, in each, holds it to accept exactly the choices that the spec's operations accept.

What makes that possible without ever looking at a slot:

- *Contents.* A position is written once, by a holder that is alone with its block, and rows of one block agree on how
  much of it they use. So what a slot holds follows from rows, lengths and copies, and it is enough to follow those
  where they change. That reads then find the right contents is what the exhaustive driver shows of the spec's rules,
  and what the shadow memory shows of managers (R-DATA).
- *Order* (R-LIFE-2). For the same reason launches never write where others read or write, but in one way: a launch of a
  sequence reads what launches before it wrote. Each of these read what the one before it wrote, a fork begins with its
  parent's, a copy reads what was written to its source. So the newest launch of each sequence stands for all of them,
  and a launch is ordered if it comes after the newest one, as far as in flight, of each of its rows: one comparison
  of clocks a row (`audit_launches`). Rows are never walked.
- *Release* (R-LIFE-1, R-LIFE-4). The same newest launch tells when the blocks of a sequence may become free
  (`audit_blocks`).
- *Prefixes*. A published block is known by the one before it and by its own tokens, so a look-up, a publication and a
  merge cost the tokens of their blocks (`audit_sharing`, `audit_prefixes`).

The first line that cannot be is the verdict: `Broken(rule, "line N: ...")`. Where the spec would have refused what a
line says was done, the rule is R-CAP-1 if it was a matter of space and R-TXN-1 otherwise, as in the lock-step. A wrong
line that is a legal choice by itself (another free block than the true one) is found by a later line that contradicts
it, or by the journal's digest.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from .alphabet import KINDS, Add, Execute, Extend, Fork, Operation, Release, Retire, Submit
from .arithmetic import blocks_needed, locate
from .audit_blocks import Blocks
from .audit_launches import Launches
from .audit_prefixes import Prefixes
from .audit_sequences import Tracked, known_batch, refused
from .audit_sharing import PrefixAuditor
from .journal import Journal, Record, open_journal
from .outcome import Outcome, Rows
from .refusals import Broken, Reason
from .state import Block, Config, Copy, LaunchId, Name


class Audited(NamedTuple):
    """A journal that holds, in figures."""

    config: Config
    lines: int
    operations: Counter[str]
    blocks_taken: int
    copies: int
    sequences_left: int  # not released at the end
    in_flight_left: int


class Auditor(PrefixAuditor):
    """One state, taken further by `step`. It is of no use after a `Broken`: what comes later is not judged."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.sequences = {}
        self.launches = Launches()
        self.blocks = Blocks(config.blocks, self.launches, Prefixes(config.block_size))
        self.pins = {}
        self.weights = 0
        self.have_merged = False

    def step(self, operation: Operation, outcome: Outcome) -> None:
        """Take an operation that was done, with what was decided in it. Errors: `Broken`."""
        match operation:
            case Extend(rows):
                self._extend(rows, outcome)
            case Submit(rows, stream):
                self._launch(rows, stream, outcome)
            case Add():
                self._add(operation, outcome)
            case Retire(launch):
                self._retire(launch, outcome)
            case Release(name):
                self._release(name, outcome)
            case Fork(parent, child):
                self._fork(parent, child)
            case Execute():
                raise Broken("JOURNAL", f"{KINDS[type(operation)]} is no operation of the host")
            case _:
                self.step_sharing(operation, outcome)

    def clone(self) -> "Auditor":
        """Return an independent copy, to branch from."""
        twin = object.__new__(Auditor)
        twin.config, twin.launches = self.config, self.launches.clone()
        twin.blocks = self.blocks.clone(twin.launches)
        twin.sequences = {name: sequence.clone() for name, sequence in self.sequences.items()}
        twin.pins, twin.weights, twin.have_merged = self.pins.copy(), self.weights, self.have_merged
        return twin

    def _add(self, operation: Add, outcome: Outcome) -> None:
        name, count, size = operation.name, operation.length, self.config.block_size
        if name in self.sequences:
            refused(Reason.DUPLICATE, f"sequence {name} is live")
        if count < 1:
            refused(Reason.EMPTY, f"sequence {name} has {count} tokens")
        need = blocks_needed(count, size)
        if need > self.config.blocks:
            refused(Reason.TOO_LONG, f"sequence {name} needs {need} blocks of {self.config.blocks}")
        known = [] if isinstance(operation.tokens, int) else [*operation.tokens]
        hits = len(outcome.hits)
        if known or hits:
            self.look_up(known, operation.salt, (count - 1) // size, outcome)
        if len(outcome.blocks) != need - hits:
            raise Broken(
                "R-CAP-1", f"sequence {name} took {len(outcome.blocks)} blocks and {count} tokens need {need - hits}"
            )
        self.blocks.take(outcome.blocks)
        begun = Tracked([*outcome.hits, *outcome.blocks], count, hits * size, self.launches.issued)
        begun.salt, begun.weights, begun.known, begun.settled = operation.salt, self.weights, known, hits
        self.sequences[name] = begun

    def _extend(self, rows: Rows, outcome: Outcome) -> None:
        known_batch(self.sequences, rows)
        self.blocks.take(outcome.blocks)
        sequences, size, shared = self.sequences, self.config.block_size, self.blocks.shared
        supply, copies = iter(outcome.blocks), iter(outcome.copies)
        for name, count in rows:
            sequence = sequences[name]
            start = sequence.allocated
            sequence.allocated = start + count
            room = -start % size
            if 0 < count <= room and not shared:  # by far the most frequent: nothing to do but to count
                continue
            if count < 1:
                refused(Reason.BAD_COUNT, f"sequence {name} is extended by {count}")
            if room and self.blocks.holders[sequence.row[-1]] > 1:
                self._copy_on_write(name, sequence, start, next(copies, None), next(supply, None))
            if count > room:
                self._grow(name, sequence, supply)
        if surplus := list(supply):
            raise Broken("R-CAP-1", f"blocks {surplus[:8]} were taken and not needed")
        if extra := next(copies, None):
            raise Broken("R-COW-2", f"{extra} was not needed: its sequence is alone with its tail, or not in the batch")

    def _grow(self, name: Name, sequence: Tracked, supply: Iterator[Block]) -> None:
        """Append to a row what its sequence needs of the blocks that were taken."""
        need = blocks_needed(sequence.allocated, self.config.block_size)
        if need > self.config.blocks:
            refused(Reason.TOO_LONG, f"sequence {name} needs {need} blocks of {self.config.blocks}")
        sequence.row.extend(islice(supply, need - len(sequence.row)))
        if len(sequence.row) < need:
            raise Broken("R-CAP-1", f"sequence {name} needs {need} blocks, and for the last ones none were taken")

    def _copy_on_write(self, name: Name, sequence: Tracked, start: int, copy: Copy | None, taken: Block | None) -> None:
        """Let a sequence leave a tail that others hold too; compare the copy with the one that it has to be."""
        source = sequence.row[-1]
        _, extent = locate(start, self.config.block_size)
        shared = f"sequence {name} writes block {source}, which {self.blocks.holders[source]} sequences hold"
        if copy is None or copy.sequence != name:
            raise Broken("R-COW-1", f"{shared}, and no copy of it was planned")
        if copy.source != source:
            raise Broken("R-COW-2", f"{shared}, and block {copy.source} was copied in its place")
        if copy.extent != extent:
            raise Broken("R-COW-3", f"{shared}, {extent} slots of it, and {copy.extent} were copied")
        if copy.target != taken:
            raise Broken("R-COW-3", f"{shared}; it took block {taken}, and the copy goes to block {copy.target}")
        self.blocks.plan_copy(source, sequence.newest)
        sequence.row[-1] = copy.target
        sequence.copy = copy

    def _fork(self, parent: Name, child: Name) -> None:
        if parent not in self.sequences:
            refused(Reason.UNKNOWN, f"sequence {parent} is not live")
        if child in self.sequences:
            refused(Reason.DUPLICATE, f"sequence {child} is live")
        old = self.sequences[parent]
        if old.launched < old.allocated:
            refused(Reason.BUSY, f"sequence {parent} has {old.allocated - old.launched} planned positions")
        self.blocks.share(old.row)
        pending = self.pending(parent)
        self.sequences[child] = twin = old.clone()
        twin.inherited, twin.begun = pending, self.launches.issued

    def _launch(self, rows: Rows, stream: int, outcome: Outcome) -> None:
        batch = known_batch(self.sequences, rows)
        if len(self.launches.in_flight) >= self.config.launches:
            refused(Reason.BUSY, f"{self.config.launches} launches are in flight")
        if outcome.launch != self.launches.issued + 1:
            raise Broken("R-LIFE-7", f"launch {outcome.launch}, and the next id is {self.launches.issued + 1}")
        if any(not 1 <= edge <= self.launches.issued for edge in outcome.after):
            raise Broken("R-LIFE-2", f"an edge to a launch that was never issued: {sorted(outcome.after)}")
        clock = self.launches.clock(stream, outcome.after)
        launch, sequences = outcome.launch, self.sequences
        read_from: set[LaunchId] = set()
        for name, count in rows:
            sequence = sequences[name]
            launched = sequence.launched + count
            if not sequence.launched < launched <= sequence.allocated:
                planned = sequence.allocated - sequence.launched
                refused(Reason.BAD_COUNT, f"sequence {name} launches {count} positions and {planned} are planned")
            read_from.add(sequence.newest)
            sequence.launched = launched
            sequence.newest = launch
            if sequence.unread:
                sequence.unread.clear()
        if missing := self.launches.not_before(read_from, clock):
            what = f"launch {launch} reads what {missing} in flight write, and is not ordered after"
            raise Broken("R-LIFE-2", what)
        self.launches.submit(stream, clock, batch)
        if self.blocks.readers:
            self._take_copies(rows, launch)

    def _take_copies(self, rows: Rows, launch: LaunchId) -> None:
        """Let a launch take along the planned copies of its rows."""
        for name, _ in rows:
            copy = self.sequences[name].copy
            if copy:
                self.blocks.launch_copy(copy.source, launch)
                self.sequences[name].copy = None

    def _retire(self, launch: LaunchId, outcome: Outcome) -> None:
        if not 1 <= launch <= self.launches.issued:
            refused(Reason.UNKNOWN_LAUNCH, f"launch {launch} was never issued; the newest is {self.launches.issued}")
        if launch in self.launches.in_flight:
            self.launches.retire(launch)
            self.blocks.discharge(outcome.freed)
        elif outcome.freed:
            raise Broken("R-LIFE-4", f"launch {launch} had left already, and {sorted(outcome.freed)} became free")

    def _release(self, name: Name, outcome: Outcome) -> None:
        if name not in self.sequences:
            refused(Reason.UNKNOWN, f"sequence {name} is not live")
        leaving = self.sequences.pop(name)
        touched = blocks_needed(leaving.launched, self.config.block_size)
        if leaving.copy:  # its target stands where the shared tail stood, and nothing has touched it yet
            touched -= 1
        reached = leaving.row[:touched]
        if leaving.unread:
            self.blocks.drop([block for block in reached if block in leaving.unread], (), 0)
            reached = [block for block in reached if block not in leaving.unread]
        self.blocks.drop(reached, leaving.row[touched:], leaving.newest)
        if leaving.copy:
            self.blocks.drop_copy(leaving.copy.source)
        self.blocks.discharge(outcome.freed)


def audited(journal: Journal, auditor: Auditor) -> Iterator[Record]:
    """Yield the records of a journal, each once it was found right. Errors: `Broken`, with the line."""
    for record in journal:
        try:
            auditor.step(record.operation, record.outcome)
        except Broken as broken:
            what = f"line {record.line}: {KINDS[type(record.operation)]}: {broken.detail}"
            raise Broken(broken.rule, what) from None
        yield record


def audit(path: Path, on_line: Callable[[Journal], None] = lambda _journal: None) -> Audited:
    """Audit a whole journal; `on_line` hears of each line, for a bar that shows how far it is.

    Errors: `InvalidJournal` where the file is none; `Broken` with the rule and the first line that shows it. Linear.
    """
    operations: Counter[str] = Counter()
    blocks = copies = 0
    with open_journal(path) as journal:
        auditor = Auditor(journal.config)
        for _, operation, outcome in audited(journal, auditor):
            operations[KINDS[type(operation)]] += 1
            blocks += len(outcome.blocks)
            copies += len(outcome.copies)
            on_line(journal)
        left, in_flight = len(auditor.sequences), len(auditor.launches.in_flight)
        return Audited(journal.config, journal.line, operations, blocks, copies, left, in_flight)

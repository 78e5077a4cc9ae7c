"""What shows of a stranger's manager, and what the rules seen from outside look at.

From outside one sees what was asked and answered, the block tables, the device's shadow memory, and, where the manager
tells, which blocks are free or cached. `OutsideStep` is that before and after one operation, with what several rules
need worked out once. The rules are predicates over it, like the spec's own over `Step`, and in a book of their own,
`OUTSIDE`: `outside_blocks` (who holds what), `outside_launches` (what is in flight and written), `outside_prefixes`
(what is found again). `outside` brings them together.

Each says less than its namesake in the spec: no rule here may call a manager wrong for a way of its own. So what is
not told is not judged, need is counted generously, and a block table is looked at up to the sequence's length alone.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from .alphabet import Add, Extend, Fork, Operation
from .arithmetic import blocks_needed
from .offers import Discipline, Feature
from .outcome import Outcome
from .refusals import Refused
from .rule_book import Book, Slot
from .state import Block, Content, Copy, Key, Launch, LaunchId, Name, State

Row = tuple[Block, ...]
OUTSIDE: Book = {}


class Claims(NamedTuple):
    """What a manager says of itself."""

    usable: range  # its block ids
    discipline: Discipline = Discipline.STREAM_ORDER
    lacks: frozenset[Feature] = frozenset()


class Sight(NamedTuple):
    """What a manager shows between two operations."""

    tables: Mapping[Name, Row] = {}  # of the live sequences
    free: Row | None = None  # as told; None: it does not tell
    cached: Row | None = None

    def available(self) -> set[Block] | None:
        """Return the blocks that nobody holds, None where that is not told."""
        return None if self.free is None else {*self.free, *(self.cached or ())}


@dataclass(eq=False)
class OutsideStep:
    """One operation, as seen from outside. `old` and `new` are states of the shadow; a refusal leaves it as it was."""

    operation: Operation
    answer: Outcome | Refused
    old: State
    new: State
    plans: Mapping[Name, tuple[Copy, ...]]  # copies that were planned and not launched before
    before: Sight
    after: Sight
    claims: Claims
    rows: Mapping[LaunchId, Sequence[Row]]  # what launches were given to read, one row a sequence
    names: Mapping[Key, Content]  # the contents of known prefixes
    probe: Callable[[], bool]  # whether a sequence as long as the whole pool finds room now

    def row(self, sight: Sight, state: State, name: Name) -> Row:
        """Return the block table of a sequence as far as it has room for positions; shorter where it names too few."""
        return sight.tables[name][: blocks_needed(state.sequences[name].allocated, state.config.block_size)]

    @cached_property
    def taken(self) -> tuple[tuple[Name, Block], ...]:
        """The blocks that sequences got, besides hits and what a fork shares: handed out by this operation."""
        return tuple(_taken(self))

    @cached_property
    def holders(self) -> dict[Block, list[Name]]:
        """Who held each block before, and is live after."""
        found: dict[Block, list[Name]] = {}
        for name in self.before.tables:
            if name in self.new.sequences and name in self.old.sequences:
                for block in dict.fromkeys(self.row(self.before, self.old, name)):
                    found.setdefault(block, []).append(name)
        return found

    @cached_property
    def rows_after(self) -> dict[Name, Row]:
        """The block tables after, as far as they have room for positions."""
        return {name: self.row(self.after, self.new, name) for name in self.new.sequences}

    @cached_property
    def in_flight(self) -> set[Block]:
        """The blocks that launches in flight before the operation read or write."""
        return {block for launch in self.old.launches for block in blocks_of(launch, self)}


def blocks_of(launch: Launch, step: OutsideStep) -> Iterator[Block]:
    """Yield the blocks that a launch reads or writes, by the rows that it was given."""
    for copy in launch.copies:
        yield from (copy.source, copy.target)
    for part, row in zip(launch.computations, step.rows[launch.id], strict=True):
        yield from row[: blocks_needed(part.stop, step.old.config.block_size)]


def slots_of(launch: Launch, step: OutsideStep) -> tuple[set[Slot], set[Slot]]:
    """Return the slots that a launch reads and writes, by the rows that it was given."""
    reads = {(copy.source, at) for copy in launch.copies for at in range(copy.extent)}
    writes = {(copy.target, at) for copy in launch.copies for at in range(copy.extent)}
    for part, row in zip(launch.computations, step.rows[launch.id], strict=True):
        slots = [(block, at) for block in row for at in range(step.old.config.block_size)][: part.stop]
        reads.update(slots)
        writes.update(slots[part.start :])
    return reads, writes


def _taken(step: OutsideStep) -> Iterator[tuple[Name, Block]]:
    answer = step.answer
    if isinstance(answer, Refused):
        return
    match step.operation:
        case Add(name):
            yield from ((name, block) for block in step.rows_after[name][len(answer.hits) :])
        case Fork(parent, child):
            shared = set(step.before.tables[parent])
            yield from ((child, block) for block in step.rows_after[child] if block not in shared)
        case Extend(rows):
            for name, _ in rows:
                old = step.row(step.before, step.old, name)
                for at, block in enumerate(step.rows_after[name]):
                    if at >= len(old) or old[at] != block:
                        yield name, block
        case _:
            pass


def is_inside(copy: Copy, batch: Collection[Name], usable: range, size: int) -> bool:
    """Whether a copy is for a sequence of its batch, between usable blocks, and of at most a block."""
    return copy.sequence in batch and copy.source in usable and copy.target in usable and 0 <= copy.extent <= size

"""Who held which block when, and why: the blocks of a journal, followed line by line.

The spec's auditor knows how many hold a block and what keeps one that nobody holds; it does not name the holders, which
no rule needs and every reader asks for. `History` lets the auditor take each step first, so that nothing is followed
that the spec does not allow, and then moves names: the blocks that were taken get a holder, a copy-on-write takes one
away from its source, a fork adds one, a release takes all of a sequence's away. Whatever the auditor says is in
quarantine is in quarantine, and its reason is the auditor's own.

Cost: that of the auditor, plus O(1) for each edge made or dropped; a batch is walked only where it took blocks.
Decode lines, nearly all of a journal, take none.

Considered: computing the spec's states (exact, and quadratic in the journal), and reading the picture off the
implementation (which is the thing that the picture may have to accuse).
"""

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from pagedkv.spec.alphabet import Add, Clear, Extend, Fork, Operation, Pin, Publish, Release, Unpin
from pagedkv.spec.audit import Auditor
from pagedkv.spec.outcome import Outcome
from pagedkv.spec.state import Block, Config, Handle, LaunchId, Name


class Standing(StrEnum):
    """How a block stands."""

    FREE = "free"
    HELD = "held"  # by one sequence
    SHARED = "shared"  # by several
    QUARANTINED = "quarantined"  # by none, and device work may still touch it
    IDLE = "idle"  # by none, and published: a later prompt may find it


Holder = str  # a sequence's name; `3.2` is the second sequence that is called 3; `pin 7`


class Cell(NamedTuple):
    """One block at one moment."""

    standing: Standing
    holders: tuple[Holder, ...]  # in the order in which they came; of a block without any, the one that left last
    since: int  # the line or step after which it was first like this; 0: from the start
    why: str  # what keeps it from being free; nothing where it is free


T = TypeVar("T")


class Tally(NamedTuple, Generic[T]):
    """How many blocks stand how, and how many launches are in flight; all other blocks are free."""

    held: T
    shared: T
    quarantined: T
    idle: T
    in_flight: T


class Holders:
    """What sequences are called: by their names, which an engine may give again to later ones."""

    def __init__(self) -> None:
        self._times: Counter[Name] = Counter()
        self._now: dict[Name, Holder] = {}

    def begin(self, name: Name) -> Holder:
        """Call a new sequence something."""
        self._times[name] += 1
        times = self._times[name]
        self._now[name] = f"{name}.{times}" if times > 1 else str(name)
        return self._now[name]

    def __getitem__(self, name: Name) -> Holder:
        return self._now[name]


class Scene(Protocol):
    """What a film is made of: blocks that can be looked at after each step."""

    config: Config

    def cell(self, block: Block) -> Cell:
        """Look at a block."""

    def tally(self) -> Tally[int]:
        """Count."""

    def in_flight(self) -> dict[LaunchId, Any]:
        """Return the launches in flight, oldest first."""

    def taken(self) -> tuple[Block, ...]:
        """Return the blocks that the last step took."""


class History:
    """The blocks after each line of a journal. Errors: `Broken`, from the auditor; of no use afterwards."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._auditor = Auditor(config)
        self._called = Holders()
        self._holders: dict[Block, dict[Holder, None]] = {}  # an ordered set a block
        self._left_by: dict[Block, Holder] = {}  # of blocks that nobody holds, but that somebody held
        self._since: dict[Block, int] = {}
        self._pins: dict[Handle, tuple[Block, ...]] = {}
        self._shared = 0  # blocks, not edges
        self._number = 0
        self._taken: tuple[Block, ...] = ()

    def step(self, number: int, operation: Operation, outcome: Outcome) -> None:
        """Take an operation that was done, in line `number`, with what was decided in it."""
        sequences = self._auditor.sequences
        leaving = sequences.get(operation.name) if isinstance(operation, Release) else None
        fenced = self._fenced() if isinstance(operation, Clear) else ()
        self._auditor.step(operation, outcome)
        self._since.update(dict.fromkeys(fenced, number))  # quarantined from now on
        self._number, self._taken = number, outcome.blocks
        match operation:
            case Add(name):
                self._hold((*outcome.hits, *outcome.blocks), self._called.begin(name))
            case Extend(rows) if outcome.blocks:
                for copy in outcome.copies:
                    self._drop([copy.source], self._called[copy.sequence])
                for name, _ in rows:
                    self._hold(self._new_at_the_end(sequences[name].row), self._called[name])
            case Fork(_, child):
                self._hold(sequences[child].row, self._called.begin(child))
            case Release(name) if leaving:
                self._drop(leaving.row, self._called[name])
            case Publish() | Pin() | Unpin() | Clear():
                self._step_sharing(operation, outcome)
            case _:
                pass
        evictable = self._auditor.blocks.prefixes.evictable  # idle blocks, as they were before
        self._since.update({block: number for block in outcome.freed if block not in evictable})

    def _step_sharing(self, operation: Publish | Pin | Unpin | Clear, outcome: Outcome) -> None:
        match operation:
            case Publish():
                for merge in outcome.merges:
                    self._drop([merge.old], self._called[merge.sequence])
                    self._hold([merge.new], self._called[merge.sequence])
            case Pin(handle):
                self._pins[handle] = outcome.hits
                self._hold(outcome.hits, f"pin {handle}")
            case Unpin(handle):
                self._drop(self._pins.pop(handle), f"pin {handle}")
            case Clear():
                for handle, blocks in self._pins.items():
                    self._drop(blocks, f"pin {handle}")
                self._pins.clear()

    def cell(self, block: Block) -> Cell:
        """Look at a block. O(its holders and what keeps it)."""
        since, blocks = self._since.get(block, 0), self._auditor.blocks
        if block in blocks.quarantine or block in blocks.prefixes.evictable:
            standing = Standing.IDLE if block in blocks.prefixes.nodes else Standing.QUARANTINED
            return Cell(standing, (self._left_by[block],), since, blocks.why(block))
        holders = tuple(self._holders.get(block, ()))
        return cell_of_holders(holders, since)

    def tally(self) -> Tally[int]:
        """Count. O(1); where blocks are published, O(those that wait)."""
        blocks = self._auditor.blocks
        fenced = len(self._fenced())
        idle = fenced + len(blocks.prefixes.evictable)
        held, quarantined = len(self._holders) - self._shared, len(blocks.quarantine) - fenced
        return Tally(held, self._shared, quarantined, idle, len(self._auditor.launches.in_flight))

    def _fenced(self) -> set[Block]:
        """Return the idle blocks that device work may still touch."""
        blocks = self._auditor.blocks
        return blocks.quarantine.keys() & blocks.prefixes.nodes.keys() if blocks.prefixes.nodes else set()

    def in_flight(self) -> dict[LaunchId, Any]:
        """Return the launches in flight, oldest first."""
        return self._auditor.launches.in_flight

    def taken(self) -> tuple[Block, ...]:
        """Return the blocks that the last step took."""
        return self._taken

    def _new_at_the_end(self, row: list[Block]) -> list[Block]:
        """Return the last blocks of a row that have no holder yet: those that its extension took."""
        new: list[Block] = []
        for block in reversed(row):
            if block in self._holders:
                break
            new.append(block)
        return new

    def _hold(self, blocks: Iterable[Block], holder: Holder) -> None:
        for block in blocks:
            holders = self._holders.setdefault(block, {})
            holders[holder] = None
            self._shared += len(holders) == 2
            self._since[block] = self._number

    def _drop(self, blocks: Iterable[Block], holder: Holder) -> None:
        for block in blocks:
            holders = self._holders[block]
            del holders[holder]
            self._shared -= len(holders) == 1
            self._since[block] = self._number
            if not holders:
                del self._holders[block]
                self._left_by[block] = holder


def cell_of_holders(holders: tuple[Holder, ...], since: int) -> Cell:
    """Return the cell of a block that is not in quarantine."""
    if not holders:
        return Cell(Standing.FREE, (), since, "")
    words = " and ".join(holder if holder.startswith("pin") else f"sequence {holder}" for holder in holders)
    if len(holders) == 1:
        return Cell(Standing.HELD, holders, since, f"{words} holds it")
    return Cell(Standing.SHARED, holders, since, f"{words} hold it")

"""Block tables: a row for each sequence, logical block i -> physical block, and what is known of the sequence.

`table` is the array that kernels read, [rows, max_blocks] int32; entries behind ceil(allocated / B) are null. Row 0 is
nobody's and all null: pad batches with it. Beside the table lies one array a field: lengths, the tail block (so that
decode needs no gather in two dimensions), and for each stream the newest launch that may touch the sequence's blocks,
its *fences*.

A launch reads its rows when it executes, not when it is submitted. So a row is append-only while a launch in flight
reads it (R-LIFE-6): a row that a sequence has left is cleared and used again when those launches have retired, and a
tail that copy-on-write replaces moves its sequence to a fresh row. A table that grows is copied; launches in flight
keep the old one, which nobody writes any more.

Cost: O(blocks of the row) to begin, fork, move or end one; growth by doubling, so O(1) an entry over time. Considered:
building rows anew for each step (ten times the cost of edits); a private copy of its rows for each launch (4 MB a step
for 2,000 sequences of 512 blocks).
"""

from typing import NamedTuple, Self

import numpy as np

from .arithmetic import Paging, blocks_needed
from .arrays import Int32Array, grown
from .knowledge import Knowledge
from .launches import LaunchLog
from .names import NOBODY, Names


class PlannedCopy(NamedTuple):
    """A copy chosen by `extend` and not launched yet: the first `extent` slots of `source` to `target`."""

    source: int
    target: int
    extent: int


class Ancestor(NamedTuple):
    """An earlier life whose launches, up to one, wrote positions that this sequence has, too."""

    epoch: int
    until: int  # the newest launch at the fork


class BlockTables:
    """The rows of live sequences, and those that launches in flight still read.

    Rows: `begin`, `fork`, `move`, `end`, `end_at_once`, `retire_row`, `make_room`. Views: `blocks`, `read_in_flight`.
    """

    __slots__ = (
        "allocated",
        "ancestors",
        "born_after",
        "columns",
        "copies",
        "copying",
        "fences",
        "free_rows",
        "knowledge",
        "launched",
        "names",
        "paging",
        "table",
        "tail",
    )

    def __init__(self, paging: Paging, streams: int, rows: int, max_blocks: int) -> None:
        self.paging = paging
        self.columns = max_blocks
        self.table = np.zeros((rows, max_blocks), np.int32)  # first, since it is the largest
        self.names = Names(rows)
        self.allocated = np.zeros(rows, np.int64)  # positions the row has room for
        self.launched = np.zeros(rows, np.int64)  # positions some launch has written or will write
        self.tail = np.zeros(rows, np.intp)  # the last block of the row
        self.fences = np.zeros((streams, rows), np.int64)  # what an earlier user of the row left there has retired
        self.born_after = np.zeros(
            rows, np.int64
        )  # launches up to this one may be among the fences; none reads the row
        self.copying = np.zeros(rows, bool)  # whether a copy is planned
        self.copies: dict[int, PlannedCopy] = {}  # row -> its planned copy; there is never more than one
        self.ancestors: dict[int, tuple[Ancestor, ...]] = {}  # row -> those with launches in flight at the fork
        self.knowledge: Knowledge | None = None  # of the rows' tokens, once prefixes are shared
        self.free_rows = list(range(rows - 1, NOBODY, -1))  # cleared; the last is the next to be used

    def begin(self, name: int, epoch: int, positions: int, blocks: Int32Array) -> int:
        """Give a new sequence a row with these blocks, for which there is room. Return the row. O(blocks)."""
        row = self.free_rows.pop()
        self.table[row, : blocks.size] = blocks
        self.allocated[row] = positions
        self.launched[row] = 0
        self.tail[row] = blocks[-1]
        self.names.bind(name, row, epoch)
        return row

    def fork(self, parent: int, name: int, epoch: int, launches: LaunchLog) -> int:
        """Give a new sequence a row like its parent's; it inherits the parent's fences. Return the row. O(blocks)."""
        row = self._begin_like(parent, name, epoch, launches)
        if launches.pending(self.fences_of(parent)):
            older = tuple(elder for elder in self.ancestors.get(parent, ()) if elder.until >= launches.oldest)
            self.ancestors[row] = (Ancestor(int(self.names.epoch_of[parent]), launches.issued), *older)
        return row

    def move(self, name: int, launches: LaunchLog) -> int:
        """Move a sequence to a fresh row, since launches in flight read the present one. Return it. O(blocks)."""
        old = self.names.row_of[name]
        self.names.unbind(name, old)
        row = self._begin_like(old, name, int(self.names.epoch_of[old]), launches)
        if old in self.ancestors:
            self.ancestors[row] = self.ancestors.pop(old)
        if old in self.copies:
            self.copies[row] = self.copies.pop(old)
            self.copying[row], self.copying[old] = True, False
        self.retire_row(old, launches)
        return row

    def end(self, name: int, row: int, launches: LaunchLog) -> None:
        """Take a sequence's row away; it is used again when no launch reads it any more. O(blocks)."""
        self.names.unbind(name, row)
        if self.ancestors:
            self.ancestors.pop(row, None)
        self.retire_row(row, launches)

    def end_at_once(self, name: int, row: int) -> Int32Array:
        """Take a sequence's row away where no launch is in flight; return the blocks it had. O(blocks)."""
        self.names.unbind(name, row)
        if self.ancestors:
            self.ancestors.pop(row, None)
        entries = self.blocks(row)
        blocks = entries.copy()
        entries.fill(0)
        self.free_rows.append(row)
        return blocks

    def retire_row(self, row: int, launches: LaunchLog) -> None:
        """Let a row without sequence wait for the launches that read it, one stream after the other; then clear it."""
        reader = self._reader(row, launches)
        if reader:
            launches.in_flight[reader].waiting_rows.append(row)
        else:
            self.blocks(row).fill(0)
            # What a fork inherited may be in flight: nothing that the next sequence waits for.
            self.fences[0, row] = 0
            if len(self.fences) > 1:  # to write one number by one index is four times as fast
                self.fences[:, row] = 0
            self.free_rows.append(row)

    def read_in_flight(self, row: int, launches: LaunchLog) -> bool:
        """Whether a launch in flight may read this row. O(streams)."""
        return self._reader(row, launches) > 0

    def blocks(self, row: int) -> Int32Array:
        """Return a row's blocks. A view."""
        return self.table[row, : blocks_needed(self.allocated.item(row), self.paging.block_size)]

    def start_sharing(self, published: int) -> Knowledge:
        """Note from now on what is known of tokens; rows so far have been told none, and published so many blocks."""
        self.knowledge = Knowledge(self.allocated.size, published)
        return self.knowledge

    def fences_of(self, row: int) -> list[int]:
        """Return the newest launch of each stream that may touch a row's blocks. O(streams)."""
        if len(self.fences) == 1:
            return [self.fences.item(0, row)]  # half the cost of a list from an array
        fences: list[int] = self.fences[:, row].tolist()
        return fences

    def make_room(self, blocks: int, rows: int = 0) -> None:
        """Make room for rows of so many blocks, and for so many rows more: by doubling, before anything else changes.

        Launches in flight keep the old table. `MemoryError` leaves everything as it was.
        """
        capacity = self.allocated.size
        if blocks > self.columns:
            self.table = grown(self.table, max(blocks, 2 * self.columns), axis=1)
            self.columns = self.table.shape[1]
        if rows > len(self.free_rows):
            larger = max(2 * capacity, capacity + rows)
            fields = ("table", "allocated", "launched", "tail", "born_after", "copying")
            arrays = {field: grown(getattr(self, field), larger) for field in fields}
            arrays["fences"] = grown(self.fences, larger, axis=1)
            if self.knowledge is not None:
                self.knowledge.grow(larger)  # first: it may be larger than the rest, should memory end here
            self.names.grow(larger)
            for field, array in arrays.items():
                setattr(self, field, array)
            self.free_rows = [*range(larger - 1, capacity - 1, -1), *self.free_rows]

    def clone(self) -> Self:
        """Return an independent copy."""
        twin = object.__new__(type(self))
        twin.paging, twin.columns, twin.names = self.paging, self.columns, self.names.clone()
        twin.table, twin.tail = self.table.copy(), self.tail.copy()
        twin.allocated, twin.launched = self.allocated.copy(), self.launched.copy()
        twin.fences, twin.born_after = self.fences.copy(), self.born_after.copy()
        twin.copying, twin.copies = self.copying.copy(), self.copies.copy()
        twin.ancestors, twin.free_rows = self.ancestors.copy(), self.free_rows.copy()
        twin.knowledge = self.knowledge and self.knowledge.clone()
        return twin

    def _begin_like(self, row: int, name: int, epoch: int, launches: LaunchLog) -> int:
        """Give a sequence a row with the blocks, lengths and fences of another."""
        twin = self.begin(name, epoch, int(self.allocated[row]), self.blocks(row))
        self.launched[twin] = self.launched[row]
        self.fences[:, twin] = self.fences[:, row]
        self.born_after[twin] = launches.issued
        if self.knowledge is not None:
            self.knowledge.inherit(row, twin)
        return twin

    def _reader(self, row: int, launches: LaunchLog) -> int:
        """Return the newest launch of the first stream that may still read a row, 0 if none may."""
        if not launches.in_flight:
            return 0
        born_after = self.born_after.item(row)
        for stream, retired in enumerate(launches.retired):
            fence: int = self.fences.item(stream, row)
            if fence > retired and fence > born_after:
                return fence
        return 0

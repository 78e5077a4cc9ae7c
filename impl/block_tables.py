"""Block tables: a row for each sequence, logical block i -> physical block, and what is known of the sequence.

`table` is the array that kernels read, [rows, max_blocks] int32; entries behind ceil(allocated / B) are null. Row 0 is nobody's and all null:
pad batches with it. Beside it lie one array a field: lengths, the tail block (so that decode needs no gather in two dimensions), and
for each stream the newest launch that may touch the sequence's blocks: its *fences*.

A launch reads its rows when it executes, not when it is submitted. So a row is append-only while a launch that reads it is in flight: a
released row is zeroed and used again when its fences have retired (R-LIFE-6), and a tail that copy-on-write replaces moves the sequence to a
fresh row. A table that must grow is copied; launches in flight keep the old one, which nobody writes any more.

Cost: O(blocks of the row) to begin, fork, move or end one; growth by doubling, so O(1) an entry. Considered: rows rebuilt for each step
(10 times the cost of edits); a private copy of the rows a launch (4 MB a step at 2,000 sequences of 512 blocks).
"""

from typing import NamedTuple

import numpy as np

from .arithmetic import Paging, blocks_needed
from .arrays import Int32Array, grown
from .launches import LaunchLog
from .names import NOBODY, Names


class PlannedCopy(NamedTuple):
    """A copy chosen by `extend` and not launched yet: the first `extent` slots of `source` to `target`."""

    source: int
    target: int
    extent: int


class Ancestor(NamedTuple):
    """An earlier life that wrote positions of this sequence, in its launches up to one."""

    epoch: int
    until: int  # the newest launch at the fork


class BlockTables:
    """The rows of all live sequences, and of those whose launches are still in flight."""

    __slots__ = (
        "_free_rows",
        "allocated",
        "ancestors",
        "born_after",
        "columns",
        "copies",
        "copying",
        "fences",
        "launched",
        "names",
        "paging",
        "table",
        "tail",
    )

    def __init__(self, paging: Paging, streams: int, rows: int, max_blocks: int) -> None:
        self.paging = paging
        self.columns = max_blocks
        self.table = np.zeros((rows, max_blocks), np.int32)
        self.names = Names(rows)
        self.allocated = np.zeros(rows, np.int64)  # positions the row has room for
        self.launched = np.zeros(rows, np.int64)  # positions some launch has written or will write
        self.tail = np.zeros(rows, np.intp)  # the last block of the row
        self.born_after = np.zeros(
            rows, np.int64
        )  # launches up to this one, though they fence the sequence, don't read this row
        self.fences = np.zeros((streams, rows), np.int64)  # the newest launch that may touch the sequence's blocks
        self.copying = np.zeros(rows, bool)  # whether a copy is planned
        self.copies: dict[int, PlannedCopy] = {}  # row -> its planned copy; there is never more than one
        self.ancestors: dict[int, tuple[Ancestor, ...]] = {}  # row -> whose launches in flight write its positions, too
        self._free_rows = list(range(rows - 1, NOBODY, -1))

    def begin(self, name: int, epoch: int, positions: int, blocks: Int32Array) -> int:
        """Give a new sequence a row with these blocks; nothing is launched yet. Return the row. O(blocks).

        What an earlier sequence has left in the row's fences has retired, and means nothing any more.
        """
        row = self._free_rows.pop() if self._free_rows else self._new_row()
        count = blocks.size
        if count > self.columns:
            self.make_columns(count)
        self.table[row, :count] = blocks
        self.allocated[row] = positions
        self.launched[row] = 0
        self.tail[row] = blocks[-1]
        self.names.bind(name, row, epoch)
        return row

    def fork(self, parent: int, name: int, epoch: int, launches: LaunchLog) -> int:
        """Give a new sequence a row like its parent's; it inherits the parent's fences. Return the row. O(blocks)."""
        positions = int(self.allocated[parent])
        row = self.begin(name, epoch, positions, self.blocks(parent))
        self.launched[row] = positions
        self.born_after[row] = launches.issued
        self.fences[:, row] = self.fences[:, parent]
        if launches.pending(self.fences[:, parent].tolist()):
            older = tuple(elder for elder in self.ancestors.get(parent, ()) if elder.until >= launches.oldest)
            self.ancestors[row] = (Ancestor(int(self.names.epoch_of[parent]), launches.issued), *older)
        return row

    def end(self, name: int, row: int, launches: LaunchLog) -> None:
        """Take a live sequence's row away; it is used again when no launch reads it any more. O(blocks)."""
        self.names.unbind(name, row)
        if self.ancestors:
            self.ancestors.pop(row, None)
        self.retire_row(row, launches)

    def end_at_once(self, name: int, row: int) -> Int32Array:
        """Take a live sequence's row away where no launch is in flight; return the blocks that it had. O(blocks)."""
        self.names.unbind(name, row)
        if self.ancestors:
            self.ancestors.pop(row, None)
        entries = self.blocks(row)
        blocks = entries.copy()
        entries.fill(0)
        self._free_rows.append(row)
        return blocks

    def move(self, name: int, launches: LaunchLog) -> int:
        """Move a live sequence to a fresh row, since launches in flight read the present one. O(blocks)."""
        old = self.names.row_of[name]
        self.names.unbind(name, old)
        row = self.begin(name, int(self.names.epoch_of[old]), int(self.allocated[old]), self.blocks(old))
        self.launched[row] = self.launched[old]
        self.born_after[row] = launches.issued
        self.fences[:, row] = self.fences[:, old]
        if old in self.ancestors:
            self.ancestors[row] = self.ancestors.pop(old)
        self.retire_row(old, launches)
        return row

    def read_in_flight(self, row: int, launches: LaunchLog) -> bool:
        """Whether a launch in flight may read this row: one submitted since the row came into use. O(streams)."""
        return self._reader(row, launches) > 0

    def retire_row(self, row: int, launches: LaunchLog) -> None:
        """Let a row without sequence wait for the launches that read it, one stream after the other; then clear it."""
        reader = self._reader(row, launches)
        if reader:
            launches.in_flight[reader].waiting_rows.append(row)
        else:
            self.blocks(row).fill(0)
            self._free_rows.append(row)

    def blocks(self, row: int) -> Int32Array:
        """Return a row's blocks. A view."""
        return self.table[row, : blocks_needed(self.allocated.item(row), self.paging.block_size)]

    def free_rows(self) -> list[int]:
        """Return the rows that nobody has and no launch reads, next to be used last."""
        return self._free_rows

    def make_columns(self, blocks: int) -> None:
        """Make room for rows of this many blocks. Launches in flight keep the old table."""
        if blocks > self.columns:
            self.columns = max(blocks, 2 * self.columns)
            self.table = grown(self.table, self.columns, axis=1)

    def clone(self) -> "BlockTables":
        """Return an independent copy."""
        twin = type(self).__new__(type(self))
        twin.paging, twin.table, twin.names = self.paging, self.table.copy(), self.names.clone()
        twin.allocated, twin.launched, twin.tail = self.allocated.copy(), self.launched.copy(), self.tail.copy()
        twin.born_after, twin.fences = self.born_after.copy(), self.fences.copy()
        twin.copying, twin.copies = self.copying.copy(), self.copies.copy()
        twin.columns = self.columns
        twin.ancestors, twin._free_rows = self.ancestors.copy(), self._free_rows.copy()
        return twin

    def _reader(self, row: int, launches: LaunchLog) -> int:
        """Return the newest launch of the first stream that may still read a row, 0 if none may."""
        if not launches.in_flight:
            return 0
        own = self.born_after.item(row)
        for stream, retired in enumerate(launches.retired):
            fence: int = self.fences.item(stream, row)
            if fence > retired and fence > own:
                return fence
        return 0

    def _new_row(self) -> int:
        """Return a fresh row where none is free: the rows are doubled. O(table), O(1) a row over time."""
        rows = self.allocated.size
        self._free_rows = list(range(2 * rows - 1, rows - 1, -1))
        for field in ("table", "allocated", "launched", "tail", "born_after", "copying"):
            setattr(self, field, grown(getattr(self, field), 2 * rows))
        self.fences = grown(self.fences, 2 * rows, axis=1)
        self.names.grow(2 * rows)
        return self._free_rows.pop()

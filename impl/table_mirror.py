"""The block table on the device, kept up to date by edits.

The cache's table lies in host memory. Kernels want it beside the pool, and to send 2,000 rows of 512 blocks each step
would be 4 MB; what changes in a step of decoding is one entry for each row that takes a block, 125 of 2,000 at a block
size of 16. So the device has a table of the same shape, and each step sends cells: (place, block).

Edits name cells; what goes up is what the host's table holds there when the step is handed over. So a cell that was
edited twice goes up with one value, in whatever order the device writes it. They run ahead of the launches in flight,
which is safe because the cache keeps a row that a launch in flight reads append-only, and gives a row to its next user
when those launches have retired (R-LIFE-6). A row's next user nulls what it leaves behind (R-TAB-1). Row 0 is null for
ever: padding. A table that grows is copied on the device, and launches in flight keep the old one.

Cost: O(cells edited); a growth O(table). Considered: the table in pinned host memory that kernels read over the bus
(each attention would pay the latency); every row of the batch sent each step.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .arrays import NO_IDS, IndexArray, Int32Array, Int64Array, grown
from .device import Device
from .results import Edits


class CellEdits(NamedTuple):
    """What one step changes in the device's table."""

    cells: Int64Array  # [n] places in the flat table; one may stand several times
    blocks: Int32Array  # [n] what stands there now
    grow: Callable[[], object]  # work for the upload queue, before the cells are written


class TableMirror:
    """The device's table, of a cache that begins empty.

    `begin_row` and `edit` note what changed; `take_edits` hands it over for one launch. `table` is what that launch
    reads, once its upload is done.
    """

    __slots__ = ("_columns", "_device", "_extents", "_rows", "table")

    def __init__(self, device: Device) -> None:
        self.table = device.empty(0, 0, dtype=torch.int32)
        self._device = device
        self._extents: Int64Array = np.zeros(0, np.int64)  # from which column on a row is null
        self._rows: list[IndexArray] = []  # cells noted, in parts
        self._columns: list[IndexArray] = []

    def begin_row(self, row: int, blocks: int) -> None:
        """A row has begun with so many blocks, or has been written in full: by `add`, `fork` or a move. O(blocks)."""
        self._reach(row)
        end = max(blocks, self._extents.item(row))
        self._extents[row] = blocks
        self._note(np.full(end, row, np.intp), np.arange(end))

    def edit(self, edits: Edits) -> None:
        """Cells have changed, by `extend` or `publish`. O(cells).

        Where a row's first cell is among them, a sequence may have moved there, and there may be something behind.
        """
        if not edits.rows.size:
            return
        rows, columns = edits.rows.astype(np.intp), edits.columns.astype(np.intp)
        self._reach(int(rows.max()))
        if not columns.all():
            for row in np.unique(rows[columns == 0]).tolist():
                self.begin_row(row, self._extents.item(row))
        np.maximum.at(self._extents, rows, columns + 1)
        self._note(rows, columns)

    def take_edits(self, table: Int32Array) -> CellEdits:
        """Hand over what was noted since the last call, with the contents of the cells in the host's table now.

        Where that table has grown, `self.table` is a larger one from here on. O(cells).
        """
        grow = self._grow(*table.shape) if self.table.shape != table.shape else _nothing
        rows = np.concatenate((NO_IDS, *self._rows))
        columns = np.concatenate((NO_IDS, *self._columns))
        self._rows, self._columns = [], []
        return CellEdits(rows * table.shape[1] + columns, table[rows, columns], grow)

    def _note(self, rows: IndexArray, columns: IndexArray) -> None:
        self._rows.append(rows)
        self._columns.append(columns)

    def _reach(self, row: int) -> None:
        if row >= self._extents.size:
            self._extents = grown(self._extents, 2 * row + 1)

    def _grow(self, rows: int, columns: int) -> Callable[[], object]:
        old, new = self.table, self._device.empty(rows, columns, dtype=torch.int32)
        self.table = new

        def bring_over() -> None:
            new.zero_()
            new[: old.shape[0], : old.shape[1]].copy_(old)

        return bring_over


def write_cells(table: Tensor, cells: Tensor, blocks: Tensor) -> None:
    """Write blocks to cells of the flat table: work for the upload queue."""
    if cells.numel():
        table.view(-1)[cells] = blocks


def _nothing() -> None:
    """Do what a table that has not grown needs."""

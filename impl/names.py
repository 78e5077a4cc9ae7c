"""From the caller's sequence names to table rows, a batch at a time.

A dictionary look-up a name would cost 60 ns each, 120 us for a batch of 2,000, four times what the whole step's bookkeeping may cost. So
beside the dictionary stands a direct-mapped table: `home[name & mask]` guesses the row and `name_of[row]` confirms it, two
gathers for the whole batch. Names that collide are looked up in the dictionary, which is always right. The last batch is kept: an
engine extends, launches and extends again the same running set, and comparing it costs a tenth of resolving it.

Row 0 belongs to nobody: an empty home points there. It may confirm a name by accident, and the same pass that finds a name given
twice (each row is stamped with its place in the batch, and read back) finds that row 0 was stamped.

Guarantees: `resolve` returns the rows of distinct live sequences or refuses; any int64 is a name. Cost: O(batch).
Considered: sorting the names (searchsorted is 10 times slower), a hash table in numpy (no faster than two gathers).
"""

from typing import NamedTuple, NoReturn

import numpy as np

from .arrays import IndexArray, Int32Array, Int64Array, frozen, grown
from .refusals import Duplicate, Unknown

NOBODY = 0


class Batch(NamedTuple):
    """The rows of a batch of sequences, in batch order; shared between results, so read-only."""

    names: Int64Array
    rows: IndexArray
    device_rows: Int32Array
    epochs: Int64Array


class Names:
    """Which sequence has which row. Rows are numbered by the caller of `bind`."""

    __slots__ = ("_device_places", "_home", "_last", "_mask", "_places", "_stamp", "epoch_of", "name_of", "row_of")

    def __init__(self, rows: int) -> None:
        self.row_of: dict[int, int] = {}
        self.name_of = np.zeros(rows, np.int64)
        self.epoch_of = np.zeros(rows, np.int64)
        self._stamp = np.full(rows, -1, np.int64)
        self._places = frozen(np.arange(rows))
        self._device_places = frozen(np.arange(rows, dtype=np.int32))
        self._last: Batch | None = None
        self._rebuild_homes(rows)

    def bind(self, name: int, row: int, epoch: int) -> None:
        """Give a row to a name that has none, and a new epoch with it. O(1)."""
        self.row_of[name] = row
        self.name_of[row] = name
        self.epoch_of[row] = epoch
        self._home[name & self._mask] = row
        self._last = None

    def unbind(self, name: int, row: int) -> None:
        """Take its row away from a live name. O(1)."""
        del self.row_of[name]
        home = name & self._mask
        if self._home.item(home) == row:  # else another name lives there, and the stale name of this row is never met
            self._home[home] = NOBODY
        self._last = None

    def resolve(self, names: Int64Array) -> Batch:
        """Return the rows of distinct live names; `Duplicate` or `Unknown` otherwise. O(batch)."""
        last = self._last
        if last is not None and last.names.size == names.size and not np.count_nonzero(last.names != names):
            return last
        if names.size == 1:
            return self._resolve_one(names)
        if names.size > self._places.size:
            self._refuse(names)  # more names than rows: one is given twice, or nobody's
        rows = self._home[names & self._mask]
        strangers = np.flatnonzero(self.name_of[rows] != names)
        if strangers.size:
            rows[strangers] = [self.row_of.get(name, NOBODY) for name in names[strangers].tolist()]
        places = self._places[: names.size]
        self._stamp[rows] = places
        twice = np.count_nonzero(self._stamp[rows] != places)
        if self._stamp[NOBODY] >= 0 or twice:
            self._stamp[NOBODY] = -1
            self._refuse(names)
        self._last = Batch(
            frozen(names.copy()), frozen(rows), frozen(rows.astype(np.int32)), frozen(self.epoch_of[rows])
        )
        return self._last

    def row(self, name: int) -> int:
        """Return the row of one name, or refuse it as `Unknown`. O(1)."""
        row = self.row_of.get(name)
        if row is None:
            raise Unknown(f"no live sequence is called {name}")
        return row

    def grow(self, rows: int) -> None:
        """Make room for more rows. O(rows)."""
        self.name_of = grown(self.name_of, rows)
        self.epoch_of = grown(self.epoch_of, rows)
        self._stamp = np.full(rows, -1, np.int64)
        self._places = frozen(np.arange(rows))
        self._device_places = frozen(np.arange(rows, dtype=np.int32))
        self._rebuild_homes(rows)

    def clone(self) -> "Names":
        """Return an independent copy."""
        twin = Names.__new__(Names)
        twin.row_of = self.row_of.copy()
        twin.name_of = self.name_of.copy()
        twin.epoch_of = self.epoch_of.copy()
        twin._stamp = self._stamp.copy()
        twin._places, twin._device_places = self._places, self._device_places
        twin._home, twin._mask = self._home.copy(), self._mask
        twin._last = self._last
        return twin

    def homes(self) -> dict[int, int]:
        """Return the direct-mapped table as {home: row}, empty homes left out: for checks."""
        occupied = np.flatnonzero(self._home)
        return dict(zip(occupied.tolist(), self._home[occupied].tolist(), strict=True))

    def home(self, name: int) -> int:
        """Return where a name's row would be guessed: for checks."""
        return name & self._mask

    def _resolve_one(self, names: Int64Array) -> Batch:
        """Resolve a batch of one, for which a dozen passes would cost more than the dictionary."""
        row = self.row_of.get(names.item(), NOBODY)
        if row == NOBODY:
            self._refuse(names)
        rows = self._places[row : row + 1]
        self._last = Batch(frozen(names.copy()), rows, self._device_places[row : row + 1], frozen(self.epoch_of[rows]))
        return self._last

    def _rebuild_homes(self, rows: int) -> None:
        """Lay the homes out anew, four for a row: with names counted up, collisions are then rare."""
        size = 1 << (4 * rows - 1).bit_length()
        self._mask = size - 1
        self._home = np.zeros(size, np.intp)
        for name, row in self.row_of.items():
            self._home[name & self._mask] = row

    def _refuse(self, names: Int64Array) -> NoReturn:
        """Name what is wrong with a batch: a name given twice before a name that nobody has."""
        seen: set[int] = set()
        for name in names.tolist():
            if name in seen:
                raise Duplicate(f"sequence {name} stands twice in one batch")
            seen.add(name)
        stranger = next(name for name in names.tolist() if name not in self.row_of)
        raise Unknown(f"no live sequence is called {stranger}")

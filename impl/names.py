"""From the caller's sequence names to table rows, a batch at a time.

A dictionary look-up costs 60 ns, so 120 us for a batch of 2,000: four times what the whole step's bookkeeping may take.
So beside the dictionary stands a direct-mapped table: `home[name & mask]` guesses the row and `name_of[row]` confirms
it, two gathers for the whole batch. Names whose home is another's are looked up in the dictionary, which is always
right. And the last batch is kept, since an engine extends, launches and extends again the same running set: comparing
a batch with it costs a tenth of resolving it.

Row 0 belongs to nobody, and an empty home points there. It may confirm a name by accident; the pass that finds a name
given twice (each row is stamped with its place in the batch, and read back) then finds that row 0 was stamped, and the
dictionary decides.

Guarantees: `resolve` returns the rows of distinct live sequences or refuses; any int64 is a name. Cost: O(batch).
Considered: sorted names (`searchsorted` is ten times slower); hashing in numpy (no faster than the two gathers).
"""

from typing import NamedTuple, Self

import numpy as np

from .arguments import shown
from .arrays import IndexArray, Int32Array, Int64Array, frozen, grown
from .refusals import Duplicate, Unknown

NOBODY = 0


class Batch(NamedTuple):
    """The rows of a batch of sequences, in batch order; shared between results, so read-only."""

    names: Int64Array
    rows: IndexArray
    device_rows: Int32Array  # the same as `rows`
    epochs: Int64Array  # which life of each name this is


class Names:
    """Which sequence has which row, and since when. Rows are numbered by the caller.

    One name: `bind`, `unbind`, `row`. A batch: `resolve`. For checks: `homes`, `home`.
    """

    row_of: dict[int, int]
    name_of: Int64Array
    epoch_of: Int64Array
    _home: IndexArray  # a residue of names -> the row of the last name bound that has it
    _mask: int
    _stamp: Int64Array  # -1, or the place in the last batch resolved
    _places: IndexArray  # 0, 1, 2 ...
    _device_places: Int32Array  # the same
    _last: Batch | None
    __slots__ = ("_device_places", "_home", "_last", "_mask", "_places", "_stamp", "epoch_of", "name_of", "row_of")

    def __init__(self, rows: int) -> None:
        self.row_of = {}
        self.name_of = np.zeros(rows, np.int64)
        self.epoch_of = np.zeros(rows, np.int64)
        self._prepare(rows)

    def bind(self, name: int, row: int, epoch: int) -> None:
        """Give a row to a name that has none. O(1)."""
        self.row_of[name] = row
        self.name_of[row] = name
        self.epoch_of[row] = epoch
        self._home[name & self._mask] = row
        self._last = None

    def unbind(self, name: int, row: int) -> None:
        """Take its row away from a live name. O(1)."""
        del self.row_of[name]
        home = name & self._mask
        if self._home.item(home) == row:  # else another name lives there, and this row's stale name is never met
            self._home[home] = NOBODY
        self._last = None

    def row(self, name: int) -> int:
        """Return the row of one name, or refuse it as `Unknown`. O(1)."""
        row = self.row_of.get(name)
        if row is None:
            raise Unknown(f"no live sequence is called {shown(name)}")
        return row

    def resolve(self, names: Int64Array) -> Batch:
        """Return the rows of distinct live names; `Duplicate` or `Unknown` otherwise. O(batch)."""
        last = self._last
        if last is not None and last.names.size == names.size and not np.count_nonzero(last.names != names):
            return last
        if names.size == 1:
            return self._resolve_one(names)
        if names.size > self._places.size:
            return self._keep(names, self._look_up(names))  # more names than rows: this refuses
        rows = self._home[names & self._mask]
        strangers = (self.name_of[rows] != names).nonzero()[0]
        if strangers.size:
            rows[strangers] = [self.row_of.get(name, NOBODY) for name in names[strangers].tolist()]
        places = self._places[: names.size]
        self._stamp[rows] = places
        twice = np.count_nonzero(self._stamp[rows] != places)
        if twice or self._stamp.item(NOBODY) >= 0:
            self._stamp[NOBODY] = -1
            rows = self._look_up(names)
        return self._keep(names, rows)

    def grow(self, rows: int) -> None:
        """Make room for more rows. O(rows)."""
        self.name_of = grown(self.name_of, rows)
        self.epoch_of = grown(self.epoch_of, rows)
        self._prepare(rows)

    def homes(self) -> dict[int, int]:
        """Return the direct-mapped table as {home: row}, without those that are empty."""
        occupied = np.flatnonzero(self._home)
        return dict(zip(occupied.tolist(), self._home[occupied].tolist(), strict=True))

    def home(self, name: int) -> int:
        """Return where a name's row is guessed to be."""
        return name & self._mask

    def clone(self) -> Self:
        """Return an independent copy."""
        twin = object.__new__(type(self))
        twin.row_of, twin.name_of, twin.epoch_of = self.row_of.copy(), self.name_of.copy(), self.epoch_of.copy()
        twin._home, twin._mask = self._home.copy(), self._mask
        twin._stamp, twin._last = self._stamp.copy(), self._last
        twin._places, twin._device_places = self._places, self._device_places
        return twin

    def _resolve_one(self, names: Int64Array) -> Batch:
        """Resolve a batch of one, for which a dozen passes would cost more than the dictionary."""
        row = self.row(names.item())
        rows = self._places[row : row + 1]
        self._last = Batch(frozen(names.copy()), rows, self._device_places[row : row + 1], frozen(self.epoch_of[rows]))
        return self._last

    def _prepare(self, rows: int) -> None:
        """Lay out what serves `resolve`: four homes a row, so that names counted up seldom meet."""
        mask = (1 << (4 * rows - 1).bit_length()) - 1
        places, device_places = np.arange(rows), np.arange(rows, dtype=np.int32)
        stamp, home = np.full(rows, -1, np.int64), np.zeros(mask + 1, np.intp)
        self._last = None  # from here on nothing needs memory: it is all done or nothing
        self._places, self._device_places, self._stamp = frozen(places), frozen(device_places), stamp
        self._mask, self._home = mask, home
        for name, row in self.row_of.items():
            self._home[name & self._mask] = row

    def _keep(self, names: Int64Array, rows: IndexArray) -> Batch:
        """Make a batch of names and their rows, and remember it."""
        self._last = Batch(
            frozen(names.copy()), frozen(rows), frozen(rows.astype(np.int32)), frozen(self.epoch_of[rows])
        )
        return self._last

    def _look_up(self, names: Int64Array) -> IndexArray:
        """Resolve by the dictionary alone, or say what is wrong: a name twice comes before a name nobody has."""
        listed = names.tolist()
        seen: set[int] = set()
        for name in listed:
            if name in seen:
                raise Duplicate(f"sequence {name} stands twice in one batch")
            seen.add(name)
        return np.array([self.row(name) for name in listed], np.intp)

"""The array types of the implementation, and how its arrays grow.

State is kept as a struct of arrays: one numpy array a field, indexed by block or by row, so that an operation on a
batch is a few passes over a few arrays. Ids that serve as an index are kept as `intp` inside, since numpy casts any
other index first, at about five times the cost; what leaves the package (block ids, table rows) is `int32`, which is
what kernels read.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

IndexArray = NDArray[np.intp]  # block ids or row indices, used as an index
Int32Array = NDArray[np.int32]  # block ids and rows as a device reads them
Int64Array = NDArray[np.int64]  # names, lengths, slots, launch ids


def grown(array: NDArray[Any], capacity: int, axis: int = 0) -> NDArray[Any]:
    """Return a copy with room for `capacity` entries along an axis; new ones are zero, and cost nothing until used."""
    shape = list(array.shape)
    shape[axis] = capacity
    larger = np.zeros(shape, array.dtype)
    larger[tuple(slice(0, extent) for extent in array.shape)] = array
    return larger


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array, no longer writeable: for arrays that several results share."""
    array.setflags(write=False)
    return array


def cells(rows: IndexArray, first: Int64Array, counts: Int64Array) -> tuple[IndexArray, Int64Array]:
    """Return, row by row, (row, number) for the `counts` numbers from `first` on."""
    if rows.size == 1:  # a chunk of one prompt: at a third of the cost
        start, count = first.item(), counts.item()
        return rows.repeat(count), np.arange(start, start + count)
    repeated = rows.repeat(counts)
    return repeated, (first - before(counts)).repeat(counts) + np.arange(repeated.size)


def before(counts: Int64Array) -> Int64Array:
    """Return for each row the sum of the counts before it."""
    return counts.cumsum() - counts


NO_IDS: IndexArray = frozen(np.empty(0, np.intp))
NO_BLOCKS: Int32Array = frozen(np.empty(0, np.int32))
NO_SLOTS: Int64Array = frozen(np.empty(0, np.int64))

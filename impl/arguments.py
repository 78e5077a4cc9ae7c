"""The border: arguments of every kind come in here, and leave as integers or int64 arrays, or are refused by name.

Behind it no index is out of range and no number overflows. A name is any 64-bit integer. A batch is any sequence or
one-dimensional array of integers; floats, booleans, text and nested lists are refused rather than converted. A count of
any size passes, since an operation refuses it by its own name. Cost: nothing for an int64 array, else one conversion.
"""

import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex, cast

import numpy as np
from numpy.typing import NDArray

from .arrays import Int32Array, Int64Array
from .refusals import InvalidArgument

Integers = Sequence[int] | NDArray[np.signedinteger[Any]] | NDArray[np.unsignedinteger[Any]]

SMALLEST, LARGEST = -(2**63), 2**63 - 1


def integer(what: str, value: SupportsIndex, least: int = SMALLEST, most: int = LARGEST) -> int:
    """Return a Python integer of least..most; `InvalidArgument` says what is none."""
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidArgument(f"{what} must be an integer, not {shown(value)}") from None
    if isinstance(value, bool | np.bool_) or not least <= number <= most:
        raise InvalidArgument(f"{what} must be an integer of {least} to {most}, not {shown(value)}")
    return number


def shown(value: object) -> str:
    """Return a value for an error's one line, at most 80 characters of it."""
    try:
        return " ".join(repr(value).split())[:80]
    except ValueError:  # Python writes no integer of more than some thousand digits
        return "a number of thousands of digits"


def names(seqs: Integers) -> Int64Array:
    """Return sequence names as int64 [batch]."""
    return _integers("the batch of sequence names", seqs)


def counts(amounts: Integers | SupportsIndex, batch: int) -> int | Int64Array:
    """Return counts as one integer for all rows, or as int64 [batch]. Whether they are allowed, the operation says."""
    if type(amounts) is int:
        return amounts
    if not isinstance(amounts, np.ndarray | Sequence):
        return integer("a count", amounts)
    array = _integers("the batch of counts", amounts)
    if array.size != batch:
        raise InvalidArgument(f"{batch} sequences need one count or {batch} counts, not {array.size}")
    if batch == 1 or (batch and not np.count_nonzero(array != array[0])):
        return array.item(0)
    return array


def token_ids(tokens: Integers) -> Int32Array:
    """Return token ids as int32, one behind the other in memory; each is 0 to 2**31 - 1. O(tokens)."""
    if type(tokens) is np.ndarray and tokens.dtype == np.int32 and tokens.ndim == 1:
        ids: Int32Array = np.ascontiguousarray(tokens, np.int32)
        if not np.count_nonzero(ids < 0):
            return ids
    wide = _integers("the token ids", tokens)
    if wide.size and not 0 <= int(wide.min()) <= int(wide.max()) < 2**31:
        raise InvalidArgument(f"token ids must be 0 to {2**31 - 1}, and there is one of {_outside(wide)}")
    return wide.astype(np.int32)


def _outside(ids: Int64Array) -> int:
    """Return an id that is out of range."""
    return int(ids.min()) if ids.min() < 0 else int(ids.max())


def _integers(what: str, values: Integers) -> Int64Array:
    odd = isinstance(values, list | tuple) and bool in map(type, values)
    if odd or np.ma.isMaskedArray(values):  # numpy would take True for 1, and what a mask hides for a value
        raise InvalidArgument(f"{what} must be one list of 64-bit integers, not {shown(values)}")
    try:
        array = np.asarray(values)  # of the dtype that holds them all, so that what is no integer shows
    except (ValueError, OverflowError):  # ragged, or beyond every dtype
        raise InvalidArgument(f"{what} must be one list of 64-bit integers, not {shown(values)}") from None
    if array.ndim == 1 and array.dtype == np.int64:
        return cast("Int64Array", array)
    if array.shape == (0,):
        return np.empty(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu" or not np.can_cast(array.dtype, np.int64):
        raise InvalidArgument(f"{what} must be one list of 64-bit integers, not {shown(values)}")
    return array.astype(np.int64)

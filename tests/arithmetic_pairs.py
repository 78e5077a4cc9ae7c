"""Pairs of functions that crosshair compares, and wrong ones that it must refute; `test_arithmetic` hands them over.

`crosshair diffbehavior` takes two functions of one signature and tries every path through both. It knows no
preconditions, so each pair refuses what is out of its scope alike; and it decides little about `2 ** n` for an unknown
n, so the shift is made a known number by comparing it with each. The pairs:

- `locate` and `blocks_needed`: the implementation's shifts and masks against the spec's divisions;
- `last_block_length`: the implementation's remainder against the spec's difference.

The wrong ones are the slips of public reports: a boundary one off at exact multiples of the block size, a last block
that is empty where it is full.
"""

from pagedkv.impl import arithmetic as faster
from pagedkv.spec import arithmetic as plain

LARGEST_SHIFT = 16  # blocks of up to 65,536 positions


def _known(shift: int) -> int:
    for each in range(LARGEST_SHIFT + 1):
        if shift == each:
            return each
    raise ValueError("a shift out of scope")


def locate_by_division(position: int, shift: int) -> tuple[int, int]:
    """Locate a position as the spec does."""
    return plain.locate(position, 2 ** _known(shift))


def locate_by_shift(position: int, shift: int) -> tuple[int, int]:
    """Locate a position as the implementation does where the block size is a power of two."""
    return faster.locate_by_shift(position, _known(shift))


def locate_by_a_short_mask(position: int, shift: int) -> tuple[int, int]:
    """Locate a position with a mask that lacks its highest bit: wrong."""
    return position >> _known(shift), position & ((1 << _known(shift)) - 1) >> 1


def blocks_by_division(length: int, shift: int) -> int:
    """Count blocks as the spec does."""
    return plain.blocks_needed(length, 2 ** _known(shift))


def blocks_by_shift(length: int, shift: int) -> int:
    """Count blocks as the implementation does where the block size is a power of two."""
    return faster.blocks_needed_by_shift(length, _known(shift))


def blocks_by_shift_and_one(length: int, shift: int) -> int:
    """Count blocks with one too many at exact multiples of the block size: wrong."""
    return (length >> _known(shift)) + 1


def last_length_by_difference(length: int, block_size: int) -> int:
    """Return the positions in the last block as the spec does."""
    return plain.last_block_length(*_in_scope(length, block_size))


def last_length_by_remainder(length: int, block_size: int) -> int:
    """Return the positions in the last block as the implementation does."""
    return faster.last_block_length(*_in_scope(length, block_size))


def last_length_empty_when_full(length: int, block_size: int) -> int:
    """Return 0 for a last block that is full: wrong."""
    length, block_size = _in_scope(length, block_size)
    return length % block_size


def _in_scope(length: int, block_size: int) -> tuple[int, int]:
    if length < 0 or block_size < 1:
        raise ValueError("out of scope")
    return length, block_size


# ---- wrong, with the contracts that the right ones have ----------------------------------------------------------


def wrong_blocks_needed(length: int, block_size: int) -> int:
    """Return a block too many at exact multiples of the block size.

    pre: length >= 0
    pre: block_size >= 1
    post: (__return__ - 1) * block_size < length <= __return__ * block_size
    """
    return length // block_size + 1


def wrong_last_block_length(length: int, block_size: int) -> int:
    """Return 0 for a last block that is full.

    pre: length >= 0
    pre: block_size >= 1
    post: (__return__ == 0) == (length == 0)
    """
    return length % block_size

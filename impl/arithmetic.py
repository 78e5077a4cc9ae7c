"""The integers of a paged cache: how many blocks, which block, which slot.

Positions are counted from 0, blocks hold `block_size` positions, and a length that is an exact multiple of the block
size behaves as every other length (R-CAP-2). Every function takes plain integers or numpy arrays of them, so what is
proved of one holds for the other: the contracts under each docstring's prose are confirmed over all paths by crosshair.

The forms named `..._by_shift` give the same for a block size of 2 ** shift. numpy divides integers about five times
slower than it shifts them (4.5 us against 0.9 us for 2,000), and nearly every engine's block size is a power of two.
`crosshair diffbehavior` holds the two forms together. Each costs one pass an operation; none checks its arguments.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Integers = TypeVar("Integers", int, NDArray[np.int64])


def blocks_needed(length: int, block_size: int) -> int:
    """Return how many blocks hold `length` positions: the ceiling of length / block_size.

    pre: length >= 0
    pre: block_size >= 1
    post: (__return__ - 1) * block_size < length <= __return__ * block_size
    """
    return -(-length // block_size)


def blocks_needed_by_shift(length: int, shift: int) -> int:
    """Return how many blocks of 2 ** shift positions hold `length` positions.

    pre: length >= 0
    pre: 0 <= shift <= 8
    post: (__return__ - 1) * 2 ** shift < length <= __return__ * 2 ** shift
    """
    return -(-length >> shift)


def locate(position: int, block_size: int) -> tuple[int, int]:
    """Return (logical block, offset in it) of a position.

    pre: position >= 0
    pre: block_size >= 1
    post: __return__[0] * block_size + __return__[1] == position
    post: 0 <= __return__[1] < block_size
    """
    return position // block_size, position % block_size


def locate_by_shift(position: int, shift: int) -> tuple[int, int]:
    """Return (logical block, offset in it) of a position, for blocks of 2 ** shift positions.

    pre: position >= 0
    pre: 0 <= shift <= 8
    post: __return__[0] * 2 ** shift + __return__[1] == position
    post: 0 <= __return__[1] < 2 ** shift
    """
    return position >> shift, position & ((1 << shift) - 1)


def slot(block: int, offset: int, block_size: int) -> int:
    """Return the slot of an offset in a physical block: the address that a kernel is given.

    pre: block >= 0
    pre: 0 <= offset < block_size
    post: __return__ // block_size == block
    post: __return__ % block_size == offset
    """
    return block * block_size + offset


def last_block_length(length: int, block_size: int) -> int:
    """Return how many positions the last block of a sequence holds: 1 to block_size, and 0 for an empty sequence.

    pre: length >= 0
    pre: block_size >= 1
    post: 0 <= __return__ <= block_size
    post: (__return__ == 0) == (length == 0)
    post: (length - __return__) % block_size == 0
    """
    return length - (length > 0) * ((length - 1) // block_size * block_size)


class Paging:
    """Positions to blocks and slots for one block size, in the faster form where there is one.

    The functions above, the faster form chosen once; each takes integers or arrays of them.
    """

    _blocks_needed: Callable[[Any, int], Any]
    _locate: Callable[[Any, int], tuple[Any, Any]]
    _slot: Callable[[Any, Any, int], Any]
    _last_block_length: Callable[[Any, int], Any]
    __slots__ = ("_blocks_needed", "_divisor", "_last_block_length", "_locate", "_slot", "block_size")

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        power_of_two = block_size & (block_size - 1) == 0
        self._divisor = block_size.bit_length() - 1 if power_of_two else block_size
        self._blocks_needed = blocks_needed_by_shift if power_of_two else blocks_needed
        self._slot = slot
        self._last_block_length = last_block_length
        self._locate = locate_by_shift if power_of_two else locate

    def blocks_needed(self, length: Integers) -> Integers:
        """Return how many blocks hold `length` positions."""
        needed: Integers = self._blocks_needed(length, self._divisor)
        return needed

    def locate(self, position: Integers) -> tuple[Integers, Integers]:
        """Return (logical block, offset in it)."""
        return self._locate(position, self._divisor)

    def slot(self, block: Integers, offset: Integers) -> Integers:
        """Return the slot of an offset in a physical block."""
        address: Integers = self._slot(block, offset, self.block_size)
        return address

    def last_block_length(self, length: Integers) -> Integers:
        """Return how many positions the last block of a sequence holds."""
        last: Integers = self._last_block_length(length, self.block_size)
        return last

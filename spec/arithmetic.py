"""The integers of a paged cache: how many blocks, which block, which slot.

Positions are counted from 0, blocks hold `block_size` positions, and a length that is an exact multiple of the block
size behaves as every other length (R-CAP-2). The contracts below each docstring's prose are read by crosshair, which
confirms them over all paths; the implementation has its own forms, and crosshair compares those with these.
"""


def blocks_needed(length: int, block_size: int) -> int:
    """Return how many blocks hold `length` positions: the ceiling of length / block_size.

    pre: length >= 0
    pre: block_size >= 1
    post: (__return__ - 1) * block_size < length <= __return__ * block_size
    """
    return -(-length // block_size)


def locate(position: int, block_size: int) -> tuple[int, int]:
    """Return (logical block, offset in it) of a position.

    pre: position >= 0
    pre: block_size >= 1
    post: __return__[0] * block_size + __return__[1] == position
    post: 0 <= __return__[1] < block_size
    """
    return position // block_size, position % block_size


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
    return length - (blocks_needed(length, block_size) - 1) * block_size if length else 0

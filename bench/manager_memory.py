"""How much host memory a cache manager's own state takes, measured at the manager itself.

`state_bytes` walks everything that an object reaches (arrays by their size, containers and objects by their own) and
adds it up, so it needs no knowledge of what is inside, and a manager that grows an index tomorrow is measured with it.
`bytes_a_block` and `bytes_a_row` are differences between two real managers that differ in one size.

Memory that is reserved and never touched counts in full, as it would once it is used. Cost: O(objects), not O(bytes).
"""

import gc
import sys
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

import numpy as np
from pagedkv.impl.cache import BlockCache

_CODE = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)


def state_bytes(root: object) -> int:
    """Return the bytes of all that `root` reaches, code left out; what is reached twice counts once."""
    return sum(sys.getsizeof(found) for found in reached(root))  # an array's own data included, a view's not


def reached(root: object) -> Iterator[object]:
    """Yield all that `root` reaches, itself included, code left out; each object once."""
    waiting, seen = [root], set[int]()
    while waiting:
        found = waiting.pop()
        if id(found) in seen or isinstance(found, _CODE):
            continue
        seen.add(id(found))
        yield found
        waiting.extend(gc.get_referents(found))
        if isinstance(found, np.ndarray) and found.base is not None:
            waiting.append(found.base)


def bytes_a_block(block_size: int) -> int:
    """Return what one more block adds to a manager."""
    fewer, more = (state_bytes(BlockCache(blocks, block_size, rows=1)) for blocks in (1000, 2000))
    return round((more - fewer) / 1000)


def bytes_a_row(block_size: int) -> int:
    """Return what room for one more sequence adds to a manager, its block table left out."""
    fewer, more = (state_bytes(BlockCache(1, block_size, rows=rows, max_blocks_per_row=1)) for rows in (1000, 2000))
    return round((more - fewer) / 1000) - np.dtype(np.int32).itemsize

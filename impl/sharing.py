"""The state behind prefix sharing: an index of blocks, what is known of rows, and pins.

It is made when sharing is first used, from then on beside tables and pool: the index belongs to the pool, which asks it
what is published whenever a block is let go, and what is known belongs to the tables, which hand it on when a row is
forked or moved. Pins are holders like sequences, without a row.
"""

from dataclasses import dataclass, field
from typing import Self

import numpy as np

from .arrays import NO_IDS, IndexArray
from .block_pool import BlockPool
from .block_tables import BlockTables
from .knowledge import Knowledge
from .prefix_index import PrefixIndex


@dataclass(slots=True)
class Sharing:
    """What prefix sharing adds to tables and pool."""

    index: PrefixIndex
    knowledge: Knowledge
    pins: dict[int, IndexArray] = field(default_factory=dict)  # handle -> the blocks it holds

    def pinned(self) -> IndexArray:
        """Return the blocks of all pins, one behind the other."""
        return np.concatenate((NO_IDS, *self.pins.values()))

    def clone(self, pool: BlockPool, tables: BlockTables) -> Self:
        """Return an independent copy over copies of pool and tables."""
        assert pool.index is not None
        assert tables.knowledge is not None
        return type(self)(pool.index, tables.knowledge, self.pins.copy())

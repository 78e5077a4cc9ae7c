"""Cells that do not end as a replay does: for tests of who runs them, in processes that import this module by name."""

import os
from typing import NoReturn

from pagedkv.bench.grid import CellJob


class EndsItsProcess(CellJob):
    """A cell that ends its process without a word, as one does that is killed for want of memory."""

    def __call__(self) -> NoReturn:
        os._exit(3)

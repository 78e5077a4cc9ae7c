"""torch's `PagedAttention` under the drivers (`torch.nn.attention.experimental._paged_attention`).

It reserves pages for one row of a batch at a time (`reserve`) and gives them back (`erase`); it shares nothing. It
keeps each block table twice: `page_table`, by which K and V are written and a block mask is converted, and
`physical_to_logical`, by which its mask and score functions tell whose a page is. So there are two adapters: one shows
the first, one what the score function makes of the second. Rows of the batch are this adapter's to hand out.
"""

from collections.abc import Collection, Sequence
from typing import Any

import torch
from pagedkv.spec.manager import Block, Config, Feature, Manager, Name, Reason, Refused, Rows
from torch.nn.attention.experimental._paged_attention import PagedAttention

NOWHERE = float("-inf")


def make_torch_manager(blocks: int, block_size: int, sequences: int) -> PagedAttention:
    """Return torch's own manager of so many pages, for so many rows."""
    return PagedAttention(n_pages=blocks, page_size=block_size, max_batch_size=sequences, device="cpu")


class TorchPagedAttention(Manager):
    """`PagedAttention`, its block tables as `page_table` has them."""

    first_block = 0
    not_offered = frozenset({Feature.BATCHES})

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.pages = make_torch_manager(config.blocks, config.block_size, sequences=config.blocks)
        self.rows: dict[Name, torch.Tensor] = {}
        self.lengths: dict[Name, int] = {}
        self.own_calls: list[str] = []

    def add(self, name: Name, count: int) -> None:
        """Reserve room in a row that nobody has."""
        row = min({*range(self.config.blocks)} - {int(row) for row in self.rows.values()}, default=0)
        self._reserve(torch.tensor([row]), count)
        self.rows[name], self.lengths[name] = torch.tensor([row]), count

    def extend(self, rows: Rows) -> None:
        """Reserve more room in a row."""
        for name, count in rows:
            self._reserve(self.rows[name], self.lengths[name] + count)
            self.lengths[name] += count

    def release(self, name: Name) -> None:
        """Erase a row."""
        row = self.rows.pop(name)
        self.own_calls.append(f"pages.erase({row})")
        self.pages.erase(row)

    def block_table(self, name: Name) -> Sequence[Block]:
        """Return the pages of a row, without its empty entries."""
        row = self.pages.page_table[self.rows[name][0]]
        return tuple(row[row != -1].tolist())

    def free_blocks(self) -> Collection[Block]:
        """Return the empty pages."""
        return tuple(self.pages.empty_pages)

    def _reserve(self, row: torch.Tensor, length: int) -> None:
        self.own_calls.append(f"pages.reserve({row}, torch.tensor([{length}]))")
        try:
            self.pages.reserve(row, torch.tensor([length]))
        except AssertionError as error:
            raise Refused(Reason.NO_SPACE) from error


class TorchPagedAttentionMask(TorchPagedAttention):
    """`PagedAttention`, its block tables as its own score function tells them: what attention sees that asks it."""

    def block_table(self, name: Name) -> Sequence[Block]:
        """Return the pages that count as the row's, in the order of the positions that they are taken for."""
        pages = torch.arange(self.config.blocks)
        position: Any = self.pages.get_score_mod(lambda _score, _row, _head, _query, position: position.float())
        zero = torch.zeros(self.config.blocks, dtype=torch.int64)
        positions = position(zero, zero + self.rows[name], zero, zero, pages * self.config.block_size).tolist()
        return tuple(page for _, page in sorted(zip(positions, pages.tolist(), strict=True)) if _ > NOWHERE)

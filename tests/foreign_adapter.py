"""The stranger's manager behind our drivers: all that its author would have to write, from the protocol's text alone.

The manager grows a sequence by a token at a time and has no way back, so `extend` (a batch, all or nothing) works on a
copy and keeps it if every token found room. The rest is translation.
"""

import copy
from collections.abc import Hashable, Sequence
from typing import Self

from pagedkv.spec.manager import Manager
from pagedkv.spec.observation import Naming
from pagedkv.spec.outcome import Rows
from pagedkv.spec.refusals import Reason, Refused
from pagedkv.spec.state import Block, Config, Copy, Name

from foreign_manager import BlockManager, Seq


class Foreign(Manager):
    """`foreign_manager.BlockManager` as a `Manager`: a black box on one stream."""

    first_block = 0
    manager_class = BlockManager  # a planted fault is a subclass of it

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.blocks = type(self).manager_class(config.blocks, config.block_size)
        self.sequences: dict[Name, Seq] = {}

    def add(self, name: Name, count: int) -> None:
        """Allocate a new sequence."""
        seq = Seq(count)
        if not self.blocks.can_allocate(seq):
            raise Refused(Reason.NO_SPACE)
        self.blocks.allocate(seq)
        self.sequences[name] = seq

    def extend(self, rows: Rows) -> list[Copy]:
        """Append to a batch, token by token."""
        trial = self.clone()
        copies = []
        for name, count in rows:
            for _ in range(count):
                if not trial.blocks.can_append(trial.sequences[name]):
                    raise Refused(Reason.NO_SPACE)
                if pair := trial.blocks.may_append(trial.sequences[name]):
                    copies.append(Copy(name, *pair, extent=self.config.block_size))  # it copies whole blocks
        self.blocks, self.sequences = trial.blocks, trial.sequences
        return copies

    def fork(self, parent: Name, child: Name) -> None:
        """Fork a sequence."""
        self.sequences[child] = self.blocks.fork(self.sequences[parent])

    def launch(self, rows: Rows, stream: int) -> None:  # noqa: ARG002  (there is one)
        """Note that the batch's copies have been submitted."""
        for name, _ in rows:
            self.blocks.copies_done(self.sequences[name])

    def release(self, name: Name) -> None:
        """Deallocate a sequence."""
        self.blocks.deallocate(self.sequences.pop(name))

    def block_table(self, name: Name) -> Sequence[Block]:
        """Return a sequence's blocks."""
        return self.sequences[name].block_table

    def clone(self) -> Self:
        """Return an independent copy, ten times faster than `deepcopy`."""
        twin = copy.copy(self)
        twin.blocks = copy.copy(self.blocks)
        twin.blocks.ref_count = self.blocks.ref_count.copy()
        twin.blocks.free_block_ids = self.blocks.free_block_ids.copy()
        twin.sequences = {name: copy.copy(seq) for name, seq in self.sequences.items()}
        for seq in twin.sequences.values():
            seq.block_table, seq.copy_sources = seq.block_table.copy(), seq.copy_sources.copy()
        return twin

    def fingerprint(self, naming: Naming) -> Hashable:
        """Return reference counts and copy sources: what block tables do not tell."""
        counts = tuple(sorted((naming.blocks[block], count) for block, count in enumerate(self.blocks.ref_count)))
        sources = tuple(
            sorted(
                (naming.sequences[name], [naming.blocks[block] for block in seq.copy_sources])
                for name, seq in self.sequences.items()
            )
        )
        return counts, repr(sources)

    def free_order(self) -> Sequence[Block]:
        """Return the free blocks, first out first."""
        return tuple(self.blocks.free_block_ids)

"""The sequences of a sweep in a real manager: allocated, grown, and taken through decode steps, with all counted.

Nothing is computed from lengths here: blocks, table entries, allocation calls and free blocks are the manager's own
answers, and the manager is the one that engines use. Allocation is `add` with the prompt, then `extend` by one token
for all that are not yet at their final length, in one batch a step. Then every decode step is what an engine does:
`extend` all by one, `launch`, let the device work, `retire`.

The pool is as large as the memory that was declared, or as large as is needed where that is more; then the free blocks
of the declared pool are negative: so many are missing. Time is that of the manager's calls and nothing else.
"""

import time
from dataclasses import dataclass, field

import numpy as np
from pagedkv.bench.failures import BadInput
from pagedkv.bench.manager_memory import state_bytes
from pagedkv.bench.replay_queue import BLOCKS_MAX, TABLE_ENTRIES_MAX
from pagedkv.bench.sweep_lengths import Lengths
from pagedkv.impl.cache import BlockCache
from pagedkv.impl.results import Launch

ENTRY_BYTES = np.dtype(np.int32).itemsize


@dataclass(slots=True, kw_only=True)
class Counts:
    """What was counted for one block size. No times: two runs agree on all of it.

    Up to `metadata_bytes` all is as it is when every sequence has its final length, before decode steps.
    `sequences_that_fit` is how many, the shortest of them, the declared pool holds after the decode steps.
    `allocations` are blocks taken until then, of them `growth_allocations` by extensions, in `allocation_calls` calls
    that took any. `free_blocks` are those of the declared pool of `blocks` after the decode steps.
    """

    block_size: int
    sequences: int
    logical_tokens: int = 0
    physical_slots: int = 0
    block_table_entries: int = 0
    block_table_bytes: int = 0
    allocations: int = 0
    growth_allocations: int = 0
    allocation_calls: int = 0
    metadata_bytes: int = 0
    decode_steps: int = 0
    decode_allocations: int = 0
    blocks: int = 0
    free_blocks: int = 0
    sequences_that_fit: int = 0

    @property
    def tail_waste(self) -> int:
        """Slots of last blocks that are empty, in tokens."""
        return self.physical_slots - self.logical_tokens

    @property
    def tail_waste_percent(self) -> float:
        """Tail waste in per cent of the slots."""
        return 100 * self.tail_waste / self.physical_slots

    @property
    def tail_waste_uniform_estimate(self) -> float:
        """What (B - 1) / 2 a sequence would waste."""
        return self.sequences * (self.block_size - 1) / 2

    @property
    def free_percent(self) -> float:
        """The reserve: free blocks in per cent of the declared pool; negative where it is too small."""
        return 100 * self.free_blocks / max(self.blocks, 1)


@dataclass(slots=True)
class Seconds:
    """How long the manager's calls took: all of allocation, and each `extend` of a decode step."""

    allocation: float = 0.0
    extensions: list[float] = field(default_factory=list)


class ActiveBatch:
    """All sequences of a sweep, active in one manager with one block size."""

    def __init__(self, lengths: Lengths, block_size: int, blocks: int, steps: int) -> None:
        """Prepare a pool of `blocks` (the declared ones) or of as many as are needed after `steps` decode steps.

        Errors: `BadInput` for pools and tables beyond reason.
        """
        needed = -(-(lengths.final + steps) // block_size)
        pool, columns = max(blocks, int(needed.sum())), int(needed.max())
        _check_size(block_size, pool, columns * (len(lengths) + 1))
        self.lengths = lengths
        self.names = np.arange(len(lengths), dtype=np.int64)
        self.cache = BlockCache(pool, block_size, rows=len(lengths), max_blocks_per_row=columns)
        fit = int(np.searchsorted(np.cumsum(np.sort(needed)), blocks, side="right"))
        self.counts = Counts(block_size=block_size, sequences=len(lengths), blocks=blocks, sequences_that_fit=fit)
        self.seconds = Seconds()
        self._missing = pool - blocks

    def allocate(self) -> None:
        """Bring every sequence to its final length, and count what that took."""
        counts, cache = self.counts, self.cache
        began = time.perf_counter()
        for name, prompt in zip(self.names.tolist(), self.lengths.prompt.tolist(), strict=True):
            counts.allocations += len(cache.add(name, prompt).blocks)
            counts.allocation_calls += 1
        self._grow()
        self.seconds.allocation = time.perf_counter() - began
        entries = [len(cache.block_table(name)) for name in self.names.tolist()]
        counts.logical_tokens = sum(cache.lengths(name).allocated for name in self.names.tolist())
        counts.block_table_entries = sum(entries)
        counts.physical_slots = counts.block_table_entries * counts.block_size
        counts.block_table_bytes = counts.block_table_entries * ENTRY_BYTES
        cache.retire(cache.launch(self.names, self.lengths.final).id)  # the prompts and what was grown, written
        counts.metadata_bytes = state_bytes(cache)
        counts.free_blocks = cache.counts.free - self._missing

    def _grow(self) -> None:
        """Extend by one token a step those that are not at their final length: a slice, longest growth first."""
        growth = self.lengths.final - self.lengths.prompt
        longest_first = np.argsort(-growth, kind="stable")
        names, ascending = self.names[longest_first], np.sort(growth)
        for step in range(int(growth.max())):
            growing = len(names) - int(np.searchsorted(ascending, step, side="right"))
            taken = len(self.cache.extend(names[:growing]).blocks)
            self.counts.growth_allocations += taken
            self.counts.allocations += taken
            self.counts.allocation_calls += taken > 0

    def step(self) -> Launch:
        """Extend all by one token and launch: one decode step, which `retire` ends."""
        began = time.perf_counter()
        extension = self.cache.extend(self.names)
        self.seconds.extensions.append(time.perf_counter() - began)
        self.counts.decode_allocations += len(extension.blocks)
        self.counts.decode_steps += 1
        return self.cache.launch(self.names)

    def retire(self, launch: Launch) -> None:
        """Note that the device is done with a step."""
        self.cache.retire(launch.id)
        self.counts.free_blocks = self.cache.counts.free - self._missing


def _check_size(block_size: int, blocks: int, table_entries: int) -> None:
    """Refuse what no machine would have the memory for, before any is asked for."""
    remedy = "give fewer lengths, less --memory or larger blocks"
    if blocks > BLOCKS_MAX:
        raise BadInput(f"block size {block_size}", f"a pool of {blocks:,} blocks, more than {BLOCKS_MAX:,}", remedy)
    if table_entries > TABLE_ENTRIES_MAX:
        what = f"block tables of {table_entries:,} entries, more than {TABLE_ENTRIES_MAX:,}"
        raise BadInput(f"block size {block_size}", what, remedy)

"""Cache managers side by side in `peer_speeds`: ours, torch's and transformers'; the engines have modules of their own.

A *side* is one manager with what its owner's loop does around it, and nothing of the drivers' protocol: each method
makes the calls that the owner makes, in the owner's data structures, for as many sequences at once as its interface
takes. The row that a kernel reads, or that a device makes its kernel's from, is kept up to date by everybody, within
what is timed. Token ids come as each has them: lists, arrays, tensors; the objects in which an engine keeps a request
are ready before the clock starts. These are a manager's calls, not its engine's step: `peer_step_cases` has those.

Ours pays on top for what the others leave to stream order: each step is launched and retired, so that a block can't be
reused in flight.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from pagedkv.bench.peer_torch import make_torch_manager
from pagedkv.impl.arrays import Int32Array
from pagedkv.impl.cache import BlockCache
from pagedkv.spec.arithmetic import blocks_needed

BLOCK_SIZE = 16


class Side(Protocol):
    """A manager of so many blocks, for so many sequences of up to so many tokens each, a multiple of B."""

    caches: tuple[bool, ...]  # what it offers: with a prefix cache, without one
    most_sequences: int  # with more its own tables would not fit into this machine's memory

    def prepare(self, name: int, ids: Int32Array) -> None:
        """Bring a prompt into the form in which the owner's engine hands it to its manager: not timed."""

    def admit(self, name: int) -> int:
        """Look a prepared prompt up where there is a cache, allocate the rest; return how many tokens were hit."""

    def computed(self, name: int) -> None:
        """Take note that the prompt has been computed: from here on it can be hit."""

    def start_decoding(self, names: Sequence[int]) -> None:
        """Learn who decodes from here on; all are admitted and computed."""

    def decode(self) -> None:
        """Give each of these sequences one more token, and bring the rows that a kernel reads up to date."""

    def leave(self, name: int) -> None:
        """Let a sequence go."""

    def rows(self, names: Sequence[int]) -> list[list[int]]:
        """Return the blocks of sequences as a kernel would read them: to be compared, not timed."""


class OwnSide:
    """`BlockCache`."""

    caches: tuple[bool, ...] = (True, False)
    most_sequences = 1_000_000

    def __init__(self, blocks: int, sequences: int, longest: int, *, caching: bool) -> None:
        columns = blocks_needed(longest, BLOCK_SIZE)
        self.cache = BlockCache(blocks, BLOCK_SIZE, rows=sequences, max_blocks_per_row=columns, prefix_cache=caching)
        self.caching = caching
        self.prompts: dict[int, Int32Array] = {}
        self.token = 0

    def prepare(self, name: int, ids: Int32Array) -> None:
        """Keep the array."""
        self.prompts[name] = ids

    def admit(self, name: int) -> int:
        """Add it: by its ids, or, where nothing is cached, by its length."""
        prompt = self.prompts[name]
        return self.cache.add(name, prompt if self.caching else prompt.size).hits * BLOCK_SIZE

    def computed(self, name: int) -> None:
        """Launch what was not hit, retire it, and publish."""
        lengths = self.cache.lengths(name)
        self.cache.retire(self.cache.launch((name,), lengths.allocated - lengths.launched).id)
        if self.caching:
            self.cache.publish((name,), (), 0)

    def start_decoding(self, names: Sequence[int]) -> None:
        """Make the batch, and ids for it to sample."""
        self.batch = np.array(names, np.int64)
        self.sampled = np.arange(len(names), dtype=np.int32)

    def decode(self) -> None:
        """Extend the batch, launch, retire; where prefixes are cached, publish what was sampled."""
        self.cache.extend(self.batch)
        self.cache.retire(self.cache.launch(self.batch).id)
        if self.caching:
            self.cache.publish(self.batch, self.sampled)

    def leave(self, name: int) -> None:
        """Release it."""
        self.cache.release(name)
        del self.prompts[name]

    def rows(self, names: Sequence[int]) -> list[list[int]]:
        """Return rows of the table."""
        return [self.cache.block_table(name).tolist() for name in names]


class TorchSide:
    """torch's `PagedAttention`: `reserve` takes one row of the batch at a time, as a tensor, and caches nothing.

    It has two tables of a column for each page of the pool, for every row.
    """

    caches: tuple[bool, ...] = (False,)
    most_sequences = 2000  # 2.2 GB, and 54 GB with 10,000

    def __init__(self, blocks: int, sequences: int, longest: int, *, caching: bool) -> None:  # noqa: ARG002  (no cache)
        self.pages = make_torch_manager(blocks, BLOCK_SIZE, sequences)
        self.free = list(range(sequences))
        self.row: dict[int, torch.Tensor] = {}
        self.length: dict[int, int] = {}

    def prepare(self, name: int, ids: Int32Array) -> None:
        """Only the length counts."""
        self.length[name] = ids.size

    def admit(self, name: int) -> int:
        """Reserve room in a free row."""
        self.row[name] = torch.tensor([self.free.pop()])
        self.pages.reserve(self.row[name], torch.tensor([self.length[name]]))
        return 0

    def computed(self, name: int) -> None:
        """Nothing is cached."""

    def start_decoding(self, names: Sequence[int]) -> None:
        """Have the rows and lengths as tensors."""
        self.batch = [(self.row[name], torch.tensor([self.length[name]])) for name in names]

    def decode(self) -> None:
        """Reserve one more position in each row."""
        for row, length in self.batch:
            length += 1  # noqa: PLW2901  (in place: the tensor is the batch's own)
            self.pages.reserve(row, length)

    def leave(self, name: int) -> None:
        """Erase its row."""
        row = self.row.pop(name)
        self.pages.erase(row)
        self.free.append(row.item())  # type: ignore[arg-type]  # one integer

    def rows(self, names: Sequence[int]) -> list[list[int]]:
        """Return rows of the page table."""
        rows = [self.pages.page_table[self.row[name][0]] for name in names]
        return [row[row != -1].tolist() for row in rows]


class TransformersSide:
    """transformers' `PagedAttentionCache`; rows as its fast path for decoding fills them."""

    caches: tuple[bool, ...] = (True, False)
    most_sequences = 1_000_000

    def __init__(self, blocks: int, sequences: int, longest: int, *, caching: bool) -> None:
        from pagedkv.bench import peer_transformers as peer  # noqa: PLC0415  (it takes seconds, and may not be there)
        from transformers.generation.continuous_batching.requests import RequestState  # noqa: PLC0415

        self.make_state, self.everything = RequestState, peer.ALL
        self.cache = peer.make_transformers_manager(blocks, BLOCK_SIZE, allow_block_sharing=caching)
        self.caching = caching
        self.table = torch.zeros((1, sequences, blocks_needed(longest, BLOCK_SIZE) + 1), dtype=torch.int32)
        self.states: dict[int, Any] = {}
        self.hits: dict[int, int] = {}

    def prepare(self, name: int, ids: Int32Array) -> None:
        """Make a `RequestState`."""
        self.states[name] = self.make_state(str(name), ids.tolist())

    def admit(self, name: int) -> int:
        """Search the prefix, store the rest."""
        state = self.states[name]
        hit = self.cache.search_prefix_match(state.request_id, state.initial_tokens) if self.caching else 0
        state.position_offset, self.hits[name] = hit, hit
        new = len(state.initial_tokens) - hit
        while not self.cache.can_store_request_tokens(state, new):
            if not self.cache.evict_cached_blocks():
                raise MemoryError("no block is left")
        state.position_offset += new
        return hit

    def computed(self, name: int) -> None:
        """Mark what is complete."""
        if self.caching:
            state = self.states[name]
            full = (state.position_offset - self.hits[name]) // BLOCK_SIZE
            self.cache.mark_complete_blocks(state, {self.everything: full})

    def start_decoding(self, names: Sequence[int]) -> None:
        """Pick the states."""
        self.batch = [self.states[name] for name in names]

    def decode(self) -> None:
        """Store one more token of each, and fill its row."""
        for at, state in enumerate(self.batch):
            self.cache.can_store_request_tokens(state, 1)
            self.cache.fill_block_table(state.request_id, state.position_offset, 1, self.table[:, at])
            state.position_offset += 1

    def leave(self, name: int) -> None:
        """Free its blocks."""
        self.cache.free_blocks(self.states.pop(name).request_id)

    def rows(self, names: Sequence[int]) -> list[list[int]]:
        """Return the block tables."""
        tables = self.cache.cache_allocators[self.everything].block_table
        return [list(tables[str(name)]) for name in names]

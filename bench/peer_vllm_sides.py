"""vLLM's KVCacheManager and nano-vllm's BlockManager as sides of `peer_speeds`.

Each does what its scheduler does with its manager, and what its worker does with the blocks that came of it. Outside of
what is timed: making the request's object, and copying token ids into it. Hashing a prompt is inside, wherever the
engine does it: without its hashes no prefix is found.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from pagedkv.bench.peer_sides import BLOCK_SIZE
from pagedkv.impl.arrays import Int32Array
from pagedkv.spec.arithmetic import blocks_needed

SAMPLED = 7  # the token of every step: contents differ by their prompts


class VllmSide:
    """`KVCacheManager`; rows in an int32 array, to which the ids of new blocks are appended, as its worker has them."""

    caches: tuple[bool, ...] = (True, False)
    most_sequences = 1_000_000

    def __init__(self, blocks: int, sequences: int, longest: int, *, caching: bool) -> None:
        from pagedkv.bench.peer_engines import make_vllm_manager, make_vllm_request, vllm  # noqa: PLC0415  (a peer)

        self.make_request, self.caching = make_vllm_request, caching
        self.manager = make_vllm_manager(blocks, BLOCK_SIZE, caching)
        self.hasher = vllm().utils.get_request_block_hasher(BLOCK_SIZE, vllm().hashing.sha256)
        self.table = np.zeros((sequences, blocks_needed(longest, BLOCK_SIZE)), np.int32)
        self.filled = np.zeros(sequences, np.int32)
        self.free = list(range(sequences))
        self.row: dict[int, int] = {}
        self.requests: dict[int, Any] = {}

    def prepare(self, name: int, ids: Int32Array) -> None:
        """Make a Request that has no hashes yet."""
        self.requests[name] = request = self.make_request(name, ids.tolist(), BLOCK_SIZE)
        request.block_hashes.clear()

    def admit(self, name: int) -> int:
        """Hash the prompt, look it up, allocate slots, and add the row."""
        request = self.requests[name]
        if self.caching:
            request.update_block_hashes()
        found, hit, _ = self.manager.get_computed_blocks(request)
        new = request.num_tokens - hit
        if self.manager.allocate_slots(request, new, hit, found) is None:
            raise MemoryError("no block is left")
        request.num_computed_tokens = request.num_tokens
        row = self.row[name] = self.free.pop()
        self.filled[row] = 0
        self._append(row, self.manager.get_block_ids(request.request_id)[0])
        return int(hit)

    def _append(self, row: int, blocks: list[int]) -> None:
        start = self.filled[row]
        self.filled[row] += len(blocks)
        self.table[row, start : start + len(blocks)] = blocks

    def computed(self, name: int) -> None:
        """Nothing: it is cached since it was allocated."""

    def start_decoding(self, names: Sequence[int]) -> None:
        """Append the first token that was sampled."""
        self.batch = [(self.requests[name], self.row[name]) for name in names]
        for request, _ in self.batch:
            if not self.caching:
                request._block_hasher = None  # noqa: SLF001  (as the engine makes them with caching off)
            request.append_output_token_ids(SAMPLED)

    def decode(self) -> None:
        """Allocate a slot for each, append new blocks to its row, then its output."""
        allocate = self.manager.allocate_slots
        for request, row in self.batch:
            new = allocate(request, 1)
            request.num_computed_tokens += 1
            if blocks := new.get_block_ids(allow_none=True):
                self._append(row, blocks[0])
        for request, _ in self.batch:
            request.append_output_token_ids(SAMPLED)

    def leave(self, name: int) -> None:
        """Free it."""
        self.manager.free(self.requests.pop(name))
        self.free.append(self.row.pop(name))

    def rows(self, names: Sequence[int]) -> list[list[int]]:
        """Return the rows."""
        return [self.table[self.row[name], : self.filled[self.row[name]]].tolist() for name in names]


class NanoVllmSide:
    """`BlockManager`, asked as its scheduler does; rows made anew in each step, as its `prepare_block_tables` does."""

    caches: tuple[bool, ...] = (True,)
    most_sequences = 1_000_000

    def __init__(self, blocks: int, sequences: int, longest: int, *, caching: bool) -> None:  # noqa: ARG002  (always)
        from pagedkv.bench.peer_nano_vllm import make_nano_vllm_manager, sequence_class  # noqa: PLC0415  (a peer)

        self.manager = make_nano_vllm_manager(blocks, BLOCK_SIZE)
        self.make_sequence = sequence_class(BLOCK_SIZE)
        self.sequences: dict[int, Any] = {}

    def prepare(self, name: int, ids: Int32Array) -> None:
        """Make a Sequence."""
        self.sequences[name] = self.make_sequence(ids.tolist())

    def admit(self, name: int) -> int:
        """Look it up and allocate."""
        sequence = self.sequences[name]
        hits = self.manager.can_allocate(sequence)
        if hits < 0:
            raise MemoryError("no block is left")
        self.manager.allocate(sequence, hits)
        sequence.num_scheduled_tokens = sequence.num_tokens - sequence.num_cached_tokens
        return int(sequence.num_cached_tokens)

    def computed(self, name: int) -> None:
        """Hash what is full."""
        self._computed(self.sequences[name])

    def _computed(self, sequence: Any) -> None:
        self.manager.hash_blocks(sequence)
        sequence.num_cached_tokens += sequence.num_scheduled_tokens
        sequence.num_scheduled_tokens = 0

    def start_decoding(self, names: Sequence[int]) -> None:
        """Append the first token that was sampled."""
        self.batch = [self.sequences[name] for name in names]
        for sequence in self.batch:
            sequence.append_token(SAMPLED)

    def decode(self) -> None:
        """Append a block where one is needed, make the rows, hash what is full, append the token."""
        manager = self.manager
        for sequence in self.batch:
            if not manager.can_append(sequence):
                raise MemoryError("no block is left")
            sequence.num_scheduled_tokens = 1
            manager.may_append(sequence)
        self.table = nano_vllm_rows(self.batch)
        for sequence in self.batch:
            self._computed(sequence)
            sequence.append_token(SAMPLED)

    def leave(self, name: int) -> None:
        """Deallocate it."""
        self.manager.deallocate(self.sequences.pop(name))

    def rows(self, names: Sequence[int]) -> list[list[int]]:
        """Return the block tables."""
        return [[*self.sequences[name].block_table] for name in names]


def nano_vllm_rows(batch: Sequence[Any]) -> torch.Tensor:
    """Return the rows of a batch, padded with -1, as nano-vllm's model runner makes them in each step."""
    longest = max(len(sequence.block_table) for sequence in batch)
    rows = [sequence.block_table + [-1] * (longest - len(sequence.block_table)) for sequence in batch]
    return torch.tensor(rows, dtype=torch.int32)

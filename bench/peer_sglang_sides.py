"""SGLang's radix cache with its paged allocator, and mini-sglang's CacheManager, as sides of `peer_speeds`.

Each does what its scheduler does with its manager, on CPU tensors; on a GPU some of it is the device's work. The row is
their own: a slot for each token. What their attention makes of it in each step is not in it, since on a GPU a kernel
does that. With a prefix cache each sampled token is appended to the ids that the cache is shown when the request ends,
as their schedulers do in any case. Outside of what is timed: making the request's object, and copying ids into it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from pagedkv.bench.peer_host import host_only
from pagedkv.bench.peer_sides import BLOCK_SIZE
from pagedkv.bench.peer_vllm_sides import SAMPLED
from pagedkv.impl.arrays import Int32Array
from torch import Tensor, tensor


class SglangSide:
    """`RadixCache`, `PagedTokenToKVPoolAllocator` and `ReqToTokenPool`, in the order of SGLang's scheduler."""

    caches: tuple[bool, ...] = (True, False)
    most_sequences = 1_000_000

    def __init__(self, blocks: int, sequences: int, longest: int, *, caching: bool) -> None:
        from pagedkv.bench import peer_engines as engines  # noqa: PLC0415  (a peer)

        self.make_request, engine, self.caching = engines.make_sglang_request, engines.sglang(), caching
        self.key, self.match, self.evict = engine.radix.RadixKey, engine.radix.MatchPrefixParams, engine.common
        self.tree = engines.make_sglang_manager(blocks, BLOCK_SIZE, caching, sequences + 1, longest)
        self.pages, self.pool = self.tree.token_to_kv_pool_allocator, self.tree.req_to_token_pool
        self.requests: dict[int, Any] = {}

    def prepare(self, name: int, ids: Int32Array) -> None:
        """Make what the cache looks at of a Req."""
        self.requests[name] = self.make_request(name, ids.tolist())

    def admit(self, name: int) -> int:
        """Match, lock, evict what is in the way, allocate the rest, write the row (`alloc_for_extend`)."""
        request, tree = self.requests[name], self.tree
        length = len(request.origin_input_ids)
        key = self.key(request.origin_input_ids, limit=length - 1, cache_salt=None)
        request.last_node = tree.match_prefix(self.match(key=key)).last_device_node
        request.lock = tree.lock(request.last_node)
        found = tree.path_device_indices(request.last_node)
        hit = len(found)
        self.evict.evict_from_tree_cache(tree, length - hit + BLOCK_SIZE)
        old, new, last = tensor([hit]), tensor([length]), tensor([int(found[-1]) if hit else -1])
        slots = self.pages.alloc_extend(old, old, new, new, last, length - hit)
        if slots is None:
            raise MemoryError("no block is left")
        (row,) = self.pool.alloc([request])
        self.pool.write((row, slice(hit)), found)
        self.pool.write((row, slice(hit, length)), slots)
        request.kv.cache_protected_len, request.kv.kv_allocated_len = hit, length
        return hit

    def computed(self, name: int) -> None:
        """Checkpoint the prompt."""
        request = self.requests[name]
        self.tree.checkpoint(request, up_to=len(request.origin_input_ids))

    def start_decoding(self, names: Sequence[int]) -> None:
        """Have rows and lengths as tensors, as its ScheduleBatch has them."""
        self.batch = [self.requests[name] for name in names]
        self.rows_of = tensor([request.kv.req_pool_idx for request in self.batch])
        self.lengths = tensor([request.kv.kv_allocated_len for request in self.batch])

    def decode(self) -> None:
        """Allocate a slot for each and write it into its row (`alloc_for_decode`); append its output."""
        pool, lengths = self.pool, self.lengths
        last = pool.req_to_token[self.rows_of, lengths - 1].to(torch.int64)
        self.evict.evict_from_tree_cache(self.tree, len(lengths) * BLOCK_SIZE)
        after = lengths + 1
        slots = self.pages.alloc_decode(after, after, last)
        if slots is None:
            raise MemoryError("no block is left")
        pool.write((self.rows_of, lengths), slots.to(torch.int32))
        for request in self.batch:
            request.kv.kv_allocated_len += 1
            request.kv.kv_committed_len += 1
            if self.caching:
                request.full_untruncated_fill_ids.append(SAMPLED)
        self.lengths = after

    def leave(self, name: int) -> None:
        """Free what the tree has not taken, unlock, give the row back."""
        request = self.requests.pop(name)
        self.tree.free_kv_row(request.kv, [(request.kv.cache_protected_len, request.kv.kv_allocated_len)])
        self.tree.unlock(request.lock)
        self.pool.free(request)

    def rows(self, names: Sequence[int]) -> list[list[int]]:
        """Return the pages of the rows."""
        found = [self.requests[name].kv for name in names]
        return [_pages(self.pool.req_to_token[kv.req_pool_idx, : kv.kv_allocated_len]) for kv in found]


class MiniSglangSide:
    """`CacheManager` and `TableManager`; prompts come in through the scheduler's `PrefillAdder`."""

    caches: tuple[bool, ...] = (True, False)
    most_sequences = 1_000_000

    def __init__(self, blocks: int, sequences: int, longest: int, *, caching: bool) -> None:
        from pagedkv.bench import peer_mini_sglang as peer  # noqa: PLC0415  (a peer)

        self.peer, self.caching, self.sampled = peer, caching, tensor([SAMPLED], dtype=torch.int32)
        kind = "radix" if caching else "naive"
        self.cache, self.tables, *_ = peer.make_mini_sglang_managers(blocks, BLOCK_SIZE, sequences, kind, longest)
        self.params = peer.core.SamplingParams(max_tokens=0)
        self.pending: dict[int, Any] = {}
        self.requests: dict[int, Any] = {}

    def prepare(self, name: int, ids: Int32Array) -> None:
        """Make a PendingReq."""
        self.pending[name] = self.peer.prefill.PendingReq(name, torch.from_numpy(ids), self.params)

    def admit(self, name: int) -> int:
        """Match, lock, write what was found into the row; allocate the rest."""
        pending = self.pending.pop(name)
        with host_only():
            request = self.peer.prefill.PrefillAdder(pending.input_len, 0, self.cache, self.tables).try_add_one(pending)
            if request is None:
                raise MemoryError("no block is left")
            self.cache.allocate_paged([request])
        self.requests[name] = request
        return int(request.cached_len)

    def computed(self, name: int) -> None:
        """Insert the prompt into the tree."""
        request = self.requests[name]
        request.complete_one()
        self.cache.cache_req(request, finished=False)

    def start_decoding(self, names: Sequence[int]) -> None:
        """Pick the requests."""
        self.batch = [self.requests[name] for name in names]

    def decode(self) -> None:
        """Allocate pages where one is needed, count the step as computed, append its output."""
        with host_only():
            self.cache.allocate_paged(self.batch)
        for request in self.batch:
            request.complete_one()
            if self.caching:
                request.append_host(self.sampled)

    def leave(self, name: int) -> None:
        """Insert what was computed, and free the rest with the row."""
        request = self.requests.pop(name)
        if request.cached_len < len(request.input_ids):  # never computed: its pages all count
            request.cached_len = request.device_len
        self.tables.free(request.table_idx)
        self.cache.cache_req(request, finished=True)

    def rows(self, names: Sequence[int]) -> list[list[int]]:
        """Return the pages of the rows."""
        found = [self.requests[name] for name in names]
        return [_pages(self.cache.page_table[each.table_idx, : each.cached_len]) for each in found]


def _pages(slots: Tensor) -> list[int]:
    return [slot // BLOCK_SIZE for slot in slots[::BLOCK_SIZE].tolist()]

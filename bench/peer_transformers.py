"""transformers' `PagedAttentionCache` under the drivers: its allocator, prefix sharing and forks.

One layer of full attention, of a size at which a sector is a block. A sequence is a `RequestState`, as long as it has
room for. Where there is none, all blocks kept for later are let go and it is tried again, as its batch processor does
(`evict_cached_blocks`). What a step has filled is marked when the step is done (`mark_complete_blocks`).

A fork shares full blocks and copies the last one at once, on the stream that computes. In this protocol a copy comes
with a launch: here with the child's first, and its source is held until then (`ledger.acquire`). What the parent writes
there meanwhile lies behind the copy's extent.
"""

from collections.abc import Collection, Sequence

import torch
from pagedkv.bench.peer_texts import Text, TextManager
from pagedkv.spec.manager import Block, Config, Copy, Feature, Name, Reason, Refused, Rows
from transformers import ContinuousBatchingConfig, LlamaConfig
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.generation.continuous_batching.distributed import DistributedHelper
from transformers.generation.continuous_batching.requests import RequestState

ALL = "full_attention"
MODEL = {"num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 64, "hidden_size": 64}


def make_transformers_manager(blocks: int, block_size: int, **options: bool) -> PagedAttentionCache:
    """Return transformers' own cache of so many blocks, on the host; the option is `allow_block_sharing`."""
    sizes = {"page_size": block_size, "num_blocks": blocks, "max_batch_tokens": 8192, "max_blocks_per_request": 0}
    config = ContinuousBatchingConfig(max_memory_percent=1.0, **sizes, **options)
    return PagedAttentionCache(LlamaConfig(**MODEL), config, "cpu", DistributedHelper(None, None), torch.float16)


class TransformersManager(TextManager):
    """`PagedAttentionCache` as a `Manager`."""

    first_block = 2  # two sectors are for padding
    not_offered = frozenset({Feature.SALT, Feature.BATCHES})

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.cache = make_transformers_manager(config.blocks, config.block_size)
        self.allocator = self.cache.cache_allocators[ALL]
        self.requests: dict[Name, RequestState] = {}
        self.copies: dict[Name, Copy] = {}  # of forks that were not launched yet

    def begin(self, name: Name, ids: list[int]) -> Sequence[Block]:
        """Acquire the blocks that are found, and allocate the rest."""
        request = RequestState(str(name), ids)
        request.position_offset = hit = self.cache.search_prefix_match(str(name), ids)
        self.own_calls += [f"r{name} = RequestState('{name}', {ids})", f"cache.search_prefix_match('{name}', {ids})"]
        try:
            self._store(name, request, len(ids) - hit)
        except Refused:
            self.cache.free_blocks(str(name))
            raise
        self.requests[name] = request
        return tuple(self.allocator.block_table[str(name)][: hit // self.config.block_size])

    def extend(self, rows: Rows) -> None:
        """Allocate more blocks to a request."""
        for name, count in rows:
            self._store(name, self.requests[name], count)
            self.texts[name].ids += self.make_up(count)

    def fork(self, parent: Name, child: Name) -> list[Copy]:
        """Share the full blocks of a request with another, and have the last one copied."""
        pairs: tuple[list[Block], list[Block]] = ([], [])
        if not self.cache.prepare_fork_request(self.requests[parent], [str(child)], {ALL: pairs}):
            raise Refused(Reason.NO_SPACE)
        self.own_calls.append(f"cache.prepare_fork_request(r{parent}, ['{child}'], pairs)  # {pairs}")
        self.requests[child], self.texts[child] = self.requests[parent].fork(str(child)), self.texts[parent].copy()
        extent = self.requests[parent].current_len() % self.config.block_size
        for source, target in zip(*pairs, strict=True):
            pending = self.copies.get(parent)  # the parent has not been filled itself
            self.copies[child] = Copy(child, pending.source if pending else source, target, extent)
            self.allocator.ledger.acquire(self.copies[child].source)
        return [self.copies[child]] if child in self.copies else []

    def launch(self, rows: Rows, stream: int) -> None:
        """Let the sources of copies go that come with this launch."""
        super().launch(rows, stream)
        for name, _ in rows:
            self._let_source_go(name)

    def settle(self, name: Name, text: Text, length: int) -> None:
        """Mark the blocks that are filled."""
        self.requests[name].initial_tokens = text.ids
        filled = self.allocator.block_table[str(name)][: length // self.config.block_size]
        count = sum(block not in self.allocator.ledger.block_to_hash for block in filled)
        self.own_calls.append(f"cache.mark_complete_blocks(r{name}, {{'{ALL}': {count}}})  # {text.ids}")
        self.cache.mark_complete_blocks(self.requests[name], {ALL: count})

    def release(self, name: Name) -> None:
        """Free a request's blocks."""
        self._let_source_go(name)
        self.own_calls.append(f"cache.free_blocks('{name}')")
        self.cache.free_blocks(str(name))
        del self.requests[name], self.texts[name]

    def block_table(self, name: Name) -> Sequence[Block]:
        """Return a request's blocks."""
        return tuple(self.allocator.block_table[str(name)])

    def free_blocks(self) -> Collection[Block]:
        """Return the free blocks, those of free sectors included."""
        free = self.cache.pool._free_blocks[0]  # noqa: SLF001  (there is no other word for it)
        return [*self.cache.pool.free_sectors, *(block for tree in free.trees.values() for block in tree)]

    def cached_blocks(self) -> Collection[Block]:
        """Return the blocks that are kept for later."""
        return tuple(self.allocator.ledger.cached_blocks)

    def _store(self, name: Name, request: RequestState, count: int) -> None:
        self.own_calls.append(f"cache.can_store_request_tokens(r{name}, {count})")
        if not self.cache.can_store_request_tokens(request, count):
            self.own_calls += ["cache.evict_cached_blocks()", self.own_calls[-1]]
            self.cache.evict_cached_blocks()
            if not self.cache.can_store_request_tokens(request, count):
                raise Refused(Reason.NO_SPACE)
        request.position_offset += count

    def _let_source_go(self, name: Name) -> None:
        copy = self.copies.pop(name, None)
        if copy and self.allocator.ledger.release(copy.source):
            self.cache.pool.free_blocks(0, [copy.source])

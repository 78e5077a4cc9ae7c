"""transformers' `PagedAttentionCache` under the drivers; a fork's copy keeps its source until it is launched.

Where there is no room, all blocks kept for later are let go, as its scheduler does."""

from collections.abc import Collection, Sequence

import torch
from pagedkv.bench.peer_texts import Text, TextManager
from pagedkv.spec.manager import Block, Config, Copy, Feature, Name, Reason, Refused, Rows
from transformers import ContinuousBatchingConfig, LlamaConfig
from transformers.generation.continuous_batching.cache import DistributedHelper, PagedAttentionCache, RequestState

# ruff: noqa: D102, D209, SLF001  (what each method is for is said by the protocol; the pool has no other word for its blocks)
ALL = "full_attention"
MODEL = LlamaConfig(num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1, head_dim=64, hidden_size=64)


def make_transformers_manager(blocks: int, block_size: int, **options: bool) -> PagedAttentionCache:
    """Return transformers' own cache of so many blocks, on the host; the option is `allow_block_sharing`."""
    sizes = {"page_size": block_size, "num_blocks": blocks, "max_batch_tokens": 8192, "max_blocks_per_request": 0}
    config = ContinuousBatchingConfig(max_memory_percent=1.0, **sizes, **options)
    return PagedAttentionCache(MODEL, config, "cpu", DistributedHelper(None, None), torch.float16)


class TransformersManager(TextManager):
    """`PagedAttentionCache` as a `Manager`."""

    first_block = 2  # two sectors are for padding
    not_offered = frozenset({Feature.SALT, Feature.BATCHES})

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.cache = make_transformers_manager(config.blocks, config.block_size)
        self.allocator = self.cache.cache_allocators[ALL]
        self.requests, self.copies = dict[Name, RequestState](), dict[Name, Copy]()  # copies of forks not launched yet

    def begin(self, name: Name, ids: list[int]) -> Sequence[Block]:
        request = self.requests[name] = RequestState(str(name), ids)
        self.own_calls += [f"r{name} = RequestState('{name}', {ids})", f"cache.search_prefix_match('{name}', {ids})"]
        request.position_offset = hit = self.cache.search_prefix_match(str(name), ids)
        self._store(name, len(ids) - hit)
        return self.block_table(name)[: hit // self.config.block_size]

    def extend(self, rows: Rows) -> None:
        for name, count in rows:
            self._store(name, count)
            self.texts[name].ids += self.make_up(count)

    def fork(self, parent: Name, child: Name) -> list[Copy]:
        pairs = {ALL: (list[Block](), list[Block]())}
        self.own_calls.append(f"cache.prepare_fork_request(r{parent}, ['{child}'], pairs)")
        while not self.cache.prepare_fork_request(self.requests[parent], [str(child)], pairs):
            if not self.cache.evict_cached_blocks():
                raise Refused(Reason.NO_SPACE)
        self.requests[child], self.texts[child] = self.requests[parent].fork(str(child)), self.texts[parent].copy()
        for own, target in zip(*pairs[ALL], strict=True):
            source = self.copies[parent].source if parent in self.copies else own  # it may not have been filled itself
            self.copies[child] = Copy(child, source, target, len(self.texts[parent].ids) % self.config.block_size)
            self.allocator.ledger.acquire(source)
        return [copy for copy in self.copies.values() if copy.sequence == child]

    def launch(self, rows: Rows, stream: int) -> None:
        super().launch(rows, stream)
        self._let_sources_go({name for name, _ in rows})

    def settle(self, name: Name, text: Text, length: int) -> None:
        self.requests[name].initial_tokens, hashed = text.ids, self.allocator.ledger.block_to_hash
        count = sum(block not in hashed for block in self.block_table(name)[: length // self.config.block_size])
        self.own_calls.append(f"cache.mark_complete_blocks(r{name}, {{'{ALL}': {count}}})  # {text.ids}")
        self.cache.mark_complete_blocks(self.requests[name], {ALL: count})

    def release(self, name: Name) -> None:
        self._let_sources_go({name})
        self.own_calls.append(f"cache.free_blocks('{name}')")
        self.cache.free_blocks(str(name))
        del self.requests[name], self.texts[name]

    def block_table(self, name: Name) -> Sequence[Block]:
        return tuple(self.allocator.block_table[str(name)])

    def free_blocks(self) -> Collection[Block]:
        trees = self.cache.pool._free_blocks[0].trees
        return [*self.cache.pool.free_sectors, *(block for tree in trees.values() for block in tree)]

    def cached_blocks(self) -> Collection[Block]:
        return tuple(self.allocator.ledger.cached_blocks)

    def _store(self, name: Name, count: int) -> None:
        self.own_calls.append(f"cache.can_store_request_tokens(r{name}, {count})")
        while not self.cache.can_store_request_tokens(self.requests[name], count):
            self.own_calls += ["cache.evict_cached_blocks()", self.own_calls[-1]]
            if not self.cache.evict_cached_blocks():
                self.cache.free_blocks(str(name) if name not in self.texts else "")  # what was found for a new one
                raise Refused(Reason.NO_SPACE)
        self.requests[name].position_offset += count

    def _let_sources_go(self, names: set[Name]) -> None:
        for source in [self.copies.pop(name).source for name in names & {*self.copies}]:
            self.cache.pool.free_blocks(0, [source] * self.allocator.ledger.release(source))

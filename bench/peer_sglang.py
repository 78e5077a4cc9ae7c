"""SGLang's radix cache, paged allocator and request rows behind the protocol, called in the order of its scheduler.

A prompt is matched, its node locked, what is missing is evicted and allocated. When a step of a prompt is known to be
done it is checkpointed, which may point the row at pages that the tree has already. A request that ends is checkpointed
once more; one that leaves with a step in flight (a retraction) is not. A prompt must have ids: what nobody tells is
made up. `clear` is left out: SGLang's waits until no request runs. Pages of one token have another allocator there.
"""

from array import array
from collections.abc import Collection, Iterator, Sequence
from itertools import count as count_from
from types import SimpleNamespace
from typing import Any

from pagedkv.bench.peer_imports import import_peer
from pagedkv.spec.manager import Config, Manager, Name, Outcome, Reason, Refused, Rows, Tokens
from pagedkv.spec.outcome import Telling

MODULES = """sglang.srt.mem_cache.allocator sglang.srt.mem_cache.memory_pool sglang.srt.mem_cache.radix_cache
    sglang.srt.mem_cache.cache_init_params sglang.srt.mem_cache.common sglang.srt.managers.schedule_batch""".split()
ABSENT = """aiohttp compressed_tensors gguf IPython msgspec openai partial_json_parser pybase64 requests sentencepiece
    starlette torchvision tvm_ffi zmq""".split()
(allocators, pools, radix, parameters, common, batches), STOOD_IN = import_peer(
    MODULES, ABSENT, "pip install --no-deps sglang==0.5.23", {"dill": "pickle"}, ("torch", "transformers")
)
tensor = allocators.paged.torch.tensor


def make_sglang_manager(blocks: int, block_size: int, caching: bool = True, requests: int = 64) -> Any:  # noqa: FBT001, FBT002
    """Return a RadixCache over a PagedTokenToKVPoolAllocator of so many pages and rows for `requests`, on the CPU."""
    allocator = allocators.PagedTokenToKVPoolAllocator(
        blocks * block_size, block_size, None, "cpu", None, need_sort=False
    )
    rows = pools.ReqToTokenPool(requests, (blocks + 1) * block_size, "cpu", enable_memory_saver=False)
    return radix.RadixCache(parameters.CacheInitParams(not caching, rows, allocator, block_size))


def make_sglang_request(name: Name, ids: Sequence[int], salt: int = 0) -> Any:
    """Return what the cache looks at of a Req."""
    return SimpleNamespace(
        rid=name, kv=batches.ReqKvInfo(), origin_input_ids=array("q", ids), full_untruncated_fill_ids=array("q", ids),
        cache_salt=str(salt) if salt else None, extra_key=None, priority=0,
    )  # fmt: skip


class SglangManager(Manager):
    """`RadixCache` over a `PagedTokenToKVPoolAllocator`."""

    shares_prefixes = True
    block_sizes = (2, 3, 4)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.tree = make_sglang_manager(config.blocks, config.block_size, self.shares_prefixes)
        self.allocator, self.rows = self.tree.token_to_kv_pool_allocator, self.tree.req_to_token_pool
        self.requests: dict[Name, Any] = {}
        self.steps: dict[int, list[tuple[Any, int]]] = {}  # in flight: of each request the end of what it computes
        self.issued, self.unused = count_from(1), count_from(10**6)
        self.own_calls: list[str] = []

    def add(self, name: Name, count: int) -> Outcome:
        """Add a request with ids that nobody else has."""
        return self.add_prompt(name, count, 0)

    def add_prompt(self, name: Name, tokens: int | Tokens, salt: int) -> Outcome:
        """Match a prompt, lock what was found, allocate the rest, write the row."""
        ids = [next(self.unused) for _ in range(tokens)] if isinstance(tokens, int) else [*tokens]
        request = make_sglang_request(name, ids, salt)
        key = radix.RadixKey(request.origin_input_ids, limit=len(ids) - 1, cache_salt=request.cache_salt)
        request.last_node = self.tree.match_prefix(radix.MatchPrefixParams(key=key)).last_device_node
        request.lock = self.tree.lock(request.last_node)
        prefix = self.tree.path_device_indices(request.last_node)
        self.own_calls.append(f"lock(match_prefix({ids}, limit={len(ids) - 1}))  # {prefix.tolist()}")
        try:
            slots = self._allocate([(len(prefix), len(ids), int(prefix[-1]) if len(prefix) else -1)])
        except Refused:
            self.tree.unlock(request.lock)
            raise
        (row,) = self.rows.alloc([request])
        self.rows.write((row, slice(len(prefix))), prefix)
        self.rows.write((row, slice(len(prefix), len(ids))), slots)
        request.kv.cache_protected_len = request.launched = len(prefix)
        request.kv.kv_allocated_len, request.told = len(ids), not isinstance(tokens, int)
        self.requests[name] = request
        return Outcome(hits=(prefix[:: self.config.block_size] // self.config.block_size).tolist())

    def _allocate(self, parts: Sequence[tuple[int, int, int]]) -> Any:
        """Evict, then allocate from one length to another, behind the last slot of each; one token as a decode."""
        before, after, last = (tensor(column) for column in zip(*parts, strict=True))
        count, size = int((after - before).sum()), self.config.block_size
        common.evict_from_tree_cache(self.tree, count + len(parts) * size)
        if bool((after - before == 1).all()) and int(before.min()) > 0:
            self.own_calls.append(f"alloc_decode({after.tolist()}, last_loc={last.tolist()})")
            slots = self.allocator.alloc_decode(after, after, last)
        else:
            self.own_calls.append(f"alloc_extend({before.tolist()}, {after.tolist()}, last_loc={last.tolist()})")
            slots = self.allocator.alloc_extend(before, before, after, after, last, count)
        if slots is None:
            raise Refused(Reason.NO_SPACE)
        return slots

    def extend(self, rows: Rows) -> None:
        """Allocate for a batch, all or nothing."""
        batch = [(self.requests[name].kv, count) for name, count in rows]
        table = self.rows.req_to_token
        parts = [(kv.kv_allocated_len, kv.kv_allocated_len + n, int(table[kv.req_pool_idx, kv.kv_allocated_len - 1])) for kv, n in batch]
        slots = self._allocate(parts)
        for (kv, count), (before, after, _) in zip(batch, parts, strict=True):
            self.rows.write((kv.req_pool_idx, slice(before, after)), slots[:count])
            slots, kv.kv_allocated_len = slots[count:], after

    def publish(self, rows: Telling, retention: int) -> None:  # noqa: ARG002  (SGLang retains by use and priority)
        """Append output tokens: they are inserted when the request ends."""
        for name, tokens in rows:
            if self.requests[name].told:
                self.requests[name].full_untruncated_fill_ids.extend(tokens)

    def launch(self, rows: Rows, stream: int) -> None:  # noqa: ARG002  (there is one)
        """Note what a step computes."""
        step = self.steps[next(self.issued)] = []
        for name, count in rows:
            request = self.requests[name]
            request.launched += count
            step.append((request, request.launched))

    def retire(self, launch: int) -> None:
        """Checkpoint the prompts that a step has computed a part of."""
        for number in [each for each in self.steps if each <= launch]:
            for request, end in self.steps.pop(number):
                if self.requests.get(request.rid) is request and end <= len(request.origin_input_ids):
                    self._checkpoint(request, end)

    def _checkpoint(self, request: Any, up_to: int) -> None:
        self.own_calls.append(f"checkpoint({request.rid}, up_to={up_to})")
        self.tree.checkpoint(request, up_to=up_to)

    def release(self, name: Name) -> None:
        """Release a request as `release_kv_cache` does."""
        request = self.requests.pop(name)
        if not any(each is request for step in self.steps.values() for each, _ in step):
            self._checkpoint(request, min(request.launched, len(request.full_untruncated_fill_ids)))
        kv = request.kv
        self.own_calls.append(f"free_kv_row({name}, [({kv.cache_protected_len}, {kv.kv_allocated_len})]); unlock(it)")
        self.tree.free_kv_row(kv, [(kv.cache_protected_len, kv.kv_allocated_len)])
        self.tree.unlock(request.lock)
        self.rows.free(request)

    def block_table(self, name: Name) -> Sequence[int]:
        """Return its pages."""
        kv, size = self.requests[name].kv, self.config.block_size
        return (self.rows.req_to_token[kv.req_pool_idx, : kv.kv_allocated_len : size] // size).tolist()

    def free_blocks(self) -> Collection[int]:
        """Return the free pages."""
        return self.allocator.get_all_free_pages().tolist()

    def cached_blocks(self) -> Collection[int]:
        """Return the pages of nodes that nobody locks."""
        nodes = [*self.tree.root_node.children.values()]
        for node in nodes:
            nodes += node.children.values()
        size = self.config.block_size
        return [slot // size for node in nodes if not node.lock_ref for slot in node.value[::size].tolist()]

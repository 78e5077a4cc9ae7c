"""mini-sglang's `CacheManager` under the drivers, with its radix tree and `TableManager`, asked as its scheduler does.

A prompt comes in through its `PrefillAdder`, which looks up, locks and fills the table; pages come from
`allocate_paged`, for longer sequences within `available_size`, since its scheduler has reserved them by then.
`cache_req` puts what was computed into the tree, and all of it when a sequence leaves. Its scheduler lets no request go
that has a page and no step for it, so that is not offered.
"""

from collections.abc import Collection, Sequence
from typing import Any

import torch
from pagedkv.bench.peer_host import host_only
from pagedkv.bench.peer_imports import import_peer
from pagedkv.bench.peer_texts import Text, TextManager
from pagedkv.spec.manager import Block, Config, Feature, Name, Reason, Refused, Rows

HOW = "put the folder python of a checkout of github.com/sgl-project/mini-sglang on PYTHONPATH"
ABSENT = ("zmq", "msgpack", "tvm_ffi", "flashinfer", "sgl_kernel", "modelscope", "accelerate")
PARTS = ("scheduler.scheduler", "scheduler.prefill", "core", "kernel", "message", "distributed")
(schedulers, prefill, core, kernel, messages, distributed), _ = import_peer(
    [f"minisgl.{part}" for part in PARTS], ABSENT, HOW
)


def _equal_keys(a: torch.Tensor, b: torch.Tensor) -> int:
    size = min(len(a), len(b))
    return next((at for at, (x, y) in enumerate(zip(a.tolist(), b.tolist(), strict=False)) if x != y), size)


kernel.fast_compare_key = _equal_keys  # its own is compiled from C++
distributed.set_tp_info(0, 1)  # its log wants to know


def make_mini_sglang_managers(blocks: int, block_size: int, requests: int, kind: str = "radix") -> tuple[Any, ...]:
    """Return mini-sglang's own managers of cache, tables, decoding and prefill; the kind may be "naive", too."""
    core._GLOBAL_CTX = core.Context(block_size)  # noqa: SLF001  (where the radix tree finds the page size)
    page_table = torch.zeros((requests, (blocks + 1) * block_size), dtype=torch.int32)
    caches = schedulers.CacheManager(blocks, block_size, page_table, kind)
    tables, decode = schedulers.TableManager(requests, page_table), schedulers.DecodeManager(block_size)
    return caches, tables, decode, prefill.PrefillManager(caches, tables, decode)


def pages_of(caches: Any, request: Any, length: int) -> tuple[Block, ...]:
    """Return the pages of a request's first positions, as the page table has them."""
    return tuple((caches.page_table[request.table_idx, : length : caches.page_size] // caches.page_size).tolist())


class MiniSglangManager(TextManager):
    """`CacheManager` as a `Manager`."""

    not_offered = frozenset({Feature.SALT, Feature.PARTIAL_STEPS})

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.cache, self.tables, *_ = make_mini_sglang_managers(config.blocks, config.block_size, config.blocks)
        self.requests: dict[Name, Any] = {}

    def begin(self, name: Name, ids: list[int]) -> Sequence[Block]:
        """Allocate a request."""
        tokens = torch.tensor(ids, dtype=torch.int32)
        with host_only():
            adder = prefill.PrefillAdder(len(ids), 0, self.cache, self.tables)
            self.own_calls.append(f"r{name} = adder.try_add_one(PendingReq({name}, torch.tensor({ids}), ...))")
            request = adder.try_add_one(prefill.PendingReq(name, tokens, core.SamplingParams(max_tokens=0)))
            if request is None:
                raise Refused(Reason.NO_SPACE)
            self.own_calls.append(f"cache.allocate_paged([r{name}])")
            self.cache.allocate_paged([request])
        self.requests[name] = request
        return pages_of(self.cache, request, request.cached_len)

    def extend(self, rows: Rows) -> None:
        """Take pages for the next positions of a batch."""
        size, batch = self.config.block_size, {name: self.requests[name] for name, _ in rows}
        ends = {name: batch[name].device_len + count for name, count in rows}
        pages = sum(blocks_needed(ends[name], size) - len(self.block_table(name)) for name in batch)
        if pages * size > self.cache.available_size:
            raise Refused(Reason.NO_SPACE)
        for name, count in rows:
            self.texts[name].ids += self.make_up(count)
            batch[name].cached_len, batch[name].device_len = batch[name].device_len, len(self.texts[name].ids)
        self.own_calls.append(f"cache.allocate_paged([{', '.join(f'r{name}' for name in batch)}])")
        with host_only():
            self.cache.allocate_paged([*batch.values()])

    def settle(self, name: Name, text: Text, length: int, *, finished: bool = False) -> None:
        """Put what was computed into the tree."""
        request = self.requests[name]
        request.input_ids, request.cached_len = torch.tensor(text.ids, dtype=torch.int32), length
        self.own_calls.append(f"cache.cache_req(r{name}, {finished=})  # of {length} tokens")
        self.cache.cache_req(request, finished=finished)

    def release(self, name: Name) -> None:
        """Give a request's place in the table back, and its pages to the tree or the free ones."""
        self.own_calls.append(f"tables.free(r{name}.table_idx)")
        self.tables.free(self.requests[name].table_idx)
        text = self.texts.pop(name)
        self.settle(name, text, len(text.ids), finished=True)
        del self.requests[name]

    def block_table(self, name: Name) -> Sequence[Block]:
        """Return a request's pages."""
        return pages_of(self.cache, self.requests[name], self.requests[name].device_len)

    def free_blocks(self) -> Collection[Block]:
        """Return the free pages."""
        return tuple((self.cache.free_slots // self.config.block_size).tolist())

    def cached_blocks(self) -> Collection[Block]:
        """Return the pages of the tree that nobody has locked."""
        nodes, pages = [*self.cache.prefix_cache.root_node.children.values()], []
        while nodes:
            node = nodes.pop()
            nodes += node.children.values()
            pages += [] if node.ref_count else (node.value // self.config.block_size).tolist()
        return set(pages)

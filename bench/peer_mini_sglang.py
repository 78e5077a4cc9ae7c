"""mini-sglang's `CacheManager` under the drivers, with its radix tree and `TableManager`, asked as its scheduler does.

Prompts come in through its `PrefillAdder`, pages from `allocate_paged`, within `available_size`, since its scheduler
has reserved them by then. `cache_req` puts what was computed into the tree, and all of it when a sequence leaves.
"""

from collections.abc import Collection, Sequence
from typing import Any

import torch
from pagedkv.bench.peer_host import common_length, host_only
from pagedkv.bench.peer_imports import import_peer
from pagedkv.bench.peer_texts import Text, TextManager
from pagedkv.spec.arithmetic import blocks_needed
from pagedkv.spec.manager import Block, Config, Feature, Name, Reason, Refused, Rows

# ruff: noqa: D102  (what each method is for is said by the protocol)
HOW = "put the folder python of a checkout of github.com/sgl-project/mini-sglang on PYTHONPATH"
ABSENT = ("zmq", "msgpack", "tvm_ffi", "flashinfer", "sgl_kernel", "modelscope", "accelerate")
PARTS = ("scheduler.scheduler", "scheduler.prefill", "core", "kernel", "message", "distributed")
PEER: Any = import_peer([f"minisgl.{part}" for part in PARTS], ABSENT, HOW).modules
schedulers, prefill, core, kernel, messages, distributed = PEER
kernel.fast_compare_key = common_length  # its own is compiled from C++
distributed.set_tp_info(0, 1)  # its log wants to know


def make_mini_sglang_managers(blocks: int, size: int, requests: int, kind: str = "radix", longest: int = 0) -> Any:
    """Return mini-sglang's own managers of cache, tables, decoding and prefill; the kind may be "naive", too."""
    core._GLOBAL_CTX = core.Context(size)  # noqa: SLF001  (where the radix tree finds the page size)
    page_table = torch.zeros((requests, longest or (blocks + 1) * size), dtype=torch.int32)
    caches = schedulers.CacheManager(blocks, size, page_table, kind)
    tables, decode = schedulers.TableManager(requests, page_table), schedulers.DecodeManager(size)
    return caches, tables, decode, prefill.PrefillManager(caches, tables, decode)


def pages_of(caches: Any, request: Any, length: int) -> tuple[Block, ...]:
    """Return the pages of a request's first positions, as the page table has them."""
    return tuple((caches.page_table[request.table_idx, : length : caches.page_size] // caches.page_size).tolist())


class MiniSglangManager(TextManager):
    """`CacheManager` as a `Manager`."""

    not_offered = frozenset({Feature.SALT, Feature.PARTIAL_STEPS})  # who has a page gets a step, by its scheduler

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.cache, self.tables, *_ = make_mini_sglang_managers(config.blocks, config.block_size, config.blocks)
        self.requests: dict[Name, Any] = {}

    def begin(self, name: Name, ids: list[int]) -> Sequence[Block]:
        pending = prefill.PendingReq(name, torch.tensor(ids, dtype=torch.int32), core.SamplingParams(max_tokens=0))
        self.own_calls += [
            f"r{name} = adder.try_add_one(PendingReq({name}, {ids}))",
            f"cache.allocate_paged([r{name}])",
        ]
        with host_only():
            request = prefill.PrefillAdder(len(ids), 0, self.cache, self.tables).try_add_one(pending)
            if request is None:
                raise Refused(Reason.NO_SPACE)
            self.cache.allocate_paged([request])
        self.requests[name] = request
        return pages_of(self.cache, request, request.cached_len)

    def extend(self, rows: Rows) -> None:
        size, ends = self.config.block_size, {name: len(self.texts[name].ids) + count for name, count in rows}
        pages = sum(blocks_needed(end, size) - len(self.block_table(name)) for name, end in ends.items())
        if pages * size > self.cache.available_size:
            raise Refused(Reason.NO_SPACE)
        for name, count in rows:
            request, self.texts[name].ids = self.requests[name], self.texts[name].ids + self.make_up(count)
            request.cached_len, request.device_len = request.device_len, ends[name]
        self.own_calls.append(f"cache.allocate_paged([{', '.join(f'r{name}' for name in ends)}])")
        with host_only():
            self.cache.allocate_paged([self.requests[name] for name in ends])

    def settle(self, name: Name, text: Text, length: int, *, finished: bool = False) -> None:
        request = self.requests[name]
        request.input_ids, request.cached_len = torch.tensor(text.ids, dtype=torch.int32), length
        self.own_calls.append(f"cache.cache_req(r{name}, {finished=})  # of {length} tokens")
        self.cache.cache_req(request, finished=finished)

    def release(self, name: Name) -> None:
        self.own_calls.append(f"tables.free(r{name}.table_idx)")
        self.tables.free(self.requests[name].table_idx)
        self.settle(name, self.texts[name], len(self.texts[name].ids), finished=True)
        del self.requests[name], self.texts[name]

    def block_table(self, name: Name) -> Sequence[Block]:
        return pages_of(self.cache, self.requests[name], self.requests[name].device_len)

    def free_blocks(self) -> Collection[Block]:
        return tuple((self.cache.free_slots // self.config.block_size).tolist())

    def cached_blocks(self) -> Collection[Block]:
        nodes = [*self.cache.prefix_cache.root_node.children.values()]
        for node in nodes:
            nodes += node.children.values()
        return {slot // self.config.block_size for node in nodes if not node.ref_count for slot in node.value.tolist()}

"""What SGLang's scheduler does with its radix cache, paged allocator and request rows, in its order, without the rest.

Its own functions for this (`alloc_for_extend`, `alloc_for_decode`, `release_kv_cache`) ask a configuration that is
there only while a server runs. Each method here makes the same calls of the same objects for a plain model: no sliding
window, nothing speculative, no host cache. A slot is a page times the page size, plus an offset.
"""

from collections.abc import Sequence
from typing import Any

from pagedkv.bench.peer_engines import make_sglang_manager, make_sglang_request, sglang
from torch import Tensor, tensor


class SglangCache:
    """A `RadixCache` with what is under it, and what is asked of them."""

    def __init__(self, blocks: int, block_size: int, *, caching: bool) -> None:
        self.tree = make_sglang_manager(blocks, block_size, caching)
        self.pages, self.rows = self.tree.token_to_kv_pool_allocator, self.tree.req_to_token_pool
        self.calls: list[str] = []

    def admit(self, name: int, ids: Sequence[int], salt: int) -> Any | None:
        """Match a prompt, lock what was found, allocate the rest, write the row; None, nothing done: no room."""
        request = make_sglang_request(name, ids, salt)
        key = sglang().radix.RadixKey(request.origin_input_ids, limit=len(ids) - 1, cache_salt=request.cache_salt)
        node = self.tree.match_prefix(sglang().radix.MatchPrefixParams(key=key)).last_device_node
        request.last_node, request.lock = node, self.tree.lock(node)
        hit = self.tree.path_device_indices(node)
        self.calls.append(f"lock(match_prefix({[*ids]}, limit={len(ids) - 1}))  # slots {hit.tolist()}")
        slots = self._allocate([len(hit)], [len(ids)], [int(hit[-1]) if len(hit) else -1])
        if slots is None:
            self.tree.unlock(request.lock)
            return None
        (row,) = self.rows.alloc([request])
        self.rows.write((row, slice(len(hit))), hit)
        self.rows.write((row, slice(len(hit), len(ids))), slots)
        request.kv.cache_protected_len, request.kv.kv_allocated_len = len(hit), len(ids)
        return request

    def grow(self, requests: Sequence[Any], counts: Sequence[int]) -> bool:
        """Allocate slots for more positions of each, all or nothing, and write them into the rows."""
        table, ends = self.rows.req_to_token, [request.kv.kv_allocated_len for request in requests]
        last = [int(table[each.kv.req_pool_idx, end - 1]) for each, end in zip(requests, ends, strict=True)]
        slots = self._allocate(ends, [end + count for end, count in zip(ends, counts, strict=True)], last)
        if slots is None:
            return False
        for request, end, count in zip(requests, ends, counts, strict=True):
            self.rows.write((request.kv.req_pool_idx, slice(end, end + count)), slots[:count])
            request.kv.kv_allocated_len += count
            slots = slots[count:]
        return True

    def _allocate(self, before: Sequence[int], after: Sequence[int], last: Sequence[int]) -> Tensor | None:
        """Evict what may be needed, then allocate from one length to another behind each last slot."""
        count, size = sum(after) - sum(before), self.tree.page_size
        sglang().common.evict_from_tree_cache(self.tree, count + (len(after) * size if size > 1 else 0))
        old, new, behind = tensor(before), tensor(after), tensor(last)
        slots: Tensor | None
        if size == 1:
            self.calls.append(f"alloc({count})")
            slots = self.pages.alloc(count)
        elif bool((new - old == 1).all()) and min(before) > 0:
            self.calls.append(f"alloc_decode({[*after]}, last_loc={[*last]})")
            slots = self.pages.alloc_decode(new, new, behind)
        else:
            self.calls.append(f"alloc_extend({[*before]}, {[*after]}, last_loc={[*last]})")
            slots = self.pages.alloc_extend(old, old, new, new, behind, count)
        return slots

    def checkpoint(self, request: Any, up_to: int) -> None:
        """Insert what has been computed into the tree; the row may then name pages that the tree had already."""
        self.calls.append(f"checkpoint({request.rid}, up_to={up_to})")
        self.tree.checkpoint(request, up_to=up_to)

    def release(self, request: Any) -> None:
        """Free what the tree has not taken, let go of what was locked, and give the row back."""
        rest = [(request.kv.cache_protected_len, request.kv.kv_allocated_len)]
        self.calls.append(f"free_kv_row({request.rid}, {rest}); unlock({request.rid})")
        self.tree.free_kv_row(request.kv, rest)
        self.tree.unlock(request.lock)
        self.rows.free(request)

    def pages_of(self, request: Any) -> list[int]:
        """Return the pages of a request's row."""
        slots = self.rows.req_to_token[request.kv.req_pool_idx, : request.kv.kv_allocated_len : self.tree.page_size]
        return [slot // self.tree.page_size for slot in slots.tolist()]

"""vLLM's KVCacheManager behind the protocol.

It shares a block once it is allocated, since one scheduler step allocates it and launches what writes it: no partial
steps and no chunks here, therefore. Each request is allocated on its own: no batch that is all or nothing. A prompt
must have ids, so what nobody tells is made up. `clear` is left out: vLLM's waits until no block is held.
"""

from collections.abc import Collection, Sequence
from itertools import count as count_from
from typing import Any

from pagedkv.bench.peer_engines import make_vllm_manager, make_vllm_request, vllm
from pagedkv.spec.manager import Config, Feature, Manager, Name, Outcome, Reason, Refused, Rows, Tokens
from pagedkv.spec.outcome import Telling

vllm()  # where it can't be had, this module can't be imported either


class VllmManager(Manager):
    """`KVCacheManager` with its prefix cache."""

    shares_prefixes = True
    not_offered = frozenset({Feature.BATCHES, Feature.CHUNKS, Feature.PARTIAL_STEPS})

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.cache = make_vllm_manager(config.blocks, config.block_size, self.shares_prefixes)
        self.requests: dict[Name, Any] = {}
        self.made_up: set[Name] = set()  # requests whose ids nobody told
        self.unused = count_from(10**6)
        self.own_calls: list[str] = []

    def add(self, name: Name, count: int) -> Outcome:
        """Add a request with ids that nobody else has."""
        return self.add_prompt(name, count, 0)

    def add_prompt(self, name: Name, tokens: int | Tokens, salt: int) -> Outcome:
        """Look a prompt up, then allocate the rest of it."""
        ids = [next(self.unused) for _ in range(tokens)] if isinstance(tokens, int) else [*tokens]
        request = make_vllm_request(name, ids, self.config.block_size, salt)
        found, computed, _ = self.cache.get_computed_blocks(request)
        self.own_calls.append(f"get_computed_blocks(Request('{name}', {ids}, cache_salt={request.cache_salt!r}))")
        self._allocate(request, len(ids) - computed, computed, found)
        self.requests[name] = request
        (self.made_up.add if isinstance(tokens, int) else self.made_up.discard)(name)
        return Outcome(hits=tuple(found.get_block_ids()[0]))

    def extend(self, rows: Rows) -> None:
        """Allocate for one request; the ids of what it computes next may not be known yet."""
        ((name, count),) = rows
        self._allocate(self.requests[name], count)

    def _allocate(self, request: Any, new: int, computed: int = 0, found: Any = None) -> None:
        self.own_calls.append(f"allocate_slots({request.request_id}, {new}, {computed})")
        if self.cache.allocate_slots(request, new, computed, found) is None:
            raise Refused(Reason.NO_SPACE)
        request.num_computed_tokens += new + computed  # as its scheduler does once it has scheduled them

    def publish(self, rows: Telling, retention: int) -> None:  # noqa: ARG002  (vLLM retains by use alone)
        """Append output tokens and cache what they fill, as is done when the output of a step arrives."""
        for request, tokens in [(self.requests[name], ids) for name, ids in rows if name not in self.made_up]:
            request.append_output_token_ids([*tokens])
            cached = min(request.num_computed_tokens, request.num_tokens)
            self.cache.cache_blocks(request, cached)
            self.own_calls.append(f"cache_blocks({request.request_id}, {cached})  # behind outputs {[*tokens]}")

    def release(self, name: Name) -> None:
        """Free a request."""
        self.own_calls.append(f"free({name})")
        self.cache.free(self.requests.pop(name))

    def block_table(self, name: Name) -> Sequence[int]:
        """Return its blocks."""
        return tuple(self.cache.get_block_ids(str(name))[0])

    def free_blocks(self) -> Collection[int]:
        """Return the blocks of the free queue without a hash."""
        return [block.block_id for block in self._queue() if block.block_hash is None]

    def cached_blocks(self) -> Collection[int]:
        """Return those with one."""
        return [block.block_id for block in self._queue() if block.block_hash is not None]

    def _queue(self) -> list[Any]:
        return list(self.cache.block_pool.free_block_queue.get_all_free_blocks())


class VllmManagerUncached(VllmManager):
    """`KVCacheManager` with caching off."""

    shares_prefixes = False

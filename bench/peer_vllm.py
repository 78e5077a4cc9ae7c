"""vLLM's KVCacheManager behind the protocol, from the protocol's text alone.

It shares a block once it is allocated, since one scheduler step allocates, launches and so writes it: no partial steps
and no chunks here, therefore. It must have ids of prompts, so what nobody tells is made up. Each request is allocated
on its own, which offers no batch that is all or nothing.
"""

from collections.abc import Collection, Sequence
from itertools import count as count_from
from typing import Any

from pagedkv.bench.peer_imports import import_peer
from pagedkv.spec.manager import Config, Feature, Manager, Name, Outcome, Reason, Refused, Rows, Tokens
from pagedkv.spec.outcome import Telling

ABSENT = [
    "aiohttp",
    "cachetools",
    "cbor2",
    "fastapi",
    "llguidance",
    "msgspec",
    "openai",
    "openai_harmony",
    "partial_json_parser",
    "prometheus_client",
    "pybase64",
    "requests",
    "urllib3",
    "uvloop",
    "xgrammar",
    "zmq",
]
MODULES = [
    "vllm.v1.core.kv_cache_manager",
    "vllm.v1.core.kv_cache_utils",
    "vllm.v1.kv_cache_interface",
    "vllm.v1.request",
    "vllm.sampling_params",
    "vllm.utils.hashing",
]
(managers, utils, interface, requests, sampling, hashing), STOOD_IN = import_peer(
    MODULES, ABSENT, "pip install --no-deps vllm==0.33.0"
)
utils.init_none_hash(hashing.sha256)


def make_vllm_config(blocks: int, block_size: int) -> Any:
    """Return a KVCacheConfig of one group of full attention; block 0 is vLLM's null block, and extra."""
    spec = interface.FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype=None)
    return interface.KVCacheConfig(blocks + 1, [], [interface.KVCacheGroupSpec(["layer"], spec)])


def make_vllm_manager(blocks: int, block_size: int, caching: bool = True) -> Any:  # noqa: FBT001, FBT002  (vLLM's word)
    """Return a KVCacheManager of so many usable blocks, for requests as long as all of them."""
    config, longest = make_vllm_config(blocks, block_size), (blocks + 1) * block_size
    return managers.KVCacheManager(config, longest, block_size, block_size, enable_caching=caching)


def make_vllm_request(name: Name, tokens: Sequence[int], block_size: int, outputs: int = 1, **options: Any) -> Any:
    """Return a Request, which hashes its blocks as the engine has it do; options are vLLM's own (`cache_salt`)."""
    hasher = utils.get_request_block_hasher(block_size, hashing.sha256)
    limits = sampling.SamplingParams(max_tokens=outputs)
    return requests.Request(str(name), [*tokens], limits, None, block_hasher=hasher, **options)


class VllmManager(Manager):
    """`KVCacheManager` with its prefix cache."""

    shares_prefixes = True
    not_offered = frozenset({Feature.BATCHES, Feature.CHUNKS, Feature.PARTIAL_STEPS})

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.cache = make_vllm_manager(config.blocks, config.block_size, self.shares_prefixes)
        self.requests: dict[Name, Any] = {}
        self.untold: set[Name] = set()  # whose ids are made up
        self.unused = count_from(10**6)
        self.own_calls: list[str] = []

    def add(self, name: Name, count: int) -> Outcome:
        """Add a request with ids that nobody else has."""
        return self.add_prompt(name, count, 0)

    def add_prompt(self, name: Name, tokens: int | Tokens, salt: int) -> Outcome:
        """Look a prompt up, then allocate what is left of it."""
        ids = [next(self.unused) for _ in range(tokens)] if isinstance(tokens, int) else tokens
        request = make_vllm_request(name, ids, self.config.block_size, cache_salt=str(salt) if salt else None)
        found, computed, _ = self.cache.get_computed_blocks(request)
        hits = found.get_block_ids()[0]
        self._allocate(request, len(ids) - computed, computed, found)
        self.own_calls[:0] = [f"r{name} = Request('{name}', {[*ids]}, cache_salt={request.cache_salt})",
                              f"get_computed_blocks(r{name})  # {hits}"]  # fmt: skip
        self.requests[name] = request
        request.num_computed_tokens = len(ids)  # of an engine that has scheduled it
        (self.untold.add if isinstance(tokens, int) else self.untold.discard)(name)
        return Outcome(hits=hits)

    def _allocate(self, request: Any, *arguments: Any) -> None:
        answer = self.cache.allocate_slots(request, *arguments)
        self.own_calls.append(f"allocate_slots(r{request.request_id}, {', '.join(map(str, arguments[:2]))})")
        if answer is None:
            raise Refused(Reason.NO_SPACE)

    def extend(self, rows: Rows) -> None:
        """Allocate for one request, the last of whose tokens may not be known yet."""
        ((name, count),) = rows
        self._allocate(self.requests[name], count)
        self.requests[name].num_computed_tokens += count

    def publish(self, rows: Telling, retention: int) -> None:  # noqa: ARG002  (vLLM retains by use alone)
        """Append output tokens, and cache what they fill, as is done when a step's output arrives."""
        for name, tokens in rows:
            if name not in self.untold:
                request = self.requests[name]
                request.append_output_token_ids([*tokens])
                self.cache.cache_blocks(request, min(request.num_computed_tokens, request.num_tokens))
                self.own_calls.append(f"r{name}.append_output_token_ids({[*tokens]}); cache_blocks(r{name}, ...)")

    def release(self, name: Name) -> None:
        """Free a request."""
        self.cache.free(self.requests.pop(name))
        self.own_calls.append(f"free(r{name})")

    def block_table(self, name: Name) -> Sequence[int]:
        """Return its blocks."""
        ids: list[int] = self.cache.get_block_ids(str(name))[0]
        return ids

    def free_blocks(self) -> Collection[int]:
        """Return the blocks of the free queue that have no hash."""
        return [b.block_id for b in self.cache.block_pool.free_block_queue.get_all_free_blocks() if not b.block_hash]

    def cached_blocks(self) -> Collection[int]:
        """Return those that have one."""
        return [b.block_id for b in self.cache.block_pool.free_block_queue.get_all_free_blocks() if b.block_hash]

"""SGLang's radix cache over its paged allocator, behind the protocol.

When a step of a prompt is known to be done it is checkpointed. A request that ends is checkpointed once more; one that
leaves with a step in flight (a retraction) is not. A prompt must have ids: what nobody tells is made up. `clear` is
left out: SGLang's waits until no request runs.
"""

from collections.abc import Collection, Sequence
from itertools import count as count_from
from typing import Any

from pagedkv.bench.peer_engines import sglang
from pagedkv.bench.peer_sglang_cache import SglangCache
from pagedkv.spec.manager import Config, Manager, Name, Outcome, Reason, Refused, Rows, Tokens
from pagedkv.spec.outcome import Telling

sglang()  # where it can't be had, this module can't be imported either


class SglangManager(Manager):
    """`RadixCache` over a `PagedTokenToKVPoolAllocator`, or a `TokenToKVPoolAllocator` for pages of one token."""

    shares_prefixes = True

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.cache = SglangCache(config.blocks, config.block_size, caching=self.shares_prefixes)
        self.own_calls = self.cache.calls
        self.requests: dict[Name, Any] = {}
        self.launched: dict[Name, int] = {}
        self.steps: dict[int, list[tuple[Any, int]]] = {}  # in flight: of each request the end of what it computes
        self.issued, self.unused = count_from(1), count_from(10**6)
        self.made_up: set[Name] = set()  # requests whose ids nobody told

    def add(self, name: Name, count: int) -> Outcome:
        """Admit a request with ids that nobody else has."""
        return self.add_prompt(name, count, 0)

    def add_prompt(self, name: Name, tokens: int | Tokens, salt: int) -> Outcome:
        """Admit a request."""
        ids = [next(self.unused) for _ in range(tokens)] if isinstance(tokens, int) else tokens
        request = self.cache.admit(name, ids, salt)
        if request is None:
            raise Refused(Reason.NO_SPACE)
        self.requests[name], self.launched[name] = request, request.kv.cache_protected_len
        (self.made_up.add if isinstance(tokens, int) else self.made_up.discard)(name)
        return Outcome(hits=tuple(self.block_table(name)[: self.launched[name] // self.config.block_size]))

    def extend(self, rows: Rows) -> None:
        """Grow a batch."""
        if not self.cache.grow([self.requests[name] for name, _ in rows], [count for _, count in rows]):
            raise Refused(Reason.NO_SPACE)

    def publish(self, rows: Telling, retention: int) -> None:  # noqa: ARG002  (SGLang retains by use and priority)
        """Append output tokens, which go into the tree when the request ends."""
        for name, tokens in rows:
            self.requests[name].full_untruncated_fill_ids.extend(() if name in self.made_up else tokens)

    def launch(self, rows: Rows, stream: int) -> None:  # noqa: ARG002  (there is one)
        """Note what a step computes."""
        self.launched |= {name: self.launched[name] + count for name, count in rows}
        self.steps[next(self.issued)] = [(self.requests[name], self.launched[name]) for name, _ in rows]

    def retire(self, launch: int) -> None:
        """Checkpoint the prompts of which a step has computed a part."""
        for number in [each for each in self.steps if each <= launch]:
            for request, end in self.steps.pop(number):
                is_live = self.requests.get(request.rid) is request
                if is_live and end <= len(request.origin_input_ids):
                    self.cache.checkpoint(request, end)

    def release(self, name: Name) -> None:
        """Finish a request, or retract it."""
        request = self.requests.pop(name)
        if not any(each is request for step in self.steps.values() for each, _ in step):
            self.cache.checkpoint(request, min(self.launched[name], len(request.full_untruncated_fill_ids)))
        self.cache.release(request)

    def block_table(self, name: Name) -> Sequence[int]:
        """Return its pages."""
        return self.cache.pages_of(self.requests[name])

    def free_blocks(self) -> Collection[int]:
        """Return the free pages."""
        return tuple(self.cache.pages.get_all_free_pages().tolist())

    def cached_blocks(self) -> Collection[int]:
        """Return the pages of the nodes that nobody locks."""
        nodes, size = [*self.cache.tree.root_node.children.values()], self.config.block_size
        for node in nodes:
            nodes += node.children.values()  # it grows as it goes: all below, too
        return [slot // size for node in nodes if not node.lock_ref for slot in node.value[::size].tolist()]


class SglangManagerUncached(SglangManager):
    """The same with its tree disabled."""

    shares_prefixes = False

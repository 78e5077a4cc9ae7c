"""mini-sglang's `Scheduler` under the drivers, with its managers inside, and without its engine.

What its overlapping loop does is done here in the same order: requests and aborts are taken in before a step is
planned, the step goes to the engine, and then the step before it is processed. In place of the engine stands one that
counts a step as computed (`complete_one`), as the true one does; the sampled tokens come from the virtual device.
"""

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch
from pagedkv.bench.peer_host import host_only
from pagedkv.bench.peer_mini_sglang import core, make_mini_sglang_managers, messages, pages_of, prefill, schedulers
from pagedkv.spec.foreign_scheduler import STOP, Config, Feature, ForeignScheduler, Limits, Row, Step
from pagedkv.spec.requests import RequestId, Token
from pagedkv.spec.state import Tokens


def make_mini_sglang_scheduler(config: Config, limits: Limits) -> Any:
    """Return mini-sglang's own `Scheduler`, made without its `__init__`, which wants a device and a model."""
    scheduler = object.__new__(schedulers.Scheduler)
    kind = "radix" if limits.prefix_cache else "naive"
    managers = make_mini_sglang_managers(config.blocks, config.block_size, limits.max_running, kind)
    scheduler.cache_manager, scheduler.table_manager, scheduler.decode_manager, scheduler.prefill_manager = managers
    scheduler.engine = MagicMock(page_table=scheduler.table_manager.page_table)
    scheduler.engine.max_seq_len = config.blocks * config.block_size
    scheduler.engine.graph_runner.pad_batch = lambda batch: setattr(batch, "padded_reqs", batch.reqs)
    scheduler.engine.forward_batch = _computed
    scheduler.token_pool, scheduler.prefill_budget = scheduler.table_manager.token_pool, limits.max_tokens_per_step
    scheduler.finished_reqs, scheduler.eos_token_id, scheduler.device = set(), STOP, torch.device("cpu")
    return scheduler


def _computed(batch: Any, _arguments: object) -> Any:
    for request in batch.reqs:
        request.complete_one()
    return SimpleNamespace(next_tokens_gpu=torch.zeros(batch.size, dtype=torch.int32))


class MiniSglangScheduler(ForeignScheduler):
    """`Scheduler` as a `ForeignScheduler`."""

    first_block = 0
    steps_ahead = 2
    shares_prefixes = True
    not_offered = frozenset({Feature.SALT})

    def __init__(self, config: Config, limits: Limits) -> None:
        super().__init__(config, limits)
        self.scheduler = make_mini_sglang_scheduler(config, limits)
        self.replies: list[Any] = []
        self.scheduler.send_result = self.replies.extend
        self.messages: list[Any] = []  # that the loop has not received yet
        self.left: dict[RequestId, int] = {}  # how many tokens are still to come
        self.own_calls: list[str] = []

    def submit(self, request: RequestId, prompt: Tokens, outputs: int, salt: int) -> None:  # noqa: ARG002  (always 0)
        """Send a request."""
        ids, self.left[request] = torch.tensor(prompt, dtype=torch.int32), outputs
        self.messages.append(messages.UserMsg(request, ids, core.SamplingParams(max_tokens=outputs)))

    def abort(self, request: RequestId) -> None:
        """Send an abort."""
        self.messages.append(messages.AbortBackendMsg(request))

    def schedule(self) -> Step | None:
        """Receive what was sent, plan a step and hand it to the engine."""
        with host_only():
            for message in self.messages:
                self.own_calls.append(f"scheduler._process_one_msg({message})")
                self.scheduler._process_one_msg(message)  # noqa: SLF001  (the parts of its loop have no other names)
            self.messages.clear()
            self.own_calls.append("forward = scheduler._schedule_next_batch()")
            forward = self.scheduler._schedule_next_batch()  # noqa: SLF001
            if forward is None:
                return None
            rows = [self._row(request) for request in forward.batch.reqs]
            self.own_calls.append(f"output = scheduler._forward(forward)  # {forward.batch.phase} of {[*rows]}")
            return Step(rows, own=(forward, self.scheduler._forward(forward)))  # noqa: SLF001

    def complete(self, step: Step, tokens: Mapping[RequestId, Token]) -> Iterable[RequestId]:
        """Process what a step has sampled."""
        forward, output = step.own
        sampled = [tokens.get(request.uid, 0) for request in forward.batch.reqs]
        output = (output.next_tokens_gpu, torch.tensor(sampled, dtype=torch.int32), MagicMock())
        self.own_calls.append(f"scheduler._process_last_data((forward, output))  # sampled {sampled}")
        self.replies.clear()
        self.scheduler._process_last_data((forward, output))  # noqa: SLF001
        return [reply.uid for reply in self.replies if reply.uid in self.left and self.is_last(reply)]

    def is_last(self, reply: Any) -> bool:
        """Whether this is the token that ends a request, whatever the message says of that."""
        self.left[reply.uid] -= 1
        if reply.next_token == STOP or not self.left[reply.uid]:
            del self.left[reply.uid]
            return True
        return False

    def free_blocks(self) -> int:
        """Return how many pages are free or may be evicted."""
        return int(self.scheduler.cache_manager.available_size) // self.config.block_size

    def _row(self, request: Any) -> Row:
        pages = pages_of(self.scheduler.cache_manager, request, request.device_len)
        samples = not isinstance(request, prefill.ChunkedReq)
        return Row(request.uid, request.cached_len, request.extend_len, pages, samples)


class MiniSglangServed(MiniSglangScheduler):
    """The same as its HTTP server takes it: the first message that says `finished` is the last."""

    def is_last(self, reply: Any) -> bool:
        """Whether this message says so."""
        return bool(reply.finished and self.left.pop(reply.uid))

"""mini-sglang's `Scheduler` under the drivers, with its managers inside, and without its engine.

In place of the engine stands one that counts a step as computed when it gets it (`complete_one`), as the true one does.
"""

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from pagedkv.bench.peer_host import host_only
from pagedkv.bench.peer_mini_sglang import core, make_mini_sglang_managers, messages, pages_of, prefill, schedulers
from pagedkv.spec.foreign_scheduler import STOP, Config, Feature, ForeignScheduler, Limits, Row, Step
from pagedkv.spec.requests import RequestId, Token
from pagedkv.spec.state import Tokens

# ruff: noqa: D102, SLF001  (what each method is for is said by the protocol; the parts of its loop have private names)


def make_mini_sglang_scheduler(config: Config, limits: Limits, longest: int = 0) -> Any:
    """Return mini-sglang's own `Scheduler`, made without its `__init__`, which wants a device and a model."""
    scheduler, kind = object.__new__(schedulers.Scheduler), "radix" if limits.prefix_cache else "naive"
    managers = make_mini_sglang_managers(config.blocks, config.block_size, limits.max_running, kind, longest)
    scheduler.cache_manager, scheduler.table_manager, scheduler.decode_manager, scheduler.prefill_manager = managers
    scheduler.engine = SimpleNamespace(page_table=scheduler.table_manager.page_table, forward_batch=_computed)
    scheduler.engine.max_seq_len, nothing = longest or config.blocks * config.block_size, lambda _: None
    scheduler.engine.graph_runner = SimpleNamespace(pad_batch=lambda batch: setattr(batch, "padded_reqs", batch.reqs))
    scheduler.engine.attn_backend = scheduler.engine.sampler = SimpleNamespace(
        prepare_metadata=nothing, prepare=nothing
    )
    scheduler.token_pool, scheduler.prefill_budget = scheduler.table_manager.token_pool, limits.max_tokens_per_step
    scheduler.finished_reqs, scheduler.eos_token_id, scheduler.device = set(), STOP, torch.device("cpu")
    return scheduler


def _computed(batch: Any, _arguments: object) -> Any:
    for request in batch.reqs:
        request.complete_one()
    return SimpleNamespace(next_tokens_gpu=torch.zeros(batch.size, dtype=torch.int32), synchronize=lambda: None)


class MiniSglangScheduler(ForeignScheduler):
    """`Scheduler` as a `ForeignScheduler`; a request ends with its last token, whatever the messages say of that."""

    first_block, steps_ahead, shares_prefixes = 0, 2, True
    not_offered = frozenset({Feature.SALT})

    def __init__(self, config: Config, limits: Limits) -> None:
        super().__init__(config, limits)
        self.scheduler, self.replies = make_mini_sglang_scheduler(config, limits), list[Any]()
        self.scheduler.send_result = self.replies.extend
        self.messages, self.left = list[Any](), dict[RequestId, int]()  # not received yet; tokens still to come
        self.own_calls: list[str] = []

    def submit(self, request: RequestId, prompt: Tokens, outputs: int, salt: int) -> None:  # noqa: ARG002  (always 0)
        ids, self.left[request] = torch.tensor(prompt, dtype=torch.int32), outputs
        self.messages.append(messages.UserMsg(request, ids, core.SamplingParams(max_tokens=outputs)))

    def abort(self, request: RequestId) -> None:
        self.messages.append(messages.AbortBackendMsg(request))

    def schedule(self) -> Step:
        with host_only():
            while self.messages:
                self.own_calls.append(f"scheduler._process_one_msg({self.messages[0]})")
                self.scheduler._process_one_msg(self.messages.pop(0))
            self.own_calls.append("forward = scheduler._schedule_next_batch(); output = scheduler._forward(forward)")
            forward = self.scheduler._schedule_next_batch()
            rows = [self._row(request) for request in forward.batch.reqs] if forward else []
            return Step(rows, own=forward and (forward, self.scheduler._forward(forward)))

    def complete(self, step: Step, tokens: Mapping[RequestId, Token]) -> Iterable[RequestId]:
        forward, output = step.own
        sampled = torch.tensor([tokens.get(request.uid, 0) for request in forward.batch.reqs], dtype=torch.int32)
        self.own_calls.append(f"scheduler._process_last_data((forward, output))  # sampled {sampled.tolist()}")
        self.replies.clear()
        self.scheduler._process_last_data((forward, (output.next_tokens_gpu, sampled, output)))
        return [reply.uid for reply in self.replies if reply.uid in self.left and self.is_last(reply)]

    def is_last(self, reply: Any) -> bool:
        self.left[reply.uid] -= 1
        return bool(reply.next_token == STOP or not self.left[reply.uid]) and self.left.pop(reply.uid) >= 0

    def free_blocks(self) -> int | None:
        free = int(self.scheduler.cache_manager.available_size) // self.config.block_size
        return None if self.messages else free  # an abort may be on its way

    def _row(self, request: Any) -> Row:
        table = pages_of(self.scheduler.cache_manager, request, request.device_len)
        return Row(
            request.uid, request.cached_len, request.extend_len, table, not isinstance(request, prefill.ChunkedReq)
        )


class MiniSglangServed(MiniSglangScheduler):
    """As its HTTP server takes it: the first message that says `finished` is the last."""

    def is_last(self, reply: Any) -> bool:
        return bool(reply.finished and self.left.pop(reply.uid))

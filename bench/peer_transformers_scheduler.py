"""transformers' `ContinuousBatchProcessor` under the drivers: its scheduler, cache and soft resets, without the model.

With two steps ahead it is called in the order of its asynchronous batching: a batch is prepared before it is known what
the last one has sampled. In place of its tensors a method counts a batch as computed when it is prepared, as they do.
"""

import queue
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from pagedkv.bench.peer_transformers import ALL, make_transformers_manager
from pagedkv.spec.foreign_scheduler import STOP, Config, Feature, ForeignScheduler, Limits, Row, Step
from pagedkv.spec.requests import RequestId, Token
from pagedkv.spec.state import Tokens
from transformers.generation.continuous_batching import continuous_api as api
from transformers.generation.continuous_batching import requests

# ruff: noqa: D102  (what each method is for is said by the protocol)


class Processor(api.ContinuousBatchProcessor):  # type: ignore[misc]  # its types are not looked at
    """transformers' own, made without tensors, model and threads."""

    def __init__(self, config: Config, limits: Limits) -> None:
        self.distributed_helper = helper = api.DistributedHelper(None, None)
        self.cache = make_transformers_manager(
            config.blocks, config.block_size, allow_block_sharing=limits.prefix_cache
        )
        self.scheduler = api.FIFOScheduler(self.cache, 0.0, limits.max_running)
        self.max_batch_tokens, self.use_async_batching = limits.max_tokens_per_step, limits.steps_ahead > 1
        self.offloading_manager = api.OffloadingManager(self.cache, self.scheduler, 0.0, 1.0, None, helper)
        self.background_thread_status = api.BackgroundThreadStatus()
        self.input_queue, self.cancel_queue = queue.Queue[Any](), queue.Queue[str]()
        self.logit_processor: Any = SimpleNamespace(check_kwargs=lambda _: None)
        self.model_runner: Any = SimpleNamespace(maybe_pad_inputs=lambda q, kv, _: (q, kv), pad_inputs=False)
        self.outputs: list[Any] = []
        self.output_router: Any = SimpleNamespace(deliver_batch=self.outputs.extend)
        self.inputs_and_outputs: Any = SimpleNamespace(compute_stream=None, prepare_batch_tensors=self.compute)
        self.inputs_and_outputs.prepare_batch_update = lambda: (*self.results, None)
        self.results: tuple[list[Any], list[int]] = ([], [])

    def __del__(self) -> None:
        """Its own collects garbage, which takes long."""

    def compute(self, *, requests_in_batch: list[Any], **_sizes: object) -> None:
        """Count a batch as computed, and note its rows."""
        self.batch, self.rows = requests_in_batch, list[Row]()
        for future in requests_in_batch:
            state, start = future.state, future.state.position_offset
            table = tuple(self.cache.cache_allocators[ALL].block_table[state.request_id])
            self.rows.append(Row(int(state.request_id), start, future.query_length, table, future.has_new_token))
            state.position_offset += future.query_length
            if future.has_new_token:
                state.tokens_to_process = [requests.TMP_TOKEN_ID]


class TransformersScheduler(ForeignScheduler):
    """`ContinuousBatchProcessor` as a `ForeignScheduler`."""

    first_block, steps_ahead, shares_prefixes = 2, 2, True
    not_offered = frozenset({Feature.SALT})

    def __init__(self, config: Config, limits: Limits) -> None:
        super().__init__(config, limits)
        self.processor = Processor(config, limits)
        self.own_calls: list[str] = []

    def submit(self, request: RequestId, prompt: Tokens, outputs: int, salt: int) -> None:  # noqa: ARG002  (always 0)
        state = requests.RequestState(str(request), [*prompt], max_new_tokens=outputs, eos_token_id=STOP)
        self.own_calls.append(f"manager.add_request({[*prompt]}, '{request}', max_new_tokens={outputs})")
        self.processor.input_queue.put(state)

    def abort(self, request: RequestId) -> None:
        self.own_calls.append(f"manager.cancel_request('{request}')")
        self.processor.cancel_queue.put(str(request))

    def schedule(self) -> Step | None:
        scheduler = self.processor.scheduler
        active = {*scheduler.active_requests}
        self.own_calls.append("processor.prepare_next_batch()")
        if not self.processor.prepare_next_batch():
            return None
        preempted = [int(name) for name in scheduler.waiting_requests if name in active]
        return Step(self.processor.rows, preempted, own=self.processor.batch)

    def complete(self, step: Step, tokens: Mapping[RequestId, Token]) -> Iterable[RequestId]:
        sampled = [tokens[row.request] for row in step.rows if row.samples]
        self.processor.results = (step.own, sampled)
        self.processor.outputs.clear()
        self.own_calls.append(f"processor.update_batch()  # sampled {sampled}")
        self.processor.update_batch()
        return [int(output.request_id) for output in self.processor.outputs]

    def free_blocks(self) -> int | None:
        pool, ledger = self.processor.cache.pool, self.processor.cache.cache_allocators[ALL].ledger
        free = int(pool.num_free_sectors + pool.count_free_blocks(0) + len(ledger.cached_blocks))
        return free if self.processor.cancel_queue.empty() else None  # a cancellation may be on its way

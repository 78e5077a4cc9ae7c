"""transformers' `ContinuousBatchProcessor` under the drivers: its scheduler, cache and soft resets, without the model.

Its two halves are called as its generation loop does: `prepare_next_batch`, then `update_batch`; with two steps ahead
in the order of its asynchronous batching, which prepares a batch before it learns what the last one has sampled. In
place of its tensors stands an object that counts a batch as computed when it is prepared, as they do. Cancellations
come by its queue. There is no swap to the host: a request that has to make room begins anew.
"""

import queue
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from pagedkv.bench.peer_transformers import ALL, make_transformers_manager
from pagedkv.spec.foreign_scheduler import STOP, Config, Feature, ForeignScheduler, Limits, Row, Step
from pagedkv.spec.requests import RequestId, Token
from pagedkv.spec.state import Tokens
from transformers.generation.continuous_batching.continuous_api import BackgroundThreadStatus, ContinuousBatchProcessor
from transformers.generation.continuous_batching.distributed import DistributedHelper
from transformers.generation.continuous_batching.offloading_manager import OffloadingManager
from transformers.generation.continuous_batching.requests import TMP_TOKEN_ID, FutureRequestState, RequestState
from transformers.generation.continuous_batching.scheduler import FIFOScheduler

Batch = list[FutureRequestState]


class Processor(ContinuousBatchProcessor):
    """transformers' own, made without tensors, model and threads."""

    def __init__(self, config: Config, limits: Limits) -> None:
        self.cache = make_transformers_manager(
            config.blocks, config.block_size, allow_block_sharing=limits.prefix_cache
        )
        self.scheduler = FIFOScheduler(self.cache, 0.0, limits.max_running)
        self.max_batch_tokens = limits.max_tokens_per_step
        self.use_async_batching = limits.steps_ahead > 1
        self.distributed_helper = DistributedHelper(None, None)
        self.offloading_manager = OffloadingManager(self.cache, self.scheduler, 0.0, 1.0, None, self.distributed_helper)
        self.background_thread_status = BackgroundThreadStatus()
        self.input_queue, self.cancel_queue = queue.Queue(), queue.Queue()
        self.logit_processor: Any = SimpleNamespace(check_kwargs=lambda _: None)
        self.model_runner: Any = SimpleNamespace(maybe_pad_inputs=lambda q, kv, _: (q, kv), pad_inputs=False)
        self.outputs: list[Any] = []
        self.output_router: Any = SimpleNamespace(deliver_batch=self.outputs.extend)
        self.inputs_and_outputs: Any = SimpleNamespace(
            compute_stream=None,
            prepare_batch_tensors=self.prepare_batch_tensors,
            prepare_batch_update=lambda: (*self.results, None),
        )
        self.rows: list[Row] = []
        self.results: tuple[Batch, list[int]] = ([], [])

    def __del__(self) -> None:
        """Collect no garbage."""

    def prepare_batch_tensors(self, *, requests_in_batch: Batch, **_sizes: object) -> None:
        """Count a batch as computed, and note its rows."""
        self.rows = []
        self.batch = requests_in_batch
        for future in requests_in_batch:
            state, table = future.state, self.cache.cache_allocators[ALL].block_table
            start, name = state.position_offset, state.request_id
            self.rows.append(Row(int(name), start, future.query_length, tuple(table[name]), future.has_new_token))
            state.position_offset += future.query_length
            if future.has_new_token:
                state.tokens_to_process = [TMP_TOKEN_ID]


class TransformersScheduler(ForeignScheduler):
    """`ContinuousBatchProcessor` as a `ForeignScheduler`."""

    first_block = 2
    steps_ahead = 2
    shares_prefixes = True
    not_offered = frozenset({Feature.SALT})

    def __init__(self, config: Config, limits: Limits) -> None:
        super().__init__(config, limits)
        self.processor = Processor(config, limits)
        self.own_calls: list[str] = []

    def submit(self, request: RequestId, prompt: Tokens, outputs: int, salt: int) -> None:  # noqa: ARG002  (always 0)
        """Put a request into the queue."""
        state = RequestState(str(request), [*prompt], max_new_tokens=outputs, eos_token_id=STOP)
        self.own_calls.append(f"manager.add_request({[*prompt]}, '{request}', max_new_tokens={outputs})")
        self.processor.input_queue.put(state)

    def abort(self, request: RequestId) -> None:
        """Put a cancellation into the queue."""
        self.own_calls.append(f"manager.cancel_request('{request}')")
        self.processor.cancel_queue.put(str(request))

    def schedule(self) -> Step | None:
        """Prepare a batch."""
        scheduler = self.processor.scheduler
        active = {*scheduler.active_requests}
        self.own_calls.append("processor.prepare_next_batch()")
        if not self.processor.prepare_next_batch():
            return None
        preempted = [int(name) for name in scheduler.waiting_requests if name in active]
        return Step(self.processor.rows, preempted, own=self.processor.batch)

    def complete(self, step: Step, tokens: Mapping[RequestId, Token]) -> Iterable[RequestId]:
        """Update the requests of a batch with what was sampled."""
        sampled = [tokens[row.request] for row in step.rows if row.samples]
        self.processor.results = (step.own, sampled)
        self.processor.outputs.clear()
        self.own_calls.append(f"processor.update_batch()  # sampled {sampled}")
        self.processor.update_batch()
        return [int(output.request_id) for output in self.processor.outputs]

    def free_blocks(self) -> int:
        """Return how many blocks are free, or kept for later."""
        pool, ledger = self.processor.cache.pool, self.processor.cache.cache_allocators[ALL].ledger
        return int(pool.num_free_sectors + pool.count_free_blocks(0) + len(ledger.cached_blocks))

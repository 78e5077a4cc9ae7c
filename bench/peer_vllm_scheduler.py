"""vLLM's Scheduler, and its AsyncScheduler where two steps may be in flight, behind the protocol.

The engine's configuration is vLLM's own where the scheduler's behaviour depends on it; of the model it reads whether
this is a plain decoder, and no more. Tables are kept as a worker keeps them: from what each step says is new. Prompts
that nobody told ids of have their own, since the protocol gives ids to all.
"""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from pagedkv.bench.peer_imports import import_peer
from pagedkv.bench.peer_vllm import ABSENT, HOW, make_vllm_config, make_vllm_request, requests
from pagedkv.spec.foreign_scheduler import STOP, Config, ForeignScheduler, Limits, Row, Step
from pagedkv.spec.requests import RequestId, Token
from pagedkv.spec.state import Tokens

MODULES = """vllm.config vllm.v1.core.sched.scheduler vllm.v1.core.sched.async_scheduler vllm.v1.outputs
    vllm.v1.structured_output""".split()
(configs, schedulers, async_schedulers, outputs, _), _ = import_peer(MODULES, ABSENT, HOW)
OFF = """kv_transfer_config kv_events_config lora_config speculative_config ec_transfer_config""".split()
ZERO = """is_mm_encoder_only num_lookahead_tokens num_hash_lookahead_tokens num_prefill_lookahead_tokens
    num_speculative_tokens""".split()
PLAIN_DECODER = dict.fromkeys(
    "uses_mrope is_encoder_decoder is_diffusion supports_multimodal_inputs return_sampling_mask".split(), False
)


def make_vllm_scheduler(blocks: int, block_size: int, limits: Limits, **options: Any) -> Any:
    """Return a Scheduler of so many usable blocks; an AsyncScheduler for more than one step in flight."""
    longest, ahead = (blocks + 1) * block_size, limits.steps_ahead > 1
    scheduling = configs.SchedulerConfig(
        max_model_len=longest, is_encoder_decoder=False, max_num_batched_tokens=limits.max_tokens_per_step,
        max_num_seqs=limits.max_running, async_scheduling=ahead, **options,
    )  # fmt: skip
    caching = configs.CacheConfig(block_size=block_size, enable_prefix_caching=limits.prefix_cache)
    caching.num_gpu_blocks = blocks + 1
    config = SimpleNamespace(
        **dict.fromkeys(OFF), **dict.fromkeys(ZERO, 0), scheduler_config=scheduling, cache_config=caching,
        model_config=SimpleNamespace(max_model_len=longest, runner_type="generate", **PLAIN_DECODER),
        parallel_config=configs.ParallelConfig(), observability_config=configs.ObservabilityConfig(),
        ec_manager_config=SimpleNamespace(get_encoder_cache_manager_obj=lambda: None), use_v2_model_runner=True,
        aux_output_config=SimpleNamespace(enabled=False), max_in_flight_tokens=2 * limits.max_tokens_per_step,
        max_concurrent_batches=limits.steps_ahead,
    )  # fmt: skip
    kind = async_schedulers.AsyncScheduler if ahead else schedulers.Scheduler
    grammar = SimpleNamespace(accept_tokens=lambda *_: True)
    return kind(config, make_vllm_config(blocks, block_size), grammar, block_size)


class VllmScheduler(ForeignScheduler):
    """`Scheduler` in order of arrival."""

    steps_ahead = 2
    shares_prefixes = True
    options: Mapping[str, Any] = {}  # of vLLM's SchedulerConfig

    def __init__(self, config: Config, limits: Limits) -> None:
        super().__init__(config, limits)
        self.own_calls: list[str] = []
        self.scheduler = make_vllm_scheduler(config.blocks, config.block_size, limits, **self.options)
        self.tables: dict[str, list[int]] = {}

    def submit(self, request: RequestId, prompt: Tokens, outputs: int, salt: int) -> None:
        """Add a request; under the policy of priorities, one of three."""
        new = make_vllm_request(
            request, prompt, self.config.block_size, salt, max_tokens=outputs, stop_token_ids=[STOP]
        )
        new.priority = -request
        self.own_calls.append(f"add_request(Request('{request}', {[*prompt]}, max_tokens={outputs}, priority={new.priority}, cache_salt={new.cache_salt!r}))")
        self.scheduler.add_request(new)

    def schedule(self) -> Step:
        """Schedule a step, and bring the tables up to date as a worker does."""
        self.own_calls.append("schedule()")
        output = self.scheduler.schedule()
        for new in output.scheduled_new_reqs:
            self.tables[new.req_id] = [*new.block_ids[0]]
        cached = output.scheduled_cached_reqs
        for name, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True):
            self.tables[name] += blocks[0] if blocks else ()
        rows = []
        for name, count in output.num_scheduled_tokens.items():
            request = self.scheduler.requests[name]
            start = request.num_computed_tokens - count
            rows.append(Row(int(name), start, count, [*self.tables[name]], samples=not request.is_prefill_chunk))
        return Step(rows, [int(name) for name in output.preempted_req_ids or ()], own=output)

    def complete(self, step: Step, tokens: Mapping[RequestId, Token]) -> list[RequestId]:
        """Bring the sampled tokens."""
        names = [str(row.request) for row in step.rows]
        sampled = [[tokens[row.request]] if row.samples else [] for row in step.rows]
        self.own_calls.append(f"update_from_output(..., {dict(zip(names, sampled, strict=True))})")
        output = outputs.ModelRunnerOutput(names, {name: at for at, name in enumerate(names)}, sampled)
        told = self.scheduler.update_from_output(step.own, output)
        return [int(each.request_id) for client in told.values() for each in client.outputs if each.finish_reason is not None]

    def abort(self, request: RequestId) -> None:
        """Abort a request."""
        self.own_calls.append(f"finish_requests('{request}', FINISHED_ABORTED)")
        self.scheduler.finish_requests(str(request), requests.RequestStatus.FINISHED_ABORTED)

    def free_blocks(self) -> int:
        """Return the length of the free queue, which has cached blocks in it."""
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())


class VllmPriorityScheduler(VllmScheduler):
    """`Scheduler` by priority."""

    options = {"policy": "priority", "long_prefill_token_threshold": 3}
    block_sizes = (4,)

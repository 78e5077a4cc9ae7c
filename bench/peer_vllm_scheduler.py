"""vLLM's Scheduler behind the protocol; its AsyncScheduler where two steps may be in flight.

Block tables are kept as a worker keeps them: from what each step says is new.
"""

from collections.abc import Mapping
from typing import Any

from pagedkv.bench.peer_engines import make_vllm_request, make_vllm_scheduler, vllm
from pagedkv.spec.foreign_scheduler import STOP, Config, ForeignScheduler, Limits, Row, Step
from pagedkv.spec.requests import RequestId, Token
from pagedkv.spec.state import Tokens

vllm()  # where it can't be had, this module can't be imported either


class VllmScheduler(ForeignScheduler):
    """`Scheduler`, first come, first served."""

    steps_ahead = 2
    shares_prefixes = True
    options: Mapping[str, Any] = {}  # of its SchedulerConfig

    def __init__(self, config: Config, limits: Limits) -> None:
        super().__init__(config, limits)
        self.scheduler = make_vllm_scheduler(config.blocks, config.block_size, limits, **self.options)
        self.tables: dict[str, list[int]] = {}
        self.own_calls: list[str] = []

    def submit(self, request: RequestId, prompt: Tokens, outputs: int, salt: int) -> None:
        """Add a request; where priorities count, each is more urgent than all before it."""
        new = make_vllm_request(
            request, prompt, self.config.block_size, salt, max_tokens=outputs, stop_token_ids=[STOP]
        )
        new.priority = -request
        words = f"'{request}', {[*prompt]}, max_tokens={outputs}, cache_salt={new.cache_salt!r}, priority={-request}"
        self.own_calls.append(f"add_request(Request({words}))")
        self.scheduler.add_request(new)

    def schedule(self) -> Step:
        """Schedule a step, and bring the tables up to date."""
        output = self.scheduler.schedule()
        for new in output.scheduled_new_reqs:
            self.tables[new.req_id] = [*new.block_ids[0]]
        running = output.scheduled_cached_reqs
        for name, blocks in zip(running.req_ids, running.new_block_ids, strict=True):
            self.tables[name] += blocks[0] if blocks else ()
        rows = []
        for name, count in output.num_scheduled_tokens.items():
            request = self.scheduler.requests[name]
            start = request.num_computed_tokens - count  # it counts what is scheduled as computed
            rows.append(Row(int(name), start, count, [*self.tables[name]], samples=not request.is_prefill_chunk))
        self.own_calls.append(f"schedule()  # {output.num_scheduled_tokens}, preempts {output.preempted_req_ids}")
        return Step(rows, [int(name) for name in output.preempted_req_ids], own=output)

    def complete(self, step: Step, tokens: Mapping[RequestId, Token]) -> list[RequestId]:
        """Bring the sampled tokens."""
        sampled = {str(row.request): [tokens[row.request]] if row.samples else [] for row in step.rows}
        places = {name: at for at, name in enumerate(sampled)}
        output = vllm().outputs.ModelRunnerOutput([*sampled], places, [*sampled.values()])
        self.own_calls.append(f"update_from_output(..., {sampled})")
        told = self.scheduler.update_from_output(step.own, output).values()
        return [int(each.request_id) for client in told for each in client.outputs if each.finish_reason is not None]

    def abort(self, request: RequestId) -> None:
        """Abort a request."""
        self.own_calls.append(f"finish_requests('{request}', FINISHED_ABORTED)")
        self.scheduler.finish_requests(str(request), vllm().requests.RequestStatus.FINISHED_ABORTED)

    def free_blocks(self) -> int:
        """Return the length of the free queue, cached blocks included."""
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())


class VllmPriorityScheduler(VllmScheduler):
    """`Scheduler` by priority, with a limit to what one prompt may take of a step that others want, too."""

    options = {"policy": "priority", "long_prefill_token_threshold": 3}  # noqa: RUF012  (never changed)
    block_sizes = (4,)

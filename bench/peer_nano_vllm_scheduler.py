"""nano-vllm's `Scheduler` under the drivers, with its `BlockManager` inside.

It waits for each step, has no way to abort a request, and its prefix cache is always on.
"""

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from pagedkv.bench.peer_nano_vllm import schedulers, sequence_class, sequences
from pagedkv.spec.foreign_scheduler import STOP, Config, Feature, ForeignScheduler, Limits, Row, Step
from pagedkv.spec.requests import RequestId, Token
from pagedkv.spec.state import Tokens


def make_nano_vllm_scheduler(config: Config, limits: Limits) -> Any:
    """Return nano-vllm's own `Scheduler`."""
    sizes = {"kvcache_block_size": config.block_size, "num_kvcache_blocks": config.blocks}
    most = {"max_num_seqs": limits.max_running, "max_num_batched_tokens": limits.max_tokens_per_step}
    return schedulers.Scheduler(SimpleNamespace(eos=STOP, **sizes, **most))


class NanoVllmScheduler(ForeignScheduler):
    """`Scheduler` as a `ForeignScheduler`."""

    first_block = 0
    shares_prefixes = True
    block_sizes = (2, 3, 4)
    not_offered = frozenset({Feature.SALT})

    def __init__(self, config: Config, limits: Limits) -> None:
        super().__init__(config, limits)
        self.scheduler = make_nano_vllm_scheduler(config, limits)
        self.names: dict[int, RequestId] = {}  # by nano-vllm's number
        self.own_calls: list[str] = []

    def submit(self, request: RequestId, prompt: Tokens, outputs: int, salt: int) -> None:  # noqa: ARG002  (always 0)
        """Add a sequence."""
        sequence = sequence_class(self.config.block_size)([*prompt], sequences.SamplingParams(max_tokens=outputs))
        self.names[sequence.seq_id] = request
        self.own_calls.append(f"scheduler.add(Sequence({[*prompt]}, SamplingParams(max_tokens={outputs})))")
        self.scheduler.add(sequence)

    def schedule(self) -> Step | None:
        """Plan a step: whole prompts and chunks of them, or a token each."""
        if self.scheduler.is_finished():
            return None
        running = {sequence.seq_id for sequence in self.scheduler.running}
        self.own_calls.append("batch, is_prefill = scheduler.schedule()")
        batch, is_prefill = self.scheduler.schedule()
        rows = [
            Row(
                self.names[sequence.seq_id],
                sequence.num_cached_tokens,
                sequence.num_scheduled_tokens,
                tuple(sequence.block_table),
                sequence.num_cached_tokens + sequence.num_scheduled_tokens == len(sequence),
            )
            for sequence in batch
        ]
        preempted = [self.names[each.seq_id] for each in self.scheduler.waiting if each.seq_id in running]
        return Step(rows, preempted, own=(batch, is_prefill))

    def complete(self, step: Step, tokens: Mapping[RequestId, Token]) -> Iterable[RequestId]:
        """Hash what is filled, append what was sampled, and deallocate who is finished."""
        batch, is_prefill = step.own
        sampled = [tokens.get(self.names[sequence.seq_id], 0) for sequence in batch]
        self.own_calls.append(f"scheduler.postprocess(batch, {sampled}, is_prefill)")
        self.scheduler.postprocess(batch, sampled, is_prefill)
        return [self.names[sequence.seq_id] for sequence in batch if sequence.is_finished]

    def free_blocks(self) -> int:
        """Return how many blocks no sequence holds."""
        return len(self.scheduler.block_manager.free_block_ids)

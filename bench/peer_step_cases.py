"""A scheduler's step in `peer_speeds`: schedulers with so many running requests, all of which decode.

Timed is what each scheduler does between two launches of the model: planning the step, the blocks and rows of it, and
taking in the tokens that came. Without its tokenizer, sampler, messages to clients where they are a queue of their own,
and tensors of the model's inputs where its manager does not need them; mini-sglang makes those while it schedules.
Prompts are computed before the clock starts. Prefix caches are on. One step at a time: planned, computed, completed.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from pagedkv.bench.peer_cases import CONTEXT, prompts
from pagedkv.bench.peer_host import host_only
from pagedkv.bench.peer_sides import BLOCK_SIZE
from pagedkv.bench.peer_vllm_sides import nano_vllm_rows
from pagedkv.impl.arrays import Int32Array
from pagedkv.impl.cache import BlockCache
from pagedkv.impl.requests import Limits, Request
from pagedkv.impl.scheduler import Scheduler
from pagedkv.spec.arithmetic import blocks_needed
from pagedkv.spec.requests import Limits as PeerLimits
from pagedkv.spec.state import Config

SAMPLED = 7


class Stepping(Protocol):
    """A scheduler of so many requests, in a pool that holds them for so many tokens each."""

    def submit(self, name: int, ids: Int32Array, outputs: int) -> None:
        """Take a request in."""

    def step(self) -> int:
        """Schedule a step and complete it with a token for each row; return how many rows it had."""


MakeStepping = Callable[[int, int, int], Stepping]  # (blocks, requests, longest)


class OwnStepping:
    """`Scheduler` over `BlockCache`."""

    def __init__(self, blocks: int, requests: int, longest: int) -> None:
        cache = BlockCache(blocks, BLOCK_SIZE, rows=requests, max_blocks_per_row=blocks_needed(longest, BLOCK_SIZE))
        self.scheduler = Scheduler(cache, Limits(max_tokens_per_step=requests * longest, max_running=requests))
        self.sampled = np.full(requests, SAMPLED, np.int32)

    def submit(self, name: int, ids: Int32Array, outputs: int) -> None:
        """Submit it."""
        self.scheduler.submit(Request(name, ids, outputs))

    def step(self) -> int:
        """Schedule, complete."""
        plan = self.scheduler.schedule()
        assert plan.launch is not None
        self.scheduler.complete(plan.launch.id, self.sampled)
        return len(plan.launch.seqs)


class VllmStepping:
    """vLLM's `Scheduler`, and rows to which new blocks are appended as its worker does."""

    def __init__(self, blocks: int, requests: int, longest: int) -> None:
        from pagedkv.bench import peer_engines as engines  # noqa: PLC0415  (a peer)

        self.make_request, self.output = engines.make_vllm_request, engines.vllm().outputs.ModelRunnerOutput
        limits = PeerLimits(requests * longest, requests, prefix_cache=True)
        self.scheduler = engines.make_vllm_scheduler(blocks, BLOCK_SIZE, limits)
        self.table = np.zeros((requests, blocks_needed(longest, BLOCK_SIZE) + 1), np.int32)
        self.filled = np.zeros(requests, np.int32)

    def submit(self, name: int, ids: Int32Array, outputs: int) -> None:
        """Add it."""
        self.scheduler.add_request(self.make_request(name, ids.tolist(), BLOCK_SIZE, max_tokens=outputs))

    def step(self) -> int:
        """Schedule, append to rows, update from output."""
        output = self.scheduler.schedule()
        for new in output.scheduled_new_reqs:
            self._append(int(new.req_id), new.block_ids[0])
        running = output.scheduled_cached_reqs
        for name, blocks in zip(running.req_ids, running.new_block_ids, strict=True):
            if blocks:
                self._append(int(name), blocks[0])
        names = [*output.num_scheduled_tokens]
        places = {name: at for at, name in enumerate(names)}
        self.scheduler.update_from_output(output, self.output(names, places, [[SAMPLED]] * len(names)))
        return len(names)

    def _append(self, row: int, blocks: Sequence[int]) -> None:
        start = self.filled[row]
        self.filled[row] += len(blocks)
        self.table[row, start : start + len(blocks)] = blocks


class NanoVllmStepping:
    """nano-vllm's `Scheduler`, and rows made anew as its model runner does."""

    def __init__(self, blocks: int, requests: int, longest: int) -> None:
        from pagedkv.bench import peer_nano_vllm as peer  # noqa: PLC0415  (a peer)
        from pagedkv.bench.peer_nano_vllm_scheduler import make_nano_vllm_scheduler  # noqa: PLC0415

        limits = PeerLimits(requests * longest, requests)
        self.peer, self.scheduler = peer, make_nano_vllm_scheduler(Config(blocks, BLOCK_SIZE), limits)
        self.make_sequence = peer.sequence_class(BLOCK_SIZE)

    def submit(self, name: int, ids: Int32Array, outputs: int) -> None:  # noqa: ARG002  (it numbers them itself)
        """Add it."""
        params = self.peer.sequences.SamplingParams(max_tokens=outputs, ignore_eos=True)
        self.scheduler.add(self.make_sequence(ids.tolist(), params))

    def step(self) -> int:
        """Schedule, make rows, postprocess."""
        batch, is_prefill = self.scheduler.schedule()
        self.table = nano_vllm_rows(batch)
        self.scheduler.postprocess(batch, [SAMPLED] * len(batch), is_prefill)
        return len(batch)


class MiniSglangStepping:
    """mini-sglang's `Scheduler`, with the tensors of the model's inputs, which it makes while it schedules."""

    def __init__(self, blocks: int, requests: int, longest: int) -> None:
        from pagedkv.bench import peer_mini_sglang as peer  # noqa: PLC0415  (a peer)
        from pagedkv.bench.peer_mini_sglang_scheduler import make_mini_sglang_scheduler  # noqa: PLC0415

        self.peer = peer
        limits = PeerLimits(requests * longest, requests, prefix_cache=True)
        self.scheduler = make_mini_sglang_scheduler(Config(blocks, BLOCK_SIZE), limits, longest)
        self.scheduler.send_result = lambda _: None
        self.sampled = torch.full((requests,), SAMPLED, dtype=torch.int32)

    def submit(self, name: int, ids: Int32Array, outputs: int) -> None:
        """Process its message."""
        params = self.peer.core.SamplingParams(max_tokens=outputs, ignore_eos=True)
        with host_only():
            self.scheduler._process_one_msg(self.peer.messages.UserMsg(name, torch.from_numpy(ids), params))  # noqa: SLF001  (the parts of its loop have private names)

    def step(self) -> int:
        """Schedule, count as computed, process."""
        with host_only():
            forward = self.scheduler._schedule_next_batch()  # noqa: SLF001
            output = self.scheduler._forward(forward)  # noqa: SLF001
            self.scheduler._process_last_data((forward, (output.next_tokens_gpu, self.sampled, output)))  # noqa: SLF001
        return len(forward.batch.reqs)


class TransformersStepping:
    """transformers' `ContinuousBatchProcessor` without its tensors; rows as its fast path for decoding fills them."""

    def __init__(self, blocks: int, requests: int, longest: int) -> None:
        from pagedkv.bench import peer_transformers_scheduler as peer  # noqa: PLC0415  (a peer)
        from transformers.generation.continuous_batching.requests import RequestState  # noqa: PLC0415

        self.make_state = RequestState
        limits = PeerLimits(requests * longest, requests, prefix_cache=True)
        self.processor = peer.Processor(Config(blocks, BLOCK_SIZE), limits)
        self.processor.inputs_and_outputs.prepare_batch_tensors = self._compute
        self.table = torch.zeros((1, requests, blocks_needed(longest, BLOCK_SIZE) + 2), dtype=torch.int32)

    def submit(self, name: int, ids: Int32Array, outputs: int) -> None:
        """Put it into its queue."""
        state = self.make_state(str(name), ids.tolist(), max_new_tokens=outputs, eos_token_id=-1)
        self.processor.input_queue.put(state)

    def _compute(self, *, requests_in_batch: list[Any], **_sizes: object) -> None:
        for row, future in enumerate(requests_in_batch):
            state, count = future.state, future.query_length
            if count == 1:
                self.processor.cache.fill_block_table(state.request_id, state.position_offset, 1, self.table[:, row])
            state.position_offset += count
        self.batch = requests_in_batch

    def step(self) -> int:
        """Prepare a batch, update it."""
        self.processor.prepare_next_batch()
        self.processor.results = (self.batch, [SAMPLED] * len(self.batch))
        self.processor.update_batch()
        return len(self.batch)


class SchedulerStep:
    """A step of so many running requests. Timed: `step`."""

    def __init__(self, make: MakeStepping, requests: int, steps: int) -> None:
        each = blocks_needed(CONTEXT + BLOCK_SIZE + steps + 2, BLOCK_SIZE) + 1
        self.requests = requests
        self.stepping = make(requests * each, requests, each * BLOCK_SIZE)
        for name, ids in zip(range(requests), prompts(CONTEXT + BLOCK_SIZE), strict=False):
            self.stepping.submit(name, ids[: CONTEXT + name % BLOCK_SIZE].copy(), steps + 2)
        computed = 0
        while computed < requests:
            computed += self.stepping.step()

    def turn(self) -> float:
        """Take a step in which all take part."""
        start = time.perf_counter()
        rows = self.stepping.step()
        took = time.perf_counter() - start
        if rows != self.requests:
            raise ValueError(f"a step had {rows} rows, not {self.requests}")
        return took

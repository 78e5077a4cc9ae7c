"""What a step of the loop costs outside kernels: `python -m pagedkv.bench.loop_speed [--sequences 2000]`.

A decoding batch in its steady state, a row in sixteen taking a block each step. The device does nothing here, so what
is measured is the host's part alone: scheduling, the cache, tokens, plan of attention, staging, table edits, tokens
taken in. What CUDA takes on the host to queue kernels is not in it; `Step.host_us` of a loop on a GPU has it. Where the
CPU computes on the same cores in between, every part finds cold caches and takes about twice as long.

Printed are medians of steps. Exit status 0 if the sum is within the target for 2,000 sequences, 1 if not.
"""

import argparse
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import torch
from pagedkv.impl.cache import BlockCache
from pagedkv.impl.device import ThreadDevice, ThreadFence, Work
from pagedkv.impl.loop import Loop
from pagedkv.impl.model import Projection
from pagedkv.impl.requests import Limits, Request
from pagedkv.impl.scheduler import Scheduler
from pagedkv.impl.staging import StagingPool
from pagedkv.impl.storage import KvShape, Storage
from pagedkv.spec.counts import counted
from rich.console import Console
from rich.table import Table
from torch import Tensor

SEQUENCES, TARGET_US = 2000, 1000.0
BLOCK_SIZE = 16
CONTEXT = 512  # positions; staggered by 0 to B - 1
WARM_UP = 5  # steps
SHAPE = KvShape(1, 1, 16, torch.float32)
MOST = 10**6
REST, WHOLE = "tokens, slots, table edits, queueing", "all outside kernels"


class IdleDevice(ThreadDevice):
    """A device that takes no time, since it does nothing: every token that it samples is 0."""

    def host_memory(self, size: int, dtype: torch.dtype) -> Tensor:
        """Allocate memory that holds 0."""
        return torch.zeros(size, dtype=dtype)

    def upload(self, work: Work) -> None:
        """Do nothing."""

    def launch(self, work: Work) -> ThreadFence:  # noqa: ARG002  (the signature is the protocol's)
        """Do nothing, and be done."""
        ended: Future[object] = Future()
        ended.set_result(None)
        return ThreadFence(ended)


class NoModel:
    """A model that is never called."""

    q_heads = 1

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Never."""
        raise NotImplementedError

    def project(self, layer: int, hidden: Tensor) -> Projection:
        """Never."""
        raise NotImplementedError

    def mix(self, layer: int, hidden: Tensor, attention: Tensor) -> Tensor:
        """Never."""
        raise NotImplementedError

    def sample(self, hidden: Tensor, ordinals: Tensor) -> Tensor:
        """Never."""
        raise NotImplementedError


class Clock:
    """Adds up the time of each part of a step; parts do not lie in one another."""

    def __init__(self) -> None:
        self.parts_us: dict[str, float] = defaultdict(float)

    def watching(self, part: str, watched: type[Any], *methods: str) -> Any:
        """Return a subclass whose methods count as a part."""
        timed = {method: self._timed(part, getattr(watched, method)) for method in methods}
        return type(watched.__name__, (watched,), timed)

    def _timed(self, part: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            begin = time.perf_counter()
            answer = method(*arguments, **named)
            self.parts_us[part] += (time.perf_counter() - begin) * 1e6
            return answer

        return call


def make_loop(sequences: int, steps: int, clock: Clock) -> Loop:
    """Return a loop all of whose sequences are about to decode, its parts watched."""
    blocks = sequences * ((CONTEXT + BLOCK_SIZE + steps) // BLOCK_SIZE + 2)
    storage = clock.watching("plan of attention", Storage, "plan")(SHAPE, blocks, BLOCK_SIZE)
    scheduler = clock.watching("schedule: with extend and launch", Scheduler, "schedule")
    scheduler = clock.watching("complete: with retire", scheduler, "complete")
    cache = BlockCache(blocks, BLOCK_SIZE, rows=sequences, max_blocks_per_row=blocks // sequences)
    everything = Limits(max_tokens_per_step=2**31, max_running=sequences, steps_ahead=2)
    device = IdleDevice()
    loop = Loop(scheduler(cache, everything), storage, NoModel(), device)
    loop.worker.staging = clock.watching("staging", StagingPool, "pack")(device)
    for request in range(sequences):
        prompt = np.full(CONTEXT + request % BLOCK_SIZE, request, np.int32)
        loop.submit(Request(request, prompt, outputs=steps + 1))
    for _ in range(WARM_UP):
        loop.step()
    return loop


def measure(sequences: int, steps: int) -> tuple[dict[str, float], int]:
    """Return the median microseconds of each part of a step, and the bytes that a step uploads."""
    clock = Clock()
    seen: dict[str, list[float]] = defaultdict(list)
    step_bytes = 0
    with make_loop(sequences, steps + WARM_UP + 1, clock) as loop:
        for _ in range(steps):
            clock.parts_us.clear()
            begin = time.perf_counter()
            step_bytes = loop.step().bytes_uploaded
            whole_us = (time.perf_counter() - begin) * 1e6
            parts_us = dict(clock.parts_us)
            parts_us[REST] = whole_us - sum(parts_us.values())
            for part, part_us in (parts_us | {WHOLE: whole_us}).items():
                seen[part].append(part_us)
    return {part: statistics.median(times) for part, times in seen.items()}, step_bytes


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m pagedkv.bench.loop_speed", epilog="Example: python -m pagedkv.bench.loop_speed --steps 40"
    )
    parser.add_argument("--sequences", type=int, default=SEQUENCES, help=f"that decode; default {SEQUENCES}")
    parser.add_argument("--steps", type=int, default=60, help="that are measured; default 60")
    options = parser.parse_args(arguments)
    for name in ("sequences", "steps"):
        if not 1 <= getattr(options, name) <= MOST:
            parser.error(f"--{name} must be 1 to {MOST}, not {getattr(options, name)}")
    parts_us, step_bytes = measure(options.sequences, options.steps)
    whole_us = parts_us.pop(WHOLE)
    table = Table(
        "part",
        "us a step",
        title=f"{options.sequences:,} sequences decode, medians of {counted(options.steps, 'step')}",
    )
    for part, part_us in parts_us.items():
        table.add_row(part, f"{part_us:,.0f}")
    table.add_section()
    table.add_row(WHOLE, f"{whole_us:,.0f}")
    console = Console(emoji=False)
    console.print(table)
    console.print(f"{step_bytes:,} bytes go up in a step")
    target_us = TARGET_US * max(1.0, options.sequences / SEQUENCES)
    holds = whole_us <= target_us
    console.print(f"target: {target_us:,.0f} us outside kernels: {'holds' if holds else 'missed'}")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())

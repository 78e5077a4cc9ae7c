"""Requests that come and go, with each block size in a pool of the same bytes: prefix hits, evictions, TPOT, goodput.

A sweep's lengths stand side by side and none leaves. Here requests arrive, share prefixes, wait and leave, twice for
each block size, always through the real scheduler and cache:

- *in order, without a clock* (`replay_scheduled`): all wait from the start. What is hit, evicted and preempted follows
  from the requests and the pool alone, so two runs agree on it.
- *on the clock* (`replay_clocked`): requests arrive at their times, and a step lasts

      layers x what attention took here with this block size + the declared rest of a step

  where attention's part is in proportion to the positions that a step reads. All that comes of it (TPOT, TTFT, goodput)
  is computed from times that were measured, and no two runs agree on those.

Where no trace is given, requests are made of the lengths that were drawn: a fifth of each length is sampled, 512 tokens
at most, the rest is its prompt; every prompt begins with one of 20 system prompts of 1,024 tokens, as far as it goes;
they arrive at random, one a second in the mean. They show the mechanism. A real trace shows what it is worth.

Cost: that of two replays a block size.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pagedkv.bench.clocked_report import ClockedReport
from pagedkv.bench.clocked_trace import ClockSettings, replay_clocked
from pagedkv.bench.failures import BadInput
from pagedkv.bench.latency_meter import LatencyLimits
from pagedkv.bench.replay_arrivals import TrafficSettings
from pagedkv.bench.replay_queue import ReplaySettings
from pagedkv.bench.replay_scheduler import replay_scheduled
from pagedkv.bench.scheduler_report import SchedulerReport
from pagedkv.bench.step_time import StepTime
from pagedkv.bench.sweep_lengths import Lengths
from pagedkv.bench.trace_formats import TraceFormat
from pagedkv.bench.traces import Trace
from pagedkv.impl.requests import Limits
from pagedkv.spec.counts import counted

SAMPLED_SHARE, SAMPLED_MAX = 5, 512
SYSTEM_PROMPTS, SYSTEM_PROMPT_TOKENS, PREFIX_BLOCK_SIZE = 20, 1024, 64
COUNTED = (
    "steps", "finished", "failed", "prompt_tokens", "hit_tokens", "evictions", "preemptions", "recomputed_tokens",
    "peak_blocks", "peak_running",
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Traffic:
    """Requests, the pool that they share in bytes of K and V, and what a good one keeps to."""

    trace: Trace
    source: str
    pool_bytes: int
    speedup: float = 1.0
    latency_limits: LatencyLimits = field(default_factory=LatencyLimits)
    limits: Limits = field(default_factory=Limits)
    seed: int = 0

    @property
    def facts(self) -> dict[str, Any]:
        """What it is, for a report."""
        return {
            "source": self.source,
            "requests": len(self.trace),
            "prefix_ids": int(self.trace.prefix_ids.size),
            "pool_bytes": self.pool_bytes,
            "speedup": self.speedup,
            "ttft_limit_ms": self.latency_limits.ttft_ms,
            "max_tokens_per_step": self.limits.max_tokens_per_step,
            "max_running": self.limits.max_running,
        }


@dataclass(frozen=True, slots=True)
class TrafficFound:
    """What came of the requests with one block size: in order, and on the clock of `step_time`."""

    in_order: SchedulerReport
    step_time: StepTime
    clocked: ClockedReport

    def counts_as_json(self) -> dict[str, Any]:
        """Give what was counted in order: two runs agree on it."""
        report = self.in_order
        counts = {name: getattr(report.counts, name) for name in COUNTED}
        return {"blocks": report.blocks, "refused": report.refused, **counts, "hit_percent": report.hit_percent}

    def times_as_json(self) -> dict[str, Any]:
        """Give what was found on the clock: it follows from measured times."""
        counts = self.clocked.outcome.scheduled.counts
        return {
            "step_base_ms": self.step_time.base_ms,
            "step_context_ms": self.step_time.context_ms,
            "finished": counts.finished,
            "hit_tokens": counts.hit_tokens,
            "evictions": counts.evictions,
            "preemptions": counts.preemptions,
            **self.clocked.latency.as_json(),
        }


def drawn_traffic(lengths: Lengths, seed: int) -> Trace:
    """Make requests of lengths, as the head of this module says: each holds its length when it is done. O(lengths)."""
    random = np.random.Generator(np.random.PCG64([seed, 1]))  # another stream than that of the lengths
    requests = len(lengths)
    sampled = np.clip(lengths.final // SAMPLED_SHARE, 1, SAMPLED_MAX)
    prompt = lengths.final - sampled + 1
    gaps_s = random.exponential(1.0, requests)
    system_prompt = random.integers(0, SYSTEM_PROMPTS, requests)
    longest = SYSTEM_PROMPT_TOKENS // PREFIX_BLOCK_SIZE
    ids = np.minimum(prompt // PREFIX_BLOCK_SIZE, longest)
    starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(ids)))
    number = np.arange(starts[-1]) - np.repeat(starts[:-1], ids)
    return Trace(
        path=Path("drawn"),
        format=TraceFormat("drawn", PREFIX_BLOCK_SIZE),
        arrival_s=np.cumsum(gaps_s) - gaps_s[0],
        prompt_tokens=prompt,
        output_tokens=sampled,
        prefix_ids=np.repeat(system_prompt, ids) * longest + number,
        prefix_starts=starts,
    )


def require_prefix_ids(trace: Trace) -> Trace:
    """Give a trace that has prefix ids. Errors: `BadInput`."""
    if not trace.prefix_ids.size:
        what = f"no request of this {trace.format.name} trace has prefix ids"
        raise BadInput(f"--prefix-trace {trace.path}", what, "give a Mooncake or derived ShareGPT trace")
    return trace


def step_time_of(layers: int, layer_ms: float, positions: float, model_step_ms: float) -> StepTime:
    """Give the time of a step: all layers' attention in proportion to the positions it reads, and the declared rest."""
    return StepTime(base_ms=model_step_ms, context_ms=layers * layer_ms / (positions / 1000))


def replay_traffic(
    traffic: Traffic, block_size: int, blocks: int, step_time: StepTime, on_gone: Callable[[int], None]
) -> TrafficFound | None:
    """Replay the requests with one block size, in order and on the clock; None where the pool has no block.

    `on_gone` hears how many requests have left, of both replays. Errors: `BadInput` for a pool beyond reason.
    """
    if not blocks:
        return None
    trace = traffic.trace
    drawn = TrafficSettings(seed=traffic.seed)
    settings = ReplaySettings(block_size=block_size, blocks=blocks)
    in_order = replay_scheduled(trace, settings, traffic.limits, drawn, on_finished=on_gone)
    clocked = replay_clocked(
        trace,
        settings,
        traffic.limits,
        drawn,
        ClockSettings(step_time=step_time, speedup=traffic.speedup, latency_limits=traffic.latency_limits),
        on_gone=lambda gone: on_gone(len(trace) + gone),
    )
    return TrafficFound(in_order, step_time, clocked)


def traffic_in_words(traffic: Traffic) -> str:
    """Say what the requests are, in a line."""
    shared = "with prefix ids" if traffic.trace.prefix_ids.size else "without prefix ids, so that nothing is hit"
    faster = "" if traffic.speedup == 1 else f", arriving {traffic.speedup:g} times as fast"
    requests = counted(len(traffic.trace), "request") + traffic.source.removeprefix("requests")
    return f"replayed: {requests}, {shared}{faster}"

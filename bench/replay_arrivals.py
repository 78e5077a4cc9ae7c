"""Requests in order of arrival, one by one: of a trace, or generated without end from the lengths of one.

A replay through the scheduler takes any iterator of `Arrival`s, so it never needs the whole of its traffic at once. A
trace is sorted by time, ties in file order. Generated traffic draws pairs of lengths from a trace, with replacement,
and lets them arrive as a Poisson process: the traffic of an hour becomes that of a week, and costs no memory, since it
is drawn as it is asked for, some thousand requests at a time.

Priorities and cancellations are drawn as well, from the seed, since no trace has any. A request without output tokens
samples one, since a prompt's launch does.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from pagedkv.bench.failures import BadInput
from pagedkv.bench.traces import Float64Array, Int64Array, Trace
from pagedkv.impl.requests import LOWEST_PRIORITY, Limits
from pagedkv.spec.counts import counted

DRAWN_AT_ONCE = 4096  # requests


class Arrival(NamedTuple):
    """A request and when it arrives, in the unit of the loop's clock: steps, or milliseconds."""

    request: int
    at: float
    prompt_tokens: int
    outputs: int
    priority: int = 0
    cancelled_after: int = -1  # steps after admission; 0: while it waits; -1: never


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficSettings:
    """What is made of a trace's requests: samples of each, how many are cancelled, whether they stop at the prompt."""

    samples: int = 1
    cancel_rate: float = 0.0
    prefill_only: bool = False
    seed: int = 0


def check_samples(samples: int, limits: Limits) -> None:
    """Refuse more samples of a request than may run."""
    if samples > limits.max_running:
        what = f"{counted(samples, 'sample')} a request, and {limits.max_running} sequences may run"
        raise BadInput("--samples", what, "give fewer, or a larger --max-running")


def blocks_needed_of(trace: Trace, block_size: int, traffic: TrafficSettings) -> Int64Array:
    """Give the blocks that each request of a trace needs in the end, 0 without a prompt; int64, file order."""
    need = traffic.samples * -(-(trace.prompt_tokens + _outputs(trace, traffic) - 1) // block_size)
    return np.where(trace.prompt_tokens > 0, need, 0)


def trace_arrivals(
    trace: Trace, order: Int64Array, at: Int64Array | Float64Array, traffic: TrafficSettings
) -> Iterator[Arrival]:
    """Give the requests of a trace in `order`, which arrive `at` these times. Cost: 24 bytes a request."""
    outputs = _outputs(trace, traffic)[order]
    random = np.random.default_rng(traffic.seed)
    priority, cancelled_after = _drawn(random, outputs, traffic.cancel_rate)
    columns = (order, at, trace.prompt_tokens[order], outputs, priority, cancelled_after)
    for start in range(0, len(order), DRAWN_AT_ONCE):
        part = (column[start : start + DRAWN_AT_ONCE].tolist() for column in columns)
        yield from map(Arrival._make, zip(*part, strict=True))


def generated_arrivals(
    lengths: Trace, requests: int, requests_per_s: float, traffic: TrafficSettings
) -> Iterator[Arrival]:
    """Draw so many requests from a trace's lengths, arriving at random at a mean rate; times are in milliseconds."""
    random = np.random.default_rng(traffic.seed)
    all_outputs, last_ms = _outputs(lengths, traffic), 0.0
    for start in range(0, requests, DRAWN_AT_ONCE):
        count = min(DRAWN_AT_ONCE, requests - start)
        chosen = random.integers(0, len(lengths), count)
        at_ms = last_ms + np.cumsum(random.exponential(1000 / requests_per_s, count))
        last_ms = float(at_ms[-1])
        outputs = all_outputs[chosen]
        priority, cancelled_after = _drawn(random, outputs, traffic.cancel_rate)
        columns = (np.arange(start, start + count), at_ms, lengths.prompt_tokens[chosen], outputs)
        part = (column.tolist() for column in (*columns, priority, cancelled_after))
        yield from map(Arrival._make, zip(*part, strict=True))


def _outputs(trace: Trace, traffic: TrafficSettings) -> Int64Array:
    """Give how many tokens each request of a trace samples, in file order."""
    if traffic.prefill_only:
        return np.ones(len(trace), np.int64)
    return np.maximum(trace.output_tokens, 1)


def _drawn(random: np.random.Generator, outputs: Int64Array, cancel_rate: float) -> tuple[Int64Array, Int64Array]:
    """Draw (priority, cancelled_after) of requests with so many outputs."""
    priority = random.integers(0, LOWEST_PRIORITY + 1, len(outputs))
    cancelled = random.random(len(outputs)) < cancel_rate
    return priority, np.where(cancelled, random.integers(0, outputs + 1), -1)

"""A step-time model of this machine: the loop runs with our kernels and a small model, each step timed, a line fitted.

What is timed is the whole of a step: scheduling, the cache, staging, kernels, sampling. Batches of several sizes and
contexts prefill in chunks and then decode; each batch runs several times, and of every step the shortest time counts,
since whatever else the machine does can only add to it.
Coefficients are fitted to the relative error, so that short steps count as much as long ones, and none is below 0.

The model is a toy (`lookup_model`) of two layers: a calibration says how this machine's steps grow, and not how long a
real model takes. For that, fit coefficients to a run of it. Cost: some ten seconds on two cores.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from pagedkv.bench.least_squares import non_negative_least_squares
from pagedkv.bench.lookup_model import LookupModel
from pagedkv.bench.step_time import COEFFICIENTS, StepTime, terms
from pagedkv.impl.cache import BlockCache
from pagedkv.impl.device import open_device
from pagedkv.impl.loop import Loop
from pagedkv.impl.requests import Limits, Request
from pagedkv.impl.scheduler import Scheduler
from pagedkv.impl.storage import KvShape, Storage

SHAPE = KvShape(2, 2, 64, torch.float32)
Q_HEADS, VOCABULARY, LONGEST = 8, 64, 1152
BATCHES = ((1, 64), (8, 64), (32, 64), (1, 1024), (8, 512), (16, 1024))  # sequences, prompt tokens of each
CHUNK, DECODE_STEPS, REPEATS, BLOCK_SIZE = 256, 16, 5, 16


class TimedStep(NamedTuple):
    """What a step computed, and how long it took."""

    prompt_tokens: int
    decoding_rows: int
    context_tokens: int
    ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A fitted model, the steps that it was fitted to, and its median error over them in per cent."""

    step_time: StepTime
    steps: int
    median_error_percent: float
    device: str


def calibrate(
    batches: tuple[tuple[int, int], ...] = BATCHES,
    repeats: int = REPEATS,
    on_batch: Callable[[str], None] = lambda _text: None,
) -> Calibration:
    """Time steps on this machine (its GPU, if it has one) and fit a model to them. `on_batch` hears what runs."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = LookupModel.make(SHAPE, Q_HEADS, VOCABULARY, LONGEST).to(torch.device(device))
    _run(model, device, *batches[0])  # whatever is done once, is done
    steps: list[TimedStep] = []
    for sequences, prompt_tokens in batches:
        on_batch(f"{sequences} x {prompt_tokens} tokens")
        runs = [_run(model, device, sequences, prompt_tokens) for _ in range(repeats)]
        steps += (same[0]._replace(ms=min(step.ms for step in same)) for same in zip(*runs, strict=True))
    step_time = fit(steps)
    errors = [abs(step_time.step_ms(*step[:3]) - step.ms) / step.ms for step in steps]
    return Calibration(
        step_time=step_time, steps=len(steps), median_error_percent=100 * float(np.median(errors)), device=device
    )


def fit(steps: list[TimedStep]) -> StepTime:
    """Fit the coefficients to timed steps: least squares of the relative error, none below 0. O(steps)."""
    prompt_tokens, decoding_rows, context_tokens, ms = np.array(steps, np.float64).T
    design = np.stack(np.broadcast_arrays(*terms(prompt_tokens, decoding_rows, context_tokens)), axis=1)
    coefficients = non_negative_least_squares(design / ms[:, None], np.ones_like(ms)).tolist()
    return StepTime(**dict(zip(COEFFICIENTS, coefficients, strict=True)))


def _run(model: LookupModel, device: str, sequences: int, prompt_tokens: int) -> list[TimedStep]:
    """Run a batch to its end, timed step by step."""
    blocks = sequences * (-(-(prompt_tokens + DECODE_STEPS) // BLOCK_SIZE) + 1)
    cache = BlockCache(blocks, BLOCK_SIZE, rows=sequences)
    storage = Storage(SHAPE, blocks, BLOCK_SIZE, device=torch.device(device))
    steps = []
    limits = Limits(max_tokens_per_step=CHUNK, max_running=sequences, prefix_cache=False)
    with Loop(Scheduler(cache, limits), storage, model, open_device(device)) as loop:
        for request in range(sequences):
            prompt = (np.arange(prompt_tokens) + request) % VOCABULARY
            loop.submit(Request(request, prompt.astype(np.int32), outputs=DECODE_STEPS))
        while loop.scheduler.running or loop.scheduler.waiting:
            start_s = time.perf_counter()
            plan, _ = loop.plan()
            assert plan.launch is not None, "there is room for all"
            decoding = int(loop.scheduler.serving.flights[plan.launch.id].decoding.sum())
            loop.collect()
            taken_ms = (time.perf_counter() - start_s) * 1e3
            computed = int(plan.counts.sum())
            steps.append(TimedStep(computed - decoding, decoding, int(plan.launch.lengths.sum()), taken_ms))
    return steps

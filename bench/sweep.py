"""A sweep: every block size takes the same sequences through a real manager and the same memory through the kernels.

First all batches are allocated, then decode steps go round the block sizes in turns, the first round of them not
timed. What the manager counts depends on lengths and steps alone, so two runs with one seed agree on it; how many of
the steps are also timed depends on the machine: after `seconds_max` the kernels stop and the manager goes on alone.

Every layer is taken to keep every token, as this project's manager does: a model's windows are not used.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from pagedkv.bench.failures import BadInput
from pagedkv.bench.kernel_timing import measure_ceilings
from pagedkv.bench.sweep_batch import ActiveBatch
from pagedkv.bench.sweep_kernel_times import read_kernel_times
from pagedkv.bench.sweep_kernels import (
    Latencies,
    LayerShape,
    LayerSteps,
    NoiseMemory,
    layer_in_words,
    layer_of,
    pool_bytes_max,
    scaled,
)
from pagedkv.bench.sweep_lengths import Lengths
from pagedkv.bench.sweep_report import SweepRow
from pagedkv.bench.sweep_traffic import Traffic, replay_traffic, step_time_of
from pagedkv.kernels.arguments import Layout
from pagedkv.spec.counts import counted
from pagedkv.spec.ledger import ModelShape, Terms, token_bytes, usable_blocks

TIMED_STEPS_MIN = 2  # whatever the time
SPARE = 9  # the default pool has a ninth more than the tokens: a tenth of it is free where nothing is wasted


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSettings:
    """What to sweep. `pool_bytes` is the declared memory for K and V (None: a ninth more than the tokens take).

    `steps` decode steps are timed while `seconds_max` lasts. With `kernel_times` nothing is timed here.
    """

    model: ModelShape
    lengths: Lengths
    block_sizes: tuple[int, ...]
    dtype: torch.dtype
    layout: Layout = "NHD"
    pool_bytes: int | None = None
    steps: int = 8
    seconds_max: float = 120.0
    model_step_ms: float = 0.0
    seed: int = 0
    device: torch.device
    kernel_times: Path | None = None


@dataclass(frozen=True, slots=True)
class Sweep:
    """What a sweep found, one row a block size, and what its latencies are worth.

    `mechanism_only`: the layer was scaled down, or ran on a CPU. `copy_bytes_per_s` is this run's memory limit.
    """

    rows: list[SweepRow]
    pool_bytes: int
    layer: LayerShape
    measured: str
    mechanism_only: bool
    copy_bytes_per_s: float | None


def sweep(settings: SweepSettings, on_step: Callable[[int], None] = lambda _steps: None) -> Sweep:
    """Sweep. `on_step` hears how many allocations and steps are done, of `work_of(settings)`. Errors: `BadInput`."""
    lengths, model, sizes = settings.lengths, settings.model, settings.block_sizes
    terms = [Terms(block_size=size, dtype_bytes=settings.dtype.itemsize) for size in sizes]
    a_token = token_bytes(model, terms[0])
    pool_bytes = settings.pool_bytes or a_token * (lengths.tokens + -(-lengths.tokens // SPARE))
    whole = layer_of(model, len(lengths), settings.dtype, settings.layout)
    times = read_kernel_times(settings.kernel_times, whole, list(sizes)) if settings.kernel_times else None
    room = [usable_blocks(model, of_size, pool_bytes) for of_size in terms]
    if not any(room):  # found out before minutes are spent
        what = f"{pool_bytes:,} bytes do not hold one block of {counted(min(sizes), 'token')} of {model.name}"
        raise BadInput("--memory", what, "give more, as in 64GiB")
    batches = []
    for size, blocks in zip(sizes, room, strict=True):
        batches.append(ActiveBatch(lengths, size, blocks, settings.steps + 1))
        batches[-1].allocate()
        on_step(len(batches))
    if times is not None:
        _steps_alone(batches, settings.steps + 1)
        positions = lengths.tokens + len(lengths) * (settings.steps + 1)
        latencies = [times.latencies(whole, positions, size) for size in sizes]
        layer, measured, copy, mechanism = whole, f"{settings.kernel_times} ({times.machine})", None, False
    else:
        layer, latencies, copy = _steps_on_kernels(settings, whole, batches, on_step)
        measured = f"{_name_of(settings.device)}: {layer_in_words(layer, whole)}"
        mechanism = settings.device.type == "cpu" or layer != whole
    rows = [
        SweepRow(batch.counts, batch.seconds, latency, a_token, model.layers, settings.model_step_ms)
        for batch, latency in zip(batches, latencies, strict=True)
    ]
    return Sweep(rows, pool_bytes, layer, measured, mechanism, copy)


def add_traffic(
    settings: SweepSettings, found: Sweep, traffic: Traffic, on_gone: Callable[[int], None] = lambda _gone: None
) -> Sweep:
    """Add to each row what comes of requests that come and go, on the clock of that row's latency.

    `on_gone` hears how many requests have left, of two replays a block size. Errors: `BadInput`.
    """
    rows: list[SweepRow] = []
    for row, blocks in zip(found.rows, traffic_blocks(settings, traffic), strict=True):
        latency = row.latencies
        step_time = step_time_of(row.layers, latency.median_ms, latency.positions, row.model_step_ms)
        before = 2 * len(rows) * len(traffic.trace)

        def gone(requests: int, before: int = before) -> None:
            on_gone(before + requests)

        outcome = replay_traffic(traffic, row.counts.block_size, blocks, step_time, gone)
        rows.append(replace(row, traffic=outcome))
    return replace(found, rows=rows)


def traffic_blocks(settings: SweepSettings, traffic: Traffic) -> list[int]:
    """Give the blocks of each size in the pool of the replays. Errors: `BadInput` where there is none of any."""
    terms = [Terms(block_size=size, dtype_bytes=settings.dtype.itemsize) for size in settings.block_sizes]
    blocks = [usable_blocks(settings.model, of_size, traffic.pool_bytes) for of_size in terms]
    if not any(blocks):
        what = f"{traffic.pool_bytes:,} bytes do not hold one block of {settings.model.name}"
        raise BadInput("--traffic-memory", what, "give more, as in 64GiB")
    return blocks


def work_of(settings: SweepSettings) -> int:
    """Give how many allocations and steps a sweep will report."""
    return len(settings.block_sizes) * (settings.steps + 2)


def _steps_alone(batches: list[ActiveBatch], steps: int) -> None:
    for _ in range(steps):
        for batch in batches:
            batch.retire(batch.step())


def _steps_on_kernels(
    settings: SweepSettings, whole: LayerShape, batches: list[ActiveBatch], on_step: Callable[[int], None]
) -> tuple[LayerShape, list[Latencies], float]:
    """Run the decode steps, in turns over the block sizes; give the layer that was timed, and the times."""
    final = settings.lengths.final + settings.steps + 1
    needed = [np.cumsum(-(-final // size)) for size in settings.block_sizes]
    slots = np.max([(blocks + 1) * size for blocks, size in zip(needed, settings.block_sizes, strict=True)], axis=0)
    layer = scaled(whole, slots, pool_bytes_max(settings.device))
    last = layer.sequences - 1
    memory = NoiseMemory(layer, int(slots[last]), settings.device)
    layers = [
        LayerSteps(memory, size, int(blocks[last]), batch.cache.blocks, settings.seed)
        for size, blocks, batch in zip(settings.block_sizes, needed, batches, strict=True)
    ]
    copy = measure_ceilings(settings.device).copy_bytes_per_s
    ends_s = time.monotonic() + settings.seconds_max
    done = len(batches)
    for step in range(settings.steps + 1):
        on_kernels = step <= TIMED_STEPS_MIN or time.monotonic() < ends_s
        first = step % len(batches)  # another one each round: a machine that slows down hits each of them
        for number in (*range(first, len(batches)), *range(first)):
            batch = batches[number]
            launch = batch.step()
            if on_kernels:
                layers[number].run(launch, copy, timed=step > 0)
            batch.retire(launch)
            done += 1
            on_step(done)
    return layer, [each.latencies() for each in layers], copy


def _name_of(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"this CPU, {counted(torch.get_num_threads(), 'thread')}"

"""Timing of kernels: medians of alternating calls on a CPU, CUDA events and graphs on a GPU, ceilings in the same run.

What takes turns is comparable: a shared machine varies twofold over minutes, so on a CPU all candidates for a job run
A B C A B C. On a GPU a call below a few hundred microseconds is captured into a CUDA graph and replayed, since
otherwise one measures the host; what cannot be captured (a peer) is timed in a plain loop.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

Call = Callable[[], object]
ROUNDS = 7
CALLS_A_GRAPH = 20
SHORT_US = 400.0
GPU_TIME_US = 60_000.0  # about how long one measurement may take on the GPU


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What this device reached in this run: bytes/s of a device copy (read and write both counted), bf16 FLOP/s."""

    copy_bytes_per_s: float
    matmul_flops_per_s: float


def measure_ceilings(device: torch.device) -> Ceilings:
    """Measure copy and matrix product. On a CPU with sizes that fit a few tenths of a second."""
    is_gpu = device.type == "cuda"
    numbers = 2**29 if is_gpu else 2**25
    source = torch.zeros(numbers, dtype=torch.bfloat16, device=device)
    target = torch.empty_like(source)
    copy_us = measure(lambda: target.copy_(source), device)
    side = 8192 if is_gpu else 1024
    left = torch.randn(side, side, device=device).bfloat16()
    matmul_us = measure(lambda: left @ left, device)
    return Ceilings(2 * 2 * numbers / copy_us * 1e6, 2 * side**3 / matmul_us * 1e6)


def measure(call: Call, device: torch.device, *, capture: bool = True) -> float:
    """Return microseconds a call, median. `call` may take turns over several inputs by itself."""
    if device.type != "cuda":
        return measure_in_turns({"call": call})["call"]
    for _ in range(3):
        call()
    torch.cuda.synchronize(device)
    once_us = _events_us(call, 3)
    calls = max(3, min(200, int(GPU_TIME_US / ROUNDS / max(once_us, 1.0))))
    if capture and once_us < SHORT_US:
        graph = captured([call] * CALLS_A_GRAPH)
        return statistics.median(_events_us(graph.replay, 5) / CALLS_A_GRAPH for _ in range(ROUNDS))
    return statistics.median(_events_us(call, calls) for _ in range(ROUNDS))


def captured(calls: list[Call]) -> torch.cuda.CUDAGraph:
    """Capture calls into one CUDA graph, after a warm-up on a side stream. What synchronises fails here."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's own
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def measure_in_turns(calls: dict[str, Call], rounds: int = ROUNDS) -> dict[str, float]:
    """Return microseconds a call for each, medians over rounds in which each runs once (CPU)."""
    for call in calls.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            times[name].append((time.perf_counter() - began) * 1e6)
    return {name: statistics.median(taken) for name, taken in times.items()}


def _events_us(call: Call, calls: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # torch's own
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    elapsed_ms: float = begin.elapsed_time(end)
    return elapsed_ms * 1e3 / calls

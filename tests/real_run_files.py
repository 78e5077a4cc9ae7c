"""A miniature measured run whose step times are known: what an engine of these coefficients would have left behind.

The engine is a replay with the coefficients, so what a fit has to find is known to the last digit. Its pool is small
enough for preemptions, its rows, tokens and contexts vary, and the monotonic clock has an origin of its own.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pagedkv.bench.real_run_replay import ReplayedRun, RunSettings, replay_run
from pagedkv.bench.step_time import StepTime
from pagedkv.bench.traces import read_trace
from pagedkv.impl.requests import Limits

KNOWN = StepTime(base_ms=12.0, token_ms=0.05, row_ms=0.2, context_ms=1.5)
SETTINGS = RunSettings(blocks=220, block_size=16, limits=Limits(max_tokens_per_step=256, max_running=24, steps_ahead=2))
WALL_ZERO_S, MONOTONIC_ZERO_S, HANDED_OVER_S = 1_700_000_000.0, 5_000.0, 0.0005
REQUESTS = 64


class MiniatureRun(NamedTuple):
    """The trace, the run's meta file, and the replay that was taken for the engine."""

    trace: Path
    meta: Path
    engine: ReplayedRun


def write_run(folder: Path, step_time: StepTime = KNOWN, settings: RunSettings = SETTINGS) -> MiniatureRun:
    """Write a trace and the three files of its run."""
    random = np.random.default_rng(5)
    trace = folder / "trace.jsonl"
    arrival_ms = np.cumsum(random.exponential(8.0, REQUESTS)).round(3)
    longest_prompt = np.where(np.arange(REQUESTS) // 8 % 2, 40, 600)  # in turns: few long sequences run, or many short
    prompts, outputs = random.integers(8, longest_prompt), random.integers(20, 150, REQUESTS)
    columns = zip(arrival_ms.tolist(), prompts.tolist(), outputs.tolist(), strict=True)
    _write_lines(trace, [{"timestamp": at, "input_length": p, "output_length": o} for at, p, o in columns])
    engine = replay_run(read_trace(trace), settings, step_time)
    meta = folder / "tiny.meta.json"
    limits = settings.limits
    meta.write_text(
        json.dumps(
            {
                "vllm_version": "0.0.1",
                "num_requests": REQUESTS,
                "engine_kwargs": {
                    "max_num_batched_tokens": limits.max_tokens_per_step,
                    "max_num_seqs": limits.max_running,
                },
                "kv_cache": {
                    "num_gpu_blocks": settings.blocks + 1,
                    "block_size": settings.block_size,
                    "enable_prefix_caching": limits.prefix_cache,
                },
                "hardware": {"device_name": "a known engine"},
            }
        ),
        encoding="utf-8",
    )
    rows = [_request(engine, number, prompts, outputs) for number in range(REQUESTS)]
    _write_lines(folder / "tiny.requests.jsonl", rows)
    at_s = np.arange(1, int(engine.last_token_s.max()) + 2)
    ticks = zip(at_s, *engine.at(at_s.astype(np.float64)), strict=True)
    lines = ["t,prompt_throughput,gen_throughput,running,waiting,kv_cache_pct"]
    lines += [f"{at},0.0,0.0,{running:g},{waiting:g},{usage:.2f}" for at, running, waiting, usage in ticks]
    (folder / "tiny.timeseries.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return MiniatureRun(trace, meta, engine)


def _request(engine: ReplayedRun, number: int, prompts: Any, outputs: Any) -> dict[str, Any]:
    arrival, admitted, first, last = (
        float(column[number])
        for column in (engine.arrival_s, engine.admitted_s, engine.first_token_s, engine.last_token_s)
    )
    return {
        "request_id": f"bench-{number}",
        "input_toks": int(prompts[number]),
        "output_toks": int(outputs[number]),
        "arrival_time": WALL_ZERO_S + arrival,
        "queued_ts": MONOTONIC_ZERO_S + min(arrival + HANDED_OVER_S, admitted),
        "scheduled_ts": MONOTONIC_ZERO_S + admitted,
        "first_token_ts": MONOTONIC_ZERO_S + first,
        "last_token_ts": MONOTONIC_ZERO_S + last,
    }


def _write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")

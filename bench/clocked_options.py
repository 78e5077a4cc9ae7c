"""The options of `pagedkv replay` that belong to simulated time, and what they become.

`--step-time` makes a replay a clocked one. The others say nothing without it, so they are refused by name then.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from pagedkv.bench.clocked_trace import ClockSettings
from pagedkv.bench.failures import BadInput
from pagedkv.bench.latency_meter import LatencyLimits
from pagedkv.bench.progress import LateSpinner
from pagedkv.bench.result_files import output_file, write_json
from pagedkv.bench.scheduler_options import PolicyName
from pagedkv.bench.search_options import output_folder
from pagedkv.bench.step_time import StepTime, read_step_time
from rich.console import Console

CALIBRATE = "calibrate"
CALIBRATION_FILE = Path("pagedkv-out/replay/step_time.json")
REQUESTS_MAX = 1 << 30

StepTimeText = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL",
        help="Replay on simulated time: base=MS,token=MS,row=MS,context=MS (of a step, a computed token, a decoding"
        " row, a thousand positions read), a JSON file of these, or calibrate.",
    ),
]
Speedup = Annotated[
    float | None, typer.Option(min=1e-6, max=1e6, help="Let requests arrive so many times as fast (1).")
]
TtftMs = Annotated[float | None, typer.Option(min=0.0, max=1e12, help="Goodput: TTFT of a request at most.")]
TpotMs = Annotated[float | None, typer.Option(min=0.0, max=1e12, help="Goodput: mean TPOT of a request at most.")]
Generate = Annotated[
    int | None,
    typer.Option(min=1, max=REQUESTS_MAX, help="Draw so many requests from the trace's lengths, arriving at random."),
]
Rate = Annotated[
    float | None,
    typer.Option(min=1e-6, max=1e9, help="Requests a second of --generate (by default the mean of the trace)."),
]


_OPTIONS = ("step_time", "speedup", "ttft_ms", "tpot_ms", "generate", "rate")


def clock_settings(policy: PolicyName, step_ms: float | None, given: Mapping[str, Any]) -> ClockSettings | None:
    """Return what the options say, None without `--step-time`; `given` may have others. Errors: `BadInput`."""
    chosen = {name: given[name] for name in _OPTIONS if given[name] is not None}
    if "step_time" not in chosen:
        if chosen:
            option = f"--{next(iter(chosen)).replace('_', '-')}"
            raise BadInput(option, "only a replay on simulated time has that", "give --step-time as well")
        return None
    text: str = chosen["step_time"]
    if policy is PolicyName.RESERVE:
        raise BadInput(f"--step-time {text}", "the policy reserve has no clock", "give --policy fcfs or priority")
    if step_ms is not None:
        raise BadInput(f"--step-ms {step_ms:g}", "--step-time says how long a step lasts", "give one of them")
    if "rate" in chosen and "generate" not in chosen:
        raise BadInput("--rate", "a trace has arrivals of its own", "give --generate, or --speedup to hurry them")
    return ClockSettings(
        step_time=_calibrated() if text == CALIBRATE else read_step_time(text),
        speedup=chosen.get("speedup", 1.0),
        generate=chosen.get("generate"),
        requests_per_s=chosen.get("rate"),
        latency_limits=LatencyLimits(ttft_ms=chosen.get("ttft_ms"), tpot_ms=chosen.get("tpot_ms")),
    )


def _calibrated() -> StepTime:
    """Measure a model on this machine, print it and save it."""
    from pagedkv.bench.step_calibration import calibrate  # noqa: PLC0415  (torch takes seconds to import)

    output_folder(CALIBRATION_FILE.parent, None)
    with LateSpinner("calibration") as spinner:
        calibration = calibrate(on_batch=spinner.says)
    CALIBRATION_FILE.parent.mkdir(parents=True, exist_ok=True)
    write_json(output_file(CALIBRATION_FILE, "--step-time"), asdict(calibration))
    words = calibration.step_time.in_words()
    Console(emoji=False, soft_wrap=True, highlight=False).print(
        f"step time of a small model on this machine's {calibration.device}, from {calibration.steps} steps:"
        f" {words} (median error {calibration.median_error_percent:.1f} %), saved in {CALIBRATION_FILE}"
    )
    return calibration.step_time

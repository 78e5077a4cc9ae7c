"""The options of `pagedkv replay` that belong to a scheduler's policy, and what they become.

Under the policy `reserve` nothing is scheduled, so an option that would be without effect there is refused by name, not
passed over. That is why all of them are without a value until one is given.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer
from pagedkv.bench.failures import BadInput
from pagedkv.bench.replay_arrivals import TrafficSettings
from pagedkv.impl.requests import Limits

MOST = 1 << 31


class PolicyName(StrEnum):
    """Who is admitted when: by reservation of the final length, or by a scheduler's policy."""

    RESERVE = "reserve"
    FCFS = "fcfs"
    PRIORITY = "priority"


Policy = Annotated[
    PolicyName,
    typer.Option(help="Admit by reservation of the final length, or let the scheduler deal with a pool that is full."),
]
PrefixCache = Annotated[
    bool | None,
    typer.Option("--prefix-cache/--no-prefix-cache", help="Share the blocks of equal prefixes (by default: yes)."),
]
StepsAhead = Annotated[int | None, typer.Option(min=1, max=2, help="Launches in flight at most (1).")]
MaxTokensPerStep = Annotated[int | None, typer.Option(min=1, max=MOST, help="Positions a step writes at most (2048).")]
MaxRunning = Annotated[int | None, typer.Option(min=1, max=MOST, help="Sequences that run at most (1024).")]
Samples = Annotated[int | None, typer.Option(min=1, max=MOST, help="Samples of each request (1).")]
CancelRate = Annotated[
    float | None, typer.Option(min=0.0, max=1.0, help="How likely each request is cancelled, at a drawn moment (0).")
]
PrefillOnly = Annotated[bool | None, typer.Option("--prefill-only", help="Let each request end with its first token.")]

_LIMITS = ("max_tokens_per_step", "max_running", "steps_ahead", "prefix_cache")
_TRAFFIC = ("samples", "cancel_rate", "prefill_only")


def scheduler_settings(
    policy: PolicyName, given: Mapping[str, Any], seed: int
) -> tuple[Limits, TrafficSettings] | None:
    """Return what the options say, None under the policy `reserve`; `given` may have others. Errors: `BadInput`."""
    chosen = {name: given[name] for name in (*_LIMITS, *_TRAFFIC) if given[name] is not None}
    if policy is PolicyName.RESERVE:
        if chosen:
            option = f"--{next(iter(chosen)).replace('_', '-')}"
            raise BadInput(option, "the policy reserve schedules nothing", "give --policy fcfs or --policy priority")
        return None
    limits = {"max_running": 1024} | {name: value for name, value in chosen.items() if name in _LIMITS}
    traffic = {name: value for name, value in chosen.items() if name in _TRAFFIC}
    return Limits(policy="fcfs" if policy is PolicyName.FCFS else "priority", **limits), TrafficSettings(
        seed=seed, **traffic
    )

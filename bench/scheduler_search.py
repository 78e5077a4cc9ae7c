"""Schedulers under the searching commands: which, in what scopes, and how a counterexample is kept.

`pagedkv explore --scheduler` and `pagedkv fuzz --scheduler` drive ours, or the policy itself, as they drive caches;
`fuzz` drives a stranger's, too, which is judged from outside (`foreign_search`). The sizes of launches and streams are
the scheduler's own business (one stream, as many launches as it is steps ahead), so options that set them are refused
beside it.
"""

from collections.abc import Callable
from typing import Annotated, Any

import typer
from pagedkv.bench import foreign_search
from pagedkv.bench.failures import BadInput
from pagedkv.bench.scheduler_adapter import ImplementedScheduler
from pagedkv.bench.targets import imported_target, of_another_kind
from pagedkv.spec.foreign_drivers import ForeignPlan
from pagedkv.spec.foreign_scheduler import ForeignScheduler
from pagedkv.spec.requests import Limits, Policy, Request
from pagedkv.spec.scheduler import ReferenceScheduler, Scheduler, SchedulerFactory
from pagedkv.spec.scheduler_alphabet import Operation, from_json, to_json
from pagedkv.spec.scheduler_drivers import SchedulerCase, SchedulerPlan, SchedulerSettings
from pagedkv.spec.scheduler_moves import Scope
from pagedkv.spec.state import Config

SCHEDULERS: dict[str, SchedulerFactory] = {"impl": ImplementedScheduler, "spec": ReferenceScheduler}
HUNTED = (Config(4, 2, launches=2), Limits(4, 4, steps_ahead=2, prefix_cache=True))  # by Hypothesis
BESIDE = {"scheduler", "sharing", "deep", "workers", "seconds", "out", "json_file", "seed", "target", "runs"}
BESIDE |= {"blocks", "block_size", "sequences", "hypothesis", "dask", "scopes", "operations"}

OfScheduler = Annotated[
    bool,
    typer.Option(
        "--scheduler", help="Drive a scheduler: in lock-step with the policy, or (fuzz) a stranger's from outside."
    ),
]


def scheduler_target(name: str) -> SchedulerFactory:
    """Return the scheduler that `--target` names, which shows its cache. Errors: `BadInput`."""
    factory, foreign = any_scheduler(name)
    if foreign:
        what = "a scheduler that is judged from outside, and explore walks those that show their cache"
        raise BadInput(f"--target {name}", what, f"drive it by pagedkv fuzz --scheduler --target {name}")
    return factory


def any_scheduler(name: str) -> tuple[Callable[..., Any], bool]:
    """Return the scheduler that `--target` names, ours or a stranger's, and whether it is judged from outside.

    Errors: `BadInput`.
    """
    if name in SCHEDULERS:
        return SCHEDULERS[name], False
    factory, where = imported_target(name), f"--target {name}"
    try:
        return factory, foreign_search.is_foreign(factory, where)
    except BadInput as bad:
        raise of_another_kind(factory, where, ForeignScheduler, Scheduler) or bad from bad


def scheduler_plan(target: str, config: Config | None, *, sharing: bool) -> SchedulerPlan | ForeignPlan:
    """Return how a scheduler is fuzzed. Errors: `BadInput`."""
    factory, foreign = any_scheduler(target)
    if foreign:
        return foreign_search.foreign_plan(factory, config, sharing=sharing, where=f"--target {target}")
    return SchedulerPlan(factory, config, sharing=sharing)


def only_beside(context: typer.Context) -> None:
    """See that no option was given that says nothing of schedulers. Errors: `BadInput`."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if name not in BESIDE and source is not None and source.name == "COMMANDLINE":
            option = f"--{name.replace('_', '-')}"
            raise BadInput(option, "has no meaning beside --scheduler", "leave out one of the two")


def scheduler_scope(blocks: int | None, block_size: int | None, live: int, *, deep: bool, sharing: bool) -> Scope:
    """Return what to walk: a few kinds of request, two steps ahead, a pool in which two requests are one too many."""
    requests = [Request(0, (0,), 2), Request(0, (0, 0), 2)] if sharing else [Request(0, 1, 2), Request(0, 2, 2)]
    if sharing and not deep:
        del requests[1]
    elif deep and not sharing:
        requests.append(Request(0, 1, 1, samples=2))
    requests = [request._replace(priority=number) for number, request in enumerate(requests)]
    policy, watermark = (Policy.PRIORITY, 1) if deep and not sharing else (Policy.FCFS, 0)
    limits = Limits(3, 2, steps_ahead=2, watermark_blocks=watermark, policy=policy, prefix_cache=sharing)
    config = Config(blocks or (2 if sharing and not deep else 3), block_size or 1, streams=1, launches=2)
    return Scope(config, limits, tuple(requests), live)


def case_to_json(case: SchedulerCase, trace: tuple[Operation, ...]) -> dict[str, Any]:
    """Return what a trace file says of a scheduler beside what it says of any target."""
    return {"limits": case.limits._asdict(), "operations": [to_json(operation) for operation in trace]}


def case_from_json(config: Config, limits: object, operations: list[Any], target: str) -> tuple[Any, tuple[Any, ...]]:
    """Return what a trace file of a scheduler says. Errors: `ValueError`, `BadInput`."""
    if not isinstance(limits, dict) or set(limits) != set(Limits._fields):
        raise ValueError(f"limits are {', '.join(Limits._fields)}")
    numbers = (limits["max_tokens_per_step"], limits["max_running"], limits["steps_ahead"], limits["watermark_blocks"])
    if any(type(number) is not int or not 0 <= number <= 2**20 for number in numbers) or min(numbers[:3]) < 1:
        raise ValueError(f"limits are numbers from 1, not {numbers}")
    read = Limits(*numbers, Policy(limits["policy"]), limits["prefix_cache"] is True)
    factory, foreign = any_scheduler(target)
    if foreign:
        return foreign_search.case_from_json(config, read, operations, factory)
    case = SchedulerCase(config, factory, read._replace(steps_ahead=min(2, read.steps_ahead)))
    return case, tuple(from_json(words) for words in operations)


def settings_of(target: str, scope: Scope) -> SchedulerSettings:
    """Return a walk of a scope."""
    return SchedulerSettings(scope, scheduler_target(target))

"""Strangers' schedulers under `pagedkv fuzz`: how they are driven, told, kept and run again.

A target beside `--scheduler` is made once, in a small world, to learn of which kind it is and what it offers. One that
shows its cache's operations (`spec.scheduler`) goes in lock-step with the policy; a `ForeignScheduler` is judged from
outside. `foreign_plan` is what a campaign needs: any driver of seeds takes it.
"""

from collections.abc import Callable, Iterable
from typing import Any

from pagedkv.bench.failures import BadInput
from pagedkv.spec.calls import call
from pagedkv.spec.counts import counted
from pagedkv.spec.foreign_alphabet import Finish, Operation, describe, from_json, to_json
from pagedkv.spec.foreign_asking import made
from pagedkv.spec.foreign_drivers import ForeignCase, ForeignPlan, Offers
from pagedkv.spec.foreign_judge import Happened
from pagedkv.spec.foreign_scheduler import ForeignFactory, ForeignScheduler, Row
from pagedkv.spec.quoting import one_line
from pagedkv.spec.refusals import Broken, Refused
from pagedkv.spec.requests import Limits
from pagedkv.spec.scheduler import Scheduler
from pagedkv.spec.state import Config

WORDS = "finish: serve all that are there, then one request as long as the pool; hit, preemption: steps with one"
TRIED = (Config(4, 4, launches=2), Limits(16, 4))  # the world in which a target is made to be looked at


def is_foreign(factory: Callable[..., Any], where: str) -> bool:
    """Make a scheduler to see of which kind it is. Errors: `BadInput`, where it can't be made."""
    try:
        found = call(where, factory, *TRIED)
        if isinstance(found, ForeignScheduler):
            made(lambda _config, _limits: found, *TRIED)
    except Broken as broken:
        remedy = "it is called with a Config and Limits and gives a ForeignScheduler (pagedkv.spec.foreign_scheduler)"
        raise BadInput(where, broken.detail.removeprefix(f"{where}: "), remedy) from broken
    if not isinstance(found, ForeignScheduler | Scheduler):
        what = f"gives {one_line(repr(found))[:60]}"
        raise BadInput(where, what, "give a pagedkv.spec.foreign_scheduler.ForeignScheduler")
    return isinstance(found, ForeignScheduler)


def foreign_plan(
    factory: ForeignFactory, config: Config | None = None, *, sharing: bool = True, where: str = "the target"
) -> ForeignPlan:
    """Return how to fuzz a stranger's scheduler: with what it says it offers.

    Errors: `Broken`, CRASH, where it can't be made; `BadInput`, where it does not take the sizes that are given.
    """
    offers = Offers.of(made(factory, *TRIED))
    if not offers.fitting_sizes():
        what = f"keeps back {counted(offers.tokens_kept_back, 'token')}, for which no pool of a search has room"
        raise BadInput(where, what, f"say a smaller tokens_kept_back, or larger block_sizes than {offers.block_sizes}")
    if config and config.block_size not in offers.block_sizes:
        sizes = ", ".join(map(str, offers.block_sizes))
        raise BadInput(
            where, f"takes no blocks of {counted(config.block_size, 'token')}", f"--block-size is one of {sizes}"
        )
    if config and config.blocks * config.block_size < (least := 2 + offers.tokens_kept_back):
        raise BadInput(
            where,
            f"has no room for a request in {counted(config.blocks, 'block')}",
            f"give it at least {counted(least, 'slot')}",
        )
    return ForeignPlan(factory, offers, config, sharing=sharing)


def case_to_json(case: ForeignCase, trace: tuple[Operation, ...]) -> dict[str, Any]:
    """Return what a trace file says of a stranger's scheduler beside what it says of any target."""
    return {"limits": case.limits._asdict(), "operations": [to_json(operation) for operation in trace]}


def case_from_json(
    config: Config, limits: Limits, operations: list[Any], factory: ForeignFactory
) -> tuple[ForeignCase, tuple[Operation, ...]]:
    """Return what a trace file says. Errors: `ValueError`."""
    return ForeignCase(config, factory, limits), tuple(from_json(words) for words in operations)


def told_in_words(operation: Operation, offered: Happened | Refused | None) -> tuple[str, str]:
    """Return an operation, and what came of it."""
    if isinstance(offered, Refused):
        return describe(operation), f"not asked: {offered.reason}"
    came = "; ".join(_came(operation, offered)) if offered else "-"
    return describe(operation), came or "nothing"


def _came(operation: Operation, seen: Happened) -> Iterable[str]:
    if seen.launch:
        yield f"#{seen.launch}: " + "; ".join(map(_row, seen.rows))
    for word, requests in (("preempts", seen.preempted), ("finishes", seen.finished)):
        if requests:
            yield f"{word} {' '.join(map(str, requests))}"
    if isinstance(operation, Finish):
        yield "and so on" if seen.launch else counted(seen.steps, "round")


def _row(row: Row) -> str:
    last = row.start + row.length - 1
    positions = f"{row.start}" if row.length == 1 else f"{row.start} to {last}"
    blocks = " ".join(map(str, row.blocks))
    return f"{row.request} computes {positions} in block{'s' * (len(row.blocks) > 1)} {blocks}"

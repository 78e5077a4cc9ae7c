"""How a stranger's scheduler is asked, and its answers turned into the spec's types.

Whatever it raises, no answer at all, and an answer of the wrong type are the finding CRASH, as for a manager
(`asking`). What comes back is plain data: integers that are integers, tuples that nobody changes afterwards.

Cost: a step is copied, in proportion to its rows and their tables.
"""

from collections.abc import Mapping
from operator import index

from .asking import integers
from .calls import call
from .foreign_scheduler import ForeignFactory, ForeignScheduler, Row, Step
from .offers import Discipline, Feature
from .requests import Limits, RequestId, Token
from .state import Block, Config, Copy


def made(factory: ForeignFactory, config: Config, limits: Limits) -> ForeignScheduler:
    """Make a scheduler."""
    return call(lambda: f"a scheduler of {config}, {limits}", _made, factory, config, limits)


def schedule(scheduler: ForeignScheduler) -> Step:
    """Ask for a step; where there is none to be had it has no rows."""
    return call("schedule", _scheduled, scheduler)


def complete(scheduler: ForeignScheduler, step: Step, tokens: Mapping[RequestId, Token]) -> tuple[RequestId, ...]:
    """Bring what a step has sampled; return who is finished."""
    return call(lambda: f"complete {dict(tokens)}", _completed, scheduler, step, tokens)


def rows_read(scheduler: ForeignScheduler, step: Step) -> list[tuple[Block, ...]]:
    """Return the block tables of a step as a device that executes it now reads them."""
    return call("rows_read", _rows, scheduler, step)


def free_blocks(scheduler: ForeignScheduler) -> int | None:
    """Return how many blocks no request holds, if it tells."""
    return call("free_blocks", _free, scheduler)


def _made(factory: ForeignFactory, config: Config, limits: Limits) -> ForeignScheduler:
    scheduler = factory(config, limits)
    if not isinstance(scheduler, ForeignScheduler):
        raise TypeError(f"{repr(scheduler)[:60]} is no pagedkv.spec.foreign_scheduler.ForeignScheduler")
    least = {"first_block": 0, "steps_ahead": 1, "tokens_kept_back": 0}
    for name, lowest in least.items():
        value = getattr(scheduler, name)
        if type(value) is not int or value < lowest:
            raise TypeError(f"{name} is {repr(value)[:60]}, not an integer of at least {lowest}")
    sizes = scheduler.block_sizes
    if not sizes or any(type(size) is not int or size < 1 for size in sizes):
        raise TypeError(f"block_sizes is {repr(sizes)[:60]}, not integers of at least 1")
    if scheduler.discipline not in (Discipline.FENCE, Discipline.STREAM_ORDER):
        raise TypeError(f"discipline is {repr(scheduler.discipline)[:60]}, and steps are on one stream")
    if not isinstance(scheduler.own_calls, list | None):
        raise TypeError(f"own_calls is {repr(scheduler.own_calls)[:60]}, not None or a list")
    if wrong := [repr(each)[:60] for each in scheduler.not_offered if not isinstance(each, Feature)]:
        raise TypeError(f"not_offered holds {wrong[0]}, which is no Feature")
    return scheduler


def _scheduled(scheduler: ForeignScheduler) -> Step:
    step = scheduler.schedule()
    if step is None:
        return Step(())
    rows = [
        Row(index(row.request), index(row.start), index(row.length), integers(row.blocks), bool(row.samples))
        for row in step.rows
    ]
    copies = [Copy(*integers(each)) for each in step.copies]
    return Step(tuple(rows), integers(step.preempted), tuple(copies), step.own)


def _completed(scheduler: ForeignScheduler, step: Step, tokens: Mapping[RequestId, Token]) -> tuple[RequestId, ...]:
    return integers(scheduler.complete(step, tokens) or ())


def _rows(scheduler: ForeignScheduler, step: Step) -> list[tuple[Block, ...]]:
    rows = scheduler.rows_read(step)
    tables = [integers(row) for row in ([each.blocks for each in step.rows] if rows is None else rows)]
    if len(tables) != len(step.rows):
        raise ValueError(f"{len(tables)} tables of a step of {len(step.rows)} rows")
    return tables


def _free(scheduler: ForeignScheduler) -> int | None:
    free = scheduler.free_blocks()
    return None if free is None else index(free)

"""Operations and what came of them, and the world in which they were done, in words.

The same words stand in the tables of counterexamples and in pictures. A table has room for all of them; below a column
of a picture long batches and long lists of blocks are cut, and say how many more there are.
"""

from collections.abc import Collection, Iterable
from typing import Any, cast

from pagedkv.bench import foreign_search
from pagedkv.spec import foreign_alphabet, scheduler_alphabet
from pagedkv.spec.alphabet import KINDS, Extend, Operation, Submit, describe
from pagedkv.spec.counts import counted
from pagedkv.spec.foreign_drivers import ForeignCase
from pagedkv.spec.foreign_judge import Happened
from pagedkv.spec.outcome import Outcome
from pagedkv.spec.refusals import Refused
from pagedkv.spec.turn import Decision


def outcome_in_words(offered: Outcome | Refused | None, most: int | None = None) -> str:
    """Return what came of an operation, as far as it is told; lists are cut after `most`."""
    match offered:
        case None:
            return "-"
        case Refused() as refusal:
            return f"refused: {refusal.reason}"
        case outcome:
            return ", ".join(_decisions(outcome, most)) or "done"


def _decisions(outcome: Outcome, most: int | None) -> Iterable[str]:
    if outcome.hits:
        yield f"hit {_list(outcome.hits, most)}"
    if outcome.blocks:
        yield f"took {_list(outcome.blocks, most)}"
    for copy in outcome.copies[:most]:
        yield f"copies {copy.extent} of block {copy.source} to {copy.target} for {copy.sequence}"
    if outcome.launch:
        after = f" after {_list(sorted(outcome.after), most)}" if outcome.after else ""
        yield f"#{outcome.launch}{after}"
    if outcome.published:
        yield f"published {_list(outcome.published, most)}"
    for merge in outcome.merges[:most]:
        yield f"merged block {merge.old} into {merge.new} for {merge.sequence}"
    if outcome.freed:  # where it is empty, a stranger's manager has freed nothing, or has not told
        yield f"freed {_list(sorted(outcome.freed), most)}"


def told_in_words(operation: Any, offered: Outcome | Decision | Refused | None) -> tuple[str, str]:
    """Return an operation of a cache or of a scheduler, and what came of it."""
    if type(operation) not in scheduler_alphabet.KINDS:
        return describe(operation), outcome_in_words(cast("Outcome | Refused | None", offered))
    came = ", ".join(_of_requests(offered)) if isinstance(offered, Decision) else outcome_in_words(offered)
    return scheduler_alphabet.describe(operation), came or "nothing"


def _of_requests(decision: Decision) -> Iterable[str]:
    plan = decision.plan
    if decision.names:
        yield f"names {_list(decision.names, None)}"
    if plan.launch:
        yield f"#{plan.launch} of " + " ".join(f"{row.name}+{row.length}" for row in plan.rows)
    preempted = [each.request for each in (*plan.preempted, *decision.preempted)]
    happened = {"admits": plan.admitted, "preempts": preempted, "fails": plan.failed, "finishes": decision.finished}
    yield from (f"{word} {_list(requests, None)}" for word, requests in happened.items() if requests)
    yield from (f"forks {parent} to {child}" for parent, child in plan.forked)


def world_in_words(case: Any) -> str:
    """Return the sizes and limits of what a trace runs on: of a cache, or of a scheduler of either kind."""
    config, limits = case.config, getattr(case, "limits", None)
    pool = f"{counted(config.blocks, 'block')} of {counted(config.block_size, 'token')}"
    if limits is None:
        launches = counted(config.launches, "launch", "launches")
        return f"{pool}, {counted(config.streams, 'stream')}, at most {launches} in flight"
    if not isinstance(case, ForeignCase):
        return f"{pool}; {limits.describe()}"
    positions, rows = counted(limits.max_tokens_per_step, "position"), counted(limits.max_running, "row")
    cache = "on" if limits.prefix_cache else "off"
    steps = counted(limits.steps_ahead, "step")
    return f"{pool}; at most {positions} and {rows} a step, {steps} in flight; prefix cache {cache}"


def kind_of(operation: Any) -> str:
    """Return the word of an operation of a cache, or of a stranger's scheduler."""
    return (KINDS | foreign_alphabet.KINDS)[type(operation)]


def step_in_words(operation: Any, offered: Outcome | Happened | Refused | None, most: int) -> str:
    """Return an operation and what came of it in one line; batches and lists are cut after `most`."""
    if not isinstance(operation, Operation):
        words, came = foreign_search.told_in_words(operation, cast("Happened | Refused | None", offered))
        return words + (f": {came}" if came not in {"-", "nothing"} else "")
    offered = cast("Outcome | Refused | None", offered)
    more = ""
    if isinstance(operation, Extend | Submit) and len(operation.rows) > most:
        more = f" and {len(operation.rows) - most:,} more"
        operation = operation._replace(rows=operation.rows[:most])
    outcome = outcome_in_words(offered, most)
    return f"{describe(operation)}{more}" + (f": {outcome}" if outcome not in {"-", "done"} else "")


def _list(numbers: Collection[int], most: int | None) -> str:
    shown = " ".join(str(number) for number in list(numbers)[:most])
    return f"{shown} and {len(numbers) - most:,} more" if most is not None and len(numbers) > most else shown

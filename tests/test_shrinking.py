"""Shrinking: the same rule is broken, nothing is left over, and it comes to an end."""

from collections.abc import Callable

import pytest
from pagedkv.bench.adapter import Implementation
from pagedkv.spec.alphabet import Add, Extend, Operation, Pin, Publish, Retire, Submit
from pagedkv.spec.fuzz import run
from pagedkv.spec.fuzz_plan import Plan
from pagedkv.spec.outcome import Outcome
from pagedkv.spec.reference import Reference
from pagedkv.spec.shrinking import shrink
from pagedkv.spec.simpler_traces import simpler, size
from pagedkv.spec.state import Config
from pagedkv.spec.traces import Case, Finding, Marked, mark, run_marked, tell

from planted_faults import CopySourceFreed, EarlyReuse, LateCompletion, MissingEdge, OffByOne


def first_finding(fault: type[Implementation], config: Config) -> Finding:
    """Return what the first seed with a long trace found, as it was found."""
    seeds = (run(Plan(fault, config), seed).finding for seed in range(500))
    return next(found for found in seeds if found and len(found.trace) > 20)


@pytest.mark.parametrize("fault", [EarlyReuse, MissingEdge, OffByOne, CopySourceFreed, LateCompletion])
def test_shrinking_keeps_the_rule_and_leaves_no_surplus(fault: type[Implementation]) -> None:
    found = first_finding(fault, Config(4, 2, 2, 3))
    small = shrink(found)
    assert small.broken.rule == found.broken.rule
    assert 0 < len(small.trace) < len(found.trace)
    told, broken = tell(small.case, small.trace)
    assert broken is not None
    assert (broken.rule, len(told)) == (found.broken.rule, len(small.trace))
    marked = mark(small.case, small.trace)
    for left_out in range(len(marked)):
        _, without = run_marked(small.case, marked[:left_out] + marked[left_out + 1 :])
        assert without is None or without.rule != small.broken.rule, f"{small.trace[left_out]} is not needed"


def test_shrinking_renames_completions() -> None:
    """What was launched before and is taken out no longer counts."""
    found = first_finding(LateCompletion, Config(4, 2, 2, 3))
    small = shrink(found)
    newest = [
        max(operation.launch for operation in trace if isinstance(operation, Retire))
        for trace in (found.trace, small.trace)
    ]
    assert newest[1] < newest[0]
    assert newest[1] <= sum(isinstance(operation, Submit) for operation in small.trace)


class RaisesInTwoPlaces(Reference):
    """It raises the same wherever a sequence begins, in two places of it, and says no word."""

    def add(self, name: int, count: int) -> Outcome:  # noqa: ARG002  (the signature is the protocol's)
        if count > 1:
            raise MemoryError
        raise MemoryError


def test_where_a_crash_arose_does_not_keep_a_trace_long() -> None:
    case = Case(Config(4, 2), RaisesInTwoPlaces, lock_step=False)
    told, broken = tell(case, (Add(1, 3),))
    assert broken is not None
    small = shrink(Finding(case, tuple(step.operation for step in told), broken))
    assert small.trace == (Add(1, 1),)
    assert broken.detail.partition(" at ")[0] != broken.detail != small.broken.detail


def test_what_holds_is_left_as_it_was() -> None:
    found = first_finding(EarlyReuse, Config(4, 2, 2, 3))
    sound = Finding(Case(found.case.config, Implementation), found.trace, found.broken)
    assert shrink(sound) == sound


@pytest.mark.parametrize("limit", [lambda found: shrink(found, tries=3), lambda found: shrink(found, seconds=0)])
def test_shrinking_has_an_end(limit: Callable[[Finding], Finding]) -> None:
    found = first_finding(EarlyReuse, Config(4, 2, 2, 3))
    assert len(limit(found).trace) > len(shrink(found).trace)


def test_what_is_simpler_is_another_trace_and_no_larger() -> None:
    found = first_finding(CopySourceFreed, Config(4, 2, 2, 3))
    candidates = [tuple(each.operation for each in marked) for marked in simpler(mark(found.case, found.trace))]
    assert len(candidates) > len(found.trace)
    assert found.trace not in candidates
    assert all(size(candidate) <= size(found.trace) for candidate in candidates)
    assert sum(size(candidate) < size(found.trace) for candidate in candidates) > len(candidates) // 2


@pytest.mark.parametrize(
    ("operation", "plainer"),
    [
        (Add(1, 1), []),
        (Add(1, 2), [Add(1, 1)]),
        (Add(1, 4, 3), [Add(1, 1, 3), Add(1, 3, 3), Add(1, 4)]),
        (Add(1, (0, 7), 3), [Add(1, (0,), 3), Add(1, (0, 7)), Add(1, 2, 3), Add(1, (0, 0), 3)]),
        (Pin(1, (0, 0)), []),
        (Pin(1, (0, 7), 3), [Pin(1, (0, 7)), Pin(1, (0, 0), 3)]),
        (Extend(((1, 1),)), []),
        (
            Submit(((1, 2), (2, 1)), 1),
            [Submit(((1, 2), (2, 1))), Submit(((2, 1),), 1), Submit(((1, 1), (2, 1)), 1), Submit(((1, 2),), 1)],
        ),
        (Publish(((1, (7,)),), 3), [Publish(((1, (7,)),)), Publish(((1, ()),), 3), Publish(((1, (0,)),), 3)]),
    ],
)
def test_each_simpler_operation_is_tried_once(operation: Operation, plainer: list[Operation]) -> None:
    tried = [marked[0].operation for marked in simpler([Marked(operation)]) if marked]  # empty: without its sequence
    assert tried == plainer

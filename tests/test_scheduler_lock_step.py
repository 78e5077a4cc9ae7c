"""Our scheduler beside the policy: every small world, random runs, Hypothesis; and every planted fault is found.

The table of faults is the claim: in which scope, which rule, after how many operations. Lengths are those of a
breadth-first walk, so no shorter counterexample exists there.
"""

from typing import NamedTuple

import pytest
from pagedkv.bench.scheduler_adapter import ImplementedScheduler
from pagedkv.spec.explore import explore
from pagedkv.spec.fuzz import fuzz, run
from pagedkv.spec.machine import hunt
from pagedkv.spec.requests import Limits, Policy, Request
from pagedkv.spec.rules import RULES
from pagedkv.spec.rules_scheduling import SCHEDULING
from pagedkv.spec.scheduler import ReferenceScheduler, SchedulerFactory
from pagedkv.spec.scheduler_alphabet import Submit
from pagedkv.spec.scheduler_drivers import SchedulerCase, SchedulerPlan, SchedulerSettings
from pagedkv.spec.scheduler_machine import scheduler_machine
from pagedkv.spec.scheduler_moves import Scope
from pagedkv.spec.state import Config

import scheduler_faults as faults

BY_COUNT = (Request(0, 1, 2), Request(0, 2, 2))
BY_IDS = (Request(0, (0,), 2), Request(0, (0, 1), 1))


def scope(
    blocks: int,
    requests: tuple[Request, ...],
    limits: Limits,
    *,
    block_size: int = 1,
    live: int = 2,
) -> Scope:
    """Return a scope of one stream."""
    return Scope(Config(blocks, block_size, streams=1, launches=2), limits, requests, live)


TWO_AHEAD = scope(2, (Request(0, 1, 2),), Limits(2, 2, steps_ahead=2))
WATERMARK = scope(3, (Request(0, 1, 3),), Limits(2, 2, steps_ahead=2, watermark_blocks=1))
CHUNKS = scope(3, (Request(0, 1, 3), Request(0, 2, 1)), Limits(2, 2, steps_ahead=2))
THREE = scope(4, (Request(0, 1, 2),), Limits(3, 3, steps_ahead=2), live=3)
SHARED = scope(2, (Request(0, (0,), 2),), Limits(2, 2, prefix_cache=True))
SAMPLES = scope(2, (Request(0, 1, 1, samples=2), Request(0, 1, 2)), Limits(2, 2, steps_ahead=2))
SMALL = {"two steps ahead": TWO_AHEAD, "watermark": WATERMARK, "prefixes": SHARED, "samples": SAMPLES}


class Expected(NamedTuple):
    """What a walk finds."""

    scope: Scope
    rule: str
    length: int


FAULTS = {
    faults.VictimInThePlan: Expected(CHUNKS, "R-PRE-2", 4),
    faults.RecomputeFromTheStart: Expected(TWO_AHEAD, "R-PRE-1", 4),
    faults.PendingKept: Expected(TWO_AHEAD, "R-PRE-1", 3),
    faults.OldResultTaken: Expected(TWO_AHEAD, "R-LIFE-7", 5),
    faults.BudgetNotCounted: Expected(CHUNKS, "R-PRE-2", 3),
    faults.WatermarkWhereNothingRuns: Expected(WATERMARK, "R-CAP-4", 5),
    faults.Overtaking: Expected(CHUNKS, "R-CAP-4", 3),
    faults.RankLost: Expected(WATERMARK, "R-CAP-4", 5),
    faults.HoldAndWait: Expected(TWO_AHEAD, "R-PRE-1", 3),
    faults.FailedLaunchPublished: Expected(SHARED, "R-HASH-4", 3),
    faults.PreemptsTooMuch: Expected(THREE, "R-PRE-3", 5),
}
RUNS = 60  # of 300 operations, until each is found


def test_every_fault_is_in_the_table() -> None:
    assert set(FAULTS) == set(faults.FAULTS)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_explore_finds_it_in_as_few_operations_as_can_be(fault: type[faults.Faulty]) -> None:
    expected = FAULTS[fault]
    report = explore(SchedulerSettings(expected.scope, fault))
    assert report.broken is not None
    assert (report.broken.rule, len(report.trace)) == (expected.rule, expected.length), report.broken
    assert expected.rule in {*RULES, *SCHEDULING}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_random_runs_find_it(fault: type[faults.Faulty]) -> None:
    assert any(run(SchedulerPlan(fault), seed).finding for seed in range(RUNS))


@pytest.mark.parametrize("fault", [faults.HoldAndWait, faults.Overtaking], ids=lambda fault: fault.__name__)
def test_hypothesis_finds_it_and_it_is_shrunk(fault: type[faults.Faulty]) -> None:
    case = SchedulerCase(Config(4, 2, launches=2), fault, Limits(4, 4, steps_ahead=2, prefix_cache=True))
    finding = hunt(case, machine_of=scheduler_machine, examples=300)
    assert finding is not None
    assert len(finding.trace) <= FAULTS[fault].length + 2  # nothing can be left out, though there is a shorter one
    for operation in finding.trace:
        if isinstance(operation, Submit):
            asked = operation.request
            assert (asked.samples, asked.priority, asked.salt, type(asked.prompt)) == (1, 0, 0, int)


@pytest.mark.parametrize("factory", [ReferenceScheduler, ImplementedScheduler], ids=["policy", "ours"])
@pytest.mark.parametrize("name", SMALL)
def test_a_small_world_holds_to_its_end(name: str, factory: SchedulerFactory) -> None:
    """From each of its states, too, every request there is finished within the stated bound."""
    report = explore(SchedulerSettings(SMALL[name], factory))
    assert report.broken is None, report.broken
    assert report.complete
    assert report.holes() == []


@pytest.mark.parametrize("chosen", [TWO_AHEAD, SHARED], ids=["two steps ahead", "prefixes"])
def test_a_small_world_holds_with_what_the_cache_hides(chosen: Scope) -> None:
    """States are told apart by the hidden state of our cache, too: there are more of them."""
    plain, pairs = (explore(SchedulerSettings(chosen, ImplementedScheduler, pairs)) for pairs in (False, True))
    assert pairs.broken is None, pairs.broken
    assert pairs.complete
    assert pairs.states > plain.states


@pytest.mark.deep
@pytest.mark.parametrize(
    "chosen",
    [
        scope(3, BY_COUNT, Limits(3, 2, steps_ahead=2)),
        scope(3, BY_COUNT, Limits(3, 2, steps_ahead=2, watermark_blocks=1, policy=Policy.PRIORITY)),
        scope(3, BY_IDS, Limits(3, 2, steps_ahead=2, prefix_cache=True)),
        scope(4, (Request(0, 1, 2, samples=2), Request(0, 2, 2)), Limits(3, 3, steps_ahead=2)),
        THREE,
    ],
    ids=lambda chosen: chosen.describe(),
)
def test_a_larger_world_holds_to_its_end(chosen: Scope) -> None:
    report = explore(SchedulerSettings(chosen, ImplementedScheduler))
    assert report.broken is None, report.broken
    assert report.complete


def test_random_runs_hold_and_meet_everything() -> None:
    tally = fuzz(SchedulerPlan(ImplementedScheduler), seed=0, runs=40)
    assert tally.finding is None, tally.finding
    met = {"submit", "schedule", "complete", "fail", "cancel", "preempt", "drain"}
    assert met | {"admission", "preemption", "fork", "hit", "merge"} == {
        kind for kind in tally.fired if tally.fired[kind]
    }


def test_hypothesis_finds_nothing_in_ours() -> None:
    case = SchedulerCase(Config(4, 2, launches=2), ImplementedScheduler, Limits(4, 4, steps_ahead=2, prefix_cache=True))
    assert hunt(case, machine_of=scheduler_machine, examples=50) is None


@pytest.mark.deep
def test_many_random_runs_hold() -> None:
    tally = fuzz(SchedulerPlan(ImplementedScheduler), seed=10_000, runs=1500)
    assert tally.finding is None, tally.finding


def test_one_seed_is_one_run() -> None:
    plan = SchedulerPlan(ReferenceScheduler)
    once, again, other = (run(plan, seed) for seed in (5, 5, 6))
    assert once == again
    assert once.fired != other.fired

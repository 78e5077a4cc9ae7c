"""Every planted fault is found: by the exhaustive driver, by fuzzing, and by contents alone where they can show it.

The table is the claim. Lengths are those of a breadth-first walk, hidden state included (`pairs`), so no shorter
counterexample exists in that scope. Contents are judged with lock-step off: by what a virtual device reads (R-DATA,
and R-TAB-1 where a row names no block at all), or, for blocks that leak, by the pool that is too small once all is
over (R-OWN-4). What the other rules that show from outside make of them is in `test_outside_rules`.
"""

from typing import NamedTuple

import pytest
from pagedkv.bench.adapter import Implementation
from pagedkv.spec.explore import Report, explore
from pagedkv.spec.fuzz import fuzz
from pagedkv.spec.fuzz_plan import Plan
from pagedkv.spec.machine import hunt
from pagedkv.spec.moves import Scope
from pagedkv.spec.rules import RULES
from pagedkv.spec.shards import Settings
from pagedkv.spec.shrinking import shrink
from pagedkv.spec.state import Config
from pagedkv.spec.traces import Case

import planted_faults as faults
from from_outside import CONTENTS_ALONE


def scope(blocks: int, block_size: int, streams: int, launches: int, tokens: int, rows: int = 1) -> Scope:
    """Return a scope of two sequences."""
    return Scope(Config(blocks, block_size, streams, launches), 2, tokens, rows)


class Expected(NamedTuple):
    """What a walk finds: in which scope, which rule, after how many operations."""

    scope: Scope
    rule: str
    length: int
    pairs: bool = True  # with hidden state, which takes three times as long


LOCK_STEP = {
    faults.EarlyReuse: Expected(scope(2, 1, 2, 2, 2), "R-LIFE-1", 3),
    faults.OneFence: Expected(scope(2, 2, 2, 2, 2), "R-LIFE-1", 12, pairs=False),
    faults.MissingEdge: Expected(scope(2, 1, 2, 2, 2), "R-LIFE-2", 3),
    faults.RowRecycled: Expected(scope(2, 1, 1, 2, 2), "R-LIFE-6", 4),
    faults.NoCopyOnWrite: Expected(scope(2, 2, 1, 2, 2), "R-CAP-1", 4),
    faults.EdgeKept: Expected(scope(2, 2, 1, 2, 2), "R-OWN-2", 4),
    faults.DoubleFree: Expected(scope(2, 1, 2, 2, 1), "R-OWN-3", 9),
    faults.CopySourceFreed: Expected(scope(3, 2, 1, 1, 2), "R-LIFE-1", 7),
    faults.OffByOne: Expected(scope(2, 1, 1, 1, 2), "R-CAP-1", 2),
    faults.LateCompletion: Expected(scope(2, 1, 1, 1, 2), "R-LIFE-4", 6),
    faults.RefusedBatchKeepsBlock: Expected(scope(2, 1, 1, 1, 2, rows=2), "R-OWN-5", 4),
}

CONTENTS = {
    faults.EarlyReuse: Expected(scope(2, 1, 2, 2, 2), "R-DATA", 10),
    faults.MissingEdge: Expected(scope(2, 1, 2, 2, 2), "R-DATA", 4),
    faults.RowRecycled: Expected(scope(2, 1, 1, 2, 2), "R-TAB-1", 4),
    faults.NoCopyOnWrite: Expected(scope(2, 2, 1, 2, 2, rows=2), "R-DATA", 7),
    faults.EdgeKept: Expected(scope(2, 2, 1, 1, 2), "R-OWN-4", 8),
    faults.CopySourceFreed: Expected(scope(2, 2, 1, 2, 2), "R-DATA", 12),
    faults.RefusedBatchKeepsBlock: Expected(scope(2, 1, 1, 1, 2, rows=2), "R-OWN-4", 8),
}

# Runs of 400 operations until each is found, from seed 0; the rarest is met by one run in fifty.
RUNS = 600


def walk(fault: type[faults.Faulty], expected: Expected, *, lock_step: bool) -> Report:
    """Explore with the fault planted."""
    return explore(Settings(expected.scope, fault, lock_step=lock_step, pairs=expected.pairs, aside=CONTENTS_ALONE))


def test_every_fault_is_in_the_table() -> None:
    assert set(LOCK_STEP) == set(faults.FAULTS)


@pytest.mark.parametrize("fault", LOCK_STEP, ids=lambda fault: fault.__name__)
def test_explore_finds_it_in_as_few_operations_as_can_be(fault: type[faults.Faulty]) -> None:
    expected = LOCK_STEP[fault]
    report = walk(fault, expected, lock_step=True)
    assert report.broken is not None
    assert (report.broken.rule, len(report.trace)) == (expected.rule, expected.length), report.broken
    assert expected.rule in RULES


@pytest.mark.parametrize("fault", CONTENTS, ids=lambda fault: fault.__name__)
def test_contents_alone_show_it(fault: type[faults.Faulty]) -> None:
    expected = CONTENTS[fault]
    report = walk(fault, expected, lock_step=False)
    assert report.broken is not None
    assert (report.broken.rule, len(report.trace)) == (expected.rule, expected.length), report.broken


@pytest.mark.deep
def test_contents_alone_show_one_fence_for_two_streams() -> None:
    report = walk(faults.OneFence, Expected(scope(2, 2, 2, 2, 2), "R-DATA", 16), lock_step=False)
    assert report.broken is not None
    assert (report.broken.rule, len(report.trace)) == ("R-DATA", 16), report.broken


@pytest.mark.deep
def test_explore_finds_one_fence_for_two_streams_no_sooner_with_hidden_state() -> None:
    report = walk(faults.OneFence, LOCK_STEP[faults.OneFence]._replace(pairs=True), lock_step=True)
    assert report.broken is not None
    assert (report.broken.rule, len(report.trace)) == ("R-LIFE-1", 12), report.broken


@pytest.mark.parametrize("fault", LOCK_STEP, ids=lambda fault: fault.__name__)
def test_fuzz_finds_it(fault: type[faults.Faulty]) -> None:
    tally = fuzz(Plan(fault), seed=0, runs=RUNS)
    assert tally.finding is not None
    assert tally.finding.broken.rule in {*RULES, "CRASH"}


@pytest.mark.parametrize("fault", CONTENTS, ids=lambda fault: fault.__name__)
def test_fuzz_finds_it_by_contents_alone(fault: type[faults.Faulty]) -> None:
    tally = fuzz(Plan(fault, lock_step=False, aside=CONTENTS_ALONE), seed=0, runs=RUNS)
    assert tally.finding is not None


@pytest.mark.parametrize("fault", [faults.EarlyReuse, faults.NoCopyOnWrite, faults.EdgeKept], ids=lambda f: f.__name__)
def test_hypothesis_finds_it_minimal(fault: type[faults.Faulty]) -> None:
    case = Case(Config(3, 2, 2, 2), fault)
    finding = hunt(case, number=0, examples=300)
    assert finding is not None
    assert len(shrink(finding).trace) == LOCK_STEP[fault].length


@pytest.mark.parametrize(
    "expected", {*LOCK_STEP.values(), *CONTENTS.values()}, ids=lambda expected: str(expected[0][0])
)
@pytest.mark.deep
def test_the_sound_manager_passes_each_of_these_scopes(expected: Expected) -> None:
    for lock_step in (True, False):
        report = explore(Settings(expected.scope, Implementation, lock_step=lock_step, pairs=True))
        assert report.broken is None
        assert report.complete


def test_the_sound_manager_passes_where_the_faults_are_found() -> None:
    for chosen in (scope(2, 1, 2, 2, 2), scope(2, 2, 1, 1, 2, rows=2)):
        report = explore(Settings(chosen, Implementation, lock_step=True, pairs=True))
        assert report.broken is None
        assert report.complete

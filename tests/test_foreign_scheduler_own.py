"""Our own scheduler behind the protocol of a stranger's: nothing is found in it, and of its planted faults what shows.

The tables of faults are those of the lock-step (`scheduler_faults.py`) and of the loop (`loop_faults.py`).
"""

from collections.abc import Callable
from typing import Any

import pytest
from pagedkv.bench.foreign_search import foreign_plan
from pagedkv.bench.own_scheduler_outside import OwnScheduler
from pagedkv.spec.foreign_scheduler import Config, Limits
from pagedkv.spec.fuzz import run

import loop_faults
import scheduler_faults
from searching import first_finding, shortened

OPERATIONS_MOST = 15  # of a counterexample


def faulty(fault: type[scheduler_faults.Faulty], watermark: int = 0) -> type[OwnScheduler]:
    """Return our scheduler from outside with a fault of the lock-step's table."""

    class Outside(OwnScheduler):
        """The parts of the faulty one."""

        scheduler_class = fault.scheduler_class

        def __init__(self, config: Config, limits: Limits) -> None:
            super().__init__(config, limits._replace(watermark_blocks=watermark))
            self.scheduler._serving.__class__ = fault.serving
            self.scheduler._serving.running.__class__ = fault.running
            self.scheduler._serving.waiting.__class__ = fault.waiting

    return Outside


def test_nothing_is_found_in_our_own() -> None:
    assert first_finding(OwnScheduler, runs=90) is None


@pytest.mark.deep
def test_nothing_is_found_in_our_own_in_a_hundred_thousand_operations() -> None:
    operations, seed = 0, 0
    while operations < 100_000:
        tally = run(foreign_plan(OwnScheduler), seed)
        assert tally.finding is None
        operations, seed = operations + tally.operations, seed + 1


@pytest.mark.parametrize(
    ("factory", "rule"),
    [
        (faulty(scheduler_faults.VictimInThePlan), "CRASH"),  # our cache refuses to launch it
        (faulty(scheduler_faults.RecomputeFromTheStart), "R-PRE-1"),
        (faulty(scheduler_faults.PendingKept), "R-PRE-3"),
        (faulty(scheduler_faults.BudgetNotCounted), "R-PRE-2"),
        (faulty(scheduler_faults.WatermarkWhereNothingRuns, watermark=1), "R-PRE-3"),
        (faulty(scheduler_faults.HoldAndWait), "R-OWN-4"),
    ],
)
def test_what_shows_of_the_faults_of_our_scheduler_is_found(factory: type[OwnScheduler], rule: str) -> None:
    """The rest of the table goes by ranks, failed launches and planning too little: no harm that is seen from here."""
    finding = first_finding(factory, rule)
    assert finding is not None
    assert len(shortened(finding).trace) <= OPERATIONS_MOST


@pytest.mark.parametrize(
    ("fault", "rule"),
    [
        (loop_faults.fence_ignored_at_cancel, "R-LIFE-1"),
        (loop_faults.row_reused_early, "R-TAB-1"),
        (loop_faults.old_result_taken, "R-LIFE-7"),
    ],
)
def test_what_shows_of_the_faults_of_our_loop_is_found(fault: Callable[[], Any], rule: str) -> None:
    """The rest of them are in staging and copying, which this scheduler has no part in."""
    with fault():
        finding = first_finding(OwnScheduler, rule)
        assert finding is not None
        assert len(shortened(finding).trace) <= OPERATIONS_MOST

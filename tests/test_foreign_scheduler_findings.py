"""What a finding of a stranger's scheduler tells its owner: in the message, in the picture."""

from typing import Any

from pagedkv.bench.show_sources import film_of_counterexample
from pagedkv.bench.show_strips import legend_handles
from pagedkv.spec.foreign_alphabet import Finish
from pagedkv.spec.foreign_drivers import ForeignCase
from pagedkv.spec.foreign_scheduler import Config, Limits
from pagedkv.spec.refusals import Broken
from pagedkv.spec.requests import Request
from pagedkv.spec.scheduler_alphabet import Cancel, Complete, Schedule, Submit
from pagedkv.spec.traces import Finding, tell

from foreign_scheduler_adapter import ForeignEngine
from foreign_scheduler_faults import WaitsForOneBlockMore
from foreign_scheduler_sample import PagedScheduler, Seq

# ---- the picture ---------------------------------------------------------------------------------------------------

PREEMPTED = (Submit(Request(0, 1, 3)), Submit(Request(1, 5, 3)), *(Schedule(), Complete()) * 3)  # at the third step


def legend(*more: object) -> set[str]:
    """Return what the legend says of the sound scheduler, in which request 1 has given its blocks to request 0."""
    case = ForeignCase(Config(3, 3), ForeignEngine, Limits(18, 8))
    film = film_of_counterexample(Finding(case, (*PREEMPTED, *more), Broken("R-PRE-1", "")))
    assert film.mark is None
    return {str(handle.get_label()) for handle in legend_handles(film)}


def test_a_request_that_comes_again_is_explained() -> None:
    assert not any("preemption" in label for label in legend()), "it waits"
    assert {"1.2: request 1 again, after 1 preemption", "held: a colour a request, its name inside"} <= legend(
        Schedule()
    )


# ---- a leak --------------------------------------------------------------------------------------------------------


class Leaks(PagedScheduler):
    """Who is cancelled while it runs keeps its blocks; nobody runs beyond what is free."""

    def cancel(self, seq: Seq) -> None:
        self.running.remove(seq)


class LeaksAndRaises(Leaks):
    """The same, and where blocks are short it raises."""

    def fits(self, blocks: int) -> bool:
        if not super().fits(blocks):
            raise MemoryError
        return True


class SaysNothing(ForeignEngine):
    """The stranger's, which does not tell how many blocks are free."""

    def free_blocks(self) -> None:  # type: ignore[override]
        """Tell nothing."""


LEAK = (Submit(Request(0, 3, 2)), Schedule(), Cancel(0), Complete())  # of the two blocks of request 0


def broken_by(scheduler: type[PagedScheduler], adapter: type[ForeignEngine], *operations: Any) -> tuple[int, Broken]:
    """Return at which operation of a world of 4 blocks of 2 tokens what is said to be broken."""
    adapter = type(scheduler.__name__, (adapter,), {"scheduler_class": scheduler})
    told, broken = tell(ForeignCase(Config(4, 2), adapter, Limits(8, 4)), operations)
    assert broken is not None
    return len(told), broken


def test_a_leak_is_found_at_once_where_free_blocks_are_told() -> None:
    at, broken = broken_by(Leaks, ForeignEngine, *LEAK, Finish())
    assert (at, broken.rule, broken.detail) == (4, "R-OWN-4", "all are gone, and free or cached are 2 of 4 blocks")


def test_a_leak_that_is_not_told_is_asked_about_where_it_shows() -> None:
    at, broken = broken_by(Leaks, SaysNothing, *LEAK, Submit(Request(1, 5, 1)), *[Schedule()] * 3)
    assert (at, broken.rule) == (8, "R-PRE-3")
    assert broken.detail.endswith(
        "planned: nobody is known to hold 4 of 4 blocks: lost? (`free_blocks` would tell sooner)"
    )
    at, broken = broken_by(LeaksAndRaises, SaysNothing, *LEAK, Submit(Request(1, 5, 1)), Schedule())
    assert (at, broken.rule) == (6, "CRASH")
    raised, _, lost = broken.detail.partition(" in fits: ")
    assert raised.startswith("schedule: MemoryError at test_foreign_scheduler_findings.py:")
    assert lost.startswith("nobody is known to hold 4 of 4 blocks: lost?")
    at, broken = broken_by(LeaksAndRaises, SaysNothing, *LEAK, Finish())
    assert (at, broken.rule) == (5, "CRASH")
    assert "MemoryError at test_foreign_scheduler_findings.py:" in broken.detail
    assert " in fits: nobody is known" in broken.detail
    at, broken = broken_by(Leaks, SaysNothing, *LEAK, Finish())
    assert (at, broken.rule) == (5, "R-OWN-4")
    assert "is not served" in broken.detail
    assert "nobody is known to hold 4 of 4 blocks" in broken.detail


def test_a_leak_that_is_told_is_counted_while_others_are_there() -> None:
    first, *rest = LEAK
    at, broken = broken_by(Leaks, ForeignEngine, first, Submit(Request(1, 5, 1)), *rest, *[Schedule()] * 3)
    assert (at, broken.rule) == (8, "R-PRE-3")
    assert broken.detail.endswith("nobody is known to hold 4 of 4 blocks, and 2 are free or cached: lost?")


def test_nothing_is_said_to_be_lost_where_nobody_has_left() -> None:
    _, broken = broken_by(WaitsForOneBlockMore, SaysNothing, Submit(Request(0, 7, 1)), *[Schedule()] * 3)
    assert "lost" not in broken.detail

"""What a finding of a stranger's scheduler tells its owner: in the message, in the picture."""

from pagedkv.bench.show_sources import film_of_counterexample
from pagedkv.bench.show_strips import legend_handles
from pagedkv.spec.foreign_drivers import ForeignCase
from pagedkv.spec.foreign_scheduler import Config, Limits
from pagedkv.spec.refusals import Broken
from pagedkv.spec.requests import Request
from pagedkv.spec.scheduler_alphabet import Complete, Schedule, Submit
from pagedkv.spec.traces import Finding

from foreign_scheduler_adapter import ForeignEngine

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

"""What a scheduler refuses: by which name, in which order, with nothing lost; and the journal of it all audits."""

from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from pagedkv.impl import block_tables
from pagedkv.impl.cache import BlockCache
from pagedkv.impl.refusals import (
    BadCount,
    Busy,
    Draining,
    Duplicate,
    Empty,
    InvalidArgument,
    Refused,
    TooLong,
    Unknown,
    UnknownLaunch,
)
from pagedkv.impl.requests import Limits, Request
from pagedkv.impl.scheduler import Scheduler
from pagedkv.spec.audit import audit

LIMITS = Limits(max_tokens_per_step=8, max_running=3, steps_ahead=2)


def busy_scheduler(path: Path | None = None) -> Scheduler:
    """Return a scheduler of 6 blocks of 4 in which request 1 runs, 2 waits, and launches 2 and 3 are in flight."""
    engine = Scheduler(BlockCache(6, 4, journal=path), LIMITS)
    engine.submit(Request(1, [1, 2, 3, 4], 9, samples=2))
    engine.submit(Request(2, 5, 2, samples=2))
    plan = engine.schedule()
    engine.schedule()
    assert plan.launch is not None
    engine.complete(plan.launch.id, [7, 8])
    engine.schedule()
    assert (engine.in_flight(), engine.running, engine.waiting) == ([2, 3], 1, 1)
    return engine


def seen(engine: Scheduler) -> tuple[object, ...]:
    """Return all that can be seen of a scheduler, to compare before and after."""
    engine.cache.check()
    requests = [engine.request(request) for request in engine.requests()]
    return requests, engine.running, engine.waiting, engine.in_flight(), engine.cache.counts, engine.cache.sequences()


BAD_REQUESTS = [
    (Request(1, 4, 1), Duplicate),
    (Request(2, 0, 0, samples=0), Duplicate),
    (Request(3, 0, 0), Empty),
    (Request(3, [], 1), Empty),
    (Request(3, -1, 1), Empty),
    (Request(3, 99, 0), BadCount),
    (Request(3, 4, 1, samples=0), BadCount),
    (Request(3, 4, 1, samples=4), BadCount),
    (Request(3, 4, 1, priority=256), BadCount),
    (Request(3, 4, 1, priority=-1), BadCount),
    (Request(3, 25, 1), TooLong),
    (Request(3, 24, 2), TooLong),
    (Request(3, 12, 2, samples=2), TooLong),
    (Request(3, 4, 2**62), TooLong),
    (Request(3, 10**400, 1), InvalidArgument),
    (Request(3, [[1, 2]], 1), InvalidArgument),  # type: ignore[list-item]
    (Request(3, [1, -2], 1), InvalidArgument),
    (Request(3, [2**31], 1), InvalidArgument),
    (Request(3, [2**80], 1), InvalidArgument),
    (Request(3, [1, [2]], 1), InvalidArgument),  # type: ignore[list-item]
    (Request(3, np.array([1.5]), 1), InvalidArgument),
    (Request(3, "4", 1), InvalidArgument),  # type: ignore[arg-type]
    (Request(3, None, 1), InvalidArgument),  # type: ignore[arg-type]
    (Request("3", 4, 1), InvalidArgument),  # type: ignore[arg-type]
    (Request(3, np.True_, 1), InvalidArgument),  # type: ignore[arg-type]
    (Request(3, 4, 1.5), InvalidArgument),  # type: ignore[arg-type]
    (Request(3, 4, 1, salt="a"), InvalidArgument),  # type: ignore[arg-type]
]


def test_numbers_of_any_library_are_kept_as_pythons() -> None:
    """A numpy id or limit that is kept as it came breaks later: it is no key, or cannot fall below 0."""
    limits = Limits(max_running=np.int8(3), watermark_blocks=np.uint32(1))  # type: ignore[arg-type]
    engine = Scheduler(BlockCache(6, 4), limits)
    engine.submit(Request(np.int64(7), [1, 2, 3, 4, 5], 2))  # type: ignore[arg-type]
    engine.schedule()
    assert engine.complete(np.int16(1), [8]).finished == ()  # type: ignore[arg-type]
    engine.schedule()
    assert engine.complete(np.array(2), [9]).finished == (7,)  # type: ignore[arg-type]


def test_a_cache_that_is_at_work_is_refused() -> None:
    cache = BlockCache(8, 4, launches_in_flight=1)
    cache.add(1, 4)
    launch = cache.launch([1], 4)
    cache.release(1)
    with pytest.raises(InvalidArgument, match="at work already"):
        Scheduler(cache, Limits())
    cache.retire(launch.id)
    assert Scheduler(cache, Limits()).requests() == []


def test_a_request_whose_row_is_too_long_for_memory_is_refused_before_it_waits() -> None:
    """It was taken in, and taken from those who wait, and then lost: `schedule` had no memory for its row."""
    engine = Scheduler(BlockCache(2**16, 2**40), Limits())
    before = seen(engine)
    with mock.patch.object(block_tables, "grown", side_effect=MemoryError), pytest.raises(InvalidArgument) as refusal:
        engine.submit(Request(1, 2**56, 1))
    assert str(refusal.value) == "no memory for a table with rows of 65536 blocks: ask for less"
    assert seen(engine) == before
    engine.submit(Request(1, 2**46, 1))
    assert engine.cache.table.shape[1] == 64, "as it was made"
    assert engine.schedule().admitted[0].tokens == 2**46


@pytest.mark.parametrize(("request_", "reason"), BAD_REQUESTS, ids=str)
def test_a_request_that_is_refused_leaves_nothing(request_: Request, reason: type[Refused]) -> None:
    engine = busy_scheduler()
    before = seen(engine)
    with pytest.raises(reason) as refusal:
        engine.submit(request_)
    assert type(refusal.value) is reason
    assert "\n" not in str(refusal.value)
    assert seen(engine) == before
    assert engine.submit(Request(4, 4, 1)) == range(4, 5), "no name is lost"


def test_what_just_fits_is_taken() -> None:
    engine = busy_scheduler()
    engine.submit(Request(3, 24, 1, samples=1, priority=255))
    engine.submit(Request(4, 1, 24))
    engine.submit(Request(5, np.arange(8, dtype=np.uint8), 1, samples=3, salt=-(2**63)))


def test_after_drain_nothing_is_taken_and_other_reasons_come_first() -> None:
    engine = busy_scheduler()
    engine.drain()
    for request, reason in [(Request(3, 4, 1), Draining), (Request(1, 4, 1), Duplicate), (Request(3, 0, 1), Empty)]:
        with pytest.raises(reason):
            engine.submit(request)


@pytest.mark.parametrize(
    ("launch", "sampled", "reason"),
    [
        (4, [1, 1], UnknownLaunch),
        (0, [1, 1], UnknownLaunch),
        (-1, [], UnknownLaunch),
        (2**62, [], UnknownLaunch),
        (10**50, [], InvalidArgument),
        (3, [1, 1], Busy),
        (3, [1], Busy),
        (2, [1], BadCount),
        (2, [1, 1, 1], BadCount),
        (2, [], BadCount),
        (2, [1, -1], InvalidArgument),
        (2, [1, 2**31], InvalidArgument),
        (2, [1.0, 2.0], InvalidArgument),
        ("2", [1, 1], InvalidArgument),
    ],
    ids=str,
)
def test_a_result_that_is_refused_changes_nothing(launch: int, sampled: list[int], reason: type[Refused]) -> None:
    engine = busy_scheduler()
    before = seen(engine)
    with pytest.raises(reason):
        engine.complete(launch, sampled)
    if reason in (UnknownLaunch, Busy):
        with pytest.raises(reason):
            engine.fail(launch)
    assert seen(engine) == before
    engine.complete(2, [1, 1])


def test_names_that_stop_are_integers_and_unknown_ones_are_nobody() -> None:
    engine = busy_scheduler()
    before = seen(engine)
    with pytest.raises(InvalidArgument):
        engine.complete(2, [1, 1], stopped=["0"])  # type: ignore[list-item]
    assert seen(engine) == before
    assert engine.complete(2, [1, 1], stopped=[99, 2]).finished == ()


def test_a_launch_is_completed_once() -> None:
    engine = busy_scheduler()
    before = seen(engine)
    assert engine.complete(1, [1, 1, 1]).finished == ()
    assert engine.fail(1) == ()
    assert seen(engine) == before


def test_who_is_not_there_cannot_be_cancelled_or_preempted() -> None:
    engine = busy_scheduler()
    before = seen(engine)
    for call in (engine.cancel, engine.preempt):
        with pytest.raises(Unknown):
            call(3)
        with pytest.raises(InvalidArgument):
            call("1")  # type: ignore[arg-type]
    with pytest.raises(Busy):
        engine.preempt(2)
    assert seen(engine) == before
    engine.cancel(2)
    with pytest.raises(Unknown):
        engine.cancel(2)
    engine.submit(Request(2, 4, 1))


@pytest.mark.parametrize(
    "limits",
    [
        {"max_tokens_per_step": 0},
        {"max_running": 0},
        {"steps_ahead": 0},
        {"steps_ahead": 3},
        {"watermark_blocks": -1},
        {"policy": "lottery"},
        {"prefix_cache": 1},
        {"max_running": 2.5},
        {"max_tokens_per_step": True},
    ],
    ids=str,
)
def test_limits_that_serve_nobody_are_refused(limits: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument):
        Limits(**limits)  # type: ignore[arg-type]


def test_a_scheduler_needs_a_cache_of_its_own() -> None:
    cache = BlockCache(2, 4)
    with pytest.raises(InvalidArgument):
        Scheduler(None, LIMITS)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        Scheduler(cache, {"max_running": 3})  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="launches_in_flight"):
        Scheduler(BlockCache(2, 4, launches_in_flight=1), LIMITS)
    cache.add(7, 1)
    with pytest.raises(InvalidArgument, match="sequences"):
        Scheduler(cache, LIMITS)


def test_the_journal_of_bad_input_audits(tmp_path: Path) -> None:
    path = tmp_path / "refusals.journal"
    engine = busy_scheduler(path)
    for request, reason in BAD_REQUESTS:
        with pytest.raises(reason):
            engine.submit(request)
    for launch, sampled in ((4, [1]), (3, [1, 1]), (2, [1])):
        with pytest.raises(Refused):
            engine.complete(launch, sampled)
    engine.complete(2, [1, 1])
    engine.fail(3)
    while engine.requests():
        plan = engine.schedule()
        if plan.launch is not None and len(engine.in_flight()) < 2:
            continue
        engine.complete(engine.in_flight()[0], [3] * _tokens_expected(engine))
    counts = engine.cache.counts
    assert (counts.free + counts.idle, counts.idle > 0) == (6, True)
    engine.cache.close()
    found = audit(path)
    assert (found.sequences_left, found.in_flight_left) == (0, 0)


def _tokens_expected(engine: Scheduler) -> int:
    """Return how many tokens the oldest launch samples, as its refusal says it."""
    try:
        engine.complete(engine.in_flight()[0], [3] * 99)
    except BadCount as refusal:
        return int(str(refusal).split("sampled ")[1].split(",")[0])
    raise AssertionError

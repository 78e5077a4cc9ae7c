"""The policy by example: rows, samples, room and admission, each step of it by hand (`played_engine.py`)."""

from pagedkv.spec import operations
from pagedkv.spec.requests import Policy, Request, Sample, available, leaving
from pagedkv.spec.scheduling import schedule
from pagedkv.spec.state import holders
from pagedkv.spec.turn import Plan, Preemption, Row

from played_engine import AHEAD, WIDE, Played

# ---- rows -----------------------------------------------------------------------------------------------------------


def test_a_prompt_comes_in_chunks_and_samples_at_its_end() -> None:
    played = Played(8, WIDE._replace(max_tokens_per_step=3), Request(0, 5, 2))
    assert played.plan().rows == (Row(0, 0, 3, 0),)
    played.complete()
    assert played.plan().rows == (Row(0, 3, 2, 1),)
    assert played.sample(0) == Sample((), pending=1)
    played.complete(40)
    assert played.sample(0) == Sample((40,), pending=0)
    assert played.plan().rows == (Row(0, 5, 1, 1),)


def test_decodes_go_first_and_a_prompt_takes_what_they_leave() -> None:
    played = Played(8, WIDE._replace(max_tokens_per_step=3), Request(0, 1, 3), Request(1, 1, 3))
    played.plan()
    played.complete(40, 41)
    played.play("submit", Request(2, 4, 1))
    plan = played.plan()
    assert plan.rows == (Row(0, 1, 1, 1), Row(1, 1, 1, 1), Row(2, 0, 1, 0))
    assert plan.admitted == (2,)


def test_two_steps_ahead_a_position_is_planned_before_its_token_is_known() -> None:
    played = Played(8, AHEAD, Request(0, 3, 3))
    assert played.plan().rows == (Row(0, 0, 3, 1),)
    assert played.plan().rows == (Row(0, 3, 1, 1),)
    assert played.sample(0) == Sample((), pending=2)
    assert played.plan() == Plan()  # as many in flight as may be
    played.complete(40)
    assert played.plan().rows == (Row(0, 4, 1, 1),)
    played.complete(41)
    assert played.plan() == Plan()  # its last token is on its way


def test_the_position_of_the_last_token_is_never_made() -> None:
    played = Played(2, WIDE, Request(0, 3, 2))
    played.plan()
    played.complete(40)
    played.plan()
    assert played.engine.cache.sequences[0].allocated == 3 + 2 - 1
    assert played.complete(41) == (0,)
    assert available(played.engine.cache) == 2


def test_no_budget_is_left_for_who_comes_last() -> None:
    played = Played(8, WIDE._replace(max_tokens_per_step=2), *(Request(id_, 1, 3) for id_ in range(3)))
    assert [row.name for row in played.plan().rows] == [0, 1]
    played.complete(40, 41)
    assert played.plan() == Plan(2, (Row(0, 1, 1, 1), Row(1, 1, 1, 1)))  # nobody is admitted without budget


# ---- samples --------------------------------------------------------------------------------------------------------


def test_samples_part_behind_the_prompt_and_each_takes_a_token_of_it() -> None:
    played = Played(9, WIDE, Request(0, 3, 3, samples=3))
    plan = played.plan()
    assert plan.rows == (Row(0, 0, 3, 3),)
    assert plan.forked == ((0, 1), (0, 2))
    assert holders(played.engine.cache.sequences, 2) == [0, 1, 2]
    played.complete(40, 41, 42)
    assert [played.sample(name).outputs for name in range(3)] == [(40,), (41,), (42,)]
    assert played.plan().rows == tuple(Row(name, 3, 1, 1) for name in range(3))
    assert len(played.engine.cache.launches[0].copies) == 2  # the last holder writes in place


def test_the_first_sample_may_end_with_its_first_token_and_the_others_go_on() -> None:
    played = Played(8, WIDE, Request(0, 3, 3, samples=2))
    played.plan()
    assert played.complete(40, 41, stopped=(0,)) == ()
    assert list(played.engine.cache.sequences) == [1]
    assert played.plan().rows == (Row(1, 3, 1, 1),)
    assert played.complete(42, stopped=(1,)) == (0,)


def test_samples_that_end_together_finish_their_request_once() -> None:
    played = Played(8, WIDE, Request(7, 3, 1, samples=3))
    played.plan()
    assert played.complete(40, 41, 42) == (7,)
    assert not played.engine.cache.sequences
    assert not played.engine.jobs


# ---- room -----------------------------------------------------------------------------------------------------------


def test_the_last_request_gives_way_with_all_its_samples() -> None:
    played = Played(4, WIDE, Request(0, 2, 3), Request(1, 2, 2, samples=2))
    played.plan()
    played.complete(40, 41, 42)
    plan = played.plan()  # 0 needs one more block, 1 and 2 one each; two are free
    assert plan.preempted == (Preemption(1, recompute=((1, 3), (2, 3))),)
    assert plan.rows == (Row(0, 2, 1, 1),)
    assert played.sample(1) == Sample((41,))
    assert not played.engine.runs(played.engine.jobs[1])


def test_a_row_waits_for_blocks_that_are_about_to_be_free() -> None:
    played = Played(3, AHEAD, Request(0, 2, 3), Request(1, 2, 3), Request(2, 2, 1))
    played.plan()
    played.play("cancel", 2)  # its block is written by the launch in flight
    assert (available(played.engine.cache), leaving(played.engine.cache)) == (0, 1)
    plan = played.plan()
    assert plan.preempted == (Preemption(1, recompute=((1, 2),)),)  # one block will not do for two rows
    assert plan.rows == ()  # and until it is there, nobody grows
    played.complete(40, 41, 42)
    assert played.plan().rows == (Row(0, 2, 1, 1), Row(1, 0, 2, 1))


def test_nobody_is_admitted_beside_a_row_that_waits() -> None:
    played = Played(3, AHEAD._replace(max_tokens_per_step=4), Request(0, 2, 3), Request(1, 2, 1), Request(2, 1, 1))
    played.plan()  # 0 and 1; there is no budget for 2
    played.play("cancel", 1)
    before = played.engine
    blocked = before._replace(cache=before.cache._replace(free=frozenset(), quarantine={2: 1, 3: 1}))
    engine, decided = schedule(blocked)
    assert decided.plan == Plan()
    assert [job.request.id for job in engine.waiting()] == [2]


def test_a_request_alone_waits_for_its_own_launch_and_then_fails_alone() -> None:
    """Somebody else holds the pool: it cannot be extended, and preempting it would help nobody."""
    played = Played(3, AHEAD, Request(0, 2, 3), Request(1, 6, 1))
    taken, _ = operations.add(played.engine.cache, -1, 4)
    played.engine = played.engine._replace(cache=taken)
    assert played.plan().admitted == (0,)
    assert played.plan() == Plan()
    played.complete(40)
    assert played.plan() == Plan(failed=(0,))
    assert list(played.engine.jobs) == [1]  # it would fit an empty pool, and waits
    released, _ = operations.release(played.engine.cache, -1)
    played.engine = played.engine._replace(cache=released)
    assert played.plan().admitted == (1,)


# ---- admission ------------------------------------------------------------------------------------------------------


def test_nobody_overtakes() -> None:
    played = Played(4, WIDE, Request(0, 4, 1), Request(1, 6, 1), Request(2, 1, 1))
    assert played.plan().admitted == (0,)  # 1 does not fit beside it, and 2 has to wait for 1
    played.complete(40)
    assert played.plan().admitted == (1, 2)


def test_the_watermark_is_left_where_somebody_runs() -> None:
    limits = WIDE._replace(watermark_blocks=1)
    played = Played(3, limits, Request(0, 2, 2), Request(1, 4, 1))
    assert played.plan().admitted == (0,)  # 1 would leave none
    played.complete(40)
    played.plan()
    assert played.complete(41) == (0,)
    assert played.plan().admitted == (1,)
    assert Played(2, limits, Request(0, 4, 1)).plan().admitted == (0,)  # where nothing runs it need not be


def test_places_are_counted_for_samples_that_have_not_parted() -> None:
    played = Played(8, WIDE._replace(max_running=3, max_tokens_per_step=4), Request(0, 3, 2, samples=2))
    played.play("submit", Request(1, 1, 1, samples=2))
    played.play("submit", Request(2, 1, 1))
    assert played.plan().admitted == (0,)
    assert [job.request.id for job in played.engine.waiting()] == [1, 2]


def test_priority_goes_before_the_order_of_submission_and_takes_nothing_away() -> None:
    limits = WIDE._replace(max_running=1)
    requests = (Request(0, 1, 1, priority=5), Request(1, 1, 1, priority=2), Request(2, 1, 1, priority=2))
    for policy, order in ((Policy.FCFS, [0, 1, 2]), (Policy.PRIORITY, [1, 2, 0])):
        played = Played(8, limits._replace(policy=policy), *requests)
        admitted: list[int] = []
        for _ in requests:
            admitted += played.plan().admitted
            played.complete(40)
        assert admitted == order

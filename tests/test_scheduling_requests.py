"""The life of a request by example: preemption, failure, cancellation, prefixes, refusals (`played_engine.py`)."""

import pytest
from pagedkv.spec.refusals import Broken, Reason
from pagedkv.spec.requests import Request, Sample, available, leaving
from pagedkv.spec.scheduler_alphabet import FUNCTIONS
from pagedkv.spec.scheduling import schedule
from pagedkv.spec.turn import Decision, Preemption, Row

from played_engine import AHEAD, WIDE, Played, refused

# ---- preemption, failure, cancellation ------------------------------------------------------------------------------


def test_a_preempted_request_comes_back_before_who_came_later_and_computes_all_anew() -> None:
    played = Played(8, WIDE._replace(max_running=1), Request(0, 3, 4), Request(1, 1, 1))
    played.plan()
    played.complete(40)
    assert played.play("preempt", 0).decided.preempted == (Preemption(0, recompute=((0, 4),)),)
    plan = played.plan()
    assert plan.admitted == (0,)
    assert plan.rows == (Row(0, 0, 4, 1),)


def test_a_fresh_request_begins_as_one_and_another_as_all_its_samples() -> None:
    played = Played(8, AHEAD, Request(0, 3, 3, samples=2))
    played.plan()
    played.play("preempt", 0)
    assert played.plan().rows == (Row(0, 0, 3, 2),)  # no token was known: it parts again
    played.complete(9, 9)  # of the launch before
    assert played.sample(0) == Sample((), pending=1)
    played.complete(40, 41)
    played.play("preempt", 0)
    assert played.plan().rows == (Row(0, 0, 4, 1), Row(1, 0, 4, 1))


def test_of_a_group_let_in_again_some_may_have_no_row_yet() -> None:
    played = Played(8, WIDE._replace(max_tokens_per_step=5), Request(0, 3, 3, samples=2))
    played.plan()
    played.complete(40, 41)
    played.play("preempt", 0)
    assert played.plan().rows == (Row(0, 0, 4, 1), Row(1, 0, 1, 0))
    assert played.engine.cache.sequences[1].allocated == 4


def test_a_result_of_an_older_life_is_nobodys() -> None:
    played = Played(8, AHEAD, Request(0, 2, 3))
    played.plan()
    played.play("preempt", 0)
    played.plan()
    assert played.sample(0) == Sample((), pending=1)
    played.complete(9, stopped=(0,))
    assert played.sample(0) == Sample((), pending=1)
    played.complete(40)
    assert played.sample(0) == Sample((40,))


def test_a_failed_launch_sends_everybody_in_it_back() -> None:
    played = Played(8, AHEAD, Request(0, 2, 3), Request(1, 2, 3))
    played.plan()
    played.plan()
    assert [each.request for each in played.play("fail", 1).decided.preempted] == [0, 1]
    assert played.complete(9, 9) == ()  # it went on from what failed
    assert played.plan().rows == (Row(0, 0, 2, 1), Row(1, 0, 2, 1))


def test_a_cancelled_request_is_gone_at_once_and_its_blocks_when_its_launch_is() -> None:
    played = Played(2, WIDE, Request(0, 4, 1))
    played.plan()
    played.play("cancel", 0)
    assert not played.engine.jobs
    assert (available(played.engine.cache), leaving(played.engine.cache)) == (0, 2)
    assert played.complete(9) == ()
    assert available(played.engine.cache) == 2
    refused(Reason.UNKNOWN, played.engine, "cancel", 0)


# ---- prefixes -------------------------------------------------------------------------------------------------------

SHARING = WIDE._replace(prefix_cache=True)


def test_what_was_computed_is_hit_and_only_the_rest_is_computed() -> None:
    played = Played(8, SHARING, Request(0, (1, 2, 3, 4, 5), 2))
    played.plan()
    played.complete(6)
    assert len(played.engine.cache.prefixes) == 2
    played.play("submit", Request(1, (1, 2, 3, 4, 9), 1)).play("submit", Request(2, (1, 2, 3, 4, 5), 1, salt=1))
    plan = played.plan()
    assert plan.rows == (Row(0, 5, 1, 1), Row(1, 4, 1, 1), Row(2, 0, 5, 1))  # another tenant computes its own


def test_a_sampled_token_is_told_when_its_position_is_written() -> None:
    played = Played(8, SHARING, Request(0, (1,), 4))
    for token in (2, 3):
        played.plan()
        played.complete(token)
    assert played.engine.cache.sequences[0].known == (1, 2)
    assert [key.tokens for key in played.engine.cache.prefixes] == [(1, 2)]


def test_who_comes_back_finds_what_it_had() -> None:
    played = Played(8, SHARING, Request(0, (1, 2, 3, 4), 3))
    played.plan()
    played.complete(5)
    played.play("preempt", 0)
    assert played.plan().rows == (Row(0, 4, 1, 1),)


def test_an_idle_block_that_is_hit_is_not_available_as_well() -> None:
    played = Played(3, SHARING, Request(0, (1, 2), 1))
    played.plan()
    played.complete(5)
    assert (len(played.engine.cache.evictable), available(played.engine.cache)) == (1, 3)
    limits = SHARING._replace(watermark_blocks=2)
    played.engine = played.engine._replace(limits=limits)
    played.play("submit", Request(1, (7,), 2)).play("submit", Request(2, (1, 2, 3), 1))
    assert played.plan().admitted == (1,)  # 2 hits one block and needs one: none of three would be left


def test_nothing_of_a_failed_launch_or_of_a_prompt_without_ids_is_published() -> None:
    played = Played(8, SHARING, Request(0, (1, 2), 2), Request(1, 2, 2))
    played.plan()
    played.play("fail", 1)
    assert not played.engine.cache.prefixes
    played.plan()
    played.complete(5, 6)
    assert [key.tokens for key in played.engine.cache.prefixes] == [(1, 2)]


# ---- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (Request(0, 0, 0), Reason.DUPLICATE),
        (Request(1, 0, 0), Reason.EMPTY),
        (Request(1, (), 0), Reason.EMPTY),
        (Request(1, 99, 0), Reason.BAD_COUNT),
        (Request(1, 99, 1, samples=0), Reason.BAD_COUNT),
        (Request(1, 99, 1, samples=9), Reason.BAD_COUNT),
        (Request(1, 1, 1, priority=256), Reason.BAD_COUNT),
        (Request(1, 1, 1, priority=-1), Reason.BAD_COUNT),
        (Request(1, 8, 2), Reason.TOO_LONG),
        (Request(1, 3, 1, samples=3), Reason.TOO_LONG),
        (Request(1, 8, 1), Reason.DRAINING),
    ],
)
def test_the_first_reason_that_applies_is_given(request_: Request, reason: Reason) -> None:
    played = Played(4, WIDE, Request(0, 1, 1)).play("drain")
    refused(reason, played.engine, "submit", request_)
    assert played.plan().admitted == (0,)  # what is there goes on


def test_completions_come_in_order_once_and_with_a_token_each() -> None:
    played = Played(8, AHEAD, Request(0, 1, 3, samples=2))
    refused(Reason.UNKNOWN_LAUNCH, played.engine, "complete", 1, ())
    played.plan()
    played.plan()
    for word, rest in (("complete", ((1, 2),)), ("fail", ())):
        refused(Reason.BUSY, played.engine, word, 2, *rest)
        refused(Reason.UNKNOWN_LAUNCH, played.engine, word, 3, *rest)
        refused(Reason.UNKNOWN_LAUNCH, played.engine, word, 0, *rest)
    refused(Reason.BAD_COUNT, played.engine, "complete", 1, (40,))
    played.complete(40, 41)
    for late in (FUNCTIONS["complete"](played.engine, 1, ()), FUNCTIONS["fail"](played.engine, 1)):
        assert late == (played.engine, Decision())


def test_who_waits_cannot_be_preempted() -> None:
    played = Played(8, WIDE, Request(0, 1, 1))
    refused(Reason.BUSY, played.engine, "preempt", 0)
    refused(Reason.UNKNOWN, played.engine, "preempt", 1)


# ---- following ------------------------------------------------------------------------------------------------------


def test_an_implementation_is_held_to_the_operations_of_the_policy() -> None:
    played = Played(8, WIDE, Request(0, 3, 2), Request(1, 3, 2))
    done = [(step.operation, step.outcome) for step in played.play("schedule").decided.steps]
    again = Played(8, WIDE, Request(0, 3, 2), Request(1, 3, 2)).engine
    assert schedule(again, done)[0] == played.engine
    for wrong, rule in (
        (done[1:], "R-CAP-4"),
        (done[:-1], "R-PRE-2"),
        ([*done, done[0]], "R-CAP-4"),
        ([done[1], done[0], done[2]], "R-CAP-4"),
    ):
        with pytest.raises(Broken) as broken:
            schedule(again, wrong)
        assert broken.value.rule == rule

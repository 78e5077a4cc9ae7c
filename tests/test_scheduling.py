"""The policy by example: each step of it by hand, and each refusal.

Blocks of two slots throughout. Requests are numbered as they are submitted, and so are their sequences.
"""

from typing import Any

import pytest
from pagedkv.spec import operations
from pagedkv.spec.refusals import Broken, Reason, Refused
from pagedkv.spec.requests import Engine, Limits, Policy, Request, Sample, available, leaving
from pagedkv.spec.scheduler_alphabet import FUNCTIONS
from pagedkv.spec.scheduling import schedule
from pagedkv.spec.serving import start
from pagedkv.spec.state import Config, holders
from pagedkv.spec.turn import Decision, Plan, Preemption, Row


class Played:
    """An engine, and what has been decided last."""

    def __init__(self, blocks: int, limits: Limits, *requests: Request) -> None:
        self.engine: Engine = start(Config(blocks, 2, launches=2), limits)
        self.decided = Decision()
        for request in requests:
            self.play("submit", request)

    def play(self, word: str, *arguments: Any) -> "Played":
        """Do an operation."""
        self.engine, self.decided = FUNCTIONS[word](self.engine, *arguments)
        return self

    def plan(self) -> Plan:
        """Schedule, and return the plan."""
        return self.play("schedule").decided.plan

    def complete(self, *tokens: int, stopped: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Complete the oldest launch; return who has finished."""
        return self.play("complete", self.engine.flights[0].launch, tokens, stopped).decided.finished

    def sample(self, name: int) -> Sample:
        """Return what is known of a sample."""
        return self.engine.owner(name).samples[name]


def refused(reason: Reason, engine: Engine, word: str, *arguments: Any) -> None:
    """See that an operation is refused."""
    with pytest.raises(Refused) as refusal:
        FUNCTIONS[word](engine, *arguments)
    assert refusal.value.reason is reason


WIDE = Limits(max_tokens_per_step=16, max_running=8)
AHEAD = WIDE._replace(steps_ahead=2)


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

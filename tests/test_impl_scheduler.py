"""The scheduler step by step, on cases worked out by hand: blocks of 4 positions throughout."""

import numpy as np
import pytest
from pagedkv.impl.cache import BlockCache
from pagedkv.impl.plans import Admission, Fork, Plan, Preemption
from pagedkv.impl.requests import Limits, Request
from pagedkv.impl.scheduler import Scheduler

Rows = dict[int, tuple[int, int, int]]  # sequence -> first position written, positions written, tokens sampled


def scheduler(blocks: int, tokens: int = 100, running: int = 100, **limits: object) -> Scheduler:
    """Return a scheduler of an empty pool."""
    given: dict[str, object] = {"max_tokens_per_step": tokens, "max_running": running, "prefix_cache": False} | limits
    return Scheduler(BlockCache(blocks, 4), Limits(**given))  # type: ignore[arg-type]


def submit(engine: Scheduler, *lengths: tuple[int, int], **more: int) -> None:
    """Submit requests of (prompt, outputs) tokens, with ids counted up."""
    for request, (prompt, outputs) in enumerate(lengths, len(engine.requests())):
        engine.submit(Request(request, prompt, outputs, **more))


def rows(plan: Plan) -> Rows:
    """Return what a plan's launch does, row by row."""
    if plan.launch is None:
        return {}
    columns = plan.launch.seqs, plan.launch.starts, plan.counts, plan.samples
    return {seq: (*rest,) for seq, *rest in zip(*(column.tolist() for column in columns), strict=True)}


def complete(engine: Scheduler, plan: Plan, stopped: tuple[int, ...] = (), token: int = 5) -> tuple[int, ...]:
    """Complete a plan with the same token everywhere; return the requests that finished."""
    assert plan.launch is not None
    finished = engine.complete(plan.launch.id, [token] * int(plan.samples.sum()), stopped).finished
    engine.cache.check()
    return finished


def step(engine: Scheduler) -> tuple[Rows, tuple[int, ...]]:
    """Do one step; return its rows and the requests that it finished."""
    plan = engine.schedule()
    return rows(plan), complete(engine, plan)


def all_free(engine: Scheduler) -> bool:
    """Whether every block came back."""
    return engine.cache.counts.free == engine.cache.blocks


def test_a_prompt_in_chunks_and_its_tokens() -> None:
    """6 prompt tokens in chunks of 4 and 2; the second gives the first of 3 tokens; the last one is never written."""
    engine = scheduler(2, tokens=4)
    submit(engine, (6, 3))
    assert step(engine) == ({0: (0, 4, 0)}, ())
    assert step(engine) == ({0: (4, 2, 1)}, ())
    assert step(engine) == ({0: (6, 1, 1)}, ())
    assert engine.cache.lengths(0).allocated == 7
    assert step(engine) == ({0: (7, 1, 1)}, (0,))
    assert engine.schedule().launch is None
    assert engine.requests() == []
    assert all_free(engine)


def test_chunks_and_decode_rows_share_the_tokens_of_a_step() -> None:
    """4 tokens a step: request 0 takes 2, then 1 a step; request 1 has what is left."""
    engine = scheduler(9, tokens=4)
    submit(engine, (2, 5), (7, 1))
    assert step(engine) == ({0: (0, 2, 1), 1: (0, 2, 0)}, ())
    assert step(engine) == ({0: (2, 1, 1), 1: (2, 3, 0)}, ())
    assert step(engine) == ({0: (3, 1, 1), 1: (5, 2, 1)}, (1,))
    assert step(engine) == ({0: (4, 1, 1)}, ())


def test_a_row_beyond_the_tokens_of_a_step_waits() -> None:
    engine = scheduler(9, tokens=2)
    submit(engine, (1, 3), (1, 3), (1, 3))
    assert step(engine) == ({0: (0, 1, 1), 1: (0, 1, 1)}, ())
    assert step(engine) == ({0: (1, 1, 1), 1: (1, 1, 1)}, ())
    assert step(engine) == ({0: (2, 1, 1), 1: (2, 1, 1)}, (0, 1))
    assert step(engine) == ({2: (0, 1, 1)}, ())


def test_slots_edits_and_new_rows_are_those_of_the_cache() -> None:
    """The prompt of 4 fills block 1 under table row 1; the decode row takes block 2, whose first slot is 8."""
    engine = scheduler(9)
    submit(engine, (4, 2))
    plan = engine.schedule()
    assert [(begun.row, begun.blocks.tolist()) for begun in plan.begun] == [(1, [1])]
    assert plan.extension is None
    complete(engine, plan)
    plan = engine.schedule()
    assert plan.begun == ()
    assert plan.extension is not None
    assert plan.extension.slots.tolist() == [8]
    assert [column.tolist() for column in plan.extension.edits] == [[1], [1], [2]]


def test_all_known_blocks_are_taken_at_admission_and_nobody_overtakes() -> None:
    """4 blocks: request 0 takes 2, request 1 needs 3; request 2 would fit, but came later."""
    engine = scheduler(4)
    submit(engine, (8, 1), (12, 1), (4, 1))
    plan = engine.schedule()
    assert plan.admitted == (Admission(0, (0,), 8, 0, resumed=False),)
    assert (engine.running, engine.waiting) == (1, 2)
    assert complete(engine, plan) == (0,)
    plan = engine.schedule()
    assert [admission.request for admission in plan.admitted] == [1, 2]


def test_the_first_chunk_of_a_long_prompt_already_holds_all_its_blocks() -> None:
    engine = scheduler(4, tokens=3)
    submit(engine, (16, 1))
    assert rows(engine.schedule()) == {0: (0, 3, 0)}
    assert engine.cache.counts.free == 0


def test_not_more_sequences_run_than_may() -> None:
    engine = scheduler(9, running=3)
    submit(engine, (1, 2), samples=2)
    submit(engine, (1, 2), samples=2)
    submit(engine, (1, 1))
    assert [admission.request for admission in engine.schedule().admitted] == [0], "2 + 2 are more than 3"


def test_a_watermark_stays_free_beside_others_and_not_for_the_first() -> None:
    """4 blocks and a watermark of 3: the first request may leave 2, a second would leave 1."""
    engine = scheduler(4, watermark_blocks=3)
    submit(engine, (8, 1), (4, 1))
    assert step(engine) == ({0: (0, 8, 1)}, (0,))
    assert step(engine) == ({1: (0, 4, 1)}, (1,))
    engine = scheduler(4, watermark_blocks=1)
    submit(engine, (8, 1), (4, 1))
    assert step(engine) == ({0: (0, 8, 1), 1: (0, 4, 1)}, (0, 1))


def test_priority_goes_before_submission_in_admission_rows_and_preemption() -> None:
    engine = scheduler(4, policy="priority")
    engine.submit(Request(0, 4, 9, priority=9))
    assert step(engine)[0] == {0: (0, 4, 1)}
    engine.submit(Request(1, 4, 9, priority=8))
    engine.submit(Request(2, 4, 9, priority=0))
    plan = engine.schedule()
    assert [admission.request for admission in plan.admitted] == [2, 1]
    assert list(rows(plan)) == [0, 2, 1], "who runs comes before who is admitted"
    complete(engine, plan)
    assert engine.cache.counts.free == 0
    plan = engine.schedule()
    assert [preemption.request for preemption in plan.preempted] == [0], "two need a block, and request 0 has two"
    assert list(rows(plan)) == [2, 1]


def test_the_last_ranked_gives_way_whole_and_comes_back_at_its_rank() -> None:
    """3 blocks, two prompts of one block each, then both need another: request 1 gives way, with 4 + 1 known tokens."""
    engine = scheduler(3)
    submit(engine, (4, 6), (4, 6), (1, 1))
    assert step(engine) == ({0: (0, 4, 1), 1: (0, 4, 1), 2: (0, 1, 1)}, (2,))
    plan = engine.schedule()
    assert plan.preempted == (Preemption(1, ((1, 5),)),)
    assert rows(plan) == {0: (4, 1, 1)}
    complete(engine, plan)
    assert engine.request(1).samples[0] == (1, (5,), 0, False)
    submit(engine, (1, 1))
    for start in (5, 6, 7):
        assert step(engine) == ({0: (start, 1, 1)}, ()), (
            "one block is free, request 1 needs two, the new 2 is behind it"
        )
    assert step(engine) == ({0: (8, 1, 1)}, (0,))
    plan = engine.schedule()
    assert plan.admitted[0] == Admission(1, (1,), 5, 0, resumed=True)
    assert rows(plan) == {1: (0, 5, 1), 3: (0, 1, 1)}
    assert complete(engine, plan) == (2,)
    for start in (5, 6, 7):
        assert step(engine) == ({1: (start, 1, 1)}, ())
    assert step(engine) == ({1: (8, 1, 1)}, (1,)), "its sixth token: 4 + 6 - 1 positions are written"
    assert all_free(engine)


def test_a_victim_with_a_chunk_leaves_the_step_and_its_tokens_are_nobodys() -> None:
    """Request 1 is half-way through its prompt, when request 0 needs its last block."""
    engine = scheduler(3, tokens=6)
    submit(engine, (4, 2), (8, 1))
    assert step(engine) == ({0: (0, 4, 1), 1: (0, 2, 0)}, ())
    plan = engine.schedule()
    assert plan.preempted == (Preemption(1, ((1, 8),)),)
    assert rows(plan) == {0: (4, 1, 1)}
    assert plan.admitted == (), "not in a step in which somebody gave way"


def test_quarantine_that_covers_the_need_is_waited_for() -> None:
    """2 blocks, both held; request 1 is cancelled in flight: request 0 waits for its block, and isn't preempted."""
    engine = scheduler(2, steps_ahead=2)
    submit(engine, (4, 2), (4, 1))
    first = engine.schedule()
    engine.cancel(1)
    assert engine.cache.counts.quarantined == 1
    plan = engine.schedule()
    assert (plan.launch, plan.preempted) == (None, ())
    assert complete(engine, first) == ()
    assert step(engine) == ({0: (4, 1, 1)}, (0,))


def test_rows_from_the_last_on_wait_until_the_rest_has_room() -> None:
    """Three need a block each; one is free and two are in quarantine: two rows wait, and nobody is admitted."""
    engine = scheduler(6, steps_ahead=2)
    submit(engine, (4, 9), (4, 9), (4, 9), (8, 1))
    first = engine.schedule()
    assert len(rows(first)) == 4
    engine.cancel(3)
    submit(engine, (1, 1))
    plan = engine.schedule()
    assert rows(plan) == {0: (4, 1, 1)}
    assert (plan.preempted, plan.admitted) == ((), ())
    complete(engine, first)
    assert rows(engine.schedule()) == {0: (5, 1, 1), 1: (4, 1, 1), 2: (4, 1, 1)}


def test_a_lone_request_without_room_fails_and_the_engine_goes_on() -> None:
    """Somebody else holds one of the two blocks, so request 0 outgrows the pool; while it is in flight it waits."""
    engine = scheduler(2, steps_ahead=2)
    engine.cache.add(1000, 4)
    submit(engine, (4, 2), (1, 1))
    first = engine.schedule()
    plan = engine.schedule()
    assert (plan.launch, plan.failed, plan.preempted) == (None, (), ())
    complete(engine, first)
    plan = engine.schedule()
    assert (plan.launch, plan.failed) == (None, (0,))
    assert engine.requests() == [1]
    assert step(engine) == ({1: (0, 1, 1)}, (1,))


def test_two_steps_ahead_the_next_step_is_launched_before_the_tokens_are_known() -> None:
    engine = scheduler(9, steps_ahead=2)
    submit(engine, (2, 3))
    first, second = engine.schedule(), engine.schedule()
    assert (rows(first), rows(second)) == ({0: (0, 2, 1)}, {0: (2, 1, 1)})
    assert engine.request(0).samples[0].pending == 2
    assert engine.schedule().launch is None, "two are in flight"
    complete(engine, first)
    third = engine.schedule()
    assert rows(third) == {0: (3, 1, 1)}
    complete(engine, second)
    assert engine.schedule().launch is None, "the last of three tokens is on its way"
    assert complete(engine, third) == (0,)
    assert all_free(engine)


def test_a_sequence_that_stops_is_gone_though_a_step_of_it_is_in_flight() -> None:
    engine = scheduler(9, steps_ahead=2)
    submit(engine, (2, 9), (2, 9))
    first, second = engine.schedule(), engine.schedule()
    assert complete(engine, first, stopped=(0, 99)) == (0,)
    assert engine.requests() == [1]
    assert complete(engine, second) == (), "the token for sequence 0 is nobody's"
    assert engine.request(1).samples[0].tokens == (5, 5)


def test_samples_fork_when_the_prompt_is_launched_and_each_gets_a_token_of_it() -> None:
    """6 tokens, 3 samples of 2 tokens: the tail of 2 positions is copied by two, and written in place by the last."""
    engine = scheduler(6, tokens=4)
    submit(engine, (6, 2), samples=3)
    assert step(engine) == ({0: (0, 4, 0)}, ())
    plan = engine.schedule()
    assert rows(plan) == {0: (4, 2, 3)}
    assert plan.forked == (Fork(0, 1), Fork(0, 2))
    assert [begun.blocks.tolist() for begun in plan.begun] == [[1, 2], [1, 2]]
    assert plan.launch is not None
    engine.complete(plan.launch.id, [7, 8, 9])
    assert [sample.tokens for sample in engine.request(0).samples] == [(7,), (8,), (9,)]
    plan = engine.schedule()
    assert rows(plan) == {0: (6, 1, 1), 1: (6, 1, 1), 2: (6, 1, 1)}
    assert plan.launch is not None
    assert plan.launch.copies.seqs.tolist() == [0, 1]
    assert complete(engine, plan) == (0,)
    assert all_free(engine)


def test_a_request_is_done_when_all_its_samples_are() -> None:
    engine = scheduler(6)
    submit(engine, (2, 9), samples=2)
    plan = engine.schedule()
    assert complete(engine, plan, stopped=(0,)) == ()
    assert step(engine)[0] == {1: (2, 1, 1)}
    assert complete(engine, engine.schedule(), stopped=(1,)) == (0,)
    assert all_free(engine)


def test_samples_of_one_token_each_are_done_with_the_prompt() -> None:
    engine = scheduler(6)
    submit(engine, (5, 1), samples=3)
    assert step(engine) == ({0: (0, 5, 3)}, (0,))
    assert all_free(engine)


def test_samples_preempted_before_their_first_token_start_again_as_one_sequence() -> None:
    engine = scheduler(9, steps_ahead=2)
    submit(engine, (5, 3), samples=2)
    first = engine.schedule()
    assert engine.preempt(0) == Preemption(0, ((0, 5), (1, 5)))
    again = engine.schedule()
    assert again.admitted == (Admission(0, (0,), 5, 0, resumed=True),)
    assert again.forked == (Fork(0, 1),)
    assert complete(engine, first, token=7) == ()
    assert [sample.tokens for sample in engine.request(0).samples] == [(), ()], "of a life that is over"
    complete(engine, again, token=8)
    assert [sample.tokens for sample in engine.request(0).samples] == [(8,), (8,)]


def test_samples_preempted_later_come_back_each_with_what_it_knows() -> None:
    """Each sample knows 5 + 1 tokens, 2 blocks; the step's 8 tokens are 6 for the first and 2 for the second."""
    engine = scheduler(9, tokens=8)
    submit(engine, (5, 3), samples=2)
    step(engine)
    assert engine.preempt(0) == Preemption(0, ((0, 6), (1, 6)))
    assert all_free(engine)
    plan = engine.schedule()
    assert plan.admitted == (Admission(0, (0, 1), 12, 0, resumed=True),)
    assert rows(plan) == {0: (0, 6, 1), 1: (0, 2, 0)}
    complete(engine, plan)
    assert step(engine)[0] == {0: (6, 1, 1), 1: (2, 4, 1)}


def test_a_failed_launch_gives_nothing_and_all_in_it_start_again() -> None:
    engine = scheduler(9, tokens=5, steps_ahead=2)
    submit(engine, (4, 3), (4, 3))
    first, second = engine.schedule(), engine.schedule()
    assert (rows(first), rows(second)) == ({0: (0, 4, 1), 1: (0, 1, 0)}, {0: (4, 1, 1), 1: (1, 3, 1)})
    complete(engine, first)
    assert second.launch is not None
    assert engine.fail(second.launch.id) == (Preemption(0, ((0, 5),)), Preemption(1, ((1, 4),)))
    assert all_free(engine)
    assert engine.fail(second.launch.id) == ()
    assert step(engine) == ({0: (0, 5, 1)}, ())
    assert step(engine) == ({0: (5, 1, 1), 1: (0, 4, 1)}, (0,))


@pytest.mark.parametrize("ahead", [1, 2])
def test_cancel_in_every_state(ahead: int) -> None:
    """Waiting, in the midst of its prompt, decoding, forked, preempted: gone at once, its blocks when they may."""
    engine = scheduler(12, tokens=6, running=5, steps_ahead=ahead)
    submit(engine, (2, 9))
    submit(engine, (2, 9), samples=2)
    submit(engine, (5, 9), (2, 9), (2, 9))
    plans = [engine.schedule() for _ in range(ahead)]
    assert (engine.running, engine.waiting) == (3, 2)
    engine.preempt(0)
    for request in range(5):
        engine.cancel(request)
        engine.cache.check()
        assert request not in engine.requests()
    assert (engine.running, engine.waiting) == (0, 0)
    assert not all_free(engine)
    for plan in plans:
        assert complete(engine, plan) == ()
    assert all_free(engine)
    assert engine.schedule().launch is None


def test_draining_ends_what_is_there() -> None:
    engine = scheduler(9)
    submit(engine, (2, 1), (2, 1))
    engine.drain()
    assert step(engine)[1] == (0, 1)


def test_a_clone_goes_its_own_way() -> None:
    engine = scheduler(3, steps_ahead=2)
    submit(engine, (4, 4), (4, 4), (4, 4))
    plan = engine.schedule()
    twin = engine.clone()
    engine.cancel(1)
    assert twin.requests() == [0, 1, 2]
    assert complete(twin, plan) == ()
    assert twin.in_flight() == []
    assert engine.in_flight() == [1]
    assert twin.request(0).samples[0].tokens == (5,)
    assert engine.request(0).samples[0].tokens == ()
    assert rows(twin.schedule()) == {0: (4, 1, 1)}


def test_many_requests_at_once_and_all_they_sampled() -> None:
    """300 requests of 1 to 7 outputs, more than the first arrays hold: each gets the tokens of its own rows."""
    engine = scheduler(400, tokens=500, running=400)
    submit(engine, *((1 + request % 5, 1 + request % 7) for request in range(300)))
    got: dict[int, list[int]] = {request: [] for request in range(300)}
    while engine.requests():
        plan = engine.schedule()
        assert plan.launch is not None
        tokens = [
            seq * 10 + len(got[seq]) for seq, number in zip(plan.launch.seqs, plan.samples, strict=True) if number
        ]
        for seq, token in zip(plan.launch.seqs[plan.samples > 0].tolist(), tokens, strict=True):
            got[seq].append(token)
        finished = engine.complete(plan.launch.id, np.array(tokens)).finished
        for request in engine.requests():
            assert list(engine.request(request).samples[0].tokens) == got[request]
        assert all(len(got[request]) == 1 + request % 7 for request in finished)
    assert all_free(engine)

"""The operations that share prefixes, row by row of their table: refusals, hits, publications, merges, pins, eviction.

Expected values are worked out by hand: 4 blocks of 2 slots, 2 streams, up to 2 launches in flight unless a test says
otherwise. Blocks are taken from the lowest id up where nobody chooses; names are 1, 2, 3.
"""

import pytest
from pagedkv.spec.alphabet import (
    Add,
    Clear,
    Execute,
    Extend,
    Fork,
    Operation,
    Pin,
    Publish,
    Release,
    Retire,
    Submit,
    Unpin,
    apply,
)
from pagedkv.spec.outcome import Merge, Outcome
from pagedkv.spec.refusals import Broken, Reason, Refused
from pagedkv.spec.state import Config, Key, Root, State, initial, written
from pagedkv.spec.views import observe

CONFIG = Config(blocks=4, block_size=2, streams=2, launches=2)


def after(*operations: Operation, config: Config = CONFIG) -> State:
    """Return the state that operations lead to."""
    state = initial(config)
    for operation in operations:
        state, _ = apply(state, operation)
    return state


def done(launch: int, *rows: tuple[int, int]) -> tuple[Operation, ...]:
    """Return a launch from its submission to its end."""
    return Submit(rows), Execute(launch), Retire(launch)


def published(state: State) -> dict[int, tuple[int, ...]]:
    """Return the published blocks and the tokens of their keys."""
    return {entry.block: key.tokens for key, entry in state.prefixes.items()}


# Sequence 1 has blocks 1 and 2; both hold what is published for 5 6 7 8 when it has left.
COMPUTED = (Add(1, (5, 6, 7, 8)), *done(1, (1, 4)))
CACHED = (*COMPUTED, Publish(((1, ()),)), Release(1))


# ---- refusals, in the order of the table ------------------------------------------------------------------------

REFUSALS = [
    (COMPUTED, Add(1, ()), Reason.DUPLICATE),
    ((), Add(1, ()), Reason.EMPTY),
    ((), Add(1, (0,) * 9), Reason.TOO_LONG),
    ((*COMPUTED, Add(2, 3)), Add(3, (0,)), Reason.NO_SPACE),
    (COMPUTED, Publish(((1, ()), (1, (9,))), 9), Reason.DUPLICATE),  # before BadCount
    (COMPUTED, Publish(((9, ()), (9, ()))), Reason.DUPLICATE),  # before Unknown
    (COMPUTED, Publish(((1, (9,)), (9, ()))), Reason.UNKNOWN),  # before BadCount
    (COMPUTED, Publish(((1, (9,)),)), Reason.BAD_COUNT),  # all four are known
    ((Add(1, 3),), Publish(((1, (1, 2, 3, 4)),)), Reason.BAD_COUNT),
    (COMPUTED, Publish(((1, ()),), 4), Reason.BAD_COUNT),
    (COMPUTED, Publish((), -1), Reason.BAD_COUNT),
    ((*CACHED, Pin(7, (5, 6))), Pin(7, ()), Reason.DUPLICATE),  # before Empty
    (CACHED, Pin(7, (5,)), Reason.EMPTY),  # no full block
    (CACHED, Pin(7, (6, 5)), Reason.EMPTY),
    (CACHED, Pin(7, (5, 6), 1), Reason.EMPTY),  # another tenant's
    (CACHED, Unpin(7), Reason.UNKNOWN),
    ((*CACHED, Pin(7, (5, 6)), Unpin(7)), Unpin(7), Reason.UNKNOWN),
]


@pytest.mark.parametrize(("before", "operation", "reason"), REFUSALS)
def test_refusals_and_their_order(before: tuple[Operation, ...], operation: Operation, reason: Reason) -> None:
    state = after(*before)
    with pytest.raises(Refused) as refusal:
        apply(state, operation)
    assert refusal.value.reason is reason
    assert state == after(*before)


# ---- publish ----------------------------------------------------------------------------------------------------


def test_what_is_full_known_and_written_is_published() -> None:
    state, outcome = apply(after(Add(1, (5, 6, 7)), *done(1, (1, 3))), Publish(((1, ()),)))
    assert outcome == Outcome(published=(1,))  # block 2 is not full
    assert published(state) == {1: (5, 6)}
    assert observe(state).published == {1}


def test_nothing_is_published_before_it_is_written() -> None:
    launched = (Add(1, (5, 6, 7, 8)), *done(1, (1, 3)), Submit(((1, 1),)), Execute(2))
    state, outcome = apply(after(*launched), Publish(((1, ()),)))
    assert outcome.published == (1,)  # the launch that writes the rest of block 2 has not retired
    state, outcome = apply(apply(state, Retire(2))[0], Publish(((1, ()),)))
    assert outcome.published == (2,)


def test_a_sequence_that_began_by_a_count_is_told_its_ids() -> None:
    state = after(Add(1, 4), *done(1, (1, 4)))
    assert apply(state, Publish(((1, ()),)))[1] == Outcome()
    state, outcome = apply(state, Publish(((1, (5, 6, 7)),)))
    assert outcome.published == (1,)
    state, outcome = apply(state, Publish(((1, (8,)),)))
    assert outcome.published == (2,)
    assert state.sequences[1].known == (5, 6, 7, 8)


def test_equal_contents_are_merged_and_the_duplicate_is_free() -> None:
    twice = (Add(1, (5, 6)), Add(2, 3), *done(1, (1, 2), (2, 3)), Publish(((1, ()),)))
    state, outcome = apply(after(*twice), Publish(((2, (5, 6, 7)),)))
    assert outcome == Outcome(merges=(Merge(2, 0, 2, 1),), freed=frozenset({2}))
    assert state.sequences[2].row == (1, 3)
    assert observe(state).references == {1: 2, 3: 1}
    assert state.sequences[2].text[:2] == state.sequences[1].text


def test_a_duplicate_waits_for_the_launch_that_reads_it() -> None:
    twice = (Add(1, (5, 6)), Add(2, 3), *done(1, (1, 2), (2, 2)), Publish(((1, ()),)), Submit(((2, 1),)))
    state, outcome = apply(after(*twice), Publish(((2, (5, 6, 7)),)))
    assert outcome == Outcome(merges=(Merge(2, 0, 2, 1),))
    assert (state.quarantine, state.launches[0].computations[0].row) == ({2: 2}, (2, 3))
    state = apply(state, Execute(2))[0]
    assert apply(state, Retire(2))[1].freed == {2}


def test_later_rows_of_a_batch_see_what_earlier_ones_published() -> None:
    twice = (Add(1, 2), Add(2, 2), *done(1, (1, 2), (2, 2)))
    _, outcome = apply(after(*twice), Publish(((2, (5, 6)), (1, (5, 6)))))
    assert outcome == Outcome(published=(2,), merges=(Merge(1, 0, 1, 2),), freed=frozenset({1}))


def test_a_fork_shares_what_is_published() -> None:
    state, outcome = apply(after(*COMPUTED, Fork(1, 2)), Publish(((1, ()), (2, ()))))
    assert outcome == Outcome(published=(1, 2))
    assert state.sequences[2].known == (5, 6, 7, 8)


def test_a_block_that_a_fork_has_behind_another_is_published_when_both_have_merged() -> None:
    """Sequences 2 and 3 share blocks 2 and 3; 2 is pointed at block 1, 3 is not yet: it would hold 3 and not 1."""
    shared = (Add(1, (5, 6)), Add(2, 4), *done(1, (1, 2), (2, 4)), Publish(((1, ()),)), Fork(2, 3))
    state, outcome = apply(after(*shared), Publish(((2, (5, 6, 7, 8)),)))
    assert (outcome.merges, outcome.published) == ((Merge(2, 0, 2, 1),), ())
    state, outcome = apply(state, Publish(((3, (5, 6, 7, 8)),)))
    assert outcome == Outcome(merges=(Merge(3, 0, 2, 1),), published=(3,), freed=frozenset({2}))


# ---- hits -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "hits", "taken"),
    [
        ((5,), (), (3,)),
        ((5, 6), (), (3,)),  # one token must be left to compute
        ((5, 6, 7), (1,), (3,)),
        ((5, 6, 7, 8), (1,), (3,)),  # the same
        ((5, 6, 7, 8, 9), (1, 2), (3,)),
        ((5, 6, 9, 8, 9), (1,), (3, 4)),
        ((9, 6, 7, 8), (), (3, 4)),
        ((7, 8, 7, 8), (), (3, 4)),  # block 2 holds 7 8 behind 5 6, and nothing else
    ],
)
def test_a_prompt_begins_with_the_longest_chain(
    tokens: tuple[int, ...], hits: tuple[int, ...], taken: tuple[int, ...]
) -> None:
    state, outcome = apply(after(*CACHED), Add(2, tokens))
    assert outcome == Outcome(blocks=taken, hits=hits)
    sequence = state.sequences[2]
    assert (sequence.row, sequence.launched, sequence.allocated) == (hits + taken, 2 * len(hits), len(tokens))
    assert written(state, sequence) == 2 * len(hits)
    assert state.evictable.keys() == {1, 2} - set(hits)


def test_tenants_and_weights_do_not_share() -> None:
    prompt = (5, 6, 7, 8, 9)
    assert apply(after(*CACHED), Add(2, prompt, 1))[1].hits == ()
    assert apply(after(*CACHED, Clear()), Add(2, prompt))[1].hits == ()
    tenants = (Add(1, (5, 6), 1), Add(2, (5, 6), 2), *done(1, (1, 2), (2, 2)), Publish(((1, ()), (2, ()))))
    state = after(*tenants)
    assert published(state) == {1: (5, 6), 2: (5, 6)}
    assert [apply(state, Add(3, (5, 6, 7), salt))[1].hits for salt in (0, 1, 2)] == [(), (1,), (2,)]


def test_what_a_launch_still_reads_is_hit_and_not_evicted() -> None:
    reading = (*COMPUTED, Publish(((1, ()),)), Extend(((1, 1),)), Submit(((1, 1),)), Release(1))
    state = after(*reading)
    assert not state.evictable
    assert state.quarantine.keys() == {1, 2, 3}
    assert observe(state).idle == {1, 2}
    with pytest.raises(Refused):
        apply(state, Add(2, 3))  # one block is free
    hit, outcome = apply(state, Add(2, (5, 6, 7)))
    assert (outcome, set(hit.quarantine)) == (Outcome(blocks=(4,), hits=(1,)), {2, 3})
    state = apply(state, Execute(2))[0]
    state, outcome = apply(state, Retire(2))
    assert outcome.freed == {1, 2, 3}
    assert state.free == {3, 4}
    assert state.evictable == {1: 1, 2: 1}


def test_an_idle_hit_is_not_counted_as_available_as_well() -> None:
    """Two blocks are idle and two held: a prompt of three blocks that hits one needs two, and one is there."""
    full = (*CACHED, Add(3, 4))
    with pytest.raises(Refused) as refusal:
        apply(after(*full), Add(2, (5, 6, 1, 1, 1)))
    assert refusal.value.reason is Reason.NO_SPACE
    _, outcome = apply(after(*full), Add(2, (5, 6, 1)))
    assert outcome == Outcome(blocks=(2,), hits=(1,))


# ---- eviction ---------------------------------------------------------------------------------------------------


def test_free_blocks_go_first_then_leaves() -> None:
    state, outcome = apply(after(*CACHED), Add(2, 6))
    assert outcome.blocks == (3, 4, 2)  # block 1 leads to block 2
    assert published(state) == {1: (5, 6)}
    state, outcome = apply(state, Extend(((2, 1),)))
    assert (outcome.blocks, published(state), state.evictable) == ((1,), {}, {})


def test_who_is_idle_longest_goes_first_and_a_higher_class_later() -> None:
    prompts = (Add(1, (1, 1)), Add(2, (2, 2)), Add(3, (3, 3)), *done(1, (1, 2), (2, 2), (3, 2)))
    tell = (Publish(((1, ()),), 1), Publish(((2, ()), (3, ()))))
    state = after(*prompts, *tell, Release(1), Release(3), Release(2))
    assert state.evictable == {1: 1, 3: 2, 2: 3}
    _, outcome = apply(state, Add(4, 8))
    assert outcome.blocks == (4, 3, 2, 1)


def test_a_parent_stays_for_its_child_of_a_higher_class() -> None:
    """Block 1 is of class 0 and block 2 behind it of class 3; block 3 is of class 1."""
    chain = (Add(1, (1, 1, 2, 2)), *done(1, (1, 2)), Publish(((1, ()),)), *done(2, (1, 2)), Publish(((1, ()),), 3))
    other = (Add(2, (3, 3)), *done(3, (2, 2)), Publish(((2, ()),), 1), Release(1), Release(2))
    _, outcome = apply(after(*chain, *other), Add(3, 8))
    assert outcome.blocks == (4, 3, 2, 1)


def test_a_hit_is_idle_anew() -> None:
    two = (
        Add(1, (1, 1)),
        Add(2, (2, 2)),
        *done(1, (1, 2), (2, 2)),
        Publish(((1, ()), (2, ()))),
        Release(1),
        Release(2),
    )
    state = after(*two, Add(3, (1, 1, 1)), Release(3))
    assert apply(state, Add(3, 6))[1].blocks == (3, 4, 2)


@pytest.mark.parametrize(
    ("blocks", "rule"),
    [
        ((3, 4, 1), "R-EVICT-2"),  # before its child
        ((3, 2, 4), "R-EVICT-1"),  # while block 4 is free
        ((3, 4, 3), "R-OWN-1"),
        ((3, 4), "R-CAP-1"),
        ((3, 4, 2, 1), "R-CAP-1"),
    ],
)
def test_a_wrong_choice_is_named(blocks: tuple[int, ...], rule: str) -> None:
    with pytest.raises(Broken) as verdict:
        apply(after(*CACHED), Add(2, 6), Outcome(blocks=blocks))
    assert verdict.value.rule == rule


def test_a_worse_victim_is_named() -> None:
    prompts = (Add(1, (1, 1)), Add(2, (2, 2)), *done(1, (1, 2), (2, 2)), Publish(((1, ()),)), Publish(((2, ()),), 1))
    state = after(*prompts, Release(2), Release(1))
    assert apply(state, Add(3, 6), Outcome(blocks=(3, 4, 1)))[1].blocks == (3, 4, 1)
    with pytest.raises(Broken) as verdict:
        apply(state, Add(3, 6), Outcome(blocks=(3, 4, 2)))
    assert verdict.value.rule == "R-EVICT-2"


@pytest.mark.parametrize(
    ("hits", "rule"), [((), "R-HASH-5"), ((1, 2), "R-HASH-5"), ((2,), "R-HASH-1"), ((1, 2, 3), "R-HASH-1")]
)
def test_wrong_hits_are_named(hits: tuple[int, ...], rule: str) -> None:
    with pytest.raises(Broken) as verdict:
        apply(after(*CACHED), Add(2, (5, 6, 7, 8)), Outcome(blocks=(3,), hits=hits))
    assert verdict.value.rule == rule


# ---- pins and weights -------------------------------------------------------------------------------------------


def test_a_pin_holds_what_is_published() -> None:
    state, outcome = apply(after(*CACHED), Pin(7, (5, 6, 7, 8)))
    assert outcome == Outcome(hits=(1, 2))  # nothing is left to compute, and nothing need be
    assert (state.pins, state.evictable, observe(state).references) == ({7: (1, 2)}, {}, {1: 1, 2: 1})
    with pytest.raises(Refused):
        apply(state, Add(2, 5))
    state, outcome = apply(state, Unpin(7))
    assert (outcome, state.evictable) == (Outcome(freed=frozenset({1, 2})), {1: 1, 2: 1})


def test_a_pinned_block_goes_on_being_hit_and_held() -> None:
    state = after(*CACHED, Pin(7, (5, 6)), Add(2, (5, 6, 7)), Release(2))
    assert (state.evictable, observe(state).references) == ({2: 1}, {1: 1})


def test_new_weights_forget_what_was_published() -> None:
    pinned = (*CACHED, Add(2, (9, 9)), *done(2, (2, 2)), Publish(((2, ()),)), Pin(7, (5, 6)))
    state, outcome = apply(after(*pinned), Clear())
    assert outcome == Outcome(freed=frozenset({1, 2}))  # block 3 is still held, and published no more
    assert [*state.prefixes, *state.pins, *state.evictable] == []
    assert state.free == {1, 2, 4}
    assert apply(state, Publish(((2, ()),)))[1] == Outcome()  # it began under the weights of before
    state, outcome = apply(state, Release(2))
    assert outcome.freed == {3}
    assert not state.evictable


def test_what_a_launch_still_reads_waits_when_the_weights_change() -> None:
    reading = (*COMPUTED, Publish(((1, ()),)), Extend(((1, 1),)), Submit(((1, 1),)), Release(1))
    state, outcome = apply(after(*reading), Clear())
    assert not outcome.freed
    assert observe(state).quarantined == state.quarantine.keys() == {1, 2, 3}


def test_keys_are_the_tokens_from_the_first_on() -> None:
    state = after(*CACHED)
    assert set(state.prefixes) == {Key(Root(0, 0), (5, 6)), Key(Root(0, 0), (5, 6, 7, 8))}

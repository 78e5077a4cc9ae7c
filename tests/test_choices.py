"""What an implementation may choose, and what it may not: each wrong choice is named by the rule that it breaks.

The choices are which free blocks are taken, which edges a launch is given, and which quarantined blocks become free at
a retirement or a release. An operation is handed the implementation's outcome; it follows a right one and raises
`Broken` at a wrong one. 4 blocks of 2 slots, 2 streams; blocks are taken from the lowest id up unless chosen.
"""

import pytest
from pagedkv.spec.alphabet import Add, Execute, Extend, Fork, Operation, Release, Retire, Submit, apply
from pagedkv.spec.outcome import Outcome
from pagedkv.spec.refusals import Broken, Reason, Refused
from pagedkv.spec.state import Config, Copy, State, initial

CONFIG = Config(blocks=4, block_size=2, streams=2, launches=4)


def after(*operations: Operation) -> State:
    """Return the state that operations lead to."""
    state = initial(CONFIG)
    for operation in operations:
        state, _ = apply(state, operation)
    return state


def freed(*blocks: int) -> Outcome:
    """Return the outcome of a release or retirement that frees blocks."""
    return Outcome(freed=frozenset(blocks))


def rule_broken(state: State, operation: Operation, choice: Outcome) -> str:
    """Return the rule that a choice breaks."""
    with pytest.raises(Broken) as verdict:
        apply(state, operation, choice)
    return verdict.value.rule


# ---- which blocks are taken -------------------------------------------------------------------------------------


def test_any_free_blocks_may_be_taken_in_any_order() -> None:
    state, outcome = apply(initial(CONFIG), Add(1, 3), Outcome(blocks=(4, 2)))
    assert outcome.blocks == state.sequences[1].row == (4, 2)
    assert state.free == {1, 3}


FORKED = (Add(1, 1), Submit(((1, 1),)), Fork(1, 2))
WAITING = (Add(1, 1), Submit(((1, 1),)), Release(1))  # block 1 is quarantined


@pytest.mark.parametrize(
    ("before", "operation", "choice", "rule"),
    [
        ((), Add(1, 3), Outcome(blocks=(1,)), "R-CAP-1"),  # too few
        ((), Add(1, 3), Outcome(), "R-CAP-1"),
        ((), Add(1, 3), Outcome(blocks=(1, 2, 3)), "R-CAP-1"),  # too many
        ((), Add(1, 3), Outcome(blocks=(1, 1)), "R-OWN-1"),  # one twice
        ((), Add(1, 3), Outcome(blocks=(1, 5)), "R-OWN-1"),  # there is none such
        ((), Add(1, 3), Outcome(blocks=(0, 1)), "R-OWN-1"),  # the null block
        ((Add(1, 1),), Add(2, 1), Outcome(blocks=(1,)), "R-OWN-1"),  # held
        (WAITING, Add(2, 1), Outcome(blocks=(1,)), "R-LIFE-5"),  # quarantined
        ((Add(1, 2),), Extend(((1, 1),)), Outcome(blocks=(1,)), "R-OWN-1"),
        ((Add(1, 2),), Extend(((1, 1),)), Outcome(), "R-CAP-1"),
        ((Add(1, 1),), Extend(((1, 1),)), Outcome(blocks=(2,)), "R-CAP-1"),  # none is needed
    ],
)
def test_wrong_blocks_taken(before: tuple[Operation, ...], operation: Operation, choice: Outcome, rule: str) -> None:
    assert rule_broken(after(*before), operation, choice) == rule


def test_a_choice_makes_no_space() -> None:
    """What the spec refuses is refused, whatever was chosen."""
    with pytest.raises(Refused) as refusal:
        apply(after(Add(1, 8)), Add(2, 1), Outcome(blocks=(1,)))
    assert refusal.value.reason is Reason.NO_SPACE


# ---- who copies, and what ---------------------------------------------------------------------------------------


def test_the_target_of_a_copy_may_be_chosen() -> None:
    copy = Copy(2, source=1, target=4, extent=1)
    state, outcome = apply(after(*FORKED), Extend(((2, 1),)), Outcome(blocks=(4,), copies=(copy,)))
    assert outcome.copies == (copy,)
    assert state.sequences[2].row == (4,)


@pytest.mark.parametrize(
    "copies",
    [
        (),  # no copy-on-write
        (Copy(2, source=1, target=4, extent=0),),
        (Copy(2, source=1, target=4, extent=2),),
        (Copy(2, source=3, target=4, extent=1),),
        (Copy(2, source=1, target=3, extent=1),),  # not the block that was taken
        (Copy(1, source=1, target=4, extent=1),),  # the sibling
        (Copy(2, source=1, target=4, extent=1), Copy(2, source=1, target=4, extent=1)),
    ],
)
def test_wrong_copies(copies: tuple[Copy, ...]) -> None:
    assert rule_broken(after(*FORKED), Extend(((2, 1),)), Outcome(blocks=(4,), copies=copies)) == "R-COW-2"


def test_which_sibling_copies_is_no_choice() -> None:
    choice = Outcome(blocks=(2,), copies=(Copy(2, 1, 2, 1),))
    assert rule_broken(after(*FORKED), Extend(((1, 1), (2, 1))), choice) == "R-COW-2"


# ---- edges ------------------------------------------------------------------------------------------------------

# Launch 1 writes position 0 of sequence 1 on stream 0; launch 2 is another sequence's, on stream 1.
TWO = (Add(1, 2), Add(2, 2), Submit(((1, 1),), 0), Submit(((2, 1),), 1))


@pytest.mark.parametrize("edges", [{1}, {1, 2}])
def test_more_edges_than_needed_are_allowed(edges: set[int]) -> None:
    _, outcome = apply(after(*TWO), Submit(((1, 1),), 1), Outcome(launch=3, after=frozenset(edges)))
    assert outcome.after == edges


def test_an_edge_may_be_implied() -> None:
    """Launch 3 is after 1 by an edge; what is after 3 is after 1."""
    state = after(*TWO, Submit(((1, 1), (2, 1)), 1))
    assert state.launches[2].after == {1}
    extended, _ = apply(state, Extend(((1, 1),)))
    _, outcome = apply(extended, Submit(((1, 1),), 1), Outcome(launch=4))
    assert outcome.after == frozenset()


def test_an_edge_to_what_has_retired_is_forgotten() -> None:
    state = after(*TWO, Execute(1), Retire(1))
    _, outcome = apply(state, Submit(((1, 1),), 1), Outcome(launch=3, after=frozenset({1})))
    assert outcome.after == frozenset()


@pytest.mark.parametrize("edges", [set(), {2}])
def test_a_missing_edge(edges: set[int]) -> None:
    assert rule_broken(after(*TWO), Submit(((1, 1),), 1), Outcome(launch=3, after=frozenset(edges))) == "R-LIFE-2"


@pytest.mark.parametrize("edge", [0, 3, 4, -1])
def test_an_edge_to_a_launch_that_was_never_issued(edge: int) -> None:
    choice = Outcome(launch=3, after=frozenset({1, edge}))
    assert rule_broken(after(*TWO), Submit(((1, 1),), 1), choice) == "R-LIFE-2"


# ---- when blocks become free ------------------------------------------------------------------------------------


def test_a_block_in_flight_is_not_freed_at_its_release() -> None:
    state = after(Add(1, 1), Submit(((1, 1),)))
    assert rule_broken(state, Release(1), freed(1)) == "R-LIFE-1"
    state, outcome = apply(state, Release(1), freed())
    assert outcome == Outcome()
    assert state.quarantine == {1: 1}
    assert state.free == {2, 3, 4}


def test_a_block_that_no_launch_touched_is_freed_at_its_release() -> None:
    state = after(Add(1, 1), Add(2, 1), Submit(((2, 1),)))
    assert rule_broken(state, Release(1), freed()) == "R-LIFE-4"
    assert apply(state, Release(1), freed(1))[1] == freed(1)


def test_of_a_sequence_in_flight_the_planned_blocks_are_freed_at_its_release() -> None:
    """Positions 0 to 2 are launched, 3 and 4 are not: block 3 was never touched, block 2 partly."""
    state = after(Add(1, 5), Submit(((1, 3),)))
    assert rule_broken(state, Release(1), freed()) == "R-LIFE-4"
    assert rule_broken(state, Release(1), freed(2, 3)) == "R-LIFE-1"
    assert apply(state, Release(1), freed(3))[1] == freed(3)


def test_a_fence_may_stand_for_younger_launches_and_must_pass_with_them() -> None:
    """Launch 1 touches the released block; launch 2, submitted before the release, does not: late is allowed till 2."""
    state = after(Add(1, 1), Add(2, 1), Submit(((1, 1),), 0), Submit(((2, 1),), 1), Release(1), Execute(1), Execute(2))
    assert state.quarantine == {1: 2}
    early, outcome = apply(state, Retire(1), freed(1))
    assert outcome == freed(1)
    assert early.free == {1, 3, 4}
    late, outcome = apply(state, Retire(1), freed())
    assert outcome == freed()
    assert late.quarantine == {1: 2}
    assert rule_broken(late, Retire(2), freed()) == "R-LIFE-4"
    assert apply(late, Retire(2), freed(1))[1] == freed(1)


def test_a_launch_submitted_after_the_release_delays_nothing() -> None:
    state = after(Add(1, 1), Add(2, 1), Submit(((1, 1),), 0), Release(1), Submit(((2, 1),), 1), Execute(1))
    assert rule_broken(state, Retire(1), freed()) == "R-LIFE-4"


def test_one_stream_may_not_speak_for_another() -> None:
    """Sequences 1 and 2 share block 1; each reads it on a stream of its own, and both are released."""
    shared = (Add(1, 2), Submit(((1, 2),)), Execute(1), Retire(1), Fork(1, 2), Extend(((1, 1), (2, 1))))
    flights = (Submit(((1, 1),), 0), Submit(((2, 1),), 1), Release(1), Release(2), Execute(2), Execute(3))
    state = after(*shared, *flights)
    assert state.quarantine.keys() == {1, 2, 3}
    assert rule_broken(state, Retire(3), freed(1, 3)) == "R-LIFE-1"  # launch 2 still reads block 1
    state, outcome = apply(state, Retire(3), freed(3))
    assert outcome == freed(3)
    assert apply(state, Retire(2))[1] == freed(1, 2)


@pytest.mark.parametrize("block", [2, 4, 9])
def test_what_was_not_quarantined_does_not_become_free(block: int) -> None:
    """Block 2 is another's, 4 is free already, 9 is nobody's."""
    state = after(Add(1, 1), Add(2, 1), Submit(((1, 1),)), Release(1), Execute(1))
    assert rule_broken(state, Retire(1), freed(1, block)) == "R-OWN-3"


def test_a_second_completion_frees_nothing() -> None:
    state = after(Add(1, 1), Submit(((1, 1),)), Release(1), Execute(1), Retire(1), Add(2, 1))
    assert rule_broken(state, Retire(1), freed(1)) == "R-LIFE-4"


# ---- planned copies ---------------------------------------------------------------------------------------------

# Sequence 2 has planned a copy of block 1 to block 2; nothing is in flight.
PLANNED = (Add(1, 1), Submit(((1, 1),)), Execute(1), Retire(1), Fork(1, 2), Extend(((2, 1),)))


def test_the_source_of_a_planned_copy_waits_for_it() -> None:
    """It has a reader and no holder: quarantined, though nothing is in flight; kept by the plan, then by the launch."""
    state = after(*PLANNED)
    assert rule_broken(state, Release(1), freed(1)) == "R-LIFE-1"
    state = after(*PLANNED, Release(1))
    assert state.quarantine.keys() == {1}
    assert state.free == {3, 4}
    state = after(*PLANNED, Release(1), Submit(((2, 1),)), Execute(2))
    assert state.quarantine == {1: 2}
    assert apply(state, Retire(2))[1] == freed(1)


def test_a_sequence_that_leaves_takes_its_planned_copy_along() -> None:
    """The target was never touched and is free at once; the source stays its holder's."""
    state, outcome = apply(after(*PLANNED), Release(2))
    assert outcome == freed(2)
    assert (state.quarantine, state.sequences[1].row) == ({}, (1,))


def test_a_source_that_only_a_dropped_copy_needed_is_let_go() -> None:
    state = after(*PLANNED, Release(1))
    assert rule_broken(state, Release(2), freed(2)) == "R-LIFE-4"
    assert apply(state, Release(2))[1] == freed(1, 2)


def test_of_two_planned_copies_of_a_source_the_last_lets_it_go() -> None:
    siblings = (Add(1, 1), Submit(((1, 1),)), Execute(1), Retire(1), Fork(1, 2), Fork(1, 3))
    state = after(*siblings, Extend(((2, 1), (3, 1))), Release(1), Release(2))
    assert state.quarantine.keys() == {1}
    assert apply(state, Release(3))[1] == freed(1, 3)

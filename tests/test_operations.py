"""The operations of the spec, row by row of their table: refusals and their order, effects, copy-on-write.

Expected values are worked out by hand: 4 blocks of 2 slots, 2 streams, up to 2 launches in flight unless a test says
otherwise. Blocks are taken from the lowest id up where nobody chooses; names are 1, 2, 3. What may be chosen, and when
blocks leave quarantine, is in `test_choices`.
"""

from typing import NamedTuple

import pytest
from pagedkv.spec.alphabet import Add, Execute, Extend, Fork, Operation, Release, Retire, Submit, apply
from pagedkv.spec.operations import conflict, launch, ready
from pagedkv.spec.outcome import Outcome
from pagedkv.spec.refusals import Reason, Refused
from pagedkv.spec.state import Config, Copy, Launch, State, initial, written

CONFIG = Config(blocks=4, block_size=2, streams=2, launches=2)


def after(*operations: Operation, config: Config = CONFIG) -> State:
    """Return the state that operations lead to."""
    state = initial(config)
    for operation in operations:
        state, _ = apply(state, operation)
    return state


class Row(NamedTuple):
    """What is expected of a sequence."""

    blocks: tuple[int, ...]
    allocated: int
    launched: int


def row(state: State, name: int) -> Row:
    """Return what there is of a sequence."""
    sequence = state.sequences[name]
    return Row(sequence.row, sequence.allocated, sequence.launched)


# ---- refusals, in the order of the table ------------------------------------------------------------------------

ONE = (Add(1, 3),)  # blocks 1 and 2; one slot left
FULL = (Add(1, 8),)
PLANNED = ONE
LAUNCHED = (Add(1, 3), Submit(((1, 3),)))
BUSY = (Add(1, 3), Submit(((1, 1),)), Submit(((1, 1),)))  # one position planned, two launches in flight

REFUSALS = [
    (ONE, Add(1, 1), Reason.DUPLICATE),
    (ONE, Add(1, 0), Reason.DUPLICATE),  # before Empty
    (FULL, Add(1, 9), Reason.DUPLICATE),  # before TooLong and NoSpace
    ((), Add(1, 0), Reason.EMPTY),
    ((), Add(1, -1), Reason.EMPTY),
    (FULL, Add(2, 0), Reason.EMPTY),  # before NoSpace
    ((), Add(1, 9), Reason.TOO_LONG),
    (FULL, Add(2, 9), Reason.TOO_LONG),  # before NoSpace
    (FULL, Add(2, 1), Reason.NO_SPACE),
    (ONE, Add(2, 5), Reason.NO_SPACE),  # 3 blocks needed, 2 free
    (ONE, Extend(((1, 1), (1, 1))), Reason.DUPLICATE),
    (ONE, Extend(((9, 0), (9, 0))), Reason.DUPLICATE),  # before Unknown and BadCount
    (ONE, Extend(((9, 1),)), Reason.UNKNOWN),
    (ONE, Extend(((1, 1), (9, 0))), Reason.UNKNOWN),  # before BadCount
    (ONE, Extend(((1, 0),)), Reason.BAD_COUNT),
    (ONE, Extend(((1, -1),)), Reason.BAD_COUNT),
    ((Add(1, 1), Add(2, 1)), Extend(((1, 8), (2, 0))), Reason.BAD_COUNT),  # before TooLong, though a later row's
    (ONE, Extend(((1, 6),)), Reason.TOO_LONG),
    ((Add(1, 1), Add(2, 6)), Extend(((1, 2), (2, 3))), Reason.TOO_LONG),  # before NoSpace, though a later row's
    ((Add(1, 4), Add(2, 4)), Extend(((1, 1),)), Reason.NO_SPACE),
    ((Add(1, 2), Add(2, 4)), Extend(((1, 1), (2, 1))), Reason.NO_SPACE),  # room for the first row alone
    (ONE, Fork(9, 1), Reason.UNKNOWN),  # before Duplicate
    (PLANNED, Fork(1, 1), Reason.DUPLICATE),  # before Busy
    (PLANNED, Fork(1, 2), Reason.BUSY),
    ((Add(1, 3), Submit(((1, 2),))), Fork(1, 2), Reason.BUSY),  # one position is still planned
    (ONE, Submit(((1, 1), (1, 1))), Reason.DUPLICATE),
    (ONE, Submit(((9, 0), (9, 0))), Reason.DUPLICATE),  # before Unknown and BadCount
    (ONE, Submit(((1, 0), (9, 1))), Reason.UNKNOWN),  # before BadCount
    (ONE, Submit(((1, 0),)), Reason.BAD_COUNT),
    (ONE, Submit(((1, 4),)), Reason.BAD_COUNT),
    (LAUNCHED, Submit(((1, 1),)), Reason.BAD_COUNT),  # nothing is planned any more
    (BUSY, Submit(((1, 2),)), Reason.BAD_COUNT),  # before Busy
    (BUSY, Submit(((1, 1),)), Reason.BUSY),
    (BUSY, Submit(()), Reason.BUSY),
    ((), Retire(1), Reason.UNKNOWN_LAUNCH),
    (LAUNCHED, Retire(0), Reason.UNKNOWN_LAUNCH),
    (LAUNCHED, Retire(-1), Reason.UNKNOWN_LAUNCH),
    (LAUNCHED, Retire(2), Reason.UNKNOWN_LAUNCH),
    ((), Release(1), Reason.UNKNOWN),
    ((Add(1, 1), Release(1)), Release(1), Reason.UNKNOWN),
]


@pytest.mark.parametrize(("before", "operation", "reason"), REFUSALS)
def test_refusals_and_their_order(before: tuple[Operation, ...], operation: Operation, reason: Reason) -> None:
    state = after(*before)
    with pytest.raises(Refused) as refusal:
        apply(state, operation)
    assert refusal.value.reason is reason
    assert state == after(*before)


# ---- add --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tokens", "blocks"), [(1, (1,)), (2, (1,)), (3, (1, 2)), (4, (1, 2)), (8, (1, 2, 3, 4))])
def test_add_takes_the_blocks_of_its_tokens(tokens: int, blocks: tuple[int, ...]) -> None:
    state, outcome = apply(initial(CONFIG), Add(1, tokens))
    assert outcome == Outcome(blocks=blocks)
    assert row(state, 1) == Row(blocks, tokens, 0)
    assert state.free == {1, 2, 3, 4} - set(blocks)


def test_each_add_and_fork_begins_an_epoch() -> None:
    state = after(Add(1, 1), Submit(((1, 1),)), Release(1), Add(1, 1), Submit(((1, 1),)), Fork(1, 2))
    state, _ = apply(state, Add(3, 1))
    assert [state.sequences[name].epoch for name in (1, 2, 3)] == [1, 2, 3]


# ---- extend -----------------------------------------------------------------------------------------------------


def test_extend_grows_at_exact_multiples_alone() -> None:
    state = after(Add(1, 1))
    state, outcome = apply(state, Extend(((1, 1),)))  # 1 to 2: the block has room
    assert (outcome.blocks, row(state, 1)) == ((), Row((1,), 2, 0))
    state, outcome = apply(state, Extend(((1, 1),)))  # 2 to 3: it has none
    assert (outcome.blocks, row(state, 1)) == ((2,), Row((1, 2), 3, 0))
    state, outcome = apply(state, Extend(((1, 5),)))  # 3 to 8: two more
    assert (outcome.blocks, row(state, 1)) == ((3, 4), Row((1, 2, 3, 4), 8, 0))


def test_extend_takes_row_by_row_in_the_order_given() -> None:
    state, outcome = apply(after(Add(1, 2), Add(2, 2)), Extend(((2, 1), (1, 1))))
    assert outcome.blocks == (3, 4)
    assert (row(state, 2).blocks, row(state, 1).blocks) == ((2, 3), (1, 4))


def test_an_empty_batch_changes_nothing() -> None:
    state = after(Add(1, 1))
    assert apply(state, Extend(())) == (
        state,
        Outcome(blocks=(), copies=(), launch=0, after=frozenset(), freed=frozenset()),
    )


FORKED = (Add(1, 3), Submit(((1, 3),)), Fork(1, 2))  # both hold blocks 1 and 2, the tail with one slot used


def test_the_first_writer_of_a_shared_tail_copies_and_the_last_holder_does_not() -> None:
    state, outcome = apply(after(*FORKED), Extend(((2, 1),)))
    copy = Copy(sequence=2, source=2, target=3, extent=1)
    assert outcome == Outcome(blocks=(3,), copies=(copy,))
    assert (row(state, 2), state.sequences[2].copy) == (Row((1, 3), 4, 3), copy)
    state, outcome = apply(state, Extend(((1, 1),)))
    assert outcome == Outcome()
    assert row(state, 1) == Row((1, 2), 4, 3)


def test_of_two_siblings_in_a_batch_the_first_copies() -> None:
    state, outcome = apply(after(*FORKED), Extend(((1, 1), (2, 1))))
    assert outcome == Outcome(blocks=(3,), copies=(Copy(1, 2, 3, 1),))
    assert (row(state, 1).blocks, row(state, 2).blocks) == ((1, 3), (1, 2))


def test_a_copy_target_is_taken_before_the_blocks_of_growth() -> None:
    state, outcome = apply(after(*FORKED), Extend(((2, 3),)))
    assert outcome == Outcome(blocks=(3, 4), copies=(Copy(2, 2, 3, 1),))
    assert row(state, 2) == Row((1, 3, 4), 6, 3)


def test_of_three_siblings_two_copy() -> None:
    state = after(Add(1, 1), Submit(((1, 1),)), Fork(1, 2), Fork(1, 3))
    state, outcome = apply(state, Extend(((1, 1), (2, 1), (3, 1))))
    assert outcome.copies == (Copy(1, 1, 2, 1), Copy(2, 1, 3, 1))
    assert row(state, 3).blocks == (1,)


def test_a_full_shared_tail_is_not_copied() -> None:
    state, outcome = apply(after(Add(1, 2), Submit(((1, 2),)), Fork(1, 2)), Extend(((1, 1), (2, 1))))
    assert outcome == Outcome(blocks=(2, 3))
    assert (row(state, 1).blocks, row(state, 2).blocks) == ((1, 2), (1, 3))


def test_a_copy_needs_space_like_growth() -> None:
    state = after(*FORKED, Add(3, 3))  # nothing is free
    with pytest.raises(Refused) as refusal:
        apply(state, Extend(((1, 1),)))
    assert refusal.value.reason is Reason.NO_SPACE
    state, outcome = apply(after(*FORKED, Add(3, 3), Release(2)), Extend(((1, 1),)))  # the last holder needs none
    assert outcome == Outcome()


def test_a_planned_tail_is_extended_in_place() -> None:
    """Once copied, the tail is the sequence's own: a second extension neither copies nor forgets the planned copy."""
    state, outcome = apply(after(Add(1, 1), Submit(((1, 1),)), Fork(1, 2), Extend(((2, 1),))), Extend(((2, 2),)))
    assert outcome == Outcome(blocks=(3,))
    assert state.sequences[2].copy == Copy(2, 1, 2, 1)


# ---- fork -------------------------------------------------------------------------------------------------------


def test_fork_shares_everything_and_takes_nothing() -> None:
    before = after(Add(1, 3), Submit(((1, 3),)))
    state, outcome = apply(before, Fork(1, 2))
    assert outcome == Outcome()
    assert row(state, 2) == row(state, 1) == Row((1, 2), 3, 3)
    assert state.sequences[2].text == state.sequences[1].text
    assert state.free == before.free


def test_a_child_waits_for_what_its_parent_has_in_flight() -> None:
    state = after(*FORKED, Extend(((2, 1),)))
    _, outcome = apply(state, Submit(((2, 1),), 1))
    assert outcome.after == {1}


# ---- launch -----------------------------------------------------------------------------------------------------


def test_launch_captures_rows_writes_new_positions_and_reads_all_before() -> None:
    state, outcome = apply(after(Add(1, 3)), Submit(((1, 2),)))
    assert outcome == Outcome(launch=1)
    assert row(state, 1) == Row((1, 2), 3, 2)
    (first,) = state.launches
    (part,) = first.computations
    assert (part.sequence, part.epoch, part.start, part.stop, part.row) == (1, 0, 0, 2, (1,))
    assert (first.reads, first.writes) == ({1: 2}, {1: (0, 2)})
    state, _ = apply(state, Submit(((1, 1),)))
    second = state.launches[1]
    assert second.computations[0].row == (1, 2)
    assert (second.reads, second.writes) == ({1: 2, 2: 1}, {2: (0, 1)})


def test_copies_go_along_with_their_sequence() -> None:
    state = after(Add(1, 1), Submit(((1, 1),)), Fork(1, 2), Fork(1, 3), Extend(((1, 1), (2, 1), (3, 1))))
    state, outcome = apply(state, Submit(((2, 1),)))
    assert outcome.copies == (Copy(2, 1, 3, 1),)
    assert [state.sequences[name].copy for name in (1, 2)] == [Copy(1, 1, 2, 1), None]
    second = state.launches[1]
    assert second.reads == {1: 1, 3: 2}
    assert second.writes == {3: (0, 2)}  # what the copy fills, and the new position


def test_launches_are_numbered_from_one_and_an_empty_one_is_a_launch() -> None:
    state, first = apply(initial(CONFIG), Submit(()))
    _, second = apply(state, Submit((), 1))
    assert (first.launch, second.launch, second.after) == (1, 2, frozenset())


@pytest.mark.parametrize(("stream", "edges"), [(0, frozenset()), (1, {1})])
def test_a_conflict_is_ordered_by_the_stream_or_else_by_an_edge(stream: int, edges: frozenset[int]) -> None:
    state = after(Add(1, 2), Submit(((1, 1),), 0))
    _, outcome = apply(state, Submit(((1, 1),), stream))
    assert outcome.after == edges


def test_two_readers_of_a_block_need_no_edge() -> None:
    """Siblings write in blocks of their own; what they share they read."""
    state = after(Add(1, 2), Submit(((1, 2),)), Execute(1), Retire(1), Fork(1, 2), Extend(((1, 1), (2, 1))))
    state, _ = apply(state, Submit(((1, 1),), 0))
    _, outcome = apply(state, Submit(((2, 1),), 1))
    assert outcome.after == frozenset()


def test_the_last_holder_writes_above_the_slots_that_a_pending_copy_reads() -> None:
    """Conflicts are counted by slot: the copy reads slot 0 of the block, the write goes to slot 1."""
    state = after(Add(1, 1), Submit(((1, 1),)), Execute(1), Retire(1), Fork(1, 2), Extend(((1, 1), (2, 1))))
    state, copying = apply(state, Submit(((1, 1),), 0))
    assert copying.copies == (Copy(1, 1, 2, 1),)
    _, writing = apply(state, Submit(((2, 1),), 1))
    assert writing.after == frozenset()


def test_the_pending_copy_may_come_after_the_write_above_it() -> None:
    state = after(Add(1, 1), Submit(((1, 1),)), Execute(1), Retire(1), Fork(1, 2), Extend(((1, 1), (2, 1))))
    state, _ = apply(state, Submit(((2, 1),), 0))
    _, copying = apply(state, Submit(((1, 1),), 1))
    assert (copying.copies, copying.after) == ((Copy(1, 1, 2, 1),), frozenset())


def flight(reads: int = 0, writes: tuple[int, int] | None = None, block: int = 1) -> Launch:
    """Return a launch that reads the first slots of a block and writes some."""
    return Launch(1, 0, frozenset(), (), (), {block: reads} if reads else {}, {block: writes} if writes else {})


@pytest.mark.parametrize(
    ("older", "newer", "conflicting"),
    [
        (flight(reads=2), flight(reads=2), False),
        (flight(reads=2), flight(writes=(1, 2)), True),  # write after read
        (flight(reads=1), flight(writes=(1, 2)), False),  # of other slots
        (flight(writes=(1, 2)), flight(reads=2), True),  # read after write
        (flight(writes=(1, 2)), flight(reads=1), False),
        (flight(writes=(0, 2)), flight(writes=(1, 3)), True),  # write after write
        (flight(writes=(1, 3)), flight(writes=(0, 2)), True),
        (flight(writes=(0, 1)), flight(writes=(1, 2)), False),
        (flight(writes=(1, 2)), flight(writes=(0, 1)), False),
        (flight(2, (0, 2)), flight(2, (0, 2), block=2), False),  # another block
    ],
)
def test_launches_conflict_where_they_share_a_slot_and_one_writes(
    older: Launch,
    newer: Launch,
    conflicting: bool,  # noqa: FBT001  (what is expected)
) -> None:
    assert conflict(older, newer) is conflicting


def test_without_a_stream_named_it_is_the_first() -> None:
    state, _ = launch(after(Add(1, 1)), ((1, 1),))
    assert state.launches[0].stream == 0


# ---- execute, retire, release -----------------------------------------------------------------------------------


def test_execute_copies_first_and_then_writes() -> None:
    state = after(
        Add(1, 1), Submit(((1, 1),)), Execute(1), Fork(1, 2), Extend(((2, 1),)), Submit(((2, 1),)), Execute(2)
    )
    assert state.memory[1] == ((0, 0), None)  # position 0 of epoch 0
    assert state.memory[2] == ((0, 0), (1, 1))  # the same, copied, and position 1 of epoch 1
    assert [launch.executed for launch in state.launches] == [True, True]


def test_execute_writes_each_block_up_to_its_end() -> None:
    """Positions 1 to 3: the second slot of block 1, both of block 2."""
    state = after(Add(1, 4), Submit(((1, 1),)), Execute(1), Submit(((1, 3),)), Execute(2))
    assert state.memory[1] == ((0, 0), (0, 1))
    assert state.memory[2] == ((0, 2), (0, 3))
    assert state.memory[3] == (None, None)


def test_a_device_keeps_the_order_of_streams_and_edges() -> None:
    state = after(Add(1, 2), Submit(((1, 1),), 0), Submit(((1, 1),), 1))
    first, second = state.launches
    assert (ready(state, first), ready(state, second)) == (True, False)
    state = after(Add(1, 2), Submit(((1, 1),), 0), Submit(((1, 1),), 1), Execute(1))
    first, second = state.launches
    assert (ready(state, first), ready(state, second)) == (False, True)


def test_retire_takes_along_all_that_happens_before() -> None:
    config = CONFIG._replace(launches=3)
    trace = (Add(1, 2), Add(2, 1), Submit(((1, 1),), 0), Submit(((2, 1),), 0), Submit(((1, 1),), 1))
    state, outcome = apply(after(*trace, *map(Execute, (1, 2, 3)), config=config), Retire(3))
    assert outcome == Outcome()
    assert [launch.id for launch in state.launches] == [2]  # 1 is before 3 by an edge; 2 is not


def test_retire_takes_along_what_is_earlier_on_the_stream() -> None:
    state = after(Add(1, 2), Submit(((1, 1),)), Submit(((1, 1),)), Execute(1), Execute(2), Retire(2))
    assert state.launches == ()


def test_a_launch_that_had_left_changes_nothing() -> None:
    state = after(Add(1, 1), Submit(((1, 1),)), Execute(1), Retire(1), Release(1), Add(1, 3))
    assert apply(state, Retire(1)) == (state, Outcome())


def test_written_is_what_retired_launches_wrote_and_a_fork_inherits_it() -> None:
    state = after(Add(1, 3), Submit(((1, 2),)), Execute(1), Retire(1), Submit(((1, 1),)), Fork(1, 2))
    assert [written(state, state.sequences[name]) for name in (1, 2)] == [2, 2]
    state = after(
        Add(1, 3), Submit(((1, 2),)), Execute(1), Retire(1), Submit(((1, 1),)), Fork(1, 2), Execute(2), Retire(2)
    )
    assert [written(state, state.sequences[name]) for name in (1, 2)] == [3, 3]


def test_release_frees_at_once_what_no_launch_has_touched() -> None:
    state, outcome = apply(after(Add(1, 5), Submit(((1, 3),))), Release(1))
    assert outcome.freed == {3}  # position 4 was planned; positions 0 to 2 are in flight
    assert state.quarantine.keys() == {1, 2}
    assert state.free == {3, 4}


def test_release_frees_everything_where_nothing_is_in_flight() -> None:
    state, outcome = apply(after(Add(1, 3), Submit(((1, 3),)), Execute(1), Retire(1)), Release(1))
    assert outcome.freed == {1, 2}
    assert state.free == {1, 2, 3, 4}


def test_release_leaves_what_a_sibling_holds() -> None:
    state, outcome = apply(after(*FORKED), Release(1))
    assert outcome.freed == frozenset()
    assert row(state, 2) == Row((1, 2), 3, 3)
    assert state.quarantine == {}


def test_work_in_flight_goes_on_when_its_sequence_leaves() -> None:
    state = after(Add(1, 1), Submit(((1, 1),)), Release(1))
    assert [launch.id for launch in state.launches] == [1]
    state, outcome = apply(after(Add(1, 1), Submit(((1, 1),)), Release(1), Execute(1)), Retire(1))
    assert outcome.freed == {1}

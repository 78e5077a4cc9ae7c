"""Every rule can fail: for each, steps that break it, one for each thing that its sentence says.

A rule that no state can break is no check. Each case below takes a right step of the spec and changes by hand what is
said of it, so that one rule is broken; where rules overlap, others may be, too.
Some of the changes no implementation could make from a right state: what counts is that the predicate sees them.
"""

from collections.abc import Callable

import pytest
from pagedkv.spec.alphabet import Add, Execute, Extend, Fork, Operation, Release, Retire, Submit, apply
from pagedkv.spec.operations import Outcome
from pagedkv.spec.refusals import Broken, Reason, Refused
from pagedkv.spec.rules import RULES, Step, check
from pagedkv.spec.state import Config, Copy, State, initial

# 4 blocks of 2 slots. Blocks are taken from the lowest id up, so the first sequence has block 1, and so on.
EMPTY = initial(Config(blocks=4, block_size=2, streams=2, launches=4))
NAMES = (
    "R-DATA",
    *(f"R-OWN-{number}" for number in range(1, 7)),
    "R-TXN-1",
    *(f"R-LIFE-{number}" for number in range(1, 9)),
    *(f"R-COW-{number}" for number in range(1, 4)),
    *(f"R-CAP-{number}" for number in range(1, 3)),
    *(f"R-TAB-{number}" for number in range(1, 3)),
)


def after(*operations: Operation) -> State:
    """Return the state that operations lead to."""
    state = EMPTY
    for operation in operations:
        state, _ = apply(state, operation)
    return state


def step(old: State, operation: Operation) -> Step:
    """Return the spec's own step, which breaks no rule."""
    new, decided = apply(old, operation)
    return Step(old, operation, decided, new)


def wrong(right: Step, new: State, decided: Outcome | None = None) -> Step:
    """Return a step that led elsewhere, or was told otherwise, than the right one."""
    return Step(right.old, right.operation, decided or right.decided, new)


def broken(taken: Step) -> set[str]:
    """Return the names of all rules that bear on a step and do not hold."""
    kind = type(taken.operation)
    relevant = (rule for rule in RULES.values() if rule.on is None or kind in rule.on)
    return {rule.name for rule in relevant if any(rule.predicate(taken))}


def changed(state: State, name: int, **fields: object) -> State:
    """Return a state in which fields of one sequence are different."""
    sequence = state.sequences[name]._replace(**fields)  # type: ignore[arg-type]
    return state._replace(sequences={**state.sequences, name: sequence})


CASES: dict[str, Callable[[], Step]] = {}


def case(rule: str) -> Callable[[Callable[[], Step]], Callable[[], Step]]:
    """Register a step that breaks a rule."""

    def register(make: Callable[[], Step]) -> Callable[[], Step]:
        CASES[f"{rule} {make.__name__}"] = make
        return make

    return register


# ---- contents and ownership -------------------------------------------------------------------------------------


@case("R-DATA")
def slot_without_content() -> Step:
    right = step(after(Add(1, 1), Submit(((1, 1),))), Execute(1))
    return wrong(right, right.new._replace(memory={**right.new.memory, 1: (None, None)}))


@case("R-DATA")
def slot_with_the_content_of_another() -> Step:
    right = step(after(Add(1, 1), Submit(((1, 1),))), Execute(1))
    return wrong(right, right.new._replace(memory={**right.new.memory, 1: ((7, 0), None)}))


@case("R-DATA")
def second_block_with_the_content_of_the_first() -> Step:
    right = step(after(Add(1, 4), Submit(((1, 4),))), Execute(1))
    return wrong(right, right.new._replace(memory={**right.new.memory, 2: right.new.memory[1]}))


@case("R-OWN-1")
def block_in_two_states() -> Step:
    right = step(EMPTY, Add(1, 3))
    return wrong(right, right.new._replace(free=frozenset({2, 4})))  # 2 is held as well, 3 is nowhere


@case("R-OWN-2")
def block_twice_in_a_row() -> Step:
    right = step(EMPTY, Add(1, 3))
    return wrong(right, changed(right.new, 1, row=(1, 1))._replace(free=frozenset({2, 3, 4})))


@case("R-OWN-3")
def edge_of_a_bystander_dropped() -> Step:
    right = step(after(Add(1, 1), Submit(((1, 1),)), Add(3, 1)), Fork(1, 2))
    rest = {name: sequence for name, sequence in right.new.sequences.items() if name != 3}
    return wrong(right, right.new._replace(sequences=rest, free=right.new.free | {2}))


@case("R-OWN-4")
def block_left_behind() -> Step:
    right = step(after(Add(1, 1)), Release(1))
    return wrong(right, right.new._replace(free=frozenset({2, 3, 4}), quarantine={1: 5}))  # for a launch never issued


@case("R-OWN-5")
def more_free_than_there_are() -> Step:
    right = step(EMPTY, Add(1, 1))
    return wrong(right, right.new._replace(free=right.new.free | {5}))


@case("R-OWN-6")
def free_out_of_nowhere() -> Step:
    right = step(after(Add(1, 1), Add(2, 1)), Release(1))
    lost = right.old._replace(free=frozenset({3}))  # 4 was in no state
    return Step(lost, right.operation, right.decided, right.new)


@case("R-TXN-1")
def half_of_an_extension() -> Step:
    right = step(after(Add(1, 2)), Extend(((1, 2),)))
    return wrong(right, changed(right.new, 1, text=right.new.sequences[1].text[:3]))


# ---- lifetime ---------------------------------------------------------------------------------------------------


@case("R-LIFE-1")
def free_while_a_launch_reads() -> Step:
    right = step(after(Add(1, 1), Submit(((1, 1),)), Add(2, 1)), Release(1))
    assert right.new.quarantine == {1: 1}
    return wrong(right, right.new._replace(free=frozenset({1, 3, 4}), quarantine={}))


@case("R-LIFE-1")
def free_while_a_launch_reads_without_writing() -> Step:
    """The launch reads block 1 and writes block 2."""
    here = after(Add(1, 3), Submit(((1, 2),)), Execute(1), Retire(1), Submit(((1, 1),)))
    right = step(here, Release(1))
    return wrong(right, right.new._replace(free=frozenset({1, 3, 4}), quarantine={2: 2}))


@case("R-LIFE-2")
def conflict_across_streams_without_an_edge() -> Step:
    right = step(after(Add(1, 2), Submit(((1, 1),), 0)), Submit(((1, 1),), 1))
    first, second = right.new.launches
    assert second.after == {1}
    return wrong(right, right.new._replace(launches=(first, second._replace(after=frozenset()))))


@case("R-LIFE-3")
def cancelled_and_taken_for_done() -> Step:
    right = step(after(Add(1, 1), Submit(((1, 1),)), Add(2, 1)), Release(1))
    return wrong(right, right.new._replace(launches=(), free=frozenset({1, 3, 4}), quarantine={}))


@case("R-LIFE-4")
def quarantined_for_nothing() -> Step:
    here = after(Add(1, 1), Submit(((1, 1),)), Add(2, 1), Release(1), Execute(1))
    right = step(here, Retire(1))
    return wrong(right, right.new._replace(free=frozenset({3, 4}), quarantine={1: 1}))


@case("R-LIFE-4")
def second_completion_counts() -> Step:
    right = step(after(Add(1, 1), Submit(((1, 1),)), Execute(1), Retire(1)), Retire(1))
    return wrong(right, right.new._replace(epochs=right.new.epochs + 1))


@case("R-LIFE-5")
def taken_out_of_quarantine() -> Step:
    here = after(Add(1, 1), Submit(((1, 1),)), Release(1))
    right = step(here, Add(2, 1))
    assert here.quarantine == {1: 1}
    new = changed(right.new, 2, row=(1,))._replace(free=here.free, quarantine={})
    return wrong(right, new, Outcome(blocks=(1,)))


@case("R-LIFE-6")
def row_recycled_in_flight() -> Step:
    right = step(after(Add(1, 1), Submit(((1, 1),)), Add(2, 1), Submit(((2, 1),))), Execute(1))
    first, second = right.new.launches
    (part,) = second.computations
    return wrong(right, right.new._replace(launches=(first, second._replace(computations=(part._replace(row=(4,)),)))))


@case("R-LIFE-7")
def namesake_of_the_same_epoch() -> Step:
    right = step(after(Add(1, 1), Submit(((1, 1),)), Release(1)), Add(1, 1))
    return wrong(right, changed(right.new, 1, epoch=0))


@case("R-LIFE-7")
def late_completion_changes_a_namesake() -> Step:
    right = step(after(Add(1, 1), Submit(((1, 1),)), Release(1), Add(1, 2), Execute(1)), Retire(1))
    return wrong(right, changed(right.new, 1, launched=1))


@case("R-LIFE-8")
def source_of_a_planned_copy_freed() -> Step:
    here = after(Add(1, 1), Submit(((1, 1),)), Execute(1), Retire(1), Fork(1, 2), Extend(((2, 1),)))
    right = step(here, Release(1))
    assert list(right.new.quarantine) == [1]
    return wrong(right, right.new._replace(free=frozenset({1, 3, 4}), quarantine={}))


@case("R-LIFE-8")
def planned_copy_into_a_strange_block() -> Step:
    here = after(Add(1, 1), Submit(((1, 1),)), Fork(1, 2), Extend(((2, 1),)))
    right = step(here, Execute(1))
    return wrong(right, changed(right.new, 2, copy=Copy(2, source=1, target=4, extent=1)))


# ---- copy-on-write ----------------------------------------------------------------------------------------------


@case("R-COW-1")
def fork_of_planned_positions() -> Step:
    here = after(Add(1, 1), Submit(((1, 1),)))
    right = step(here, Fork(1, 2))
    planned = {name: sequence._replace(launched=0) for name, sequence in right.new.sequences.items()}
    return wrong(right, right.new._replace(sequences=planned))


@case("R-COW-1")
def fork_of_a_planned_second_block() -> Step:
    right = step(after(Add(1, 3), Submit(((1, 3),))), Fork(1, 2))
    planned = {name: sequence._replace(launched=2) for name, sequence in right.new.sequences.items()}
    return wrong(right, right.new._replace(sequences=planned))


@case("R-COW-2")
def child_on_a_block_of_its_own() -> Step:
    right = step(after(Add(1, 1), Submit(((1, 1),))), Fork(1, 2))
    return wrong(right, changed(right.new, 2, row=(2,))._replace(free=frozenset({3, 4})))


@case("R-COW-2")
def last_holder_copies() -> Step:
    right = step(after(Add(1, 1), Submit(((1, 1),)), Add(2, 1)), Extend(((1, 1),)))
    copy = Copy(1, source=1, target=3, extent=1)
    new = changed(right.new, 1, row=(3,), copy=copy)._replace(free=frozenset({4}), quarantine={1: 1})
    return wrong(right, new, Outcome(copies=(copy,)))  # that a block was taken, too, R-CAP-1 would see


@case("R-COW-3")
def copy_of_a_slot_too_few() -> Step:
    here = after(Add(1, 1), Submit(((1, 1),)), Fork(1, 2), Extend(((2, 1),)))
    right = step(here, Submit(((2, 1),)))
    first, second = right.new.launches
    (copy,) = second.copies
    assert copy.extent == 1
    return wrong(right, right.new._replace(launches=(first, second._replace(copies=(copy._replace(extent=0),)))))


@case("R-COW-3")
def two_copies_into_one_block() -> Step:
    here = after(Add(1, 1), Submit(((1, 1),)), Fork(1, 2), Fork(1, 3), Extend(((1, 1), (2, 1))))
    right = step(here, Submit(((1, 1), (2, 1))))
    first, second = right.new.launches
    one, other = second.copies
    same = (one, other._replace(target=one.target))
    return wrong(right, right.new._replace(launches=(first, second._replace(copies=same))))


@case("R-COW-3")
def launch_writes_what_its_copy_reads() -> Step:
    here = after(Add(1, 1), Submit(((1, 1),)), Fork(1, 2), Extend(((2, 1),)))
    right = step(here, Submit(((2, 1),)))
    first, second = right.new.launches
    return wrong(right, right.new._replace(launches=(first, second._replace(writes={**second.writes, 1: (0, 1)}))))


# ---- capacity and tables ----------------------------------------------------------------------------------------


@case("R-CAP-1")
def more_taken_than_needed() -> Step:
    right = step(EMPTY, Add(1, 1))
    return wrong(right, right.new, Outcome(blocks=(1, 2)))


@case("R-CAP-2")
def block_too_many_at_an_exact_multiple() -> Step:
    right = step(EMPTY, Add(1, 2))
    return wrong(right, changed(right.new, 1, row=(1, 2))._replace(free=frozenset({3, 4})))


@case("R-CAP-2")
def launched_beyond_allocated() -> Step:
    right = step(after(Add(1, 1)), Add(2, 1))
    return wrong(right, changed(right.new, 1, launched=2))


@case("R-TAB-1")
def row_too_short_for_its_kernel() -> Step:
    right = step(after(Add(1, 3)), Submit(((1, 3),)))
    (launch,) = right.new.launches
    (part,) = launch.computations
    return wrong(right, right.new._replace(launches=(launch._replace(computations=(part._replace(row=(1,)),)),)))


@case("R-TAB-1")
def null_block_among_the_valid_entries() -> Step:
    right = step(after(Add(1, 3)), Submit(((1, 3),)))
    (launch,) = right.new.launches
    (part,) = launch.computations
    return wrong(right, right.new._replace(launches=(launch._replace(computations=(part._replace(row=(1, 0)),)),)))


@case("R-TAB-1")
def entry_beyond_the_pool() -> Step:
    right = step(after(Add(1, 3)), Submit(((1, 3),)))
    (launch,) = right.new.launches
    (part,) = launch.computations
    return wrong(right, right.new._replace(launches=(launch._replace(computations=(part._replace(row=(1, 5)),)),)))


@case("R-TAB-2")
def launch_writes_the_null_block() -> Step:
    right = step(after(Add(1, 1)), Submit(((1, 1),)))
    (launch,) = right.new.launches
    return wrong(right, right.new._replace(launches=(launch._replace(writes={**launch.writes, 0: (0, 1)}),)))


# ---- the tests --------------------------------------------------------------------------------------------------


# ---- the rest of what the sentences say, each as a step that was once let through --------------------------------

LAUNCHED = (Add(1, 1), Submit(((1, 1),)))
FORKED = (*LAUNCHED, Fork(1, 2))


def last_launch(state: State, **fields: object) -> State:
    """Return a state in which fields of the newest launch are different."""
    newest = state.launches[-1]._replace(**fields)  # type: ignore[arg-type]
    return state._replace(launches=(*state.launches[:-1], newest))


@case("R-OWN-1 a block that there is not")
def block_beyond_the_pool() -> Step:
    right = step(EMPTY, Add(1, 1))
    return wrong(right, right.new._replace(free=right.new.free | {99}))


@case("R-TXN-1 another sequence is changed")
def bystander_set_back() -> Step:
    right = step(after(*LAUNCHED), Add(2, 1))
    return wrong(right, changed(right.new, 1, launched=0))


@case("R-TXN-1 a launch that does not advance its row")
def launched_and_not_counted() -> Step:
    right = step(after(Add(1, 2)), Submit(((1, 1),)))
    return wrong(right, changed(right.new, 1, launched=0))


@case("R-TXN-1 slots are written by the host")
def memory_written_by_an_add() -> Step:
    right = step(EMPTY, Add(1, 1))
    return wrong(right, right.new._replace(memory={**right.new.memory, 1: ((0, 0), None)}))


@case("R-LIFE-2 a launch that does not say what it reads")
def footprint_too_small() -> Step:
    right = step(after(*FORKED, Extend(((1, 1),))), Submit(((1, 1),)))
    source = right.new.launches[-1].copies[0].source
    reads = {block: high for block, high in right.new.launches[-1].reads.items() if block != source}
    return wrong(right, last_launch(right.new, reads=reads))


@case("R-LIFE-3 a launch vanishes")
def launch_lost_by_an_extension() -> Step:
    right = step(after(*LAUNCHED), Extend(((1, 1),)))
    return wrong(right, right.new._replace(launches=()))


@case("R-LIFE-3 what happens before stays behind")
def only_the_named_launch_leaves() -> Step:
    state = after(Add(1, 2), Submit(((1, 1),)), Submit(((1, 1),)), Execute(1), Execute(2))
    right = step(state, Retire(2))
    return wrong(right, right.new._replace(launches=state.launches[:1]))


@case("R-LIFE-3 ended before it was executed")
def retired_too_early() -> Step:
    state = after(*LAUNCHED)
    right = step(last_launch(state, executed=True), Retire(1))
    return Step(state, right.operation, right.decided, right.new)


@case("R-LIFE-4 a fence that never passes")
def fence_of_no_launch() -> Step:
    right = step(after(*LAUNCHED), Release(1))
    return wrong(right, right.new._replace(quarantine={1: 10**9}))


@case("R-LIFE-4 a fence that moves")
def fence_raised_later() -> Step:
    state = after(Add(1, 1), Add(2, 1), Submit(((1, 1),)), Release(1), Submit(((2, 1),)))
    right = step(state, Add(3, 1))
    return wrong(right, right.new._replace(quarantine={1: 2}))


@case("R-LIFE-5 more is gone than was taken")
def free_block_lost() -> Step:
    right = step(EMPTY, Add(1, 1))
    return wrong(right, right.new._replace(free=right.new.free - {4}))


@case("R-LIFE-6 a row recycled by an add")
def row_recycled_by_an_add() -> Step:
    right = step(after(*LAUNCHED, Release(1)), Add(2, 1))
    part = right.new.launches[0].computations[0]._replace(row=right.new.sequences[2].row)
    return wrong(right, last_launch(right.new, computations=(part,)))


@case("R-LIFE-6 executed by the host")
def executed_by_a_release() -> Step:
    right = step(after(*LAUNCHED), Release(1))
    return wrong(right, last_launch(right.new, executed=True))


@case("R-LIFE-7 an epoch used before")
def epoch_of_one_that_left() -> Step:
    right = step(after(Add(1, 1), Release(1)), Add(1, 1))
    return wrong(right, right.new._replace(epochs=1))


@case("R-COW-1 launched into a shared block")
def shared_block_written_by_a_launch() -> Step:
    right = step(after(*FORKED, Fork(1, 3), Extend(((1, 1),))), Submit(((1, 1),)))
    shared = right.new.sequences[2].row[0]
    return wrong(right, last_launch(right.new, writes={shared: (1, 2)}))


@case("R-COW-3 a planned copy of a slot too many")
def planned_copy_too_long() -> Step:
    right = step(after(*FORKED), Extend(((1, 1),)))
    plan = right.new.sequences[1].copy
    assert plan
    return wrong(right, changed(right.new, 1, copy=plan._replace(extent=2)))


@case("R-CAP-2 what was written is not any more")
def written_goes_back() -> Step:
    state = after(Add(1, 2), Submit(((1, 1),)), Execute(1), Retire(1))
    right = step(state, Submit(((1, 1),)))
    part = right.new.launches[0].computations[0]._replace(start=0)
    return wrong(right, last_launch(right.new, computations=(part,)))


@case("R-TAB-2 a copy to the null block")
def copy_to_the_null_block() -> Step:
    right = step(after(*FORKED, Extend(((1, 1),))), Submit(((1, 1),)))
    (copy,) = right.new.launches[-1].copies
    return wrong(right, last_launch(right.new, copies=(copy._replace(target=0),)))


@pytest.mark.parametrize("name", CASES)
def test_each_rule_can_be_broken_and_is_named(name: str) -> None:
    rule = name.split(maxsplit=1)[0]
    taken = CASES[name]()
    assert rule in broken(taken)
    with pytest.raises(Broken) as verdict:
        check(taken)
    assert verdict.value.rule in broken(taken)
    assert str(verdict.value).startswith(f"{verdict.value.rule}: ")


def test_no_rule_is_without_a_case() -> None:
    assert {name.split()[0] for name in CASES} == set(RULES)


@pytest.mark.parametrize("name", NAMES)
def test_the_rule_is_registered_with_its_sentence(name: str) -> None:
    rule = RULES[name]
    assert rule.name == name
    assert rule.sentence.endswith(".")
    assert len(rule.sentence.split()) > 8


def test_a_refusal_that_changed_something_is_not_atomic() -> None:
    old = after(Add(1, 1))
    with pytest.raises(Broken) as verdict:
        check(Step(old, Add(1, 1), Refused(Reason.DUPLICATE), old._replace(free=frozenset({2, 3}))))
    assert verdict.value.rule == "R-TXN-1"


def test_want_of_space_is_no_reason_where_there_is_space() -> None:
    old = after(Add(1, 4))
    with pytest.raises(Broken) as verdict:
        check(Step(old, Extend(((1, 4),)), Refused(Reason.NO_SPACE), old))
    assert verdict.value.rule == "R-CAP-1"
    check(Step(old, Extend(((1, 5),)), Refused(Reason.NO_SPACE), old))  # 3 blocks are needed, 2 are free


def test_refused_for_another_reason_space_is_not_asked_about() -> None:
    old = after(Add(1, 4))
    check(Step(old, Add(1, 1), Refused(Reason.DUPLICATE), old))


def test_the_null_block_is_in_no_state() -> None:
    right = step(EMPTY, Add(1, 1))
    assert broken(wrong(right, right.new._replace(free=right.new.free | {0}))) == {"R-OWN-1", "R-OWN-5"}


@pytest.mark.parametrize("free", [{1, 2, 3, 4}, {2, 3}], ids=["the first block twice", "the last block nowhere"])
def test_no_block_is_left_out(free: set[int]) -> None:
    right = step(EMPTY, Add(1, 1))
    assert broken(wrong(right, right.new._replace(free=frozenset(free)))) == {"R-OWN-1", "R-OWN-5"}


def test_every_block_of_the_pool_may_be_used() -> None:
    state = EMPTY
    for operation in (Add(1, 8), Submit(((1, 8),)), Execute(1), Release(1), Retire(1)):
        taken = step(state, operation)
        assert broken(taken) == set()
        state = taken.new


def test_a_right_step_of_each_operation_breaks_nothing() -> None:
    state = EMPTY
    for operation in (
        Add(1, 1),
        Submit(((1, 1),)),
        Fork(1, 2),
        Extend(((1, 1), (2, 1))),
        Submit(((2, 1), (1, 1)), 1),
        Execute(1),
        Execute(2),
        Release(1),
        Retire(2),
        Release(2),
    ):
        taken = step(state, operation)
        assert broken(taken) == set()
        check(taken)
        state = taken.new
    assert len(state.free) == 4

"""Steps that break a rule, made by hand: for each rule one, and how such steps are made.

Each case takes a right step of the spec and changes what is said of it. Some of the changes no implementation could
make from a right state: what counts is that the predicate sees them. `test_rules.py` holds the rules to these.
"""

from collections.abc import Callable

from pagedkv.spec.alphabet import Add, Execute, Extend, Fork, Operation, Release, Retire, Submit, apply
from pagedkv.spec.outcome import Outcome
from pagedkv.spec.rules import RULES, Step
from pagedkv.spec.state import Config, Copy, State, initial

# 4 blocks of 2 slots. Blocks are taken from the lowest id up, so the first sequence has block 1, and so on.
EMPTY = initial(Config(blocks=4, block_size=2, streams=2, launches=4))


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
    right = step(here, Fork(1, 3))
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

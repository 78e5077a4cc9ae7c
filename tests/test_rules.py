"""Every rule can fail: for each, steps that break it, one for each thing that its sentence says.

A rule that no state can break is no check. Each case below takes a right step of the spec and changes by hand what is
said of it, so that one rule is broken; where rules overlap, others may be, too.
Some of the changes no implementation could make from a right state: what counts is that the predicate sees them.
"""

import pytest
from pagedkv.spec.alphabet import Add, Execute, Extend, Fork, Release, Retire, Submit
from pagedkv.spec.refusals import Broken, Reason, Refused
from pagedkv.spec.rules import RULES, Step, check

import broken_steps_finer
import broken_steps_let_through
import broken_steps_sharing
from broken_steps import CASES, EMPTY, after, broken, step, wrong

assert broken_steps_finer.LAUNCHED  # its cases are among CASES
assert broken_steps_sharing.COMPUTED  # and these, too
assert broken_steps_let_through.WAITING

NAMES = (
    "R-DATA",
    *(f"R-OWN-{number}" for number in range(1, 7)),
    *(f"R-TXN-{number}" for number in range(1, 3)),
    *(f"R-LIFE-{number}" for number in range(1, 9)),
    *(f"R-COW-{number}" for number in range(1, 5)),
    *(f"R-HASH-{number}" for number in range(1, 7)),
    *(f"R-EVICT-{number}" for number in range(1, 4)),
    *(f"R-CAP-{number}" for number in range(1, 3)),
    *(f"R-TAB-{number}" for number in range(1, 3)),
)


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


def test_where_nothing_is_published_no_rule_of_the_index_is_broken() -> None:
    """So nothing is lost where they are left out: not on any wrong step without an index, before or after."""
    of_the_index = {name for name, rule in RULES.items() if rule.of_the_index}
    without = [taken for taken in (make() for make in CASES.values()) if not (taken.old.prefixes or taken.new.prefixes)]
    assert of_the_index
    assert len(without) > 40
    assert not any(of_the_index & broken(taken) for taken in without)


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
    assert broken(wrong(right, right.new._replace(free=right.new.free | {0}))) >= {"R-OWN-1", "R-OWN-5"}


@pytest.mark.parametrize("free", [{1, 2, 3, 4}, {2, 3}], ids=["the first block twice", "the last block nowhere"])
def test_no_block_is_left_out(free: set[int]) -> None:
    right = step(EMPTY, Add(1, 1))
    assert broken(wrong(right, right.new._replace(free=frozenset(free)))) >= {"R-OWN-1", "R-OWN-5"}


def test_a_block_in_two_states_is_named() -> None:
    right = step(EMPTY, Add(1, 1))
    lines = RULES["R-OWN-1"].predicate(wrong(right, right.new._replace(free=frozenset({1, 2, 3}))))
    assert list(lines) == ["block 1 is in 2 states", "block 4 is in 0 states"]
    lost = RULES["R-OWN-1"].predicate(wrong(right, EMPTY._replace(free=frozenset({2, 3, 4}))))
    assert list(lost) == ["block 1 is in 0 states"]


def test_a_sequence_out_of_nowhere_is_seen() -> None:
    right = step(after(Add(1, 1), Add(2, 1)), Release(1))
    sequences = {**right.new.sequences, 9: right.new.sequences[2]}
    assert "R-TXN-1" in broken(wrong(right, right.new._replace(sequences=sequences)))


def test_a_bystander_may_be_written_anew_as_it_was() -> None:
    right = step(after(Add(1, 1), Add(2, 1)), Release(1))
    again = right.new.sequences[2]._replace()
    assert again is not right.new.sequences[2]
    assert broken(wrong(right, right.new._replace(sequences={2: again}))) == set()


def test_a_write_after_a_read_on_another_stream_is_seen() -> None:
    """Launch 2 reads block 1 and writes block 2; launch 3, on the other stream, is made to write block 1."""
    reading = (Add(1, 3), Submit(((1, 2),)), Execute(1), Retire(1), Add(2, 1), Submit(((1, 1),), 0))
    right = step(after(*reading), Submit(((2, 1),), 1))
    newest = right.new.launches[1]
    part = newest.computations[0]._replace(row=(1,))
    writing = newest._replace(computations=(part,), reads={1: 1}, writes={1: (0, 1)})
    taken = wrong(right, right.new._replace(launches=(right.new.launches[0], writing)))
    assert list(RULES["R-LIFE-2"].predicate(taken)) == ["launches 2 and 3 conflict and are not ordered"]


def test_launches_without_a_common_slot_need_no_order() -> None:
    """Of two siblings on two streams one copies the shared tail, the other writes on in it; a stranger does neither."""
    forked = (Add(1, 1), Submit(((1, 1),)), Execute(1), Retire(1), Fork(1, 2), Add(3, 1), Extend(((1, 1), (2, 1))))
    state = after(*forked)
    for operation in (Submit(((1, 1),), 0), Submit(((2, 1),), 1), Submit(((3, 1),), 0)):
        taken = step(state, operation)
        assert broken(taken) == set()
        state = taken.new
    assert [launch.after for launch in state.launches] == [frozenset()] * 3


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

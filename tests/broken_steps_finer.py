"""More steps that break a rule: one for each thing that its sentence says besides.

Each was let through once, by a rule that said more than it looked at.
"""

from pagedkv.spec.alphabet import Add, Execute, Extend, Fork, Release, Retire, Submit
from pagedkv.spec.rules import Step
from pagedkv.spec.state import State

from broken_steps import EMPTY, after, case, changed, step, wrong

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


@case("R-TXN-1 the device frees a block")
def device_frees_a_block() -> Step:
    right = step(after(Add(1, 1), Submit(((1, 1),)), Release(1)), Execute(1))
    return wrong(right, right.new._replace(free=right.new.free | {1}, quarantine={}))


@case("R-TXN-1 the device ends a launch")
def device_ends_a_launch() -> Step:
    right = step(after(Add(1, 1), Submit(((1, 1),))), Execute(1))
    return wrong(right, right.new._replace(launches=()))

"""Steps that break a rule and that the rules once let through, found by changing right steps field by field.

`test_rules_mutated.py` does so for all fields; here each kind stands once, made by hand, with the rule that names it.
"""

from pagedkv.spec.alphabet import Add, Execute, Fork, Pin, Publish, Release, Submit
from pagedkv.spec.outcome import Outcome
from pagedkv.spec.rules import Step
from pagedkv.spec.state import Root

from broken_steps import EMPTY, after, case, changed, step, wrong
from broken_steps_finer import LAUNCHED, last_launch
from broken_steps_sharing import CACHED, COMPUTED, TWICE, done

WAITING = (Add(1, 1), Add(2, 1), Submit(((1, 1),)), Release(1))  # block 1 waits for launch 1


@case("R-TXN-1 longer than was asked for")
def add_of_another_length() -> Step:
    right = step(EMPTY, Add(1, 1))
    return wrong(right, changed(right.new, 1, text=((0, 0), (0, 1))))


@case("R-TXN-1 a child that expects other contents")
def fork_of_another_text() -> Step:
    right = step(after(*LAUNCHED), Fork(1, 2))
    return wrong(right, changed(right.new, 2, text=((1, 0),)))


@case("R-TXN-1 the blocks of a row in another order")
def row_the_other_way_round() -> Step:
    right = step(EMPTY, Add(1, 3))
    return wrong(right, changed(right.new, 1, row=right.new.sequences[1].row[::-1]))


@case("R-TXN-1 an order that nobody is told of")
def edge_not_said() -> Step:
    right = step(after(Add(1, 2), Submit(((1, 1),), 0)), Submit(((1, 1),), 1))
    assert isinstance(right.decided, Outcome)
    assert right.decided.after == {1}
    return wrong(right, right.new, right.decided._replace(after=frozenset()))


@case("R-TXN-1 the device writes another block")
def device_writes_elsewhere() -> Step:
    right = step(after(*LAUNCHED), Execute(1))
    return wrong(right, right.new._replace(memory={**right.new.memory, 3: ((0, 0), None)}))


@case("R-LIFE-4 a launch that puts all fences off")
def fences_put_off() -> Step:
    right = step(after(*WAITING), Submit(((2, 1),)))
    assert right.new.quarantine == {1: 1}
    return wrong(right, right.new._replace(quarantine={1: 2}))


@case("R-LIFE-5 a free block in quarantine")
def free_block_waits() -> Step:
    right = step(after(*LAUNCHED), Fork(1, 2))
    return wrong(right, right.new._replace(free=right.new.free - {4}, quarantine={4: 1}))


@case("R-LIFE-6 a launch that is executed from the first")
def born_executed() -> Step:
    right = step(after(Add(1, 1)), Submit(((1, 1),)))
    return wrong(right, last_launch(right.new, executed=True))


@case("R-LIFE-6 executed, and not marked so")
def executed_and_not_marked() -> Step:
    right = step(after(*LAUNCHED), Execute(1))
    return wrong(right, last_launch(right.new, executed=False))


@case("R-LIFE-6 other contents than the row's")
def captured_of_another_epoch() -> Step:
    right = step(after(Add(1, 1)), Submit(((1, 1),)))
    part = right.new.launches[-1].computations[0]._replace(epoch=9)
    return wrong(right, last_launch(right.new, computations=(part,)))


@case("R-LIFE-6 a launch that nobody submitted")
def launch_out_of_nowhere() -> Step:
    right = step(after(*LAUNCHED), Add(2, 1))
    stray = right.new.launches[-1]._replace(id=9, computations=(), reads={}, writes={})
    return wrong(right, right.new._replace(launches=(*right.new.launches, stray)))


@case("R-LIFE-7 a launch of another number")
def launch_of_another_number() -> Step:
    right = step(after(Add(1, 1)), Submit(((1, 1),)))
    return wrong(right, last_launch(right.new, id=5))


@case("R-LIFE-7 a number that will be used again")
def launch_not_counted() -> Step:
    right = step(after(Add(1, 1)), Submit(((1, 1),)))
    return wrong(right, right.new._replace(issued=0))


@case("R-LIFE-7 an epoch that will be used again")
def epoch_given_back() -> Step:
    right = step(after(*LAUNCHED), Release(1))
    return wrong(right, right.new._replace(epochs=0))


# ---- of shared prefixes ---------------------------------------------------------------------------------------------


@case("R-TXN-1 an add that loses the salt")
def salt_lost() -> Step:
    right = step(after(), Add(1, (5, 6, 7), 1))
    return wrong(right, changed(right.new, 1, root=Root()))


@case("R-TXN-1 other ids are learnt than were told")
def other_ids_learnt() -> Step:
    right = step(after(Add(1, 2)), Publish(((1, (5, 6)),)))
    return wrong(right, changed(right.new, 1, known=(5, 9)))


@case("R-TXN-1 what is published is not said")
def published_in_silence() -> Step:
    right = step(after(*COMPUTED), Publish(((1, ()),)))
    return wrong(right, right.new, Outcome())


@case("R-TXN-1 one merge is said twice")
def merge_said_twice() -> Step:
    right = step(after(*TWICE), Publish(((2, (5, 6, 7)),)))
    assert isinstance(right.decided, Outcome)
    return wrong(right, right.new, right.decided._replace(merges=right.decided.merges * 2))


@case("R-TXN-1 a pin that nobody asked for")
def pin_leaked() -> Step:
    right = step(after(*CACHED), Add(2, (5, 6, 7)))
    return wrong(right, right.new._replace(pins={9: (1,)}))


@case("R-TXN-1 a pin holds more than it says")
def pin_of_more_than_it_hit() -> Step:
    right = step(after(*CACHED), Pin(7, (5, 6, 7, 8)))
    return wrong(right, right.new, Outcome(hits=(1,)))


@case("R-HASH-4 the retention class is lost")
def retention_lost() -> Step:
    right = step(after(*COMPUTED), Publish(((1, ()),), 2))
    entries = {key: entry._replace(retention=0) for key, entry in right.new.prefixes.items()}
    return wrong(right, right.new._replace(prefixes=entries))


@case("R-HASH-5 a pin of less than there is")
def shorter_pin() -> Step:
    right = step(after(*CACHED), Pin(7, (5, 6, 7, 8)))
    return wrong(right, right.new._replace(pins={7: (1,)}, evictable={2: 1}), Outcome(hits=(1,)))


@case("R-EVICT-2 what became evictable last counts as first")
def clock_set_back() -> Step:
    prompts = (Add(1, (1, 1)), Add(2, (2, 2)), *done(1, (1, 2), (2, 2)), Publish(((1, ()), (2, ()))))
    right = step(after(*prompts, Release(1)), Release(2))
    assert right.new.evictable == {1: 1, 2: 2}
    return wrong(right, right.new._replace(evictable={1: 1, 2: 0}))

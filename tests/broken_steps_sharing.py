"""Steps that break a rule of prefix sharing, made by hand: one for each thing that a sentence says.

And those that break, with idle blocks and pins, what other rules say.
"""

from typing import cast

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
)
from pagedkv.spec.outcome import Outcome
from pagedkv.spec.rules import Step
from pagedkv.spec.state import Content, Copy, Key, Published, Root, State

from broken_steps import after, case, changed, step, wrong


def done(launch: int, *rows: tuple[int, int]) -> tuple[Operation, ...]:
    """Return a launch from its submission to its end."""
    return Submit(rows), Execute(launch), Retire(launch)


# Sequence 1 has blocks 1 and 2; both hold what is published for 5 6 7 8 when it has left; 3 and 4 are free.
COMPUTED = (Add(1, (5, 6, 7, 8)), *done(1, (1, 4)))
PUBLISHED = (*COMPUTED, Publish(((1, ()),)))
CACHED = (*PUBLISHED, Release(1))
# Two of one block each, 1 of them published, and the same in both.
TWICE = (Add(1, (5, 6)), Add(2, 3), *done(1, (1, 2), (2, 3)), Publish(((1, ()),)))
FIRST, SECOND = Key(Root(), (5, 6)), Key(Root(), (5, 6, 7, 8))


def entry_of(state: State, block: int) -> Published:
    """Return an entry of a block as it is."""
    return Published(block, cast("tuple[Content, ...]", state.memory[block]), 0)


def indexed(state: State, changes: dict[Key, Published], *without: Key) -> State:
    """Return a state with another index."""
    kept = {key: entry for key, entry in state.prefixes.items() if key not in without}
    return state._replace(prefixes={**kept, **changes})


# ---- look-ups -----------------------------------------------------------------------------------------------------


@case("R-TXN-2 a hit is left evictable")
def hit_not_held() -> Step:
    right = step(after(*CACHED), Add(2, (5, 6, 7)))
    return wrong(right, right.new._replace(evictable={1: 1, 2: 1}))


@case("R-TXN-2 a hit is not in the row")
def hit_not_in_the_row() -> Step:
    right = step(after(*CACHED), Add(2, (5, 6, 7)))
    return wrong(right, changed(right.new, 2, row=(4, 3)))


@case("R-TXN-2 a pin that does not hold")
def pin_not_held() -> Step:
    right = step(after(*CACHED), Pin(7, (5, 6, 7, 8)))
    return wrong(right, right.new._replace(pins={7: (1,)}))


@case("R-TXN-2 merged into what may be evicted")
def merge_not_held() -> Step:
    right = step(after(*TWICE, Release(1)), Publish(((2, (5, 6)),)))
    assert right.old.evictable == {1: 1}
    return wrong(right, right.new._replace(evictable={1: 1}))


@case("R-HASH-1 another tenant's block is hit")
def hit_under_another_salt() -> Step:
    right = step(after(*CACHED), Add(2, (5, 6, 7), 1))
    assert isinstance(right.decided, Outcome)
    return wrong(right, right.new, right.decided._replace(hits=(1,)))


@case("R-HASH-1 a block of older weights is hit")
def hit_of_older_weights() -> Step:
    right = step(after(*CACHED), Add(2, (5, 6, 7)))
    return Step(right.old._replace(weights=1), right.operation, right.decided, right.new)


@case("R-HASH-1 a block behind other tokens is hit")
def hit_behind_other_tokens() -> Step:
    right = step(after(*CACHED), Pin(7, (5, 6, 7, 8)))
    return wrong(right, right.new, Outcome(hits=(1, 2, 2)))


@case("R-HASH-2 a digest was believed")
def other_tokens_than_the_key() -> Step:
    right = step(after(*CACHED), Add(2, (5, 6, 7)))
    return wrong(right, changed(right.new, 2, known=(5, 7, 7)))


@case("R-HASH-2 a block at another place")
def second_block_first() -> Step:
    right = step(after(*CACHED), Add(2, (7, 8, 9)))
    return wrong(right, changed(right.new, 2, row=(2, 3)))


@case("R-HASH-3 an entry of a block that was evicted")
def stale_entry() -> Step:
    right = step(after(*CACHED), Add(2, 6))
    return wrong(right, right.new._replace(prefixes=right.old.prefixes))


@case("R-HASH-3 one block under two keys")
def block_published_twice() -> Step:
    right = step(after(*COMPUTED), Publish(((1, ()),)))
    return wrong(right, indexed(right.new, {Key(Root(1), (5, 6)): right.new.prefixes[FIRST]}))


@case("R-HASH-3 contents that are not there")
def contents_overwritten() -> Step:
    right = step(after(*COMPUTED), Publish(((1, ()),)))
    return wrong(right, right.new._replace(memory={**right.new.memory, 1: (None, None)}))


@case("R-HASH-3 published by something else")
def published_by_a_release() -> Step:
    right = step(after(*COMPUTED), Release(1))
    entry = entry_of(right.new, 1)
    return wrong(right, indexed(right.new, {FIRST: entry})._replace(free=frozenset({2, 3, 4}), evictable={1: 1}))


@case("R-HASH-3 forgotten for nothing")
def entry_lost() -> Step:
    right = step(after(*PUBLISHED), Extend(((1, 1),)))
    return wrong(right, indexed(right.new, {}, SECOND))


@case("R-HASH-4 published while a launch writes it")
def published_before_written() -> Step:
    here = after(Add(1, (5, 6)), Submit(((1, 2),)), Execute(1))
    right = step(here, Publish(((1, ()),)))
    return wrong(right, indexed(right.new, {FIRST: entry_of(here, 1)}))


@case("R-HASH-4 published of unknown tokens")
def published_unknown() -> Step:
    here = after(Add(1, 2), *done(1, (1, 2)))
    right = step(here, Publish(((1, (5,)),)))
    return wrong(right, indexed(right.new, {FIRST: entry_of(here, 1)}))


@case("R-HASH-4 a part of a block")
def part_published() -> Step:
    here = after(Add(1, (5, 6, 7)), *done(1, (1, 3)), Publish(((1, ()),)))
    right = step(here, Publish(((1, ()),)))
    return wrong(right, indexed(right.new, {Key(Root(), (5, 6, 7)): entry_of(here, 2)}))


@case("R-HASH-5 the whole prompt is hit")
def no_token_left() -> Step:
    right = step(after(*CACHED), Add(2, (5, 6, 7, 8)))
    new = changed(right.new, 2, row=(1, 2), launched=4)._replace(evictable={}, free=frozenset({3, 4}))
    return wrong(right, new, Outcome(hits=(1, 2)))


@case("R-HASH-5 less than there is")
def shorter_hit() -> Step:
    right = step(after(*CACHED), Add(2, (5, 6, 7, 8, 9)))
    new = changed(right.new, 2, row=(1, 3, 4), launched=2)._replace(evictable={2: 1}, free=frozenset())
    return wrong(right, new, Outcome(blocks=(3, 4), hits=(1,)))


@case("R-HASH-5 hit and computed again")
def hit_not_launched() -> Step:
    right = step(after(*CACHED), Add(2, (5, 6, 7)))
    return wrong(right, changed(right.new, 2, launched=0))


@case("R-HASH-6 what older weights computed stays in the index")
def entry_outlives_its_weights() -> Step:
    right = step(after(*PUBLISHED), Clear())
    return wrong(right, right.new._replace(prefixes=right.old.prefixes))


@case("R-HASH-6 a pin outlives its weights")
def pin_outlives_its_weights() -> Step:
    right = step(after(*PUBLISHED, Pin(7, (5, 6))), Clear())
    return wrong(right, right.new._replace(pins=right.old.pins))


@case("R-HASH-6 a sequence of before is taken for one of now")
def root_moved_on() -> Step:
    right = step(after(*PUBLISHED), Clear())
    return wrong(right, changed(right.new, 1, root=Root(0, 1)))


@case("R-HASH-6 weights that nobody changed")
def weights_change_by_themselves() -> Step:
    right = step(after(*COMPUTED), Release(1))
    return wrong(right, right.new._replace(weights=1))


# ---- eviction -----------------------------------------------------------------------------------------------------


@case("R-EVICT-1 evicted while a block is free")
def evicted_for_nothing() -> Step:
    right = step(after(*CACHED), Add(2, 1))
    new = indexed(changed(right.new, 2, row=(2,)), {}, SECOND)
    return wrong(right, new._replace(free=frozenset({3, 4}), evictable={1: 1}), Outcome(blocks=(2,)))


@case("R-EVICT-1 a fenced block is evicted")
def evicted_while_it_is_read() -> Step:
    here = after(*PUBLISHED, Extend(((1, 1),)), Submit(((1, 1),)), Release(1))
    right = step(here, Add(2, 1))
    return wrong(right, right.new, Outcome(blocks=(2,)))


@case("R-EVICT-1 what the action hits is evicted")
def hit_and_evicted() -> Step:
    right = step(after(*CACHED), Add(2, (5, 6, 7, 8, 9)))
    assert isinstance(right.decided, Outcome)
    return wrong(right, right.new, right.decided._replace(blocks=(2,)))


@case("R-EVICT-1 evictable though a launch reads it")
def evictable_while_it_is_read() -> Step:
    right = step(after(*PUBLISHED, Extend(((1, 1),)), Submit(((1, 1),))), Release(1))
    return wrong(right, right.new._replace(evictable={1: 1, 2: 1}, quarantine={3: 2}))


@case("R-EVICT-2 a parent before its child")
def parent_evicted() -> Step:
    right = step(after(*CACHED), Add(2, 5))
    new = indexed(changed(right.new, 2, row=(3, 4, 1)), {SECOND: right.old.prefixes[SECOND]}, FIRST)
    return wrong(right, new._replace(evictable={2: 1}), Outcome(blocks=(3, 4, 1)))


@case("R-EVICT-2 the retention class is ignored")
def higher_class_evicted() -> Step:
    prompts = (Add(1, (1, 1)), Add(2, (2, 2)), *done(1, (1, 2), (2, 2)), Publish(((1, ()),), 1), Publish(((2, ()),)))
    right = step(after(*prompts, Release(1), Release(2)), Add(3, 5))
    assert right.taken == (3, 4, 2)
    return wrong(right, right.new, Outcome(blocks=(3, 4, 1)))


@case("R-EVICT-2 the wrong end of the queue")
def newest_evicted() -> Step:
    prompts = (Add(1, (1, 1)), Add(2, (2, 2)), *done(1, (1, 2), (2, 2)), Publish(((1, ()), (2, ()))))
    right = step(after(*prompts, Release(1), Release(2)), Add(3, 5))
    return wrong(right, right.new, Outcome(blocks=(3, 4, 2)))


@case("R-EVICT-2 a parent is evictable before its child")
def parent_evictable_first() -> Step:
    right = step(after(*PUBLISHED, Pin(7, (5, 6, 7, 8)), Release(1)), Unpin(7))
    return wrong(right, right.new._replace(evictable={1: 1}, quarantine={2: 1}))


@case("R-EVICT-3 the duplicate is let go first")
def released_before_remapped() -> Step:
    right = step(after(*TWICE), Publish(((2, (5, 6, 7)),)))
    return wrong(right, changed(right.new, 2, row=right.old.sequences[2].row))


@case("R-EVICT-3 a fork still has the duplicate")
def released_though_shared() -> Step:
    right = step(after(*TWICE, Fork(2, 3)), Publish(((2, (5, 6, 7)),)))
    return wrong(right, right.new._replace(free=right.new.free | {2}))


@case("R-EVICT-3 merged with other contents")
def merged_with_other_contents() -> Step:
    right = step(after(*TWICE), Publish(((2, (5, 6, 7)),)))
    return wrong(right, changed(right.new, 2, text=right.old.sequences[2].text))


@case("R-COW-4 a launch writes a published block")
def published_block_launched_into() -> Step:
    right = step(after(*PUBLISHED, Extend(((1, 1),))), Submit(((1, 1),)))
    newest = right.new.launches[-1]
    return wrong(right, right.new._replace(launches=(newest._replace(writes={**newest.writes, 2: (1, 2)}),)))


@case("R-COW-4 a published block is overwritten")
def published_block_written() -> Step:
    right = step(after(*PUBLISHED, Extend(((1, 1),)), Submit(((1, 1),))), Execute(2))
    return wrong(right, right.new._replace(memory={**right.new.memory, 2: ((9, 9), (9, 9))}))


@case("R-COW-4 a published block is planned for writing")
def published_block_planned() -> Step:
    right = step(after(*COMPUTED), Publish(((1, ()),)))
    return wrong(right, changed(right.new, 1, launched=3))


@case("R-COW-4 a published block is planned for writing behind another")
def published_block_planned_later() -> Step:
    right = step(after(*COMPUTED), Publish(((1, ()),)))
    return wrong(right, indexed(changed(right.new, 1, launched=1), {}, FIRST))


@case("R-COW-4 a copy is planned into a published block")
def published_block_copied_over() -> Step:
    right = step(after(*PUBLISHED), Extend(((1, 1),)))
    return wrong(right, changed(right.new, 1, copy=Copy(1, source=1, target=2, extent=1)))


# ---- what other rules say of idle blocks and pins -----------------------------------------------------------------


@case("R-OWN-1 idle and held at once")
def idle_and_held() -> Step:
    right = step(after(*CACHED), Pin(7, (5, 6)))
    return wrong(right, right.new._replace(evictable=right.old.evictable))


@case("R-OWN-2 a pin that holds a block twice")
def pinned_twice() -> Step:
    right = step(after(*CACHED), Pin(7, (5, 6)))
    return wrong(right, right.new._replace(pins={7: (1, 1)}))


@case("R-OWN-3 a pin is lost")
def pin_lost() -> Step:
    right = step(after(*PUBLISHED, Pin(7, (5, 6))), Release(1))
    return wrong(right, right.new._replace(pins={}, evictable={1: 1, 2: 1}))


@case("R-OWN-3 an edge that no merge dropped")
def edge_lost_by_a_publication() -> Step:
    right = step(after(*TWICE), Publish(((2, (5, 6, 7)),)))
    return wrong(right, right.new, Outcome(freed=frozenset({2})))


@case("R-OWN-6 freed by a publication out of nowhere")
def freed_by_a_publication() -> Step:
    right = step(after(*TWICE), Publish(((2, (5, 6, 7)),)))
    return wrong(right, changed(right.new, 2, row=(1,))._replace(free=right.new.free | {3}))


@case("R-OWN-6 freed and not said")
def freed_in_silence() -> Step:
    right = step(after(*PUBLISHED), Release(1))
    return wrong(right, right.new, Outcome())


@case("R-TXN-1 told and not learnt")
def ids_forgotten() -> Step:
    right = step(after(Add(1, 2)), Publish(((1, (5, 6)),)))
    return wrong(right, changed(right.new, 1, known=(5,)))


@case("R-LIFE-1 evictable while a launch reads it")
def evictable_too_early() -> Step:
    right = step(after(*PUBLISHED, Extend(((1, 1),)), Submit(((1, 1),))), Release(1))
    return wrong(right, right.new._replace(quarantine={1: 2, 3: 2}, evictable={2: 1}))


@case("R-LIFE-4 idle for nothing")
def idle_block_never_evictable() -> Step:
    right = step(after(*PUBLISHED), Release(1))
    return wrong(right, right.new._replace(quarantine={1: 1, 2: 1}, evictable={}), Outcome())


@case("R-LIFE-4 kept for another tenant's planned copy")
def idle_block_of_another_tenant() -> Step:
    computed = (Add(1, (5, 6, 7)), Add(3, (5, 6), 1), *done(1, (1, 3), (3, 2)), Publish(((3, ()),)))
    planned = (Fork(1, 2), Extend(((2, 1),)), Extend(((1, 1),)), *done(2, (1, 1)), Publish(((1, (8,)),)), Release(1))
    right = step(after(*computed, *planned), Release(3))
    assert right.old.quarantine == {2: 2}, "the source of a planned copy, published for 5 6 7 8 without salt"
    assert right.new.evictable == {3: 1}
    return wrong(right, right.new._replace(quarantine={2: 2, 3: 2}, evictable={}), Outcome())


@case("R-CAP-1 an idle hit counted as need")
def hit_taken_as_well() -> Step:
    right = step(after(*CACHED), Add(2, (5, 6, 7)))
    assert isinstance(right.decided, Outcome)
    return wrong(right, right.new, right.decided._replace(blocks=(3, 4)))

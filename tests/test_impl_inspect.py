"""Looking in: who holds a block, what `check` finds when something is written over, the state as one value."""

import operator
from collections.abc import Callable

import pytest
from pagedkv.impl.cache import BlockCache
from pagedkv.impl.invariants import CorruptState


def busy() -> BlockCache:
    """Return a cache of blocks of 4 on two streams with one of everything.

    Sequence 1 has blocks 1 and 2, both launched on stream 0 (launch 1). Its fork 2 has block 1 and, as the target of a
    planned copy of block 2, block 3. Sequence 3 held block 4 and was released in launch 2 on stream 1, in flight.
    """
    cache = BlockCache(8, 4, streams=2)
    cache.add(1, 6)
    cache.launch([1], 6)
    cache.fork(1, 2)
    cache.extend([2])
    cache.add(3, 4)
    cache.launch([3], 4, stream=1)
    cache.release(3)
    cache.check()
    return cache


def test_who_holds_a_block_since_when_and_why_it_is_not_free() -> None:
    cache = busy()
    assert str(cache.who_holds(0)) == "block 0 is reserved"
    assert str(cache.who_holds(1)) == (
        "block 1 is held; sequence 1 holds it as block 0 of its row, since operation 1; "
        "sequence 2 holds it as block 0 of its row, since operation 3, after launch 1; "
        "in flight and touching it: launch 1"
    )
    assert str(cache.who_holds(2)) == (
        "block 2 is held; sequence 1 holds it as block 1 of its row, since operation 1; "
        "in flight and touching it: launch 1; a planned copy reads it for sequence 2"
    )
    assert str(cache.who_holds(3)) == (
        "block 3 is held; sequence 2 holds it as block 1 of its row, since operation 4, after launch 1"
    )
    assert str(cache.who_holds(4)) == (
        "block 4 is quarantined; in flight and touching it: launch 2; "
        "not free before the retirement of launch 2 on stream 1"
    )
    assert str(cache.who_holds(8)) == "block 8 is free"


def test_a_parked_source_says_what_keeps_it() -> None:
    cache = busy()
    cache.release(1)
    assert str(cache.who_holds(2)) == (
        "block 2 is quarantined; in flight and touching it: launch 1; a planned copy reads it for sequence 2; "
        "not free before the retirement of launch 1 on stream 0"
    )


def drop_from_stack(cache: BlockCache) -> None:
    """Lose a free block."""
    cache._pool.take(1)


def free_twice(cache: BlockCache) -> None:
    """Free a block that is free."""
    cache._pool.take(1)
    cache._pool.give_back(cache._pool.free_ids()[:1].copy())


def write_over(name: str, place: object, value: object, *, of: str = "_tables") -> Callable[[BlockCache], None]:
    """Return a corruption: write a value into one of the arrays."""

    def corrupt(cache: BlockCache) -> None:
        operator.attrgetter(f"{of}.{name}")(cache)[place] = value

    return corrupt


def forget_copy(cache: BlockCache) -> None:
    """Forget that a planned copy reads its source."""
    cache._pool.copy_readers.clear()


def forget_waiting(cache: BlockCache) -> None:
    """Forget what waits for the newest launch."""
    cache._launches.in_flight[2].waiting_blocks.clear()


def forget_row(cache: BlockCache) -> None:
    """Forget a free row."""
    cache._tables.free_rows.pop()


def miscount(name: str) -> Callable[[BlockCache], None]:
    """Return a corruption: count one too many."""

    def corrupt(cache: BlockCache) -> None:
        setattr(cache._pool, name, getattr(cache._pool, name) + 1)

    return corrupt


CORRUPTIONS = [
    (drop_from_stack, "R-OWN-5|R-OWN-4"),
    (free_twice, "R-OWN-1: a block is on the free stack twice"),
    (miscount("held"), "R-OWN-5: blocks held 3, counted 4"),
    (miscount("quarantined"), "R-OWN-5: blocks quarantined 1, counted 2"),
    (miscount("shared_edges"), "R-OWN-5: edges shared 1, counted 2"),
    (write_over("co_holders", 8, 1, of="_pool"), "R-OWN-1: a block on the free stack is shared"),
    (write_over("co_holders", 0, -1, of="_pool"), "R-OWN-1: the null block"),
    (write_over("co_holders", 2, 1, of="_pool"), "R-OWN-2"),
    (write_over("newest", (0, 8), 1, of="_pool.fences"), "R-LIFE-1: a block on the free stack is fenced"),
    (write_over("newest", (1, 4), 0, of="_pool.fences"), "R-LIFE-4: block 4 waits for 2, not None"),
    (forget_waiting, "R-LIFE-4: what is quarantined and what waits"),
    (forget_copy, "R-LIFE-8: the planned copies and the count of their readers differ"),
    (forget_row, "R-LIFE-6: a row is lost"),
    (write_over("copying", 2, 0), "R-LIFE-8: the rows that copy are not marked"),
    (write_over("launched", 1, 7), "R-CAP-2"),
    (write_over("tail", 1, 1), "R-TAB-1: sequence 1 ends in another block"),
    (write_over("table", (1, 5), 1), "R-TAB-1: something stands behind the row of 1"),
    (write_over("table", (0, 5), 1), "R-TAB-2"),
    (write_over("table", (1, 1), 0), "R-TAB-1: a null block"),
    (write_over("table", (1, 1), 8), "R-OWN"),
    (write_over("table", (9, 0), 8), "R-LIFE-6: a free row was not cleared"),
    (lambda cache: cache._tables.names.row_of.update({1: 2}), "R-OWN"),
    (lambda cache: cache._tables.names.name_of.__setitem__(1, 9), "bears another name"),
    (lambda cache: cache._tables.names._home.__setitem__(17, 9), "home 17"),
    (lambda cache: cache._launches.retired.__setitem__(0, 1), "R-LIFE-4: launch 1 has retired and not left"),
    (lambda cache: setattr(cache._launches.in_flight[1], "clock", (0, 0)), "R-LIFE-2: launch 1 is not on its clock"),
    (lambda cache: setattr(cache._launches, "limit", 1), "more launches are in flight"),
]


@pytest.mark.parametrize(("corrupt", "sentence"), CORRUPTIONS)
def test_check_finds_what_was_written_over(corrupt: Callable[[BlockCache], None], sentence: str) -> None:
    cache = busy()
    corrupt(cache)
    with pytest.raises(CorruptState, match=sentence):
        cache.check()


@pytest.mark.parametrize(
    "operation", [lambda cache: cache.add(9, 1), lambda cache: cache.release(1), lambda cache: cache.retire(1)]
)
def test_lost_blocks_are_noticed_by_the_next_operation(operation: Callable[[BlockCache], object]) -> None:
    cache = busy()
    cache._pool.held -= 1
    with pytest.raises(AssertionError, match="R-OWN-5"):
        operation(cache)


def test_the_fingerprint_knows_no_names() -> None:
    """The same life under other names, launch ids and rows, and in other blocks, is the same state."""
    prints = []
    for names, spoilt in (((1, 2, 3), 0), ((30, -2, 7), 3)):
        cache = BlockCache(8, 4, streams=2)
        for _ in range(spoilt):  # other launch ids, rows and epochs
            cache.add(99, 1)
            cache.retire(cache.launch([99]).id)
            cache.release(99)
        first, second, third = names
        cache.add(first, 6)
        launch = cache.launch([first], 6)
        cache.fork(first, second)
        cache.extend([second])
        cache.add(third, 4)
        other = cache.launch([third], 4, stream=1)
        cache.release(third)
        order = {launch.id: 1, other.id: 2}
        blocks = {block: block for block in range(9)}
        renamed = {name: place for place, name in enumerate(names)}
        prints.append(cache.fingerprint(blocks, renamed, order.__getitem__))
    assert prints[0] == prints[1]
    assert hash(prints[0]) == hash(prints[1])


@pytest.mark.parametrize(
    "change",
    [
        lambda cache: cache.add(9, 1),
        lambda cache: cache.retire(1),
        lambda cache: cache.retire(2),
        lambda cache: cache.release(2),
        lambda cache: cache.extend([1]),
        lambda cache: cache.extend([2]),
        lambda cache: cache.launch([2]),
        lambda cache: cache.launch([], stream=1),
        lambda cache: cache._pool.free_ids().__setitem__([0, 1], [6, 5]),
    ],
)
def test_the_fingerprint_knows_whatever_matters(change: Callable[[BlockCache], object]) -> None:
    cache = busy()

    def printed() -> object:
        names = {name: name for name in cache.sequences()}
        return cache.fingerprint({block: block for block in range(9)}, names, lambda launch: launch)

    before = printed()
    change(cache)
    assert printed() != before

"""What is seen of prefix sharing: the journal's lines, who holds what, the fingerprint, and what `check` finds."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pagedkv.impl.cache import BlockCache
from pagedkv.impl.invariants import CorruptState
from pagedkv.impl.prefix_index import PrefixIndex
from pagedkv.impl.retention import Retention
from pagedkv.impl.sharing import Sharing

from sharing_helpers import compute, prompt, publish, serve

LINES = [
    '{"op":"add","seq":3,"n":6,"tokens":[0,1,2,3,4,5],"salt":7,"out":[1,2]}',
    '{"op":"launch","id":1,"rows":[3],"counts":[6]}',
    '{"op":"retire","id":1}',
    '{"op":"publish","seqs":[3],"retention":1,"published":[1]}',
    '{"op":"release","seq":3,"freed":[1,2]}',
    '{"op":"add","seq":4,"n":5,"tokens":[0,1,2,3,9],"salt":7,"hits":[1],"out":[2]}',
    '{"op":"add","seq":5,"n":8,"salt":7,"out":[3,4]}',
    '{"op":"launch","id":2,"rows":[5],"counts":[8]}',
    '{"op":"retire","id":2}',
    '{"op":"publish","seqs":[4,5],"tokens":[[],[0,1,2,3,4]],"merged":[[5,0,3,1]],"freed":[3]}',
    '{"op":"pin","pin":1,"tokens":[0,1,2,3,4],"salt":7,"hits":[1]}',
    '{"op":"release","seq":4,"freed":[2]}',
    '{"op":"release","seq":5,"freed":[4]}',
    '{"op":"unpin","pin":1,"freed":[1]}',
    '{"op":"publish"}',
    '{"op":"clear","freed":[1]}',
    '{"op":"add","seq":6,"n":2,"out":[1]}',
]


def test_each_line_of_the_journal(tmp_path: Path) -> None:
    path = tmp_path / "shared.jsonl"
    with BlockCache(6, 4, journal=path) as cache:
        cache.add(3, prompt(6), 7)
        cache.retire(cache.launch([3], 6).id)
        publish(cache, 3, retention=1)
        cache.release(3)
        cache.add(4, [0, 1, 2, 3, 9], 7)
        cache.add(5, 8, 7)
        cache.retire(cache.launch([5], 8).id)
        cache.publish([4, 5], prompt(5), [0, 5])
        cache.pin(1, prompt(5), 7)
        cache.release(4)
        cache.release(5)
        cache.unpin(1)
        cache.publish([], [], 0)
        cache.clear()
        cache.add(6, 2)
    lines = path.read_text(encoding="ascii").splitlines()[1:-1]
    assert lines == LINES
    assert all(json.loads(line) for line in lines)


# ---- who holds, and the state as one value --------------------------------------------------------------------------


def test_who_holds_a_published_block() -> None:
    cache = BlockCache(8, 4)
    compute(cache, 1, prompt(9))
    publish(cache, 1)
    cache.pin(4, prompt(4))
    assert str(cache.who_holds(1)) == (
        "block 1 is held; sequence 1 holds it as block 0 of its row, since operation 1; held by pin 4; "
        "published as the first of a prefix"
    )
    assert str(cache.who_holds(3)) == "block 3 is held; sequence 1 holds it as block 2 of its row, since operation 1"
    cache.release(1)
    assert str(cache.who_holds(2)) == "block 2 is idle; published behind block 1"
    assert cache.holders().tolist() == [0, 1, 0, 0, 0, 0, 0, 0, 0]
    assert [cache.references(block) for block in (1, 2)] == [1, 0]


def fingerprint(cache: BlockCache) -> object:
    same = {name: name for name in range(cache.blocks + 1)}
    return cache.fingerprint(same, same, lambda launch: launch)


def test_the_fingerprint_tells_the_order_of_eviction_and_not_the_ids() -> None:
    seen = []
    for order, first, salt in (((1, 2), 0, 0), ((2, 1), 0, 0), ((1, 2), 60, 9)):
        cache = BlockCache(8, 2)
        for seq in (1, 2):
            compute(cache, seq, prompt(2, first=first + 10 * seq), salt)
            publish(cache, seq)
        for seq in order:
            cache.release(seq)
        seen.append(fingerprint(cache))
    assert seen[0] != seen[1]
    assert seen[0] == seen[2]


def test_the_fingerprint_tells_classes_and_old_weights() -> None:
    seen = []
    for retention, clears in ((0, 0), (1, 0), (0, 1), (0, 2)):
        cache = BlockCache(8, 2)
        compute(cache, 1, prompt(2))
        publish(cache, 1, retention)
        for _ in range(clears):
            cache.clear()
        seen.append(fingerprint(cache))
    assert len(set(seen)) == 3
    assert seen[2] == seen[3]


# ---- what check finds -----------------------------------------------------------------------------------------------


def busy() -> BlockCache:
    """Return a cache with two prefixes that part behind block 1, one of them held, and idle blocks of two classes."""
    cache = BlockCache(12, 2)
    serve(cache, 1, prompt(6))  # 1 2 3
    compute(cache, 2, np.array([0, 1, 8, 9, 9], np.int32))  # 1 4 5
    publish(cache, 2, retention=2)  # 4
    serve(cache, 3, prompt(2, first=50), salt=1)  # 6
    cache.pin(1, prompt(2))
    cache.check()
    return cache


def state(cache: BlockCache) -> tuple[PrefixIndex, Retention, Sharing]:
    assert cache._sharing
    assert cache._pool.retention
    return cache._sharing.index, cache._pool.retention, cache._sharing


def in_index(field: str, block: int, value: int) -> Callable[[BlockCache], None]:
    def corrupt(cache: BlockCache) -> None:
        getattr(state(cache)[0], field)[block] = value

    return corrupt


def in_retention(field: str, block: int, value: int) -> Callable[[BlockCache], None]:
    def corrupt(cache: BlockCache) -> None:
        getattr(state(cache)[1], field)[block] = value

    return corrupt


def in_knowledge(field: str, row: int, value: int) -> Callable[[BlockCache], None]:
    def corrupt(cache: BlockCache) -> None:
        getattr(state(cache)[2].knowledge, field)[row] = value

    return corrupt


def swap_places(cache: BlockCache) -> None:
    """Let a parent be evicted before its child."""
    entries = state(cache)[1]._logs[0].entries
    places = state(cache)[1]._place
    a, b = (entries.tolist().index(block) for block in (3, 2))
    entries[[a, b]] = 2, 3
    places[[3, 2]] = places[[2, 3]]


CORRUPTIONS: list[tuple[Callable[[BlockCache], None], str]] = [
    (in_index("published", 3, 0), r"R-OWN-5|R-HASH-3"),
    (in_index("published", 9, 1), r"R-HASH-3: 6 published, 5 in the index"),
    (in_index("parents", 3, 1), r"R-HASH-3: block 3 is not at 2|R-HASH-3: block 0 is found"),
    (in_index("depths", 4, 2), r"R-HASH-3: block 4 is not at 2"),
    (in_index("salts", 6, 3), r"R-HASH-3: block 0 is found for block 6"),
    (lambda cache: state(cache)[0].tokens[4].fill(7), r"R-HASH-3: block 0 is found for block 4"),
    (lambda cache: state(cache)[0]._branches.clear(), r"R-HASH-3: 5 published, 4 in the index"),
    (lambda cache: state(cache)[0]._successors.__setitem__(2, 0), r"R-HASH-3: 5 published, 4 in the index"),
    (in_retention("own", 4, 3), r"R-EVICT-2: block 1 is not as dear"),
    (in_retention("own", 4, 7), r"R-EVICT-2: block [14] (is not as dear|has no retention class)"),
    (in_retention("effective", 1, 0), r"R-EVICT-2: block 1 is not as dear as its dearest descendant"),
    (in_retention("_heirs", 1, 2), r"R-EVICT-2: block 1 has \[0, 1, 0\] dear children"),
    (lambda cache: setattr(state(cache)[1], "size", 5), r"R-OWN-5"),
    (lambda cache: state(cache)[1].remove(np.array([6])), r"R-OWN"),
    (swap_places, r"R-EVICT-2: block 2 would be evicted before its child 3"),
    (lambda cache: state(cache)[2].pins.clear(), r"R-OWN-2"),
    (lambda cache: state(cache)[2].pins.update({1: np.array([4])}), r"R-OWN-2|R-EVICT-1"),
    (lambda cache: state(cache)[2].pins.update({1: np.array([2])}), r"R-OWN"),
    (in_knowledge("known", 1, 6), r"R-CAP-2: sequence 2 knows more"),
    (in_knowledge("known", 1, 3), r"R-HASH-4"),
    (in_knowledge("published", 1, 3), r"R-HASH-3: sequence 2 takes blocks for published"),
    (in_knowledge("salts", 1, 3), r"R-HASH-1: sequence 2 holds blocks of another salt"),
    (in_knowledge("published", 1, 9), r"R-HASH-3: sequence 2 has published more blocks than it has"),
]


@pytest.mark.parametrize(("corrupt", "sentence"), CORRUPTIONS)
def test_check_finds_what_was_written_over(corrupt: Callable[[BlockCache], None], sentence: str) -> None:
    cache = busy()
    corrupt(cache)
    with pytest.raises(CorruptState, match=sentence):
        cache.check()

"""The parts of prefix sharing for themselves: hashes, the index under collisions, the order of eviction, events."""

import hashlib
import hmac
import random
from itertools import pairwise

import numpy as np
import pytest
from pagedkv.impl.cache import BlockCache
from pagedkv.impl.events import Cleared, Removed, Stored
from pagedkv.impl.prefix_index import PrefixIndex
from pagedkv.impl.refusals import InvalidArgument
from pagedkv.impl.retention import CLASSES, Retention

from sharing_helpers import compute, prompt, publish, serve

# ---- the index ------------------------------------------------------------------------------------------------------


def test_prefixes_that_part_are_told_apart() -> None:
    cache = BlockCache(64, 4)
    prompts = [prompt(12, first=first) for first in (0, 100, 200, 300)]
    prompts.append(np.concatenate((prompts[0][:8], prompts[1][8:])))  # ends like another one
    prompts.append(np.concatenate((prompts[0][:4], prompts[1][:8])))  # goes on as another one begins
    for seq, tokens in enumerate(prompts, 1):
        serve(cache, seq, tokens)
        cache.check()
    assert cache.published().size == 4 * 3 + 1 + 2
    assert [cache.match(np.append(tokens, 0)) for tokens in prompts] == [12] * 6
    assert cache.match(prompt(13, first=400)) == 0
    assert cache.match(np.concatenate((prompts[0][:4], prompts[1][4:], [0]))) == 4
    assert cache.match(np.concatenate((prompts[0][:8], prompts[2][8:], [0]))) == 8
    cache.add(9, 62 * 4)  # evicts all but two
    cache.check()
    assert [cache.match(np.append(tokens, 0)) for tokens in prompts] == [4, 0, 0, 0, 4, 8]


def test_blocks_that_were_published_together_need_not_stay_together() -> None:
    cache = BlockCache(10, 1)
    serve(cache, 1, prompt(8))
    cache.add(2, 6)  # evicts 4 of the 8
    cache.release(2)
    assert cache.match(prompt(9)) == 4
    compute(cache, 3, np.concatenate((prompt(4), prompt(2, first=50))))
    publish(cache, 3)
    assert cache.match(prompt(9)) == 4
    assert cache.match(np.array([0, 1, 2, 3, 50, 51, 9])) == 6
    for token in (70, 71):  # two more, one by one
        cache.extend([3])
        cache.retire(cache.launch([3]).id)
        cache.publish([3], [token])
    assert cache.match(np.array([0, 1, 2, 3, 50, 51, 70, 71, 9])) == 8
    assert cache.match(np.array([0, 1, 2, 3, 50, 51, 70, 72, 9])) == 7
    cache.check()


def test_children_of_one_parent_in_one_call_are_published_and_merged_for_what_they_are() -> None:
    cache = BlockCache(64, 4)
    serve(cache, 9, prompt(4))
    for seq in (1, 2, 3, 4):
        cache.add(seq, [*range(4), 0])
        cache.extend([seq], 3)
    cache.retire(cache.launch([1, 2, 3, 4], 4).id)
    cache.publish([1, 2, 3, 4], [5, 5, 5, 6, 6, 6, 5, 5, 5, 6, 6, 6], 3)
    assert [cache.block_table(seq)[1] for seq in (3, 4)] == [cache.block_table(seq)[1] for seq in (1, 2)]
    assert cache.published().size == 3
    cache.check()


@pytest.mark.parametrize("seed", range(4))
def test_look_ups_are_those_of_a_dictionary_of_all_prefixes(seed: int) -> None:
    rng = random.Random(seed)
    index, right = PrefixIndex(200, 2), dict[tuple[int, ...], int]()
    unused = list(range(1, 201))
    for _ in range(300):
        tokens = [rng.choice([0, 0, 0, 1]) for _ in range(2 * rng.randint(1, 12))]
        salt = rng.choice([0, 5])
        prefixes = [(salt, *tokens[:end]) for end in range(2, len(tokens) + 1, 2)]
        expected = [right[prefix] for prefix in prefixes if prefix in right]
        pages = np.array(tokens, np.int32).reshape(-1, 2)
        assert index.find(pages, 0, salt).tolist() == expected
        new = prefixes[len(expected) :][: len(unused)]
        if new and rng.random() < 0.7:
            ids = np.array([unused.pop() for _ in new])
            index.tokens[ids] = pages[len(expected) :][: ids.size]
            parent = expected[-1] if expected else 0
            if expected and ids.size == 1 and index.childless(np.array([parent])):
                index.insert_leaves(ids, np.array([parent]))
            else:
                index.insert_chain(ids, parent, salt)
            right |= dict(zip(new, ids.tolist(), strict=True))
        else:  # some leaf goes, and its parent with it, if that is a leaf then
            leaves = [prefix for prefix in right if not any(longer[:-2] == prefix for longer in right)]
            gone = [rng.choice(leaves)] if leaves else []
            if gone and gone[0][:-2] in right and sum(longer[:-2] == gone[0][:-2] for longer in right) == 1:
                gone.append(gone[0][:-2])
            index.remove(np.array([right[prefix] for prefix in gone], np.intp))
            unused += [right.pop(prefix) for prefix in gone]
        assert sorted(right.values()) == index.published_ids().tolist()
        assert index.entries() == len(right)


# ---- the order of eviction ------------------------------------------------------------------------------------------


class Oracle:
    """What is evicted next, by looking at everything."""

    def __init__(self) -> None:
        self.parents: dict[int, int] = {}
        self.classes: dict[int, int] = {}
        self.since: dict[int, int] = {}  # of evictable blocks

    def next(self) -> list[int]:
        """Return the leaves that may go now."""
        leaves = [block for block in self.since if block not in self.parents.values()]
        lowest = min((self.classes[leaf], self.since[leaf]) for leaf in leaves)
        return [leaf for leaf in leaves if (self.classes[leaf], self.since[leaf]) == lowest]


@pytest.mark.parametrize("seed", range(8))
def test_the_leaf_that_goes_is_the_least_recently_used_of_the_lowest_class(seed: int) -> None:
    rng, oracle = random.Random(seed), Oracle()
    parents = np.zeros(65, np.intp)
    retention = Retention(parents)
    unused, chains = list(range(1, 65)), dict[int, list[int]]()  # a leaf -> the chain that leads to it
    held: list[list[int]] = []
    for tick in range(400):
        if unused and rng.random() < 0.4:  # a sequence goes on from a prefix, and publishes some more
            base = rng.choice([[], *chains.values()])
            base = base[: rng.randint(0, len(base))]
            back = [block for block in base if block in oracle.since]
            retention.remove(np.array(back, np.intp))
            for block in back:
                del oracle.since[block]
            new = [unused.pop() for _ in range(min(len(unused), rng.randint(1, 4)))]
            level = rng.choice([0, 0, 1, 2, 3])
            for parent, block in pairwise([*base[-1:], *new] if base else [0, *new]):
                parents[block] = oracle.parents[block] = parent
                oracle.classes[block] = level
            retention.publish(np.array(new, np.intp), level)
            held.append([*base, *new])
            chains[new[-1]] = [*base, *new]
        elif held and rng.random() < 0.6:  # one leaves: what nobody else holds is evictable, the deepest first
            chain = held.pop(rng.randrange(len(held)))
            free = [block for block in reversed(chain) if not any(block in other for other in held)]
            retention.append(np.array(free, np.intp))
            oracle.since |= dict.fromkeys(free, tick)
        elif oracle.since:
            for block in retention.pop(rng.randint(1, len(oracle.since))).tolist():
                assert block in oracle.next()
                for table in (oracle.parents, oracle.classes, oracle.since):
                    del table[block]
                unused.append(block)
                chains = {leaf: chain for leaf, chain in chains.items() if block not in chain}
        assert retention.size == len(oracle.since)
        assert sorted(retention.order()) == sorted(oracle.since)


def test_a_queue_that_is_full_of_dead_entries_is_made_anew() -> None:
    retention = Retention(np.zeros(200, np.intp))
    ids = np.arange(1, 200)
    retention.append(ids)
    for _ in range(20):
        retention.remove(ids[50:60])
        retention.append(ids[50:60])
    assert retention._logs[0].entries.size < 1000
    assert retention.order() == [*range(1, 51), *range(61, 200), *range(51, 61)]
    assert retention.pop(60).tolist() == [*range(1, 51), *range(61, 71)]
    assert retention.pop(139).tolist() == [*range(71, 200), *range(51, 61)]
    assert retention.order() == []


def test_an_evicted_chain_leaves_its_ancestors_as_dear_as_the_rest_of_them() -> None:
    parents = np.array([0, 0, 1, 2, 2])
    retention = Retention(parents)
    for block, level in ((1, 0), (2, 1), (3, 3), (4, 2)):
        retention.publish(np.array([block]), level)
    assert retention.effective[1:].tolist() == [3, 3, 3, 2]
    retention.append(np.array([3, 4, 2, 1]))
    popped = []
    for classes in ([3, 3, 3], [1, 1], [0], []):
        popped += retention.pop(1).tolist()
        left = [block for block in (1, 2, 3, 4) if block not in popped]
        assert retention.effective[left].tolist() == classes
    assert popped == [4, 3, 2, 1]
    assert [retention.heirs(block) for block in (1, 2)] == [[0] * (CLASSES - 1)] * 2


# ---- events ---------------------------------------------------------------------------------------------------------


def digest_of(parent: bytes, tokens: list[int]) -> bytes:
    """Return a block's digest, by the page that documents it."""
    return hashlib.sha256(parent + b"".join(token.to_bytes(4, "little") for token in tokens)).digest()


def test_digests_are_those_that_routers_compute() -> None:
    cache = BlockCache(2, 4, event_tokens=True)
    serve(cache, 1, prompt(8))
    root = hashlib.sha256(b"pagedkv" + bytes(8)).digest()
    first = digest_of(root, [0, 1, 2, 3])
    second = digest_of(first, [4, 5, 6, 7])
    assert cache.events() == [Stored(first, root, (0, 1, 2, 3)), Stored(second, first, (4, 5, 6, 7))]
    assert cache.events() == []
    cache.add(2, 8)
    assert cache.events() == [Removed(second), Removed(first)]
    cache.release(2)
    cache.clear()
    serve(cache, 1, prompt(4))
    root = hashlib.sha256(b"pagedkv" + (1).to_bytes(8, "little")).digest()
    assert cache.events() == [Cleared(1), Stored(digest_of(root, [0, 1, 2, 3]), root, (0, 1, 2, 3))]


def test_events_of_a_salt_are_no_use_to_others() -> None:
    caches = [BlockCache(8, 4, events=True) for _ in range(2)]
    roots = []
    for cache in caches:
        for salt in (5, 6):
            serve(cache, salt, prompt(8), salt)
        events = [event for event in cache.events() if isinstance(event, Stored)]
        assert len({event.digest for event in events}) == 4
        assert all(event.tokens is None for event in events)
        roots += [events[0].parent, events[2].parent]
        assert cache._event_log
        assert roots[-2] == hmac.digest(cache._event_log._secret, (5).to_bytes(8, "little") + bytes(8), "sha256")
    assert len(set(roots)) == 4  # not the same in two caches, or for two tenants


def test_events_replayed_are_the_index() -> None:
    rng = random.Random(3)
    cache = BlockCache(24, 2, events=True)
    seen: set[bytes] = set()
    for step in range(300):
        tokens = np.array([rng.choice([1, 1, 2]) for _ in range(rng.randint(1, 12))], np.int32)
        if rng.random() < 0.05:
            cache.clear()
        compute(cache, step, tokens, salt=rng.choice([0, 9]))
        publish(cache, step, rng.choice([0, 1]))
        cache.release(step)
        for event in cache.events():
            if isinstance(event, Stored):
                assert event.digest not in seen
                seen.add(event.digest)
            elif isinstance(event, Removed):
                seen.remove(event.digest)
            else:
                seen.clear()
        assert cache._event_log
        assert set(cache._event_log.digests().values()) == seen
        assert sorted(cache._event_log.digests()) == cache.published().tolist()


def test_events_that_nobody_asked_for_are_none() -> None:
    with pytest.raises(InvalidArgument, match="events=True"):
        BlockCache(2, 2).events()

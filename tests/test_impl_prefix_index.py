"""The parts of prefix sharing for themselves: hashes, the index under collisions, the order of eviction, events."""

import hashlib
import hmac
import random
from itertools import pairwise

import numpy as np
import pytest
from pagedkv.impl.cache import BlockCache
from pagedkv.impl.events import Cleared, Removed, Stored
from pagedkv.impl.prefix_hash import PrefixHash
from pagedkv.impl.prefix_index import PrefixIndex
from pagedkv.impl.refusals import InvalidArgument
from pagedkv.impl.retention import CLASSES, Retention

from sharing_helpers import compute, prompt, publish, serve

WORD = 2**64


def signed(number: int) -> int:
    """Return a number modulo 2**64, as a signed integer."""
    return (number + WORD // 2) % WORD - WORD // 2


# ---- hashes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block_size", [1, 2, 3, 4])
def test_the_hash_is_the_sum_that_its_module_states(block_size: int) -> None:
    prefix_hash = PrefixHash(block_size)
    pages = np.random.default_rng(1).integers(0, 2**31, (70, block_size), dtype=np.int32)
    words = (
        pages.tolist()
        if block_size % 2
        else [[low + (high << 32) for low, high in [*pairwise(page)][::2]] for page in pages.tolist()]
    )
    hashes, keys = prefix_hash.chain(pages, 5).tolist(), prefix_hash._keys.tolist()
    total = 5
    for depth, word in enumerate(words):
        total += prefix_hash._multipliers.item(depth) * sum(key * part for key, part in zip(keys, word, strict=True))
        assert hashes[depth] == signed(total + prefix_hash._addends.item(depth))


def test_hashes_go_on_where_others_end() -> None:
    prefix_hash = PrefixHash(4)
    pages = np.random.default_rng(2).integers(0, 2**31, (200, 4), dtype=np.int32)
    root = prefix_hash.root(-(2**63))
    whole = prefix_hash.chain(pages, root)
    assert prefix_hash.chain(pages[150:], whole.item(149), 150).tolist() == whole[150:].tolist()
    depths = np.array([0, 1, 2, 90, 91, 199])
    before = np.array([root, whole[89], whole[198]])
    several = prefix_hash.chains(pages[depths], depths, before, np.array([0, 3, 5]))
    assert several.tolist() == whole[depths].tolist()


def test_keys_are_secret() -> None:
    assert (
        PrefixHash(4).chain(prompt(4).reshape(1, 4), 0).item() != PrefixHash(4).chain(prompt(4).reshape(1, 4), 0).item()
    )


def weak(index: PrefixIndex) -> None:
    """Let all prefixes of a salt have one hash."""
    index.hash._keys, index.hash._addends = np.zeros_like(index.hash._keys), np.zeros_like(index.hash._addends)


def test_prefixes_of_one_hash_are_told_apart() -> None:
    cache = BlockCache(64, 4)
    cache.add(0, [1])
    assert cache._sharing
    weak(cache._sharing.index)
    prompts = [prompt(12, first=first) for first in (0, 100, 200, 300)]
    prompts.append(np.concatenate((prompts[0][:8], prompts[1][8:])))
    for seq, tokens in enumerate(prompts, 1):
        serve(cache, seq, tokens)
        cache.check()
    assert cache.published().size == 4 * 3 + 1
    assert [cache.match(np.append(tokens, 0)) for tokens in prompts] == [12] * 5
    assert cache.match(prompt(13, first=400)) == 0
    assert cache.match(np.concatenate((prompts[0][:4], prompts[1][4:], [0]))) == 4
    assert sum(map(len, cache._sharing.index._more.values())) == 4 * 3 + 1 - 2  # one is at home, one away
    cache.add(9, 62 * 4)  # evicts all but one
    cache.check()
    assert cache._sharing.index._more == {}
    assert cache._sharing.index.entries() == 1


def test_two_of_one_hash_in_one_call_are_published_and_merged_for_what_they_are() -> None:
    cache = BlockCache(64, 4)
    cache.add(0, [1])
    assert cache._sharing
    weak(cache._sharing.index)
    for seq in (1, 2, 3, 4):
        cache.add(seq, 8)
    cache.retire(cache.launch([1, 2, 3, 4], 8).id)
    told = np.concatenate((prompt(8), prompt(8, first=50), prompt(8), prompt(8, first=50)))
    publication = cache.publish([1, 2, 3, 4], told, 8)
    assert publication.merges.seqs.tolist() == [3, 3, 4, 4]
    assert cache.block_table(4).tolist() == cache.block_table(2).tolist()
    assert cache.block_table(3).tolist() == cache.block_table(1).tolist()
    cache.check()


def test_blocks_whose_home_is_anothers_are_found() -> None:
    cache = BlockCache(64, 1)
    serve(cache, 1, prompt(1))
    assert cache._sharing
    index = cache._sharing.index
    index._mask, index._home = 3, np.zeros(4, np.int32)  # four homes for 64 blocks
    cache.clear()
    serve(cache, 1, prompt(60))
    assert len(index._others) >= 56
    cache.check()
    assert cache.match(prompt(61)) == 60
    cache.add(2, 34)
    assert cache.match(prompt(61)) == 30
    cache.check()


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

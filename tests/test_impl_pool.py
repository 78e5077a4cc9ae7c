"""The pool on its own: memory, size, and short ways that must give what the long ways give."""

import random
from typing import Any

import numpy as np
import pytest
from pagedkv.impl import extension
from pagedkv.impl.block_pool import BlockPool
from pagedkv.impl.cache import BlockCache
from pagedkv.impl.launches import LaunchLog
from pagedkv.impl.refusals import Refused


@pytest.mark.parametrize("streams", [1, 2, 5])
def test_metadata_is_16_bytes_a_block_and_4_a_stream(streams: int) -> None:
    blocks = 10_000
    pool = BlockPool(blocks, LaunchLog(streams, 8))
    fields = [getattr(part, name) for part in (pool, pool.fences) for name in type(part).__slots__]
    sizes = [field.nbytes for field in fields if isinstance(field, np.ndarray)]
    assert len(sizes) == 4
    assert sum(sizes) <= (16 + 4 * streams) * (blocks + 1)


def test_a_pool_of_any_size_is_made_at_once_and_hands_out_blocks_in_order() -> None:
    pool = BlockPool(2**27, LaunchLog(1, 8))  # 2 GB of metadata, if it were all written
    assert pool.take(3).tolist() == [1, 2, 3]
    assert pool.take(1).tolist() == [4]
    pool.give_back(np.array([2, 3]))
    assert pool.take(5).tolist() == [2, 3, 5, 6, 7]
    assert pool.take(5).tolist() == [8, 9, 10, 11, 12]


class LongWays(BlockCache):
    """The cache without its short ways: every release and every extension goes the general way."""

    def release(self, seq: int) -> Any:
        """Release as if something were shared, and forget that again."""
        if seq not in self.sequences():
            return super().release(seq)
        self._pool.copy_readers[0] = 1  # block 0 is in no row
        try:
            return super().release(seq)
        finally:
            del self._pool.copy_readers[0]


def random_calls(lots: random.Random, cache: BlockCache) -> tuple[str, list[Any]]:
    """Draw a call: names of 1 to 6, of whom about half are live."""
    live = cache.sequences()
    batch = lots.sample(live, lots.randint(0, len(live))) if lots.random() < 0.9 else [lots.randint(1, 6), 1]
    calls: list[tuple[str, list[Any]]] = [
        ("add", [lots.randint(1, 6), lots.randint(1, 9)]),
        ("fork", [lots.choice(live or [1]), lots.randint(1, 6)]),
        ("extend", [batch, 1]),
        ("extend", [batch, 1]),
        ("extend", [batch, [lots.randint(1, 4) for _ in batch]]),
        ("launch", [batch, 1, lots.randint(0, 1)]),
        ("launch", [[seq for seq in live if cache.lengths(seq).allocated > cache.lengths(seq).launched], 1, 0]),
        ("retire", [lots.choice([*cache.in_flight(), 1])]),
        ("release", [lots.randint(1, 6)]),
    ]
    return lots.choice(calls)


def outcome(cache: BlockCache, call: str, arguments: list[Any]) -> tuple[Any, ...]:
    """Return what a call gave, and what can be seen after it."""
    try:
        given = repr(getattr(cache, call)(*arguments))
    except Refused as refusal:
        given = repr(refusal)
    names = {seq: seq for seq in cache.sequences()}
    after = cache.fingerprint({block: block for block in range(25)}, names, lambda launch: launch)
    return given, after, cache.table.tolist(), cache.counts, cache.free_order()


@pytest.mark.parametrize("seed", range(8))
def test_short_ways_give_what_the_long_ways_give(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lots = random.Random(seed)
    block_size = lots.choice([2, 3])
    short, long = (kind(24, block_size, streams=2, launches_in_flight=4) for kind in (BlockCache, LongWays))
    for _ in range(200):
        call, arguments = random_calls(lots, short)
        given = outcome(short, call, arguments)
        with monkeypatch.context() as patched:
            patched.setattr(extension, "_extend_by_one", lambda *_: None)
            assert outcome(long, call, arguments) == given
        short.check()
        long.check()

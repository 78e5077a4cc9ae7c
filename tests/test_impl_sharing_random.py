"""Prefix sharing under random operations in small pools: after each one, `check()` walks everything.

Token ids are drawn from two, so that prompts meet all the time; a sequence's ids follow from where it began, so that
equal positions of forks are told equal ids.
"""

import random
from dataclasses import dataclass

import numpy as np
import pytest
from pagedkv.impl.cache import BlockCache
from pagedkv.impl.refusals import Refused

STEPS = 1500


@dataclass
class Life:
    """What the test knows of a sequence: the ids it holds KV of, told or not."""

    ids: list[int]
    known: int


class World:
    """A cache, and random operations on it that a caller may well ask for."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.streams = self.random.choice([1, 1, 2])
        self.size = self.random.choice([1, 2, 3, 4])
        self.cache = BlockCache(
            self.random.randint(2, 12),
            self.size,
            streams=self.streams,
            launches_in_flight=3,
            rows=2,
            max_blocks_per_row=2,
        )
        self.cache.add(0, [1])
        self.cache.release(0)
        self.lives: dict[int, Life] = {}

    def ids(self, count: int) -> list[int]:
        """Return random ids, of which the first are mostly 1."""
        return [1 if self.random.random() < 0.7 else 2 for _ in range(count)]

    def any(self) -> int:
        return self.random.choice([*self.lives, 99])

    def add(self) -> None:
        seq, ids, salt = self.random.randint(0, 5), self.ids(self.random.randint(0, 4 * self.size)), self.salt()
        if self.random.random() < 0.3:
            self.cache.add(seq, len(ids), salt)
            self.lives[seq] = Life(ids, 0)
        else:
            need, available = self.cache.room(ids, salt)
            match = self.cache.match(ids, salt)
            added = self.cache.add(seq, ids, salt)
            assert need <= available
            assert added.hits * self.size == match
            self.lives[seq] = Life(ids, len(ids))

    def salt(self) -> int:
        return self.random.choice([0, 0, 0, 7])

    def extend(self) -> None:
        seqs = self.random.sample([*self.lives], self.random.randint(0, len(self.lives)))
        counts = [self.random.randint(1, 3) for _ in seqs]
        self.cache.extend(seqs, counts)
        for seq, count in zip(seqs, counts, strict=True):
            self.lives[seq].ids += self.ids(count)

    def fork(self) -> None:
        parent, child = self.any(), self.random.randint(0, 5)
        self.cache.fork(parent, child)
        self.lives[child] = Life(self.lives[parent].ids.copy(), self.lives[parent].known)

    def launch(self) -> None:
        lengths = {seq: self.cache.lengths(seq) for seq in self.lives}
        planned = {seq: length.allocated - length.launched for seq, length in lengths.items()}
        seqs = [seq for seq in self.lives if planned[seq] and self.random.random() < 0.8]
        self.cache.launch(
            seqs, [self.random.randint(1, planned[seq]) for seq in seqs], self.random.randrange(self.streams)
        )

    def retire(self) -> None:
        self.cache.retire(self.random.choice([*self.cache.in_flight(), 1]))

    def release(self) -> None:
        seq = self.any()
        self.cache.release(seq)
        del self.lives[seq]

    def publish(self) -> None:
        seqs = self.random.sample([*self.lives], self.random.randint(0, len(self.lives)))
        counts = [self.random.randint(0, len(self.lives[seq].ids) - self.lives[seq].known) for seq in seqs]
        told: list[int] = []
        for seq, count in zip(seqs, counts, strict=True):
            life = self.lives[seq]
            told += life.ids[life.known : life.known + count]
        publication = self.cache.publish(seqs, told, counts, self.random.choice([0, 0, 1, 3]))
        assert all(self.cache.block_state(block) == "held" for block in publication.blocks.tolist())
        for seq, count in zip(seqs, counts, strict=True):
            self.lives[seq].known += count

    def pin(self) -> None:
        self.cache.pin(self.random.randint(0, 2), self.ids(2 * self.size), self.salt())

    def unpin(self) -> None:
        self.cache.unpin(self.random.randint(0, 2))

    def clear(self) -> None:
        if self.random.random() < 0.1:
            self.cache.clear()

    def step(self) -> str:
        """Make one operation; return its name and whether it was refused."""
        operations = ["add", "extend", "fork", "launch", "launch", "retire", "release", "publish", "publish"]
        operation = self.random.choice([*operations, "retire", "pin", "unpin", "clear"])
        before = self.cache.counts
        try:
            getattr(self, operation)()
        except Refused as refusal:
            assert self.cache.counts == before
            operation += f" refused: {type(refusal).__name__}"
        self.cache.check()
        for seq, life in self.lives.items():
            assert self.cache.lengths(seq).known == life.known
            assert self.told(seq) == life.ids[: life.known]
        return operation

    def told(self, seq: int) -> list[int]:
        """Return the ids that stand in a sequence's blocks, as far as it knows them."""
        index = self.cache._pool.index
        assert index
        ids: list[int] = index.tokens[self.cache.block_table(seq)].reshape(-1).tolist()
        return ids[: self.cache.lengths(seq).known]


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_asked_for_all_invariants_hold(seed: int) -> None:
    world = World(seed)
    for _ in range(STEPS):
        world.step()
    for seq in [*world.lives]:
        world.cache.release(seq)
    for handle in range(3):
        if handle in world.cache.pins():
            world.cache.unpin(handle)
    for launch in world.cache.in_flight():
        world.cache.retire(launch)
    world.cache.check()
    counts = world.cache.counts
    assert counts.free + counts.idle == counts.blocks
    assert world.cache.available == counts.blocks


@pytest.mark.parametrize("seed", range(4))
def test_rows_told_together_end_as_rows_told_one_by_one(seed: int) -> None:
    """Forty rows decode; a clone publishes row by row what the cache publishes in one call."""
    rng = np.random.default_rng(seed)
    cache = BlockCache(4000, 2, launches_in_flight=3)
    for seq in range(40):
        cache.add(seq, rng.integers(0, 2, rng.integers(1, 9), dtype=np.int32), int(rng.integers(0, 2)))
    for _ in range(30):
        live = cache.sequences()
        planned = [seq for seq in live if cache.lengths(seq).allocated > cache.lengths(seq).launched]
        counts = [cache.lengths(seq).allocated - cache.lengths(seq).launched for seq in planned]
        launch = cache.launch(planned, counts)
        cache.retire(launch.id if rng.random() < 0.6 else cache.in_flight()[0])
        unknown = [cache.lengths(seq).allocated - cache.lengths(seq).known for seq in live]
        told = [rng.integers(0, 2, count, dtype=np.int32) for count in unknown]
        twin = cache.clone()
        together = cache.publish(live, np.concatenate(told), unknown, 1)
        alone = [twin.publish([seq], ids, ids.size, 1) for seq, ids in zip(live, told, strict=True)]
        assert together.blocks.tolist() == [block for each in alone for block in each.blocks.tolist()]
        assert together.merges.new.tolist() == [block for each in alone for block in each.merges.new.tolist()]
        assert sorted(together.freed.tolist()) == sorted(block for each in alone for block in each.freed.tolist())
        assert [cache.block_table(seq).tolist() for seq in live] == [twin.block_table(seq).tolist() for seq in live]
        assert cache.published().tolist() == twin.published().tolist()
        cache.check()
        twin.check()
        if rng.random() < 0.3:
            cache.release(live[0])
            cache.fork(live[1], live[0])
        cache.extend([seq for seq in cache.sequences() if rng.random() < 0.9])

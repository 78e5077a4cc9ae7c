"""The loop at its worst: a small pool, two steps ahead, a device that is late, and all that can happen, at random.

One world is one seed: sizes and limits are drawn, then turns. In a turn requests may come, be cancelled or preempted;
then a step is planned, or the oldest collected, or both. In some worlds launches fail half-way. Every block that
becomes free is poisoned at that moment: K and V of all layers become NaN, whatever the device is doing. If it still
reads the block, an output row is NaN; if it still writes it, another sequence's row will be wrong; and every output row
is compared with the dense oracle.

A world ends when all its requests have. Then every block must be free or idle, no buffer in use, and the cache's own
invariants must hold.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import SupportsIndex

import numpy as np
import torch
from pagedkv.bench.held_back import HeldBack
from pagedkv.bench.lookup_model import LookupModel, Recorder
from pagedkv.bench.stress_ledger import Ledger, Tally
from pagedkv.impl.arguments import Integers
from pagedkv.impl.arrays import Int32Array
from pagedkv.impl.cache import BlockCache
from pagedkv.impl.device import Device
from pagedkv.impl.loop import Loop
from pagedkv.impl.refusals import Refused
from pagedkv.impl.requests import Limits, Request
from pagedkv.impl.results import Added, Extension, Publication
from pagedkv.impl.scheduler import Scheduler
from pagedkv.impl.storage import KvShape, Storage

TURNS = 120  # in which requests come; then the world runs empty
VOCABULARY = 41
HEAD_SIZE = 16
LONGEST = 64  # positions


class PoisonedCache(BlockCache):
    """A cache that poisons every block at the moment it is free, or is taken from the prefix index."""

    __slots__ = ("poison",)

    poison: Callable[[Int32Array], None]

    def release(self, seq: int) -> Int32Array:
        """Release, and poison what is free."""
        return self._freed(super().release(seq))

    def retire(self, launch_id: int) -> Int32Array:
        """Retire, and poison what is free."""
        return self._freed(super().retire(launch_id))

    def unpin(self, handle: int) -> Int32Array:
        """Unpin, and poison what is free."""
        return self._freed(super().unpin(handle))

    def clear(self) -> Int32Array:
        """Forget what is published, and poison what is free."""
        return self._freed(super().clear())

    def publish(
        self, seqs: Integers, tokens: Integers, counts: SupportsIndex | Integers = 1, retention: int = 0
    ) -> Publication:
        """Publish, and poison what merges have let go."""
        publication = super().publish(seqs, tokens, counts, retention)
        self._freed(publication.freed)
        return publication

    def add(self, seq: int, tokens: SupportsIndex | Integers, salt: int = 0) -> Added:
        """Add, and poison the blocks taken: what was evicted for it was not poisoned before."""
        added = super().add(seq, tokens, salt)
        self._poison(added.blocks[added.hits :])
        return added

    def extend(self, seqs: Integers, counts: SupportsIndex | Integers = 1) -> Extension:
        """Extend, and poison the blocks taken."""
        extension = super().extend(seqs, counts)
        self._poison(extension.blocks)
        return extension

    def _freed(self, blocks: Int32Array) -> Int32Array:
        """Poison those of the blocks that are free; others became evictable, and must stay whole."""
        self._poison(np.array([block for block in blocks.tolist() if self.block_state(block) == "free"], np.int32))
        return blocks

    def _poison(self, blocks: Int32Array) -> None:
        if blocks.size:
            self.poison(blocks)


class Poisoner:
    """Writes NaN over blocks of a pool, now, beside all that the device does."""

    def __init__(self, storage: Storage) -> None:
        self._pool = storage.pool
        on_gpu = self._pool.device.type == "cuda"
        self._stream = torch.cuda.Stream(self._pool.device) if on_gpu else None  # type: ignore[no-untyped-call]  # torch's own
        self._pool[:, :, 1:] = torch.nan

    def __call__(self, blocks: Int32Array) -> None:
        """Poison K and V of all layers; return when it is done."""
        with torch.cuda.stream(self._stream):
            self._pool[:, :, torch.from_numpy(blocks).long().to(self._pool.device)] = torch.nan
        if self._stream is not None:
            self._stream.synchronize()


@dataclass(frozen=True, slots=True)
class World:
    """What one seed draws."""

    seed: int
    blocks: int
    block_size: int
    shape: KvShape
    limits: Limits
    share_held_back: float
    share_failed: float

    @classmethod
    def draw(cls, seed: int) -> "World":
        """Draw a world: small enough that everything collides."""
        chance = random.Random(seed)
        shape = KvShape(chance.choice((1, 2)), chance.choice((1, 2)), HEAD_SIZE, torch.float32)
        limits = Limits(
            max_tokens_per_step=chance.randint(4, 32),
            max_running=chance.randint(2, 8),
            steps_ahead=chance.choice((1, 2, 2, 2)),
            watermark_blocks=chance.choice((0, 0, 1, 2)),
            policy=chance.choice(("fcfs", "priority")),
            prefix_cache=chance.random() < 0.8,
        )
        blocks, block_size = chance.randint(6, 40), chance.randint(1, 5)
        return cls(
            seed, blocks, block_size, shape, limits,
            share_held_back=chance.choice((0.5, 0.9, 1.0)), share_failed=chance.choice((0.0, 0.0, 0.05)),
        )  # fmt: skip


def run_world(world: World, device: Device) -> Tally:
    """Run a world to its end on a device, which is closed then. Raises `WrongRow` where an output row is wrong."""
    cache = PoisonedCache(world.blocks, world.block_size, rows=4, max_blocks_per_row=2)
    storage = Storage(world.shape, world.blocks, world.block_size, device=device.device)
    cache.poison = Poisoner(storage)
    q_heads = 2 * world.shape.kv_heads
    reference = LookupModel.make(world.shape, q_heads, VOCABULARY, LONGEST)
    recorder = Recorder(reference.to(device.device), world.share_failed, world.seed)
    late = HeldBack(device, world.seed, world.share_held_back)
    ledger = Ledger(reference, f"world {world.seed}")
    with _one_thread(), Loop(Scheduler(cache, world.limits), storage, recorder, late) as loop:
        driver = _Driver(world, loop, ledger, recorder)
        for _ in range(TURNS):
            driver.disturb()
            driver.turn()
        driver.run_empty()
    assert cache.counts.free + cache.counts.idle == world.blocks, "R-OWN-4: blocks are lost"
    assert loop.worker.staging.in_use == 0, "staging buffers are lost"
    cache.check()
    return ledger.tally


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch compute on the thread that calls it: on tensors this small more threads wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class _Driver:
    """Does to a loop what its users might."""

    def __init__(self, world: World, loop: Loop, ledger: Ledger, recorder: Recorder) -> None:
        self._world, self._loop, self._ledger, self._recorder = world, loop, ledger, recorder
        self._chance = random.Random(world.seed + 1)
        self._next_id = 0
        self._pinned = False
        self._beginning = self._tokens(LONGEST)  # many prompts begin alike

    def disturb(self) -> None:
        """Let requests come, be cancelled, be preempted."""
        chance, scheduler = self._chance, self._loop.scheduler
        if len(self._ledger.live) < 10 and chance.random() < 0.5:
            self._submit()
        if self._ledger.live and chance.random() < 0.06:
            request = chance.choice(list(self._ledger.live))
            scheduler.cancel(request)
            self._ledger.gone(request)
            self._ledger.tally.cancellations += 1
        running = [request for request in self._ledger.live if scheduler.request(request).running]
        if running and chance.random() < 0.12:
            request = chance.choice(running)
            scheduler.preempt(request)
            self._ledger.preempted(request)
        self._pin_and_clear(scheduler.cache)

    def _pin_and_clear(self, cache: BlockCache) -> None:
        """Let prefixes be pinned and unpinned, and all that is published be forgotten."""
        chance = self._chance
        if chance.random() < 0.05 and not self._pinned:
            try:
                cache.pin(0, self._beginning[: chance.randint(1, LONGEST)])
            except Refused:  # nothing of it is published
                return
            self._pinned = True
        elif chance.random() < 0.2 and self._pinned:
            cache.unpin(0)
            self._pinned = False
        if chance.random() < 0.01:
            cache.clear()
            self._pinned = False

    def turn(self) -> None:
        """Plan a step, or collect one, or both."""
        if self._chance.random() < 0.75:
            self._plan()
        if self._chance.random() < 0.6:
            self._collect()

    def run_empty(self) -> None:
        """Go on until every request has finished."""
        if self._pinned:
            self._loop.scheduler.cache.unpin(0)
        while self._ledger.live or self._loop.in_flight:
            self._plan()
            self._collect()

    def _plan(self) -> None:
        plan, bytes_uploaded = self._loop.plan()
        self._ledger.planned(plan, bytes_uploaded)

    def _collect(self) -> None:
        collected = self._loop.collect()
        if collected is not None:
            record = None if collected.error is not None else self._recorder.records.popleft()
            self._ledger.collected(collected, record)

    def _submit(self) -> None:
        chance = self._chance
        length = chance.randint(1, 24)
        alike = chance.randint(0, length)
        outputs = chance.randint(1, LONGEST - length if chance.random() < 0.1 else 12)
        prompt = self._beginning[:alike] + self._tokens(length - alike)
        samples, priority, salt = chance.choice((1, 1, 2, 3)), chance.randint(0, 3), chance.choice((0, 0, 0, 7))
        request = Request(self._next_id, prompt, outputs, samples, priority, salt)
        self._next_id += 1
        try:
            names = self._loop.submit(request)
        except Refused:  # more than the whole pool, or than may run
            return
        self._ledger.submitted(request, names)

    def _tokens(self, count: int) -> list[int]:
        return [self._chance.randrange(VOCABULARY) for _ in range(count)]

"""What `peer_speeds` times of a manager: the same work for each side, in the same order, with the same token ids.

A case is made for one side, with what it needs in the pool, and `turn` does the work once and returns the seconds that
the timed part of it took. Everything is decided by the arguments, so that each side gets the same.

Pools are as large as the case needs, so nothing is evicted where eviction is not the case.
"""

import itertools
import time
from collections.abc import Callable, Iterator

import numpy as np
from pagedkv.bench.peer_sides import BLOCK_SIZE, Side
from pagedkv.impl.arrays import Int32Array
from pagedkv.spec.arithmetic import blocks_needed

CONTEXT = 512  # tokens of a prompt that decodes, and 0 to B - 1 more: each step one sequence in B takes a block
SPARE = 2  # blocks of the pool for each sequence: SGLang looks for what it may evict where it has less than one
PROMPT = 1024
HIT = 2048
VOCABULARY = 2**17

MakeSide = Callable[..., Side]  # (blocks, sequences, longest, *, caching)


def prompts(tokens: int, seed: int = 0) -> Iterator[Int32Array]:
    """Return random prompts without end; no two begin alike."""
    draw = np.random.default_rng(seed)
    for number in itertools.count():
        ids = draw.integers(0, VOCABULARY, tokens, dtype=np.int32)
        ids[0] = number
        yield ids


def serve(side: Side, name: int, ids: Int32Array) -> float:
    """Admit a prompt, compute it, let it go; return the seconds that took."""
    side.prepare(name, ids)
    start = time.perf_counter()
    side.admit(name)
    side.computed(name)
    side.leave(name)
    return time.perf_counter() - start


class Decode:
    """A step of sequences that all decode: a position for each, its block where one is full, its row; and its token.

    Their prompts differ, and have been computed, so with a prefix cache each is in it, and managers are told tokens.
    Timed: `decode`.
    """

    def __init__(self, make: MakeSide, sequences: int, steps: int, *, caching: bool) -> None:
        each = blocks_needed(CONTEXT + BLOCK_SIZE + steps + 1, BLOCK_SIZE)
        self.side = make(sequences * (each + SPARE), sequences, each * BLOCK_SIZE, caching=caching)
        self.names = list(range(sequences))
        for name, ids in zip(self.names, prompts(CONTEXT + BLOCK_SIZE), strict=False):
            self.side.prepare(name, ids[: CONTEXT + name % BLOCK_SIZE].copy())
            self.side.admit(name)
            self.side.computed(name)
        self.side.start_decoding(self.names)

    def turn(self) -> float:
        """Take a step."""
        start = time.perf_counter()
        self.side.decode()
        return time.perf_counter() - start


class Prompt:
    """A prompt of 1,024 tokens that nothing is known of comes, is computed, and goes.

    Timed: `admit`, `computed` and `leave`. The pool has room for so many: all stay cached where there is a cache.
    """

    def __init__(self, make: MakeSide, turns: int, *, caching: bool) -> None:
        self.side = make(turns * blocks_needed(PROMPT, BLOCK_SIZE), 4, PROMPT + BLOCK_SIZE, caching=caching)
        self.prompts = prompts(PROMPT)

    def turn(self) -> float:
        """Serve the next one."""
        return serve(self.side, 7, next(self.prompts))


class Cancel(Prompt):
    """A prompt of 1,024 tokens that has been computed leaves. Timed: `leave`."""

    def turn(self) -> float:
        """Let the next one come, and time how it leaves."""
        self.side.prepare(7, next(self.prompts))
        self.side.admit(7)
        self.side.computed(7)
        start = time.perf_counter()
        self.side.leave(7)
        return time.perf_counter() - start


class FullHit:
    """A prompt of 2,049 tokens, of which all 2,048 that may be are found in the cache, comes, and goes.

    The pool has so many blocks, most of them free. Timed: `admit` and `leave`. Errors: `ValueError` where less is hit.
    """

    def __init__(self, make: MakeSide, blocks: int, *, caching: bool) -> None:
        self.side = make(blocks, 4, HIT + 2 * BLOCK_SIZE, caching=caching)
        self.ids = next(prompts(HIT + 1))
        serve(self.side, 7, self.ids)

    def turn(self) -> float:
        """Let it come and go."""
        self.side.prepare(7, self.ids)
        start = time.perf_counter()
        hit = self.side.admit(7)
        self.side.leave(7)
        took = time.perf_counter() - start
        if hit != HIT:
            raise ValueError(f"{hit} tokens were hit, not {HIT}")
        return took


class Evicting:
    """A prompt of 1,024 tokens comes into a pool that is full of so many cached ones, is computed, and goes.

    So 64 blocks are evicted. Timed: `admit`, `computed` and `leave`.
    """

    def __init__(self, make: MakeSide, cached: int, *, caching: bool) -> None:
        self.side = make(cached * blocks_needed(PROMPT, BLOCK_SIZE), 4, PROMPT + BLOCK_SIZE, caching=caching)
        self.prompts = prompts(PROMPT)
        for ids in itertools.islice(self.prompts, cached):
            serve(self.side, 7, ids)

    def turn(self) -> float:
        """Serve the next one."""
        return serve(self.side, 7, next(self.prompts))


class EvictingOneLeaf:
    """A prompt of one block comes into a pool of so many cached blocks, each a leaf, is computed, and goes: one leaves.

    Timed: `admit`, `computed` and `leave`.
    """

    def __init__(self, make: MakeSide, leaves: int, *, caching: bool) -> None:
        self.side = make(leaves, 4, 4 * BLOCK_SIZE, caching=caching)
        self.prompts = prompts(BLOCK_SIZE)
        for ids in itertools.islice(self.prompts, leaves):
            serve(self.side, 7, ids)

    def turn(self) -> float:
        """Serve the next one."""
        return serve(self.side, 7, next(self.prompts))

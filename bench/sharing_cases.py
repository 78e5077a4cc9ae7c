"""Prefix sharing in the cases of `manager_ratios` and `bench_manager`, and what they are compared with.

The floor is what the engines in use pay to find a prompt's blocks: a cryptographic hash of each block's tokens, here
hashlib.sha256 of 64 bytes (16 tokens of 4), one call a block, and nothing else: no chain, no look-up, no bookkeeping.
Token ids are int32 arrays, as tokenizers and engines hand them on. A prompt has to be launched and retired before it is
published; that is no part of sharing, so those calls say themselves how long the others took.
"""

import hashlib
import itertools
import time

import numpy as np
from pagedkv.impl.cache import BlockCache

BLOCK_SIZE = 16
PROMPT = 1024  # tokens
HIT = 2048  # tokens of a prompt that is published in full: it hits all of its blocks but the last


class HashFloor:
    """Each block of a prompt hashed for itself."""

    def __init__(self, tokens: int) -> None:
        data = _prompts(1, tokens).tobytes()
        step = BLOCK_SIZE * 4
        self.blocks = [data[start : start + step] for start in range(0, len(data), step)]

    def hash(self) -> None:
        """Hash the blocks one by one."""
        for block in self.blocks:
            hashlib.sha256(block).digest()


class FullHit:
    """A prompt whose prefix is all published: it comes, and goes."""

    def __init__(self) -> None:
        self.cache = BlockCache(100_000, BLOCK_SIZE)
        published = _prompts(1, HIT)[0]
        compute(self.cache, 1, published)
        self.cache.publish([1], published[:0], 0)
        self.cache.release(1)
        self.prompt = np.append(published, np.int32(5))  # one token is left to compute: so all of 2,048 are hit

    def add_release(self) -> None:
        """Add the prompt, all of whose blocks are hit, and release it."""
        self.cache.add(7, self.prompt)
        self.cache.release(7)


class NewPrompts:
    """Prompts that are not published: each is added, computed, published and released.

    The pool has room for so many, and is emptied when it is full; or, where they are `evicting`, it stays full, and
    each prompt takes the place of an earlier one.
    """

    def __init__(self, prompts: int, *, evicting: bool = False) -> None:
        self.cache = BlockCache(prompts * PROMPT // BLOCK_SIZE, BLOCK_SIZE)
        self.prompts = itertools.cycle(_prompts(2 * prompts, PROMPT))
        self.evicting = evicting
        for _ in range(prompts):  # so that all memory has been used once
            self.serve()

    def serve(self) -> float:
        """Serve one prompt; return the seconds that its add, publish and release took."""
        cache, prompt = self.cache, next(self.prompts)
        if not self.evicting and not cache.counts.free:
            cache.clear()
        start = time.perf_counter()
        cache.add(7, prompt)
        added = time.perf_counter()
        cache.retire(cache.launch((7,), PROMPT).id)
        retired = time.perf_counter()
        cache.publish((7,), prompt[:0], 0)
        cache.release(7)
        return time.perf_counter() - retired + added - start


class Eviction:
    """A pool full of idle leaves, of which each prompt of one block evicts one and becomes one."""

    def __init__(self, leaves: int) -> None:
        self.cache = BlockCache(leaves, BLOCK_SIZE)
        self.prompt = np.zeros(BLOCK_SIZE, np.int32)
        for _ in range(leaves):
            self.replace()

    def replace(self) -> None:
        """Let a new prompt of one block take the place of the leaf that was used least recently."""
        self.prompt[0] += 1
        compute(self.cache, 7, self.prompt)
        self.cache.publish((7,), self.prompt[:0], 0)
        self.cache.release(7)


class DecodePublish:
    """A decoding batch that is told each step's ids; one row in B fills a block a step."""

    def __init__(self, sequences: int, steps: int) -> None:
        context = 512
        columns = (context + steps) // BLOCK_SIZE + 2
        self.cache = BlockCache(sequences * columns, BLOCK_SIZE, rows=sequences, max_blocks_per_row=columns)
        self.seqs = np.arange(sequences, dtype=np.int64)
        self.ids = np.random.default_rng(1).integers(0, 2**17, (steps, sequences), dtype=np.int32)
        self.next = 0
        for seq, prompt in enumerate(_prompts(sequences, context + BLOCK_SIZE)):
            self.cache.add(seq, prompt[: context + seq % BLOCK_SIZE])
        self.cache.retire(self.cache.launch(self.seqs, context + self.seqs % BLOCK_SIZE).id)
        self.cache.publish(self.seqs, self.ids[0, :0], 0)
        self.cache.extend(self.seqs)

    def publish(self) -> float:
        """Make a step and tell each sequence its id; return the seconds that telling took."""
        self.cache.retire(self.cache.launch(self.seqs).id)
        start = time.perf_counter()
        self.cache.publish(self.seqs, self.ids[self.next])
        told = time.perf_counter() - start
        self.cache.extend(self.seqs)
        self.next += 1
        return told


def compute(cache: BlockCache, seq: int, prompt: np.ndarray[tuple[int], np.dtype[np.int32]]) -> None:
    """Add a prompt and compute it."""
    cache.add(seq, prompt)
    cache.retire(cache.launch((seq,), prompt.size).id)


def _prompts(prompts: int, tokens: int) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    """Return random prompts, no two of which begin alike."""
    return np.random.default_rng(0).integers(0, 2**17, (prompts, tokens), dtype=np.int32)

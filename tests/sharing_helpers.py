"""What tests of prefix sharing do over and over: make prompts, compute them, publish them, let them go."""

import numpy as np
from pagedkv.impl.arrays import Int32Array
from pagedkv.impl.cache import BlockCache
from pagedkv.impl.results import Added, Publication


def prompt(tokens: int, first: int = 0) -> Int32Array:
    """Return so many token ids, counted up."""
    return np.arange(first, first + tokens, dtype=np.int32)


TEN = prompt(10)  # of 4 tokens each two full blocks and a half
NO_TOKENS = prompt(0)


def made(blocks: int = 8, **options: bool) -> BlockCache:
    """Return a cache of blocks of 4 tokens."""
    return BlockCache(blocks, 4, prefix_cache=options.get("prefix_cache", True), events=options.get("events", False))


def compute(cache: BlockCache, seq: int, tokens: Int32Array, salt: int = 0) -> Added:
    """Add a prompt, and have launched and retired what it doesn't hit."""
    added = cache.add(seq, tokens, salt)
    cache.retire(cache.launch([seq], tokens.size - added.hits * cache.block_size).id)
    return added


def publish(cache: BlockCache, seq: int, retention: int = 0) -> list[int]:
    """Publish what a sequence has; return the blocks."""
    blocks: list[int] = cache.publish([seq], [], 0, retention).blocks.tolist()
    return blocks


def serve(cache: BlockCache, seq: int, tokens: Int32Array, salt: int = 0, retention: int = 0) -> Publication:
    """Compute a prompt, publish it and let it go."""
    compute(cache, seq, tokens, salt)
    publication = cache.publish([seq], [], 0, retention)
    cache.release(seq)
    return publication

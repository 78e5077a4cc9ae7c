"""Prefix hits of real traffic, to the token: what an endless cache hits, worked out independently of any cache.

Requests come one after the other in file order; token j of prefix id i is a function of (i, j), and what no id covers
is nobody else's. Outputs are not computed: prompts alone are published.
"""

from collections.abc import Iterator

import numpy as np
import pytest
from pagedkv.bench.traces import read_trace
from pagedkv.impl.arrays import Int32Array
from pagedkv.impl.cache import BlockCache

from real_data import MOONCAKE, SHAREGPT, real_data
from sharing_helpers import serve

OWN = 2**30  # ids from here on stand for what no prefix id covers


def prompts(name: str) -> Iterator[Int32Array]:
    """Yield the prompts of a trace as token ids."""
    trace = read_trace(real_data(name))
    size = trace.format.prefix_block_size
    for request, length in enumerate(trace.prompt_tokens.tolist()):
        ids = trace.prefix_ids[trace.prefix_starts[request] : trace.prefix_starts[request + 1]]
        tokens = (ids[:, None] * size + np.arange(size)).reshape(-1)[:length]
        rest = np.arange(length - tokens.size) + OWN + request
        yield np.concatenate((tokens, rest)).astype(np.int32)


def hit(name: str, blocks: int, block_size: int) -> int:
    """Serve a trace, prompts alone; return how many tokens were hit."""
    cache, tokens = BlockCache(blocks, block_size), 0
    for request, prompt in enumerate(prompts(name)):
        tokens += cache.match(prompt)
        serve(cache, request, prompt)
    assert cache.counts.held == cache.counts.quarantined == 0
    return tokens


@pytest.mark.parametrize(
    ("block_size", "tokens"), [(8, 19_672), (16, 19_520), (32, 19_328), (64, 18_880), (128, 17_664)]
)
def test_sharegpt(block_size: int, tokens: int) -> None:
    assert hit(SHAREGPT, 300_000 // block_size, block_size) == tokens


@pytest.mark.deep
@pytest.mark.parametrize(
    ("block_size", "tokens"),
    [(8, 54_097_888), (16, 54_097_440), (32, 54_096_416), (64, 54_093_952), (128, 54_089_728)],
)
def test_mooncake(block_size: int, tokens: int) -> None:
    assert hit(MOONCAKE, 100_000_000 // block_size, block_size) == tokens


def test_hits_grow_with_the_pool() -> None:
    hits = [hit(SHAREGPT, blocks, 16) for blocks in (300, 1000, 3000, 20_000)]
    assert hits == sorted(set(hits)), hits

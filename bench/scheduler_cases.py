"""The scheduler in the cases of `manager_ratios` and `bench_manager`.

A step is compared with the floor of its extension alone, and a cancellation with the release that it contains, in a
cache that the same was done to. What comes before and after the measured call (a request begins, a launch completes)
are calls of their own, so that they can take turns and be left out.
"""

import numpy as np
from pagedkv.impl.cache import BlockCache
from pagedkv.impl.requests import Limits, Request
from pagedkv.impl.scheduler import Scheduler

BLOCK_SIZE = 16
CONTEXT = 512  # tokens of each prompt, and 0 to B - 1 more
PROMPT = 1024  # tokens of the request that leaves


class Serve:
    """A scheduler of so many running sequences, all decoding for so many steps; others wait, since no more may run."""

    def __init__(self, sequences: int, waiting: int, steps: int) -> None:
        columns = (CONTEXT + steps) // BLOCK_SIZE + 2
        cache = BlockCache(sequences * columns, BLOCK_SIZE, rows=sequences, max_blocks_per_row=columns)
        limits = Limits(max_tokens_per_step=sequences * (CONTEXT + BLOCK_SIZE), max_running=sequences)
        self.scheduler = Scheduler(cache, limits)
        for request in range(sequences + waiting):
            prompt = np.arange(request, request + CONTEXT + request % BLOCK_SIZE, dtype=np.int32)
            self.scheduler.submit(Request(request, prompt, steps))
        self.sampled = np.arange(sequences, dtype=np.int32)
        self.schedule()
        self.complete()

    def schedule(self) -> None:
        """Plan and launch a step."""
        self.scheduler.schedule()

    def complete(self) -> None:
        """Complete it with a token for each."""
        self.scheduler.complete(self.scheduler.in_flight()[0], self.sampled)


class Release:
    """One prompt's sequence in a cache, launched, and released while that is in flight or after it."""

    def __init__(self, *, in_flight: bool) -> None:
        self.cache = BlockCache(100_000, BLOCK_SIZE)
        self.in_flight = in_flight
        self.prompt = np.arange(PROMPT, dtype=np.int32)

    def begin(self) -> None:
        """Add and launch it; what is written is published."""
        hits = self.cache.add(7, self.prompt).hits  # from the second time on
        self.cache.launch((7,), PROMPT - hits * BLOCK_SIZE)
        if not self.in_flight:
            self.end()
            self.cache.publish((7,), (), 0)

    def leave(self) -> None:
        """Release it."""
        self.cache.release(7)

    def end(self) -> None:
        """Retire what is in flight."""
        for launch in self.cache.in_flight():
            self.cache.retire(launch)


class Cancel:
    """The same as a request of a scheduler with so many others that wait."""

    def __init__(self, waiting: int, *, in_flight: bool) -> None:
        limits = Limits(max_tokens_per_step=PROMPT, max_running=1, policy="priority")
        self.scheduler = Scheduler(BlockCache(100_000, BLOCK_SIZE), limits)
        self.in_flight = in_flight
        self.prompt = np.arange(PROMPT, dtype=np.int32)
        for request in range(1, 1 + waiting):
            self.scheduler.submit(Request(request, self.prompt, 1, priority=1))

    def begin(self) -> None:
        """Submit and schedule it."""
        self.scheduler.submit(Request(0, self.prompt, 100))
        self.scheduler.schedule()
        if not self.in_flight:
            self.end()

    def leave(self) -> None:
        """Cancel it."""
        self.scheduler.cancel(0)

    def end(self) -> None:
        """Complete what is in flight."""
        for launch in self.scheduler.in_flight():
            self.scheduler.complete(launch, [1])

"""The fast implementation as an engine of a replay: one stream, and counts in place of arrays.

What the replay asks goes to `BlockCache` as it is; what it reports (blocks taken, table entries, growth) is counted
here from the cache's own answers, so that the figures are those of the real manager and not of the loop.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pagedkv.bench.engines import EngineOptions, Holding, Usage
from pagedkv.bench.traces import Int64Array
from pagedkv.impl.cache import BlockCache

ROW_HINT_MAX = 1 << 24  # the cache's own limit for what it is told in advance; its rows may grow beyond


class ImplEngine:
    """`pagedkv.impl.cache.BlockCache` as an engine."""

    def __init__(self, cache: BlockCache) -> None:
        self._cache = cache

    def add(self, seq: int, tokens: int) -> int:
        """See `Engine`."""
        return len(self._cache.add(seq, tokens).blocks)

    def extend(self, seqs: Int64Array) -> int:
        """See `Engine`."""
        return len(self._cache.extend(seqs).blocks)

    def launch(self, seqs: Int64Array, counts: Int64Array) -> int:
        """See `Engine`."""
        return self._cache.launch(seqs, counts).id

    def retire(self, launch: int) -> None:
        """See `Engine`."""
        self._cache.retire(launch)

    def release(self, seq: int) -> None:
        """See `Engine`."""
        self._cache.release(seq)

    def holding(self, seq: int) -> Holding:
        """See `Engine`."""
        return Holding(self._cache.lengths(seq).launched, len(self._cache.block_table(seq)))

    def usage(self) -> Usage:
        """See `Engine`."""
        counts = self._cache.counts
        return Usage(counts.free, counts.held, counts.quarantined)


@contextmanager
def open_impl_engine(options: EngineOptions, journal: Path | None) -> Iterator[ImplEngine]:
    """Open the implementation; where the replay ends well its whole state is walked once (`check`)."""
    with BlockCache(
        options.blocks,
        options.block_size,
        launches_in_flight=options.launches_in_flight,
        journal=journal,
        rows=options.rows,
        max_blocks_per_row=min(options.blocks_per_row, ROW_HINT_MAX),
    ) as cache:
        yield ImplEngine(cache)
        cache.check()

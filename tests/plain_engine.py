"""A cache manager of lists, for tests of the replay: no sharing, blocks in quarantine until a launch retires.

It shares no code with the implementation, so that figures both report are worth comparing. Faulty ones are made by
overriding a method.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from pagedkv.bench.engines import EngineOptions, Holding, Usage
from pagedkv.bench.traces import Int64Array
from pagedkv.impl.refusals import NoSpace


class PlainEngine:
    """Lists of blocks by sequence name; a released sequence's blocks wait for the newest launch."""

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self.free = list(range(options.blocks, 0, -1))
        self.tables: dict[int, list[int]] = {}
        self.allocated: dict[int, int] = {}
        self.launched: dict[int, int] = {}
        self.launches = 0
        self.retired = 0
        self.quarantine: list[tuple[int, list[int]]] = []
        self.batches: list[dict[int, int]] = []

    def add(self, seq: int, tokens: int) -> int:
        """Take the blocks of a prompt."""
        assert seq not in self.tables
        assert tokens > 0
        self.tables[seq], self.allocated[seq], self.launched[seq] = [], tokens, 0
        return self._grow(seq)

    def extend(self, seqs: Int64Array) -> int:
        """Take a block where the next token needs one."""
        taken = 0
        for seq in seqs.tolist():
            self.allocated[seq] += 1
            taken += self._grow(seq)
        return taken

    def launch(self, seqs: Int64Array, counts: Int64Array) -> int:
        """Write all that was planned."""
        assert self.launches - self.retired < self.options.launches_in_flight
        batch = dict(zip(seqs.tolist(), counts.tolist(), strict=True))
        for seq, count in batch.items():
            self.launched[seq] += count
            assert self.launched[seq] == self.allocated[seq], "a step writes all that was planned"
        self.batches.append(batch)
        self.launches += 1
        return self.launches

    def retire(self, launch: int) -> None:
        """Free what waited for this launch."""
        assert launch == self.retired + 1, "one after the other"
        self.retired = launch
        for newest, blocks in [entry for entry in self.quarantine if entry[0] <= launch]:
            self.free.extend(blocks)
            self.quarantine.remove((newest, blocks))

    def release(self, seq: int) -> None:
        """Quarantine the blocks of a sequence."""
        self.quarantine.append((self.launches, self.tables.pop(seq)))
        del self.allocated[seq], self.launched[seq]

    def holding(self, seq: int) -> Holding:
        """Count what was launched and the table."""
        return Holding(self.launched[seq], len(self.tables[seq]))

    def usage(self) -> Usage:
        """Count blocks by state."""
        held = sum(map(len, self.tables.values()))
        return Usage(len(self.free), held, sum(len(blocks) for _, blocks in self.quarantine))

    def _grow(self, seq: int) -> int:
        table = self.tables[seq]
        before = len(table)
        while len(table) * self.options.block_size < self.allocated[seq]:
            if not self.free:
                raise NoSpace("no block is free")
            table.append(self.free.pop())
        return len(table) - before


class Opened:
    """An engine factory that keeps the engines it opened, for tests to look at."""

    def __init__(self, kind: type[PlainEngine] = PlainEngine) -> None:
        self.kind = kind
        self.engines: list[PlainEngine] = []

    @contextmanager
    def __call__(self, options: EngineOptions) -> Iterator[PlainEngine]:
        """Open an engine and remember it."""
        self.engines.append(self.kind(options))
        yield self.engines[-1]

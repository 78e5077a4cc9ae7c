"""The manager's speed as ratios to a floor, in one process: `python -m pagedkv.bench.manager_ratios`.

What a manager may cost is set by what the same effect costs in plain numpy, with no sharing, no lifetime rules and no
checks: that is the *floor*. Wall times on a shared machine vary two- or threefold, so floor and manager take turns
(A B A B ...), and medians are compared. `bench_manager.py` runs the same cases under pytest-benchmark.

Exit status 0 if every ratio holds its target, 1 if one does not.
"""

import statistics
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from pagedkv.bench.scheduler_cases import Cancel, Release, Serve
from pagedkv.bench.sharing_cases import HIT, DecodePublish, Eviction, FullHit, HashFloor, NewPrompts
from pagedkv.impl.arrays import IndexArray, Int64Array
from pagedkv.impl.cache import BlockCache
from rich.console import Console
from rich.table import Table

BLOCK_SIZE = 16
CONTEXT = 512  # positions; a batch's lengths are staggered by 0 to B - 1, so that each step one row in B takes a block
STEPS = 240  # that a decoding batch has room for, before it is set up anew
PROMPT = 1024  # tokens: 64 blocks

Call = Callable[[], object]


class FloorDecode:
    """Decode in plain numpy: gather the tail block, grow where a block is full, compute slots."""

    def __init__(self, sequences: int) -> None:
        lengths = CONTEXT + np.arange(sequences) % BLOCK_SIZE
        self.rows: IndexArray = np.arange(sequences)
        self.length: Int64Array = lengths.astype(np.int64)
        columns = (CONTEXT + STEPS) // BLOCK_SIZE + 2
        self.stack: IndexArray = np.arange(1, sequences * columns + 1)
        self.table = np.zeros((sequences, columns), np.int32)
        for column in range(CONTEXT // BLOCK_SIZE + 1):
            holders = np.flatnonzero(lengths > column * BLOCK_SIZE)
            self.table[holders, column] = self._pop(holders.size)

    def _pop(self, count: int) -> IndexArray:
        taken = self.stack[self.stack.size - count :]
        self.stack = self.stack[: self.stack.size - count]
        return taken

    def extend(self) -> Int64Array:
        """Give each row room for one position; return the slots."""
        length = self.length[self.rows]
        offset = length % BLOCK_SIZE
        grow = np.flatnonzero(offset == 0)
        self.table[self.rows[grow], length[grow] // BLOCK_SIZE] = self._pop(grow.size)
        slots: Int64Array = self.table[self.rows, length // BLOCK_SIZE].astype(np.int64) * BLOCK_SIZE + offset
        self.length[self.rows] = length + 1
        return slots


class FloorRequests:
    """A prompt's admission and end in plain numpy: pop 64 ids into a row, and push them back."""

    def __init__(self) -> None:
        self.blocks = PROMPT // BLOCK_SIZE
        self.stack: IndexArray = np.arange(1, 100_000 + 1)
        self.top = self.stack.size
        self.table = np.zeros((64, 2 * self.blocks), np.int32)
        self.rows = list(range(64))
        self.row_of: dict[int, int] = {}

    def add(self, seq: int) -> None:
        """Pop the prompt's blocks into a row."""
        row = self.rows.pop()
        self.row_of[seq] = row
        self.top -= self.blocks
        self.table[row, : self.blocks] = self.stack[self.top : self.top + self.blocks]

    def release(self, seq: int) -> None:
        """Push them back and clear the row."""
        row = self.row_of.pop(seq)
        self.stack[self.top : self.top + self.blocks] = self.table[row, : self.blocks]
        self.top += self.blocks
        self.table[row, : self.blocks] = 0
        self.rows.append(row)

    def add_release(self) -> None:
        """Add one prompt and release it."""
        self.add(7)
        self.release(7)


class Decode:
    """The same batch in the cache, its prompts launched and retired."""

    def __init__(self, sequences: int) -> None:
        columns = (CONTEXT + STEPS) // BLOCK_SIZE + 2
        self.cache = BlockCache(sequences * columns, BLOCK_SIZE, rows=sequences, max_blocks_per_row=columns)
        self.seqs: Int64Array = np.arange(sequences, dtype=np.int64)
        self.newcomer = sequences
        lengths = CONTEXT + np.arange(sequences) % BLOCK_SIZE
        for seq, length in zip(self.seqs.tolist(), lengths.tolist(), strict=True):
            self.cache.add(seq, length)
        self.cache.retire(self.cache.launch(self.seqs, lengths).id)

    def extend(self) -> Int64Array:
        """Give each sequence room for one position; return the slots."""
        return self.cache.extend(self.seqs).slots

    def step(self) -> None:
        """Extend by one position, launch, and retire the launch."""
        self.cache.extend(self.seqs)
        self.cache.retire(self.cache.launch(self.seqs).id)

    def changing_step(self) -> None:
        """Make a step in which one request leaves and another comes, so that the batch is a new one."""
        self.cache.release(int(self.seqs[0]))
        self.cache.add(self.newcomer, CONTEXT)
        self.cache.launch([self.newcomer], CONTEXT)
        self.seqs = np.append(self.seqs[1:], self.newcomer)
        self.newcomer += 1
        self.step()


class Requests:
    """One prompt's life in the cache."""

    def __init__(self) -> None:
        self.cache = BlockCache(100_000, BLOCK_SIZE)

    def add_release(self) -> None:
        """Add one prompt and release it, with nothing in flight."""
        self.cache.add(7, PROMPT)
        self.cache.release(7)

    def in_flight(self) -> None:
        """Add one prompt, launch it, release it while it is in flight, and retire the launch."""
        self.cache.add(7, PROMPT)
        launch = self.cache.launch((7,), PROMPT)
        self.cache.release(7)
        self.cache.retire(launch.id)


class Line(NamedTuple):
    """One measured comparison."""

    case: str
    floor_us: float
    manager_us: float
    figure: float  # what the target is about
    target: float
    unit: str

    @property
    def holds(self) -> bool:
        """Whether the target is held."""
        return self.figure <= self.target


def medians_us(*calls: Call, turns: int, repeats: int = 1) -> list[float]:
    """Return the median microseconds of calls that take turns, each repeated so often in a turn.

    A call that returns a float has measured itself: so many seconds of it count.
    """
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(turns):
        for call, seen in zip(calls, times, strict=True):
            start = time.perf_counter()
            for _ in range(repeats):
                own = call()
            seconds = own if isinstance(own, float) else (time.perf_counter() - start) / repeats
            seen.append(seconds * 1e6)
    return [statistics.median(seen) for seen in times]


def measure() -> list[Line]:
    """Measure every case: about twenty seconds."""
    lines = []

    def ratio(case: str, floor: Call, manager: Call, target: float, turns: int, repeats: int = 1) -> None:
        floor_us, manager_us = medians_us(floor, manager, turns=turns, repeats=repeats)
        lines.append(Line(case, floor_us, manager_us, manager_us / floor_us, target, "x floor"))

    ratio("extend 2,000 by one", FloorDecode(2000).extend, Decode(2000).extend, 2, STEPS)
    ratio("extend + launch + retire, 2,000", FloorDecode(2000).extend, Decode(2000).step, 3.5, STEPS)
    ratio("the same, one leaves, one comes", FloorDecode(2000).extend, Decode(2000).changing_step, 3.5, STEPS)
    for size in (1, 16, 64, 256):
        floor_us, manager_us = medians_us(FloorDecode(size).extend, Decode(size).extend, turns=STEPS)
        lines.append(Line(f"extend {size} by one", floor_us, manager_us, manager_us - floor_us, 40, "us above floor"))
    few, many = Decode(2000), Decode(100_000)
    for case, first, second in (("extend", few.extend, many.extend), ("step", few.step, many.step)):
        few_us, many_us = medians_us(first, second, turns=STEPS // 4)
        lines.append(
            Line(f"{case}, 100,000 to 2,000 a sequence", few_us, many_us, many_us / few_us / 50, 1.5, "x at 2,000")
        )
    ratio("add + release 1,024 tokens", FloorRequests().add_release, Requests().add_release, 3, 400, 50)
    ratio("the same, released in flight", FloorRequests().add_release, Requests().in_flight, 12, 400, 50)
    return lines + measure_sharing() + measure_scheduler()


def measure_scheduler() -> list[Line]:
    """Measure what the scheduler adds: to a step of 2,000 with 1,000 that wait, and to a release."""
    lines = []
    serve = Serve(2000, 1000, STEPS)
    floor_us, schedule_us, complete_us = medians_us(
        FloorDecode(2000).extend, serve.schedule, serve.complete, turns=STEPS - 2
    )
    for case, found_us in (("schedule 2,000, 1,000 wait", schedule_us), ("complete 2,000 tokens", complete_us)):
        lines.append(Line(case, floor_us, found_us, found_us / floor_us, 10, "x floor"))
    for case, in_flight in (("cancel 1,024 tokens", False), ("the same, in flight", True)):
        release, cancel = Release(in_flight=in_flight), Cancel(1000, in_flight=in_flight)
        _, release_us, _, _, cancel_us, _ = medians_us(
            release.begin, release.leave, release.end, cancel.begin, cancel.leave, cancel.end, turns=1000
        )
        lines.append(Line(case, release_us, cancel_us, cancel_us / release_us, 2, "x a release"))
    return lines


def measure_sharing() -> list[Line]:
    """Measure what sharing prefixes costs: about ten seconds."""
    lines = []

    def ratio(case: str, floor: Call, manager: Call, target: float, turns: int, repeats: int = 1) -> None:
        floor_us, manager_us = medians_us(floor, manager, turns=turns, repeats=repeats)
        lines.append(Line(case, floor_us, manager_us, manager_us / floor_us, target, "x hash"))

    ratio("hit 2,048 tokens + release", HashFloor(HIT).hash, FullHit().add_release, 1, 2000, 2)
    new, evicting = NewPrompts(400), NewPrompts(400, evicting=True)
    ratio("add + publish + release 1,024, no hit", HashFloor(PROMPT).hash, new.serve, 1.5, 4000)
    ratio("the same, evicting 64 blocks", HashFloor(PROMPT).hash, evicting.serve, 2.5, 4000)
    few_us, many_us = medians_us(Eviction(1000).replace, Eviction(100_000).replace, turns=400, repeats=10)
    lines.append(Line("evict 1 of 100,000 leaves, of 1,000", few_us, many_us, many_us / few_us, 1.2, "x of 1,000"))
    floor_us, publish_us = medians_us(FloorDecode(2000).extend, DecodePublish(2000, STEPS).publish, turns=STEPS)
    lines.append(Line("publish 2,000 ids of a step", floor_us, publish_us, publish_us / floor_us, 5, "x floor"))
    return lines


def main() -> int:
    """Measure and print; return the exit status."""
    lines = measure()
    table = Table(
        "case", "floor us", "manager us", "figure", "target", "", title="the manager's speed, medians in turns"
    )
    for line in lines:
        figure, target = f"{line.figure:.2f}", f"{line.target:g} {line.unit}"
        verdict = "holds" if line.holds else "[red]missed"
        table.add_row(line.case, f"{line.floor_us:.1f}", f"{line.manager_us:.1f}", figure, target, verdict)
    Console(emoji=False).print(table)
    return 0 if all(line.holds for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())

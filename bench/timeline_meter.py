"""What ran, what waited and what the cache held, over simulated time: averages, and a curve of bounded length.

Averages are weighted by time: a step that lasts twice as long counts twice. The curve has at most 1,024 points however
long a replay is. A point begins as one step; when there are too many, neighbours merge in pairs, and from then on a
point lasts twice as long; so a point covers that time, or one step that is longer, and none is lost. A point keeps the
mean of each quantity and the greatest `running`, which a mean would hide.

*Waiting* counts a request from its arrival on, also where a step runs then and it is seen only at its end; so its mean
is that of Little's law, rate of arrival times mean time of waiting. `peak_waiting` is that of the beginnings of steps.
With two steps ahead a stretch has what its plan saw, up to a step before it began, so the mean is near that.

*Cache usage* is the share of blocks that are not available to whoever comes: held and quarantined, not those that are
only cached. *Tail waste over time* is the mean of empty slots in last blocks, and its share of the slots that are held.

Cost: some ten additions a step, amortised.
"""

from typing import Any

import numpy as np
from pagedkv.bench.meters import Meter, Stretch
from pagedkv.bench.traces import Float64Array

POINTS_MAX = 1024
QUANTITIES = ("running", "waiting", "held_blocks", "quarantined_blocks", "cached_blocks", "tail_tokens")
WAITING = QUANTITIES.index("waiting")


class TimelineMeter(Meter):
    """Collects stretches: `points` for a plot, `averages` for a table."""

    def __init__(self, blocks: int, block_size: int) -> None:
        self.blocks = blocks
        self.block_size = block_size
        self.peak_waiting = 0
        self._begin_ms: list[float] = []
        self._sums: list[list[float]] = []  # of each quantity, times ms
        self._peaks: list[int] = []
        self._point_ms = 0.0  # how long a point lasts at least
        self._end_ms = 0.0

    def arrived(self, arrival_ms: float, seen_ms: float) -> None:
        """Take down how long a request had waited when it was seen, in the newest stretch, which began without it."""
        if seen_ms > arrival_ms:
            self._sums[-1][WAITING] += seen_ms - arrival_ms

    def passed(self, stretch: Stretch) -> None:
        """Take down a stretch of time."""
        begin_ms, end_ms, *_ = stretch
        duration_ms = end_ms - begin_ms
        if not self._begin_ms or begin_ms - self._begin_ms[-1] >= self._point_ms:
            if len(self._begin_ms) == POINTS_MAX:
                self._merge()
            self._begin_ms.append(begin_ms)
            self._sums.append([0.0] * len(QUANTITIES))
            self._peaks.append(0)
        sums = self._sums[-1]
        for place, quantity in enumerate(stretch[2:8]):
            sums[place] += quantity * duration_ms
        self._peaks[-1] = max(self._peaks[-1], stretch.running)
        self.peak_waiting = max(self.peak_waiting, stretch.waiting)
        self._end_ms = end_ms

    def points(self) -> dict[str, Float64Array]:
        """Give the curve: `begin_ms`, `peak_running`, and the mean of each quantity from there to the next point."""
        begins = np.array(self._begin_ms)
        durations = np.diff(np.append(begins, self._end_ms))
        sums = np.array(self._sums).reshape(-1, len(QUANTITIES))
        means = np.divide(sums, durations[:, None], out=np.zeros_like(sums), where=durations[:, None] > 0)
        columns = {name: means[:, place] for place, name in enumerate(QUANTITIES)}
        return {"begin_ms": begins, "peak_running": np.array(self._peaks, np.float64), **columns}

    def averages(self) -> dict[str, float]:
        """Give the means over all time, `cache_usage_percent` and `tail_waste_percent` (of held slots) among them."""
        whole_ms = self._end_ms - self._begin_ms[0] if self._begin_ms else 0.0
        sums = np.array(self._sums).reshape(-1, len(QUANTITIES)).sum(axis=0).tolist()
        means = {name: value / whole_ms if whole_ms > 0 else 0.0 for name, value in zip(QUANTITIES, sums, strict=True)}
        used = means["held_blocks"] + means["quarantined_blocks"]
        held_slots = means["held_blocks"] * self.block_size
        means["cache_usage_percent"] = 100 * used / self.blocks
        means["tail_waste_percent"] = 100 * means["tail_tokens"] / held_slots if held_slots else 0.0
        return means

    def as_json(self) -> dict[str, Any]:
        """Give averages and curve."""
        curve = {name: column.tolist() for name, column in self.points().items()}
        return {"time_averages": self.averages(), "peak_waiting": self.peak_waiting, "timeline": curve}

    def _merge(self) -> None:
        """Merge neighbours in pairs."""
        self._begin_ms = self._begin_ms[::2]
        pairs = zip(self._sums[::2], self._sums[1::2], strict=True)
        self._sums = [[left + right for left, right in zip(*pair, strict=True)] for pair in pairs]
        self._peaks = [max(pair) for pair in zip(self._peaks[::2], self._peaks[1::2], strict=True)]
        self._point_ms = max(2 * self._point_ms, (self._end_ms - self._begin_ms[0]) / (POINTS_MAX // 2))

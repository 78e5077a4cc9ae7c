"""What ran, what waited and what the cache held, over simulated time: averages, and a curve of bounded length.

Averages are weighted by time: a step that lasts twice as long counts twice. The curve has at most 1,024 points however
long a replay is. A point begins as one step; when there are too many, neighbours merge in pairs, and from then on a
point lasts twice as long; so a point covers that time, or one step that is longer, and none is lost. A point keeps the
mean of each quantity and the greatest `running`, which a mean would hide.

*Waiting* counts a request from its arrival on, also where a step runs then and it is seen only at its end; so its mean
is that of Little's law, rate of arrival times mean time of waiting. `peak_waiting` is that of the beginnings of steps.
With two steps ahead a stretch has what its plan saw, up to a step before it began, so the mean is near that.

*Overloaded* is a replay in which more requests arrive a second than are admitted until the last of them is there, so
that the queue is longest then. What is served after it has no more arrivals to keep up with, and does not count.

*Cache usage* is the share of blocks that are not available to whoever comes: held and quarantined, not those that are
only cached. *Tail waste over time* is the mean of empty slots in last blocks, and its share of the slots that are held.

Cost: some ten additions a step, amortised.
"""

from typing import Any

import numpy as np
from pagedkv.bench.meters import Meter, Stretch
from pagedkv.bench.traces import Float64Array

POINTS_MAX = 1024
OVERLOAD = 1.05  # of the rate of admission
RATE_ARRIVALS_MIN = 100  # fewer are a burst, and no rate
QUANTITIES = ("running", "waiting", "held_blocks", "quarantined_blocks", "cached_blocks", "tail_tokens")
WAITING = QUANTITIES.index("waiting")


class TimelineMeter(Meter):
    """Collects stretches: `points` for a plot, `averages` for a table."""

    def __init__(self, blocks: int, block_size: int) -> None:
        self.blocks = blocks
        self.block_size = block_size
        self.peak_waiting = 0
        self.arrivals = 0
        self.waiting_at_last_arrival = 0  # once the step that saw it was planned
        self._arrivals_ms = (0.0, 0.0)  # the first and the last
        self._has_come = False  # no stretch has been told since the last arrival
        self._begin_ms: list[float] = []
        self._sums: list[list[float]] = []  # of each quantity, times ms
        self._peaks: list[int] = []
        self._point_ms = 0.0  # how long a point lasts at least
        self._end_ms = 0.0

    def arrived(self, arrival_ms: float, seen_ms: float) -> None:
        """Take down how long a request had waited when it was seen, in the newest stretch, which began without it."""
        self._arrivals_ms = (self._arrivals_ms[0] if self.arrivals else arrival_ms, arrival_ms)
        self.arrivals += 1
        self._has_come = True
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
        if self._has_come:
            self.waiting_at_last_arrival, self._has_come = stretch.waiting, False
        self._end_ms = end_ms

    @property
    def arrivals_per_s(self) -> float:
        """How many requests arrive a second, from the first to the last; 0 where all come at once."""
        first_ms, last_ms = self._arrivals_ms
        return 1000 * (self.arrivals - 1) / (last_ms - first_ms) if last_ms > first_ms else 0.0

    @property
    def admissions_per_s(self) -> float:
        """How many of them are admitted in that time, a second."""
        return self.arrivals_per_s * (1 - self.waiting_at_last_arrival / self.arrivals) if self.arrivals else 0.0

    @property
    def is_overloaded(self) -> bool:
        """Whether requests arrive faster, by more than a twentieth, than they are admitted: the queue keeps growing."""
        return self.arrivals >= RATE_ARRIVALS_MIN and self.arrivals_per_s > OVERLOAD * self.admissions_per_s

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
        return {
            "time_averages": self.averages(),
            "peak_waiting": self.peak_waiting,
            "arrivals_per_s": self.arrivals_per_s,
            "admissions_per_s": self.admissions_per_s,
            "waiting_at_last_arrival": self.waiting_at_last_arrival,
            "timeline": curve,
        }

    def _merge(self) -> None:
        """Merge neighbours in pairs."""
        self._begin_ms = self._begin_ms[::2]
        pairs = zip(self._sums[::2], self._sums[1::2], strict=True)
        self._sums = [[left + right for left, right in zip(*pair, strict=True)] for pair in pairs]
        self._peaks = [max(pair) for pair in zip(self._peaks[::2], self._peaks[1::2], strict=True)]
        self._point_ms = max(2 * self._point_ms, (self._end_ms - self._begin_ms[0]) / (POINTS_MAX // 2))

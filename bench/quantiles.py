"""Quantiles of many numbers in constant memory: a histogram whose buckets grow by a constant factor.

A bucket's bounds differ by 1 %, and its middle stands for all of it, so a quantile is within 0.5 % of the number that
has that rank, however many there are. Count, sum, least and greatest are exact, and no quantile leaves their bounds.
Source of the idea: Masson, Rim, Lee, "DDSketch: a fast and fully-mergeable quantile sketch with relative-error
guarantees" (VLDB '19), here with fixed bounds, which times have: below 0.001 ms counts as 0, and a longer time than
10^12 ms, thirty years, as that. Cost: 27 KB, a logarithm a number. Considered: keeping the numbers (as much memory as
tokens); a sample of them (the 99th percentile of a sample is a guess).
"""

import math

import numpy as np
from pagedkv.bench.traces import Float64Array

RELATIVE_ERROR = 0.005
LEAST_MS, MOST_MS = 1e-3, 1e12

_LOG_GROWTH = math.log1p(2 * RELATIVE_ERROR)
_LOG_LEAST = math.log(LEAST_MS)
_BUCKETS = math.ceil((math.log(MOST_MS) - _LOG_LEAST) / _LOG_GROWTH) + 2  # the first is for 0


class Quantiles:
    """Times in ms, each with a count: `add`, `add_all`; then `quantile`, `mean`, `count`, `least`, `most`."""

    __slots__ = ("_buckets", "count", "least", "most", "total")

    def __init__(self) -> None:
        self._buckets = [0] * _BUCKETS  # a list: to count in it costs a third of counting in an array
        self.count = 0
        self.total = 0.0
        self.least = math.inf
        self.most = 0.0

    def add(self, time_ms: float, count: int = 1) -> None:
        """Add one time, so many times over."""
        bucket = 0
        if time_ms >= LEAST_MS:
            bucket = 1 + int((math.log(min(time_ms, MOST_MS)) - _LOG_LEAST) / _LOG_GROWTH)
        self._buckets[bucket] += count
        self.count += count
        self.total += time_ms * count
        self.least, self.most = min(self.least, time_ms), max(self.most, time_ms)

    def add_all(self, times_ms: Float64Array) -> None:
        """Add one time of each entry."""
        if not times_ms.size:
            return
        logarithms = np.log(np.clip(times_ms, LEAST_MS, MOST_MS)) - _LOG_LEAST
        buckets = np.where(times_ms < LEAST_MS, 0, 1 + (logarithms / _LOG_GROWTH).astype(np.int64))
        for bucket, count in zip(*(column.tolist() for column in np.unique(buckets, return_counts=True)), strict=True):
            self._buckets[bucket] += count
        self.count += times_ms.size
        self.total += float(times_ms.sum())
        self.least, self.most = min(self.least, float(times_ms.min())), max(self.most, float(times_ms.max()))

    @property
    def mean(self) -> float:
        """The mean; 0 where there is no time at all."""
        return self.total / self.count if self.count else 0.0

    def quantile(self, share: float) -> float:
        """Give the time that `share` of all are not above, within 0.5 %; 0 where there is none."""
        if not self.count:
            return 0.0
        rank = max(1, math.ceil(share * self.count))
        bucket = int(np.searchsorted(np.cumsum(self._buckets), rank))
        middle = math.exp(_LOG_LEAST + (bucket - 0.5) * _LOG_GROWTH) if bucket else 0.0
        return min(max(middle, self.least), self.most)

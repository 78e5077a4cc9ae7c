"""Latencies of a clocked replay, as the field defines them, in constant memory however many requests there are.

================ ======================================================================================================
TTFT             time to first token: first token - arrival
TPOT             time per output token: (last token - first token) / (outputs - 1), of requests with two tokens or more
ITL              inter-token latency: the gaps between the tokens of a sample, all requests together
e2e              end-to-end: last token - arrival
queueing         first admission - arrival
goodput          finished requests within every declared limit, a second of makespan
makespan         last token of all - first arrival of all
================ ======================================================================================================

TTFT, TPOT, e2e and queueing are of requests that finished; ITL is of every token, a cancelled request's too. Goodput is
that of `vllm bench serve` and AIPerf; DistServe's (OSDI '24) is the highest rate at which a declared share of requests
keeps the limits.

A request with one token has no TPOT, so a TPOT limit says nothing of it: within the limits is who is within those that
it has. A limit that nobody meets gives a goodput of 0. Quantiles are within 0.5 % (`quantiles`); means, greatest and
goodput are exact. A request's gap that spans a preemption counts whole, since its user waited for it.

Cost: a few passes over the rows of a step. Whoever got a token of the step before has waited as long as all others who
did, so only the rest are looked at one by one.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from pagedkv.bench.meters import Meter, RequestRecord
from pagedkv.bench.quantiles import Quantiles
from pagedkv.impl.arrays import IndexArray, grown

SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyLimits:
    """What a request must keep to count as good, in ms; None: no such limit."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    def kept_by(self, record: RequestRecord) -> bool:
        """Whether a request is within all of them."""
        if self.ttft_ms is not None and record.ttft_ms > self.ttft_ms:
            return False
        tpot_ms = record.tpot_ms
        return self.tpot_ms is None or tpot_ms is None or tpot_ms <= self.tpot_ms

    def in_words(self) -> str:
        """Name the limits; empty where there are none."""
        limits = {"TTFT": self.ttft_ms, "TPOT": self.tpot_ms}
        return " and ".join(f"{name} {limit:g} ms" for name, limit in limits.items() if limit is not None)


class LatencyMeter(Meter):
    """Collects latencies: `queueing`, `ttft`, `tpot`, `itl`, `e2e`, all `Quantiles` in ms; and goodput."""

    def __init__(self, limits: LatencyLimits | None = None) -> None:
        self.limits = limits or LatencyLimits()
        self.queueing, self.ttft, self.tpot, self.itl, self.e2e = (Quantiles() for _ in range(5))
        self.finished_requests = 0
        self.good_requests = 0
        self._last_ms = np.zeros(64)  # by slot: its newest token
        self._step_before_ms = 0.0  # when the newest tokens of all came
        self._first_arrival_ms: float | None = None
        self._last_token_ms: float | None = None

    def arrived(self, arrival_ms: float, seen_ms: float) -> None:  # noqa: ARG002  (when it was seen is no latency)
        """Take down the first arrival of all."""
        if self._first_arrival_ms is None:
            self._first_arrival_ms = arrival_ms

    def sampled(self, slots: IndexArray, firsts: IndexArray | None, at_ms: float) -> None:
        """Take down the gap before each token that is not its sample's first."""
        if slots.size:
            self._last_token_ms = at_ms
        if firsts is not None and int(firsts.max()) >= self._last_ms.size:
            self._last_ms = grown(self._last_ms, 2 * int(firsts.max()))
        if firsts is not None:
            self._last_ms[firsts] = np.nan  # equal to nothing
        before_ms = self._last_ms[slots]
        waited = int(np.count_nonzero(before_ms == self._step_before_ms))
        if waited:
            self.itl.add(at_ms - self._step_before_ms, waited)
        if waited + (0 if firsts is None else firsts.size) < slots.size:
            others = at_ms - before_ms[before_ms != self._step_before_ms]
            self.itl.add_all(others[~np.isnan(others)])
        self._last_ms[slots] = at_ms
        self._step_before_ms = at_ms

    def finished(self, record: RequestRecord) -> None:
        """Take down a request's latencies."""
        self.queueing.add(record.queueing_ms)
        self.ttft.add(record.ttft_ms)
        self.e2e.add(record.e2e_ms)
        if (tpot_ms := record.tpot_ms) is not None:
            self.tpot.add(tpot_ms)
        self.finished_requests += 1
        self.good_requests += self.limits.kept_by(record)

    @property
    def makespan_s(self) -> float:
        """From the first arrival to the last token, of whichever requests; 0 without a token."""
        if self._first_arrival_ms is None or self._last_token_ms is None:
            return 0.0
        return (self._last_token_ms - self._first_arrival_ms) / 1000

    @property
    def goodput_per_s(self) -> float:
        """Requests a second that finished within the limits."""
        return self.good_requests / self.makespan_s if self.makespan_s > 0 else 0.0

    def latencies(self) -> dict[str, Quantiles]:
        """Give the latencies by their names."""
        return {"queueing": self.queueing, "ttft": self.ttft, "tpot": self.tpot, "itl": self.itl, "e2e": self.e2e}

    def as_json(self) -> dict[str, Any]:
        """Give all figures; None for a latency that no request has."""
        figures: dict[str, Any] = {
            "ttft_limit_ms": self.limits.ttft_ms,
            "tpot_limit_ms": self.limits.tpot_ms,
            "makespan_s": self.makespan_s,
            "good_requests": self.good_requests,
            "goodput_per_s": self.goodput_per_s,
        }
        return figures | {f"{name}_ms": _figures(times) for name, times in self.latencies().items()}


def _figures(times: Quantiles) -> dict[str, float] | None:
    if not times.count:
        return None
    quantiles = {name: times.quantile(share) for name, share in SHARES.items()}
    return {"count": times.count, "mean": times.mean, **quantiles, "max": times.most}

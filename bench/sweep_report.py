"""What a sweep found: a table for people, CSV and JSON for programs, under one set of names.

Everything that two runs with one seed agree on stands beside its block size; what was timed stands under `times`. The
words are those of the project's design page, with the unit last where it is not tokens or blocks.
"""

import csv
import io
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from pagedkv.bench.amounts import in_words
from pagedkv.bench.quantiles import Quantiles
from pagedkv.bench.sweep_batch import Counts, Seconds
from pagedkv.bench.sweep_kernels import Latencies
from pagedkv.bench.sweep_pick import Candidate, SideBySide
from pagedkv.bench.sweep_traffic import TrafficFound
from rich.table import Table
from rich.text import Text

COLUMNS_MAX = 4  # of block sizes in one table, so that it fits a terminal of 80 characters

Figure = tuple[str, Callable[["SweepRow"], str], bool]


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One block size: what was counted, what the manager took, what a layer of a decode step took, what traffic did."""

    counts: Counts
    seconds: Seconds
    latencies: Latencies
    token_bytes: int
    layers: int
    model_step_ms: float
    traffic: TrafficFound | None = None

    @property
    def tail_waste_bytes(self) -> int:
        """Tail waste in bytes of the whole model."""
        return self.counts.tail_waste * self.token_bytes

    @property
    def tpot_ms(self) -> float:
        """Time a token at the median."""
        return self.tpot_of(self.latencies.median_ms)

    def tpot_of(self, layer_ms: float) -> float:
        """Time a token: layers x a layer's attention, and the declared rest of a step."""
        return self.layers * layer_ms + self.model_step_ms

    def candidate(self, mark: str = "") -> Candidate:
        """Give what the pick is made from; `mark` stands at its times."""
        p10, p90 = self.latencies.p10_ms, self.latencies.p90_ms
        spread = None if p10 is None or p90 is None else (self.tpot_of(p10), self.tpot_of(p90))
        overhead = self.tail_waste_bytes + self.counts.metadata_bytes
        tpot = self.traffic.clocked.latency.tpot if self.traffic else None
        end_to_end_ms = tpot.quantile(0.5) if tpot and tpot.count else None
        counts = self.counts
        needed = counts.blocks - counts.free_blocks
        return Candidate(
            counts.block_size,
            counts.free_percent,
            self.tpot_ms,
            spread,
            overhead,
            end_to_end_ms,
            SideBySide(counts.sequences, needed, counts.blocks, counts.sequences_that_fit),
            mark,
        )

    def as_json(self) -> dict[str, Any]:
        """Give all figures; those that two runs need not agree on are under `times`."""
        counts, latencies = self.counts, self.latencies
        traffic = self.traffic
        return {
            **asdict(counts),
            "tail_waste": counts.tail_waste,
            "tail_waste_bytes": self.tail_waste_bytes,
            "tail_waste_percent": counts.tail_waste_percent,
            "tail_waste_a_sequence": counts.tail_waste / counts.sequences,
            "tail_waste_uniform_estimate": counts.tail_waste_uniform_estimate,
            "free_percent": counts.free_percent,
            "traffic": traffic.counts_as_json() if traffic else None,
            "times": {
                "allocation_ms": self.seconds.allocation * 1e3,
                "extend_median_ms": statistics.median(self.seconds.extensions) * 1e3,
                "decode_latency_median_ms": latencies.median_ms,
                "decode_latency_p10_ms": latencies.p10_ms,
                "decode_latency_p90_ms": latencies.p90_ms,
                "decode_latency_samples": latencies.samples,
                "memory_limit_fraction": latencies.memory_limit_fraction,
                "tpot_ms": self.tpot_ms,
                "end_to_end": traffic.times_as_json() if traffic else None,
            },
        }


def as_csv(rows: list[SweepRow]) -> str:
    """Write a line a block size, all columns of the JSON; what is nested there has its path for a name."""
    flat = [_flat(row.as_json()) for row in rows]
    columns = list(dict.fromkeys(name for row in flat for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def _flat(facts: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Return the leaves of nested facts by their paths, `times` left out of these; None has no leaves."""
    leaves: dict[str, Any] = {}
    for key, value in facts.items():
        if isinstance(value, dict):
            leaves |= _flat(value, path if key == "times" else f"{path}{key}_")
        elif value is not None:
            leaves[path + key] = value
    return leaves


def halvings(rows: list[SweepRow]) -> list[dict[str, Any]]:
    """Compare each block size with its half, where both were swept."""
    by_size = {row.counts.block_size: row.counts for row in rows}
    return [
        {
            "from": size,
            "to": size // 2,
            "tail_waste_ratio": by_size[size // 2].tail_waste / counts.tail_waste if counts.tail_waste else None,
            "block_table_entries_ratio": by_size[size // 2].block_table_entries / counts.block_table_entries,
        }
        for size, counts in by_size.items()
        if size % 2 == 0 and size // 2 in by_size
    ]


def halvings_in_words(rows: list[SweepRow]) -> list[str]:
    """Say what halving the block size did in this run."""
    return [
        f"From B = {each['from']} to {each['to']}: "
        + ("no tail waste" if each["tail_waste_ratio"] is None else f"tail waste x {each['tail_waste_ratio']:.3f}")
        + f", block table entries x {each['block_table_entries_ratio']:.3f}."
        for each in halvings(rows)
    ]


def tables(rows: list[SweepRow], title: str, mark: str, columns_max: int = COLUMNS_MAX) -> list[Table]:
    """Lay figures out against block sizes, a few block sizes a table. `mark` stands at what was timed."""
    figures = _figures(mark) + (_traffic_figures(mark) if any(row.traffic for row in rows) else [])
    found = []
    for first in range(0, len(rows), columns_max):
        some = rows[first : first + columns_max]
        table = Table(title=Text(title), title_justify="left")
        table.add_column("block size")
        for row in some:
            table.add_column(f"{row.counts.block_size:,}", justify="right")
        for name, cell, ends_section in figures:
            table.add_row(name, *(cell(row) for row in some), end_section=ends_section)
        found.append(table)
    return found


def _figures(mark: str) -> list[Figure]:
    """Give the rows about the lengths: name, how to write it, whether a line is drawn below."""

    def p90(row: SweepRow) -> str:
        return "-" if row.latencies.p90_ms is None else f"{row.latencies.p90_ms:,.3f}"

    return [
        ("logical tokens", lambda row: f"{row.counts.logical_tokens:,}", False),
        ("physical slots", lambda row: f"{row.counts.physical_slots:,}", False),
        ("tail waste, tokens", lambda row: f"{row.counts.tail_waste:,}", False),
        ("  (B - 1) / 2 each", lambda row: f"{row.counts.tail_waste_uniform_estimate:,.0f}", False),
        ("  bytes", lambda row: in_words(row.tail_waste_bytes), False),
        ("  % of slots", lambda row: f"{row.counts.tail_waste_percent:.3f}", True),
        ("block table entries", lambda row: f"{row.counts.block_table_entries:,}", False),
        ("  bytes", lambda row: in_words(row.counts.block_table_bytes), False),
        ("manager, bytes", lambda row: in_words(row.counts.metadata_bytes), False),
        ("blocks taken", lambda row: f"{row.counts.allocations:,}", False),
        ("  by growth", lambda row: f"{row.counts.growth_allocations:,}", False),
        ("  in calls", lambda row: f"{row.counts.allocation_calls:,}", False),
        ("  in ms", lambda row: f"{row.seconds.allocation * 1e3:,.1f}", False),
        ("pool, blocks", lambda row: f"{row.counts.blocks:,}", False),
        ("  free at the end", lambda row: f"{row.counts.free_blocks:,}", False),
        ("  %", lambda row: f"{row.counts.free_percent:.2f}", True),
        (f"decode, ms{mark}", lambda row: f"{row.latencies.median_ms:,.3f}", False),
        ("  p90", p90, False),
        ("  of memory limit", lambda row: f"{row.latencies.memory_limit_fraction:.0%}", False),
        (f"TPOT, one batch, ms{mark}", lambda row: f"{row.tpot_ms:,.2f}", True),
    ]


def _traffic_figures(mark: str) -> list[Figure]:
    """Give the rows about requests that come and go; "-" where a block size had no pool for them."""

    def of(write: Callable[[TrafficFound], str]) -> Callable[[SweepRow], str]:
        return lambda row: write(row.traffic) if row.traffic else "-"

    def quantile(times: Quantiles, share: float, divisor: float = 1) -> str:
        return f"{times.quantile(share) / divisor:,.2f}" if times.count else "-"

    return [
        ("replay: pool, blocks", of(lambda found: f"{found.in_order.blocks:,}"), False),
        ("  prompt tokens hit", of(lambda found: f"{found.in_order.counts.hit_tokens:,}"), False),
        ("  %", of(lambda found: f"{found.in_order.hit_percent:.3f}"), False),
        ("  evictions", of(lambda found: f"{found.in_order.counts.evictions:,}"), False),
        ("  preemptions", of(lambda found: f"{found.in_order.counts.preemptions:,}"), True),
        (f"clocked TPOT, ms{mark}", of(lambda found: quantile(found.clocked.latency.tpot, 0.5)), False),
        ("  p90", of(lambda found: quantile(found.clocked.latency.tpot, 0.9)), False),
        ("clocked TTFT, s", of(lambda found: quantile(found.clocked.latency.ttft, 0.5, 1000)), False),
        ("  p90", of(lambda found: quantile(found.clocked.latency.ttft, 0.9, 1000)), False),
        ("good requests", of(lambda found: f"{found.clocked.latency.good_requests:,}"), False),
        ("  a second: goodput", of(lambda found: f"{found.clocked.latency.goodput_per_s:,.3g}"), False),
    ]

"""What a sweep says: this run's own figures about halving, a line a block size in CSV, the rows of the tables."""

import csv

import numpy as np
from pagedkv.bench.clocked import ClockedOutcome
from pagedkv.bench.clocked_report import ClockedReport
from pagedkv.bench.latency_meter import LatencyMeter
from pagedkv.bench.meters import RequestRecord
from pagedkv.bench.scheduler_report import SchedulerCounts, SchedulerReport
from pagedkv.bench.step_time import StepTime
from pagedkv.bench.sweep_batch import Counts, Seconds
from pagedkv.bench.sweep_kernels import Latencies
from pagedkv.bench.sweep_report import SweepRow, as_csv, halvings, halvings_in_words, tables
from pagedkv.bench.sweep_traffic import TrafficFound
from pagedkv.bench.timeline_meter import TimelineMeter


def traffic_of(block_size: int, latency_ms: float) -> TrafficFound:
    """Give what 10 requests of 100 prompt tokens and 11 outputs would come to: a tenth hit, a TPOT of `latency_ms`."""
    counts = SchedulerCounts(finished=10, prompt_tokens=1000, hit_tokens=100, evictions=4096 // block_size)
    report = SchedulerReport(
        requests=10, blocks=1 << 20, block_size=block_size, seconds=1.0, refused=0, refusals=(), counts=counts
    )
    latencies, slot = LatencyMeter(), np.zeros(1, np.int64)
    latencies.arrived(0.0, 0.0)
    for request in range(10):
        first_ms = 5.0 + request * latency_ms
        latencies.finished(RequestRecord(request, 0.0, 0.0, first_ms, first_ms + 10 * latency_ms, 100, 11))
    latencies.sampled(slot, slot, first_ms + 10 * latency_ms)
    outcome = ClockedOutcome(scheduled=report, sequence_steps=110, cpu_seconds=1.0)
    return TrafficFound(report, StepTime(base_ms=1.0), ClockedReport(outcome, latencies, TimelineMeter(1, 1)))


def rows_of(
    block_sizes: list[int], *, p90: bool = True, latency_ms: float = 1234.5, traffic: bool = True
) -> list[SweepRow]:
    """Give rows as a sweep of 1,000 sequences of 1,001 tokens would, with made-up times; traffic if wanted."""
    rows = []
    for size in block_sizes:
        entries = 1000 * -(-1001 // size)
        counts = Counts(
            block_size=size, sequences=1000, logical_tokens=1_001_000, physical_slots=entries * size,
            block_table_entries=entries, blocks=1_100_000 // size, free_blocks=1_100_000 // size - entries,
        )  # fmt: skip
        latencies = Latencies(
            latency_ms / size**0.1, 1.0 if p90 else None, latency_ms * 1.3 if p90 else None, 0.87, 5, 1e6
        )
        found = traffic_of(size, latency_ms) if traffic else None
        rows.append(SweepRow(counts, Seconds(0.1, [0.001]), latencies, 131_072, 32, 0.0, found))
    return rows


def test_halving_is_told_with_this_run_s_figures() -> None:
    found = halvings(rows_of([1, 2, 8, 16]))
    assert [(each["from"], each["to"]) for each in found] == [(2, 1), (16, 8)]
    assert found[0] == {"from": 2, "to": 1, "tail_waste_ratio": 0.0, "block_table_entries_ratio": 1001 / 501}
    assert halvings_in_words(rows_of([8, 16])) == ["From B = 16 to 8: tail waste x 1.000, block table entries x 2.000."]
    assert halvings_in_words(rows_of([7, 1001]))[:1] == []
    even = [row for row in rows_of([1, 2]) if row.counts.block_size == 1] + rows_of([2])
    even[1].counts.physical_slots = even[1].counts.logical_tokens
    assert halvings_in_words(even) == ["From B = 2 to 1: no tail waste, block table entries x 1.998."]


def test_csv_has_a_line_a_block_size() -> None:
    told = list(csv.DictReader(as_csv(rows_of([8, 16])).splitlines()))
    assert [row["block_size"] for row in told] == ["8", "16"]
    assert told[0]["tail_waste_a_sequence"] == "7.0"
    assert [row["traffic_evictions"] for row in told] == ["512", "256"]
    assert told[0]["end_to_end_tpot_ms_max"] == "1234.5"


def test_a_block_size_without_a_pool_for_traffic_has_empty_cells() -> None:
    rows = [*rows_of([8], traffic=False), *rows_of([16])]
    told = list(csv.DictReader(as_csv(rows).splitlines()))
    assert [row["traffic_evictions"] for row in told] == ["", "256"]
    (table,) = tables(rows, "t", "")
    cells = dict(
        zip(table.columns[0].cells, zip(table.columns[1].cells, table.columns[2].cells, strict=True), strict=True)
    )
    assert cells["  evictions"] == ("-", "256")
    assert cells["good requests"] == ("-", "10")


def test_tables_have_what_was_replayed_only_where_something_was() -> None:
    with_traffic, without = (tables(rows_of([8, 16, 32, 64, 128], traffic=each), "t", " (*)") for each in (True, False))
    assert [len(table.columns) for table in with_traffic] == [5, 2]
    names = [list(table.columns[0].cells) for table in (with_traffic[0], without[0])]
    assert names[0][: len(names[1])] == names[1]
    assert names[0][len(names[1]) :][0] == "replay: pool, blocks"
    assert "clocked TPOT, ms (*)" in names[0]
    assert "TPOT, one batch, ms (*)" in names[1]

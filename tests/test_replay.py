"""The replay's loop, on cases small enough to be worked out by hand, and on random ones against plain arithmetic."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pagedkv.bench.engines import Holding
from pagedkv.bench.failures import BadInput
from pagedkv.bench.replay import replay
from pagedkv.bench.replay_queue import FinalLength, Refusal, ReplaySettings
from pagedkv.bench.replay_report import ReplayReport
from pagedkv.bench.trace_formats import TraceFormat
from pagedkv.bench.traces import Trace
from pagedkv.spec.refusals import Broken

from plain_engine import Opened, PlainEngine

Batches = list[dict[int, int]]
WITH_LAST = FinalLength.PROMPT_OUTPUT


def _trace(lengths: list[tuple[int, int]], arrival_s: list[float] | None = None) -> Trace:
    prompt, output = np.array(lengths, np.int64).reshape(-1, 2).T
    return Trace(
        path=Path("by-hand"),
        format=TraceFormat("by hand"),
        arrival_s=np.array(arrival_s or [0.0] * len(lengths), np.float64),
        prompt_tokens=prompt,
        output_tokens=output,
        prefix_ids=np.empty(0, np.int64),
        prefix_starts=np.zeros(len(lengths) + 1, np.int64),
    )


def _replay(
    trace: Trace, settings: ReplaySettings, kind: type[PlainEngine] = PlainEngine
) -> tuple[ReplayReport, Batches]:
    opened = Opened(kind)
    report = replay(trace, settings, opened)
    (engine,) = opened.engines
    assert len(engine.free) == engine.options.blocks
    return report, engine.batches


def test_a_small_trace_by_hand() -> None:
    """B = 4: 4 + 2 tokens hold 5 positions in 2 blocks, 3 + 1 hold 3, 1 + 0 holds 1; 7 of 16 slots stay empty."""
    report, batches = _replay(_trace([(4, 2), (3, 1), (1, 0)]), ReplaySettings(block_size=4))
    assert batches == [{0: 4, 1: 3, 2: 1}, {0: 1}]
    assert report.as_json() | {"seconds": 0} == {
        "requests": 3,
        "finished": 3,
        "refused": 0,
        "refused_requests": [],
        "steps": 2,
        "blocks": 4,
        "block_size": 4,
        "logical_tokens": 9,
        "physical_slots": 16,
        "tail_waste": 7,
        "tail_waste_percent": 43.75,
        "tail_waste_uniform_estimate": 4.5,
        "block_table_entries": 4,
        "growth_allocations": 1,
        "allocations": 4,
        "allocation_calls": 4,
        "peak_blocks": 4,  # two held by the first, two in quarantine
        "peak_running": 3,
        "seconds": 0,
    }


def test_the_last_sampled_token_is_written_only_where_asked() -> None:
    report, batches = _replay(_trace([(4, 2), (3, 1), (1, 0)]), ReplaySettings(block_size=4, final_length=WITH_LAST))
    assert batches == [{0: 4, 1: 3, 2: 1}, {0: 1, 1: 1}, {0: 1}]
    assert (report.counts.logical_tokens, report.tail_waste) == (6 + 4 + 1, 5)


def test_waiting_for_space_and_for_quarantine() -> None:
    """Two blocks: the first needs both, and for a step after its end they are still in quarantine."""
    report, batches = _replay(_trace([(4, 2), (3, 1), (1, 0)]), ReplaySettings(block_size=4, blocks=2))
    assert batches == [{0: 4}, {0: 1}, {1: 3, 2: 1}]
    assert (report.counts.steps, report.counts.peak_blocks, report.counts.peak_running) == (3, 2, 2)


def test_quarantine_counts_while_others_run() -> None:
    """Request 1 ends with the first launch; its block is there for request 2 once the second is submitted."""
    _, batches = _replay(_trace([(1, 4), (1, 1), (1, 1)]), ReplaySettings(block_size=4, blocks=2))
    assert batches == [{0: 1, 1: 1}, {0: 1}, {0: 1, 2: 1}, {0: 1}]


def test_nobody_overtakes_the_head_of_the_queue() -> None:
    """Request 2 would fit beside request 0 at once, but request 1 is before it and does not."""
    _, batches = _replay(_trace([(3, 2), (8, 1), (1, 1)]), ReplaySettings(block_size=4, blocks=2))
    assert batches == [{0: 3}, {0: 1}, {1: 8}, {2: 1}]


def test_reservation_is_of_the_final_length() -> None:
    """Both prompts fit into two blocks; the second block that request 0 will need keeps request 1 out."""
    _, batches = _replay(_trace([(4, 3), (1, 1)]), ReplaySettings(block_size=4, blocks=2))
    assert batches == [{0: 4}, {0: 1}, {0: 1}, {1: 1}]


def test_refusals_by_name_while_the_rest_go_on() -> None:
    trace = _trace([(0, 0), (9, 1), (8, 2), (8, 1), (0, 5)])
    report, batches = _replay(trace, ReplaySettings(block_size=4, blocks=2))
    assert report.refusals == (Refusal(0, "Empty"), Refusal(1, "TooLong"), Refusal(2, "TooLong"), Refusal(4, "Empty"))
    assert batches == [{3: 8}]
    assert (report.requests, report.counts.finished) == (5, 1)


def test_a_trace_of_refusals_alone() -> None:
    report, batches = _replay(_trace([(0, 0), (0, 3)]), ReplaySettings())
    assert (len(report.refusals), report.counts.finished, batches) == (2, 0, [])
    assert (report.tail_waste, report.tail_waste_percent) == (0, 0.0)


def test_clocked_arrivals_and_idle_time() -> None:
    """Steps of 10 ms: at 0 ms step 0, at 10 ms step 1, at 11 ms step 2; nobody pays for the idle second after them."""
    trace = _trace([(1, 2), (2, 1), (3, 1), (4, 1)], [0.0, 0.010, 0.011, 1.0])
    report, batches = _replay(trace, ReplaySettings(step_ms=10))
    assert batches == [{0: 1}, {0: 1, 1: 2}, {2: 3}, {3: 4}]
    assert report.counts.steps == 4


def test_unsorted_arrivals_are_served_in_order_of_time_under_their_own_index() -> None:
    trace = _trace([(1, 1), (2, 1), (3, 1)], [2.0, 0.0, 0.0])
    assert _replay(trace, ReplaySettings(block_size=4, blocks=1))[1] == [{1: 2}, {2: 3}, {0: 1}]
    assert _replay(trace, ReplaySettings(step_ms=1000))[1] == [{1: 2, 2: 3}, {0: 1}]


@pytest.mark.parametrize(("block_size", "blocks"), [(1, None), (7, 3), (1 << 20, None)])
def test_any_block_size(block_size: int, blocks: int | None) -> None:
    report, _ = _replay(_trace([(5, 3), (16, 2), (7, 1)]), ReplaySettings(block_size=block_size, blocks=blocks))
    assert report.counts.logical_tokens == 7 + 17 + 7
    assert report.tail_waste == sum(-final % block_size for final in (7, 17, 7))


def test_a_pool_beyond_reason_is_refused_before_it_is_made() -> None:
    with pytest.raises(BadInput, match=r"pool of 2,147,483,647 blocks.*give --blocks"):
        _replay(_trace([((1 << 31) - 1, 0), (0, 0)]), ReplaySettings(block_size=1))


def test_tables_beyond_reason_are_refused_before_they_are_made() -> None:
    lengths = [(1 << 29, 0)] + [(1, 0)] * 99
    with pytest.raises(BadInput, match=r"block tables of 3,355,443,200 entries"):
        _replay(_trace(lengths), ReplaySettings(block_size=16))


class _Leaky(PlainEngine):
    def release(self, seq: int) -> None:
        self.tables[seq].pop()
        super().release(seq)


class _NeverFrees(PlainEngine):
    def retire(self, launch: int) -> None:
        self.retired = launch


class _Miscounting(PlainEngine):
    def holding(self, seq: int) -> Holding:
        return super().holding(seq)._replace(launched_tokens=self.launched[seq] - 1)


@pytest.mark.parametrize(
    ("kind", "blocks", "said"),
    [
        (_Leaky, None, "R-OWN-4"),
        (_Leaky, 3, "R-CAP-1: NoSpace"),
        (_NeverFrees, 3, "R-LIFE-4"),
        (_Miscounting, None, "R-CAP-2"),
    ],
)
def test_a_faulty_manager_is_found_out(kind: type[PlainEngine], blocks: int | None, said: str) -> None:
    with pytest.raises(Broken, match=said):
        _replay(_trace([(4, 2), (4, 2), (1, 1)]), ReplaySettings(block_size=4, blocks=blocks), kind)


@given(
    requests=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9), st.integers(0, 50)), min_size=1, max_size=12),
    block_size=st.integers(1, 9),
    blocks=st.none() | st.integers(1, 12),
    step_ms=st.none() | st.sampled_from([0.5, 1.0, 10.0]),
    final_length=st.sampled_from(FinalLength),
)
def test_whatever_the_trace_all_that_can_finish_do(
    requests: list[tuple[int, int, int]],
    block_size: int,
    blocks: int | None,
    step_ms: float | None,
    final_length: FinalLength,
) -> None:
    trace = _trace([(prompt, output) for prompt, output, _ in requests], [at / 1000 for _, _, at in requests])
    settings = ReplaySettings(block_size=block_size, blocks=blocks, step_ms=step_ms, final_length=final_length)
    report, batches = _replay(trace, settings)

    sampled = [max(output - (final_length is not WITH_LAST), 0) for _, output, _ in requests]
    final = {name: prompt + extra for name, ((prompt, _, _), extra) in enumerate(zip(requests, sampled, strict=True))}
    served = [
        name
        for name, (prompt, _, _) in enumerate(requests)
        if prompt and (blocks is None or -(-final[name] // block_size) <= blocks)
    ]
    assert report.counts.finished == len(served)
    assert {refusal.request for refusal in report.refusals} == set(range(len(requests))) - set(served)
    assert report.counts.logical_tokens == sum(final[name] for name in served)
    assert report.counts.block_table_entries == sum(-(-final[name] // block_size) for name in served)
    assert report.counts.allocations == report.counts.block_table_entries, "nothing is shared, nothing is copied"
    started = []
    for name in served:
        steps = [step for step, batch in enumerate(batches) if name in batch]
        assert steps == list(range(steps[0], steps[0] + 1 + sampled[name])), "from its start on it is in every step"
        assert [batches[step][name] for step in steps] == [requests[name][0]] + [1] * sampled[name]
        started.append((requests[name][2], name, steps[0]))
    in_order = [step for _, _, step in sorted(started)]
    assert in_order == sorted(in_order), "first come, first served"

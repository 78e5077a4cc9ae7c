"""The replay through the scheduler, on cases worked out by hand: blocks of 4 positions throughout."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pagedkv.bench import replay_scheduler
from pagedkv.bench.failures import BadInput
from pagedkv.bench.replay_arrivals import Arrival, TrafficSettings
from pagedkv.bench.replay_queue import Refusal, ReplaySettings
from pagedkv.bench.replay_scheduler import replay_scheduled
from pagedkv.bench.replay_tokens import TraceTokens
from pagedkv.bench.scheduler_report import SchedulerReport
from pagedkv.bench.trace_formats import TraceFormat
from pagedkv.bench.traces import Trace
from pagedkv.impl.arguments import Integers
from pagedkv.impl.cache import BlockCache
from pagedkv.impl.plans import NOTHING, Completion, Plan
from pagedkv.impl.requests import Limits
from pagedkv.impl.scheduler import Scheduler
from pagedkv.spec.refusals import Broken

PLAIN = TrafficSettings()
ONE_AT_A_TIME = Limits(max_running=1)


def trace_of(
    lengths: list[tuple[int, int]],
    ids: list[list[int]] | None = None,
    arrival_s: list[float] | None = None,
    *,
    outputs_too: bool = False,
) -> Trace:
    """Return a trace of (prompt, output) lengths, each with the ids of its blocks of 4."""
    prompt, output = np.array(lengths, np.int64).reshape(-1, 2).T
    named = ids or [[] for _ in lengths]
    return Trace(
        path=Path("by-hand"),
        format=TraceFormat("by hand", 4 if ids else 0, prefix_covers_output=outputs_too),
        arrival_s=np.array(arrival_s or [0.0] * len(lengths), np.float64),
        prompt_tokens=prompt,
        output_tokens=output,
        prefix_ids=np.array([name for names in named for name in names], np.int64),
        prefix_starts=np.cumsum([0, *map(len, named)]),
    )


def replayed(
    trace: Trace, blocks: int | None = None, limits: Limits | None = None, traffic: TrafficSettings = PLAIN
) -> SchedulerReport:
    """Replay a trace in blocks of 4."""
    return replay_scheduled(trace, ReplaySettings(block_size=4, blocks=blocks), limits or Limits(), traffic)


def test_a_small_trace_by_hand() -> None:
    """4 + 2, 3 + 1 and 1 + 0 tokens: all prompts in the first step, which gives each a token; one decodes once more."""
    report = replayed(trace_of([(4, 2), (3, 1), (1, 0)]))
    assert report.as_json() | {"seconds": 0} == {
        "requests": 3,
        "finished": 3,
        "refused": 0,
        "refused_requests": [],
        "cancelled": 0,
        "failed": 0,
        "steps": 2,
        "blocks": 4,
        "block_size": 4,
        "launched_tokens": 8 + 1,
        "prompt_tokens": 8,
        "hit_tokens": 0,
        "hit_percent": 0.0,
        "preemptions": 0,
        "recomputed_tokens": 0,
        "resumed_hit_tokens": 0,
        "evictions": 0,
        "peak_blocks": 3,
        "peak_running": 3,
        "seconds": 0,
    }


def test_chunks_of_a_prompt() -> None:
    """10 prompt tokens in steps of 4 tokens are 3 steps, the last of which gives the first output."""
    report = replayed(trace_of([(10, 2)]), limits=Limits(max_tokens_per_step=4))
    assert (report.counts.steps, report.counts.launched_tokens) == (4, 11)


def test_preemption_is_counted_with_what_it_costs() -> None:
    """3 blocks for two requests of 4 + 6: the second gives way with 5 known tokens, which are computed again later."""
    report = replayed(trace_of([(4, 6), (4, 6)]), blocks=3)
    counts = report.counts
    assert (counts.finished, counts.preemptions, counts.recomputed_tokens) == (2, 1, 5)
    assert counts.prompt_tokens == 8
    assert counts.launched_tokens == 9 + 4 + 9
    assert (counts.peak_blocks, counts.peak_running) == (3, 2)


def test_time_does_not_go_back_where_those_at_the_head_are_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two run at a time: the first pair in steps 0 to 4, the second in step 5; the third is cancelled as it waits.

    The last two come at steps 2 and 4, so both are there in step 6 and run together: 7 steps.
    """
    comes_at, outputs, cancelled = [0, 0, 1, 1, 1, 1, 2, 4], [5, 5, 1, 1, 1, 1, 1, 1], (4, 5)
    arrivals = [
        Arrival(request, at, 1, outputs[request], cancelled_after=0 if request in cancelled else -1)
        for request, at in enumerate(comes_at)
    ]
    monkeypatch.setattr(replay_scheduler, "trace_arrivals", lambda *_given: iter(arrivals))
    counts = replayed(trace_of([(1, each) for each in outputs]), limits=Limits(max_running=2)).counts
    assert (counts.finished, counts.cancelled, counts.steps) == (6, 2, 7)


def test_samples_share_their_prompt() -> None:
    """Two samples of 4 + 2: one block of prompt, which is full, and a block each for the first output."""
    report = replayed(trace_of([(4, 2)]), traffic=TrafficSettings(samples=2))
    counts = report.counts
    assert (report.blocks, counts.finished, counts.steps, counts.launched_tokens) == (4, 1, 2, 4 + 2)
    assert (counts.peak_blocks, counts.peak_running) == (3, 2)


def test_two_steps_ahead_nothing_is_computed_twice() -> None:
    report = replayed(trace_of([(4, 3), (3, 2)]), limits=Limits(steps_ahead=2))
    assert (report.counts.finished, report.counts.steps, report.counts.launched_tokens) == (2, 3, 6 + 4)


@pytest.mark.parametrize(("block_size", "hit_tokens"), [(1, 8 + 7), (2, 8 + 6), (4, 8 + 4), (8, 8)])
def test_hits_are_the_full_blocks_that_are_equal_less_one_token(block_size: int, hit_tokens: int) -> None:
    """Prompts of ids 1 2, then 1 2 3, then 1 2 again, then 2 1, one after the other.

    12 tokens begin with 8 that are known; of 8 known ones at most 7 are hit. At a block size of 1: 8 + 7.
    """
    trace = trace_of([(8, 1), (12, 1), (8, 1), (8, 1)], [[1, 2], [1, 2, 3], [1, 2], [2, 1]])
    settings = ReplaySettings(block_size=block_size)
    report = replay_scheduled(trace, settings, ONE_AT_A_TIME, PLAIN)
    assert report.counts.hit_tokens == hit_tokens
    assert report.counts.launched_tokens == 36 - hit_tokens


def test_without_a_prefix_cache_or_at_the_same_time_nothing_is_hit() -> None:
    trace = trace_of([(8, 1), (8, 1)], [[1, 2], [1, 2]])
    assert replayed(trace, limits=Limits(max_running=1, prefix_cache=False)).counts.hit_tokens == 0
    assert replayed(trace).counts.hit_tokens == 0
    assert replayed(trace, limits=ONE_AT_A_TIME).counts.hit_tokens == 4


def test_evictions_are_what_was_published_and_is_no_more() -> None:
    """3 blocks. Ids 1 2 fill two; 5 6 take one free and the block of 2; 1 2 hit the block of 1 and evict that of 6."""
    trace = trace_of([(8, 1), (8, 1), (8, 1)], [[1, 2], [5, 6], [1, 2]])
    report = replayed(trace, blocks=3, limits=ONE_AT_A_TIME)
    assert (report.counts.hit_tokens, report.counts.evictions) == (4, 2)
    assert replayed(trace, blocks=9, limits=ONE_AT_A_TIME).counts.evictions == 0


def test_a_preempted_request_finds_its_own_blocks() -> None:
    """As without ids, but the first block of 4 of the 5 known tokens is found when request 1 resumes."""
    trace = trace_of([(4, 5), (4, 5)], [[1], [2]])
    report = replayed(trace, blocks=3)
    assert (report.counts.preemptions, report.counts.resumed_hit_tokens, report.counts.recomputed_tokens) == (1, 4, 1)


def test_outputs_that_ids_cover_are_hit_by_who_goes_on() -> None:
    """5 + 4 tokens of ids 1 2 3, of which 8 are written; then a prompt of 9 with the same ids."""
    lengths, ids = [(5, 4), (9, 1)], [[1, 2, 3], [1, 2, 3]]
    assert replayed(trace_of(lengths, ids, outputs_too=True), limits=ONE_AT_A_TIME).counts.hit_tokens == 8
    assert replayed(trace_of(lengths, [[1, 2], [1, 2, 3]]), limits=ONE_AT_A_TIME).counts.hit_tokens == 4
    prefill = TrafficSettings(prefill_only=True)
    report = replayed(trace_of(lengths, ids, outputs_too=True), limits=ONE_AT_A_TIME, traffic=prefill)
    assert (report.counts.hit_tokens, report.counts.steps, report.counts.launched_tokens) == (4, 2, 5 + 5)


def test_refusals_by_name_while_the_rest_go_on() -> None:
    report = replayed(trace_of([(0, 0), (9, 1), (8, 2), (8, 1), (0, 5)]), blocks=2)
    assert report.refusals == (Refusal(0, "Empty"), Refusal(1, "TooLong"), Refusal(2, "TooLong"), Refusal(4, "Empty"))
    assert (report.requests, report.counts.finished) == (5, 1)
    assert replayed(trace_of([(0, 0)])).counts.steps == 0


def test_clocked_arrivals_and_idle_time() -> None:
    """Steps of 10 ms: request 1 arrives as request 0 decodes, request 2 a second later."""
    trace = trace_of([(1, 2), (2, 1), (4, 1)], arrival_s=[0.0, 0.010, 1.0])
    report = replay_scheduled(trace, ReplaySettings(block_size=4, step_ms=10), Limits(), PLAIN)
    assert (report.counts.steps, report.counts.peak_running) == (3, 2)


def test_priorities_are_drawn_and_served() -> None:
    """One at a time, each of its own arrival order; with priorities, the seed decides who finds whose blocks."""
    trace = trace_of([(8, 1)] * 8, [[1, 2], [1, 3], [1, 2], [4, 5]] * 2)
    limits = Limits(max_running=1, policy="priority")
    reports = [replayed(trace, 3, limits, TrafficSettings(seed=seed)) for seed in range(8)]
    assert {report.counts.finished for report in reports} == {8}
    assert len({report.counts.hit_tokens for report in reports}) > 1
    again = replayed(trace, 3, limits, TrafficSettings(seed=3)).counts
    assert again == reports[3].counts


def test_cancelled_requests_leave_and_are_counted() -> None:
    trace = trace_of([(5, 9)] * 40)
    for seed in range(5):
        counts = replayed(trace, 20, Limits(steps_ahead=2), TrafficSettings(cancel_rate=0.5, seed=seed)).counts
        assert counts.cancelled + counts.finished == 40
        assert 5 < counts.cancelled < 35
    assert replayed(trace, 20, traffic=TrafficSettings(cancel_rate=1.0)).counts.cancelled > 30


@given(
    requests=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9), st.integers(0, 50)), min_size=1, max_size=12),
    blocks=st.none() | st.integers(1, 12),
    step_ms=st.none() | st.sampled_from([0.5, 10.0]),
    steps_ahead=st.integers(1, 2),
    tokens=st.sampled_from([1, 5, 100]),
    samples=st.integers(1, 3),
)
def test_whatever_the_trace_all_that_can_finish_do(
    requests: list[tuple[int, int, int]],
    blocks: int | None,
    step_ms: float | None,
    steps_ahead: int,
    tokens: int,
    samples: int,
) -> None:
    trace = trace_of(
        [(prompt, output) for prompt, output, _ in requests], arrival_s=[at / 1000 for _, _, at in requests]
    )
    settings = ReplaySettings(block_size=4, blocks=blocks, step_ms=step_ms)
    limits = Limits(max_tokens_per_step=tokens, steps_ahead=steps_ahead)
    report = replay_scheduled(trace, settings, limits, TrafficSettings(samples=samples))
    final = [prompt + max(output, 1) - 1 for prompt, output, _ in requests]
    served = [
        name
        for name, (prompt, _, _) in enumerate(requests)
        if prompt and (blocks is None or samples * -(-final[name] // 4) <= blocks)
    ]
    assert report.counts.finished == len(served)
    assert {refusal.request for refusal in report.refusals} == set(range(len(requests))) - set(served)
    assert report.counts.prompt_tokens == sum(requests[name][0] for name in served)
    if blocks is None:
        written = [requests[name][0] + samples * (final[name] - requests[name][0]) for name in served]
        assert report.counts.launched_tokens == sum(written), "nobody gives way where there is room for all"


def test_tokens_are_equal_as_far_as_ids_are() -> None:
    trace = trace_of([(8, 2), (10, 2), (7, 9)], [[7, 3], [7, 3, 9], [7, 4]])
    tokens = TraceTokens(trace)
    first, second, third = (tokens.prompt(request).tolist() for request in range(3))
    assert (len(first), len(second), len(third)) == (8, 10, 7)
    for request, prompt in enumerate((first, second, third)):
        length = len(prompt)
        assert prompt == tokens.at(np.full(length, request), np.arange(length), np.zeros(length, np.int64)).tolist()
    assert first == second[:8]
    assert first[:4] == third[:4]
    assert not set(first[4:]) & set(third[4:])
    every = [tokens.at(np.full(4, 2), np.arange(7, 11), np.full(4, sample)).tolist() for sample in range(3)]
    assert len({*first, *second, *third, *(token for sample in every for token in sample)}) == 10 + 3 + 12


class _StopsEarly(Scheduler):
    def complete(self, launch: int, sampled: Integers, stopped: object = ()) -> Completion:  # noqa: ARG002  (it stops others)
        return super().complete(launch, sampled, stopped=[0])


class _StandsStill(Scheduler):
    def schedule(self) -> Plan:
        return super().schedule() if len(self.requests()) > 2 else NOTHING


class _Leaks(Scheduler):
    def __init__(self, cache: BlockCache, limits: Limits) -> None:
        super().__init__(cache, limits)
        cache.add(-1, 1)


@pytest.mark.parametrize(("kind", "said"), [(_StopsEarly, "R-CAP-2"), (_StandsStill, "R-LIFE-4"), (_Leaks, "R-OWN-4")])
def test_a_faulty_scheduler_is_found_out(kind: type[Scheduler], said: str) -> None:
    trace, settings = trace_of([(4, 2), (4, 2), (1, 1)]), ReplaySettings(block_size=4, blocks=6)
    with pytest.raises(Broken, match=said):
        replay_scheduled(trace, settings, Limits(), PLAIN, make_scheduler=kind)


def test_what_cannot_be_replayed_is_one_line() -> None:
    with pytest.raises(BadInput, match=r"--samples: 3 samples a request.*--max-running"):
        replayed(trace_of([(4, 2)]), limits=Limits(max_running=2), traffic=TrafficSettings(samples=3))
    with pytest.raises(BadInput, match=r"pool of 2,147,483,647 blocks"):
        replay_scheduled(trace_of([((1 << 31) - 1, 0)]), ReplaySettings(block_size=1), Limits(), PLAIN)

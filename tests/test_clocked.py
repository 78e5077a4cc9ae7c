"""The clocked replay on cases worked out by hand: blocks of 4 positions, and steps of 10 ms unless it is said."""

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pagedkv.bench import clocked
from pagedkv.bench.clocked import CacheSettings, ClockedOutcome, clocked_replay
from pagedkv.bench.failures import BadInput
from pagedkv.bench.latency_meter import LatencyLimits, LatencyMeter
from pagedkv.bench.manager_memory import state_bytes
from pagedkv.bench.meters import Meter, RecordMeter, Stretch
from pagedkv.bench.replay_arrivals import Arrival
from pagedkv.bench.step_time import StepTime
from pagedkv.bench.timeline_meter import TimelineMeter
from pagedkv.impl.cache import BlockCache
from pagedkv.impl.plans import NOTHING, Plan
from pagedkv.impl.requests import Limits
from pagedkv.impl.scheduler import Scheduler
from pagedkv.spec.refusals import Broken

TEN_MS = StepTime(base_ms=10)
ONE_AT_A_TIME = Limits(max_running=1)


class StretchMeter(Meter):
    """Keeps every stretch of time."""

    def __init__(self) -> None:
        self.stretches: list[Stretch] = []

    def passed(self, stretch: Stretch) -> None:
        self.stretches.append(stretch)


class Measured:
    """A replay in blocks of 4, and all that can be measured of it."""

    def __init__(
        self,
        arrivals: Iterable[Arrival],
        blocks: int = 100,
        limits: Limits | None = None,
        step_time: StepTime = TEN_MS,
        samples: int = 1,
        latency_limits: LatencyLimits | None = None,
    ) -> None:
        self.records, self.steps = RecordMeter(), StretchMeter()
        self.latency, self.timeline = LatencyMeter(latency_limits), TimelineMeter(blocks, 4)
        self.outcome: ClockedOutcome = clocked_replay(
            iter(arrivals),
            CacheSettings(blocks=blocks, block_size=4),
            limits or Limits(),
            step_time,
            [self.records, self.steps, self.latency, self.timeline],
            samples=samples,
        )

    def times_ms(self) -> dict[int, tuple[float, float, float]]:
        """Give (admitted, first token, last token) of each request that finished."""
        return {
            record.request: (record.admitted_ms, record.first_token_ms, record.last_token_ms)
            for record in self.records.records
        }


def test_two_requests_by_hand() -> None:
    """Request 0, 4 + 3 tokens, arrives at 0; request 1, 3 + 2, at 5, as the first step runs.

    Tokens of 0 are there at 10, 20, 30; request 1 is admitted at 10, and its tokens are there at 20 and 30.
    """
    limits = LatencyLimits(ttft_ms=12, tpot_ms=10)
    measured = Measured([Arrival(0, 0.0, 4, 3), Arrival(1, 5.0, 3, 2)], latency_limits=limits)
    assert measured.times_ms() == {0: (0, 10, 30), 1: (10, 20, 30)}
    first, second = measured.records.records
    assert (first.queueing_ms, first.ttft_ms, first.tpot_ms, first.e2e_ms) == (0, 10, 10, 30)
    assert (second.queueing_ms, second.ttft_ms, second.tpot_ms, second.e2e_ms) == (5, 15, 10, 25)
    latency = measured.latency
    means = {name: times.mean for name, times in latency.latencies().items()}
    assert means == {"queueing": 2.5, "ttft": 12.5, "tpot": 10, "itl": 10, "e2e": 27.5}
    assert (latency.itl.count, latency.tpot.count, latency.ttft.most) == (3, 2, 15)
    assert (latency.makespan_s, latency.good_requests) == (0.030, 1)
    assert latency.goodput_per_s == pytest.approx(1 / 0.030)
    assert measured.outcome.sequence_steps == 1 + 2 + 2


def test_what_there_is_over_time_by_hand() -> None:
    """The same two: 1, 3 and 3 blocks are held; 4, then 5 + 3, then 6 + 4 positions leave 0, 3 + 1, 2 + 0 slots."""
    measured = Measured([Arrival(0, 0.0, 4, 3), Arrival(1, 5.0, 3, 2)], blocks=10)
    held = [(step.begin_ms, step.end_ms, step.running, step.held_blocks) for step in measured.steps.stretches]
    assert held == [(0, 10, 1, 1), (10, 20, 2, 3), (20, 30, 2, 3)]
    assert [step.tail_tokens for step in measured.steps.stretches] == [0, 4, 2]
    computed = [(step.prompt_tokens, step.decoding_rows, step.context_tokens) for step in measured.steps.stretches]
    assert computed == [(4, 0, 4), (3, 1, 8), (0, 2, 10)]
    averages = measured.timeline.averages()
    assert averages["running"] == pytest.approx(5 / 3)
    assert averages["cache_usage_percent"] == pytest.approx(100 * 7 / 3 / 10)
    assert averages["tail_tokens"] == pytest.approx(2)
    assert averages["tail_waste_percent"] == pytest.approx(100 * 6 / (7 * 4))


def test_a_step_lasts_what_its_tokens_rows_and_context_cost() -> None:
    """4 prompt tokens, 4 positions read: 10 + 4 + 4. Then one row: 10 + 1 + 100 + 5."""
    step_time = StepTime(base_ms=10, token_ms=1, row_ms=100, context_ms=1000)
    measured = Measured([Arrival(0, 0.0, 4, 2)], step_time=step_time)
    assert measured.times_ms() == {0: (0, 18, 18 + 116)}


def test_chunks_of_a_prompt_read_what_was_before() -> None:
    """10 prompt tokens by 4: chunks that read 4, 8 and 10 positions."""
    measured = Measured(
        [Arrival(0, 0.0, 10, 1)], limits=Limits(max_tokens_per_step=4), step_time=StepTime(context_ms=1000)
    )
    assert measured.times_ms() == {0: (0, 22, 22)}
    assert measured.latency.tpot.count == measured.latency.itl.count == 0


def test_who_waits_is_queueing_and_ties_keep_their_order() -> None:
    measured = Measured([Arrival(7, 3.0, 1, 2), Arrival(5, 3.0, 1, 2), Arrival(6, 4.0, 1, 1)], limits=ONE_AT_A_TIME)
    assert measured.times_ms() == {7: (3, 13, 23), 5: (23, 33, 43), 6: (43, 53, 53)}
    assert [step.waiting for step in measured.steps.stretches] == [1, 2, 1, 1, 0]
    assert measured.latency.queueing.most == 39


def test_who_arrives_while_a_step_runs_waits_for_its_end() -> None:
    """Little's law: steps of 100 ms up to 2,100; request 0 runs in all, and nine come at 30, 230, ... for one step.

    Each of the nine is seen 70 ms after its arrival, and admitted at once: 9 * 70 ms in 2,100 ms.
    """
    arrivals = [Arrival(0, 0.0, 4, 21), *(Arrival(1 + each, 30.0 + 200 * each, 4, 1) for each in range(9))]
    measured = Measured(arrivals, step_time=StepTime(base_ms=100))
    whole_ms, requests = 2100, 10
    assert measured.steps.stretches[-1].end_ms == whole_ms
    assert [stretch.waiting for stretch in measured.steps.stretches] == [0] * 21
    assert measured.latency.queueing.total == 9 * 70
    waiting = measured.timeline.averages()["waiting"]
    assert waiting == pytest.approx(9 * 70 / whole_ms)
    assert waiting == pytest.approx(requests / whole_ms * measured.latency.queueing.mean), "lambda times W is L"
    assert measured.timeline.points()["waiting"].tolist()[:4] == pytest.approx([0.7, 0, 0.7, 0])
    assert measured.timeline.peak_waiting == 0


def test_priorities_go_before_the_order_of_arrival() -> None:
    arrivals = [Arrival(0, 0.0, 1, 2), Arrival(1, 1.0, 1, 1, priority=9), Arrival(2, 2.0, 1, 1, priority=1)]
    measured = Measured(arrivals, limits=Limits(max_running=1, policy="priority"))
    assert measured.times_ms() == {0: (0, 10, 20), 2: (20, 30, 30), 1: (30, 40, 40)}


def test_time_in_which_nothing_runs_is_passed_over_and_counts() -> None:
    """A step from 0 to 10 and one from 990 to 1,000."""
    measured = Measured([Arrival(0, 0.0, 4, 1), Arrival(1, 990.0, 4, 1)], blocks=1)
    assert [(step.begin_ms, step.end_ms, step.running) for step in measured.steps.stretches] == [
        (0, 10, 1),
        (10, 990, 0),
        (990, 1000, 1),
    ]
    averages = measured.timeline.averages()
    assert averages["running"] == pytest.approx(20 / 1000)
    assert averages["cache_usage_percent"] == pytest.approx(2)


def test_preemption_shows_as_a_gap_between_tokens() -> None:
    """3 blocks for two of 4 + 6: request 1 gives way at 10 with a token, and has its next at 70, after request 0."""
    measured = Measured([Arrival(0, 0.0, 4, 6), Arrival(1, 0.0, 4, 6)], blocks=3)
    assert measured.times_ms() == {0: (0, 10, 60), 1: (0, 10, 110)}
    itl, tpot = measured.latency.itl, measured.latency.tpot
    assert (itl.count, itl.most, itl.mean) == (10, 60, 15)
    assert (tpot.least, tpot.most) == (10, 20)
    assert measured.outcome.scheduled.counts.preemptions == 1
    assert measured.timeline.averages()["waiting"] == pytest.approx(50 / 110)


def test_two_steps_ahead_an_arrival_misses_the_step_that_is_planned() -> None:
    """At 0 steps to 10 and to 20 are planned; request 1 comes at 5, is planned at 10, and runs from 20 to 30."""
    arrivals = [Arrival(0, 0.0, 4, 3), Arrival(1, 5.0, 3, 1)]
    assert Measured(arrivals).times_ms() == {0: (0, 10, 30), 1: (10, 20, 20)}
    assert Measured(arrivals, limits=Limits(steps_ahead=2)).times_ms() == {0: (0, 10, 30), 1: (10, 30, 30)}


def test_two_steps_ahead_an_arrival_is_planned_at_once_where_nothing_is() -> None:
    measured = Measured([Arrival(0, 0.0, 4, 1), Arrival(1, 5.0, 3, 1)], limits=Limits(steps_ahead=2))
    assert measured.times_ms() == {0: (0, 10, 10), 1: (5, 20, 20)}


def test_samples_have_gaps_of_their_own_and_one_record() -> None:
    measured = Measured([Arrival(0, 0.0, 4, 3)], samples=2)
    assert measured.times_ms() == {0: (0, 10, 30)}
    assert (measured.latency.itl.count, measured.latency.itl.mean, measured.latency.tpot.mean) == (4, 10, 10)


def test_refused_and_cancelled_requests_have_no_latency() -> None:
    """Nothing to compute; more than the pool has; cancelled as it waits; cancelled two steps after its admission."""
    arrivals = [
        Arrival(0, 0.0, 0, 3),
        Arrival(1, 0.0, 40, 3),
        Arrival(2, 0.0, 4, 1, cancelled_after=0),
        Arrival(3, 0.0, 4, 9, cancelled_after=2),
        Arrival(4, 0.0, 4, 3),
    ]
    measured = Measured(arrivals, blocks=9)
    scheduled = measured.outcome.scheduled
    assert (scheduled.requests, scheduled.refused, scheduled.counts.cancelled, scheduled.counts.finished) == (
        5,
        2,
        2,
        1,
    )
    assert [(refusal.request, refusal.reason) for refusal in scheduled.refusals] == [(0, "Empty"), (1, "TooLong")]
    assert list(measured.times_ms()) == [4]
    assert measured.latency.ttft.count == 1
    assert measured.latency.itl.count == 1 + 2, "the token that request 3 had before it was cancelled counts"


def test_makespan_is_from_the_first_arrival_to_the_last_token_of_whoever_it_is() -> None:
    """Request 0 is refused at 0; 1 runs from 5 to 25; 2 has tokens at 35 and 45, and is cancelled as a third runs."""
    arrivals = [
        Arrival(0, 0.0, 0, 3),
        Arrival(1, 5.0, 4, 2),
        Arrival(2, 6.0, 4, 9, cancelled_after=2),
    ]
    latency = Measured(arrivals, limits=ONE_AT_A_TIME).latency
    assert (latency.finished_requests, latency.itl.count) == (1, 2), "of each of the two a second token"
    assert latency.makespan_s == pytest.approx(0.045)
    assert latency.goodput_per_s == pytest.approx(1 / 0.045)


def test_limits_that_nothing_meets_give_no_goodput() -> None:
    measured = Measured([Arrival(0, 0.0, 4, 3)], latency_limits=LatencyLimits(ttft_ms=9.9))
    assert (measured.latency.goodput_per_s, measured.latency.finished_requests) == (0.0, 1)


def test_a_request_of_one_token_keeps_every_tpot_limit() -> None:
    measured = Measured([Arrival(0, 0.0, 4, 1), Arrival(1, 0.0, 4, 2)], latency_limits=LatencyLimits(tpot_ms=9.9))
    assert measured.latency.good_requests == 1


def test_nothing_at_all_is_measured_as_nothing() -> None:
    measured = Measured([])
    assert (measured.outcome.scheduled.requests, measured.latency.makespan_s, measured.latency.goodput_per_s) == (
        0,
        0,
        0,
    )
    assert measured.timeline.averages()["cache_usage_percent"] == 0
    assert measured.latency.as_json()["ttft_ms"] is None


def test_arrivals_out_of_order_are_one_line() -> None:
    with pytest.raises(BadInput, match=r"request 1: it arrives before request 0, which comes first; sort"):
        Measured([Arrival(0, 5.0, 4, 1), Arrival(1, 4.0, 4, 1)])


class _Watched(Scheduler):
    """A scheduler that the test can look into."""

    newest: "list[_Watched]" = []  # noqa: RUF012  (one list on purpose: where the replay's own is found)

    def __init__(self, cache: BlockCache, limits: Limits) -> None:
        super().__init__(cache, limits)
        self.newest[:] = [self]


class _TailMeter(Meter):
    """Compares the tail waste that it is told with the lengths that the cache has."""

    seen = 0

    def passed(self, stretch: Stretch) -> None:
        cache = _Watched.newest[0].cache
        assert stretch.tail_tokens == sum(-lengths.allocated % 4 for _, _, lengths in cache.live())
        self.seen += 1


@given(
    requests=st.lists(
        st.tuples(st.integers(0, 20), st.integers(1, 9), st.integers(0, 30), st.sampled_from([-1, -1, -1, 0, 2])),
        min_size=1,
        max_size=12,
    ),
    blocks=st.integers(1, 30),
    steps_ahead=st.integers(1, 2),
    tokens=st.sampled_from([1, 5, 100]),
    samples=st.integers(1, 3),
    policy=st.sampled_from(["fcfs", "priority"]),
)
def test_whatever_comes_time_is_whole_and_latencies_add_up(
    requests: list[tuple[int, int, int, int]], blocks: int, steps_ahead: int, tokens: int, samples: int, policy: str
) -> None:
    arrivals, at_ms = [], 0.0
    for request, (prompt, outputs, gap, cancelled) in enumerate(requests):
        at_ms += gap
        arrivals.append(Arrival(request, at_ms, prompt, outputs, 255 - request, cancelled))
    limits = Limits(
        max_tokens_per_step=tokens, steps_ahead=steps_ahead, policy="fcfs" if policy == "fcfs" else "priority"
    )
    records, steps, latency, tails = RecordMeter(), StretchMeter(), LatencyMeter(), _TailMeter()
    timeline = TimelineMeter(blocks, 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clocked, "Scheduler", _Watched)
        settings = CacheSettings(blocks=blocks, block_size=4)
        outcome = clocked_replay(
            iter(arrivals), settings, limits, TEN_MS, [records, steps, latency, tails, timeline], samples=samples
        )
    counts = outcome.scheduled.counts
    assert counts.finished + counts.cancelled + outcome.scheduled.refused == len(requests)
    assert len(records.records) == counts.finished
    assert tails.seen == len(steps.stretches)
    for before, after in zip(steps.stretches, steps.stretches[1:], strict=False):
        assert before.end_ms == after.begin_ms, "time has no holes"
    for record in records.records:
        assert record.arrival_ms <= record.admitted_ms < record.first_token_ms <= record.last_token_ms
        assert record.last_token_ms - record.first_token_ms >= 10 * (record.outputs - 1)
    if not counts.cancelled:
        assert latency.itl.count == samples * sum(record.outputs - 1 for record in records.records)
    if samples == 1 and not counts.cancelled:
        spans = sum(record.last_token_ms - record.first_token_ms for record in records.records)
        assert latency.itl.total == pytest.approx(spans)
    if steps_ahead == 1 and len(records.records) == len(requests) and not counts.preemptions:
        whole_ms = steps.stretches[-1].end_ms - steps.stretches[0].begin_ms
        waited_ms = sum(record.queueing_ms for record in records.records)
        assert timeline.averages()["waiting"] * whole_ms == pytest.approx(waited_ms), "Little's law"


class _StopsForGood(Scheduler):
    def schedule(self) -> Plan:
        return NOTHING


def test_a_faulty_scheduler_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocked, "Scheduler", _StopsForGood)
    with pytest.raises(Broken, match="R-LIFE-4"):
        Measured([Arrival(0, 0.0, 4, 1)])


def test_memory_does_not_grow_with_the_number_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a replay has at its end, cache and meters included, after 500 and 4,000 requests of one pattern.

    Some are refused, cancelled or preempted. What is kept by name of the refused is bounded, and left out.
    """
    loops: list[object] = []

    class Kept(clocked._ClockedLoop):  # the replay itself has no use for it after its end
        def close(self) -> None:
            super().close()
            self.refusals.clear()
            loops.append(self)

    monkeypatch.setattr(clocked, "_ClockedLoop", Kept)

    def bytes_at_the_end(requests: int) -> int:
        arrivals = (
            Arrival(request, 8.0 * request, request % 23, 1 + request % 7, 0, 2 if request % 9 == 0 else -1)
            for request in range(requests)
        )
        settings, limits = CacheSettings(blocks=18, block_size=4), Limits(max_running=16)
        outcome = clocked_replay(arrivals, settings, limits, TEN_MS, [LatencyMeter()])
        counts = outcome.scheduled.counts
        assert counts.preemptions > 10
        assert counts.finished + counts.cancelled + outcome.scheduled.refused == requests
        return state_bytes(loops.pop())

    few, many = bytes_at_the_end(500), bytes_at_the_end(4000)
    assert many - few < 3500, "less than a byte for each request more"


def test_refusals_without_end_are_counted_and_the_first_named() -> None:
    measured = Measured(Arrival(request, 0.0, 0, 1) for request in range(1200))
    assert (measured.outcome.scheduled.refused, len(measured.outcome.scheduled.refusals)) == (1200, 1000)
    assert np.isclose(measured.latency.makespan_s, 0)

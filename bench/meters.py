"""What a clocked replay tells whoever measures it: whole arrays a step, one record a request.

A meter hears of every request that arrives, of every stretch of simulated time, of every batch of tokens and of every
request that finishes. It takes what it wants: `LatencyMeter` latencies, `TimelineMeter` what ran and what the cache
held, `RecordMeter` every request. Meters are told by slot of the scheduler (`impl.running`), a number that a request's
sample keeps from its first admission to its end, so what a meter has to remember of a sample is an array with a few
numbers a slot.
"""

from typing import NamedTuple

from pagedkv.impl.arrays import IndexArray


class Stretch(NamedTuple):
    """A step, or time in which nothing runs: from when to when, and what there was in it.

    All as it was once the step was planned. `running` are sequences, `waiting` requests. `held_blocks` are in block
    tables, `quarantined_blocks` wait for a launch in flight, `cached_blocks` are idle and can be hit or evicted.
    `tail_tokens` are slots of last blocks that stay empty. The last three say what the step computes.
    """

    begin_ms: float
    end_ms: float
    running: int = 0
    waiting: int = 0
    held_blocks: int = 0
    quarantined_blocks: int = 0
    cached_blocks: int = 0
    tail_tokens: int = 0
    prompt_tokens: int = 0
    decoding_rows: int = 0
    context_tokens: int = 0


class RequestRecord(NamedTuple):
    """A request that has finished: when what happened to it, in ms of simulated time.

    `outputs` are those of one sample; with several samples the first token is the first of any, the last of all.
    """

    request: int
    arrival_ms: float
    admitted_ms: float  # for the first time
    first_token_ms: float
    last_token_ms: float
    prompt_tokens: int
    outputs: int

    @property
    def queueing_ms(self) -> float:
        """How long it waited for its first admission."""
        return self.admitted_ms - self.arrival_ms

    @property
    def ttft_ms(self) -> float:
        """Time to first token, from arrival."""
        return self.first_token_ms - self.arrival_ms

    @property
    def tpot_ms(self) -> float | None:
        """Time per output token behind the first, None where there is only that one."""
        if self.outputs < 2:
            return None
        return (self.last_token_ms - self.first_token_ms) / (self.outputs - 1)

    @property
    def e2e_ms(self) -> float:
        """End-to-end latency: from arrival to the last token."""
        return self.last_token_ms - self.arrival_ms


class Meter:
    """Hears of everything and takes nothing down: for others to inherit."""

    def arrived(self, arrival_ms: float, seen_ms: float) -> None:
        """Hear of a request, in order of arrival, and when it was seen: at an end of a step, if a step ran.

        No stretch before `seen_ms` counts it as waiting.
        """

    def passed(self, stretch: Stretch) -> None:
        """Hear of a stretch of time; they come in order and without gaps."""

    def sampled(self, slots: IndexArray, firsts: IndexArray | None, at_ms: float) -> None:
        """Hear which slots have been given a token, and which of these their first (None: none of them)."""

    def finished(self, record: RequestRecord) -> None:
        """Hear of a request that is done."""


class RecordMeter(Meter):
    """Keeps the record of every request that finishes: for traces that fit into memory, some 200 bytes a request."""

    def __init__(self) -> None:
        self.records: list[RequestRecord] = []

    def finished(self, record: RequestRecord) -> None:
        """Keep a record."""
        self.records.append(record)

"""What paging buys: the same trace through the same memory, paged, reserved for the longest, and grown in place.

Three schemes, one replay (`replay`), the same number of token slots:

- *paging*: the real manager with blocks of B tokens.
- *reservation*: every sequence gets the longest context at once, in one piece, as engines did before paging (Orca,
  OSDI'22, in the reading of the PagedAttention paper, SOSP'23). That is paging with B = the longest context and one
  block a sequence, so the same manager runs it; a longer request is refused.
- *exact growth*: every sequence has exactly its tokens in one piece and is copied where it can't grow
  (`contiguous_engine`).

A `Recorder` between replay and engine looks at each launch. Memory is then in five parts that add up to it:
*used* by tokens; *internal* fragmentation, reserved and not used; *in flight*, left by sequences that are gone, and
not free before the device is done (one step late, where the manager has launches in flight); *external* fragmentation,
free and of no use to who asks next for a large piece: outside the largest free run, or the remainder that is no whole
block; and *free*.

Cost: that of three replays. Exact growth copies tokens in bookkeeping alone.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from pagedkv.bench.contiguous_engine import ContiguousEngine, open_contiguous_engine
from pagedkv.bench.engines import Engine, EngineOptions, Holding, Usage
from pagedkv.bench.impl_engine import open_impl_engine
from pagedkv.bench.replay import replay
from pagedkv.bench.replay_queue import FinalLength, ReplaySettings, final_tokens
from pagedkv.bench.replay_report import ReplayReport
from pagedkv.bench.traces import Int64Array, Trace

PARTS = ("used", "internal", "in_flight", "external", "free")


@dataclass(slots=True)
class Samples:
    """Memory at each launch, in token slots, and the sequences in it."""

    used: list[int] = field(default_factory=list)
    internal: list[int] = field(default_factory=list)
    in_flight: list[int] = field(default_factory=list)
    external: list[int] = field(default_factory=list)
    free: list[int] = field(default_factory=list)
    running: list[int] = field(default_factory=list)

    def mean(self, part: str) -> float:
        """The mean of a part over all launches: what a step sees on average."""
        values: list[int] = getattr(self, part)
        return float(np.mean(values)) if values else 0.0


class Recorder:
    """An engine that passes everything on to another and samples memory at each launch; `slots` is all there is."""

    def __init__(self, engine: Engine, slots: int, block_size: int, samples: Samples) -> None:
        self._engine = engine
        self._slots = slots
        self._block_size = block_size
        self._samples = samples
        self._tokens = 0
        self._running = 0

    def add(self, seq: int, tokens: int) -> int:
        """See `Engine`."""
        taken = self._engine.add(seq, tokens)
        self._tokens += tokens
        self._running += 1
        return taken

    def extend(self, seqs: Int64Array) -> int:
        """See `Engine`."""
        taken = self._engine.extend(seqs)
        self._tokens += len(seqs)
        return taken

    def launch(self, seqs: Int64Array, counts: Int64Array) -> int:
        """See `Engine`; the moment at which all that runs is in memory."""
        launch = self._engine.launch(seqs, counts)
        usage, size, samples = self._engine.usage(), self._block_size, self._samples
        free = usage.free * size
        external = self._slots - (usage.free + usage.held + usage.quarantined) * size
        if isinstance(self._engine, ContiguousEngine):
            external = free - self._engine.largest_free_run
            free -= external
        samples.used.append(self._tokens)
        samples.internal.append(usage.held * size - self._tokens)
        samples.in_flight.append(usage.quarantined * size)
        samples.external.append(external)
        samples.free.append(free)
        samples.running.append(self._running)
        return launch

    def retire(self, launch: int) -> None:
        """See `Engine`."""
        self._engine.retire(launch)

    def release(self, seq: int) -> None:
        """See `Engine`."""
        self._tokens -= self._engine.holding(seq).launched_tokens
        self._running -= 1
        self._engine.release(seq)

    def holding(self, seq: int) -> Holding:
        """See `Engine`."""
        return self._engine.holding(seq)

    def usage(self) -> Usage:
        """See `Engine`."""
        return self._engine.usage()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a scheme did: its replay, memory over time, and what exact growth copied (elsewhere 0).

    `beyond_reservation` requests are longer than what is reserved, and were refused before the replay.
    """

    scheme: str
    report: ReplayReport
    samples: Samples
    beyond_reservation: int = 0
    relocations: int = 0
    compactions: int = 0
    copied_tokens: int = 0

    @property
    def copied_tokens_a_token(self) -> float:
        """How many tokens are copied for each token that finished requests held."""
        return self.copied_tokens / max(self.report.counts.logical_tokens, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineSettings:
    """`slots` of memory in tokens; the block size of paging; the longest context that reservation provides for."""

    slots: int
    block_size: int
    max_context: int
    step_ms: float | None
    final_length: FinalLength


def schemes(settings: BaselineSettings) -> dict[str, int]:
    """Give the schemes and their block sizes, in the order in which they are compared."""
    return {"paging": settings.block_size, "reservation": settings.max_context, "exact growth": 1}


def run_scheme(
    trace: Trace, settings: BaselineSettings, scheme: str, on_finished: Callable[[int], None] = lambda _finished: None
) -> Outcome:
    """Replay a trace under one scheme. Errors: those of `replay`."""
    block_size = schemes(settings)[scheme]
    how = ReplaySettings(
        block_size=block_size,
        blocks=max(1, settings.slots // block_size),
        step_ms=settings.step_ms,
        final_length=settings.final_length,
    )
    served = _not_longer(trace, settings) if scheme == "reservation" else trace
    samples, engines = Samples(), list[Engine]()
    opened = open_contiguous_engine if scheme == "exact growth" else partial(open_impl_engine, journal=None)

    @contextmanager
    def recorded(options: EngineOptions) -> Iterator[Recorder]:
        context: AbstractContextManager[Engine] = opened(options)
        with context as engine:
            engines.append(engine)
            yield Recorder(engine, settings.slots, block_size, samples)

    report = replay(served, how, recorded, on_finished)
    (engine,) = engines
    beyond = len(trace) - len(served)
    if not isinstance(engine, ContiguousEngine):
        return Outcome(scheme=scheme, report=report, samples=samples, beyond_reservation=beyond)
    return Outcome(
        scheme=scheme,
        report=report,
        samples=samples,
        relocations=engine.relocations,
        compactions=engine.compactions,
        copied_tokens=engine.copied_tokens,
    )


def _not_longer(trace: Trace, settings: BaselineSettings) -> Trace:
    """Give the requests of a trace that one reservation holds, without prefixes."""
    kept = final_tokens(trace, settings.final_length) <= settings.max_context
    return replace(
        trace,
        arrival_s=trace.arrival_s[kept],
        prompt_tokens=trace.prompt_tokens[kept],
        output_tokens=trace.output_tokens[kept],
        prefix_ids=np.empty(0, np.int64),
        prefix_starts=np.zeros(int(kept.sum()) + 1, np.int64),
    )

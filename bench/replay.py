"""Replay a request trace through a paged KV-cache manager, step by step, as an engine with continuous batching would.

One iteration (Orca, OSDI'22) is one step:

1. Every running sequence gets room for one more token (`extend`).
2. Waiting requests are admitted first come, first served, each with its whole prompt (`add`), as long as the pool can
   hold the *final* length of it and of all that run, less what is in quarantine. Nobody overtakes the head of the
   queue. So an extension never lacks a block, and nothing is ever preempted.
3. One launch writes all of it: a token of each running sequence, the prompts of those just admitted.
4. Sequences whose last position this launch writes are released, while it is still in flight: their blocks are
   quarantined until it has retired.
5. The launch of the step before is retired: the host runs one step ahead of the device, at most two are in flight.

A launch samples one token a sequence, the prompt's launch the first of them, and the KV of the last one is never
written: a finished request holds prompt + output - 1 positions (`FinalLength`; `prompt+output` also writes the last).
A request without output tokens holds its prompt, and one without a prompt can't start: it is refused as `Empty`. One
that no empty pool could hold is refused as `TooLong` as soon as it arrives, that is, before it waits for anything.

Unclocked (no `step_ms`), all requests wait at step 0; with it, a request waits from the first step that starts at or
after its arrival, and steps in which nothing runs or waits are passed over. Without `blocks` the pool is as large as
all requests together, so that nothing waits for space.

All figures are read off the engine (blocks taken, entries held at the end), not computed from the lengths, and are
compared with the lengths where both are known. Cost: one batch call of each kind a step, and numpy arrays of the
running set between them, so it is proportional to the tokens decoded.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from pagedkv.bench.engines import Engine, EngineFactory, EngineOptions
from pagedkv.bench.replay_queue import Queue, ReplaySettings, enqueue
from pagedkv.bench.replay_report import ReplayCounts, ReplayReport
from pagedkv.bench.traces import Int64Array, Trace
from pagedkv.impl.refusals import Refused
from pagedkv.spec.counts import counted
from pagedkv.spec.refusals import Broken

LAUNCHES_IN_FLIGHT = 2


@dataclass(slots=True)
class _Running:
    """The running set, in order of admission: queue positions, names, and the step of the last launch of each."""

    position: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    name: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    last_step: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))

    def join(self, position: Int64Array, name: Int64Array, last_step: Int64Array) -> None:
        self.position = np.concatenate((self.position, position))
        self.name = np.concatenate((self.name, name))
        self.last_step = np.concatenate((self.last_step, last_step))

    def keep(self, which: npt.NDArray[np.bool_]) -> None:
        self.position, self.name, self.last_step = self.position[which], self.name[which], self.last_step[which]


def replay(
    trace: Trace,
    settings: ReplaySettings,
    open_engine: EngineFactory,
    on_finished: Callable[[int], None] = lambda _finished: None,
) -> ReplayReport:
    """Replay `trace` and report what the engine did. `on_finished` hears the number of finished requests each step.

    Errors: `BadInput` for a pool or tables beyond reason; `Broken` where the engine contradicts the lengths, refuses
    what was reserved, stands still, or has not all blocks free at the end. Cost: proportional to requests and tokens.
    """
    queue, refusals, blocks = enqueue(trace, settings)
    options = EngineOptions(
        blocks=blocks,
        block_size=settings.block_size,
        rows=max(1, min(len(queue.name), blocks)),
        blocks_per_row=int(queue.need.max(initial=1)),
        launches_in_flight=LAUNCHES_IN_FLIGHT,
    )
    start_s = time.perf_counter()
    with open_engine(options) as engine:
        loop = _Loop(engine, queue, blocks)
        try:
            while loop.counts.finished < len(queue.name):
                loop.step()
                on_finished(loop.counts.finished)
            loop.drain()
        except Refused as refused:
            reason = type(refused).__name__
            raise Broken("R-CAP-1", f"{reason} in step {loop.now} though all was reserved: {refused}") from refused
    return ReplayReport(
        requests=len(trace),
        blocks=blocks,
        block_size=settings.block_size,
        seconds=time.perf_counter() - start_s,
        refusals=refusals,
        counts=loop.counts,
    )


class _Loop:
    """The state of a replay between two steps: who runs, who waits (from `head` on), what is in flight."""

    def __init__(self, engine: Engine, queue: Queue, blocks: int) -> None:
        self.engine = engine
        self.queue = queue
        self.blocks = blocks
        self.counts = ReplayCounts()
        self.running = _Running()
        self.now = 0
        self.head = 0
        self.reserved = 0
        self.in_flight: int | None = None

    def step(self) -> None:
        """Do one iteration; pass over the time in which nothing happens."""
        decoding = len(self.running.name)
        if decoding:
            self._count_allocation(self.engine.extend(self.running.name), growth=True)
        admitted = self._admit()
        counts = self.counts
        counts.peak_running = max(counts.peak_running, len(self.running.name))
        counts.peak_blocks = max(counts.peak_blocks, self.blocks - self.engine.usage().free)
        earlier, self.in_flight = self.in_flight, None
        if len(self.running.name):
            tokens = np.concatenate((np.ones(decoding, np.int64), self.queue.prompt[admitted]))
            self.in_flight = self.engine.launch(self.running.name, tokens)
            counts.steps += 1
            self._finish()
        elif earlier is None:
            self._idle()
            return
        if earlier is not None:
            self.engine.retire(earlier)
        self.now += 1

    def drain(self) -> None:
        """Retire what is left and see that every block came back."""
        if self.in_flight is not None:
            self.engine.retire(self.in_flight)
            self.in_flight = None
        usage = self.engine.usage()
        if usage.free != self.blocks:
            raise Broken("R-OWN-4", f"after the replay {usage.free} of {self.blocks} blocks are free ({usage})")

    def _admit(self) -> slice:
        """Start the waiting requests that fit now, in order; give their positions in the queue."""
        queue, first = self.queue, self.head
        if first == len(queue.name) or queue.arrival_step[first] > self.now:
            return slice(first, first)
        arrived = int(np.searchsorted(queue.arrival_step, self.now, side="right"))
        room = self.blocks - self.reserved - self.engine.usage().quarantined
        fitting = int(np.searchsorted(queue.need_before, queue.need_before[first] + room, side="right")) - 1
        admitted = slice(first, max(first, min(arrived, fitting)))
        for name, prompt in zip(queue.name[admitted].tolist(), queue.prompt[admitted].tolist(), strict=True):
            self._count_allocation(self.engine.add(name, prompt), growth=False)
        if admitted.stop > first:
            decode_steps = queue.final[admitted] - queue.prompt[admitted]
            self.running.join(np.arange(first, admitted.stop), queue.name[admitted], self.now + decode_steps)
            self.reserved += int(queue.need[admitted].sum())
            self.head = admitted.stop
        return admitted

    def _finish(self) -> None:
        """Release the sequences whose last position the launch just submitted writes."""
        done = self.running.last_step == self.now
        if not done.any():
            return
        positions = self.running.position[done]
        for name, final in zip(self.queue.name[positions].tolist(), self.queue.final[positions].tolist(), strict=True):
            holding = self.engine.holding(name)
            if holding.launched_tokens != final:
                raise Broken(
                    "R-CAP-2", f"request {name} ends with {counted(holding.launched_tokens, 'token')}, not with {final}"
                )
            self.counts.logical_tokens += holding.launched_tokens
            self.counts.block_table_entries += holding.block_table_entries
            self.engine.release(name)
        self.counts.finished += len(positions)
        self.reserved -= int(self.queue.need[positions].sum())
        self.running.keep(~done)

    def _idle(self) -> None:
        """Nothing runs and nothing is in flight: go on to the next arrival, which finds an empty pool."""
        arrival_step = int(self.queue.arrival_step[self.head])
        if arrival_step <= self.now:
            name, usage = self.queue.name[self.head], self.engine.usage()
            raise Broken("R-LIFE-4", f"nothing runs, nothing is in flight, and request {name} finds no room ({usage})")
        self.now = arrival_step

    def _count_allocation(self, taken: int, *, growth: bool) -> None:
        self.counts.allocations += taken
        self.counts.allocation_calls += taken > 0
        self.counts.growth_allocations += taken if growth else 0

"""The spec's reference model as an engine: slow, plain, and right by definition.

It takes the spec's own steps on the spec's frozen state, so a replay through it shows what the implementation's replay
should have shown; the two journals can be compared line by line. Executing a launch, which is the device's move and
no manager's, is done here when it retires, in the order that the spec demands.

Cost: some 50 us a token and more as more run (every step copies what it changes): for the first few hundred requests
of a trace, not for all of it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pagedkv.bench.engines import EngineOptions, Holding, Usage
from pagedkv.bench.traces import Int64Array
from pagedkv.impl import refusals
from pagedkv.impl.journal import JournalWriter
from pagedkv.spec import operations
from pagedkv.spec.outcome import Outcome, Result
from pagedkv.spec.refusals import Refused
from pagedkv.spec.state import Config, initial


class SpecEngine:
    """See `Engine`. A refusal of the spec is raised as the implementation's of the same name."""

    def __init__(self, options: EngineOptions, journal: JournalWriter | None) -> None:
        self._state = initial(Config(options.blocks, options.block_size, launches=options.launches_in_flight))
        self._journal = journal

    def add(self, seq: int, tokens: int) -> int:
        """See `Engine`."""
        outcome = self._step(operations.add, seq, tokens)
        if self._journal:
            self._journal.add(seq, tokens, list(outcome.blocks))
        return len(outcome.blocks)

    def extend(self, seqs: Int64Array) -> int:
        """See `Engine`."""
        outcome = self._step(operations.extend, tuple((seq, 1) for seq in seqs.tolist()))
        if self._journal:
            self._journal.extend(seqs, 1, list(outcome.blocks), outcome.copies)
        return len(outcome.blocks)

    def launch(self, seqs: Int64Array, counts: Int64Array) -> int:
        """See `Engine`."""
        outcome = self._step(operations.launch, tuple(zip(seqs.tolist(), counts.tolist(), strict=True)))
        if self._journal:
            self._journal.launch(outcome.launch, seqs, counts)
        return outcome.launch

    def retire(self, launch: int) -> None:
        """See `Engine`."""
        self._step(operations.execute, launch)
        outcome = self._step(operations.retire, launch)
        if self._journal:
            self._journal.retire(launch, sorted(outcome.freed))

    def release(self, seq: int) -> None:
        """See `Engine`."""
        outcome = self._step(operations.release, seq)
        if self._journal:
            self._journal.release(seq, sorted(outcome.freed))

    def holding(self, seq: int) -> Holding:
        """See `Engine`."""
        sequence = self._state.sequences[seq]
        return Holding(sequence.launched, len(sequence.row))

    def usage(self) -> Usage:
        """See `Engine`."""
        free, quarantined = len(self._state.free), len(self._state.quarantine)
        return Usage(free, self._state.config.blocks - free - quarantined, quarantined)

    def _step(self, operation: Callable[..., Result], *arguments: object) -> Outcome:
        try:
            self._state, outcome = operation(self._state, *arguments)
        except Refused as refused:
            raise getattr(refusals, refused.reason.value)(str(refused)) from refused
        return outcome


@contextmanager
def open_spec_engine(options: EngineOptions, journal: Path | None) -> Iterator[SpecEngine]:
    """Open the reference model, its journal written as the implementation's is."""
    if journal is None:
        yield SpecEngine(options, None)
        return
    sizes = {"blocks": options.blocks, "block_size": options.block_size, "launches": options.launches_in_flight}
    with JournalWriter(journal, **sizes) as writer:
        yield SpecEngine(options, writer)

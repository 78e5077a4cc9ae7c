"""The spec's reference model as an engine: slow, plain, and right by definition.

It takes the spec's own steps on the spec's frozen state, so a replay through it shows what the implementation's replay
should have shown; the two journals can be compared line by line. Executing a launch, which is the device's move and
no manager's, is done here when it retires, in the order that the spec demands.

Cost: some 50 us a token and more as more run (every step copies what it changes): for the first few hundred requests
of a trace, not for all of it.
"""

from pagedkv.bench.engines import EngineOptions, Holding, Usage
from pagedkv.bench.traces import Int64Array
from pagedkv.spec import operations
from pagedkv.spec.state import Config, initial


class SpecEngine:
    """See `Engine`. Refusals of the spec are raised as the implementation's, which have the same names."""

    def __init__(self, options: EngineOptions) -> None:
        self._state = initial(Config(options.blocks, options.block_size, launches=options.launches_in_flight))

    def add(self, seq: int, tokens: int) -> int:
        """See `Engine`."""
        self._state, outcome = operations.add(self._state, seq, tokens)
        return len(outcome.blocks)

    def extend(self, seqs: Int64Array) -> int:
        """See `Engine`."""
        self._state, outcome = operations.extend(self._state, tuple((seq, 1) for seq in seqs.tolist()))
        return len(outcome.blocks)

    def launch(self, seqs: Int64Array, counts: Int64Array) -> int:
        """See `Engine`."""
        rows = tuple(zip(seqs.tolist(), counts.tolist(), strict=True))
        self._state, outcome = operations.launch(self._state, rows)
        return outcome.launch

    def retire(self, launch: int) -> None:
        """See `Engine`."""
        self._state, _ = operations.execute(self._state, launch)
        self._state, _ = operations.retire(self._state, launch)

    def release(self, seq: int) -> None:
        """See `Engine`."""
        self._state, _ = operations.release(self._state, seq)

    def holding(self, seq: int) -> Holding:
        """See `Engine`."""
        sequence = self._state.sequences[seq]
        return Holding(sequence.launched, len(sequence.row))

    def usage(self) -> Usage:
        """See `Engine`."""
        free, quarantined = len(self._state.free), len(self._state.quarantine)
        return Usage(free, self._state.config.blocks - free - quarantined, quarantined)

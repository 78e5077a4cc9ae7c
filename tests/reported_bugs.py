"""Publicly reported bugs of real serving engines, each as a trace in our alphabet: what was done, what is right.

A report is told in a sentence, reworded; its id says where to read more. The trigger is ours: derived from the report
and not run against that engine. Transfers, swaps and zeroing are launches here, on a stream of their own; finish, abort
and preemption are `release`; what shared by content is shared by a fork. Each step says what must come of it in terms
that no choice of blocks changes: how many are free afterwards, or the refusal.

Where one of the planted faults does what the engine did, the report names it: the trace must find that fault, else it
would be no trigger. Faults that only these reports need stand at the beginning.
"""

from typing import Any, NamedTuple

import numpy as np
from pagedkv.bench.adapter import Implementation
from pagedkv.impl.block_pool import BlockPool
from pagedkv.impl.cache import BlockCache
from pagedkv.impl.refusals import NoSpace, Unknown
from pagedkv.spec.alphabet import Execute, Operation, Retire
from pagedkv.spec.refusals import Reason
from pagedkv.spec.state import Config

import planted_faults as faults

# ---- faults -----------------------------------------------------------------------------------------------------


class SecondRelease(Implementation):
    """A sequence that is gone is released again without a word."""

    class cache_class(BlockCache):  # noqa: N801  (named as the attribute that it is)
        """Take no offence at an unknown name."""

        def release(self, seq: int) -> Any:
            try:
                return super().release(seq)
            except Unknown:
                return np.empty(0, np.int32)


class ForkWithoutEdge(faults.Faulty):
    """A fork adds no edge to what it shares."""

    class pool(BlockPool):  # noqa: N801  (named as the attribute that it is)
        """Count nothing."""

        __slots__ = ()

        def share(self, ids: Any) -> None:
            pass


class CompletionFiltered(Implementation):
    """A completion is dropped where its sequence has gone by then."""

    class cache_class(BlockCache):  # noqa: N801  (named as the attribute that it is)
        """Listen for live sequences alone."""

        def retire(self, launch_id: int) -> Any:
            flight = self._launches.in_flight.get(launch_id)
            if flight is not None and not set(flight.launch.seqs.tolist()) & set(self.sequences()):
                return np.empty(0, np.int32)
            return super().retire(launch_id)


class RefusedAddKeepsBlock(Implementation):
    """What could not be added has taken a block by then, and keeps it."""

    class cache_class(BlockCache):  # noqa: N801  (named as the attribute that it is)
        """Take one before refusing."""

        def add(self, *arguments: Any, **options: Any) -> Any:
            try:
                return super().add(*arguments, **options)
            except NoSpace:
                if self._pool.available:
                    self._pool.take(1)
                raise


# ---- what a report is -------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """An operation, and what must come of it."""

    operation: Operation
    refused: Reason | None = None
    free: int | None = None  # blocks that are free afterwards
    extents: tuple[int, ...] = ()  # of the copies that an `extend` plans
    after: frozenset[int] = frozenset()  # the launches that a launch is ordered after by an edge


def done(operation: Operation, free: int | None = None, *, extents: tuple[int, ...] = (), after: int = 0) -> Step:
    """Say that an operation is done, and what is free then, what is copied, what a launch waits for."""
    return Step(operation, None, free, extents, frozenset({after} - {0}))


def no(operation: Operation, reason: Reason) -> Step:
    """Say that an operation is refused."""
    return Step(operation, reason)


def run(launch: int) -> tuple[Step, Step]:
    """Say that a launch is executed and retired."""
    return done(Execute(launch)), done(Retire(launch))


class Report(NamedTuple):
    """A bug that was reported."""

    id: str
    rule: str
    what: str
    config: Config
    steps: tuple[Step, ...]
    fault: type[Implementation] | None = None  # the planted fault that does the same


def config(blocks: int, block_size: int, streams: int = 1) -> Config:
    """Return a small world."""
    return Config(blocks, block_size, streams, launches=4)

"""What a replay drives: a cache manager behind a small protocol.

`replay` needs six operations and two figures of a cache manager; `Engine` names them, in the words and with the
meanings of the spec's table of operations (refusals included). Whatever offers them can be replayed: the
implementation, the spec's reference model, a manager of someone else's. Operations answer with how many blocks were
taken, not with which: a replay counts, and the journal, which the engine writes itself, has the rest.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from pagedkv.bench.traces import Int64Array


class Usage(NamedTuple):
    """Blocks by state; the three add up to the usable blocks of the pool."""

    free: int
    held: int
    quarantined: int


class Holding(NamedTuple):
    """What one sequence holds: positions that some launch writes, and entries of its block table."""

    launched_tokens: int
    block_table_entries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What an engine is made with: `rows` and `blocks_per_row` are the sizes its tables will need at most."""

    blocks: int
    block_size: int
    rows: int
    blocks_per_row: int
    launches_in_flight: int


class Engine(Protocol):
    """A paged KV-cache manager, as a replay sees it. Sequence names are the caller's; a batch names each once."""

    def add(self, seq: int, tokens: int) -> int:
        """Start a sequence with a prompt of `tokens`; give the number of blocks taken."""

    def extend(self, seqs: Int64Array) -> int:
        """Make room for one more token of each sequence of the batch; give the number of blocks taken."""

    def launch(self, seqs: Int64Array, counts: Int64Array) -> int:
        """Submit a step that writes `counts` planned positions of each sequence; give its launch id."""

    def retire(self, launch: int) -> None:
        """Take note that the device has done the launch."""

    def release(self, seq: int) -> None:
        """Finish a sequence, launches of it in flight or not."""

    def holding(self, seq: int) -> Holding:
        """Say what a sequence holds now."""

    def usage(self) -> Usage:
        """Say how many blocks are in which state."""


class EngineFactory(Protocol):
    """Opens an engine; leaving the context ends it (and its journal: in full, or not at all after an error)."""

    def __call__(self, options: EngineOptions) -> AbstractContextManager[Engine]:
        """Open an engine with these options."""

"""Our own implementation as the drivers see it.

The only place where spec and implementation meet in a manager: arguments are turned into arrays, results into the
spec's words, refusals into the spec's reasons (by name: neither side imports the other). It adds nothing and hides
nothing.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import wraps
from typing import Any, Self

from pagedkv.impl import refusals
from pagedkv.impl.cache import BlockCache
from pagedkv.spec.manager import Manager, Naming, Observation, Seen
from pagedkv.spec.operations import Outcome, Rows
from pagedkv.spec.refusals import Reason, Refused
from pagedkv.spec.state import Block, Config, Copy, LaunchId, Name


def _in_the_words_of_the_spec(method: Callable[..., Outcome]) -> Callable[..., Outcome]:
    """Turn the implementation's refusals into the spec's, by name."""

    @wraps(method)
    def translated(*arguments: Any) -> Outcome:
        try:
            return method(*arguments)
        except refusals.Refused as refusal:
            if isinstance(refusal, refusals.InvalidArgument):
                raise
            raise Refused(Reason(type(refusal).__name__), str(refusal)) from None

    return translated


class Implementation(Manager):
    """`pagedkv.impl.cache.BlockCache` behind the drivers' protocol."""

    streams_offered = 8
    cache_class: Callable[..., BlockCache] = BlockCache  # a planted fault is a subclass of it

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.cache = type(self).cache_class(
            config.blocks,
            config.block_size,
            streams=config.streams,
            launches_in_flight=config.launches,
            rows=4,
            max_blocks_per_row=min(4, config.blocks),
        )

    @_in_the_words_of_the_spec
    def add(self, name: Name, count: int) -> Outcome:
        """Add a sequence."""
        return Outcome(blocks=_ids(self.cache.add(name, count).blocks))

    @_in_the_words_of_the_spec
    def extend(self, rows: Rows) -> Outcome:
        """Extend a batch."""
        extension = self.cache.extend(*_batch(rows))
        return Outcome(blocks=_ids(extension.blocks), copies=_copies(extension.copies))

    @_in_the_words_of_the_spec
    def fork(self, parent: Name, child: Name) -> Outcome:
        """Fork a sequence."""
        self.cache.fork(parent, child)
        return Outcome()

    @_in_the_words_of_the_spec
    def launch(self, rows: Rows, stream: int) -> Outcome:
        """Launch a batch."""
        launch = self.cache.launch(*_batch(rows), stream)
        return Outcome(copies=_copies(launch.copies), launch=launch.id, after=frozenset(launch.after))

    @_in_the_words_of_the_spec
    def retire(self, launch: LaunchId) -> Outcome:
        """Retire a launch."""
        return Outcome(freed=frozenset(_ids(self.cache.retire(launch))))

    @_in_the_words_of_the_spec
    def release(self, name: Name) -> Outcome:
        """Release a sequence."""
        return Outcome(freed=frozenset(_ids(self.cache.release(name))))

    def block_table(self, name: Name) -> Sequence[Block]:
        """Return a sequence's blocks."""
        return _ids(self.cache.block_table(name))

    def rows_read(self, launch: LaunchId) -> Sequence[Sequence[Block]]:
        """Return the rows of the table that a launch reads, as they are now."""
        flight = self.cache.launched(launch)
        return [_ids(flight.table[row]) for row in flight.rows]

    def clone(self) -> Self:
        """Return an independent copy."""
        twin = object.__new__(type(self))
        twin.config, twin.cache = self.config, self.cache.clone()
        return twin

    def observe(self) -> Observation:
        """Return rows, lengths, block states, planned copies and launches in flight."""
        cache = self.cache
        counts, holders = cache.counts, dict(enumerate(cache.holders().tolist()))
        return Observation(
            {name: self._seen(name) for name in cache.sequences()},
            {block: count for block, count in holders.items() if block and count > 0},
            frozenset(cache.free_order()),
            frozenset(block for block, count in holders.items() if count < 0),
            frozenset(Copy(*copy) for copy in cache.planned_copies()),
            tuple(cache.in_flight()),
            (counts.free, counts.held, counts.quarantined),
        )

    def _seen(self, name: Name) -> Seen:
        row = self.cache.table[self.cache.row_of(name)].tolist()
        while row and not row[-1]:
            row.pop()
        _, *lengths = self.cache.lengths(name)
        return Seen(tuple(row), *lengths)

    def fingerprint(self, naming: Naming) -> Hashable:
        """Return the hidden state under new names; launches that have left are all alike."""
        return self.cache.fingerprint(naming.blocks, naming.sequences, lambda launch: naming.launches.get(launch, 0))

    def free_order(self) -> Sequence[Block]:
        """Return the free blocks, next to be taken first."""
        return self.cache.free_order()


def _ids(blocks: Any) -> tuple[int, ...]:
    return tuple(blocks.tolist())


def _batch(rows: Rows) -> tuple[list[int], list[int]]:
    return [name for name, _ in rows], [count for _, count in rows]


def _copies(copies: Any) -> tuple[Copy, ...]:
    return tuple(Copy(*each) for each in zip(*(column.tolist() for column in copies), strict=True))

"""Our own implementation as the drivers see it.

The only place where spec and implementation meet in a manager: arguments are turned into arrays, results into the
spec's words, refusals into the spec's reasons (by name: neither side imports the other). It adds nothing and hides
nothing.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from functools import wraps
from typing import Any, ParamSpec, Self, TypeVar

import numpy as np
from pagedkv.impl import refusals
from pagedkv.impl.cache import BlockCache
from pagedkv.impl.results import Copies, Edits
from pagedkv.spec.manager import Discipline, Manager
from pagedkv.spec.observation import Naming, Observation, Seen
from pagedkv.spec.outcome import Merge, Outcome, Rows, Telling
from pagedkv.spec.refusals import Reason, Refused
from pagedkv.spec.state import Block, Config, Copy, Handle, LaunchId, Name, Tokens

_ALIASES = {name: name // 2 * 2**40 + name % 2 - 2**50 for name in range(64)}  # of the names that drivers use
_NAMES = {alias: name for name, alias in _ALIASES.items()}
_IDS = {0: 2**31 - 1, 1: 0}  # of the token ids that drivers use: the largest there is, and the smallest
_SALTS = {1: -(2**63), 2: 2**63 - 1}
_REASONS = {
    kind: Reason(kind.__name__) for kind in refusals.Refused.__subclasses__() if kind is not refusals.InvalidArgument
}

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


def in_the_words_of_the_spec(method: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """Turn the implementation's refusals into the spec's, by name."""

    @wraps(method)
    def translated(*arguments: Arguments.args, **named: Arguments.kwargs) -> Answer:
        try:
            return method(*arguments, **named)
        except refusals.Refused as refusal:
            if type(refusal) not in _REASONS:
                raise
            translation = Refused(_REASONS[type(refusal)], str(refusal))
        raise translation

    return translated


class Implementation(Manager):
    """`pagedkv.impl.cache.BlockCache` behind the drivers' protocol."""

    discipline = Discipline.FENCE
    streams_offered = 8
    shares_prefixes = True
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

        self.device_table: dict[int, list[Block]] = {}  # row -> blocks, as results and edits alone have told it
        self.ends: defaultdict[Name, tuple[int, int]] = defaultdict(lambda: (0, 0))  # allocated, launched: as asked
        self.wrong = ""  # the first thing that a kernel was told wrong

    @in_the_words_of_the_spec
    def add(self, name: Name, count: int) -> Outcome:
        """Add a sequence."""
        added = self.cache.add(_alias(name), count)
        self.device_table[added.row] = added.blocks.tolist()
        self.ends[name] = (count, 0)
        return Outcome(blocks=_ids(added.blocks))

    @in_the_words_of_the_spec
    def add_prompt(self, name: Name, tokens: int | Tokens, salt: int) -> Outcome:
        """Add a sequence by its token ids, or one of a tenant."""
        told = tokens if isinstance(tokens, int) else _token_ids(tokens)
        room = self._room(told, salt)
        added = self.cache.add(_alias(name), told, _SALTS.get(salt, salt))
        blocks = _ids(added.blocks)
        self.device_table[added.row] = [*blocks]
        count = tokens if isinstance(tokens, int) else len(tokens)
        self.ends[name] = (count, added.hits * self.config.block_size)
        self._must_be("room", room[:1], [len(blocks) - added.hits])
        return Outcome(blocks=blocks[added.hits :], hits=blocks[: added.hits])

    def _room(self, told: Any, salt: int) -> list[int]:
        """Return what the cache says that it needs and has for a prompt; looked at before it is added."""
        return [*self.cache.room(told, _SALTS.get(salt, salt))]

    @in_the_words_of_the_spec
    def publish(self, rows: Telling, retention: int) -> Outcome:
        """Tell token ids and publish; the edits of a device's table are looked at here."""
        cache, names = self.cache, [_alias(name) for name, _ in rows]
        live = set(cache.sequences())
        before = {name: cache.row_of(name) for name in names if name in live}
        counts = [len(tokens) for _, tokens in rows]
        told = _token_ids(tuple(token for _, tokens in rows for token in tokens))
        publication = cache.publish(names, told, counts, retention)
        moved = {cache.row_of(name) for name in names} - set(before.values())
        for row in moved:
            self.device_table[row] = []
        self._edit(publication.edits)
        merges = zip(*(column.tolist() for column in publication.merges), strict=True)
        return Outcome(
            freed=frozenset(_ids(publication.freed)),
            published=_ids(publication.blocks),
            merges=tuple(Merge(_named(alias), *merge) for alias, *merge in merges),
        )

    @in_the_words_of_the_spec
    def pin(self, handle: Handle, tokens: Tokens, salt: int) -> Outcome:
        """Pin a prefix."""
        return Outcome(hits=_ids(self.cache.pin(_alias(handle), _token_ids(tokens), _SALTS.get(salt, salt))))

    @in_the_words_of_the_spec
    def unpin(self, handle: Handle) -> Outcome:
        """Let a pin go."""
        return Outcome(freed=frozenset(_ids(self.cache.unpin(_alias(handle)))))

    @in_the_words_of_the_spec
    def clear(self) -> Outcome:
        """Change the weights."""
        return Outcome(freed=frozenset(_ids(self.cache.clear())))

    @in_the_words_of_the_spec
    def extend(self, rows: Rows) -> Outcome:
        """Extend a batch; what kernels get of it (slot mapping, edits of a device's table) is looked at here."""
        extension = self.cache.extend(*_batch(rows))
        self._must_be("slots", extension.slots.tolist(), self._slots_of_the_next(rows))
        for row, column in zip(extension.edits.rows.tolist(), extension.edits.columns.tolist(), strict=True):
            if column == 0:  # the only block of a row, or a row that moved and is told in full
                self.device_table[row] = []
        self._edit(extension.edits)
        return Outcome(blocks=_ids(extension.blocks), copies=_copies(extension.copies))

    @in_the_words_of_the_spec
    def fork(self, parent: Name, child: Name) -> Outcome:
        """Fork a sequence."""
        forked = self.cache.fork(_alias(parent), _alias(child))
        self.device_table[forked.row] = forked.blocks.tolist()
        self.ends[child] = self.ends[parent]
        return Outcome()

    @in_the_words_of_the_spec
    def launch(self, rows: Rows, stream: int) -> Outcome:
        """Launch a batch; which rows a kernel is shown, and up to where, is looked at here."""
        launch = self.cache.launch(*_batch(rows), stream)
        starts = [self.ends[name][1] for name, _ in rows]
        stops = [start + count for start, (_, count) in zip(starts, rows, strict=True)]
        self._must_be("rows", launch.rows.tolist(), [self.cache.row_of(_alias(name)) for name, _ in rows])
        self._must_be("lengths", launch.lengths.tolist(), stops)
        self._must_be("starts", launch.starts.tolist(), starts)
        self.ends |= {name: (self.ends[name][0], stop) for (name, _), stop in zip(rows, stops, strict=True)}
        return Outcome(copies=_copies(launch.copies), launch=launch.id, after=frozenset(launch.after))

    @in_the_words_of_the_spec
    def retire(self, launch: LaunchId) -> Outcome:
        """Retire a launch."""
        return Outcome(freed=frozenset(_ids(self.cache.retire(launch))))

    @in_the_words_of_the_spec
    def release(self, name: Name) -> Outcome:
        """Release a sequence."""
        freed = self.cache.release(_alias(name))
        self.ends.pop(name, None)
        return Outcome(freed=frozenset(_ids(freed)))

    def block_table(self, name: Name) -> Sequence[Block]:
        """Return a sequence's blocks."""
        return _ids(self.cache.block_table(_alias(name)))

    def rows_read(self, launch: LaunchId) -> Sequence[Sequence[Block]]:
        """Return the rows of the table that a launch reads, as they are now."""
        flight = self.cache.launched(launch)
        return [tuple(row) for row in flight.table[flight.rows].tolist()]

    def free_blocks(self) -> Sequence[Block]:
        """Return the free blocks."""
        return self.cache.free_order()

    def cached_blocks(self) -> Sequence[Block]:
        """Return the published blocks without holder."""
        holders = self.cache.holders()
        return [block for block in _ids(self.cache.published()) if not holders[block]]

    def clone(self) -> Self:
        """Return an independent copy."""
        twin = object.__new__(type(self))
        twin.config, twin.cache = self.config, self.cache.clone()
        twin.ends, twin.wrong = self.ends.copy(), self.wrong
        twin.device_table = {row: blocks.copy() for row, blocks in self.device_table.items()}
        return twin

    def observe(self) -> Observation:
        """Return rows, lengths, block states, planned copies and launches in flight."""
        cache = self.cache
        seen, table = {}, cache.table.tolist()
        for alias, at, (known, allocated, launched, written) in cache.live():
            row = table[at]
            while row and not row[-1]:
                row.pop()
            if self.device_table[at] != row:
                self._must_be("edits", self.device_table[at], row)
            seen[_NAMES.get(alias, alias)] = Seen(tuple(row), allocated, launched, written, known)
        if self.wrong:
            raise AssertionError(self.wrong)
        counts = cache.counts
        published, free = frozenset(cache.published().tolist()), frozenset(cache.free_order())
        references = {block: count for block, count in enumerate(cache.holders().tolist()) if count}
        unheld = frozenset(range(1, self.config.blocks + 1)).difference(references)
        return Observation(
            seen,
            references,
            free,
            unheld - published - free,
            frozenset([Copy(_named(alias), *copy) for alias, *copy in cache.planned_copies()]),
            tuple(cache.in_flight()),
            (counts.free, counts.held, counts.quarantined),
            published,
            unheld & published,
            {_named(handle): _ids(blocks) for handle, blocks in cache.pins().items()},
            (counts.idle, cache.available - counts.free),
        )

    def _slots_of_the_next(self, rows: Rows) -> list[int]:
        """Return the slots of the positions by which sequences have grown, as their block tables have them."""
        size, slots = self.config.block_size, []
        for name, count in rows:
            start, launched = self.ends[name]
            self.ends[name] = (start + count, launched)
            table = self.cache.table[self.cache.row_of(_alias(name))].tolist()
            table += [0] * (start + count)  # a row that is too short is judged elsewhere
            slots += [table[position // size] * size + position % size for position in range(start, start + count)]
        return slots

    def _edit(self, edits: Edits) -> None:
        """Edit the device's table as a mirror would."""
        for row, column, block in zip(*[each.tolist() for each in edits], strict=True):
            blocks = self.device_table[row]
            blocks += [0] * (column + 1 - len(blocks))
            blocks[column] = block

    def _must_be(self, what: str, told: list[int], right: list[int]) -> None:
        if told != right and not self.wrong:
            self.wrong = f"the {what} told are {told}, and should be {right}"

    def fingerprint(self, naming: Naming) -> Hashable:
        """Return the hidden state under new names; launches that have left are all alike."""
        sequences = {_alias(name): number for name, number in naming.sequences.items()}
        return self.cache.fingerprint(naming.blocks, sequences, lambda launch: naming.launches.get(launch, 0))

    def free_order(self) -> Sequence[Block]:
        """Return the free blocks, next to be taken first."""
        return self.cache.free_order()


def _alias(name: Name) -> int:
    """Return the name under which the cache knows a sequence: of a small one a large one with few low bits.

    The implementation guesses a name's row by its low bits, so small names alone would never try what it does when
    two of them meet, nor names below 0.
    """
    return _ALIASES.get(name, name)


def _named(alias: int) -> Name:
    return _NAMES.get(alias, alias)


def _token_ids(tokens: Tokens) -> Any:
    """Return token ids as the cache takes them; those that drivers use as the most extreme that there are."""
    return np.array([_IDS.get(token, token) for token in tokens], np.int32)


def _ids(blocks: Any) -> tuple[int, ...]:
    return tuple(blocks.tolist())


def _batch(rows: Rows) -> tuple[list[int], list[int]]:
    return [_alias(name) for name, _ in rows], [count for _, count in rows]


def _copies(copies: Copies) -> tuple[Copy, ...]:
    if not copies.sources.size:
        return ()
    each = zip(*[column.tolist() for column in copies], strict=True)
    return tuple([Copy(_named(alias), source, target, extent) for alias, source, target, extent in each])

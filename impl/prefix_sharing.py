"""The facade's other half: prompts by their ids, and blocks that outlive the sequences that computed them.

`add` with ids hits: the longest chain of published blocks with the prompt's tokens, under its salt and the present
weights, is held in the same action that finds it (R-TXN-2), so nothing can be evicted in between; one token is always
left to compute (R-HASH-5). `publish` makes blocks hittable, `pin` keeps a prefix without a sequence (a system prompt),
`clear` forgets all when weights or adapters change. Prefixes under different salts never meet.

What any of it needs is made at the first `add` with ids or a salt, `publish` or `clear`: a cache that is told counts
alone stays as it is. Guarantees and costs as for the rest of the cache; see `prefix_index` and `retention` for blocks.
Source of the ideas: hashed blocks, vLLM's automatic prefix caching; a tree of prefixes, RadixAttention (Zheng et al.,
"SGLang", 2024); a cache salt a tenant, vLLM.
"""

from collections.abc import Sequence
from typing import SupportsIndex

import numpy as np

from . import arguments, idle_blocks
from .arguments import Integers, integer
from .arithmetic import blocks_needed
from .arrays import NO_BLOCKS, NO_IDS, IndexArray, Int32Array
from .events import Event, EventLog
from .inspect import Holding, who_holds
from .invariants import CorruptState, check
from .journal import JournalWriter
from .knowledge import CLOSED
from .publication import publish
from .refusals import Duplicate, Empty, InvalidArgument, NoSpace, TooLong, Unknown
from .results import Added, Publication
from .sharing import Sharing
from .sharing_invariants import check_sharing
from .views import CacheViews

LOST = "R-OWN-5: held, idle and quarantined blocks are not those that are off the free stack"


class PrefixSharing(CacheViews):
    """What a `BlockCache` does with token ids.

    Operations: `publish`, `pin`, `unpin`, `clear`. Questions: `match`, `room`, `published`, `pins`, `events`,
    `who_holds`; for tests: `check`.
    """

    _event_log: EventLog | None
    _journal: JournalWriter | None
    _operations: int
    _prefix_cache: bool
    _sharing: Sharing | None
    __slots__ = ("_event_log", "_journal", "_operations", "_prefix_cache", "_sharing")

    def match(self, tokens: Integers, salt: int = 0) -> int:
        """Return how many leading tokens of a prompt an `add` would hit now. O(tokens)."""
        ids = arguments.token_ids(tokens)
        hits = self._match(ids, (ids.size - 1) // self.block_size, integer("a salt", salt))
        return hits.size * self.block_size

    def room(self, tokens: SupportsIndex | Integers, salt: int = 0) -> tuple[int, int]:
        """Return (blocks that an `add` would take now, blocks that it could take): it has room if need <= available.

        The function that `add` itself uses, so an idle block that is hit counts on neither side (R-CAP-1). O(tokens).
        """
        salt = integer("a salt", salt)
        if isinstance(tokens, np.ndarray | Sequence):
            return self._room(arguments.token_ids(tokens), salt)[:2]
        return blocks_needed(max(integer("the token count", tokens), 0), self.block_size), self.available

    def publish(
        self, seqs: Integers, tokens: Integers, counts: SupportsIndex | Integers = 1, retention: int = 0
    ) -> Publication:
        """Tell sequences their next token ids; publish each block that is full, known and written, or merge it.

        `tokens` is flat, `counts` ids for each sequence in turn. Ids told at `add` are known: to publish a prompt that
        has been computed, tell nothing: `publish([seq], [], counts=0)`. A block whose prefix is published already gives
        way to that block: the row is edited, and its own block let go. A retention class of 1 to 3 keeps blocks longer
        than all of lower classes. Refused: `Duplicate`, `Unknown`, `BadCount` (more ids than positions allocated, a
        retention outside 0..3). O(ids + blocks published + rows in flight).
        """
        names, ids = arguments.names(seqs), arguments.token_ids(tokens)
        amounts = arguments.counts(counts, names.size)
        if not names.size:
            amounts = 0  # of nobody
        if isinstance(amounts, int):
            fits = amounts >= 0 and amounts * names.size == ids.size
        else:  # one beyond all ids could make the sum overflow
            fits = amounts.min() >= 0 and amounts.max() <= ids.size and int(amounts.sum()) == ids.size
        if not fits:
            raise InvalidArgument(f"token ids given: {ids.size}; counts must be at least 0 and sum to that")
        retention = retention if type(retention) is int else integer("a retention", retention)
        sharing = self._sharing or self._start_sharing()
        batch = self._tables.names.resolve(names)
        publication = publish(self._tables, self._pool, sharing, batch, ids, amounts, retention)
        self._operations += 1
        if self._journal is not None:
            ends = np.cumsum(np.broadcast_to(np.asarray(amounts), names.shape)).tolist()
            rows = [part.tolist() for part in np.split(ids, ends[:-1])] if ends else []
            merges = list(zip(*(column.tolist() for column in publication.merges), strict=True))
            blocks, freed = publication.blocks.tolist(), publication.freed.tolist()
            self._journal.publish(batch.names, rows, retention, blocks, merges, freed)
        self._conserve()
        return publication

    def pin(self, handle: int, tokens: Integers, salt: int = 0) -> Int32Array:
        """Hold the longest published prefix of these tokens until `unpin`; return its blocks.

        Refused: `Duplicate` (the handle is in use), `Empty` (nothing of it is published). O(tokens).
        """
        handle, ids, salt = integer("a pin's handle", handle), arguments.token_ids(tokens), integer("a salt", salt)
        pins = {} if self._sharing is None else self._sharing.pins
        if handle in pins:
            raise Duplicate(f"pin {handle} is in use already")
        hits = self._match(ids, ids.size // self.block_size, salt)
        if not hits.size:
            raise Empty(f"pin {handle} would hold nothing: no block of this prefix is published")
        self._operations += 1
        idle_blocks.hold(self._pool, hits)
        pins[handle] = hits
        blocks = hits.astype(np.int32)
        if self._journal is not None:
            self._journal.pin(handle, ids.tolist(), salt, blocks.tolist())
        self._conserve()
        return blocks

    def unpin(self, handle: int) -> Int32Array:
        """Let a pin go; return the blocks that can be evicted now. Refused: `Unknown`. O(its blocks)."""
        handle = integer("a pin's handle", handle)
        if self._sharing is None or handle not in self._sharing.pins:
            raise Unknown(f"no pin is called {handle}")
        self._operations += 1
        freed = self._drop_pin(self._sharing.pins.pop(handle))
        if self._journal is not None:
            self._journal.unpin(handle, freed.tolist())
        self._conserve()
        return freed

    def clear(self) -> Int32Array:
        """Forget all published blocks, since weights or adapters have changed; return those that are free now.

        Pins are dropped. Sequences that live on keep their blocks, and publish no more. O(blocks).
        """
        sharing = self._sharing or self._start_sharing()
        self._operations += 1
        for blocks in sharing.pins.values():
            self._drop_pin(blocks)
        sharing.pins.clear()
        sharing.knowledge.close()
        freed = idle_blocks.unpublish_all(self._pool).astype(np.int32)
        if self._journal is not None:
            self._journal.clear(freed.tolist())
        self._conserve()
        return freed

    def events(self) -> list[Event]:
        """Return what was published and evicted since the last call, oldest first; see `events` for the digests.

        Refused: `InvalidArgument`, if the cache was made without `events=True`.
        """
        if self._event_log is None:
            raise InvalidArgument("this cache notes no events: make it with events=True")
        return self._event_log.fetch()

    def published(self) -> Int32Array:
        """Return all published blocks, in order of id. O(blocks)."""
        return NO_BLOCKS if self._sharing is None else self._sharing.index.published_ids().astype(np.int32)

    def pins(self) -> dict[int, Int32Array]:
        """Return the live pins' handles and the blocks that each holds. O(pinned blocks)."""
        pins = {} if self._sharing is None else self._sharing.pins
        return {handle: blocks.astype(np.int32) for handle, blocks in pins.items()}

    def who_holds(self, block: int) -> Holding:
        """Tell who holds a block, since when, and why it is not free. O(table + rows in flight)."""
        return who_holds(
            self._tables, self._pool, self._block(block), {} if self._sharing is None else self._sharing.pins
        )

    def check(self) -> None:
        """Walk everything; `CorruptState` names the first invariant that does not hold."""
        sharing = self._sharing
        check(self._tables, self._pool, NO_IDS if sharing is None else sharing.pinned())
        if sharing is not None:
            check_sharing(self._tables, self._pool, sharing)

    def _add_known(self, name: int, ids: Int32Array, salt: int) -> Added:
        """Start a sequence of known ids: `add`, where it is told more than a count."""
        tables, pool, count = self._tables, self._pool, ids.size
        if name in tables.names.row_of:
            raise Duplicate(f"sequence {name} is live already")
        if not count:
            raise Empty(f"sequence {name} must start with at least 1 token")
        longest = blocks_needed(count, self.block_size)
        if longest > self.blocks:
            raise TooLong(f"sequence {name} needs {longest} blocks and the whole pool has {self.blocks}")
        sharing = self._sharing or self._start_sharing()
        need, available, hits = self._room(ids, salt)
        if need > available:
            raise NoSpace(f"no space for sequence {name}: blocks needed {need}, available {available}")
        if longest > tables.columns or not tables.free_rows:
            tables.make_room(longest, 1)
        self._operations += 1
        idle_blocks.hold(pool, hits)
        taken = pool.take(need)
        sharing.index.store(taken, ids[hits.size * self.block_size :])
        blocks = (np.concatenate((hits, taken)) if hits.size else taken).astype(np.int32)
        row = tables.begin(name, self._operations, count, blocks)
        sharing.knowledge.begin(row, count, salt, hits.size if self._prefix_cache else CLOSED)
        tables.launched[row] = hits.size * self.block_size
        if self._journal is not None:
            self._journal.add(name, count, taken.tolist(), tokens=ids.tolist(), salt=salt, hits=hits.tolist())
        self._conserve()
        return Added(row, blocks, hits.size)

    def _begin_unknown(self, row: int, salt: int) -> None:
        """Note a sequence that was added by a count: it may be told its ids later."""
        assert self._sharing is not None
        self._sharing.knowledge.begin(row, 0, salt, 0 if self._prefix_cache else CLOSED)

    def _room(self, ids: Int32Array, salt: int) -> tuple[int, int, IndexArray]:
        """Return (need, available, hits) of a prompt."""
        hits = self._match(ids, (ids.size - 1) // self.block_size, salt)
        need = blocks_needed(ids.size, self.block_size) - hits.size
        available = self._pool.available
        if hits.size:
            available -= idle_blocks.evictable_among(self._pool, hits)
        return need, available, hits

    def _match(self, ids: Int32Array, limit: int, salt: int) -> IndexArray:
        return NO_IDS if self._sharing is None else self._sharing.index.match(ids, limit, salt)

    def _drop_pin(self, blocks: IndexArray) -> Int32Array:
        """Drop a pin's edges; return the blocks that can be evicted now."""
        freed = self._pool.drop(blocks, 0, [0] * self._launches.streams)
        return freed.astype(np.int32) if freed.size else NO_BLOCKS

    def _start_sharing(self) -> Sharing:
        """Make what sharing needs; sequences that are live were told counts, without a salt."""
        try:
            index = self._pool.start_sharing(self.block_size, self._event_log)
        except (MemoryError, ValueError):  # numpy says the one or the other, by how far it is
            size = f"{self.blocks} blocks of {self.block_size}"
            raise InvalidArgument(
                f"no memory for the token ids of {size}: share no prefixes, or ask for less"
            ) from None
        self._sharing = Sharing(index, self._tables.start_sharing(0 if self._prefix_cache else CLOSED))
        return self._sharing

    def _conserve(self) -> None:
        pool = self._pool
        if pool.held + pool.quarantined + pool.idle != pool.taken:
            raise CorruptState(LOST)

"""The faults of real prefix caches, planted in our own: each a few lines that undo one precaution.

As `planted_faults`; `pagedkv explore --sharing --target planted_sharing_faults:HitNotHeld` runs one by hand (from this
folder).
"""

from typing import Any
from unittest import mock

import numpy as np
from pagedkv.impl import idle_blocks, publication
from pagedkv.impl.arrays import NO_IDS
from pagedkv.impl.block_pool import BlockPool
from pagedkv.impl.cache import BlockCache
from pagedkv.impl.fences import Fences
from pagedkv.impl.merging import RowsToPublish
from pagedkv.impl.prefix_index import PrefixIndex
from pagedkv.impl.retention import Retention
from pagedkv.spec.state import Config

from planted_faults import Faulty


class SharingFaulty(Faulty):
    """The sound manager, with a fault planted in a part that is made when prefixes are first shared."""

    shares_prefixes = True
    index: type[PrefixIndex] = PrefixIndex
    retention: type[Retention] = Retention

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        index = (self.cache._sharing or self.cache._start_sharing()).index
        index.__class__ = self.index
        retention = self.cache._pool.retention
        assert retention is not None
        retention.__class__ = self.retention


class HitNotHeld(SharingFaulty):
    """What a prompt hits is held after its other blocks have been taken, and may be evicted in between."""

    class cache_class(BlockCache):  # noqa: N801  (named as the attribute that it is)
        """Hold hits last."""

        __slots__ = ()

        def _add_known(self, *arguments: Any) -> Any:
            late: list[Any] = []
            with mock.patch.object(idle_blocks, "hold", lambda _, ids: late.append(ids)):
                added = super()._add_known(*arguments)
            for ids in late:
                idle_blocks.hold(self._pool, ids)
            return added


class OtherTenantsHit(SharingFaulty):
    """The salt is left out of the key."""

    class index(PrefixIndex):  # noqa: N801  (named as the attribute that it is)
        """Look up as if there were one tenant."""

        __slots__ = ()

        def match(self, tokens: Any, limit: int, salt: int) -> Any:
            for other in (salt, *self.salts[self.published].tolist()):
                hits = super().match(tokens, limit, other)
                if hits.size:
                    break
            return hits


class WholePromptHit(SharingFaulty):
    """A prompt of whole blocks is hit to its end: no token is left to compute."""

    class cache_class(BlockCache):  # noqa: N801  (named as the attribute that it is)
        """Look up one block more than may be hit."""

        __slots__ = ()

        def _match(self, ids: Any, limit: int, salt: int) -> Any:
            del limit
            return super()._match(ids, ids.size // self.block_size, salt)


class PublishedUnwritten(SharingFaulty):
    """A block is published when it has been launched, not when it has been written."""

    class cache_class(BlockCache):  # noqa: N801  (named as the attribute that it is)
        """Take what is launched for written."""

        __slots__ = ()

        def publish(self, *arguments: Any) -> Any:
            tables = self._tables
            with (
                mock.patch.object(publication, "_written", lambda _, __, batch: tables.launched[batch.rows].copy()),
                mock.patch.object(publication, "_written_of", lambda _, __, row: tables.launched.item(row)),
            ):
                return super().publish(*arguments)


class StaleEntry(SharingFaulty):
    """A block that is evicted stays in the index."""

    class index(PrefixIndex):  # noqa: N801  (named as the attribute that it is)
        """Remove nothing."""

        __slots__ = ()

        def remove(self, ids: Any) -> None:
            """Forget to."""


class ParentFirst(SharingFaulty):
    """Of blocks that become evictable at once the parent stands before its child."""

    class retention(Retention):  # noqa: N801  (named as the attribute that it is)
        """Append in the other order."""

        __slots__ = ()

        def append(self, ids: Any) -> None:
            super().append(ids[::-1])


class FencedEvicted(SharingFaulty):
    """An idle block is evictable though a launch in flight still reads it."""

    class pool(BlockPool):  # noqa: N801  (named as the attribute that it is)
        """Let published blocks wait for nothing."""

        __slots__ = ()

        def drop(self, ids: Any, touched: int, fences: list[int]) -> Any:
            if self.index is None or not self.index.published[ids].any():
                return super().drop(ids, touched, fences)
            published = self.index.published[ids]
            freed = self._free_or_wait(self._orphans(ids[published]))
            rest = super().drop(ids[~published], max(0, touched - int(np.count_nonzero(published))), fences)
            return np.concatenate((freed, rest))


class EvictedForNothing(SharingFaulty):
    """Idle blocks are evicted while others are free."""

    class pool(BlockPool):  # noqa: N801  (named as the attribute that it is)
        """Take evictable blocks first."""

        __slots__ = ()

        def take(self, count: int) -> Any:
            evictable = 0 if self.retention is None else min(count, self.retention.size)
            if not evictable:
                return super().take(count)
            evicted = self._evict(evictable)
            return np.concatenate((evicted, super().take(count - evictable)))


class MergedUnmapped(SharingFaulty):
    """Where equal contents are merged the duplicate is let go, and the row still names it."""

    class cache_class(BlockCache):  # noqa: N801  (named as the attribute that it is)
        """Put the old blocks back into the row."""

        __slots__ = ()

        def publish(self, *arguments: Any) -> Any:
            merge = RowsToPublish._merge

            def forgetful(self: Any, place: int, first: int, old: Any, found: Any) -> int:
                row = merge(self, place, first, old, found)
                self.tables.table[row, first : first + old.size] = old
                return row

            with mock.patch.object(RowsToPublish, "_merge", forgetful):
                return super().publish(*arguments)


class OldWeightsHit(SharingFaulty):
    """A change of weights leaves the index as it is."""

    class cache_class(BlockCache):  # noqa: N801  (named as the attribute that it is)
        """Unpublish nothing."""

        __slots__ = ()

        def clear(self) -> Any:
            with mock.patch.object(idle_blocks, "unpublish_all", return_value=NO_IDS):
                return super().clear()


class IdleHitCountedTwice(SharingFaulty):
    """An idle block that is hit counts as available for the rest of the prompt, too."""

    class cache_class(BlockCache):  # noqa: N801  (named as the attribute that it is)
        """Take nothing off."""

        __slots__ = ()

        def _room(self, *arguments: Any) -> Any:
            with mock.patch.object(idle_blocks, "evictable_among", return_value=0):
                return super()._room(*arguments)


class DigestTrusted(SharingFaulty):
    """What is found at a place of the index is believed: its tokens are not compared."""

    class index(PrefixIndex):  # noqa: N801  (named as the attribute that it is)
        """Take any block behind the same parent for the one that was asked for."""

        __slots__ = ()

        def child(self, parent: int, salt: int, page: Any) -> int:
            del page
            if parent:
                return self._successors.item(parent)
            return next((block for (root, _), block in self._roots.items() if root == salt), 0)

        def find(self, pages: Any, parent: int, salt: int) -> Any:
            chain: list[int] = []
            for page in pages:
                parent = self.child(parent, salt, page)
                if not parent:
                    break
                chain.append(parent)
            return np.array(chain, np.intp)


class PinLost(SharingFaulty):
    """A pin does not hold what it found."""

    class cache_class(BlockCache):  # noqa: N801  (named as the attribute that it is)
        """Hold nothing, and drop nothing."""

        __slots__ = ()

        def pin(self, *arguments: Any) -> Any:
            with mock.patch.object(idle_blocks, "hold"):
                return super().pin(*arguments)

        def _drop_pin(self, blocks: Any) -> Any:
            return blocks[:0].astype(np.int32)


class RetentionIgnored(SharingFaulty):
    """Every block is of the lowest class."""

    class retention(Retention):  # noqa: N801  (named as the attribute that it is)
        """Hear of no class."""

        __slots__ = ()

        def publish(self, ids: Any, retention: int) -> None:
            del retention
            super().publish(ids, 0)


class FencesNotHandedUp(SharingFaulty):
    """What is published hands no fences up its chain: a parent that nobody reads any more goes before its child."""

    class cache_class(BlockCache):  # noqa: N801  (named as the attribute that it is)
        """Cover nothing."""

        __slots__ = ()

        def publish(self, *arguments: Any) -> Any:
            with mock.patch.object(Fences, "cover"):
                return super().publish(*arguments)


class SiblingForgotten(SharingFaulty):
    """When a child is evicted its parent is of its own class again, though another child is dearer."""

    class retention(Retention):  # noqa: N801  (named as the attribute that it is)
        """Know of no child but the one that goes."""

        __slots__ = ()

        def _forget(self, block: int, level: int) -> None:
            heirs = self._heirs[self._parents[block]]
            heirs[:] = 0
            heirs[level] = 1
            super()._forget(block, level)


class ForkTakenForWritten(SharingFaulty):
    """In a large batch what is in flight for a fork's parent is taken for written."""

    class cache_class(BlockCache):  # noqa: N801  (named as the attribute that it is)
        """Look at each row's own launches alone."""

        __slots__ = ()

        def publish(self, *arguments: Any) -> Any:
            written = publication._written

            def forgetful(tables: Any, pool: Any, batch: Any) -> Any:
                if batch.rows.size <= publication.FEW:
                    return written(tables, pool, batch)
                with mock.patch.object(tables, "born_after", np.full_like(tables.born_after, -1)):
                    return written(tables, pool, batch)

            with mock.patch.object(publication, "_written", forgetful):
                return super().publish(*arguments)


class HeadKept(SharingFaulty):
    """When the log of evictable blocks is full and its dead entries are dropped, it is still read from where it was."""

    class retention(Retention):  # noqa: N801  (named as the attribute that it is)
        """Move the entries, and not the head."""

        __slots__ = ()

        def _compact(self, level: int, more: int) -> None:
            head = self._logs[level].head
            super()._compact(level, more)
            self._logs[level].head = head


SHARING_FAULTS: tuple[type[SharingFaulty], ...] = tuple(SharingFaulty.__subclasses__())

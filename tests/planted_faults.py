"""The faults of real engines, planted in our own: each a few lines that undo one precaution of the implementation.

Every fault was met in public in some serving engine; here it shows that the drivers find it, and how few operations
it takes. Each is a manager like the sound one, so that `pagedkv explore --target planted_faults:EarlyReuse` runs it
by hand (from this folder).
"""

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
from pagedkv.bench.adapter import Implementation
from pagedkv.impl import extension
from pagedkv.impl.arithmetic import Paging
from pagedkv.impl.block_pool import BlockPool
from pagedkv.impl.block_tables import BlockTables
from pagedkv.impl.cache import BlockCache
from pagedkv.impl.launches import LaunchLog
from pagedkv.impl.refusals import NoSpace
from pagedkv.spec.state import Config


class Faulty(Implementation):
    """The sound manager, with a fault planted in one of its parts; those of sharing are in `planted_sharing_faults`."""

    shares_prefixes = False
    pool: type[BlockPool] = BlockPool
    tables: type[BlockTables] = BlockTables
    launches: type[LaunchLog] = LaunchLog

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.cache._pool.__class__ = self.pool
        self.cache._tables.__class__ = self.tables
        self.cache._launches.__class__ = self.launches


class EarlyReuse(Faulty):
    """A cancelled sequence's blocks are free at once, whatever is in flight."""

    class pool(BlockPool):  # noqa: N801  (named as the attribute that it is)
        """Take every block for one that no launch has touched."""

        __slots__ = ()

        def drop(self, ids: Any, touched: int, fences: list[int]) -> Any:  # noqa: ARG002  (the signature is the protocol's)
            return super().drop(ids, 0, fences)


class OneFence(Faulty):
    """One fence for all streams: the newest launch that touches a block, whichever stream it is on."""

    class pool(BlockPool):  # noqa: N801  (named as the attribute that it is)
        """Forget all fences of a block but the newest."""

        __slots__ = ()

        def _free_or_wait(self, ids: Any) -> Any:
            fences = self.fences.newest[:, ids]
            self.fences.newest[:, ids] = np.where(fences == fences.max(axis=0, initial=0), fences, 0)
            return super()._free_or_wait(ids)


class MissingEdge(Faulty):
    """Launches are ordered by their stream alone: a reader on another stream does not wait for the writer."""

    class launches(LaunchLog):  # noqa: N801  (named as the attribute that it is)
        """Name no launch of another stream."""

        __slots__ = ()

        def edges(self, *_: Any) -> tuple[int, ...]:
            return ()


class RowRecycled(Faulty):
    """A row is given to the next sequence while a launch in flight will read it."""

    class tables(BlockTables):  # noqa: N801  (named as the attribute that it is)
        """Take no launch for a reader of a row."""

        __slots__ = ()

        def _reader(self, row: int, launches: LaunchLog) -> int:  # noqa: ARG002  (the signature is the protocol's)
            return 0


class NoCopyOnWrite(Faulty):
    """A shared tail block is written in place."""

    class cache_class(BlockCache):  # noqa: N801  (named as the attribute that it is)
        """Find nothing to copy."""

        def extend(self, *arguments: Any) -> Any:
            nothing = np.empty(0, np.intp)
            with (
                mock.patch.object(extension, "_copying", return_value=nothing),
                mock.patch.object(extension, "_extend_by_one", return_value=None),
            ):
                return super().extend(*arguments)


class EdgeKept(Faulty):
    """Copy-on-write forgets to drop the edge to the block that it copied."""

    class pool(BlockPool):  # noqa: N801  (named as the attribute that it is)
        """Let a copying holder stay a holder."""

        __slots__ = ()

        def plan_copies(self, sources: Any) -> None:
            np.add.at(self.co_holders, sources, 1)
            self.shared_edges += sources.size
            super().plan_copies(sources)


class DoubleFree(Faulty):
    """A block that two launches touch is freed by the retirement of each."""

    class pool(BlockPool):  # noqa: N801  (named as the attribute that it is)
        """Let it wait at the newest launch as well."""

        __slots__ = ()

        def _wait_for(self, launch: int, ids: Any) -> None:
            super()._wait_for(launch, ids)
            newest = max(self.launches.in_flight)
            if newest != launch:
                self.launches.in_flight[newest].waiting_blocks.append(ids)

        def discharge(self, ids: Any) -> Any:
            return super().discharge(np.unique(ids))


class CopySourceFreed(Faulty):
    """The source of a planned copy is freed when its last holder leaves, before the copy is launched."""

    class pool(BlockPool):  # noqa: N801  (named as the attribute that it is)
        """Know of no planned copy when edges are dropped."""

        __slots__ = ()

        def _orphans(self, ids: Any) -> Any:
            readers, self.copy_readers = self.copy_readers, {}
            try:
                return super()._orphans(ids)
            finally:
                self.copy_readers = readers

        def drop_copy(self, source: int) -> Any:
            self.copy_readers.pop(source, None)
            return np.empty(0, np.intp)


class _ShortPaging(Paging):
    __slots__ = ()

    def locate(self, position: Any) -> Any:
        index, offset = super().locate(position)
        ends = (offset == 0) & (position > 0)
        return index - ends, offset + ends * self.block_size


class OffByOne(Faulty):
    """A row that ends at an exact multiple of B does not grow: the next position is taken to lie in its last block."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.cache._tables.paging = _ShortPaging(config.block_size)


class LateCompletion(Faulty):
    """A completion that is delivered twice frees its blocks twice, though they are another's by then."""

    class cache_class(BlockCache):  # noqa: N801  (named as the attribute that it is)
        """Free again what a launch freed."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.freed_by: dict[int, Any] = {}

        def retire(self, launch_id: int) -> Any:
            freed = super().retire(launch_id)
            if launch_id in self.freed_by:
                again = self.freed_by[launch_id]
                self._pool.give_back(again.astype(np.intp))
                return again
            self.freed_by[launch_id] = freed
            return freed

        def clone(self) -> Any:
            twin: Any = super().clone()
            twin.freed_by = dict(self.freed_by)
            return twin


class RefusedBatchKeepsBlock(Faulty):
    """A batch that is refused for want of space has taken a block by then, and keeps it."""

    class cache_class(BlockCache):  # noqa: N801  (named as the attribute that it is)
        """Take one before refusing."""

        def extend(self, *arguments: Any) -> Any:
            try:
                return super().extend(*arguments)
            except NoSpace:
                if self._pool.available:
                    self._pool.take(1)
                raise


FAULTS: tuple[type[Faulty], ...] = tuple(Faulty.__subclasses__())
Factory = Callable[[Config], Implementation]

"""The faults of engines that run ahead of their device, planted in ours: each undoes one precaution.

Each is a context manager, inside which the loop has the fault. `test_stress_loop.py` requires that all are found.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
from pagedkv.impl.block_pool import BlockPool
from pagedkv.impl.block_tables import BlockTables
from pagedkv.impl.scheduler import Scheduler
from pagedkv.impl.staging import StagingBuffer, StagingPool
from pagedkv.impl.storage import Storage
from pagedkv.impl.worker import Worker


def fence_ignored_at_cancel() -> AbstractContextManager[object]:
    """Whoever leaves gives its blocks back at once, whatever is in flight."""
    drop = BlockPool.drop

    def drop_at_once(pool: BlockPool, ids: Any, touched: int, fences: list[int]) -> Any:  # noqa: ARG001  (replaces a method)
        return drop(pool, ids, 0, fences)

    return mock.patch.object(BlockPool, "drop", drop_at_once)


def row_reused_early() -> AbstractContextManager[object]:
    """A table row is given to the next sequence while a launch in flight will read it."""
    return mock.patch.object(BlockTables, "_reader", return_value=0)


def staging_buffer_reused_early() -> AbstractContextManager[object]:
    """A staging buffer is free as soon as its upload is queued."""
    pack = StagingPool.pack

    def pack_and_let_go(pool: StagingPool, launch_id: int, arrays: Sequence[Any]) -> StagingBuffer:
        buffer = pack(pool, launch_id, arrays)
        pool.recycle(launch_id)
        return buffer

    return mock.patch.object(StagingPool, "pack", pack_and_let_go)


def copy_behind_the_write() -> AbstractContextManager[object]:
    """A launch makes its copies last, over what it has written."""
    execute = Worker._execute

    def execute_then_copy(worker: Worker, arrays: Any, *others: Any) -> Any:
        sampled = execute(worker, arrays._replace(copy_sources=torch.empty(0, dtype=torch.int64)), *others)
        worker.storage.copy_blocks(arrays.copy_sources, arrays.copy_targets, arrays.copy_extents)
        return sampled

    return mock.patch.object(Worker, "_execute", execute_then_copy)


@contextmanager
def copy_ahead_of_its_source() -> Iterator[None]:
    """Copies run on the upload queue: before earlier launches have written what is copied."""
    submit, copy_blocks = Worker.submit, Storage.copy_blocks

    def submit_with_early_copies(worker: Worker, launch: Any, *others: Any) -> Any:
        copies = [torch.from_numpy(ids.astype(np.int64)) for ids in launch.copies[1:]]
        worker.device.upload(lambda: copy_blocks(worker.storage, *copies))
        return submit(worker, launch, *others)

    with (
        mock.patch.object(Worker, "submit", submit_with_early_copies),
        mock.patch.object(Storage, "copy_blocks"),
    ):
        yield


def old_result_taken() -> AbstractContextManager[object]:
    """A token is given to whoever has the sequence's place now, though it was sampled for an earlier life."""
    complete = Scheduler.complete

    def complete_regardless(scheduler: Scheduler, launch: int, *others: Any) -> Any:
        serving = scheduler.serving
        flight = serving.flights[launch]
        serving.flights[launch] = flight._replace(receiver_lives=np.maximum(serving.running.life[flight.receivers], 1))
        return complete(scheduler, launch, *others)

    return mock.patch.object(Scheduler, "complete", complete_regardless)


FAULTS = (
    fence_ignored_at_cancel,
    row_reused_early,
    staging_buffer_reused_early,
    copy_behind_the_write,
    copy_ahead_of_its_source,
    old_result_taken,
)

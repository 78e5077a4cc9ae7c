"""The device's queues, staging buffers and the mirror of the block table, each by itself.

The mirror is compared with the table of a cache that random operations have changed, row by row, nulls included.
"""

import random
from concurrent.futures import Future
from functools import partial
from threading import Event

import numpy as np
import pytest
import torch
from pagedkv.impl.cache import BlockCache
from pagedkv.impl.device import DeviceFailed, ThreadDevice, open_device
from pagedkv.impl.refusals import InvalidArgument, NoSpace
from pagedkv.impl.staging import SMALLEST, StagingPool
from pagedkv.impl.table_mirror import TableMirror, write_cells

PATIENCE_S = 60  # for a thread to begin; no test measures it


# ---- queues ---------------------------------------------------------------------------------------------------------


def test_uploads_run_ahead_of_a_launch_and_launches_behind_their_uploads() -> None:
    device, let_go, uploaded = open_device("cpu"), Event(), Event()
    done: list[str] = []

    def blocked_launch() -> None:
        let_go.wait(PATIENCE_S)
        done.append("launch 1")

    def second_upload() -> None:
        done.append("upload 2")
        uploaded.set()

    device.upload(partial(done.append, "upload 1"))
    first = device.launch(blocked_launch)
    device.upload(second_upload)
    second = device.launch(partial(done.append, "launch 2"))
    assert uploaded.wait(PATIENCE_S)
    assert done == ["upload 1", "upload 2"]
    assert not first.done()
    assert not second.done()
    let_go.set()
    second.wait()
    assert first.done()
    assert second.done()
    assert done == ["upload 1", "upload 2", "launch 1", "launch 2"]
    device.close()


def test_a_launch_that_fails_stops_none_behind_it() -> None:
    device, done = ThreadDevice(), Future[None]()
    failed = device.launch(lambda: 1 // 0)
    behind = device.launch(lambda: done.set_result(None))
    with pytest.raises(DeviceFailed, match="by zero"):
        failed.wait()
    behind.wait()
    assert done.done()
    device.close()


def test_launches_run_on_a_cpu_or_a_gpu() -> None:
    with pytest.raises(InvalidArgument, match="not on meta"):
        open_device("meta")
    with pytest.raises(InvalidArgument, match="torch knows no device 'gpu': say cpu or cuda"):
        open_device("gpu")
    there = torch.cuda.device_count()
    with pytest.raises(InvalidArgument, match=f"there is no device cuda:{there}: torch can use {there} CUDA GPUs here"):
        open_device(f"cuda:{there}")
    if not there:
        with pytest.raises(InvalidArgument, match="there is no device cuda: torch can use 0"):
            open_device("cuda")


# ---- staging --------------------------------------------------------------------------------------------------------


def test_a_buffer_is_a_launchs_until_that_has_retired() -> None:
    pool = StagingPool(ThreadDevice())
    first = pool.pack(1, [np.arange(5)])
    second = pool.pack(2, [np.arange(7)])
    assert first is not second
    assert pool.in_use == 2
    pool.recycle(1)
    assert pool.pack(3, [np.arange(2)]) is first
    assert second.landed[0].tolist() == list(range(7))
    pool.recycle(3)
    assert pool.in_use == 0


def test_arrays_land_as_they_were_whatever_their_shape() -> None:
    arrays = [
        np.arange(3, dtype=np.int32),
        np.array([2**40, -1]),
        np.arange(21, dtype=np.int32).reshape(3, 7),
        np.empty(0, np.int64),
        np.empty((0, 4), np.int32),
        np.arange(SMALLEST),
    ]
    pool = StagingPool(ThreadDevice())
    pool.pack(1, arrays[:1])
    pool.recycle(1)
    buffer = pool.pack(2, arrays)  # in a larger one
    for array, landed in zip(arrays, buffer.landed, strict=True):
        assert np.array_equal(landed.numpy(), array)
        assert landed.numpy().dtype == array.dtype
        assert landed.data_ptr() % 16 == 0 or not array.size
    assert buffer.used <= buffer.size
    assert buffer.used >= sum(array.nbytes for array in arrays)


def test_what_comes_back_is_an_array_of_its_own() -> None:
    buffer = StagingPool(ThreadDevice()).pack(1, [])
    buffer.expect(3)
    buffer.send_back(torch.tensor([4, 5, 6]))
    tokens = buffer.received()
    buffer.expect(2)
    buffer.send_back(torch.tensor([7, 8]))
    assert tokens.tolist() == [4, 5, 6]
    assert buffer.received().tolist() == [7, 8]


# ---- the mirror -----------------------------------------------------------------------------------------------------


class Mirrored:
    """A cache, random operations on it, and the mirror that follows."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.cache = BlockCache(30, self.chance.randint(1, 3), rows=2, max_blocks_per_row=1)
        self.mirror = TableMirror(ThreadDevice())
        self.names = 0
        self.merges = 0

    def change(self) -> None:
        """Add, fork, extend, publish or release; then launch what is planned, and retire what is old, or not."""
        cache, chance, live = self.cache, self.chance, self.cache.sequences()
        one = chance.choice(live) if live else None
        try:
            match chance.randrange(6):
                case 0 | 1:
                    self.names += 1
                    added = cache.add(self.names, [chance.randrange(2) for _ in range(chance.randint(1, 7))])
                    self.mirror.begin_row(added.row, added.blocks.size)
                case 2 if one is not None:
                    self.names += 1
                    forked = cache.fork(one, self.names)
                    self.mirror.begin_row(forked.row, forked.blocks.size)
                case 3 if live:
                    batch = chance.sample(live, chance.randint(1, len(live)))
                    self.mirror.edit(cache.extend(batch, chance.randint(1, 3)).edits)
                case 4 if one is not None:
                    cache.release(one)
                case 5 if live:
                    self.publish(live)
        except NoSpace:
            cache.release(chance.choice(live))
        self.launch_and_retire()

    def publish(self, live: list[int]) -> None:
        counts = [self.cache.lengths(name).allocated - self.cache.lengths(name).known for name in live]
        publication = self.cache.publish(live, [self.chance.randrange(2) for _ in range(sum(counts))], counts)
        self.mirror.edit(publication.edits)
        self.merges += publication.merges.seqs.size

    def launch_and_retire(self) -> None:
        lengths = {name: self.cache.lengths(name) for name in self.cache.sequences()}
        planned = {name: one.allocated - one.launched for name, one in lengths.items() if one.allocated > one.launched}
        if planned:
            self.cache.launch(list(planned), list(planned.values()))
        in_flight = self.cache.in_flight()
        if len(in_flight) > 1 or (in_flight and self.chance.random() < 0.3):
            self.cache.retire(in_flight[0])

    def compare(self) -> None:
        """Bring the edits up, and compare every live row with the host's, to its end."""
        edits = self.mirror.take_edits(self.cache.table)
        edits.grow()
        write_cells(self.mirror.table, torch.from_numpy(edits.cells), torch.from_numpy(edits.blocks))
        assert self.mirror.table.shape == self.cache.table.shape
        assert not self.mirror.table[0].any()
        for name in self.cache.sequences():
            row = self.cache.row_of(name)
            assert self.mirror.table[row].tolist() == self.cache.table[row].tolist()


def test_the_mirror_follows_the_table() -> None:
    merges = 0
    for seed in range(30):
        mirrored = Mirrored(seed)
        for _ in range(60):
            mirrored.change()
            if mirrored.chance.random() < 0.5:
                mirrored.compare()
        merges += mirrored.merges
    assert merges > 0

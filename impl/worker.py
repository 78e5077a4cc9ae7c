"""A step on the device: everything that a launch needs goes up in one staging buffer, then it copies, appends, attends.

`submit` is given what the cache decided (a `Launch`) and what the scheduler knows of its tokens. It works out the
launch's small arrays on the host, packs them, and hands two pieces of work to the device: the *upload* (the buffer, and
out of it the edits of the block table), and the *launch* itself: planned copies first (R-COW-3), then for each layer
append and attend, then sampling, and the sampled tokens on their way back.

A step may be submitted before the one before it is done: a token that the device has not sampled yet is named by its
place among the tokens that the previous launch samples, and is looked up on the device (a *placeholder* on the host).

Guarantees: nothing that a submitted launch reads changes before it has retired, so long as `retired` is told no sooner:
its buffer, its table, its rows (R-LIFE-6). Cost: a few passes over the batch on the host and no wait for the device;
one transfer there and one back. Considered: sending each array where it is used (a dozen transfers); the plan of
attention made on the device (its grid must be known on the host).
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from pagedkv.kernels.plan import AttentionPlan
from torch import Tensor

from .arrays import Int32Array, Int64Array
from .device import Device, Fence
from .model import Model
from .results import Launch
from .staging import StagingBuffer, StagingPool
from .step_tokens import KNOWN, StepTokens
from .storage import Storage, new_positions, slot_mapping
from .table_mirror import TableMirror, write_cells


@dataclass(frozen=True, slots=True)
class Submitted:
    """A launch that the device has been given."""

    launch: Launch
    fence: Fence
    bytes_uploaded: int
    _buffer: StagingBuffer
    _table: Tensor  # kept for as long as the launch may read it: the mirror lets go of one that has grown

    def sampled(self) -> Int64Array:
        """Wait for the launch; return the tokens it sampled. Raises `DeviceFailed`, `DeviceLost`.

        Call it before its retirement, when its buffer is used again.
        """
        self.fence.wait()
        return self._buffer.received()


class _Arrays(NamedTuple):
    """What goes up for a launch, each where it has landed: int64 but for `blocks` and the work lists, which are int32.

    All of a launch's host arrays are packed in this order.
    """

    cells: Tensor  # of the flat block table
    blocks: Tensor  # their contents
    rows: Tensor  # of the block table, [rows]
    slots: Tensor
    positions: Tensor
    ids: Tensor
    sources: Tensor
    sampling: Tensor
    ordinals: Tensor
    copy_sources: Tensor
    copy_targets: Tensor
    copy_extents: Tensor
    small_items: Tensor
    large_items: Tensor
    merges: Tensor


@dataclass(slots=True)
class _Sampled:
    """What a launch samples, on the device, for the next one's placeholders. None until it has executed, if it does."""

    tokens: Tensor | None = None


class Worker:
    """Drives a device for a cache: `submit` a step, and say which launches have `retired`.

    `mirror` is the block table on the device: note there what the cache's operations change, before the next `submit`.
    """

    __slots__ = ("_previous", "device", "mirror", "model", "staging", "storage")

    def __init__(self, storage: Storage, model: Model, device: Device) -> None:
        self.storage, self.model, self.device = storage, model, device
        device.settle()
        self.mirror = TableMirror(device)
        self.staging = StagingPool(device)
        self._previous = _Sampled()

    def submit(self, launch: Launch, tokens: StepTokens, table: Int32Array) -> Submitted:
        """Hand a launch to the device; return at once. `table` is the cache's. O(tokens + rows + cells edited)."""
        plan = self.storage.plan(launch, self.model.q_heads)
        edits = self.mirror.take_edits(table)
        buffer = self.staging.pack(launch.id, self._pack(launch, tokens, plan, edits.cells, edits.blocks))
        buffer.expect(tokens.sampling.size)
        arrays = _Arrays(*buffer.landed)
        on_device, columns = self.mirror.table, -(-int(launch.lengths.max(initial=0)) // self.storage.block_size)
        previous = self._previous if tokens.sources.size and int(tokens.sources.max()) > KNOWN else None
        current = self._previous = _Sampled()

        def upload() -> None:
            edits.grow()
            buffer.send()
            write_cells(on_device, arrays.cells, arrays.blocks)

        def execute() -> None:
            current.tokens = self._execute(arrays, _landed_plan(plan, arrays), on_device[:, :columns], previous)
            buffer.send_back(current.tokens)

        self.device.upload(upload)
        return Submitted(launch, self.device.launch(execute), buffer.used, buffer, on_device)

    def retired(self, launch_id: int) -> None:
        """Launches up to this one have retired: their buffers may be used again."""
        self.staging.recycle(launch_id)

    def _pack(
        self, launch: Launch, tokens: StepTokens, plan: AttentionPlan, cells: Int64Array, blocks: Int32Array
    ) -> list[Int32Array | Int64Array]:
        """Return the arrays of `_Arrays`, on the host."""
        positions = new_positions(launch)
        slots = slot_mapping(launch, positions, self.storage.paging)
        copies = [ids.astype(np.int64) for ids in launch.copies[1:]]
        lists = [records.numpy() for records in (plan.small.items, plan.large.items, plan.merges)]
        return [cells, blocks, launch.rows.astype(np.int64), slots, positions, *tokens, *copies, *lists]

    def _execute(self, arrays: _Arrays, plan: AttentionPlan, table: Tensor, previous: _Sampled | None) -> Tensor:
        """Do a launch, as work of the launch queue; return what it samples."""
        storage, model = self.storage, self.model
        if arrays.copy_sources.numel():
            storage.copy_blocks(arrays.copy_sources, arrays.copy_targets, arrays.copy_extents)
        ids = arrays.ids
        # Where the launch before it failed, whoever waits for its tokens is preempted: what is computed is nobody's.
        if previous is not None and previous.tokens is not None:
            ids = torch.where(arrays.sources > KNOWN, previous.tokens[arrays.sources.clamp(min=0)], ids)
        rows = table.index_select(0, arrays.rows)
        hidden = model.embed(ids, arrays.positions)
        for layer in range(storage.shape.layers):
            query, key, value = model.project(layer, hidden)
            storage.append(layer, key, value, arrays.slots)
            hidden = model.mix(layer, hidden, storage.attend(layer, query, rows, plan))
        return model.sample(hidden[arrays.sampling], arrays.ordinals)


def _landed_plan(plan: AttentionPlan, arrays: _Arrays) -> AttentionPlan:
    """Return a plan whose work lists are where they have landed."""
    small, large = replace(plan.small, items=arrays.small_items), replace(plan.large, items=arrays.large_items)
    return replace(plan, small=small, large=large, merges=arrays.merges)

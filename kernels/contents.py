"""Checked mode: what only the contents of tensors can tell. It reads them, so on a GPU it waits for the device.

See `checks` for what is refused always, and for why the null block counts as out of range. Cost: O(entries read).
"""

import numpy as np
import torch
from pagedkv.kernels.arguments import InvalidKernelArgument, PagedCache
from pagedkv.kernels.checks import require
from pagedkv.kernels.plan import AttentionPlan
from torch import Tensor


def is_checked(checked: bool | None, device: torch.device) -> bool:  # noqa: FBT001  (passed on as it came)
    """Whether contents are looked at: as told; untold, on a CPU."""
    return device.type == "cpu" if checked is None else checked


def check_entries(block_table: Tensor, cache: PagedCache, plan: AttentionPlan) -> None:
    """Refuse a row that names a block outside 1 .. blocks - 1 among the entries that the plan reads."""
    rows = len(plan.kv_lengths)
    table = block_table[:rows].cpu().numpy()
    column = np.arange(table.shape[1])
    first = plan.kv_starts
    if plan.window is not None:  # entries that left the window are null, and not read (R-SWA-2)
        first = np.maximum(first, plan.kv_lengths - np.diff(plan.query_starts) - plan.window + 1)
    read = column >= (first // cache.block_size)[:, None]
    read &= column < (-(-plan.kv_lengths // cache.block_size))[:, None]
    read &= (np.diff(plan.query_starts) > 0)[:, None]
    bad = np.argwhere(read & ((table < 1) | (table >= cache.blocks)))
    if len(bad):
        row, entry = (int(x) for x in bad[0])
        raise InvalidKernelArgument(
            f"block_table: entry {entry} of row {row} is {int(table[row, entry])}, not in 1..{cache.blocks - 1},"
            f" and is read for length {int(plan.kv_lengths[row])}"
        )


def check_shared_entries(block_table: Tensor, shared_blocks: int, rows: int) -> None:
    """Refuse a cascade over rows that do not begin with the same blocks."""
    shared = block_table[:rows, :shared_blocks].cpu()
    if rows and not bool((shared == shared[:1]).all()):
        row = int((shared != shared[:1]).any(dim=1).nonzero()[0, 0])
        raise InvalidKernelArgument(f"block_table: row {row} does not begin with the {shared_blocks} blocks of row 0")


def check_slots(slots: Tensor, cache: PagedCache) -> None:
    """Refuse slots other than -1 and those of blocks 1 .. blocks - 1, and a slot that is written twice."""
    host = slots.cpu()
    end = cache.blocks * cache.block_size
    bad = ((host != -1) & ((host < cache.block_size) | (host >= end))).nonzero()
    if len(bad):
        at = int(bad[0, 0])
        raise InvalidKernelArgument(
            f"slots: entry {at} is {int(host[at])}, neither -1 nor in {cache.block_size}..{end - 1}"
        )
    kept = host[host >= 0]
    distinct = len(set(kept.tolist())) == kept.numel()
    require(distinct, "slots: a slot is named twice; which write would win is not defined")


def check_blocks(name: str, ids: Tensor, blocks: int, *, written: bool) -> None:
    """Refuse block ids outside 1 .. blocks - 1 and, where they are written, an id that stands twice."""
    host = ids.cpu()
    bad = ((host < 1) | (host >= blocks)).nonzero()
    if len(bad):
        at = int(bad[0, 0])
        raise InvalidKernelArgument(f"{name}: entry {at} is {int(host[at])}, not in 1..{blocks - 1}")
    distinct = len(set(host.tolist())) == host.numel()
    require(distinct or not written, f"{name}: a block is written twice; targets must be distinct (R-COW-3)")


def check_copy_order(sources: Tensor, targets: Tensor) -> None:
    """Refuse a block that one launch would both read and write: its copies run in no order."""
    both = torch.isin(targets.cpu(), sources.cpu())
    require(
        not bool(both.any()), f"targets: block {int(targets.cpu()[both][0]) if both.any() else 0} is also a source;"
        " copies of one launch run in no order, so make it a later launch",
    )  # fmt: skip


def check_extents(extents: Tensor, block_size: int) -> None:
    """Refuse extents outside 0 .. B."""
    host = extents.cpu()
    require(
        not len(host) or (int(host.min()) >= 0 and int(host.max()) <= block_size),
        f"extents: must be in 0..{block_size}, not {int(host.min()) if len(host) else 0}"
        f"..{int(host.max()) if len(host) else 0}",
    )

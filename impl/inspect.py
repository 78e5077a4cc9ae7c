"""Looking in from outside: who holds a block, what is written, and the state as one value.

Nothing here is on an engine's path, so what can be derived is derived here rather than kept up to date: who holds a
block from the rows, who reads it from the launches in flight, what is written from what they still write. `who_holds`
answers what operators ask when a cache is full and nobody seems to use it: whose, since when, why not free. Considered:
an owner stored with each block (wrong as soon as blocks are shared, and a write more for each block taken).
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from .arrays import IndexArray
from .block_pool import BlockPool
from .block_tables import BlockTables
from .launches import InFlight, LaunchLog
from .results import Lengths


class Holder(NamedTuple):
    """A sequence that holds a block."""

    seq: int
    place: int  # the block's index in the sequence's row
    since_operation: int  # operations are counted from 1, refused ones not
    since_launch: int | None  # the newest launch before that, if it is still in flight


class Holding(NamedTuple):
    """Whose a block is, since when, and why it is not free. `str` says it in words."""

    block: int
    state: str
    holders: tuple[Holder, ...]
    readers: tuple[int, ...]  # launches in flight that read or write it
    planned: tuple[int, ...]  # sequences whose planned copy reads it
    fences: tuple[int, ...]  # per stream, the launch whose retirement it waits for; 0 where it waits for none
    pins: tuple[int, ...] = ()  # handles of the pins that hold it
    parent: int | None = None  # if it is published: the block before it in the prefix index, 0 for none

    def __str__(self) -> str:
        said = [f"block {self.block} is {self.state}"]
        for holder in self.holders:
            after = f", after launch {holder.since_launch}" if holder.since_launch else ""
            since = f"since operation {holder.since_operation}{after}"
            said.append(f"sequence {holder.seq} holds it as block {holder.place} of its row, {since}")
        if self.pins:
            said.append("held by pin " + ", ".join(map(str, self.pins)))
        if self.parent is not None:
            said.append(
                f"published behind block {self.parent}" if self.parent else "published as the first of a prefix"
            )
        if self.readers:
            said.append("in flight and touching it: launch " + ", ".join(map(str, self.readers)))
        if self.planned:
            said.append("a planned copy reads it for sequence " + ", ".join(map(str, self.planned)))
        waits = [f"launch {fence} on stream {stream}" for stream, fence in enumerate(self.fences) if fence]
        if waits:
            free = "evictable" if self.state == "idle" else "free"
            said.append(f"not {free} before the retirement of " + " and ".join(waits))
        return "; ".join(said)


def who_holds(tables: BlockTables, pool: BlockPool, block: int, pins: Mapping[int, IndexArray]) -> Holding:
    """Tell who holds a block, since when, and why it is not free. O(table entries in use + rows in flight)."""
    state = pool.state(block)
    flights = pool.launches.in_flight.values()
    names = tables.names.name_of
    return Holding(
        block,
        state,
        tuple(_holders(tables, pool, block)) if block else (),
        tuple(flight.launch.id for flight in flights if block and block in blocks_touched(tables, flight)),
        tuple(int(names[row]) for row, copy in tables.copies.items() if copy.source == block),
        tuple(pool.fences.of(block)) if state in {"quarantined", "idle"} else (0,) * pool.launches.streams,
        tuple(handle for handle, blocks in pins.items() if block in blocks.tolist()),
        pool.index.parents.item(block) if pool.index is not None and pool.index.published[block] else None,
    )


def _holders(tables: BlockTables, pool: BlockPool, block: int) -> Iterator[Holder]:
    """Yield the holders of a block.

    An edge is as old as the row's growth by the block, or as the sequence if that is younger: it began with the block.
    (One that a merge made counts as old as the sequence, or as the block's own growth: when it was merged isn't noted.)
    """
    for name, row in tables.names.row_of.items():
        for place in np.flatnonzero(tables.blocks(row) == block).tolist():
            since = max(pool.grown_since(block), int(tables.names.epoch_of[row]))
            earlier = [flight for flight in pool.launches.in_flight.values() if flight.operation < since]
            yield Holder(name, place, since, earlier[-1].launch.id if earlier else None)


def blocks_touched(tables: BlockTables, flight: InFlight) -> set[int]:
    """Return the blocks that a launch in flight reads or writes, from the storage that the device will read."""
    launch = flight.launch
    used = tables.paging.blocks_needed(launch.lengths).tolist()
    touched = {
        int(block) for row, count in zip(launch.rows.tolist(), used, strict=True) for block in launch.table[row, :count]
    }
    return touched | set(launch.copies.sources.tolist()) | set(launch.copies.targets.tolist())


Write = tuple[int, int]  # a launch in flight, and the first of the positions that it writes


def writes_of(launches: LaunchLog, epoch: int) -> list[Write]:
    """Return what launches in flight write for one life of a name. O(launches in flight x their batch)."""
    return [
        (launch_id, start)
        for launch_id, flight in launches.in_flight.items()
        for start in flight.launch.starts[flight.launch.epochs == epoch].tolist()
    ]


def writes_by_epoch(launches: LaunchLog) -> dict[int, list[Write]]:
    """Return what launches in flight write for each life of a name: one walk for all. Same cost, with lists."""
    writes: dict[int, list[Write]] = {}
    for launch_id, flight in launches.in_flight.items():
        for epoch, start in zip(flight.launch.epochs.tolist(), flight.launch.starts.tolist(), strict=True):
            writes.setdefault(epoch, []).append((launch_id, start))
    return writes


def pending_writes(tables: BlockTables, row: int, writes: Mapping[int, list[Write]]) -> list[Write]:
    """Return what launches in flight write of a sequence's positions, picked from their `writes` by epoch.

    Its own, and those of its ancestors up to the fork.
    """
    pending = writes.get(tables.names.epoch_of.item(row), [])
    for elder in tables.ancestors.get(row, ()):
        if elder.epoch in writes:
            pending = pending + [write for write in writes[elder.epoch] if write[0] <= elder.until]
    return pending


def pending_of(tables: BlockTables, launches: LaunchLog, row: int) -> list[Write]:
    """Return what launches in flight write of one sequence's positions. O(launches in flight x their batch)."""
    epochs = [tables.names.epoch_of.item(row), *(elder.epoch for elder in tables.ancestors.get(row, ()))]
    return pending_writes(tables, row, {epoch: writes_of(launches, epoch) for epoch in epochs})


def lengths(tables: BlockTables, row: int, pending: list[Write]) -> Lengths:
    """Return a sequence's lengths; retired launches have written up to where those in flight begin."""
    allocated, launched = tables.allocated.item(row), tables.launched.item(row)
    known = 0 if tables.knowledge is None else tables.knowledge.known.item(row)
    written = launched
    for _, start in pending:
        written = min(written, start)
    return Lengths(known, allocated, launched, written)


def fingerprint(
    tables: BlockTables,
    pool: BlockPool,
    block: Mapping[int, int],
    sequence: Mapping[int, int],
    launch: Callable[[int], int],
) -> Hashable:
    """Return all state on which future behaviour depends, renamed.

    Left out, since it can't influence what happens: which row a sequence has, rows and fences that have retired, how
    many operations there have been, the last batch resolved. Token ids and salts are names, too: who knows how
    many is told, and which block is published behind which.
    """
    launches = pool.launches
    names = {0: 0} | {launch_id: launch(launch_id) for launch_id in launches.in_flight}  # 0: what has retired
    fences, born_after = tables.fences.T.tolist(), tables.born_after.tolist()
    writes = writes_by_epoch(launches)
    sequences = []
    for name, row in tables.names.row_of.items():
        copy = tables.copies.get(row)
        own = [fence if fence > born_after[row] else 0 for fence in fences[row]]  # of launches that read its row
        sequences.append(
            (
                sequence[name],
                tuple([block[entry] for entry in tables.blocks(row).tolist()]),
                tables.allocated.item(row),
                tables.launched.item(row),
                tuple([names.get(fence, 0) for fence in (*fences[row], *own)]),
                tuple([(names[pending], start) for pending, start in sorted(pending_writes(tables, row, writes))]),
                copy and (block[copy.source], block[copy.target], copy.extent),
                () if tables.knowledge is None else tables.knowledge.of(row),
            )
        )
    free = pool.free_ids().tolist()
    unkept = set(free)
    kept = [
        (
            block[entry],
            count,
            tuple([names[fence] for fence in pool.fences.of(entry)]),
            *_publication(pool, block, entry),
        )
        for entry, count in enumerate(pool.co_holders.tolist())
        if entry and entry not in unkept
    ]
    flights = [
        (
            names[launch_id],
            flight.launch.stream,
            tuple([names.get(earlier, 0) for earlier in flight.clock]),
            tuple([block[entry] for ids in flight.waiting_blocks for entry in ids.tolist()]),
        )
        for launch_id, flight in launches.in_flight.items()
    ]
    queues = [] if pool.retention is None else pool.retention.queues()
    return (
        tuple([block[entry] for entry in free]),
        tuple(sorted(sequences)),
        tuple(sorted(kept)),
        tuple(flights),
        tuple([tuple([block[entry] for entry in queue]) for queue in queues if queue or any(queues)]),
    )


def _publication(pool: BlockPool, block: Mapping[int, int], entry: int) -> tuple[int, ...]:
    """Return a published block's parent and classes, renamed; nothing of another block."""
    index, retention = pool.index, pool.retention
    if index is None or retention is None or not index.published[entry]:
        return ()
    parent = index.parents.item(entry)
    classes = retention.own.item(entry), retention.effective.item(entry), *retention.heirs(entry)
    return (block[parent] if parent else 0, *classes)

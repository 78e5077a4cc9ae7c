"""`launch`: a step is handed to the device.

From here on the device may, at any time that its streams and edges allow, make the planned copies of these rows, write
their next planned positions, and read all positions before. So the launch records what it was given: table rows,
lengths and epochs; and it becomes the newest fence of its sequences on its stream, which is all that has to be noted
to protect their blocks and rows (a pass over the batch, none over blocks).

Edges: a launch is ordered after whatever touched its sequences on other streams and has not retired. That is a
superset of the conflicts that need one (R-LIFE-2), and costs a pass over the batch for each other busy stream.
"""

import numpy as np

from .arrays import IndexArray, Int64Array, frozen
from .block_pool import BlockPool
from .block_tables import BlockTables
from .names import Batch
from .refusals import BadCount, Busy
from .results import NO_COPIES, Copies, Launch, copies_of


def submit(
    tables: BlockTables, pool: BlockPool, batch: Batch, counts: int | Int64Array, stream: int, operation: int
) -> Launch:
    """Launch the next `counts` planned positions of each row of a batch, or refuse. O(batch x streams)."""
    launches, rows = pool.launches, batch.rows
    starts = tables.launched[rows]
    ends = _ends(tables, pool, rows, starts, counts)
    if len(launches.in_flight) >= launches.limit:
        raise Busy(f"{launches.limit} launches are in flight, the most there may be: retire one first")
    after = launches.edges(stream, tables.fences, rows) if launches.streams > 1 and rows.size else ()
    tables.launched[rows] = ends
    copies = _take_copies(tables, batch) if tables.copies else NO_COPIES
    launch_id = launches.issued + 1
    captured = batch.device_rows, frozen(starts), frozen(ends), copies, tables.table, batch.names, batch.epochs
    launch = Launch(launch_id, stream, after, *captured)
    launches.submit(launch, operation)
    tables.fences[stream][rows] = launch_id  # a view first: twice as fast as one index in two dimensions
    if copies is not NO_COPIES:
        pool.launch_copies(copies.sources.tolist(), stream, launch_id)
    return launch


def _ends(
    tables: BlockTables, pool: BlockPool, rows: IndexArray, starts: Int64Array, counts: int | Int64Array
) -> Int64Array:
    """Return up to where a launch of so many positions of each row goes, or refuse it with `BadCount`."""
    if not rows.size:
        return starts
    if rows.size == 1 and isinstance(counts, int):  # one prompt: integers cost a third of arrays of one
        end = starts.item() + counts
        if counts >= 1 and end <= tables.allocated.item(rows.item()):
            return np.array((end,))
    least, most = (counts, counts) if isinstance(counts, int) else (int(counts.min()), int(counts.max()))
    if least >= 1 and most <= pool.blocks * tables.paging.block_size:  # what is larger could overflow
        ends: Int64Array = starts + counts
        if not np.count_nonzero(ends > tables.allocated[rows]):
            return ends
    raise BadCount("a row must launch at least 1 position, and at most those that are planned")


def _take_copies(tables: BlockTables, batch: Batch) -> Copies:
    """Take the planned copies of a batch out of the plan, in batch order."""
    places = tables.copying[batch.rows].nonzero()[0]
    tables.copying[batch.rows] = False
    names, rows = batch.names[places].tolist(), batch.rows[places].tolist()
    return copies_of([(name, *tables.copies.pop(row)) for name, row in zip(names, rows, strict=True)])

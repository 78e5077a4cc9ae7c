"""What the operations of the cache return: plain arrays under names, in batch order.

Arrays are the caller's to keep; where several results share one it is read-only. Block ids and table rows are int32 and
slots int64, as attention kernels read them (vLLM's block table and slot mapping, FlashAttention's `block_table`). The
one live array is `Launch.table`, on purpose: it is the storage that the device reads when the launch executes.
"""

from typing import NamedTuple

import numpy as np

from .arrays import NO_BLOCKS, Int32Array, Int64Array, frozen


class Added(NamedTuple):
    """A sequence has begun. A mirror of the table on a device writes `blocks` to the row, and null behind them."""

    row: int  # index into the cache's table
    blocks: Int32Array  # [ceil(tokens / B)] the whole row: first the hits, then the blocks taken
    hits: int = 0  # leading blocks that were found written; the first position to compute is hits * B


class Forked(NamedTuple):
    """A child has begun as its parent is now. A mirror of the table treats its row as one that was added."""

    row: int  # index of the child's row in the cache's table
    blocks: Int32Array  # [ceil(allocated / B)] the parent's blocks, which both hold now


class Copies(NamedTuple):
    """Copy the first `extents[i]` slots of block `sources[i]` to block `targets[i]`; targets are distinct."""

    seqs: Int64Array  # on whose behalf
    sources: Int32Array
    targets: Int32Array
    extents: Int32Array  # positions, 1 to B - 1


class Edits(NamedTuple):
    """What changed in the table: `table[rows[i], columns[i]]` is now `blocks[i]`. Three arrays of one length."""

    rows: Int32Array
    columns: Int32Array
    blocks: Int32Array


class Extension(NamedTuple):
    """Room for the next positions of a batch."""

    slots: Int64Array  # [sum(counts)] slot mapping of the new positions, in batch order
    edits: Edits  # a row that had to move is there in full, under its new index, with null behind it
    copies: Copies  # planned: they run at the head of the launch that writes these positions
    blocks: Int32Array  # taken, in order of taking: row by row, a copy's target before the row's growth


class Launch(NamedTuple):
    """A step handed to the device: it copies, writes each row's new positions and reads all positions before them."""

    id: int
    stream: int
    after: tuple[int, ...]  # launches on other streams that must have executed before this one
    rows: Int32Array  # [batch] indices into `table`
    starts: Int64Array  # [batch] first position written
    lengths: Int64Array  # [batch] context length, the new positions included
    copies: Copies  # run first
    table: Int32Array  # [rows, max_blocks] the storage itself, which the device reads when the launch executes
    seqs: Int64Array  # [batch] names
    epochs: (
        Int64Array  # [batch] which life of each name this is; a result of an earlier life is none of the present one's
    )


class Merges(NamedTuple):
    """Rows that name another block now, with the same contents: entry `indices[i]` of sequence `seqs[i]`."""

    seqs: Int64Array
    indices: Int32Array  # logical block
    old: Int32Array
    new: Int32Array


class Publication(NamedTuple):
    """What `publish` did. Arrays in batch order, a row's blocks from the first."""

    blocks: Int32Array  # published now
    merges: Merges
    edits: Edits  # of the table; a row that had to move is there in full, under its new index, with null behind it
    freed: Int32Array  # blocks that merges let go and that are free now


class Lengths(NamedTuple):
    """The four lengths of a sequence in positions: written <= launched <= allocated, and known <= allocated."""

    known: int  # leading positions whose token ids the cache was told
    allocated: int  # the row has room for
    launched: int  # some launch has written or will write
    written: int  # retired launches have written


class Csr(NamedTuple):
    """The rows of a batch one behind the other: FlashInfer's kv_indptr, kv_indices and last_page_len."""

    indptr: Int32Array  # [batch + 1] where each row begins in `indices`, and where the last one ends
    indices: Int32Array  # [blocks of the batch]
    last_block_lengths: Int32Array  # [batch] positions in each row's last block, 1 to B


class Counts(NamedTuple):
    """Blocks by state; free + held + quarantined + idle = blocks."""

    free: int
    held: int
    quarantined: int
    idle: int  # published and held by nobody; evictable, or fenced by a launch in flight
    blocks: int


NO_NAMES: Int64Array = frozen(np.empty(0, np.int64))
NO_COPIES = Copies(NO_NAMES, NO_BLOCKS, NO_BLOCKS, NO_BLOCKS)
NO_EDITS = Edits(NO_BLOCKS, NO_BLOCKS, NO_BLOCKS)
NO_MERGES = Merges(NO_NAMES, NO_BLOCKS, NO_BLOCKS, NO_BLOCKS)
NO_PUBLICATION = Publication(NO_BLOCKS, NO_MERGES, NO_EDITS, NO_BLOCKS)


def copies_of(copies: list[tuple[int, int, int, int]]) -> Copies:
    """Return copies as arrays, from (sequence, source, target, extent) each."""
    if not copies:
        return NO_COPIES
    seqs, *blocks = zip(*copies, strict=True)
    return Copies(np.array(seqs, np.int64), *(np.array(column, np.int32) for column in blocks))

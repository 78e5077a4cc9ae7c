"""The memory ledger: what a paged KV cache costs in bytes, and what so many bytes hold.

One formula carries it: layers x heads x numbers x bytes x positions. A layer stores, for a position and a KV head,
`numbers` numbers: K and V, so 2 x head size; or one latent vector with its rotary part (multi-head latent attention,
DeepSeek-V2), which K and V share, so there is no factor 2, and one head that all query heads read. Around it stand the
costs that such a formula leaves out, and that make a cache which should fit run out of memory: tails of last blocks,
the null block, block tables, what the kernels need to work, a share that is kept free.

What is subtracted is only what is truly not stored:

- *Sharding.* Tensor parallelism divides query heads over ranks; a rank stores the KV heads that its query heads read.
  KV heads that do not divide are replicated, and a latent, being one head, is on every rank.
- *Sharing.* A common prefix is stored once, in whole blocks; its last, partial block is everybody's own (R-HASH-5
  leaves one token to compute, so the prefix is shorter than the sequence).
- *Windows.* A layer that sees W positions keeps the blocks of W positions, if its manager lets the others go
  (R-SWA-1). At its worst moment that is ceil((W + B - 1) / B) blocks. Sharing is counted there only while nothing has
  left the window.

All amounts are integers and exact. Each function is closed and O(groups of layers); the inverses search by halving,
which is sound because nothing here gets smaller as sequences or tokens grow. Considered: a window's blocks at exactly
the length asked for; that number falls and rises with the length, and a pool must hold its peak.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import gcd

from pagedkv.spec.arithmetic import blocks_needed

TABLE_ENTRY_BYTES = 4  # block ids are int32
SLOT_BYTES = 8  # a slot mapping is int64
SCRATCH_BYTES = 4  # partial results and their records are float32 and int32
LARGEST = 1 << 40  # no search goes beyond so many sequences or tokens


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that store alike: `numbers` a KV head and position, for all positions or for the last `window`."""

    layers: int
    kv_heads: int
    numbers: int
    window: int | None = None


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What of a model its cache depends on. `head_size` is that of an attention output, for the kernels' scratch."""

    name: str
    q_heads: int
    head_size: int
    groups: tuple[LayerGroup, ...]

    @property
    def layers(self) -> int:
        """Layers that keep K and V."""
        return sum(group.layers for group in self.groups)


def no_workspace(_sequences: int, _tokens: int) -> int:
    """Count no scratch: the cache alone."""
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How the cache is kept.

    `dtype_bytes` a number, over `ranks` of tensor parallelism. `headroom` is kept free, as a share of all the rest.
    `drops_windows`: blocks that have left a layer's window are let go. `workspace(sequences, tokens)` are the bytes a
    rank's kernels need besides; `block_metadata_bytes` and `row_metadata_bytes` those of the manager, on the host.
    """

    block_size: int
    dtype_bytes: int
    ranks: int = 1
    headroom: Fraction = Fraction(0)
    drops_windows: bool = True
    workspace: Callable[[int, int], int] = no_workspace
    block_metadata_bytes: int = 0
    row_metadata_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Demand:
    """`sequences` of `tokens` positions each, of which the first `shared_tokens` are the same for all."""

    sequences: int
    tokens: int
    shared_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Bytes on one rank's device, but for the last three: on the host, and over all ranks."""

    blocks: int  # usable blocks, summed over the pools: one for each window that layers have
    kv_bytes: int  # positions that are kept, a shared one once
    tail_waste_bytes: int  # slots of those blocks that no kept position fills
    null_block_bytes: int
    block_table_bytes: int
    workspace_bytes: int
    headroom_bytes: int
    host_metadata_bytes: int  # block tables once more, and the manager's own state
    replicated_bytes: int  # K and V that more than one rank stores, counted beyond the first
    ranks: int

    @property
    def pool_bytes(self) -> int:
        """The tensors of K and V: what a storage of so many blocks allocates."""
        return self.kv_bytes + self.tail_waste_bytes + self.null_block_bytes

    @property
    def device_bytes(self) -> int:
        """All that one rank's device must have."""
        return self.pool_bytes + self.block_table_bytes + self.workspace_bytes + self.headroom_bytes


def heads_on_rank(q_heads: int, kv_heads: int, ranks: int) -> int:
    """Return the KV heads that each rank stores: those that its query heads read, in groups of one size.

    Attention takes one group size a rank, so a KV head whose query heads lie on two ranks is stored on both, and where
    groups would be ragged they are cut to the greatest common part. Raises ValueError where query heads do not divide.
    """
    if q_heads % ranks or q_heads % kv_heads:
        raise ValueError(f"{q_heads} query heads do not divide over {ranks} ranks and {kv_heads} KV heads")
    own_q_heads = q_heads // ranks
    return own_q_heads // gcd(own_q_heads, q_heads // kv_heads)


def kept_positions(tokens: int, window: int | None) -> int:
    """Return how many of a sequence's positions a layer still has to keep."""
    return tokens if window is None else min(tokens, window)


def blocks_kept(tokens: int, window: int | None, block_size: int) -> int:
    """Return the most blocks that a layer keeps at one time while a sequence grows to `tokens`, one by one."""
    return blocks_needed(tokens if window is None else min(tokens, window + block_size - 1), block_size)


def position_bytes(model: ModelShape, group: LayerGroup, terms: Terms) -> int:
    """Return the bytes that one position takes in a group's layers on one rank."""
    return group.layers * heads_on_rank(model.q_heads, group.kv_heads, terms.ranks) * group.numbers * terms.dtype_bytes


def token_bytes(model: ModelShape, terms: Terms) -> int:
    """Return the bytes of one token on one rank while every layer keeps it."""
    return sum(position_bytes(model, group, terms) for group in model.groups)


def scratch_bytes(partial_rows: int, q_heads: int, head_size: int, records: int) -> int:
    """Return the bytes of split attention's partial results: an output and a log-sum-exp a row and head; and records.

    Source: FlashDecoding (2023). `records` are the integers of the work lists.
    """
    return SCRATCH_BYTES * (partial_rows * q_heads * (head_size + 1) + records)


def ledger(model: ModelShape, terms: Terms, demand: Demand) -> Ledger:
    """Count what `demand` takes. Raises ValueError for heads that do not divide, or a prefix that is no prefix."""
    if not 0 <= demand.shared_tokens < max(demand.tokens, 1):
        raise ValueError(f"{demand.shared_tokens} shared tokens of {demand.tokens}: one token is everybody's own")
    rows, size = demand.sequences, terms.block_size
    windows = sorted({_window(group, terms) or 0 for group in model.groups})
    blocks = {window: _blocks(demand, window or None, size) for window in windows}
    kv = slots = null = stored_once = 0
    for group in model.groups:
        window, a_position = _window(group, terms), position_bytes(model, group, terms)
        shared = (rows - 1) * _shared_blocks(demand, window, size) * size if rows else 0
        kept = rows * kept_positions(demand.tokens, window) - shared
        kv += kept * a_position
        slots += blocks[window or 0] * size * a_position
        null += size * a_position
        stored_once += kept * group.layers * group.kv_heads * group.numbers * terms.dtype_bytes
    entries = rows * blocks_needed(demand.tokens, size) * len(windows)
    used = slots + null + entries * TABLE_ENTRY_BYTES + terms.workspace(rows, demand.tokens)
    metadata = sum(blocks.values()) * terms.block_metadata_bytes + rows * len(windows) * terms.row_metadata_bytes
    return Ledger(
        blocks=sum(blocks.values()),
        kv_bytes=kv,
        tail_waste_bytes=slots - kv,
        null_block_bytes=null,
        block_table_bytes=entries * TABLE_ENTRY_BYTES,
        workspace_bytes=terms.workspace(rows, demand.tokens),
        headroom_bytes=-(-used * terms.headroom.numerator // terms.headroom.denominator),
        host_metadata_bytes=entries * TABLE_ENTRY_BYTES + metadata,
        replicated_bytes=kv * terms.ranks - stored_once,
        ranks=terms.ranks,
    )


def usable_blocks(model: ModelShape, terms: Terms, pool_bytes: int) -> int:
    """Return how many blocks, all layers in each, a pool of so many bytes has besides its null block."""
    return max(0, pool_bytes // (token_bytes(model, terms) * terms.block_size) - 1)


def sequences_that_fit(model: ModelShape, terms: Terms, tokens: int, device_bytes: int, shared_tokens: int = 0) -> int:
    """Return the most sequences of `tokens` positions, up to 2^40, that a device with so many bytes holds."""

    def fits(sequences: int) -> bool:
        return ledger(model, terms, Demand(sequences, tokens, shared_tokens)).device_bytes <= device_bytes

    return _largest(fits, LARGEST)


def tokens_that_fit(model: ModelShape, terms: Terms, sequences: int, device_bytes: int, longest: int = LARGEST) -> int:
    """Return the longest length, up to `longest`, to which all of the sequences can grow, nothing shared."""

    def fits(tokens: int) -> bool:
        return ledger(model, terms, Demand(sequences, tokens)).device_bytes <= device_bytes

    return _largest(fits, longest)


def _window(group: LayerGroup, terms: Terms) -> int | None:
    return group.window if terms.drops_windows else None


def _shared_blocks(demand: Demand, window: int | None, block_size: int) -> int:
    """Return the blocks that all rows name in common, in a layer out of whose window nothing has fallen."""
    return demand.shared_tokens // block_size if window is None or demand.tokens <= window else 0


def _blocks(demand: Demand, window: int | None, block_size: int) -> int:
    shared = _shared_blocks(demand, window, block_size)
    own = blocks_kept(demand.tokens, window, block_size) - shared
    return demand.sequences * own + (shared if demand.sequences else 0)


def _largest(fits: Callable[[int], bool], limit: int) -> int:
    """Return the largest number up to `limit` that fits, if all below it do; 0 where 1 does not."""
    low, high = 0, 1
    while fits(high):
        if high == limit:
            return limit
        low, high = high, min(2 * high, limit)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low

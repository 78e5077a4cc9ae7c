"""Decode steps of a sweep on this machine's kernels: one layer, scaled to what the machine holds, block sizes in turns.

One stretch of memory serves every block size: it is viewed as blocks of each, since what is in it is noise. So block
sizes take turns step by step (8 16 32 64, 16 32 64 8, ...), which on a shared machine is the only way to compare times,
and the memory of one is enough. A block's place in it is by lot, as in a pool after long use: a manager that has just
begun hands blocks out in order, which a cache line and a prefetcher would like more than real life offers. Results do
not depend on places (R-KRN-4).

A layer of a step is `append` of the new K and V and `attention` of one query a sequence; the plan is made once a step
for all layers and is not in it. *Fraction of the memory limit*: bytes that must move (K and V of all positions, new K
and V, queries, output) a second, over those of a plain copy on this device in this run.

Scaling, on a CPU or where one layer is too large: KV heads are halved down to 1 (the group stays), then the head size
down to 64, then only the first sequences take part. It changes what a latency is worth, and so is printed with it.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from pagedkv.bench.amounts import in_words
from pagedkv.bench.failures import BadInput
from pagedkv.bench.kernel_timing import measure
from pagedkv.bench.traces import Int64Array
from pagedkv.impl.results import Launch
from pagedkv.kernels import checks, dispatch
from pagedkv.kernels.arguments import FLOAT8_DTYPES, InvalidKernelArgument, Layout, PagedCache
from pagedkv.kernels.plan import plan_attention
from pagedkv.spec.ledger import ModelShape
from torch import Tensor

CPU_POOL_BYTES = 2 << 30
GPU_POOL_SHARE = 0.6  # of the memory that is free
SMALLEST_HEAD = 64
NOISE_NUMBERS = 1 << 20


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One layer as it is timed: the first `sequences` of the batch, with so many heads."""

    sequences: int
    q_heads: int
    kv_heads: int
    head_size: int
    dtype: torch.dtype
    layout: Layout

    @property
    def position_bytes(self) -> int:
        """Bytes of K and V of a position."""
        return 2 * self.kv_heads * self.head_size * self.dtype.itemsize

    @property
    def query_dtype(self) -> torch.dtype:
        """What queries and outputs are: the cache's dtype, or bf16 beside an fp8 cache."""
        return torch.bfloat16 if self.dtype in FLOAT8_DTYPES else self.dtype

    def moved_bytes(self, positions: int) -> int:
        """Bytes that a step must move: K and V of `positions`, new ones, queries and outputs."""
        queries = 2 * self.sequences * self.q_heads * self.head_size * self.query_dtype.itemsize
        return (positions + self.sequences) * self.position_bytes + queries


class Latencies(NamedTuple):
    """A layer's latency over the decode steps, milliseconds; the fraction of the memory limit is the median's.

    `positions` is how many a step read, in the mean.
    """

    median_ms: float
    p10_ms: float | None
    p90_ms: float | None
    memory_limit_fraction: float
    samples: int
    positions: float


def layer_of(model: ModelShape, sequences: int, dtype: torch.dtype, layout: Layout) -> LayerShape:
    """Give a whole layer of a model. Errors: `BadInput` for a model without K and V of its own."""
    group = model.groups[0]
    if group.numbers != 2 * model.head_size:
        what = "keeps latents, and the kernels here read K and V"
        raise BadInput(f"--model {model.name}", what, "sweep a model with K and V; pagedkv ledger knows this one")
    one = torch.empty(1, 1, 1, model.head_size)
    try:
        checks.check_cache(PagedCache(one, one))
    except InvalidKernelArgument as error:
        raise BadInput(f"--model {model.name}", f"not for the kernels here ({error})", "sweep another model") from error
    return LayerShape(sequences, model.q_heads, group.kv_heads, model.head_size, dtype, layout)


def pool_bytes_max(device: torch.device) -> int:
    """Give how large a layer's pool may be on a device."""
    if device.type != "cuda":
        return CPU_POOL_BYTES
    return int(torch.cuda.mem_get_info(device)[0] * GPU_POOL_SHARE)


def scaled(layer: LayerShape, slots_of: Int64Array, bytes_max: int) -> LayerShape:
    """Scale a layer until its pool fits. `slots_of[i]`: slots that the first i + 1 sequences need at most."""
    while layer.kv_heads > 1 and int(slots_of[-1]) * layer.position_bytes > bytes_max:
        heads = -(-layer.kv_heads // 2)
        layer = replace(layer, kv_heads=heads, q_heads=layer.q_heads // layer.kv_heads * heads)
    if int(slots_of[-1]) * layer.position_bytes > bytes_max:
        layer = replace(layer, head_size=min(layer.head_size, SMALLEST_HEAD))
    fitting = int(np.searchsorted(slots_of, bytes_max // layer.position_bytes, side="right"))
    return replace(layer, sequences=max(1, min(layer.sequences, fitting)))


class NoiseMemory:
    """K and V of one layer: `slots` of noise, to be viewed in blocks of any size. Errors: `MemoryError`."""

    def __init__(self, layer: LayerShape, slots: int, device: torch.device) -> None:
        self.layer = layer
        numbers = slots * layer.kv_heads * layer.head_size
        random = torch.Generator(device).manual_seed(0)
        noise = torch.randn(min(NOISE_NUMBERS, numbers), generator=random, device=device).to(layer.dtype)
        try:
            self._numbers = torch.empty(2, numbers, dtype=layer.dtype, device=device)
        except RuntimeError as error:  # torch's own words for it, on a CPU and on a GPU
            raise MemoryError(f"for K and V of one layer, {in_words(2 * numbers * layer.dtype.itemsize)}") from error
        for side in self._numbers:
            for start in range(0, numbers, len(noise)):
                part = side[start : start + len(noise)]
                part.copy_(noise[: len(part)])

    def blocks(self, count: int, block_size: int) -> PagedCache:
        """View the first `count` blocks of a size."""
        layer = self.layer
        inner = (block_size, layer.kv_heads) if layer.layout == "NHD" else (layer.kv_heads, block_size)
        numbers = count * block_size * layer.kv_heads * layer.head_size
        key, value = (side[:numbers].view(count, *inner, layer.head_size) for side in self._numbers)
        scale = torch.ones(1, device=key.device) if layer.dtype in FLOAT8_DTYPES else None
        return PagedCache(key, value, layer.layout, scale, scale)


class LayerSteps:
    """The decode steps of one block size on one layer, timed one by one."""

    def __init__(self, memory: NoiseMemory, block_size: int, blocks: int, manager_blocks: int, seed: int) -> None:
        """`blocks` is what the sequences that take part need at most, of the manager's `manager_blocks`."""
        self.layer = memory.layer
        self.cache = memory.blocks(blocks + 1, block_size)
        self.device = self.cache.key.device
        self._order = np.random.Generator(np.random.PCG64(seed)).permutation(blocks).astype(np.int32) + 1
        self._place = np.zeros(manager_blocks + 1, np.int32)  # of a manager's block in the memory
        self._placed = 0
        self._times_ms: list[float] = []
        self._fractions: list[float] = []
        self._positions: list[int] = []

    def run(self, launch: Launch, copy_bytes_per_s: float, *, timed: bool) -> None:
        """Do one layer of a decode step that the manager has launched."""
        layer, lengths = self.layer, launch.lengths[: self.layer.sequences]
        call = self._call(self._rows(launch), lengths)
        if not timed:
            call()
            return
        taken_ms = measure(call, self.device) / 1e3 if self.device.type == "cuda" else _once_ms(call)
        positions = int(lengths.sum())
        self._times_ms.append(taken_ms)
        self._positions.append(positions)
        self._fractions.append(layer.moved_bytes(positions) / (taken_ms / 1e3) / copy_bytes_per_s)

    def latencies(self) -> Latencies:
        """Give what was timed."""
        times = self._times_ms
        return Latencies(
            statistics.median(times),
            float(np.quantile(times, 0.1)),
            float(np.quantile(times, 0.9)),
            statistics.median(self._fractions),
            len(times),
            statistics.fmean(self._positions),
        )

    def _rows(self, launch: Launch) -> np.ndarray:
        """Give the rows that take part, each block at its place; a block seen first is given the next one."""
        rows = launch.rows[: self.layer.sequences]
        columns = -(-int(launch.lengths[: len(rows)].max()) // self.cache.block_size)
        table = launch.table[rows, :columns]
        fresh = np.unique(table[(table > 0) & (self._place[table] == 0)])
        self._place[fresh] = self._order[self._placed : self._placed + len(fresh)]
        self._placed += len(fresh)
        return self._place[table]

    def _call(self, rows: np.ndarray, lengths: Int64Array) -> Callable[[], object]:
        """Prepare append and attention of one token a sequence, the last of each."""
        layer, size = self.layer, self.cache.block_size
        last = lengths - 1
        slots = rows[np.arange(len(rows)), last // size].astype(np.int64) * size + last % size
        plan = plan_attention(np.arange(len(rows) + 1), lengths, q_heads=layer.q_heads, kv_heads=layer.kv_heads).to(
            self.device
        )
        table, slot_mapping = (torch.from_numpy(array).to(self.device) for array in (rows, slots))
        query = self._noise(len(rows), layer.q_heads)
        key, value = self._noise(len(rows), layer.kv_heads), self._noise(len(rows), layer.kv_heads)
        output = torch.empty_like(query)

        def call() -> None:
            dispatch.append(key, value, self.cache, slot_mapping, checked=False)
            dispatch.attention(query, self.cache, table, plan, output=output, checked=False)

        return call

    def _noise(self, tokens: int, heads: int) -> Tensor:
        return torch.randn(tokens, heads, self.layer.head_size, device=self.device).to(self.layer.query_dtype)


def _once_ms(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1e3


def layer_in_words(layer: LayerShape, whole: LayerShape) -> str:
    """Say what is timed, and what of the model that is."""
    parts: Mapping[str, tuple[int, int]] = {
        "KV heads": (layer.kv_heads, whole.kv_heads),
        "numbers a head": (layer.head_size, whole.head_size),
        "sequences": (layer.sequences, whole.sequences),
    }
    told = (
        f"{ours:,} {what}" if ours == all_ else f"{ours:,} of {all_:,} {what}" for what, (ours, all_) in parts.items()
    )
    return f"one layer, {', '.join(told)}"

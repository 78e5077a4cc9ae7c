"""The bookkeeping and the bytes together: what attention reads by rows is what each sequence should hold.

Expected values come from the dense oracle on the logical K and V of each sequence, kept by the test as plain tensors.
"""

import re

import numpy as np
import pytest
import torch
from pagedkv.impl.cache import BlockCache
from pagedkv.impl.refusals import InvalidArgument
from pagedkv.impl.results import Launch
from pagedkv.impl.storage import KvShape, Storage, bytes_needed, pool_shape
from pagedkv.kernels.arguments import InvalidKernelArgument
from pagedkv.spec.attention import dense_attention
from torch import Tensor

LAYERS, Q_HEADS, KV_HEADS, HEAD_SIZE = 2, 4, 2, 16
BLOCKS, BLOCK_SIZE = 12, 4


class Model:
    """Sequences with K and V of their own, as a model without paging would keep them: `[positions, 2, ...]` a layer."""

    def __init__(self, layout: str) -> None:
        self.cache = BlockCache(BLOCKS, BLOCK_SIZE)
        shape = KvShape(LAYERS, KV_HEADS, HEAD_SIZE, torch.float32, layout)  # type: ignore[arg-type]
        self.storage = Storage(shape, BLOCKS, BLOCK_SIZE)
        self.storage.pool[:, :, 1:] = torch.nan  # whatever is read before it is written shows
        self.logical: dict[int, Tensor] = {}
        self.random = torch.Generator().manual_seed(0)

    def start(self, name: int, tokens: int) -> None:
        self.cache.add(name, tokens)
        self.logical[name] = torch.empty(LAYERS, 0, 2, KV_HEADS, HEAD_SIZE)

    def fork(self, parent: int, child: int) -> None:
        self.cache.fork(parent, child)
        self.logical[child] = self.logical[parent].clone()

    def step(self, names: list[int], counts: list[int]) -> None:
        """Launch a step, run it as a device would, and hold every output row to the oracle."""
        launch = self.cache.launch(names, counts)
        storage = self.storage
        storage.copy(launch)
        slots, rows, plan = storage.slots(launch), storage.rows(launch), storage.plan(launch, Q_HEADS)
        for layer in range(LAYERS):
            new = torch.randn(sum(counts), 2, KV_HEADS, HEAD_SIZE, generator=self.random)
            query = torch.randn(sum(counts), Q_HEADS, HEAD_SIZE, generator=self.random)
            storage.append(layer, new[:, 0], new[:, 1], slots)
            found = storage.attend(layer, query, rows, plan)
            self._hold_to_oracle(layer, launch, new, query, found)
        for name, count in zip(names, counts, strict=True):
            assert self.logical[name].shape[1] == self.cache.lengths(name).launched, count

    def _hold_to_oracle(self, layer: int, launch: Launch, new: Tensor, query: Tensor, found: Tensor) -> None:
        first = 0
        for name, start, length in zip(launch.seqs.tolist(), launch.starts, launch.lengths, strict=True):
            count = int(length - start)
            if layer == 0:
                room = torch.full((LAYERS, count, 2, KV_HEADS, HEAD_SIZE), torch.nan)
                self.logical[name] = torch.cat((self.logical[name], room), dim=1)
            self.logical[name][layer, -count:] = new[first : first + count]
            held = self.logical[name][layer]
            expected, _ = dense_attention(query[first : first + count], held[:, 0], held[:, 1])
            torch.testing.assert_close(found[first : first + count].double(), expected, rtol=1e-5, atol=1e-5)
            first += count


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_prompts_decode_and_copy_on_write_read_what_they_should(layout: str) -> None:
    model = Model(layout)
    model.start(1, 6)
    model.start(2, 4)
    model.step([1, 2], [6, 4])
    model.fork(1, 3)
    model.cache.extend([3, 1, 2])  # of 3 and 1, which share a tail, 3 copies it and 1 writes in place
    model.step([3, 1, 2], [1, 1, 1])
    model.cache.extend([1, 2, 3], [3, 1, 2])
    model.step([2, 3, 1], [1, 2, 3])
    assert model.cache.counts.free == BLOCKS - 3 - 2 - 2  # 10, 6 and 9 positions; 3 shares its first block with 1


def test_a_prompt_in_chunks() -> None:
    model = Model("NHD")
    model.start(7, 11)
    for count in (3, 5, 3):
        model.step([7], [count])


def test_copies_move_all_layers_and_only_their_extent() -> None:
    model = Model("NHD")
    model.start(1, 6)
    model.step([1], [6])
    model.fork(1, 2)
    copies = model.cache.extend([2]).copies
    launch = model.cache.launch([2])
    model.storage.copy(launch)
    (source,), (target,), (extent,) = (ids.tolist() for ids in copies[1:])
    assert extent == 2
    pool = model.storage.pool
    assert torch.equal(pool[:, :, target, :extent], pool[:, :, source, :extent])
    assert pool[:, :, target, extent:].isnan().all()


def test_an_empty_launch_touches_nothing() -> None:
    model = Model("NHD")
    before = model.storage.pool.clone()
    launch = model.cache.launch([])
    model.storage.copy(launch)
    assert model.storage.slots(launch).numel() == 0
    assert model.storage.rows(launch).numel() == 0
    assert torch.equal(model.storage.pool.isnan(), before.isnan())


def test_sizes_come_from_one_function() -> None:
    # Llama-3.1-8B: 32 layers, 8 KV heads, head size 128, bf16: 131,072 bytes a token, and the null block is extra.
    shape = KvShape(32, 8, 128)
    assert bytes_needed(shape, blocks=99, block_size=16) == 100 * 16 * 131_072
    small = Storage(KvShape(2, 2, 24, torch.float16, "HND"), 3, 4)
    assert tuple(small.pool.shape) == pool_shape(small.shape, 3, 4) == (2, 2, 4, 2, 4, 24)
    assert small.pool.nbytes == bytes_needed(small.shape, 3, 4)


@pytest.mark.parametrize(
    ("shape", "blocks", "block_size"),
    [
        (KvShape(0, 2, 16), 4, 4),
        (KvShape(1, 0, 16), 4, 4),
        (KvShape(1, 2, -8), 4, 4),
        (KvShape(1, 2, 16), 0, 4),
        (KvShape(1, 2, 16), 4, 0),
        (KvShape(1, 2, 16, torch.float32, "NDH"), 4, 4),  # type: ignore[arg-type]
    ],
)
def test_sizes_out_of_range_are_refused(shape: KvShape, blocks: int, block_size: int) -> None:
    with pytest.raises(InvalidArgument):
        Storage(shape, blocks, block_size)


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (KvShape(2, 2, 8, torch.float32), "head_size must be an integer of 16 to 256, not 8"),
        (KvShape(2, 2, 264, torch.float32), "head_size must be an integer of 16 to 256, not 264"),
        (KvShape(2, 2, 20, torch.float32), "head size 20 is not in 16..256 in steps of 8"),
        (KvShape(2, 2, 16, torch.int32), "dtype torch.int32 is not float32"),
        (KvShape(2, 2, 16, "float32"), "the dtype must be torch's, as torch.bfloat16, not 'float32'"),  # type: ignore[arg-type]
        ((2, 2, 8), r"must be a KvShape(layers, kv_heads, head_size), not (2, 2, 8)"),
    ],
)
def test_what_no_kernel_could_read_is_refused_in_one_line(shape: KvShape, said: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(said)) as refused:
        Storage(shape, 10, 4)
    assert "\n" not in str(refused.value)


def test_a_scale_and_a_device_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="key_scale: "):
        Storage(KvShape(2, 2, 16), 10, 4, key_scale=torch.ones(3))
    with pytest.raises(InvalidArgument, match="torch knows no device 'gpu'"):
        Storage(KvShape(2, 2, 16), 10, 4, device="gpu")


def test_tensors_that_do_not_fit_are_refused_before_anything_is_written() -> None:
    model = Model("NHD")
    model.start(1, 2)
    slots = model.storage.slots(model.cache.launch([1], 2))
    before = model.storage.pool.clone()
    wrong = torch.zeros(2, KV_HEADS, HEAD_SIZE + 8)
    with pytest.raises(InvalidKernelArgument):
        model.storage.append(0, wrong, wrong, slots)
    with pytest.raises(InvalidArgument):
        model.storage.layer(LAYERS)
    assert torch.equal(torch.nan_to_num(model.storage.pool), torch.nan_to_num(before))
    assert np.array_equal(model.cache.table[0], np.zeros_like(model.cache.table[0]))

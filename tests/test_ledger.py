"""The ledger's formulas against published figures, arithmetic by hand, a simulated window, and the storage itself."""

import json
from fractions import Fraction

import pytest
import torch
from pagedkv.bench.kernel_workspace import workspace_of
from pagedkv.bench.manager_memory import bytes_a_block, bytes_a_row, state_bytes
from pagedkv.bench.model_shapes import MODELS, latent, plain, windowed
from pagedkv.impl.cache import BlockCache
from pagedkv.impl.storage import KvShape, bytes_needed
from pagedkv.kernels.plan import plan_attention
from pagedkv.spec.ledger import (
    LARGEST,
    Demand,
    LayerGroup,
    ModelShape,
    Terms,
    blocks_kept,
    heads_on_rank,
    kept_positions,
    ledger,
    scratch_bytes,
    sequences_that_fit,
    token_bytes,
    tokens_that_fit,
    usable_blocks,
)

from real_data import real_data

BF16 = Terms(block_size=16, dtype_bytes=2)
FULL = Terms(block_size=16, dtype_bytes=2, drops_windows=False)
SMALL = ModelShape("small", 4, 8, (LayerGroup(3, 2, 16),))  # 3 x 2 x 16 = 96 numbers a token
MIXED = ModelShape("mixed", 4, 8, (LayerGroup(1, 2, 16), LayerGroup(2, 2, 16, 10)))

KV_BYTES_A_TOKEN = {  # bf16, all layers full, as published
    "meta-llama/Llama-2-7b-hf": 524_288,
    "meta-llama/Llama-3.1-8B": 131_072,
    "meta-llama/Llama-3.1-70B": 327_680,
    "Qwen/Qwen2.5-7B": 57_344,
    "Qwen/Qwen3-8B": 147_456,
    "Qwen/Qwen3-30B-A3B": 98_304,
    "mistralai/Mistral-7B-v0.1": 131_072,
    "google/gemma-3-12b-it": 393_216,
    "openai/gpt-oss-20b": 49_152,
    "deepseek-ai/DeepSeek-V3": 70_272,
}


@pytest.mark.parametrize(("name", "expected"), KV_BYTES_A_TOKEN.items())
def test_bytes_a_token_of_public_models(name: str, expected: int) -> None:
    assert token_bytes(MODELS[name], BF16) == expected
    assert ledger(MODELS[name], FULL, Demand(3, 16)).kv_bytes == 3 * 16 * expected


def test_a_mixed_model_with_its_windows_and_without() -> None:
    gemma = MODELS["google/gemma-3-12b-it"]
    assert ledger(gemma, BF16, Demand(1, 32_768)).kv_bytes == 2_483_027_968
    assert ledger(gemma, FULL, Demand(1, 32_768)).kv_bytes == 12_884_901_888


def test_the_pool_of_a_measured_run() -> None:
    """On an RTX 4090: 2,588 blocks of 16 with the null block, that is 41,408 tokens of Llama-3.1-8B."""
    llama = MODELS["meta-llama/Llama-3.1-8B"]
    assert usable_blocks(llama, BF16, 41_408 * 131_072) == 2_587
    assert usable_blocks(llama, BF16, 41_408 * 131_072 - 1) == 2_586
    assert usable_blocks(llama, BF16, 1) == 0


def test_every_model_of_the_table_is_what_was_collected() -> None:
    collected = json.loads(real_data("model_kv.json").read_text(encoding="utf-8"))["models"]
    assert MODELS.keys() == collected.keys()
    for name, facts in collected.items():
        shape = MODELS[name]
        assert shape.layers == facts["layers"], name
        if "kv_lora_rank" in facts:
            assert token_bytes(shape, BF16) == facts["bytes_per_token_bf16_or_fp16_mla"]
            assert shape == latent(name, facts["layers"], facts["heads"], 512, 64)
            continue
        sliding, full = facts["sliding_layers"], facts["full_layers"]
        heads = facts["q_heads"], facts["kv_heads"], facts["head_dim"]
        assert shape == (
            windowed(name, full, sliding, facts["sliding_window"], *heads)
            if sliding
            else plain(name, facts["layers"], *heads)
        )
        assert token_bytes(shape, BF16) == facts["bytes_per_token_bf16_or_fp16_all_layers_full"], name
        for length, expected in facts.get("bytes_at_L_bf16_with_window", {}).items():
            assert ledger(shape, BF16, Demand(1, int(length))).kv_bytes == expected, (name, length)
        for block_size, expected in facts["bytes_per_block_bf16"].items():
            terms = Terms(block_size=int(block_size), dtype_bytes=2)
            assert ledger(shape, terms, Demand(1, 1)).null_block_bytes == expected, (name, block_size)


# ---- sharding, windows, sharing -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("q_heads", "kv_heads", "ranks", "expected"),
    [
        (32, 8, 1, 8),
        (32, 8, 8, 1),
        (32, 8, 16, 1),  # each KV head on two ranks
        (32, 8, 32, 1),
        (32, 32, 4, 8),
        (128, 1, 8, 1),  # a latent is on every rank
        (40, 10, 5, 2),
        (40, 10, 4, 5),  # ten query heads of groups of four: halves of groups, so five of two
        (40, 10, 20, 1),
    ],
)
def test_heads_on_a_rank(q_heads: int, kv_heads: int, ranks: int, expected: int) -> None:
    assert heads_on_rank(q_heads, kv_heads, ranks) == expected
    plan_attention([0, 1], [5], q_heads=q_heads // ranks, kv_heads=expected)  # what the kernels take


@pytest.mark.parametrize(("q_heads", "kv_heads", "ranks"), [(32, 8, 3), (10, 4, 1)])
def test_heads_that_do_not_divide(q_heads: int, kv_heads: int, ranks: int) -> None:
    with pytest.raises(ValueError, match="do not divide"):
        heads_on_rank(q_heads, kv_heads, ranks)


def test_replication_is_what_all_ranks_store_beyond_one_copy() -> None:
    llama, demand = MODELS["meta-llama/Llama-3.1-8B"], Demand(2, 100)
    one_copy = 200 * 131_072
    for ranks, copies in ((1, 1), (8, 1), (16, 2), (32, 4)):
        counted = ledger(llama, Terms(block_size=16, dtype_bytes=2, ranks=ranks), demand)
        assert counted.kv_bytes * ranks == copies * one_copy
        assert counted.replicated_bytes == (copies - 1) * one_copy
    deepseek = MODELS["deepseek-ai/DeepSeek-V3"]
    counted = ledger(deepseek, Terms(block_size=16, dtype_bytes=2, ranks=8), demand)
    assert counted.kv_bytes == 200 * 70_272
    assert counted.replicated_bytes == 7 * 200 * 70_272


@pytest.mark.parametrize("window", [1, 2, 3, 4, 5, 7, 8, 9])
@pytest.mark.parametrize("block_size", [1, 2, 3, 4])
def test_a_window_s_blocks_are_the_most_of_a_growing_sequence(window: int, block_size: int) -> None:
    held: set[int] = set()
    most = 0
    for position in range(30):
        held.add(position // block_size)
        held = {block for block in held if (block + 1) * block_size > position + 1 - window}
        most = max(most, len(held))
        assert blocks_kept(position + 1, window, block_size) == most, position
        assert kept_positions(position + 1, window) == min(position + 1, window)


def test_a_window_and_a_full_layer_by_hand() -> None:
    """23 tokens in blocks of 4: 6 blocks where all is kept, at most ceil((10 + 3) / 4) = 4 where ten positions are."""
    counted = ledger(MIXED, Terms(block_size=4, dtype_bytes=1), Demand(5, 23))
    full, slid = 1 * 2 * 16, 2 * 2 * 16
    assert counted.blocks == 5 * (6 + 4)
    assert counted.kv_bytes == 5 * (23 * full + 10 * slid)
    assert counted.tail_waste_bytes == 5 * (1 * full + 6 * slid)
    assert counted.null_block_bytes == 4 * (full + slid)
    assert counted.block_table_bytes == 5 * 6 * 2 * 4  # a table a window, entries of what was let go among them


def test_a_shared_prefix_is_stored_once_in_whole_blocks() -> None:
    """11 of 13 tokens are common: two blocks of 4 once, and each of three sequences has two of its own."""
    terms = Terms(block_size=4, dtype_bytes=1)
    counted = ledger(SMALL, terms, Demand(3, 13, 11))
    assert counted.blocks == 2 + 3 * 2
    assert counted.kv_bytes == (8 + 3 * 5) * 96
    assert counted.tail_waste_bytes == 3 * 3 * 96
    assert counted.block_table_bytes == 3 * 4 * 4, "rows name shared blocks, too"
    cache = BlockCache(20, 4)
    cache.add(0, 8)
    cache.launch([0], 8)
    for child in (1, 2):
        cache.fork(0, child)
    cache.extend([0, 1, 2], 5)
    assert cache.counts.held == counted.blocks


def test_sharing_in_a_window_ends_when_something_has_left_it() -> None:
    terms = Terms(block_size=4, dtype_bytes=1)
    inside, beyond = (ledger(MIXED, terms, Demand(2, tokens, 8)) for tokens in (10, 11))
    assert inside.blocks == (2 + 2 * 1) + (2 + 2 * 1)
    assert beyond.blocks == (2 + 2 * 1) + 2 * 3


@pytest.mark.parametrize(("tokens", "shared"), [(4, 4), (4, -1), (0, 1)])
def test_a_prefix_is_shorter_than_its_sequence(tokens: int, shared: int) -> None:
    with pytest.raises(ValueError, match="one token is everybody's own"):
        ledger(SMALL, BF16, Demand(2, tokens, shared))


# ---- the ledger and what really allocates ---------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize(("ranks", "dtype"), [(1, torch.bfloat16), (2, torch.float32), (4, torch.float8_e5m2)])
def test_the_pool_is_what_storage_allocates(layout: str, ranks: int, dtype: torch.dtype) -> None:
    terms = Terms(block_size=16, dtype_bytes=dtype.itemsize, ranks=ranks)
    counted = ledger(SMALL, terms, Demand(7, 100))
    shape = KvShape(3, heads_on_rank(4, 2, ranks), 8, dtype, layout)  # type: ignore[arg-type]
    assert counted.blocks == 7 * 7
    assert counted.pool_bytes == bytes_needed(shape, counted.blocks, 16)
    blocks = usable_blocks(SMALL, terms, counted.pool_bytes)
    assert blocks == counted.blocks


@pytest.mark.parametrize("tokens", [1, 512, 513, 5000, 20_000])
def test_workspace_is_what_the_kernels_allocate(tokens: int) -> None:
    """Decode of three sequences in one plan, or a prefill of 600: the larger of the two."""
    found = workspace_of(SMALL, 1, 600)(3, tokens)
    chunk = min(600, tokens)
    steps = (
        (plan_attention([0, 1, 2, 3], [tokens] * 3, q_heads=4, kv_heads=2), 3),
        (plan_attention([0, chunk], [tokens], q_heads=4, kv_heads=2), chunk),
    )
    expected = []
    for plan, new_tokens in steps:
        scratch = torch.empty(plan.partial_rows, 4, 8).nbytes + torch.empty(plan.partial_rows, 4).nbytes
        lists = sum(tensor.nbytes for tensor in (plan.small.items, plan.large.items, plan.merges))
        expected.append(scratch + lists + torch.empty(new_tokens, dtype=torch.int64).nbytes)
    assert found == max(expected)


def test_windows_share_scratch_and_have_work_lists_of_their_own() -> None:
    tokens = 2000
    full = plan_attention([0, 1], [tokens], q_heads=4, kv_heads=2)
    slid = plan_attention([0, 1], [tokens], q_heads=4, kv_heads=2, window=10)
    records = sum(p.small.items.numel() + p.large.items.numel() + p.merges.numel() for p in (full, slid))
    assert full.partial_rows > slid.partial_rows
    assert workspace_of(MIXED, 1, 1)(1, tokens) == scratch_bytes(full.partial_rows, 4, 8, records) + 8


def test_the_manager_s_memory_is_measured() -> None:
    """Arrays of a block: free stack 8, co-holders 4, since when 4, a fence 4."""
    assert bytes_a_block(16) == 20
    assert 50 <= bytes_a_row(16) <= 500
    cache = BlockCache(5000, 16)
    before = state_bytes(cache)
    assert before >= 5000 * 20
    assert state_bytes([cache, cache]) - state_bytes([]) - 16 == before, "what is reached twice counts once"
    for name in range(1000):
        cache.add(name, 1)
    assert state_bytes(cache) > before, "rows and names that were added"


# ---- the other way round --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [SMALL, MIXED])
@pytest.mark.parametrize("headroom", [Fraction(0), Fraction(1, 10)])
def test_what_fits_fits_and_one_more_does_not(model: ModelShape, headroom: Fraction) -> None:
    terms = Terms(block_size=4, dtype_bytes=2, headroom=headroom, workspace=lambda rows, tokens: rows * tokens // 3)
    for memory in (1, 5_000, 100_000, 12_345_678):
        rows = sequences_that_fit(model, terms, 37, memory, 5)
        assert rows == 0 or ledger(model, terms, Demand(rows, 37, 5)).device_bytes <= memory
        assert ledger(model, terms, Demand(rows + 1, 37, 5)).device_bytes > memory
        tokens = tokens_that_fit(model, terms, 3, memory)
        assert tokens == 0 or ledger(model, terms, Demand(3, tokens)).device_bytes <= memory
        assert ledger(model, terms, Demand(3, tokens + 1)).device_bytes > memory


def test_headroom_is_a_share_of_all_the_rest_rounded_up() -> None:
    counted = ledger(SMALL, Terms(block_size=4, dtype_bytes=1, headroom=Fraction(1, 7)), Demand(1, 4))
    rest = 2 * 4 * 96 + 4
    assert counted.headroom_bytes == -(-rest // 7)
    assert counted.device_bytes == rest + counted.headroom_bytes


def test_a_search_ends_where_it_is_told() -> None:
    nothing = ModelShape("windowed", 1, 1, (LayerGroup(1, 1, 2, 4),))
    free = Terms(block_size=1 << 50, dtype_bytes=1)
    assert tokens_that_fit(nothing, free, 1, 1 << 60, longest=1000) == 1000
    assert tokens_that_fit(nothing, free, 1, 1 << 60) == LARGEST
    assert sequences_that_fit(SMALL, BF16, 10, 0) == 0


def test_metadata_is_on_the_host() -> None:
    terms = Terms(block_size=4, dtype_bytes=1, block_metadata_bytes=20, row_metadata_bytes=100)
    counted = ledger(SMALL, terms, Demand(3, 9))
    assert counted.host_metadata_bytes == 3 * 3 * 4 + 3 * 3 * 20 + 3 * 100
    assert counted.device_bytes == ledger(SMALL, Terms(block_size=4, dtype_bytes=1), Demand(3, 9)).device_bytes

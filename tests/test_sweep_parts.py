"""The parts of a sweep: lengths, the batch in a real manager, the layer that is timed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pagedkv.bench.failures import BadInput
from pagedkv.bench.model_shapes import MODELS, plain
from pagedkv.bench.replay_queue import FinalLength
from pagedkv.bench.sweep_batch import ActiveBatch
from pagedkv.bench.sweep_kernels import (
    LayerShape,
    LayerSteps,
    NoiseMemory,
    layer_in_words,
    layer_of,
    pool_bytes_max,
    scaled,
)
from pagedkv.bench.sweep_lengths import BUCKETS, Lengths, drawn_lengths, trace_lengths, weights_of
from pagedkv.bench.traces import read_trace
from pagedkv.kernels import dispatch

from real_data import AZURE, MOONCAKE, SHAREGPT, real_data

CPU = torch.device("cpu")


def lengths_of(prompt: list[int], final: list[int]) -> Lengths:
    """Give lengths by hand."""
    return Lengths(np.array(prompt), np.array(final), "by hand", {})


# ---- lengths --------------------------------------------------------------------------------------------------------


def test_a_seed_gives_the_same_lengths_and_another_seed_others() -> None:
    first, again, other = (drawn_lengths(500, (0.25,) * 4, seed) for seed in (3, 3, 4))
    assert first.as_csv() == again.as_csv()
    assert first.as_csv() != other.as_csv()
    assert first.facts == again.facts
    assert len(first) == 500
    assert first.as_csv().count("\n") == 501


@pytest.mark.parametrize("bucket", range(4))
def test_each_bucket_is_filled_from_end_to_end(bucket: int) -> None:
    weights = tuple(float(number == bucket) for number in range(4))
    drawn = drawn_lengths(200_000, weights, 0)
    assert (int(drawn.final.min()), int(drawn.final.max())) == BUCKETS[bucket]
    assert drawn.prompt is drawn.final, "such a length is there at once"
    (only,) = [each for each in drawn.facts["buckets"] if each["sequences"]]
    assert (only["first"], only["last"], only["tokens"]) == (*BUCKETS[bucket], drawn.tokens)
    middle = sum(BUCKETS[bucket]) / 2
    assert abs(drawn.tokens / 200_000 / middle - 1) < 0.01, "evenly"


def test_weights_decide() -> None:
    drawn = drawn_lengths(100_000, weights_of("0.1, 0.2,.3,0.4"), 0)
    found = [bucket["sequences"] / 100_000 for bucket in drawn.facts["buckets"]]
    assert found == pytest.approx([0.1, 0.2, 0.3, 0.4], abs=0.01)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0.5,0.5", "2 weights for 4 buckets"),
        ("0.5,0.5,0.5,0.5", "they sum to 2, not to 1"),
        ("0,0,0,0", "they sum to 0"),
        ("1.5,-0.5,0,0", "not all of them are numbers from 0"),
        ("nan,1,0,0", "not all of them are numbers"),
        (".,1,0,0", "not all of them are numbers"),
        ("", "1 weight for 4 buckets"),
    ],
)
def test_weights_that_are_none(text: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        weights_of(text)


TRACE = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,4,2,6,API log
0,ChatGPT,3,1,4,API log
0,GPT-4,0,0,0,API log
0,GPT-4,9,0,9,API log
"""


def test_a_trace_with_ties_zeros_and_no_order(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE, encoding="utf-8")
    found = trace_lengths(read_trace(path), FinalLength.PROMPT_OUTPUT_LESS_ONE)
    assert (found.prompt.tolist(), found.final.tolist()) == ([4, 3, 9], [5, 3, 9])
    assert found.facts["empty_requests_left_out"] == 1


def test_a_trace_of_nothing(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("\n".join([*TRACE.splitlines()[:1], TRACE.splitlines()[3], ""]), encoding="utf-8")
    with pytest.raises(BadInput, match="no request of it has prompt tokens"):
        trace_lengths(read_trace(path), FinalLength.PROMPT_OUTPUT)


# ---- the batch ------------------------------------------------------------------------------------------------------


def test_counts_by_hand() -> None:
    """Three sequences in blocks of 4; the first grows from 3 to 6, the second stands at 8, the third grows to 5."""
    batch = ActiveBatch(lengths_of([3, 8, 4], [6, 8, 5]), 4, 10, 2)
    batch.allocate()
    counts = batch.counts
    assert (counts.logical_tokens, counts.physical_slots, counts.block_table_entries) == (19, 24, 6)
    assert (counts.tail_waste, counts.tail_waste_uniform_estimate, counts.block_table_bytes) == (5, 4.5, 24)
    assert counts.tail_waste_percent == pytest.approx(100 * 5 / 24)
    assert (counts.allocations, counts.growth_allocations) == (6, 2)
    assert counts.allocation_calls == 3 + 2, (
        "position 4 of both comes in two steps: the third's first, then the first's"
    )
    assert (counts.free_blocks, counts.free_percent) == (4, 40.0)
    assert batch.cache.lengths(0).written == 6, "all is written before decode steps"
    launch = batch.step()
    assert launch.lengths.tolist() == [7, 9, 6]
    batch.retire(launch)
    batch.retire(batch.step())
    assert (counts.decode_steps, counts.decode_allocations, counts.free_blocks) == (2, 1, 3)
    assert counts.logical_tokens == 19, "as it was before decode steps"
    batch.cache.check()


def test_a_pool_that_is_too_small_is_short_of_blocks() -> None:
    batch = ActiveBatch(lengths_of([3, 8, 4], [6, 8, 5]), 4, 2, 1)
    batch.allocate()
    assert (batch.counts.blocks, batch.counts.free_blocks, batch.counts.free_percent) == (2, -4, -200.0)
    empty = ActiveBatch(lengths_of([3], [3]), 4, 0, 1)
    empty.allocate()
    assert empty.counts.free_percent == -100.0


@pytest.mark.parametrize(("length", "size", "said"), [(1 << 27, 1, "a pool of"), (1 << 25, 1, "block tables of")])
def test_what_no_machine_holds_is_refused(length: int, size: int, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        ActiveBatch(lengths_of([length, *[1] * 40], [length, *[1] * 40]), size, 1, 1)


KNOWN = {  # tail waste, entries, entries by growth: whole traces, as published
    (AZURE, FinalLength.PROMPT_OUTPUT, 8): (67_753, 3_314_786, 511_029),
    (AZURE, FinalLength.PROMPT_OUTPUT, 16): (144_617, 1_662_197, 255_260),
    (AZURE, FinalLength.PROMPT_OUTPUT, 32): (300_185, 835_960, 127_659),
    (AZURE, FinalLength.PROMPT_OUTPUT, 64): (596_761, 422_614, 63_434),
    (AZURE, FinalLength.PROMPT_OUTPUT, 128): (1_210_521, 216_102, 31_233),
    (AZURE, FinalLength.PROMPT_OUTPUT_LESS_ONE, 16): (144_239, 1_660_963, 254_026),
    (AZURE, FinalLength.PROMPT_OUTPUT_LESS_ONE, 8): (67_911, None, None),
    (AZURE, FinalLength.PROMPT_OUTPUT_LESS_ONE, 32): (299_295, None, None),
    (AZURE, FinalLength.PROMPT_OUTPUT_LESS_ONE, 64): (596_415, None, None),
    (AZURE, FinalLength.PROMPT_OUTPUT_LESS_ONE, 128): (1_208_511, None, None),
    (MOONCAKE, FinalLength.PROMPT_OUTPUT, 32): (185_121, None, None),
    (MOONCAKE, FinalLength.PROMPT_OUTPUT, 64): (379_041, None, None),
    (MOONCAKE, FinalLength.PROMPT_OUTPUT, 128): (766_177, None, None),
    **{
        (SHAREGPT, FinalLength.PROMPT_OUTPUT, size): (waste, None, None)
        for size, waste in ((8, 1_144), (16, 2_304), (32, 4_608), (64, 9_344), (128, 18_560))
    },
}


@pytest.mark.parametrize(("name", "convention", "block_size"), KNOWN)
def test_real_traces_give_the_known_answers(name: str, convention: FinalLength, block_size: int) -> None:
    batch = ActiveBatch(trace_lengths(read_trace(real_data(name)), convention), block_size, 1, 1)
    batch.allocate()
    counts = batch.counts
    waste, entries, growth = KNOWN[name, convention, block_size]
    assert counts.tail_waste == waste
    assert counts.allocations == counts.block_table_entries
    if entries is not None:
        assert (counts.block_table_entries, counts.growth_allocations) == (entries, growth)


# ---- the layer ------------------------------------------------------------------------------------------------------

LLAMA = layer_of(MODELS["meta-llama/Llama-3.1-8B"], 4, torch.bfloat16, "NHD")


def test_a_whole_layer_is_the_model_s() -> None:
    assert LayerShape(4, 32, 8, 128, torch.bfloat16, "NHD") == LLAMA
    assert LLAMA.position_bytes == 131_072 // 32
    assert LLAMA.moved_bytes(1000) == 1004 * 4096 + 2 * 4 * 32 * 128 * 2
    with pytest.raises(BadInput, match="keeps latents"):
        layer_of(MODELS["deepseek-ai/DeepSeek-V3"], 1, torch.bfloat16, "NHD")
    with pytest.raises(BadInput, match="head size 12 is not in 16"):
        layer_of(plain("odd", 2, 4, 2, 12), 1, torch.bfloat16, "NHD")


def test_memory_that_is_not_there_is_an_error_of_its_own() -> None:
    with pytest.raises(MemoryError, match="K and V of one layer, 4,0"):
        NoiseMemory(LLAMA, 1 << 40, CPU)


@pytest.mark.parametrize(
    ("bytes_max", "expected"),
    [
        (400 * 4096, (4, 32, 8, 128)),
        (400 * 4096 - 1, (4, 16, 4, 128)),
        (400 * 512, (4, 4, 1, 128)),
        (400 * 256, (4, 4, 1, 64)),
        (400 * 256 - 1, (3, 4, 1, 64)),
        (1, (1, 4, 1, 64)),
    ],
)
def test_scaling_halves_heads_then_the_head_then_takes_fewer(bytes_max: int, expected: tuple[int, ...]) -> None:
    found = scaled(LLAMA, np.array([100, 200, 300, 400]), bytes_max)
    assert (found.sequences, found.q_heads, found.kv_heads, found.head_size) == expected
    assert found.q_heads // found.kv_heads == 4, "the group stays"


def test_a_gpu_runs_full_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default lengths take 26 GB a layer: a card of 80 GiB that is free has room, and a CPU's share has not."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (80 << 30, 80 << 30))
    drawn = drawn_lengths(2000, (0.25,) * 4, 0)
    slots = np.cumsum(-(-(drawn.final + 9) // 64) * 64)
    whole = replace(LLAMA, sequences=2000)
    assert scaled(whole, slots, pool_bytes_max(torch.device("cuda"))) == whole
    assert scaled(whole, slots, pool_bytes_max(CPU)).kv_heads == 1


def test_scaling_is_told() -> None:
    assert layer_in_words(LLAMA, LLAMA) == "one layer, 8 KV heads, 128 numbers a head, 4 sequences"
    small = replace(LLAMA, kv_heads=1, head_size=64, sequences=3)
    assert layer_in_words(small, LLAMA) == "one layer, 1 of 8 KV heads, 64 of 128 numbers a head, 3 of 4 sequences"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_the_steps_run_what_the_manager_launched(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, layout: Any
) -> None:
    """Each block has one place, no two the same, through all steps; append writes where attention reads last."""
    layer = LayerShape(2, 4, 2, 16, dtype, layout)
    batch = ActiveBatch(lengths_of([5, 8, 30], [5, 8, 30]), 4, 40, 4)
    batch.allocate()
    memory = NoiseMemory(layer, 8 * 4, CPU)
    steps = LayerSteps(memory, 4, 7, batch.cache.blocks, seed=1)
    assert steps.cache.keys.shape == (8, 4, 2, 16)
    seen: list[tuple[str, Any, Any]] = []
    whole_append, whole_attention = dispatch.append, dispatch.attention

    def append(key: Any, value: Any, cache: Any, slots: Any, **options: Any) -> None:
        seen.append(("append", slots.tolist(), None))
        whole_append(key, value, cache, slots, **options)

    def attention(query: Any, cache: Any, table: Any, plan: Any, **options: Any) -> torch.Tensor:
        seen.append(("attention", table.tolist(), plan.kv_lengths.tolist()))
        result = whole_attention(query, cache, table, plan, **options)
        assert torch.isfinite(result).all()
        return result

    monkeypatch.setattr(dispatch, "append", append)
    monkeypatch.setattr(dispatch, "attention", attention)
    for number in range(4):
        launch = batch.step()
        steps.run(launch, 1e9, timed=number > 0)
        batch.retire(launch)
    place: dict[int, int] = {}
    for number in range(4):
        (_, slots, _), (_, table, lengths) = seen[2 * number : 2 * number + 2]
        assert lengths == [6 + number, 9 + number]
        for row, length in enumerate(lengths):
            ids = batch.cache.block_table(row)[: -(-length // 4)].tolist()
            shown = table[row][: len(ids)]
            assert all(place.setdefault(block, where) == where for block, where in zip(ids, shown, strict=True))
            assert slots[row] == shown[-1] * 4 + (length - 1) % 4
            assert not any(table[row][len(ids) :]), "null behind"
    assert len(set(place.values())) == len(place)
    assert set(place.values()) <= set(range(1, 8))
    found = steps.latencies()
    assert found.samples == 3
    assert found.p90_ms is not None
    assert 0 < found.median_ms <= found.p90_ms
    assert found.memory_limit_fraction > 0

"""How a sweep judges: latencies out of the kernel benchmark's file, and the pick by two declared limits."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pagedkv.bench.failures import BadInput
from pagedkv.bench.model_shapes import MODELS
from pagedkv.bench.sweep_kernel_times import read_kernel_times
from pagedkv.bench.sweep_kernels import layer_of
from pagedkv.bench.sweep_pick import Candidate, Limits, SideBySide, pick

LLAMA = layer_of(MODELS["meta-llama/Llama-3.1-8B"], 4, torch.bfloat16, "NHD")

# ---- latencies from a file ------------------------------------------------------------------------------------------


def kernel_row(name: str, shape: str, gb_per_s: object, fraction: float = 0.9) -> dict[str, object]:
    """Write a row as the kernel benchmark does."""
    return {"name": name, "shape": shape, "gb_per_s": gb_per_s, "copy_fraction": fraction, "microseconds": 1.0}


ROWS = [
    kernel_row("decode", "8 x 8,192, 1 new, B = 16, bfloat16", 2000.0),
    kernel_row("decode", "64 x 8,192, 1 new, B = 16, bfloat16", 4000.0, 0.93),
    kernel_row("decode", "64 x 1,024, 1 new, B = 16, bfloat16", 3000.0),
    kernel_row("decode", "64 x 8,192, 1 new, B = 8, bfloat16", 3500.0, 0.8),
    kernel_row("decode, fp8", "8 x 8,192, 1 new, B = 16, float8_e5m2", 1000.0),
    kernel_row("verify", "64 x 9,192, 4 new, B = 16, bfloat16", 1.0),
    kernel_row("append", "64 MiB", 1.0),
]


def report_of(folder: Path, rows: list[dict[str, object]]) -> Path:
    """Write a report with some rows."""
    path = folder / "kernel_speed.json"
    path.write_text(json.dumps({"machine": "a card", "rows": rows}), encoding="utf-8")
    return path


def test_the_largest_batch_of_a_block_size_counts(tmp_path: Path) -> None:
    times = read_kernel_times(report_of(tmp_path, ROWS), LLAMA, [8, 16])
    assert times.machine == "a card"
    found = times.latencies(LLAMA, 10_000, 16)
    assert found.median_ms == pytest.approx(LLAMA.moved_bytes(10_000) / 4e12 * 1e3)
    assert (found.p90_ms, found.memory_limit_fraction) == (None, 0.93)
    assert times.latencies(LLAMA, 10_000, 8).memory_limit_fraction == 0.8
    fp8 = replace(LLAMA, dtype=torch.float8_e5m2)
    assert read_kernel_times(report_of(tmp_path, ROWS), fp8, [16]).rates[16].bytes_per_s == 1e12


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read"),
        ("{", "no report of the kernel benchmark"),
        ("[]", "no report of the kernel benchmark"),
        ('{"machine": "m"}', "no report of the kernel benchmark"),
        ('{"machine": "m", "rows": [1]}', "no report of the kernel benchmark"),
        (json.dumps({"machine": "m", "rows": [ROWS[0] | {"gb_per_s": 0}]}), "no report of the kernel benchmark"),
        (json.dumps({"machine": "m", "rows": ROWS}), r"block size 24 \(it has 8, 16\)"),
        (json.dumps({"machine": "m", "rows": []}), r"\(it has none\)"),
    ],
)
def test_a_file_that_is_no_report(tmp_path: Path, content: str | None, said: str) -> None:
    path = tmp_path / "kernel_speed.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(BadInput, match=said):
        read_kernel_times(path, LLAMA, [16, 24])


# ---- the pick -------------------------------------------------------------------------------------------------------


def candidates() -> list[Candidate]:
    """Give three: the smallest blocks leave most and are slow, the largest are fast and leave little."""
    return [
        Candidate(8, 9.0, 50.0, (45.0, 55.0), 100),
        Candidate(16, 7.0, 31.0, (29.5, 33.0), 200),
        Candidate(32, 4.0, 30.0, (29.0, 32.0), 400),
    ]


@pytest.mark.parametrize(
    ("reserve", "tpot_ms", "expected"),
    [
        (0, None, 16),  # 32 is fastest, the times of 16 overlap, and it is leaner
        (5, None, 16),
        (5, 40, 16),
        (8, None, 8),
        (8, 50, 8),
        (0, 30.5, 32),
        (7, 31, 16),
        (8, 40, None),
        (10, None, None),
        (0, 10, None),
    ],
)
def test_pick(reserve: float, tpot_ms: float | None, expected: int | None) -> None:
    found = pick(candidates(), Limits(reserve, tpot_ms))
    assert found.block_size == expected
    assert found.reason.startswith("none satisfies both" if expected is None else f"{expected}: ")
    assert found.would_change


def test_the_limit_is_for_requests_end_to_end_too() -> None:
    """As fast as before in a step of all sequences, 16 takes 45 ms a token end to end, and 8 takes 40."""
    some = [each._replace(end_to_end_tpot_ms=ms) for each, ms in zip(candidates(), (40.0, 45.0, 35.0), strict=True)]
    assert [each.judged_tpot_ms for each in some] == [50.0, 45.0, 35.0]
    found = pick(some, Limits(0, 45))
    assert found.block_size == 16
    assert "a TPOT of 31.000 ms, end to end 45.000 ms (limit 45 ms)" in found.reason
    assert "a TPOT limit below 45.000 ms: then 32" in found.would_change
    assert pick(some, Limits(0, 44.99)).block_size == 32
    assert pick(some, Limits(5, 44.99)).would_change[1] == "a TPOT limit of 45.000 ms or more, then 16"


def test_what_would_change_the_pick_does() -> None:
    found = pick(candidates(), Limits(5, 40))
    assert found.would_change[0] == "a reserve above 7.00 %: then none of these"
    assert pick(candidates(), Limits(7.01, 40)).block_size is None
    assert found.would_change[1] == "a TPOT limit below 31.000 ms: then none of these"
    assert pick(candidates(), Limits(5, 30.99)).block_size is None
    assert len(found.would_change) == 2, "32 keeps no reserve of 5 %, so 16 is the fastest"
    assert "32 had the smallest median TPOT, 30.000 ms" in pick(candidates(), Limits(0, 40)).would_change[2]
    loose = pick(candidates(), Limits(0, None)).would_change
    assert loose[0] == "a reserve above 7.00 %: then 8"
    assert pick(candidates(), Limits(7.01, None)).block_size == 8
    assert loose[1] == "a TPOT limit below 31.000 ms: then 32"
    assert pick(candidates(), Limits(0, 30.99)).block_size == 32


def test_none_says_which_limit_would_let_which_one_in() -> None:
    found = pick(candidates(), Limits(8, 40))
    assert found.would_change == (
        "a reserve of 7.00 % or less, then 16; or more memory",
        "a TPOT limit of 50.000 ms or more, then 8",
    )
    assert pick(candidates(), Limits(7.0, 40)).block_size == 16
    assert pick(candidates(), Limits(8, 50)).block_size == 8
    assert "a reserve of 8 % is kept by 8 (the most: 8 with 9.00 %)" in found.reason
    assert "a TPOT of 40 ms is kept by 16, 32 (the fastest: 32 with 30.000 ms)" in found.reason
    assert pick(candidates(), Limits(99, 1)).would_change == ("both limits at once: no block size keeps either",)
    short = [each._replace(free_percent=-3.0) for each in candidates()]
    assert "more memory: for 8 the pool is 3.00 % short" in pick(short, Limits(0, None)).would_change[0]


def test_sequences_that_do_not_fit_are_told_in_blocks() -> None:
    """1,000 sequences of two blocks each, in a pool of 800: 400 of them fit."""
    (short,) = (candidates()[0]._replace(free_percent=-150.0, side_by_side=SideBySide(1000, 2000, 800, 400)),)
    reason = pick([short], Limits(5, None)).reason
    assert "(with 8, 1,000 sequences need 2,000 blocks at one time, the pool has 800: at most 400 fit)" in reason
    assert "-" not in reason, "no per cent below nothing"


def test_a_mark_stands_at_every_time() -> None:
    some = [each._replace(mark=" (*)", end_to_end_tpot_ms=60.0) for each in candidates()]
    for limits in (Limits(0, None), Limits(5, 70), Limits(8, 40), Limits(99, 1)):
        found = pick(some, limits)
        told = " ".join((found.reason, *found.would_change))
        declared = f"TPOT of {limits.tpot_ms:g} ms" if limits.tpot_ms else "nothing"
        times = re.findall(
            r"[\d.]+ ms(?! \(\*\))", told.replace(declared, "").replace(f"limit {limits.tpot_ms} ms", "")
        )
        assert not times, told


def test_where_only_medians_are_known_two_per_cent_are_equal() -> None:
    some = [Candidate(8, 9, 100.0, None, 1), Candidate(16, 9, 98.1, None, 2), Candidate(32, 9, 97.0, None, 3)]
    assert pick(some, Limits(0, None)).block_size == 16


def test_times_that_overlap_pick_nothing() -> None:
    some = [Candidate(8, 9, 44.0, (30.0, 60.0), 1), Candidate(16, 9, 40.0, (29.0, 30.0), 2)]
    assert pick(some, Limits(0, None)).block_size == 8
    apart = [some[0]._replace(tpot_spread_ms=(30.1, 60.0)), some[1]]
    assert pick(apart, Limits(0, None)).block_size == 16

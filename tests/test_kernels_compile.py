"""What the compiler makes of the kernels, for GPUs that are not there: the compile report's lines, asserted.

The report runs in a process of its own, since a process that interprets kernels had better not compile them too. The
ordinary run takes bfloat16 at block size 16 on every target; the deep run all shapes of the report.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pagedkv.kernels import compile_report

TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")
# The matrix instruction that the tensor cores of each target are reached by: in decode, and in prefill.
MATRIX = {
    "sm_80": ("HMMA", "HMMA"),
    "sm_90": ("HMMA", "HGMMA"),
    "sm_100": ("HMMA", "UTCHMMA"),
    "gfx942": ("MFMA", "MFMA"),
}
# Bounds, not values: Triton versions differ by 50 registers. Below 168 three decode programs fit a multiprocessor.
MOST_REGISTERS = {"decode": 168, "prefill": 256, "merge": 128, "append": 64, "copy": 80}


def _report(folder: Path, *options: str) -> dict[str, Any]:
    path = folder / "report.json"
    command = [sys.executable, "-m", "pagedkv.kernels.compile_report", "--json", str(path), *options]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    report: dict[str, Any] = json.loads(path.read_text())
    return report


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return _report(tmp_path_factory.mktemp("report"), "--quick")


def _check_rows(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        what = f"{row['target']} {row['kernel']} {row['cache_dtype']} B={row['block_size']}: {row}"
        if "refused" in row:
            assert (row["target"], row["cache_dtype"]) == ("sm_80", "float8_e4m3fn"), what
            continue
        kind = row["kernel"].split()[0]
        assert row["stack"] == 0, what
        assert row["shared_memory"] <= row["shared_memory_limit"], what
        assert row["registers"] <= MOST_REGISTERS[kind], what
        if kind in {"decode", "prefill"} and row["dtype"] != "float32":
            assert row["matrix"].get(MATRIX[row["target"]][kind == "prefill"], 0) > 0, what
        if row["cache_dtype"] in {"bfloat16", "float16"}:
            assert row["loads_128"] > 0, what
        if row["dtype"] == "float32" and row["target"] != "gfx942":
            assert not row["matrix"], what  # IEEE dots, not TF32


def test_no_spills_and_the_right_instructions(quick: dict[str, Any]) -> None:
    rows = quick["rows"]
    _check_rows(rows)
    seen = {(row["target"], row["kernel"]) for row in rows}
    assert seen == {
        (target, kernel)
        for target in TARGETS
        for kernel in ("decode", "prefill", "merge (decode)", "merge (prefill)", "append", "copy")
    }


def test_batch_sizes_and_lengths_do_not_recompile(quick: dict[str, Any]) -> None:
    """256 batch sizes, 256 lengths, 256 query counts: at most two compilations a kernel (aiter#4545)."""
    counts = quick["compilations"]
    assert set(counts) == {"attention_kernel", "merge_kernel", "append_kernel", "copy_kernel"}
    assert all(1 <= count <= 2 for count in counts.values()), counts


@pytest.mark.parametrize("place", [".", "absent/report.json"])
def test_a_report_that_cannot_be_written_is_one_line_at_once(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compile_report.main(["--json", str(tmp_path / place)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.deep
def test_all_shapes_of_the_report(tmp_path: Path) -> None:
    rows = _report(tmp_path)["rows"]
    _check_rows(rows)
    assert sum("refused" in row for row in rows) == 3  # e4m3 on sm_80: decode, prefill, append
    assert {row["block_size"] for row in rows} == {8, 16, 32, 64, 128}
    assert {row["cache_dtype"] for row in rows} == {"bfloat16", "float16", "float32", "float8_e5m2", "float8_e4m3fn"}

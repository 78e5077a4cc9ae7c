"""The kernel workbench: its checks hold on sound kernels and break on faulty ones, and its numbers are right.

Nothing here asserts a time. What needs a GPU (CUDA graphs, events) is not run here; all else of the command's way on a
GPU is rehearsed on the CPU, every kind of shape made small.
"""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pagedkv.bench import kernel_checks, kernel_jobs, kernel_problems, kernel_speed
from pagedkv.bench.kernel_checks import check_kernels
from pagedkv.bench.kernel_jobs import (
    ATTENTION,
    REFERENCE,
    Row,
    append_call,
    attention_call,
    copy_call,
    judge,
    judge_storage,
)
from pagedkv.bench.kernel_peers import CHEAP
from pagedkv.bench.kernel_problems import Shape, logical, make
from pagedkv.bench.kernel_timing import Ceilings, measure_in_turns
from pagedkv.kernels import dispatch

CPU = torch.device("cpu")
SMALL = Shape("decode", 3, 48, q_heads=4, kv_heads=2, head_size=32, dtype=torch.float32)
NAMES = [
    "attention against the dense oracle",
    "equal to the bit under batch mates and order",
    "equal to the bit under block ids",
    "append, then attention",
    "merge has an exact identity",
]


def test_checks_hold() -> None:
    checks = kernel_checks.check_kernels(CPU, seconds=0, seed=3)
    assert [check.name for check in checks] == NAMES
    assert [check.broken for check in checks] == [""] * 5
    assert all(check.cases == 1 for check in checks)


def _doubled_output(attention: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda *args, **options: attention(*args, **options).mul_(2)


def _by_batch(attention: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda query, *args, **options: attention(query, *args, **options).add_(1e-7 * len(query))


def _by_ids(attention: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def faulty(query: torch.Tensor, cache: Any, table: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        return attention(query, cache, table, *args, **options).add_(1e-6 * int(table[0, 0]))

    return faulty


def _everything(append: Callable[..., None]) -> Callable[..., None]:
    return lambda key, value, cache, slots: append(key * 1.5, value, cache, slots)


def _plain_sum(_merge: object) -> Callable[..., Any]:
    return lambda outputs, lses: (outputs.sum(0), lses.amax(0))


@pytest.mark.parametrize(
    ("broken", "function", "fault"),
    [
        (0, "attention", _doubled_output),
        (1, "attention", _by_batch),
        (2, "attention", _by_ids),
        (3, "append", _everything),
        (4, "merge", _plain_sum),
    ],
)
def test_each_check_breaks_on_its_fault(
    broken: int, function: str, fault: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seeds are tried until a case can show it: a batch of one row has no mates."""
    monkeypatch.setattr(dispatch, function, fault(getattr(dispatch, function)))
    found = [kernel_checks.check_kernels(CPU, seconds=0, seed=seed)[broken] for seed in range(3)]
    assert any(check.broken.startswith("case ") for check in found)


def test_problems_are_poisoned_where_nothing_may_be_read() -> None:
    problem = make(replace(SMALL, batch=2, lengths=(5, 17)), CPU, poison=True)
    cache = problem.caches[0]
    assert cache.key[0].isnan().all()
    assert cache.value[problem.block_table[0, 0], 5:].isnan().all()
    assert cache.key[problem.block_table[1, 1], 1:].isnan().all()
    assert not any(tensor.isnan().any() for row in (0, 1) for tensor in logical(problem, row))


@pytest.mark.parametrize("name", ["contiguous SDPA", "gather, then SDPA"])
@pytest.mark.parametrize("queries", [1, 4, 48])
def test_peers_compute_the_same(name: str, queries: int) -> None:
    """A peer that computes something else would make a comparison of times worthless."""
    problem = make(replace(SMALL, queries=queries), CPU)
    call = CHEAP[name](problem)
    assert call is not None
    result = call()
    assert isinstance(result, torch.Tensor)
    if queries > 1:
        result = result.transpose(1, 2)
    ours = attention_call(problem)()
    torch.testing.assert_close(result.reshape(problem.query.shape), ours, rtol=0, atol=1e-5)


def test_peers_that_do_not_apply_say_so() -> None:
    ragged = make(replace(SMALL, lengths=(5, 17, 48)), CPU)
    assert [name for name, peer in CHEAP.items() if peer(ragged) is not None] == []


def test_bytes_and_flops_by_hand() -> None:
    """Llama-3-8B heads, 8 sequences of 8,192: 2 x 65,536 positions x 1,024 numbers x 2 bytes; FLOPs 4 x D x heads."""
    assert REFERENCE.cache_bytes == 268_435_456
    assert REFERENCE.moved_bytes == 268_435_456 + 2 * 8 * 4096 * 2
    assert REFERENCE.flops == 4 * 8 * 8192 * 32 * 128
    chunk = Shape("prefill", 1, 5, 3)  # its queries see 3, 4 and 5 positions
    assert chunk.flops == 4 * 12 * 32 * 128
    assert replace(REFERENCE, cache_dtype=torch.float8_e5m2).cache_bytes == 134_217_728


def _rows(ceilings: Ceilings, slowness: float) -> dict[Shape, Row]:
    """Rows as if every shape ran at its floor, times `slowness`; the reference always at its floor."""
    rows = {}
    for shape in ATTENTION:
        floor_s = max(shape.moved_bytes / ceilings.copy_bytes_per_s, shape.flops / ceilings.matmul_flops_per_s)
        seconds = floor_s * (1 if shape == REFERENCE else slowness)
        rows[shape] = Row(
            shape.name, "", seconds * 1e6, 0.0, shape.moved_bytes / seconds / ceilings.copy_bytes_per_s,
            shape.flops / seconds / 1e12, 0.0,
        )  # fmt: skip
    return rows


def test_targets_are_judged() -> None:
    """At the floor of an H200 every target is met, at 2.1 times the floor none but the reference's."""
    ceilings = Ceilings(4.3e12, 788e12)
    good, bad = _rows(ceilings, 1.0), _rows(ceilings, 2.1)
    for rows in (good, bad):
        judge(rows, ceilings)
    judged = [shape for shape in ATTENTION if good[shape].target]
    assert all(good[shape].met for shape in judged)
    assert [shape for shape in judged if bad[shape].met] == [REFERENCE]
    assert {shape.name for shape in judged} == {"decode", "verify", "decode, fp8", "prefill", "prefill after 32k"}
    assert Shape("decode", 1, 32 * 1024) in judged
    storage = [Row("copy", "", 1.0, 0.0, fraction, 0.0, 0.0) for fraction in (0.81, 0.79)]
    judge_storage(storage)
    assert [row.met for row in storage] == [True, False]


def test_timed_jobs_do_their_work() -> None:
    for job in (append_call, copy_call):
        job(4, CPU)()
    calls: list[str] = []
    times = measure_in_turns({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=2)
    assert calls == ["a", "b"] * 3  # a warm-up, then in turns
    assert set(times) == {"a", "b"}


def test_the_command_writes_its_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_speed, "CPU_SHAPES", [SMALL])
    status = kernel_speed.main(["--device", "cpu", "--no-compiled-peers", "--out", str(tmp_path / "new")])
    report = json.loads((tmp_path / "new" / "kernel_speed.json").read_text())
    assert [check["broken"] for check in report["checks"]] == [""] * 5
    (row,) = report["rows"]
    assert set(row["peers_microseconds"]) == {"contiguous SDPA", "gather, then SDPA"}
    assert status == (0 if row["met"] else 1)
    page = (tmp_path / "new" / "kernel_speed.md").read_text()
    assert page in capsys.readouterr().out
    assert report["command"] in page
    assert math.isfinite(row["microseconds"])


def _made_small(shape: Shape) -> Shape:
    """The same kind of work in a few blocks: one to three sequences, a 256th of the length, small heads."""
    queries = 1 if shape.queries == 1 else max(2, shape.queries // 256)
    length = max(shape.length // 256, queries) if shape.length > shape.queries else queries
    batch = min(shape.batch, 3)
    return replace(shape, batch=batch, length=length, queries=queries, q_heads=4, kv_heads=2, head_size=32)


def test_the_way_on_a_gpu_is_rehearsed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every row that a GPU would give is there, with the target that stands beside it, in both files."""
    small = {shape: _made_small(shape) for shape in ATTENTION}
    held = kernel_checks.KernelCheck("captured in a CUDA graph", 1, "")
    monkeypatch.setattr(kernel_speed, "ATTENTION", list(small.values()))
    for module in (kernel_speed, kernel_jobs):
        monkeypatch.setattr(module, "REFERENCE", small[REFERENCE])
    monkeypatch.setattr(kernel_jobs, "STORAGE_MEBIBYTES", (4, 8))
    monkeypatch.setattr(kernel_problems, "ROTATION_BYTES", 2**20)
    monkeypatch.setattr(
        kernel_speed, "check_kernels", lambda device, seconds: check_kernels(device, seconds=seconds / 100)
    )
    monkeypatch.setattr(kernel_speed, "check_graph", lambda _device: held)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "a card")
    monkeypatch.setattr(kernel_speed, "_cpu", kernel_speed._gpu)

    status = kernel_speed.main(["--device", "cpu", "--no-compiled-peers", "--out", str(tmp_path)])

    report = json.loads((tmp_path / "kernel_speed.json").read_text())
    rows = report["rows"]
    assert [check["broken"] for check in report["checks"]] == [""] * 6
    assert [row["name"] for row in rows] == [*(s.name for s in ATTENTION), "append", "copy", "append", "copy"]
    assert {row["target"] for row in rows if row["name"] in {"append", "copy"}} == {"80 % of copy bandwidth"}
    assert {row["target"] for row in rows if row["name"] == "decode, fp8"} == {"1.6 x faster than bf16"}
    assert all(set(row["peers_microseconds"]) for row in rows if row["name"] == "verify")
    assert not [row["peers_failed"] for row in rows if row["peers_failed"]]
    assert status == (1 if any(row["met"] is False for row in rows) else 0)
    page = (tmp_path / "kernel_speed.md").read_text()
    assert page in capsys.readouterr().out
    assert page.count("\n| ") == len(rows) + 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_the_command_without_a_gpu_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert kernel_speed.main(["--device", "cuda"]) == 2
    assert capsys.readouterr().err == "--device cuda: no GPU that torch can use; use --device cpu\n"


def test_the_command_into_a_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert kernel_speed.main(["--device", "cpu", "--out", str(tmp_path / "file")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1

"""`pagedkv sweep` as a user meets it: files, the same figures twice, the pick's exit code, plots, bad input."""

import csv
import json
import shlex
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from pagedkv.bench.command_line import run
from pagedkv.bench.sweep_batch import Counts, Seconds
from pagedkv.bench.sweep_kernels import Latencies
from pagedkv.bench.sweep_plots import LOOKS, draw_fragmentation, draw_latency, short, write_figure
from pagedkv.bench.sweep_report import SweepRow, as_csv, halvings, halvings_in_words

from test_sweep_pick import ROWS, kernel_row, report_of

Captured = pytest.CaptureFixture[str]

SMALL = ["--sequences", "12", "--weights", "1,0,0,0", "--steps", "2", "--block-sizes", "4,8,16", "--memory", "1GiB"]


def swept(folder: Path, *arguments: str, exit_code: int = 0) -> dict[str, Any]:
    """Sweep into a folder and return what its JSON says."""
    assert run(["sweep", *SMALL, "--out", str(folder), *arguments]) == exit_code
    facts: dict[str, Any] = json.loads((folder / "sweep.json").read_text(encoding="utf-8"))
    return facts


def without_times(facts: object) -> object:
    """Leave out what two runs need not agree on."""
    if isinstance(facts, dict):
        return {key: without_times(value) for key, value in facts.items() if key not in {"times", "command"}}
    return [without_times(each) for each in facts] if isinstance(facts, list) else facts


def test_two_runs_with_one_seed_agree_on_all_but_times(tmp_path: Path) -> None:
    first, again, other = (
        swept(tmp_path / name, "--seed", seed) for name, seed in (("a", "7"), ("b", "7"), ("c", "8"))
    )
    assert without_times(first) == without_times(again) != without_times(other)
    assert (tmp_path / "a" / "lengths.csv").read_bytes() == (tmp_path / "b" / "lengths.csv").read_bytes()
    assert first["times"].keys() == {"measured", "copy_bytes_per_s", "pick"}


def test_the_files_say_the_same(tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "new" / "folder"
    facts = swept(out, "--json", str(tmp_path / "x.json"), "--reserve", "0")
    assert json.loads((tmp_path / "x.json").read_text(encoding="utf-8")) == facts
    names = {path.name for path in out.iterdir()}
    pictures = {f"{name}.{kind}" for name in ("fragmentation", "latency") for kind in ("png", "svg")}
    assert names == {"sweep.json", "sweep.csv", "lengths.csv", *pictures}
    with (out / "lengths.csv").open(encoding="utf-8") as file:
        final = [int(row["final_tokens"]) for row in csv.DictReader(file)]
    rows = facts["block_sizes"]
    assert [row["block_size"] for row in rows] == [4, 8, 16]
    for row in rows:
        size = row["block_size"]
        assert row["logical_tokens"] == sum(final) == facts["lengths"]["tokens"]
        assert row["block_table_entries"] == sum(-(-length // size) for length in final)
        assert row["tail_waste"] == sum(-length % size for length in final)
        assert row["tail_waste_bytes"] == row["tail_waste"] * 131_072
        assert row["tail_waste_uniform_estimate"] == 12 * (size - 1) / 2
        grown = sum(-(-(length + 3) // size) for length in final)
        assert row["free_blocks"] == row["blocks"] - grown, "after a step that is not timed, and two that are"
        assert row["times"]["tpot_ms"] == pytest.approx(32 * row["times"]["decode_latency_median_ms"])
    with (out / "sweep.csv").open(encoding="utf-8") as file:
        told = list(csv.DictReader(file))
    assert [int(row["tail_waste"]) for row in told] == [row["tail_waste"] for row in rows]
    assert [float(row["tpot_ms"]) for row in told] == [row["times"]["tpot_ms"] for row in rows]
    output = capsys.readouterr()
    assert output.err == ""
    assert "1 to 64: weight 1, 12 sequences" in output.out
    assert "(*) mechanism only" in output.out
    assert "From B = 8 to 4: tail waste x" in output.out
    assert shlex.split(output.out.splitlines()[-1])[:2] == ["pagedkv", "sweep"]
    assert "12 lengths drawn from buckets, seed 0" in (out / "latency.svg").read_text(encoding="utf-8")


def test_limits_that_nothing_meets_are_told_and_exit_1(tmp_path: Path, capsys: Captured) -> None:
    facts = swept(tmp_path, "--memory", "1MiB", "--tpot-ms", "1e6", exit_code=1)
    assert facts["times"]["pick"]["block_size"] is None
    assert all(row["blocks"] in {0, 1} and row["free_blocks"] < 0 for row in facts["block_sizes"])
    output = capsys.readouterr()
    assert "pick: none satisfies both" in output.out
    assert "what would help: more memory: for " in output.out
    assert output.err == ""


def test_a_declared_step_is_added(tmp_path: Path) -> None:
    facts = swept(tmp_path, "--model-step-ms", "1000", "--layout", "HND", "--kv-dtype", "fp8_e5m2")
    assert (facts["model_step_ms"], facts["layout"], facts["kv_dtype"]) == (1000, "HND", "float8_e5m2")
    for row in facts["block_sizes"]:
        assert row["times"]["tpot_ms"] == pytest.approx(1000 + 32 * row["times"]["decode_latency_median_ms"])


def test_latencies_of_another_machine(tmp_path: Path, capsys: Captured) -> None:
    rows = [*ROWS, kernel_row("decode", "64 x 8,192, 1 new, B = 4, bfloat16", 1000.0)]
    facts = swept(tmp_path / "out", "--kernel-times", str(report_of(tmp_path, rows)))
    assert facts["mechanism_only"] is False
    assert facts["times"]["copy_bytes_per_s"] is None
    four, _, sixteen = (row["times"] for row in facts["block_sizes"])
    assert four["decode_latency_median_ms"] == pytest.approx(4 * sixteen["decode_latency_median_ms"])
    assert [row["decode_steps"] for row in facts["block_sizes"]] == [3, 3, 3]
    output = capsys.readouterr().out
    assert "mechanism only" not in output
    assert "(a card)" in output


TRACE = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,4,2,6,API log
0,ChatGPT,3,1,4,API log
0,GPT-4,0,0,0,API log
0,GPT-4,9,9,18,API log
"""


def test_a_trace(tmp_path: Path, capsys: Captured) -> None:
    trace = tmp_path / "trace [1].csv"
    trace.write_text(TRACE, encoding="utf-8")
    facts = swept(tmp_path / "out", "--lengths", str(trace), "--reserve", "0")
    assert facts["lengths"] == {
        "source": "trace",
        "trace": str(trace),
        "trace_format": "burstgpt",
        "final_length": "prompt+output-1",
        "empty_requests_left_out": 1,
        "sequences": 3,
        "tokens": 5 + 3 + 17,
    }
    four = facts["block_sizes"][0]
    assert (four["tail_waste"], four["block_table_entries"], four["growth_allocations"]) == (3 + 1 + 3, 8, 1 + 2)
    assert "1 more have no prompt tokens and are left out" in capsys.readouterr().out
    whole = swept(tmp_path / "out", "--lengths", str(trace), "--final-length", "prompt+output", "--reserve", "0",
                  "--requests", "2")  # fmt: skip
    assert whole["lengths"]["tokens"] == 6 + 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--block-sizes", "0,16"], "a block has from 1 to"),
        (["--block-sizes", "16,x"], "not all of them are whole numbers"),
        (["--block-sizes", ""], "not all of them are whole numbers"),
        (["--block-sizes", "-4"], "not all of them are whole numbers"),
        (["--block-sizes", "16,16"], "one of them twice"),
        (["--block-sizes", "1,2,3,4,5,6,7,8,9,10,11"], "11 sizes"),
        (["--block-sizes", "99999999999"], "not all of them are whole numbers"),
        (["--weights", "1,1,0,0"], "they sum to 2, not to 1"),
        (["--model", "zzz"], "no model of that name"),
        (["--model", "DeepSeek-V3"], "keeps latents"),
        (["--layout", "nhd"], "give NHD or HND"),
        (["--device", "tpu"], "give cpu or cuda"),
        (["--memory", "much"], "no amount of memory"),
        (["--tpot-ms", "nan"], "--tpot-ms"),
        (["--reserve", "101"], "--reserve"),
        (["--seconds", "inf"], "--seconds"),
        (["--sequences", "0"], "--sequences"),
        (["--lengths", "missing.csv"], "cannot be read"),
        (["--kernel-times", "missing.json"], "cannot be read"),
        (["--out", "file/below"], "is no folder"),
        (["--json", "missing/x.json"], "there is no folder"),
    ],
)
def test_bad_input_is_one_line(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("", encoding="utf-8")
    assert run(["sweep", *SMALL, *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert said in output.err
    assert output.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# ---- report and plots -----------------------------------------------------------------------------------------------


def rows_of(block_sizes: list[int], *, p90: bool = True, latency_ms: float = 1234.5) -> list[SweepRow]:
    """Give rows as a sweep of 1,000 sequences of 1,001 tokens would, with made-up times."""
    rows = []
    for size in block_sizes:
        entries = 1000 * -(-1001 // size)
        counts = Counts(
            block_size=size, sequences=1000, logical_tokens=1_001_000, physical_slots=entries * size,
            block_table_entries=entries, blocks=1_100_000 // size, free_blocks=1_100_000 // size - entries,
        )  # fmt: skip
        latencies = Latencies(latency_ms / size**0.1, 1.0 if p90 else None, latency_ms * 1.3 if p90 else None, 0.87, 5)
        rows.append(SweepRow(counts, Seconds(0.1, [0.001]), latencies, 131_072, 32, 0.0))
    return rows


def test_halving_is_told_with_this_run_s_figures() -> None:
    found = halvings(rows_of([1, 2, 8, 16]))
    assert [(each["from"], each["to"]) for each in found] == [(2, 1), (16, 8)]
    assert found[0] == {"from": 2, "to": 1, "tail_waste_ratio": 0.0, "block_table_entries_ratio": 1001 / 501}
    assert halvings_in_words(rows_of([8, 16])) == ["From B = 16 to 8: tail waste x 1.000, block table entries x 2.000."]
    assert halvings_in_words(rows_of([7, 1001]))[:1] == []
    even = [row for row in rows_of([1, 2]) if row.counts.block_size == 1] + rows_of([2])
    even[1].counts.physical_slots = even[1].counts.logical_tokens
    assert halvings_in_words(even) == ["From B = 2 to 1: no tail waste, block table entries x 1.998."]


def test_csv_has_a_line_a_block_size() -> None:
    told = list(csv.DictReader(as_csv(rows_of([8, 16])).splitlines()))
    assert [row["block_size"] for row in told] == ["8", "16"]
    assert told[0]["tail_waste_a_sequence"] == "7.0"


SIZES = [[16], [8, 16], [8, 16, 32, 64], [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]]


def figures(block_sizes: list[int]) -> Iterator[Figure]:
    """Draw both figures, with large and with small numbers."""
    title = "a/model: $x$ " + "a long name of a trace " * 8
    for latency_ms in (4.321, 123_456.0):
        rows = rows_of(block_sizes, latency_ms=latency_ms)
        for figure in (draw_fragmentation(rows, title), draw_latency(rows, title, " (mechanism only)")):
            figure.draw_without_rendering()
            yield figure


def words(axes: Axes) -> list[Text]:
    """Return all the words of a panel: title, labels of axes and ticks, numbers at bars, legend."""
    legend = axes.get_legend()
    ticks = [*axes.get_xticklabels(), *axes.get_yticklabels()]
    found = [*axes.texts, axes.xaxis.label, axes.yaxis.label, axes._left_title, *ticks]  # type: ignore[attr-defined]
    return [text for text in found + (legend.get_texts() if legend else []) if text.get_text() and shown(axes, text)]


def shown(axes: Axes, text: Text) -> bool:
    """Whether a tick's label is within the axis; those outside are not drawn."""
    box, frame = text.get_window_extent(), axes.get_window_extent()
    return text not in axes.get_yticklabels() or frame.y0 - 1 <= (box.y0 + box.y1) / 2 <= frame.y1 + 1


def overlap(first: Bbox, second: Bbox) -> float:
    """How far two boxes reach into one another, in dots."""
    across = float(min(first.x1, second.x1) - max(first.x0, second.x0))
    along = float(min(first.y1, second.y1) - max(first.y0, second.y0))
    return min(across, along)


def heights(axes: Axes) -> list[float]:
    """Return how high the bars of a panel are."""
    return [bar.get_height() for bar in axes.patches if isinstance(bar, Rectangle)]


@pytest.mark.parametrize("block_sizes", SIZES, ids=len)
def test_no_words_overlap_and_none_leave_the_page(block_sizes: list[int]) -> None:
    for figure in figures(block_sizes):
        found = [(text.get_text(), text.get_window_extent()) for axes in figure.axes for text in words(axes)]
        (heading,) = [text for text in figure.texts if text.get_text()] or [figure._suptitle]  # type: ignore[attr-defined]
        found.append((heading.get_text(), heading.get_window_extent()))
        page = figure.bbox.padded(1)
        for what, box in found:
            assert page.x0 <= box.x0 < box.x1 <= page.x1, what
            assert page.y0 <= box.y0 < box.y1 <= page.y1, what
        for (what, box), (other, second) in combinations(found, 2):
            assert overlap(box, second) <= 1, f"{what} and {other}"


@pytest.mark.parametrize("block_sizes", SIZES, ids=len)
def test_each_panel_has_title_axes_and_units(block_sizes: list[int]) -> None:
    for figure in figures(block_sizes):
        for axes in figure.axes:
            assert axes.get_title(loc="left")
            assert axes.get_xlabel() == "block size B (tokens)"
            assert any(unit in axes.get_ylabel() for unit in ("(%", "(int32)", "(ms)")), axes.get_ylabel()
            assert [label.get_text() for label in axes.get_xticklabels()] == [f"{size:,}" for size in block_sizes]
            assert len(heights(axes)) in {len(block_sizes), 2 * len(block_sizes)}


def test_bars_differ_in_greyscale() -> None:
    weights = (0.299, 0.587, 0.114)
    colours = [to_rgb(face) for face, _ in LOOKS]
    measured, beside = (sum(part * weight for part, weight in zip(rgb, weights, strict=True)) for rgb in colours)
    assert abs(measured - beside) > 0.25
    assert [hatch for _, hatch in LOOKS] == [None, "////"]


def test_bars_are_as_high_as_the_figures() -> None:
    rows = rows_of([8, 64])
    waste, entries, free = draw_fragmentation(rows, "t").axes
    assert heights(waste)[:2] == [row.counts.tail_waste_percent for row in rows]
    assert heights(entries) == [126_000, 16_000]
    assert heights(free) == [row.counts.free_percent for row in rows]
    latency, fraction = draw_latency(rows_of([8, 64], p90=False), "t", "").axes
    assert len(latency.patches) == 2, "no p90 is drawn where none was measured"
    assert heights(fraction) == [87.0, 87.0]


def test_figures_are_files_and_always_the_same(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        write_figure(draw_latency(rows_of([8, 16]), "t", ""), folder, "latency")
    for name in ("latency.png", "latency.svg"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (793_439, "793k"),
        (3_314_786, "3.31M"),
        (4006.97, "4,007"),
        (14.19, "14.2"),
        (0.0312, "0.0312"),
        (-9.14, "-9.14"),
    ],
)
def test_numbers_at_bars_are_short(value: float, expected: str) -> None:
    assert short(value) == expected

"""The pictures of a sweep, with one block size and with ten: words apart, axes named, bars that need no colour."""

from functools import cache
from itertools import combinations
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from pagedkv.bench.plots import short, write_figure
from pagedkv.bench.sweep_plots import LOOKS, draw_fragmentation, draw_goodput, draw_latency

from test_sweep_report import rows_of

SIZES = [(16,), (8, 16), (8, 16, 32, 64), (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)]


@cache
def figures(block_sizes: tuple[int, ...]) -> list[Figure]:
    """Draw all figures, with large and with small numbers; no test changes one."""
    title = "a/model: $x$ " + "a long name of a trace " * 8
    scaled = "this CPU, 2 threads: one layer, 1 of 8 KV heads, 64 of 128 numbers a head, 1,000 sequences"
    found = []
    for latency_ms in (4.321, 123_456.0):
        rows = rows_of([*block_sizes], latency_ms=latency_ms)
        found += [draw_fragmentation(rows, title), draw_latency(rows, title, scaled), draw_goodput(rows, title, scaled)]
    return found


def words(axes: Axes) -> list[Text]:
    """Return all the words of a panel: title, labels of axes and ticks, numbers at bars, legend."""
    legend = axes.get_legend()
    ticks = [*axes.get_xticklabels(), *axes.get_yticklabels()]
    found = [*axes.texts, axes.xaxis.label, axes.yaxis.label, axes._left_title, *ticks]  # type: ignore[attr-defined]
    return [text for text in found + (legend.get_texts() if legend else []) if text.get_text() and shown(axes, text)]


def shown(axes: Axes, text: Text) -> bool:
    """Whether a tick's label is within the axis; those outside are not drawn."""
    box, frame = text.get_window_extent(), axes.get_window_extent()
    if text in axes.get_yticklabels():
        return bool(frame.y0 - 1 <= (box.y0 + box.y1) / 2 <= frame.y1 + 1)
    return text not in axes.get_xticklabels() or bool(frame.x0 - 1 <= (box.x0 + box.x1) / 2 <= frame.x1 + 1)


def overlap(first: Bbox, second: Bbox) -> float:
    """How far two boxes reach into one another, in dots."""
    across = float(min(first.x1, second.x1) - max(first.x0, second.x0))
    along = float(min(first.y1, second.y1) - max(first.y0, second.y0))
    return min(across, along)


def heights(axes: Axes) -> list[float]:
    """Return how high the bars of a panel are."""
    return [bar.get_height() for bar in axes.patches if isinstance(bar, Rectangle)]


@pytest.mark.parametrize("block_sizes", SIZES, ids=len)
def test_no_words_overlap_and_none_leave_the_page(block_sizes: tuple[int, ...]) -> None:
    for figure in figures(block_sizes):
        found = [(text.get_text(), text.get_window_extent()) for axes in figure.axes for text in words(axes)]
        found += [(text.get_text(), text.get_window_extent()) for text in figure.texts]  # heading, and note at the foot
        page = figure.bbox.padded(1)
        for what, box in found:
            assert page.x0 <= box.x0 < box.x1 <= page.x1, what
            assert page.y0 <= box.y0 < box.y1 <= page.y1, what
        for (what, box), (other, second) in combinations(found, 2):
            assert overlap(box, second) <= 1, f"{what} and {other}"


@pytest.mark.parametrize("block_sizes", [SIZES[0], SIZES[-1]], ids=len)
def test_no_number_lies_on_a_bar(block_sizes: tuple[int, ...]) -> None:
    for figure in figures(block_sizes):
        for axes in figure.axes:
            bars = [bar for bar in axes.patches if isinstance(bar, Rectangle)]
            boxes = [bar.get_window_extent() for bar in bars if bar.get_height()]
            for number in axes.texts:
                extent = number.get_window_extent()
                assert all(overlap(extent, box) <= 1 for box in boxes), number.get_text()


@pytest.mark.parametrize("block_sizes", SIZES, ids=len)
def test_each_panel_has_title_axes_and_units(block_sizes: tuple[int, ...]) -> None:
    for figure in figures(block_sizes):
        timed = [axes.get_title(loc="left") for axes in figure.axes if "(mechanism only)" in axes.get_title(loc="left")]
        notes = [text.get_text() for text in figure.texts if "Compare block sizes" in text.get_text()]
        assert len(notes) == bool(timed), "a note at the foot where something was timed on a scaled layer"
        for axes in figure.axes:
            assert axes.get_title(loc="left")
            assert axes.get_xlabel() == "block size B (tokens)"
            assert any(unit in axes.get_ylabel() for unit in ("(%", "(int32)", "(ms)", "(tokens)", "(requests/s)")), (
                axes.get_ylabel()
            )
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
    latency, fraction = draw_latency(rows_of([8, 64], p90=False), "t", None).axes
    assert len(latency.patches) == 2, "no p90 is drawn where none was measured"
    assert heights(fraction) == [87.0, 87.0]


def test_bars_of_traffic_are_as_high_as_the_figures() -> None:
    rows = [*rows_of([8], traffic=False), *rows_of([16], latency_ms=20.0)]
    hits, evictions, tpot, goodput = draw_goodput(rows, "t", None).axes
    assert (heights(hits), heights(evictions)) == ([0, 10.0], [0, 4096])
    assert heights(tpot)[1::2] == [20.0, 20.0]
    assert heights(goodput) == [0, pytest.approx(10 / (0.005 + 19 * 0.020))]
    assert [text.get_text() for text in hits.texts] == ["-", "10"]
    nothing = draw_goodput(rows_of([8, 16], traffic=False), "t", None)
    assert [axes.get_ylim()[0] for axes in nothing.axes] == [0.0] * 2
    assert all(axes.get_title(loc="left").startswith("On the clock") for axes in nothing.axes), "no hits, no panel"


def test_figures_are_files_and_always_the_same(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        write_figure(draw_latency(rows_of([8, 16]), "t", None), folder, "latency")
    for name in ("latency.png", "latency.svg"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (793_439, "793k"),
        (3_314_786, "3.31M"),
        (93_562, "93.6k"),
        (4006.97, "4,007"),
        (14.19, "14.2"),
        (0.0312, "0.0312"),
        (-9.14, "-9.14"),
    ],
)
def test_numbers_at_bars_are_short(value: float, expected: str) -> None:
    assert short(value) == expected

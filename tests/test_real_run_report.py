"""What is said of a replay beside a measured run: figures and misses by hand, the command, the picture."""

import io
import json
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from pagedkv.bench.command_line import run
from pagedkv.bench.quantiles import Quantiles
from pagedkv.bench.real_run import EngineSettings, RealRun, Ticks, read_real_run
from pagedkv.bench.real_run_command import run_settings
from pagedkv.bench.real_run_findings import findings
from pagedkv.bench.real_run_plot import MEASURED, OURS, draw_comparison
from pagedkv.bench.real_run_replay import ReplayedRun, RunSettings
from pagedkv.bench.real_run_report import (
    MAKESPAN,
    PEAK_RUNNING,
    SECOND_TPOT,
    Comparison,
    compare,
    quantiles_of,
)
from pagedkv.bench.scheduler_report import SchedulerCounts
from pagedkv.bench.traces import Float64Array, read_trace
from pagedkv.impl.requests import Limits
from rich.console import Console

from page_parts import Page, assert_asks_for_nothing
from real_run_files import KNOWN, MiniatureRun, write_run

Captured = pytest.CaptureFixture[str]

# Four requests, all there from the start, 11 tokens each: TPOT is a tenth of the decode time.
FIRST_S, LAST_S = (1.0, 1.0, 2.0, 2.0), (2.0, 3.0, 4.0, 6.0)
TICKS = Ticks(np.array([1.0, 2.0, 3.0]), np.array([4.0, 3.0, 2.0]), np.array([0.0, 1.0, 0.0]), np.array([80.0, 60, 40]))


def _column(*values: float) -> Float64Array:
    return np.array(values, np.float64)


MEASURED_RUN = RealRun(
    path=Path("x.meta.json"),
    device="abacus",
    engine="vLLM 0.1",
    settings=EngineSettings(max_tokens_per_step=8, max_running=4, blocks=10, block_size=4, prefix_cache=True),
    arrival_s=_column(0, 0, 0, 0),
    admitted_s=_column(0.5, 0.5, 1, 1),
    first_token_s=_column(*FIRST_S),
    last_token_s=_column(*LAST_S),
    decode_s=_column(1, 2, 2, 4),
    prompt_tokens=np.full(4, 3),
    output_tokens=np.full(4, 11),
    ticks=TICKS,
)
SETTINGS = RunSettings(blocks=10, block_size=4, limits=Limits(max_tokens_per_step=8, max_running=4))


def _compared(last_s: tuple[float, ...] = LAST_S, running: int = 4) -> Comparison:
    """Compare with a replay that ends its requests then; one step, 5 blocks of 10, so many running, nobody waiting."""
    step = np.array([[0, 1000 * max(last_s), running, 0, 5, 1, 1, 1]], np.float64)
    counts = SchedulerCounts(peak_running=running)
    arrival, admitted = np.zeros(4), np.zeros(4)
    replayed = ReplayedRun(arrival, admitted, _column(*FIRST_S), _column(*last_s), step, 10, counts)
    return compare(MEASURED_RUN, replayed, SETTINGS, (), KNOWN, None)


def test_figures_are_those_of_a_hand_count() -> None:
    figures = _compared((2.0, 3.0, 4.2, 6.6)).figures
    expected = {
        "first_half_tpot_p50_ms": (100, 100),  # 100 and 200: half of them are not above 100
        "first_half_tpot_p90_ms": (200, 200),
        "second_half_tpot_p50_ms": (200, 220),  # 200 and 400; 220 and 460
        "second_half_tpot_p99_ms": (400, 460),
        "first_half_ttft_p50_s": (1, 1),
        "second_half_ttft_p90_s": (2, 2),
        "first_half_queueing_p50_s": (0.5, 0),
        "makespan_s": (6, 6.6),
        "peak_running": (4, 4),
        "mean_running": (3, 4),
        "peak_waiting": (1, 0),
        "mean_usage_percent": (60, 50),
    }
    for key, (measured, ours) in expected.items():
        assert (figures[key].measured, figures[key].ours) == pytest.approx((measured, ours)), key
    assert figures["makespan_s"].difference_percent == pytest.approx(10)
    assert figures["peak_waiting"].difference_percent == pytest.approx(-100)
    assert [key for key, figure in figures.items() if figure.holds is not None] == [
        SECOND_TPOT,
        MAKESPAN,
        PEAK_RUNNING,
    ]


def test_quantiles_have_the_rank_of_those_of_a_clocked_replay() -> None:
    """Of 1 to 10 ms: 5 are not above 5, 9 not above 9, and 99 % of ten are ten."""
    times, sketch = np.arange(1.0, 11.0), Quantiles()
    sketch.add_all(times)
    assert quantiles_of(times[::-1]) == [5, 9, 10]
    assert [sketch.quantile(share) for share in (0.5, 0.9, 0.99)] == pytest.approx([5, 9, 10], rel=0.005)


def test_what_is_within_its_limits_holds_and_needs_no_reason() -> None:
    comparison = _compared((2.0, 3.0, 4.2, 6.6))  # 220 beside 200 ms, 6.6 beside 6 s
    assert [comparison.figures[key].holds for key in (SECOND_TPOT, MAKESPAN, PEAK_RUNNING)] == [True] * 3
    (said,) = findings(comparison)
    assert said == (
        "Requests finished, measured beside ours: 25 %: 2.0 s beside 2.0, 50 %: 3.0 s beside 3.0,"
        " 75 %: 4.0 s beside 4.2, 100 %: 6.0 s beside 6.6."
    )


def test_a_miss_is_said_with_its_size_and_what_the_data_shows() -> None:
    comparison = _compared((2.0, 3.0, 5.0, 9.0), running=5)
    tpot, makespan, peak = findings(comparison)[1:]
    assert tpot == (
        "second half, TPOT p50, ms: 300.00 beside 200.00, within 15 %: missed by 35.0 points. On the first half it is"
        " off by +0.0 %; over the whole run 3.0 requests ran on average, in ours 5.0."
    )
    assert makespan == (
        "whole run, makespan, s: 9.00 beside 6.00, within 15 %: missed by 35.0 points. By quarters of the requests, in"
        " order of their ends, the difference arises as +0.0 s, +0.0 s, +1.0 s, +2.0 s."
    )
    assert peak == (
        "at the measured ticks, peak running: 5.00 beside 4.00, within 10 %: missed by 15.0 points. The measured peak"
        " is at 1 s, where ours has 5; ours is at 1 s, where 4 were measured. Between ticks ours reaches 5."
    )


def test_requests_of_one_token_have_no_tpot() -> None:
    comparison = _compared()
    single = replace(MEASURED_RUN, output_tokens=np.array([1, 11, 1, 1]))
    figures = compare(single, comparison.replayed, SETTINGS, (), KNOWN, None).figures
    assert figures["first_half_tpot_p50_ms"].measured == 200
    assert not any(key.startswith("second_half_tpot") for key in figures)
    draw_comparison(compare(single, comparison.replayed, SETTINGS, (), KNOWN, None), "x").draw_without_rendering()


def test_the_table_has_a_row_a_figure_and_its_verdict() -> None:
    comparison = _compared((2.0, 3.0, 4.2, 9.0))
    console = Console(width=100, file=io.StringIO())
    with console.capture() as capture:
        console.print(comparison.as_table("abacus"))
    text = capture.get()
    for figure in comparison.figures.values():
        assert figure.name in text
    assert "within 15 %: missed by 35.0 points" in text
    assert text.count("holds") == 2, "of TPOT, 220 beside 200 ms, and of the peak"


# ---- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def miniature(tmp_path: Path) -> MiniatureRun:
    return write_run(tmp_path)


def _replay(miniature: MiniatureRun, *options: str) -> int:
    out = str(miniature.meta.parent / "out")
    return run(["replay", str(miniature.trace), "--compare-run", str(miniature.meta), "--out", out, *options])


def _facts(miniature: MiniatureRun) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((miniature.meta.parent / "out" / "real_run.json").read_text(encoding="utf-8"))
    return facts


def _tpot_ms(miniature: MiniatureRun) -> list[float]:
    measured = read_real_run(miniature.meta)
    pairs = zip(measured.decode_s.tolist(), measured.output_tokens.tolist(), strict=True)
    return [1000 * decode_s / (tokens - 1) for decode_s, tokens in pairs]


def test_a_run_is_fitted_compared_and_written(miniature: MiniatureRun, capsys: Captured) -> None:
    json_file = miniature.meta.parent / "x.json"
    assert _replay(miniature, "--json", str(json_file)) == 0
    facts, said = _facts(miniature), capsys.readouterr().out
    assert "running at most, between the ticks of the measured run too." in said
    assert json.loads(json_file.read_text(encoding="utf-8")) == facts
    names = {path.name for path in (miniature.meta.parent / "out").iterdir()}
    assert names == {"real_run.html", "real_run.json", "real_run.png", "real_run.svg"}
    page = (miniature.meta.parent / "out" / "real_run.html").read_text(encoding="utf-8")
    assert_asks_for_nothing(page)
    (table,) = Page(page).tables
    assert [row[0].strip() for row in table if len(row) > 1 and row[2]] == [
        "figure",
        *(figure["name"] for figure in facts["figures"].values()),
    ]
    assert (facts["blocks"], facts["block_size"], facts["max_running"], facts["steps_ahead"]) == (220, 16, 24, 2)
    assert facts["assumptions"] == ["--steps-ahead 2"]
    assert facts["fit"]["fitted_requests"] == list(range(32))
    assert facts["step_time"]["token_ms"] == pytest.approx(KNOWN.token_ms, rel=1e-4)
    for figure in facts["figures"].values():  # it is our own engine that was measured
        assert figure["ours"] == pytest.approx(figure["measured"], rel=1e-3, abs=0.01)
    assert facts["ticks"]["running"] == facts["ticks"]["running_measured"]
    assert "Assumed, as tiny.meta.json does not say it: --steps-ahead 2." in said
    assert "Fitted on the decode times of 32 requests, which the replay meets to 0.0 %" in said
    assert len(facts["what_the_data_says"]) == 3, "of the fit, of no fit, of the parts: no limit is missed"
    assert all(line in said for line in facts["what_the_data_says"])
    plain = facts["fit"]["rounds"][0]
    tpot_ms = float(np.median(_tpot_ms(miniature)[:32]))
    assert plain["step_time"] == {"base_ms": pytest.approx(tpot_ms), "token_ms": 0, "row_ms": 0, "context_ms": 0}
    assert f"Without a model, with every step as long as the fitted requests' median TPOT ({tpot_ms:.1f} ms)" in said
    assert facts["command"] in said
    # What was written is a model that can be given.
    assert _replay(miniature, "--step-time", str(json_file)) == 0
    given = _facts(miniature)
    assert given["fit"] is None
    assert given["step_time"] == facts["step_time"]
    assert [figure["ours"] for figure in given["figures"].values()] == [
        figure["ours"] for figure in facts["figures"].values()
    ]
    assert "judged" not in capsys.readouterr().out


def test_what_the_run_does_not_say_is_asked_for_or_assumed(miniature: MiniatureRun) -> None:
    measured, trace = read_real_run(miniature.meta), read_trace(miniature.trace)
    unknown = EngineSettings(max_tokens_per_step=256, max_running=None, blocks=None, block_size=None, prefix_cache=None)
    measured = replace(measured, settings=unknown)
    asked = {"blocks": 220, "max_running": 24, "prefix_cache": False, "steps_ahead": 1}
    settings, assumptions = run_settings(measured, trace, asked)
    limits = Limits(max_tokens_per_step=256, max_running=24, prefix_cache=False, steps_ahead=1)
    assert settings == RunSettings(blocks=220, block_size=16, limits=limits)
    assert assumptions == ("--block-size 16",)
    settings, assumptions = run_settings(measured, trace, {"block_size": 8})
    ends = trace.prompt_tokens + trace.output_tokens - 1
    blocks = int((-(-ends // 8)).sum())
    limits = Limits(max_tokens_per_step=256, max_running=256, prefix_cache=True, steps_ahead=2)
    assert settings == RunSettings(blocks=blocks, block_size=8, limits=limits)
    assert assumptions == (f"--blocks {blocks}", "--max-running 256", "--prefix-cache", "--steps-ahead 2")


def test_an_assumed_pool_is_said_with_what_was_used_of_it(miniature: MiniatureRun, capsys: Captured) -> None:
    fields = json.loads(miniature.meta.read_text(encoding="utf-8"))
    del fields["kv_cache"]
    miniature.meta.write_text(json.dumps(fields), encoding="utf-8")
    assert _replay(miniature, "--step-time", KNOWN.in_words()) == 0
    used = _facts(miniature)["replay_counts"]["peak_blocks"]
    assert f"Ours used {used:,} blocks at most: that pool was never the limit." in capsys.readouterr().out


BAD_OPTIONS = [
    (("--blocks", "100"), "--blocks: 100 is given, and tiny.meta.json says 220"),
    (("--no-prefix-cache",), "--prefix-cache: False is given, and tiny.meta.json says True"),
    (("--policy", "fcfs"), "--policy: has no meaning beside --compare-run"),
    (("--journal", "x.jsonl"), "--journal: has no meaning beside --compare-run"),
    (("--step-time", "calibrate"), "this machine is not the one that was measured"),
    (("--step-time", "base=0"), "a step would take no time"),
]


@pytest.mark.parametrize(("options", "says"), BAD_OPTIONS)
def test_options_that_contradict_the_run_are_one_line(
    miniature: MiniatureRun, capsys: Captured, options: tuple[str, ...], says: str
) -> None:
    assert _replay(miniature, *options) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
    assert not (miniature.meta.parent / "out").exists()


def test_the_measured_files_are_never_written_over(miniature: MiniatureRun, capsys: Captured) -> None:
    requests = miniature.meta.with_name("tiny.requests.jsonl")
    before = requests.read_bytes()
    assert _replay(miniature, "--json", str(requests)) == 2
    assert "in use by the same command" in capsys.readouterr().err
    assert requests.read_bytes() == before


def test_out_alone_is_refused(miniature: MiniatureRun, capsys: Captured) -> None:
    assert run(["replay", str(miniature.trace), "--out", str(miniature.trace.parent / "x")]) == 2
    assert "--out: only a comparison with a measured run puts files there" in capsys.readouterr().err


def test_files_that_do_not_belong_together_are_one_line(miniature: MiniatureRun, capsys: Captured) -> None:
    lines = miniature.trace.read_text(encoding="utf-8").splitlines()
    miniature.trace.write_text("\n".join(lines[:-1]), encoding="utf-8")
    assert _replay(miniature) == 2
    miniature.meta.with_name("tiny.timeseries.csv").unlink()
    assert _replay(miniature) == 2
    counted, missing = capsys.readouterr().err.splitlines()
    assert "64 measured requests, and 63 in the trace" in counted
    assert "tiny.timeseries.csv: cannot be read" in missing


# ---- the picture ----------------------------------------------------------------------------------------------------


def _words(axes: Axes) -> list[Any]:
    """Give the words of a panel; labels of ticks beyond its ends are not drawn."""
    ticks = []
    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        ticks += [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    found = [axes.xaxis.label, axes.yaxis.label, axes._left_title, *ticks]  # type: ignore[attr-defined]
    return [text for text in found if text.get_text()]


@pytest.mark.parametrize("usage", [TICKS.usage_percent, None])
def test_the_picture_is_named_and_nothing_in_it_overlaps(usage: Float64Array | None) -> None:
    ticks = Ticks(TICKS.at_s, TICKS.running, TICKS.waiting, usage)
    comparison = replace(_compared(), run=replace(MEASURED_RUN, ticks=ticks))
    figure = draw_comparison(comparison, "a $name$ " * 30)
    figure.draw_without_rendering()
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles[:2] == ["Running", "Waiting"]
    assert titles[2] == ("Cache usage (not measured)" if usage is None else "Cache usage")
    assert titles[3:] == ["TPOT, first half", "TPOT, second half"]
    for axes in figure.axes:
        assert "(" in axes.get_xlabel()
        assert axes.get_ylabel() in {"sequences", "requests", "blocks (% of all)", "requests not above it (%)"}
    boxes = [text.get_window_extent() for axes in figure.axes for text in _words(axes)]
    boxes += [figure._suptitle.get_window_extent(), figure.legends[0].get_window_extent()]  # type: ignore[attr-defined]
    page = figure.bbox.padded(1)
    for box in boxes:
        assert page.x0 <= box.x0 < box.x1 <= page.x1
        assert page.y0 <= box.y0 < box.y1 <= page.y1
    for first, second in combinations(boxes, 2):
        across = min(first.x1, second.x1) - max(first.x0, second.x0)
        assert min(across, min(first.y1, second.y1) - max(first.y0, second.y0)) <= 1


def test_the_lines_are_what_was_compared_and_differ_in_greyscale() -> None:
    comparison = _compared(running=7)
    running = draw_comparison(comparison, "x").axes[0]
    measured, ours = ([*map(float, np.asarray(line.get_ydata()))] for line in running.lines)
    assert (measured, ours) == ([4, 3, 2], [7, 7, 7])
    grey = [np.dot(to_rgb(look["color"]), (0.299, 0.587, 0.114)) for look in (MEASURED, OURS)]
    assert abs(grey[0] - grey[1]) > 0.25
    assert MEASURED.get("linestyle") != OURS["linestyle"]

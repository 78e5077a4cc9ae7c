"""What a replay writes to be looked at: a web page with its tables and curves, a time line of its steps."""

import gzip
import json
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from pagedkv.bench import timeline_file
from pagedkv.bench.command_line import run
from pagedkv.bench.meters import Stretch
from pagedkv.bench.replay_plot import draw_over_time
from pagedkv.bench.replay_watch import WatchedScheduler
from pagedkv.bench.timeline_file import DEVICE, HOST, TimelineFile
from pagedkv.bench.timeline_meter import TimelineMeter
from pagedkv.impl.cache import BlockCache
from pagedkv.impl.requests import Limits, Request

from page_parts import Page, assert_asks_for_nothing
from test_sweep_plots import overlap, words

Captured = pytest.CaptureFixture[str]
CLOCK = ["--policy", "fcfs", "--step-time", "base=10,context=1000"]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Three requests of 8, 12 and 9 prompt tokens, the last a second later."""
    path = tmp_path / "trace <1>.jsonl"
    rows = [(0, 8, 2, [1, 2]), (0, 12, 2, [1, 2, 3]), (1000, 9, 1, [4, 5, 6])]
    keys = "timestamp", "input_length", "output_length", "hash_ids"
    lines = [json.dumps(dict(zip(keys, row, strict=True)) | {"block_size": 4}) for row in rows]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def events(path: Path) -> list[dict[str, Any]]:
    """Read a time line and hold it to the format: fields of each phase, named tracks, and slices that don't overlap.

    Times are whole microseconds, and none of the events is one that must be ended by another.
    """
    content = path.read_bytes()
    text = gzip.decompress(content).decode() if path.suffix == ".gz" else content.decode()
    found: list[dict[str, Any]] = json.loads(text)["traceEvents"]
    named_tracks, ends = set[int](), dict[int, int]()
    for event in found:
        phase, args = event["ph"], event["args"]
        of_its_track = {"tid"} if event["name"] != "process_name" and phase != "C" else set()
        assert event.keys() == {"ph", "name", "pid", "args"} | FIELDS[phase] | of_its_track
        assert event["pid"] == 1
        if phase == "M":
            assert event["name"] in {"process_name", "thread_name"}
            assert args.keys() == {"name"}
            assert args["name"]
            named_tracks |= {event["tid"]} if event["name"] == "thread_name" else set()
            continue
        assert all(type(number) is int and number >= 0 for number in (event["ts"], event.get("dur", 0)))
        assert all(type(value) is int for value in args.values())
        assert phase == "C" or event["tid"] in named_tracks & {HOST, DEVICE, DEVICE + 1}
        assert phase != "i" or event["s"] == "t"
    for event in sorted((event for event in found if event["ph"] == "X"), key=lambda event: event["ts"]):
        assert ends.get(event["tid"], 0) <= event["ts"], "a viewer drops what overlaps"
        ends[event["tid"]] = event["ts"] + event["dur"]
    return found


FIELDS: dict[str, set[str]] = {"M": set(), "X": {"ts", "dur"}, "C": {"ts"}, "i": {"ts", "s"}}


def named(found: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [event for event in found if event["name"] == name]


# ---- the time line --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps_ahead", [1, 2])
def test_each_step_is_planned_launched_and_retired(trace: Path, tmp_path: Path, steps_ahead: int) -> None:
    timeline, result = tmp_path / "timeline.json", tmp_path / "replay.json"
    options = ["--policy", "fcfs", "--block-size", "4", "--steps-ahead", str(steps_ahead), "--json", str(result)]
    assert run(["replay", str(trace), *options, "--timeline", str(timeline)]) == 0
    steps = json.loads(result.read_text(encoding="utf-8"))["steps"]
    found = events(timeline)
    plans, launches, retirements = (named(found, name) for name in ("plan", "launch", "retire"))
    for slices in (plans, launches, retirements):
        assert [each["args"]["launch"] for each in slices] == list(range(1, steps + 1))
    for plan, launch, retirement in zip(plans, launches, retirements, strict=True):
        assert plan["ts"] + plan["dur"] == pytest.approx(launch["ts"], abs=0.2)
        assert launch["ts"] + launch["dur"] == pytest.approx(retirement["ts"], abs=0.2)
    assert sum(plan["args"]["admitted"] for plan in plans) == 3
    assert sum(each["args"]["finished"] for each in retirements) == 3
    for track in (HOST, DEVICE, DEVICE + 1):
        spans = sorted(
            (each["ts"], each["ts"] + each["dur"]) for each in found if each.get("tid") == track and "dur" in each
        )
        assert all(first[1] <= second[0] + 0.2 for first, second in pairwise(spans)), "slices of a track do not overlap"
    assert {launch["tid"] for launch in launches} == set(range(DEVICE, DEVICE + steps_ahead))
    tracks = [event["args"]["name"] for event in named(found, "thread_name")]
    device = "device (host's clock: no device here)"
    assert len(tracks) == 1 + steps_ahead
    assert set(tracks) == set(["host", device, f"{device}, second launch in flight"][: 1 + steps_ahead])


def test_whoever_is_held_back_waits_too(tmp_path: Path) -> None:
    """Ten requests of two steps each, one runs, all there from the start: two less in every second step.

    The loop submits one at a time, since one fills a step; those behind it wait outside the scheduler.
    """
    path, timeline = tmp_path / "trace.jsonl", tmp_path / "timeline.json"
    path.write_text('{"timestamp": 0, "input_length": 4, "output_length": 2}\n' * 10, encoding="utf-8")
    options = [
        "--policy",
        "fcfs",
        "--max-running",
        "1",
        "--timeline",
        str(timeline),
        "--html",
        str(tmp_path / "p.html"),
    ]
    assert run(["replay", str(path), *options]) == 0
    waiting = [event["args"]["waiting requests"] for event in named(events(timeline), "requests")]
    assert waiting == [9 - step // 2 for step in range(20)]
    path.write_text(
        "".join(f'{{"timestamp": {at}, "input_length": 4, "output_length": 2}}\n' for at in (0, 0, 0, 10, 90)),
        encoding="utf-8",
    )
    assert run(["replay", str(path), *options, "--step-ms", "10"]) == 0
    waiting = [event["args"]["waiting requests"] for event in named(events(timeline), "requests")]
    assert waiting == [2, 3, 2, 2, 1, 1, 0, 0, 0, 0], "one comes in the second step, and one when all others are gone"


def test_counters_are_those_of_the_scheduler(tmp_path: Path) -> None:
    """Two prompts of 4 and 5 in blocks of 4, one may run: the first takes a block, the other waits."""
    path = tmp_path / "timeline.json"
    with TimelineFile(path, "a command", "a clock") as timeline:
        scheduler = WatchedScheduler(BlockCache(9, 4), Limits(max_running=1), timeline, None)
        scheduler.submit(Request(1, 4, 1))
        scheduler.submit(Request(2, 5, 1))
        plan = scheduler.schedule()
        assert plan.launch is not None
        scheduler.complete(plan.launch.id, [0])
        scheduler.schedule()
    found = events(path)
    assert [each["args"] for each in named(found, "requests")] == [
        {"running sequences": 1, "waiting requests": 1},
        {"running sequences": 1, "waiting requests": 0},
    ]
    assert [each["args"]["held"] for each in named(found, "blocks")] == [1, 2]
    told = json.loads(path.read_text(encoding="utf-8"))["otherData"]
    assert told == {"command": "a command", "clock": "a clock"}
    assert scheduler.clone().schedule().launch is None, "a clone goes on, unwatched"


def test_on_simulated_time_a_launch_lasts_what_the_model_says(trace: Path, tmp_path: Path) -> None:
    """10 ms a step and 1 ms a position: prompts of 8 and 12 (8 of them not hit yet) first, and so on."""
    timeline = tmp_path / "timeline.json.gz"
    assert (
        run(["replay", str(trace), *CLOCK, "--block-size", "4", "--no-prefix-cache", "--timeline", str(timeline)]) == 0
    )
    launches = named(events(timeline), "launch")
    assert [(each["ts"], each["dur"]) for each in launches] == [
        (0.0, 30_000.0),
        (30_000.0, 32_000.0),
        (1_000_000.0, 19_000.0),
    ]
    assert [each["args"]["prompt_tokens"] for each in launches] == [20, 0, 9]
    assert [each["ts"] for each in named(events(timeline), "retire")] == [30_000.0, 62_000.0, 1_019_000.0]


def test_a_replay_that_breaks_off_leaves_no_time_line(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def stopped(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    old = tmp_path / "timeline.json"
    old.write_text("old", encoding="utf-8")
    monkeypatch.setattr(timeline_file.TimelineFile, "counters", stopped)
    assert run(["replay", str(trace), "--policy", "fcfs", "--timeline", str(old)]) == 130
    assert old.read_text(encoding="utf-8") == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["timeline.json", "trace <1>.jsonl"]
    assert capsys.readouterr().out == ""


# ---- the page -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [[], ["--policy", "fcfs"], CLOCK], ids=["reserve", "scheduled", "clocked"])
def test_a_page_has_the_tables_the_curves_and_the_command(
    trace: Path, tmp_path: Path, capsys: Captured, options: list[str]
) -> None:
    page, result = tmp_path / "page.html", tmp_path / "replay.json"
    arguments = ["replay", str(trace), "--block-size", "4", *options, "--html", str(page), "--json", str(result)]
    assert run(arguments) == 0
    text = page.read_text(encoding="utf-8")
    assert_asks_for_nothing(text)
    found, facts = Page(text), json.loads(result.read_text(encoding="utf-8"))
    told = {row[0]: row[1] for row in found.tables[0]}
    for figure in ("finished", "steps", "peak_blocks", "peak_running"):
        assert told[figure] == str(facts[figure])
    assert len([tag for tag, _ in found.found if tag == "img"]) == 1
    assert found.texts["code"][:1] == [facts["command"]]
    out = capsys.readouterr().out
    assert out.rstrip().endswith(facts["command"])
    assert "no prefix ids" not in out + text


def test_without_ids_nothing_is_hit_and_that_is_said(tmp_path: Path, capsys: Captured) -> None:
    path, page = tmp_path / "trace.jsonl", tmp_path / "page.html"
    path.write_text('{"timestamp": 0, "input_length": 4, "output_length": 2}\n' * 3, encoding="utf-8")
    note = "The trace has no prefix ids, so no request hits what another has left."
    assert run(["replay", str(path), "--policy", "fcfs", "--html", str(page)]) == 0
    assert note in capsys.readouterr().out
    assert note in page.read_text(encoding="utf-8")
    for options in ([], ["--policy", "fcfs", "--no-prefix-cache"]):
        assert run(["replay", str(path), *options]) == 0
        assert note not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--timeline", "t.json"], "--timeline t.json: the policy reserve plans no steps"),
        (["--policy", "fcfs", "--timeline", "missing/t.json"], "there is no folder"),
        (["--policy", "fcfs", "--timeline", "trace <1>.jsonl"], "in use by the same command"),
        (["--policy", "fcfs", "--timeline", "x", "--html", "x"], "in use by the same command"),
        (["--html", "missing/p.html"], "there is no folder"),
        (["--html", "x", "--json", "x"], "in use by the same command"),
        (["--html", "x", "--journal", "x"], "in use by the same command"),
        (["--html", "."], "no plain file"),
    ],
)
def test_bad_input_is_one_line(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured, options: list[str], said: str
) -> None:
    monkeypatch.chdir(trace.parent)
    assert run(["replay", trace.name, *options]) == 2
    output = capsys.readouterr()
    assert (output.out, output.err.count("\n")) == ("", 1)
    assert said in output.err
    assert [path.name for path in trace.parent.iterdir()] == [trace.name]


# ---- curves ---------------------------------------------------------------------------------------------------------


def a_curve(steps: int) -> TimelineMeter:
    """Steps of 10 ms: running grows and falls, some wait, blocks are in every state."""
    curve = TimelineMeter(1000, 16)
    for step in range(steps):
        running = min(step, steps - step)
        curve.passed(Stretch(10 * step, 10 * step + 10, running, 3 * running, 4 * running % 900, 20, 50, 7 * running))
    return curve


@pytest.mark.parametrize("steps", [1, 60, 3000])
@pytest.mark.parametrize("clocked", [True, False])
def test_curves_have_titles_axes_and_units_and_nothing_overlaps(steps: int, clocked: bool) -> None:  # noqa: FBT001
    figure = draw_over_time(a_curve(steps), "a trace: " + "a long name " * 20, clocked=clocked)
    figure.draw_without_rendering()
    for axes in figure.axes:
        assert axes.get_title(loc="left")
        assert axes.get_xlabel() == ("simulated time (s)" if clocked else "launches")
        assert axes.get_ylabel() in {"sequences", "requests", "blocks (% of pool)", "tails (% of held slots)"}
    assert_words_apart(figure)


def assert_words_apart(figure: Figure) -> None:
    found = [(text.get_text(), text.get_window_extent()) for axes in figure.axes for text in words(axes)]
    found += [(text.get_text(), text.get_window_extent()) for text in figure.texts]
    page = figure.bbox.padded(1)
    for what, box in found:
        assert page.x0 <= box.x0 < box.x1 <= page.x1, what
    for (what, box), (other, second) in combinations(found, 2):
        assert overlap(box, second) <= 1, f"{what} and {other}"


@pytest.mark.parametrize(("held", "top"), [(40, 5.2), (90, 11.7), (100, 100)])
def test_a_pool_of_which_little_is_used_is_drawn_up_to_that(held: int, top: float) -> None:
    """Of 1,000 blocks, with 3 in 10 of the height for the legend; from a tenth of the pool on it is drawn whole."""
    curve = TimelineMeter(1000, 4)
    for step in range(2):
        curve.passed(Stretch(step, step + 1, 1, 0, held))
    _, pool = draw_over_time(curve, "t", clocked=False).axes
    assert pool.get_ylim()[1] == pytest.approx(top, rel=0.06)


def test_a_panel_in_which_nothing_would_be_is_left_out() -> None:
    curve = TimelineMeter(10, 4)
    curve.passed(Stretch(0, 1, 1, 0, 2))
    drawn = draw_over_time(curve, "t", clocked=False)
    assert [axes.get_ylabel() for axes in drawn.axes] == ["sequences", "blocks (% of pool)"]
    (pool,) = drawn.axes[1:]
    legend = pool.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["held"]

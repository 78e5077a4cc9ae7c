"""The grid without its command: what tells cells and traces apart, and the table of cells of this run and earlier."""

import io
import re
from dataclasses import fields
from pathlib import Path

import pytest
from pagedkv.bench.clocked_trace import ClockSettings
from pagedkv.bench.grid import CellSettings, requests_digest
from pagedkv.bench.grid_report import GridRow, print_tables
from pagedkv.bench.replay_arrivals import TrafficSettings
from pagedkv.bench.replay_queue import ReplaySettings
from pagedkv.bench.scheduler_options import PolicyName
from pagedkv.bench.step_time import StepTime
from pagedkv.bench.traces import read_trace
from pagedkv.impl.requests import Limits
from rich.console import Console

RESERVE = CellSettings(policy=PolicyName.RESERVE, replay=ReplaySettings(block_size=4, blocks=2))


def test_every_setting_has_a_name_of_its_own_in_the_key() -> None:
    """Those of replay, scheduler (the policy is its), traffic and clock: two of one name would be one in the key."""
    parts = (ReplaySettings(), Limits(), TrafficSettings(), ClockSettings(step_time=StepTime(base_ms=1)))
    replay_settings, limits, traffic, clock = parts
    policy = PolicyName.FCFS
    settings = CellSettings(policy=policy, replay=replay_settings, limits=limits, traffic=traffic, clock=clock)
    named = settings.as_json()
    assert sorted(named) == sorted(field.name for part in parts for field in fields(part))
    assert named["policy"] == "fcfs"
    assert RESERVE.as_json()["policy"] == "reserve", "it has no scheduler"


def test_the_digest_sees_all_that_a_replay_looks_at(tmp_path: Path) -> None:
    def digest(text: str) -> str:
        (tmp_path / "trace.jsonl").write_text(text, encoding="utf-8")
        return requests_digest(read_trace(tmp_path / "trace.jsonl"))

    def line(at: int, prompt: int, output: int, ids: str) -> str:
        return f'{{"timestamp": {at}, "input_length": {prompt}, "output_length": {output}, "hash_ids": [{ids}]}}\n'

    first = line(0, 600, 5, "1, 2")
    texts = [first + line(*other) for other in [(5, 600, 5, "1, 2"), (6, 600, 5, "1, 2"), (5, 601, 5, "1, 2")]]
    texts += [first + line(*other) for other in [(5, 600, 6, "1, 2"), (5, 600, 5, "1, 3")]]
    assert len({*map(digest, texts), digest(first)}) == 6
    assert digest(first) == digest(first.replace(": ", ":"))


@pytest.mark.parametrize(
    ("earlier", "shown"),
    [((False, False), ["s", "3.2", "7.5"]), ((True, False), ["s", "-", "7.5"]), ((True, True), ["steps", "6", "6"])],
)
def test_how_long_a_replay_took_is_shown_of_this_run_alone(earlier: tuple[bool, bool], shown: list[str]) -> None:
    """It is the last column of the table, behind the steps, and left out where no cell has it."""
    outcomes = [{"finished": 1, "steps": 6, "seconds": seconds} for seconds in (3.21, 7.54)]
    rows = [GridRow("trace.csv", "", RESERVE, *each) for each in zip(outcomes, earlier, strict=True)]
    console = Console(width=100, file=io.StringIO())
    with console.capture() as capture:
        print_tables(console, rows)
    lines = [re.split("[│┃]", line) for line in capture.get().splitlines()]
    assert [cells[-2].strip() for cells in lines if len(cells) > 1] == shown
    assert [row.as_json()["seconds"] for row in rows] == [3.21, 7.54]

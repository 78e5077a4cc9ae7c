"""Paging beside what was before it: the contiguous engine against slots one by one, the replay, the command."""

import json
import random
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pagedkv.bench.baselines import PARTS, BaselineSettings, Outcome, run_scheme, schemes
from pagedkv.bench.baselines_plot import LOOKS, draw_baselines
from pagedkv.bench.command_line import run
from pagedkv.bench.contiguous_engine import ContiguousEngine
from pagedkv.bench.engines import Holding, Usage
from pagedkv.bench.replay_queue import FinalLength
from pagedkv.bench.traces import Trace, read_trace
from pagedkv.impl.refusals import BadCount, Busy, Duplicate, NoSpace, Unknown, UnknownLaunch

from real_data import AZURE, real_data

Captured = pytest.CaptureFixture[str]


class SlotBySlot:
    """First fit, relocation and compaction as a list of slots, each with its owner: slow, and plain to see."""

    def __init__(self, slots: int) -> None:
        self.slots: list[int | None] = [None] * slots
        self.copied = 0

    def place(self, seq: int, length: int) -> None:
        at = self.fit(length)
        if at is None:
            self.compact(None)
            at = self.fit(length)
            assert at is not None
        self.slots[at : at + length] = [seq] * length

    def grow(self, seq: int) -> None:
        length, end = self.slots.count(seq), self.end(seq)
        if end == len(self.slots) or self.slots[end] is not None:
            at = self.fit(length + 1)
            if at is None:
                self.compact(seq)
            else:
                self.leave(seq)
                self.slots[at : at + length] = [seq] * length
                self.copied += length
        self.slots[self.end(seq)] = seq

    def leave(self, seq: int) -> None:
        self.slots = [None if owner == seq else owner for owner in self.slots]

    def end(self, seq: int) -> int:
        return len(self.slots) - self.slots[::-1].index(seq)

    def fit(self, length: int) -> int | None:
        for at in range(len(self.slots) - length + 1):
            if self.slots[at : at + length] == [None] * length:
                return at
        return None

    def compact(self, around: int | None) -> None:
        order = list(dict.fromkeys(owner for owner in self.slots if owner is not None))
        lengths = {seq: self.slots.count(seq) for seq in order}
        split = len(order) if around is None else order.index(around) + 1
        low = [seq for seq in order[:split] for _ in range(lengths[seq])]
        high = [seq for seq in order[split:] for _ in range(lengths[seq])]
        packed: list[int | None] = [*low, *[None] * (len(self.slots) - len(low) - len(high)), *high]
        self.copied += sum(lengths[seq] for seq in order if self.slots.index(seq) != packed.index(seq))
        self.slots = packed

    def runs(self) -> dict[int, range]:
        owners = dict.fromkeys(owner for owner in self.slots if owner is not None)
        return {seq: range(self.slots.index(seq), self.end(seq)) for seq in owners}


@pytest.mark.parametrize("seed", range(20))
def test_the_contiguous_engine_is_first_fit_slot_by_slot(seed: int) -> None:
    lot = random.Random(seed)
    size = lot.choice([5, 20, 60])
    engine, plain = ContiguousEngine(size, 2), SlotBySlot(size)
    live: list[int] = []
    for step in range(300):
        free = engine.usage().free
        action = lot.random()
        if action < 0.3 and free:
            length = lot.randint(1, free)
            assert engine.add(step, length) == length
            plain.place(step, length)
            live.append(step)
        elif action < 0.8 and live and free:
            batch = lot.sample(live, lot.randint(1, min(free, len(live))))
            assert engine.extend(np.array(batch)) == len(batch)
            for seq in batch:
                plain.grow(seq)
        elif live:
            seq = live.pop(lot.randrange(len(live)))
            engine.release(seq)
            plain.leave(seq)
        assert engine.runs() == plain.runs()
        assert engine.copied_tokens == plain.copied
        assert engine.usage() == Usage(plain.slots.count(None), size - plain.slots.count(None), 0)
        free_runs = "".join("x" if owner is not None else " " for owner in plain.slots).split("x")
        assert engine.largest_free_run == max(map(len, free_runs))
    assert engine.relocations + engine.compactions > 0


def test_relocation_and_compaction_by_hand() -> None:
    engine = ContiguousEngine(10, 2)
    for seq, length in ((1, 3), (2, 2), (3, 2)):
        engine.add(seq, length)
    engine.extend(np.array([3]))
    assert engine.runs()[3] == range(5, 8)
    assert (engine.relocations, engine.copied_tokens) == (0, 0), "in place"
    engine.release(2)
    engine.extend(np.array([1]))
    assert engine.runs() == {1: range(4), 3: range(5, 8)}, "where 2 was is room"
    engine.extend(np.array([1]))
    engine.extend(np.array([1]))
    assert engine.runs() == {1: range(6), 3: range(7, 10)}, "no run of six: 3 was moved up"
    assert (engine.relocations, engine.compactions, engine.copied_tokens) == (0, 1, 3)


def test_the_contiguous_engine_refuses_by_name() -> None:
    engine = ContiguousEngine(4, 1)
    engine.add(1, 3)
    with pytest.raises(Duplicate):
        engine.add(1, 1)
    with pytest.raises(NoSpace):
        engine.add(2, 2)
    engine.extend(np.array([1]))
    with pytest.raises(NoSpace):
        engine.extend(np.array([1]))
    with pytest.raises(Unknown):
        engine.extend(np.array([7]))
    with pytest.raises(Unknown):
        engine.release(7)
    with pytest.raises(BadCount):
        engine.launch(np.array([1]), np.array([5]))
    first = engine.launch(np.array([1]), np.array([4]))
    assert engine.holding(1) == Holding(4, 4)
    with pytest.raises(Busy):
        engine.launch(np.array([], np.int64), np.array([], np.int64))
    with pytest.raises(UnknownLaunch):
        engine.retire(first + 1)
    engine.retire(first)
    engine.retire(first)
    assert engine.launch(np.array([], np.int64), np.array([], np.int64)) == first + 1


# ---- the replay -----------------------------------------------------------------------------------------------------

TRACE = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
0,ChatGPT,4,3,7,API log
0,ChatGPT,3,1,4,API log
0,GPT-4,9,2,11,API log
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Three requests, which hold 6, 3 and 10 positions in the end, in 3, 1 and 2 launches."""
    path = tmp_path / "trace [1].csv"
    path.write_text(TRACE, encoding="utf-8")
    return path


def outcomes_of(trace: Trace, slots: int, block_size: int, max_context: int) -> dict[str, Outcome]:
    """Run all schemes, unclocked."""
    settings = BaselineSettings(
        slots=slots,
        block_size=block_size,
        max_context=max_context,
        step_ms=None,
        final_length=FinalLength.PROMPT_OUTPUT_LESS_ONE,
    )
    return {scheme: run_scheme(trace, settings, scheme) for scheme in schemes(settings)}


def test_memory_by_hand(trace: Path) -> None:
    """In 23 slots: paging has five blocks of 4, so 1 and 2 run; 3 needs three blocks, and waits for those of 2."""
    found = outcomes_of(read_trace(trace), 23, 4, 10)
    paging = found["paging"].samples
    assert paging.used == [4 + 3, 5, 6 + 9, 10]
    assert paging.internal == [1, 3, 2 + 3, 2]
    assert paging.in_flight == [0, 4, 0, 8], "what has left is free one launch later"
    assert paging.external == [3] * 4
    assert paging.running == [2, 1, 2, 1]
    reserved = found["reservation"].samples
    assert reserved.used == [4 + 3, 5, 6 + 9, 10], "two reservations of ten"
    assert reserved.internal == [6 + 7, 5, 4 + 1, 0]
    growth = found["exact growth"].samples
    assert growth.used == [4 + 3 + 9, 5 + 10, 6]
    assert growth.internal == growth.in_flight == [0, 0, 0]


@pytest.mark.parametrize(
    ("slots", "block_size", "max_context"), [(23, 4, 10), (100, 16, 11), (12, 1, 12), (1000, 7, 500)]
)
def test_the_parts_are_all_there_is(trace: Path, slots: int, block_size: int, max_context: int) -> None:
    for scheme, outcome in outcomes_of(read_trace(trace), slots, block_size, max_context).items():
        parts = [getattr(outcome.samples, part) for part in PARTS]
        assert all(min(part) >= 0 for part in parts), scheme
        assert {sum(at_once) for at_once in zip(*parts, strict=True)} == {slots}, scheme
        assert outcome.report.counts.finished == 3


def test_in_ample_memory_all_schemes_hold_the_same_tokens_at_the_same_time() -> None:
    trace = read_trace(real_data(AZURE), 200)
    prompt, steps = trace.prompt_tokens, np.maximum(trace.output_tokens, 1)
    expected = [int((prompt + step)[steps > step].sum()) for step in range(int(steps.max()))]
    longest = int((prompt + steps).max())
    for scheme, outcome in outcomes_of(trace, 200 * longest, 16, longest).items():
        assert outcome.samples.used == expected, scheme
        assert outcome.report.counts.finished == 200


def test_paging_runs_more_at_one_time_and_growth_copies() -> None:
    found = outcomes_of(read_trace(real_data(AZURE), 300), 20_000, 16, 8192)
    paging, reservation, growth = found.values()
    assert reservation.samples.mean("running") < 3 < paging.samples.mean("running")
    assert paging.samples.mean("internal") < 0.01 * 20_000 < reservation.samples.mean("internal")
    assert growth.copied_tokens > growth.report.counts.logical_tokens
    assert paging.copied_tokens == reservation.copied_tokens == 0
    assert growth.samples.mean("external") > 0
    assert sum(paging.samples.external) == 0


# ---- the command ----------------------------------------------------------------------------------------------------


def test_json_table_and_files(tmp_path: Path, trace: Path, capsys: Captured) -> None:
    out, result = tmp_path / "out", tmp_path / "x.json"
    command = ["baselines", str(trace), "--slots", "23", "--block-size", "4", "--out", str(out)]
    assert run([*command, "--json", str(result)]) == 0
    facts: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    assert facts == json.loads((out / "baselines.json").read_text(encoding="utf-8"))
    assert {path.name for path in out.iterdir()} == {"baselines.json", "baselines.png", "baselines.svg"}
    assert facts["max_context"] == 10, "the longest request"
    assert facts["schemes"]["paging"]["internal_percent"] == pytest.approx(100 * (1 + 3 + 5 + 2) / 4 / 23)
    assert facts["schemes"]["exact growth"]["steps"] == 3
    output = capsys.readouterr()
    assert output.err == ""
    assert "trace [1].csv: 3 requests in 23 slots" in output.out
    assert "Paging runs" in output.out
    assert "All three admit a request once its final length fits beside those that run" in output.out


def test_what_is_longer_than_the_reservation_is_refused_there(tmp_path: Path, trace: Path) -> None:
    out = tmp_path / "out"
    assert run(["baselines", str(trace), "--slots", "40", "--max-context", "6", "--out", str(out)]) == 0
    found = json.loads((out / "baselines.json").read_text(encoding="utf-8"))["schemes"]
    assert [found[scheme]["refused"] for scheme in ("paging", "reservation", "exact growth")] == [0, 1, 0]


def test_reservations_that_hold_no_request(tmp_path: Path, trace: Path, capsys: Captured) -> None:
    assert run(["baselines", str(trace), "--slots", "40", "--max-context", "2", "--out", str(tmp_path / "out")]) == 0
    assert "where reservation runs none" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--slots", "0"], "--slots"),
        (["--slots", "9"], "--block-size: 16 tokens are more than all memory, 9"),
        (["--slots", "50", "--max-context", "51"], "--max-context: 51 tokens are more"),
        (["--block-size", "0"], "--block-size"),
        (["--step-ms", "0"], "--step-ms"),
        (["--json", "missing/x.json"], "there is no folder"),
        (["--out", "trace [1].csv"], "is no folder"),
    ],
)
def test_bad_input_is_one_line(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, trace: Path, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(trace.parent)
    assert run(["baselines", trace.name, *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert said in output.err
    assert output.err.count("\n") == 1
    assert [path.name for path in trace.parent.iterdir()] == [trace.name]


@pytest.mark.parametrize("requests", [1, 3])
def test_the_picture_has_room_for_all_its_words(trace: Path, requests: int) -> None:
    outcomes = list(outcomes_of(read_trace(trace, requests), 23, 4, 10).values())
    figure = draw_baselines(outcomes, 23, "a $ title " * 20)
    figure.draw_without_rendering()
    legend = figure.legends[0].get_window_extent()
    boxes = [(axes.get_title(loc="left"), axes.get_tightbbox()) for axes in figure.axes] + [("legend", legend)]
    page = figure.bbox.padded(1)
    for what, box in boxes:
        assert box is not None
        assert page.x0 <= box.x0 < box.x1 <= page.x1, what
        assert page.y0 <= box.y0 < box.y1 <= page.y1, what
    for (what, box), (other, second) in combinations(boxes, 2):
        assert box is not None
        assert second is not None
        assert min(box.y1, second.y1) - max(box.y0, second.y0) <= 1, f"{what} and {other}"
    copied, held = outcomes[-1].copied_tokens, outcomes[-1].report.counts.logical_tokens
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert [f"{copied / held:.2f} tokens copied for each held" in title for title in titles] == [
        False,
        False,
        copied > 0,
    ]
    assert all(axes.get_ylabel() == "slots (% of all)" and axes.get_xlabel() for axes in figure.axes)


def test_areas_differ_without_colour() -> None:
    assert len({(face, hatch) for face, hatch, _ in LOOKS.values()}) == len(PARTS) == len(LOOKS)

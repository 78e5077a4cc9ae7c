"""`pagedkv grid`: cells and their keys, what is taken from earlier runs, what fails, who runs them, Ctrl-C.

The figures of a cell are those of `pagedkv replay`, which has its own tests; here they are arithmetic by hand on a
trace of four requests. Most tests run cells in this process; those on processes say so.
"""

import csv
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pagedkv.bench import grid, grid_command
from pagedkv.bench.command_line import run
from pagedkv.bench.failures import BadInput
from pagedkv.bench.grid import Cell, CellJob, CellSettings, Failed, cells_of, run_cell
from pagedkv.bench.grid_workers import CellOutcome, run_by, run_here
from pagedkv.bench.lists import numbers_of, words_of
from pagedkv.bench.replay_queue import ReplaySettings
from pagedkv.bench.scheduler_options import PolicyName
from pagedkv.bench.traces import Trace, read_trace
from pagedkv.spec.crew import Job, Lost
from pagedkv.spec.refusals import Broken

from grid_jobs import EndsItsProcess

Captured = pytest.CaptureFixture[str]

TRACE = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
0,ChatGPT,4,2,6,API log
0,ChatGPT,3,1,4,API log
1,GPT-4,0,0,0,API log
1,GPT-4,9,9,18,API log
"""
ONE = ("--block-sizes", "4", "--blocks", "20")
RESERVE = CellSettings(policy=PolicyName.RESERVE, replay=ReplaySettings(block_size=4, blocks=2))


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four requests: two that fit into two blocks of four, one without tokens, one of 17 positions."""
    monkeypatch.chdir(tmp_path)
    path = Path("trace.csv")
    path.write_text(TRACE, encoding="utf-8")
    return path


@pytest.fixture
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run cells where they can be patched, one after the other."""

    def run_cells(jobs: Sequence[CellJob], _workers: int) -> Iterator[tuple[Cell, CellOutcome]]:
        yield from ((job.cell, job()) for job in jobs)

    monkeypatch.setattr(grid_command, "run_here", run_cells)


def table(exit_code: int, *arguments: str | Path) -> list[dict[str, Any]]:
    """Run a grid and return the cells that it wrote."""
    assert run(["grid", *map(str, arguments), "--out", "out", "--json", "facts.json"]) == exit_code
    facts: dict[str, Any] = json.loads(Path("facts.json").read_text(encoding="utf-8"))
    assert facts == json.loads(Path("out/grid.json").read_text(encoding="utf-8"))
    cells: list[dict[str, Any]] = facts["cells"]
    return cells


def places(cells: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return where each cell stands, and whether it is from an earlier run."""
    return [(cell["policy"], cell["block_size"], cell["blocks"], cell["earlier"]) for cell in cells]


# ---- the table ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_in_this_process")
def test_every_combination_is_a_row_with_the_figures_of_a_replay(capsys: Captured, trace: Path) -> None:
    """By hand, with one token less than prompt and output held: 5, 3 and 17 positions."""
    cells = table(0, trace, "--block-sizes", "4,1", "--policies", "reserve,fcfs", "--blocks", "4,20")
    assert places(cells) == [
        (policy, size, blocks, False) for policy in ("reserve", "fcfs") for size in (4, 1) for blocks in (4, 20)
    ]
    reserved = [(cell["finished"], cell["logical_tokens"], cell["tail_waste"]) for cell in cells[:4]]
    assert reserved == [(2, 8, 3 + 1), (3, 25, 3 + 1 + 3), (1, 3, 0), (3, 25, 0)]
    assert [cell["finished"] for cell in cells[4:]] == [2, 3, 1, 3]
    assert all(cell["preemptions"] >= 0 for cell in cells[4:])
    out = capsys.readouterr().out
    assert out.splitlines()[-1].startswith("pagedkv grid trace.csv")
    assert "8 cells, 0 of them from earlier runs" in out


@pytest.mark.usefixtures("_in_this_process")
def test_csv_holds_what_json_holds(trace: Path) -> None:
    cells = table(0, trace, "--block-sizes", "4", "--policies", "reserve,priority", "--blocks", "20")
    with Path("out/grid.csv").open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 2
    for line, cell in zip(lines, cells, strict=True):
        kept = {key: "" if value is None else str(value) for key, value in cell.items() if not isinstance(value, list)}
        assert {key: line[key] for key in kept} == kept
        assert {line[key] for key in line.keys() - kept.keys()} <= {""}


@pytest.mark.usefixtures("_in_this_process")
def test_without_a_pool_it_holds_all_at_once(trace: Path) -> None:
    (cell,) = table(0, trace, "--block-sizes", "4")
    assert (cell["finished"], cell["blocks"], cell["peak_running"]) == (3, 2 + 1 + 5, 3)


@pytest.mark.usefixtures("_in_this_process")
def test_pools_in_tokens_are_the_same_memory_for_each_block_size(capsys: Captured, trace: Path) -> None:
    """21 tokens are 5 blocks of 4 or 21 of 1; the table, JSON and CSV say how many tokens a pool of blocks holds."""
    cells = table(0, trace, "--block-sizes", "4,1", "--slots", "21,40")
    pools = [(cell["block_size"], cell["blocks"], cell["slots"]) for cell in cells]
    assert pools == [(4, 5, 20), (4, 10, 40), (1, 21, 21), (1, 40, 40)]
    with Path("out/grid.csv").open(encoding="utf-8", newline="") as file:
        assert [line["slots"] for line in csv.DictReader(file)] == ["20", "40", "21", "40"]
    assert re.search(r"reserve.?4.?5.?20", re.sub(" ", "", capsys.readouterr().out))
    assert [cell["slots"] for cell in table(0, trace, "--block-sizes", "4,1")] == [8 * 4, 25]
    assert [cell["earlier"] for cell in table(0, trace, "--block-sizes", "4", "--blocks", "5")] == [True]


def test_the_help_keeps_its_sentences(capsys: Captured) -> None:
    """A number at the beginning of a line of the docstring made a list of it."""
    assert run(["grid", "--help"]) == 0
    assert "the exit code is then not 0." in " ".join(capsys.readouterr().out.split())


@pytest.mark.usefixtures("_in_this_process")
def test_a_cell_that_fails_is_a_row_and_the_others_go_on(capsys: Captured, trace: Path) -> None:
    """One block of one token holds no request; more samples than may run are refused by the scheduler alone."""
    cells = table(1, trace, "--block-sizes", "1", "--policies", "fcfs", "--blocks", "1,40")
    assert [cell["outcome"] for cell in cells] == ["failed", "finished"]
    assert "none of 4 requests could ever run in 1 block: request 0 TooLong" in cells[0]["why"]
    assert "failed: trace.csv, fcfs, 1 block of 1: none of 4 requests" in capsys.readouterr().out
    cells = table(
        1,
        trace,
        "--block-sizes",
        "1",
        "--policies",
        "reserve,fcfs",
        "--blocks",
        "40",
        "--samples",
        "9",
        "--max-running",
        "3",
    )
    assert [cell["outcome"] for cell in cells] == ["finished", "failed"]
    assert cells[1]["why"].startswith("--samples: 9 samples a request, and 3 sequences may run")


@pytest.mark.parametrize(
    ("error", "why", "is_ours"),
    [
        (BadInput("here", "wrong", "mend it"), "here: wrong; mend it", False),
        (Broken("R-OWN-4", "3 of 4 are free"), "R-OWN-4: 3 of 4 are free", False),
        (MemoryError("no 3 GiB"), "MemoryError: no 3 GiB", False),
        (ZeroDivisionError("ours"), "ZeroDivisionError: ours", True),
    ],
)
def test_whatever_a_cell_raises_is_its_own(
    monkeypatch: pytest.MonkeyPatch, trace: Path, error: Exception, why: str, *, is_ours: bool
) -> None:
    def failing(*_arguments: object) -> None:
        raise error

    monkeypatch.setattr(grid, "replay", failing)
    outcome = run_cell(read_trace(trace), RESERVE)
    assert isinstance(outcome, Failed)
    assert outcome.why == why
    assert (outcome.traceback is not None) == is_ours


@pytest.mark.usefixtures("trace", "_in_this_process")
def test_with_a_step_time_replays_are_clocked(capsys: Captured) -> None:
    """A prompt of 4 tokens and 3 of output, alone, at 10 ms a step: the first after 10 ms, the last after 30."""
    Path("one.jsonl").write_text('{"timestamp": 0, "input_length": 4, "output_length": 3}\n', encoding="utf-8")
    clocked = ("--policies", "fcfs,priority", "--step-time", "base=10", *ONE)
    cells = table(0, "one.jsonl", *clocked)
    for cell in cells:
        latencies = (cell["ttft_ms"]["p50"], cell["tpot_ms"]["p50"], cell["makespan_s"], cell["goodput_per_s"])
        assert latencies == pytest.approx((10, 10, 0.03, 1 / 0.03), rel=0.02)
        assert "timeline" not in cell
    assert "TTFT" in (out := capsys.readouterr().out)
    assert "waste %: of held slots, the mean over simulated time" in out
    with Path("out/grid.csv").open(encoding="utf-8", newline="") as file:
        assert [float(line["step_time_base_ms"]) for line in csv.DictReader(file)] == [10, 10]
    assert [cell["earlier"] for cell in table(0, "one.jsonl", *clocked)] == [True, True]
    assert [cell["earlier"] for cell in table(0, "one.jsonl", *clocked, "--speedup", "2")] == [False, False]


# ---- earlier runs ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_in_this_process")
def test_a_larger_grid_runs_only_what_is_new(trace: Path) -> None:
    table(0, trace, "--block-sizes", "4", "--blocks", "20,30")
    cells = table(0, trace, "--block-sizes", "4,8", "--policies", "fcfs,reserve", "--blocks", "30,40")
    assert [place for place in places(cells) if place[3]] == [("reserve", 4, 30, True)]
    again = table(0, trace, "--block-sizes", "4,8", "--policies", "fcfs,reserve", "--blocks", "30,40")
    assert again == [cell | {"earlier": True} for cell in cells], "figures are those of the run that made them"


@pytest.mark.usefixtures("_in_this_process")
def test_failures_are_tried_again(monkeypatch: pytest.MonkeyPatch, trace: Path) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(grid, "replay", lambda *_: (_ for _ in ()).throw(MemoryError("none left")))
        (cell,) = table(1, trace, *ONE)
        assert (cell["outcome"], cell["why"]) == ("failed", "MemoryError: none left")
    (cell,) = table(0, trace, *ONE)
    assert (cell["outcome"], cell["earlier"]) == ("finished", False)


@pytest.mark.usefixtures("_in_this_process")
@pytest.mark.parametrize(
    "change",
    ["a request", "a setting", "the code", "half a file", "another cell's file", "nonsense", "no figures", "a figure"],
)
def test_what_is_not_the_same_is_run_again(monkeypatch: pytest.MonkeyPatch, trace: Path, change: str) -> None:
    table(0, trace, *ONE)
    (kept,) = Path("out/cells").iterdir()
    more: tuple[str, ...] = ()
    match change:
        case "a request":
            trace.write_text(TRACE.replace("0,ChatGPT,3,1,4", "0,ChatGPT,3,2,5"), encoding="utf-8")
        case "a setting":
            more = ("--step-ms", "30")
        case "the code":
            monkeypatch.setattr(grid, "code_version", lambda: "0.1.0+other")
        case "half a file":
            kept.write_bytes(kept.read_bytes()[:-20])
        case "another cell's file":
            kept.write_text(json.dumps({"identity": {"blocks": 7}, "figures": {"finished": 99}}), encoding="utf-8")
        case "no figures" | "a figure":
            cell = json.loads(kept.read_text(encoding="utf-8"))
            cell["figures"] = {} if change == "no figures" else cell["figures"] | {"finished": "none"}
            kept.write_text(json.dumps(cell), encoding="utf-8")
        case _:
            kept.write_text("[" * 100_000, encoding="utf-8")
    assert table(0, trace, *ONE, *more)[0]["earlier"] is False
    assert table(0, trace, *ONE, *more)[0]["earlier"] is True


@pytest.mark.usefixtures("_in_this_process")
def test_the_name_of_a_trace_does_not_count(trace: Path) -> None:
    table(0, trace, *ONE)
    Path("copy.csv.gz").write_bytes(gzip.compress(trace.read_bytes()))
    (cell,) = table(0, "copy.csv.gz", *ONE)
    assert (cell["trace"], cell["earlier"]) == ("copy.csv.gz", True)


# ---- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Missing argument 'TRACE...'"),
        (["missing.csv"], "missing.csv: cannot be read"),
        (["trace.csv", "trace.csv"], "trace.csv: has the requests that 'trace.csv' has; name each trace once"),
        (["trace.csv", "--block-sizes", ""], "--block-sizes '': not all of it are whole numbers"),
        (["trace.csv", "--block-sizes", "8,,16"], "not all of it are whole numbers"),
        (["trace.csv", "--block-sizes", "8,0"], "--block-sizes '8,0': numbers are from 1 to"),
        (["trace.csv", "--block-sizes", "8,16,8"], "--block-sizes '8,16,8': 8 stands twice"),
        (["trace.csv", "--blocks", "99999999999"], "--blocks '99999999999': numbers are from 1 to"),
        (
            ["trace.csv", "--blocks", "8", "--slots", "32"],
            "--slots: pools are given by --blocks too; give one of the two",
        ),
        (["trace.csv", "--slots", "64,15"], "--slots '64,15': a pool of 15 tokens has no block of 32"),
        (["trace.csv", "--slots", "9999999999"], "more than 67,108,864 blocks of 8; give smaller pools"),
        (["trace.csv", "--blocks", "-3"], "--blocks '-3': not all of it are whole numbers"),
        (
            ["trace.csv", "--policies", "fcfs,lifo"],
            "--policies 'fcfs,lifo': 'lifo' is none of them; give a list out of",
        ),
        (["trace.csv", "--policies", ""], "a word is missing"),
        (["trace.csv", "--policies", "fcfs,fcfs"], "fcfs stands twice"),
        (["trace.csv", "--samples", "2"], "--samples: the policy reserve schedules nothing"),
        (["trace.csv", "--step-time", "base=5", "--policies", "fcfs,reserve"], "the policy reserve has no clock"),
        (["trace.csv", "--speedup", "2", "--policies", "fcfs"], "--speedup: only a replay on simulated time has that"),
        (["trace.csv", "--dask", "tcp://127.0.0.1:1", "--workers", "3"], "--workers: has no meaning beside --dask"),
        (["trace.csv", "--workers", "0"], "--workers"),
        (["trace.csv", "--out", "trace.csv"], "--out trace.csv"),
        (["trace.csv", "--json", "trace.csv"], "in use by the same command"),
    ],
)
def test_bad_input_is_one_line(capsys: Captured, trace: Path, arguments: list[str], said: str) -> None:
    assert run(["grid", *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert said in output.err
    assert output.err.count("\n") == 1
    assert list(Path().iterdir()) == [trace]


def test_lists_keep_their_order_and_have_an_end() -> None:
    assert numbers_of("--n", "32, 8,16", 100) == (32, 8, 16)
    assert words_of("--w", "b,a", ["a", "b", "c"]) == ("b", "a")
    with pytest.raises(BadInput, match="more than 100 values"):
        numbers_of("--n", ",".join(map(str, range(1, 102))), 1000)


def test_a_grid_beyond_reason_is_refused(capsys: Captured, trace: Path) -> None:
    many = ",".join(map(str, range(1, 101)))
    assert run(["grid", str(trace), "--block-sizes", many, "--blocks", many, "--policies", "reserve,fcfs"]) == 2
    assert "20,000 cells, more than 10,000" in capsys.readouterr().err


# ---- processes ------------------------------------------------------------------------------------------------------


def jobs_on(trace: Trace, pools: Sequence[int]) -> list[CellJob]:
    """Return a cell for each pool."""
    settings = [
        CellSettings(policy=PolicyName.RESERVE, replay=ReplaySettings(block_size=4, blocks=blocks)) for blocks in pools
    ]
    return [CellJob(cell, trace) for cell in cells_of(1, settings)]


def told(outcomes: Iterator[tuple[Cell, CellOutcome]]) -> dict[int, Any]:
    """Return why a cell failed, or how many of its requests finished."""
    return {
        cell.number: outcome.why if isinstance(outcome, Failed) else outcome["finished"] for cell, outcome in outcomes
    }


def test_a_cell_that_ends_its_process_fails_alone(trace: Path) -> None:
    """The second of three, beside another: what was under way with it is run once more, and comes to its figures."""
    jobs = jobs_on(read_trace(trace), [2, 3, 20])
    jobs[1] = EndsItsProcess(jobs[1].cell, jobs[1].trace)
    outcomes = told(run_here(jobs, workers=2))
    assert outcomes.pop(1).startswith("its process ended without a word")
    assert outcomes == {0: 2, 2: 3}


def test_ctrl_c_leaves_the_finished_cells(trace: Path) -> None:
    """One request of two thousand million tokens would run for hours; the other trace is done before."""
    Path("endless.jsonl").write_text('{"timestamp": 0, "input_length": 1, "output_length": 2000000000}\n')
    options = ["--block-sizes", "1024", "--out", "out"]
    process = subprocess.Popen(
        [sys.executable, "-m", "pagedkv.bench", "grid", str(trace), "endless.jsonl", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline_s = time.monotonic() + 60
    while not list(Path().glob("out/cells/*.json")):
        assert process.poll() is None
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=30)  # returns when the last process that could write there has ended
    assert (process.returncode, out, err) == (130, "", "pagedkv: interrupted\n")
    assert len(list(Path("out").rglob("*.*"))) == 1
    (cell,) = table(0, trace, *options[:2])
    assert cell["earlier"] is True


class Leaving:
    """A crew that does one job, loses the next, and then has nobody left."""

    def __init__(self) -> None:
        self.given: list[Job] = []
        self.done = 0
        self.closed = False

    def room(self) -> int:
        return 1 - len(self.given) if self.done < 2 else 0

    def give(self, job: Job) -> None:
        self.given.append(job)

    def take(self) -> tuple[Job, Any]:
        self.done += 1
        job = self.given.pop()
        return job, job() if self.done == 1 else Lost("the machine left")

    def close(self) -> None:
        self.closed = True


def test_cells_that_are_lost_are_rows(trace: Path) -> None:
    crew = Leaving()
    outcomes = told(run_by(crew, jobs_on(read_trace(trace), [2, 3, 20])))
    assert outcomes == {0: 2, 1: "lost: the machine left", 2: "lost: nobody was left to run it"}
    assert crew.closed

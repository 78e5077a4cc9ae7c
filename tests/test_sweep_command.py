"""`pagedkv sweep` as a user meets it: files, the same figures twice, the pick's exit code, plots, bad input."""

import csv
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from pagedkv.bench.command_line import run

from test_sweep_pick import ROWS, kernel_row, report_of

Captured = pytest.CaptureFixture[str]

QUICK = ["--steps", "2", "--block-sizes", "4,8,16", "--memory", "1GiB", "--traffic-memory", "1GiB"]
SMALL = ["--sequences", "12", "--weights", "1,0,0,0", *QUICK]


def swept(folder: Path, *arguments: str, exit_code: int = 0) -> dict[str, Any]:
    """Sweep into a folder and return what its JSON says."""
    given = QUICK if "--lengths" in arguments else SMALL
    assert run(["sweep", *given, "--out", str(folder), *arguments]) == exit_code
    facts: dict[str, Any] = json.loads((folder / "sweep.json").read_text(encoding="utf-8"))
    return facts


def without_times(facts: object) -> object:
    """Leave out what two runs need not agree on."""
    if isinstance(facts, dict):
        return {key: without_times(value) for key, value in facts.items() if key not in {"times", "command"}}
    return [without_times(each) for each in facts] if isinstance(facts, list) else facts


def test_two_runs_with_one_seed_agree_on_all_but_times(tmp_path: Path) -> None:
    first, again = (swept(tmp_path / name, "--seed", "7") for name in ("a", "b"))
    assert without_times(first) == without_times(again)
    assert (tmp_path / "a" / "lengths.csv").read_bytes() == (tmp_path / "b" / "lengths.csv").read_bytes()
    assert first["times"].keys() == {"measured", "copy_bytes_per_s", "pick"}
    assert first["block_sizes"][0]["times"]["end_to_end"]["tpot_ms"]["p50"] > 0


def test_the_files_say_the_same(tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "new" / "folder"
    facts = swept(out, "--json", str(tmp_path / "x.json"), "--reserve", "0")
    assert json.loads((tmp_path / "x.json").read_text(encoding="utf-8")) == facts
    names = {path.name for path in out.iterdir()}
    pictures = {f"{name}.{kind}" for name in ("fragmentation", "latency", "goodput") for kind in ("png", "svg")}
    assert names == {"sweep.html", "sweep.json", "sweep.csv", "lengths.csv", *pictures}
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
    assert [int(row["traffic_hit_tokens"]) for row in told] == [row["traffic"]["hit_tokens"] for row in rows]
    output = capsys.readouterr()
    assert output.err == ""
    assert "1 to 64: weight 1, 12 sequences" in output.out
    assert "(*) timed on this machine with the model scaled down to it" in output.out
    assert "From B = 8 to 4: tail waste x" in output.out
    assert "the pick is not one for a GPU" in output.out
    page = (out / "sweep.html").read_text(encoding="utf-8")
    assert page.index("not one for a GPU") < page.index("pick: "), "before the pick, in the page too"
    assert shlex.split(output.out.splitlines()[-1])[:2] == ["pagedkv", "sweep"]
    assert "12 lengths drawn from buckets, seed 0" in (out / "latency.svg").read_text(encoding="utf-8")


def test_limits_that_nothing_meets_are_told_and_exit_1(tmp_path: Path, capsys: Captured) -> None:
    facts = swept(tmp_path, "--memory", "1MiB", "--tpot-ms", "1e6", exit_code=1)
    assert facts["times"]["pick"]["block_size"] is None
    assert all(row["blocks"] in {0, 1} and row["free_blocks"] < 0 for row in facts["block_sizes"])
    with (tmp_path / "lengths.csv").open(encoding="utf-8") as file:
        shortest = min(int(row["final_tokens"]) for row in csv.DictReader(file))
    for row in facts["block_sizes"]:
        assert row["sequences_that_fit"] == (row["blocks"] == 1 and shortest + 3 <= row["block_size"])
    output = capsys.readouterr()
    assert "pick: none satisfies both" in output.out
    assert "12 sequences need " in output.out
    assert "No --memory was given" not in output.out
    assert "what would help: more memory: for " in output.out
    assert output.err == ""


def test_what_is_not_replayed_is_not_told(tmp_path: Path, capsys: Captured) -> None:
    small = ["--sequences", "12", "--weights", "0,1,0,0", "--steps", "2", "--block-sizes", "4,8", "--reserve", "0"]
    assert run(["sweep", *small, "--no-traffic", "--out", str(tmp_path)]) == 0
    facts = json.loads((tmp_path / "sweep.json").read_text(encoding="utf-8"))
    assert facts["traffic"] is None
    assert [row["traffic"] for row in facts["block_sizes"]] == [None, None]
    assert [row["times"]["end_to_end"] for row in facts["block_sizes"]] == [None, None]
    assert not (tmp_path / "goodput.png").exists()
    told = capsys.readouterr().out
    assert "replayed:" not in told
    assert "clocked" not in told
    assert "the pool is made to fit, a ninth more than the tokens take, so the reserve says little" in told


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
    assert "(*)" not in output
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
        (["--prefix-trace", "missing.jsonl"], "cannot be read"),
        (["--traffic-memory", ""], "no amount of memory"),
        (["--weights", ""], "1 weight for 4 buckets"),
        (["--traffic-memory", "much"], "no amount of memory"),
        (["--ttft-ms", "nan"], "--ttft-ms"),
        (["--ttft-ms", "-1"], "--ttft-ms"),
        (["--speedup", "nan"], "--speedup"),
        (["--speedup", "0"], "--speedup"),
        (["--requests", "5"], "--requests: no trace to apply it to with --lengths buckets"),
        (["--final-length", "prompt+output"], "--final-length: no trace to apply it to with --lengths buckets"),
        (["--no-traffic"], "--traffic-memory: nothing is replayed with --no-traffic"),
        (["--lengths", "x.csv"], "--sequences: nothing is drawn beside --lengths x.csv"),
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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--lengths", "missing.csv"], "cannot be read"),
        (["--lengths", "missing.csv", "--sequences", "2000"], "--sequences: nothing is drawn beside"),
        (["--lengths", "missing.csv", "--weights", "1,0,0,0"], "--weights: nothing is drawn beside"),
        (["--prefix-trace", "trace.csv"], "no request of this burstgpt trace has prefix ids"),
        (["--prefix-trace", "trace.csv", "--no-traffic"], "--prefix-trace: nothing is replayed with --no-traffic"),
        (["--speedup", "2", "--no-traffic"], "nothing is replayed with --no-traffic"),
        (["--prefix-trace", "trace.csv", "--final-length", "prompt+output"], "--final-length: no trace"),
    ],
)
def test_a_trace_that_does_not_fit_is_one_line(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("trace.csv").write_text(TRACE, encoding="utf-8")
    assert run(["sweep", *QUICK, *arguments]) == 2
    output = capsys.readouterr()
    assert (output.out, output.err.count("\n")) == ("", 1)
    assert said in output.err
    assert [path.name for path in tmp_path.iterdir()] == ["trace.csv"]


def test_a_replay_pool_without_a_block_is_one_line(capsys: Captured, tmp_path: Path) -> None:
    """Found out before minutes are spent on latencies."""
    assert run(["sweep", *SMALL, "--out", str(tmp_path / "out"), "--traffic-memory", "1KiB"]) == 2
    output = capsys.readouterr()
    assert (output.out, output.err.count("\n")) == ("", 1)
    assert "--traffic-memory: 1,024 bytes do not hold one block" in output.err
    assert not (tmp_path / "out").exists()

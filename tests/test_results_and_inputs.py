"""No command writes over what it reads: each name that it gives a result is looked at before it starts."""

import json
from pathlib import Path

import pytest
from pagedkv.bench import baselines_command, grid_command, peers_command, real_run_command, sweep_output
from pagedkv.bench.command_line import run

TRACE = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
0,ChatGPT,4,2,6,API log
1,GPT-4,3,1,4,API log
"""
CONFIG = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 64}
READ_BY_SWEEP = ("--prefix-trace", "--kernel-times", "--model")
MODELS = ("out", "out/config.json")


def _commands() -> list[tuple[list[str], str]]:
    """Return commands with the name of what they read, and would write over; out/ is there."""
    grid, clocked = ["grid", "trace.csv"], ["replay", "trace.csv", "--policy", "fcfs", "--step-time", "out/step.json"]
    stepped = [*grid, "--policies", "fcfs", "--step-time", "out/grid.json"]
    into_folder = [
        *((["grid", f"out/{name}"], name) for name in grid_command.FILES),
        (stepped, "grid.json"),
        *((["sweep", "--lengths", f"out/{name}"], name) for name in sweep_output.FILES),
        *((["sweep", option, "out/sweep.json"], "sweep.json") for option in READ_BY_SWEEP),
        *((["baselines", f"out/{name}"], name) for name in baselines_command.FILES),
        *((["replay", f"out/{name}", "--compare-run", "tiny.meta.json"], name) for name in real_run_command.FILES),
    ]
    into_file = [
        *((["sweep", option, "out/facts.json", "--json", "out/facts.json"], "facts.json") for option in READ_BY_SWEEP),
        *(([*clocked, option, "out/step.json"], "step.json") for option in ("--json", "--journal", "--html")),
        *((["ledger", "--model", model, "--json", "out/config.json"], "config.json") for model in MODELS),
    ]
    return [*(([*arguments, "--out", "out"], name) for arguments, name in into_folder), *into_file]


@pytest.fixture
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("out").mkdir()
    Path("trace.csv").write_text(TRACE, encoding="utf-8")


@pytest.mark.usefixtures("_in_a_folder")
@pytest.mark.parametrize(("arguments", "name"), _commands(), ids=lambda value: "-".join(value).replace("/", ":")[:80])
def test_what_is_read_is_not_written_over(capsys: pytest.CaptureFixture[str], arguments: list[str], name: str) -> None:
    """Whatever is in it: the content of a trace here, of coefficients or a configuration where those are asked for."""
    content = {"step.json": '{"base_ms": 10}', "config.json": json.dumps(CONFIG)}.get(name, TRACE)
    Path("out", name).write_text(content, encoding="utf-8")
    assert run(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert f"out/{name}: in use by the same command" in said.err
    assert said.err.count("\n") == 1
    assert Path("out", name).read_text(encoding="utf-8") == content
    assert sorted(path.name for path in Path("out").iterdir()) == [name]


@pytest.mark.usefixtures("_in_a_folder")
@pytest.mark.parametrize(
    ("arguments", "json_file"),
    [
        *((["grid", "trace.csv"], name) for name in grid_command.FILES),
        *((["sweep"], name) for name in sweep_output.FILES),
        *((["baselines", "trace.csv"], name) for name in baselines_command.FILES),
        (["peers", "impl"], peers_command.PAGE),
    ],
)
def test_one_file_is_not_two_results(capsys: pytest.CaptureFixture[str], arguments: list[str], json_file: str) -> None:
    assert run([*arguments, "--out", "out", "--json", f"out/{json_file}"]) == 2
    assert f"out/{json_file}: in use by the same command" in capsys.readouterr().err
    assert list(Path("out").iterdir()) == []


@pytest.mark.usefixtures("_in_a_folder")
def test_a_finished_cell_is_not_written_over(capsys: pytest.CaptureFixture[str]) -> None:
    grid = ["grid", "trace.csv", "--block-sizes", "4", "--blocks", "20", "--out", "out"]
    assert run(grid) == 0
    assert {path.name for path in Path("out").iterdir()} == {"cells", *grid_command.FILES}
    (cell,) = Path("out/cells").iterdir()
    before = cell.read_bytes()
    capsys.readouterr()
    for name in (cell.name, "new.json"):
        assert run([*grid, "--json", f"out/cells/{name}"]) == 2
        assert "in the folder of finished cells of --out out; name another file" in capsys.readouterr().err
    assert [path.read_bytes() for path in Path("out/cells").iterdir()] == [before]


@pytest.mark.usefixtures("_in_a_folder")
def test_the_names_that_are_looked_at_are_those_that_are_written() -> None:
    assert run(["baselines", "trace.csv", "--out", "out"]) == 0
    assert {path.name for path in Path("out").iterdir()} == {*baselines_command.FILES}

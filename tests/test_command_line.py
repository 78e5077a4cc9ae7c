"""The command line's frame: every way a command can end is one exit code and at most one line on stderr."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from pagedkv.bench import command_line
from pagedkv.bench.code_version import code_version
from pagedkv.bench.command_line import run
from pagedkv.bench.failures import BadInput
from pagedkv.bench.options import invoked_as
from pagedkv.impl.refusals import NoSpace
from pagedkv.spec.refusals import Broken

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[BaseException | int | None]]:
    """Add a command `act` for the time of one test: it raises, or returns, what is put on the list."""
    act: list[BaseException | int | None] = []

    def acting(context: typer.Context) -> int | None:
        assert invoked_as(context) == "pagedkv act"
        match act.pop():
            case BaseException() as error:
                raise error
            case outcome:
                return outcome

    registered = command_line.application.registered_commands
    monkeypatch.setattr(command_line.application, "registered_commands", list(registered))
    command_line.application.command("act")(acting)
    yield act
    assert not act, "the command ran"


def test_which_code_it_is_can_be_asked(capsys: Captured) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"pagedkv {code_version()}\n"
    assert run(["fuzz", "-h"]) == 0
    assert "--contents-only" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("end", "exit_code", "line"),
    [
        (None, 0, ""),
        (typer.Exit(1), 1, ""),
        (Broken("R-OWN-5", "3 blocks of 4"), 1, "pagedkv: R-OWN-5: 3 blocks of 4"),
        (BadInput("a\nb:3", "wrong\x1b[2J", "mend it"), 2, "pagedkv: a\\nb:3: wrong\\x1b[2J; mend it"),
        (NoSpace("3 blocks asked, 1 free"), 2, "pagedkv: refused, NoSpace: 3 blocks asked, 1 free"),
        (MemoryError("no 3 GiB"), 2, "pagedkv: not enough memory (no 3 GiB); ask for fewer blocks or requests"),
        (
            OSError(28, "No space left on device", "out.json"),
            2,
            "pagedkv: out.json: No space left on device; free it or name another",
        ),
        (KeyboardInterrupt(), 130, "pagedkv: interrupted"),
    ],
)
def test_every_end_has_its_code_and_its_line(
    command: list[BaseException | int | None],
    capsys: Captured,
    end: BaseException | None,
    exit_code: int,
    line: str,
) -> None:
    command.append(end)
    assert run(["act"]) == exit_code
    assert capsys.readouterr().err == (line and line + "\n")


def test_a_fault_of_the_program_keeps_its_traceback(command: list[BaseException | int | None]) -> None:
    command.append(ZeroDivisionError("ours"))
    with pytest.raises(ZeroDivisionError, match="ours"):
        run(["act"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nonsense"], "nonsense"),
        (["replay"], "TRACE"),
        (["replay", "a", "b"], "b"),
        (["replay", "a", "--nonsense"], "--nonsense"),
        (["replay", "a", "--blocks", "0"], "--blocks"),
        (["replay", "a", "--blocks", "-1"], "--blocks"),
        (["replay", "a", "--blocks", "99999999999999999999"], "--blocks"),
        (["replay", "a", "--blocks", "many"], "see pagedkv replay --help"),
        (["replay", "a", "--block-size", "0"], "--block-size"),
        (["replay", "a", "--requests", "0"], "--requests"),
        (["replay", "a", "--step-ms", "0"], "--step-ms"),
        (["replay", "a", "--step-ms", "nan"], "--step-ms"),
        (["replay", "a", "--step-ms", "inf"], "--step-ms"),
        (["replay", "a", "--seed", "-1"], "--seed"),
        (["replay", "a", "--engine", "vapour"], "'--engine': 'vapour' is not one of"),
        (["replay", "a", "--final-length", "prompt"], "prompt"),
        (["replay", "\0"], "null byte"),
        (["replay", "", "--json", "x.json"], "cannot be read"),
    ],
)
def test_wrong_usage_is_one_line(capsys: Captured, arguments: list[str], said: str) -> None:
    assert run(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert said in output.err
    assert output.err.count("\n") == 1
    assert output.err.startswith("pagedkv: ")


def test_no_arguments_show_the_commands(capsys: Captured) -> None:
    assert run([]) == 0
    assert "replay" in capsys.readouterr().out


@pytest.mark.parametrize("name", [command.name for command in command_line.application.registered_commands])
def test_every_command_has_help_with_an_example_and_the_common_options(capsys: Captured, name: str) -> None:
    assert run([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"Example: pagedkv {name}" in " ".join(shown.split())
    assert "--json" in shown
    assert "--seed" in shown


def _pagedkv(*arguments: str | Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "pagedkv.bench", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_as_a_process() -> None:
    process = _pagedkv("replay", "nothing-here.csv")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert err == "pagedkv: nothing-here.csv: cannot be read (No such file or directory); name a readable file\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--version"],
        ["--help"],
        ["fuz"],
        ["fuzz", "--runs", "3", "--no-hypothesis", "--workers", "1"],
        ["explore", "--blocks", "1", "--block-size", "1", "--workers", "1"],
        ["ledger", "--model", "nobody's", "--help"],
    ],
    ids=" ".join,
)
def test_what_needs_neither_torch_nor_hypothesis_imports_neither(arguments: list[str], tmp_path: Path) -> None:
    program = (
        "import sys; from pagedkv.bench.command_line import run; run(sys.argv[1:]);"
        " print([name for name in ('pagedkv', 'torch', 'hypothesis', 'matplotlib') if name in sys.modules])"
    )
    command = [sys.executable, "-c", program, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert ended.stdout.splitlines()[-1] == "['pagedkv']", ended.stderr


def test_interrupted_it_ends_cleanly_and_leaves_no_half_file(tmp_path: Path) -> None:
    """One request of two thousand million tokens would run for hours; Ctrl-C comes once its journal is there."""
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 1, "output_length": 2000000000}\n', encoding="utf-8")
    process = _pagedkv("replay", trace, "--block-size", "1024", "--journal", tmp_path / "journal.jsonl")
    deadline_s = time.monotonic() + 60
    while len(list(tmp_path.iterdir())) < 2:
        assert process.poll() is None
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "pagedkv: interrupted\n")
    assert list(tmp_path.iterdir()) == [trace]


def test_a_closed_pipe_is_no_traceback(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 1, "output_length": 2}\n', encoding="utf-8")
    process = _pagedkv("replay", trace)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()
    assert process.wait(60) in {0, 1}

"""The loop under stress, and that the stress finds what it is there for.

Every output row is compared with the dense oracle, in worlds where all that is freed is poisoned at once and launches
are late; then faults are planted, one by one, and each must show as a wrong row.
"""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from unittest import mock

import pytest
import torch
from pagedkv.bench import stress
from pagedkv.bench.stress_ledger import Tally, WrongRow
from pagedkv.bench.stress_world import World, run_world
from pagedkv.impl.device import CudaDevice, ThreadDevice
from pagedkv.impl.table_mirror import TableMirror

from cuda_stand_in import cuda_stand_in
from loop_faults import FAULTS

WORLDS_MAX = 24  # each fault is found in the first two, and in the first seven all there is happens


def run_worlds() -> None:
    for seed in range(WORLDS_MAX):
        run_world(World.draw(seed), ThreadDevice())


def test_every_output_row_is_right_whatever_happens() -> None:
    total = Tally()
    for seed in range(WORLDS_MAX):
        total.add(run_world(World.draw(seed), ThreadDevice()))
        if seed >= 3 and all(asdict(total).values()):
            return
    pytest.fail(f"what did not happen was not tried: {total}")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_planted_faults_show_as_wrong_rows(fault: Callable[[], AbstractContextManager[object]]) -> None:
    """By contents alone: the kernels do not look at what they are told, as on a GPU."""
    unchecked = mock.patch("pagedkv.kernels.contents.is_checked", return_value=False)
    with fault(), unchecked, pytest.raises(WrongRow, match=r"^world \d+: launch \d+"):
        run_worlds()


@pytest.mark.parametrize("method", ["begin_row", "edit"])
def test_a_table_edit_that_is_lost_shows(method: str) -> None:
    with mock.patch.object(TableMirror, method), pytest.raises(WrongRow):
        run_worlds()


def test_the_way_over_streams_and_events_is_rehearsed_on_a_cpu() -> None:
    with cuda_stand_in():
        total = run_world(World.draw(0), CudaDevice(torch.device("cpu")))
    assert total == run_world(World.draw(0), ThreadDevice())


def test_the_command_says_what_happened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert stress.main(["--seconds", "0.01", "--json", str(tmp_path / "stress.json")]) == 0
    report = json.loads((tmp_path / "stress.json").read_text())
    assert report["worlds"] == 1
    assert report["rows"] > 0
    assert report["wrong"] is None
    said = capsys.readouterr().out
    assert said.startswith("1 world on cpu: ")
    assert " failures (made on purpose), " in said
    assert said.endswith("\nevery output row as dense attention in float64: holds\n")


def test_help_says_what_is_compared_with_what(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        stress.main(["--help"])
    assert ended.value.code == 0
    assert "compare every output row with dense attention" in " ".join(capsys.readouterr().out.split())


def test_the_command_names_the_wrong_row_and_how_to_see_it_again(capsys: pytest.CaptureFixture[str]) -> None:
    with mock.patch.object(TableMirror, "edit"):
        assert stress.main(["--seconds", "60", "--seed", "3"]) == 1
    said = capsys.readouterr().out
    assert "wrong: world 3: launch " in said
    assert "holds" not in said
    assert "again: python -m pagedkv.bench.stress --device cpu --seconds 0.1 --seed 3" in said


def test_bad_input_is_one_line_and_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert stress.main(["--json", str(tmp_path / "no" / "folder.json")]) == 2
    if not torch.cuda.is_available():
        assert stress.main(["--device", "cuda"]) == 2
    assert all(line.startswith("--") for line in capsys.readouterr().err.splitlines())
    for arguments in (["--seconds", "0"], ["--seconds", "nan"], ["--seed", "-1"], ["--device", "tpu"]):
        with pytest.raises(SystemExit) as ended:
            stress.main(arguments)
        assert ended.value.code == 2


@pytest.mark.deep
def test_a_minute_without_a_wrong_row() -> None:
    _, worlds, wrong = stress.run(torch.device("cpu"), 60, 1000)
    assert worlds
    assert wrong is None

"""Progress that stays out of the way, and results that are written whole or not at all."""

import io
import json
import sys
from pathlib import Path

import pytest
from pagedkv.bench import progress
from pagedkv.bench.failures import BadInput
from pagedkv.bench.progress import LateProgress
from pagedkv.bench.result_files import output_file, write_json
from pagedkv.bench.search_options import output_folder


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "quiet_s", "shown"), [(_Terminal(), 0.0, True), (_Terminal(), 60.0, False), (io.StringIO(), 0.0, False)]
)
def test_progress_is_for_terminals_and_long_work(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, quiet_s: float, *, shown: bool
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "QUIET_S", quiet_s)
    monkeypatch.setenv("TERM", "xterm")
    with LateProgress("requests", 4) as bar:
        for done in range(5):
            bar.reached(done)
    assert ("requests" in stream.getvalue()) == shown
    assert bool(stream.getvalue()) == shown


def test_json_is_replaced_as_a_whole(tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    write_json(target, {"steps": 1})
    write_json(target, {"steps": 2})
    assert json.loads(target.read_text(encoding="utf-8")) == {"steps": 2}
    assert list(tmp_path.iterdir()) == [target]


def test_what_is_no_json_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    write_json(target, {"steps": 1})
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(target, {"steps": float("nan")})
    assert json.loads(target.read_text(encoding="utf-8")) == {"steps": 1}
    assert list(tmp_path.iterdir()) == [target]


def test_a_failed_rename_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_self: Path, _target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_json(tmp_path / "result.json", {"steps": 1})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="a folder that takes no files, whoever asks, is in /proc")
def test_a_folder_that_takes_no_files_is_found_before_the_work() -> None:
    with pytest.raises(BadInput, match=r"--json /proc/self/x\.json: may not be written"):
        output_file(Path("/proc/self/x.json"), "--json")
    with pytest.raises(BadInput, match="--out /proc/self/x: /proc/self is no folder that may be written to"):
        output_folder(Path("/proc/self/x"), None)


def test_a_name_with_a_null_byte_is_no_file_name(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"--json .*a\\x00b: no usable file name"):
        output_file(tmp_path / "a\0b", "--json")

"""A grid that is killed without a word: its workers end with it, whatever each is at."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SHORT = '{"timestamp": 0, "input_length": 1, "output_length": 1}\n'
ENDLESS = '{"timestamp": 0, "input_length": 1, "output_length": 2000000000}\n'


def test_workers_end_with_a_grid_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One has an endless cell, one has nothing to do. Their output is a pipe, which ends with the last of them."""
    monkeypatch.chdir(tmp_path)
    Path("short.jsonl").write_text(SHORT, encoding="utf-8")
    Path("endless.jsonl").write_text(ENDLESS, encoding="utf-8")
    traces, options = ["short.jsonl", "endless.jsonl"], ["--block-sizes", "1024", "--out", "out"]
    process = subprocess.Popen(
        [sys.executable, "-m", "pagedkv.bench", "grid", *traces, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline_s = time.monotonic() + 60
    while not list(Path().glob("out/cells/*.json")):
        assert process.poll() is None
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    process.kill()
    try:
        process.communicate(timeout=60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

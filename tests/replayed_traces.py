"""Small traces as files, and what `pagedkv replay` writes about them."""

import json
from pathlib import Path

from pagedkv.bench.command_line import run

Row = tuple[int, int, int, list[int]]  # arrival in ms, prompt, output, ids of blocks of 4


def written(path: Path, rows: list[Row]) -> Path:
    """Write a trace in the derived ShareGPT format."""
    keys = "timestamp", "input_length", "output_length", "hash_ids"
    lines = [json.dumps(dict(zip(keys, row, strict=True)) | {"block_size": 4}) for row in rows]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def replayed(trace: Path, *options: str) -> dict[str, object]:
    """Replay a trace in blocks of 4 and return the JSON that the command writes."""
    result = trace.parent / "replay.json"
    assert run(["replay", str(trace), "--block-size", "4", *options, "--json", str(result)]) == 0
    facts: dict[str, object] = json.loads(result.read_text(encoding="utf-8"))
    return facts

"""A measured run of an engine: its settings, what happened to each request, and what ran, second by second.

Three files, as LLMServingSim's benchmark of vLLM leaves them, side by side under one name: `NAME.meta.json` (settings),
`NAME.requests.jsonl` (a line a request, in the order of the trace that was served) and `NAME.timeseries.csv` (a line a
tick). `read_real_run` takes the first one's path and gives columns, or one line that says which file lacks what.

What the times are, which no file says: `arrival_time` is a wall clock, the others are the engine's monotonic one, in
seconds. The two are tied together by the request that waited least between them: none is queued before it arrives, so
the smallest difference is the offset, to within the milliseconds that handing it over took. `queued_ts` is when the
engine noticed a request, between two steps; `scheduled_ts` its first admission; the two tokens' times are ends of
steps. All are given here as seconds after the first arrival; so are ticks, which begin within a second of it.

vLLM counts its null block among `num_gpu_blocks`; the usable blocks are one fewer. A setting that the files do not have
is None: whoever replays the run has to say what is taken in its place. Columns that are there and hold nothing but
zeros while requests run were not measured (`Ticks.usage_percent` is None then).
"""

import csv
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pagedkv.bench.failures import BadInput, quoted
from pagedkv.bench.line_reader import LineReader
from pagedkv.bench.lists import number_of
from pagedkv.bench.traces import Float64Array, Int64Array, Trace
from pagedkv.spec.counts import counted

META, REQUESTS, TICKS = "meta.json", "requests.jsonl", "timeseries.csv"
TIMES = ("arrival_time", "queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
LENGTHS = ("input_toks", "output_toks")
TICK_COLUMNS = ("t", "running", "waiting", "kv_cache_pct")
COUNT_MAX = (1 << 31) - 1
REMEDY = "give the meta.json that a measured run left beside its requests.jsonl and timeseries.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What the engine was told; None where the run's files do not say it. Blocks are the usable ones."""

    max_tokens_per_step: int | None
    max_running: int | None
    blocks: int | None
    block_size: int | None
    prefix_cache: bool | None


@dataclass(frozen=True, slots=True, eq=False)
class Ticks:
    """What the engine said of itself once a second: sequences, requests, and per cent of the blocks, at `at_s`."""

    at_s: Float64Array
    running: Float64Array
    waiting: Float64Array
    usage_percent: Float64Array | None


@dataclass(frozen=True, slots=True, eq=False)
class RealRun:
    """A run, one entry a request in the trace's order; float64 seconds after the first arrival, int64 tokens."""

    path: Path
    device: str
    engine: str
    settings: EngineSettings
    arrival_s: Float64Array
    admitted_s: Float64Array
    first_token_s: Float64Array
    last_token_s: Float64Array
    decode_s: Float64Array  # from the first token to the last
    prompt_tokens: Int64Array
    output_tokens: Int64Array
    ticks: Ticks

    def __len__(self) -> int:
        return len(self.arrival_s)


def run_files(path: Path) -> tuple[Path, Path, Path]:
    """Give the three files of a run by the path of the first. Errors: `BadInput` for another name."""
    if not path.name.endswith(META):
        raise BadInput(str(path), f"its name does not end in {META}", REMEDY)
    beside = path.name.removesuffix(META)
    return path, path.with_name(beside + REQUESTS), path.with_name(beside + TICKS)


def read_real_run(path: Path) -> RealRun:
    """Read a run by its `meta.json`. Errors: `BadInput` for what is none, and for files that lack or contradict."""
    _, requests_file, ticks_file = run_files(path)
    fields = _meta(path)
    settings = _settings(path, fields)
    columns = _requests(requests_file)
    count = fields.get("num_requests")
    if count is not None and count != len(columns[TIMES[0]]):
        what = f"num_requests is {quoted(count)}, and beside it are {len(columns[TIMES[0]]):,} requests"
        raise BadInput(str(path), what, "fetch the run's files again")
    arrival, queued, admitted, first, last = (columns[name] for name in TIMES)
    zero = float(arrival.min())
    monotonic_zero = zero + float((queued - arrival).min())
    prompt, output = (columns[name].astype(np.int64) for name in LENGTHS)
    hardware = fields.get("hardware")
    device = hardware.get("device_name") if isinstance(hardware, dict) else None
    return RealRun(
        path=path,
        device=str(device or path.name.removesuffix(META).rstrip("._-") or path.parent.name),
        engine=f"vLLM {fields.get('vllm_version', 'of no known version')}",
        settings=settings,
        arrival_s=arrival - zero,
        admitted_s=admitted - monotonic_zero,
        first_token_s=first - monotonic_zero,
        last_token_s=last - monotonic_zero,
        decode_s=last - first,
        prompt_tokens=prompt,
        output_tokens=output,
        ticks=_ticks(ticks_file),
    )


def check_same_requests(run: RealRun, trace: Trace) -> None:
    """Refuse a trace that is not what the run served. Errors: `BadInput`, which names the first difference."""
    where, remedy = str(run.path), f"give the trace that this run served, not {trace.path.name}"
    if len(run) != len(trace):
        raise BadInput(where, f"{len(run):,} measured requests, and {len(trace):,} in the trace", remedy)
    lengths = (
        ("prompt", run.prompt_tokens, trace.prompt_tokens),
        ("output", run.output_tokens, trace.output_tokens),
    )
    for name, measured, traced in lengths:
        differ = np.flatnonzero(measured != traced)
        if differ.size:
            request = differ.item(0)
            counts = f"{measured[request]:,} {name} tokens were measured, {traced[request]:,} are in the trace"
            raise BadInput(where, f"request {request}: {counts} (requests that differ: {differ.size:,})", remedy)


def _meta(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(str(path), f"cannot be read ({error.strerror})", REMEDY) from error
    except (ValueError, RecursionError) as error:
        raise BadInput(str(path), f"no JSON ({type(error).__name__})", REMEDY) from error
    if not isinstance(fields, dict) or not isinstance(fields.get("engine_kwargs"), dict):
        raise BadInput(str(path), "no JSON object with engine_kwargs", REMEDY)
    return fields


def _settings(path: Path, fields: dict[str, Any]) -> EngineSettings:
    """Read what the engine was told; the `kv_cache` part may be absent."""
    engine, pool = fields["engine_kwargs"], fields.get("kv_cache")
    if pool is not None and not isinstance(pool, dict):
        raise BadInput(str(path), f"kv_cache is {quoted(pool)}, no object", REMEDY)
    pool = pool or {}
    replicas = _count(path, engine, "data_parallel_size", 1)
    if replicas not in (None, 1):
        raise BadInput(str(path), f"data_parallel_size is {replicas}", "one scheduler is replayed: give a run of one")
    prefix_cache = pool.get("enable_prefix_caching")
    if prefix_cache is not None and not isinstance(prefix_cache, bool):
        raise BadInput(str(path), f"enable_prefix_caching is {quoted(prefix_cache)}, not true or false", REMEDY)
    all_blocks = _count(path, pool, "num_gpu_blocks", 2)
    return EngineSettings(
        max_tokens_per_step=_count(path, engine, "max_num_batched_tokens", 1),
        max_running=_count(path, engine, "max_num_seqs", 1),
        blocks=None if all_blocks is None else all_blocks - 1,
        block_size=_count(path, pool, "block_size", 1),
        prefix_cache=prefix_cache,
    )


def _count(path: Path, fields: dict[str, Any], name: str, least: int) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= COUNT_MAX:
        raise BadInput(str(path), f"{name} is {quoted(value)}, no count from {least}", REMEDY)
    return value


def _requests(path: Path) -> dict[str, Float64Array]:
    """Read a line a request into columns; every number is finite, and each request's times are in order."""
    lines = LineReader(path)
    rows = [_request(lines, text) for text in lines]
    if not rows:
        raise BadInput(str(path), "the file is empty", "fetch the run's files again")
    return _columns((*TIMES, *LENGTHS), rows)


def _request(lines: LineReader, text: str) -> list[float]:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise lines.wrong(f"no JSON ({type(error).__name__})", "fetch the run's files again") from error
    if not isinstance(row, dict):
        raise lines.wrong("no JSON object", "fetch the run's files again")
    times = [_number(lines, name, row.get(name)) for name in TIMES]
    if times[1:] != sorted(times[1:]):
        raise lines.wrong(f"the times are not in the order of {', '.join(TIMES[1:])}", "mend or drop that line")
    lengths = [_number(lines, name, row.get(name)) for name in LENGTHS]
    for name, length in zip(LENGTHS, lengths, strict=True):
        if length != int(length) or not 1 <= length <= COUNT_MAX:
            raise lines.wrong(f"{name} is {quoted(row[name])}, no count of tokens", "mend or drop that line")
    return times + lengths


def _ticks(path: Path) -> Ticks:
    """Read a line a tick; columns are found by name, times increase."""
    lines = LineReader(path)
    texts = iter(lines)
    header = next(_cells(lines, texts), None)
    if header is None:
        raise BadInput(str(path), "the file is empty", "fetch the run's files again")
    if missing := [name for name in TICK_COLUMNS if header.count(name) != 1]:
        raise lines.wrong(f"there is no column {missing[0]}", "fetch the run's files again")
    at = [header.index(name) for name in TICK_COLUMNS]
    rows: list[list[float]] = []
    for cells in _cells(lines, texts):
        if len(cells) != len(header):
            raise lines.wrong(f"{counted(len(cells), 'column')}, the header has {len(header)}", "is the file cut off?")
        row = [_number(lines, name, cells[place]) for name, place in zip(TICK_COLUMNS, at, strict=True)]
        if rows and row[0] <= rows[-1][0]:
            raise lines.wrong(f"the time {row[0]:g} does not come after {rows[-1][0]:g}", "fetch the run's files again")
        rows.append(row)
    if not rows:
        raise BadInput(str(path), "a header and no ticks", "fetch the run's files again")
    columns = _columns(TICK_COLUMNS, rows)
    usage = columns["kv_cache_pct"]
    measured = bool(usage.any()) or not columns["running"].any()
    return Ticks(columns["t"], columns["running"], columns["waiting"], usage if measured else None)


def _cells(lines: LineReader, texts: Iterator[str]) -> Iterator[list[str]]:
    for text in texts:
        try:
            cells = next(csv.reader([text], strict=True))
        except csv.Error as error:
            raise lines.wrong(f"no CSV row ({error})", "fetch the run's files again") from error
        yield [cell.strip() for cell in cells]


def _number(lines: LineReader, name: str, value: object) -> float:
    """Give a finite number that is not negative, out of JSON or a cell."""
    try:
        if isinstance(value, str):
            number = number_of(value)
        else:
            number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else -1.0
    except (ValueError, OverflowError):
        number = -1.0
    if not 0 <= number < float("inf"):
        raise lines.wrong(f"{name} is {quoted(value)}, no number from 0", "fetch the run's files again")
    return number


def _columns(names: Iterable[str], rows: list[list[float]]) -> dict[str, Float64Array]:
    return dict(zip(names, np.array(rows, np.float64).T, strict=True))

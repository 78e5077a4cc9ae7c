"""The formats of request traces, each recognised by its content and read into the same `Request`.

Four public formats are known. What each says, and the traps in it:

========== ======= =============== ====================================================================================
format     kind    time            traps
========== ======= =============== ====================================================================================
azure      CSV     date, no zone   CRLF, no newline at the end, seven fractional digits (datetime keeps six)
burstgpt   CSV     seconds         ties, rows with 0 prompt and 0 output tokens, later releases insert columns
mooncake   JSONL   milliseconds    ties; `hash_ids` name 512-token prompt blocks, the last one partial
sharegpt   JSONL   milliseconds    as mooncake, with its own `block_size`; ids cover prompt and output
========== ======= =============== ====================================================================================

Columns are found by name, so inserted ones do no harm. A token count is an integer from 0 to 2^31 - 1; zero is legal,
because traces hold failed requests, and what to do with them is the reader's user's to say. A time is finite and
not negative. Anything else is `BadInput` at its line: a trace that is wrong in one place is not trusted in the others.
What cannot be seen is a last row that was cut off inside its last number.

Considered and left: pandas (a dependency for 60 lines of parsing, and its type guesses hide bad cells), and numpy's
text reader (no line numbers in its errors).
"""

import csv
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeGuard

from pagedkv.bench.failures import BadInput, quoted
from pagedkv.bench.line_reader import LineReader
from pagedkv.spec.counts import counted

TOKENS_MAX = (1 << 31) - 1
SECONDS_MAX = 1e11  # some three thousand years: no time of a trace, but exact arithmetic on steps is still safe there
PREFIX_ID_MAX = (1 << 63) - 1
MOONCAKE_BLOCK_SIZE = 512

_DIGITS = re.compile(r"[0-9]{1,10}")
_SECONDS = re.compile(r"[0-9]{1,15}(\.[0-9]*)?")
_DATE = re.compile(r"([0-9-]{10}[ T][0-9:]{8})(\.[0-9]{1,12})?(Z|[+-][0-9]{2}:?[0-9]{2})?")


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a trace.

    `arrival_s` counts seconds from a zero that is the trace's own; `prefix_ids` name the equal-content token blocks
    that the prompt (in some formats: prompt and output) starts with, empty where the trace has none.
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    prefix_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """What was recognised: the format's name, and what one of its prefix ids stands for (block size 0: it has none)."""

    name: str
    prefix_block_size: int = 0
    prefix_covers_output: bool = False
    names_block_size: bool = False


@dataclass(frozen=True, slots=True)
class RequestStream:
    """A recognised trace: its format and its requests, in file order, read while they are iterated over (once)."""

    format: TraceFormat
    requests: Iterator[Request]


def recognise(lines: LineReader) -> RequestStream:
    """Look at the first line and choose the format. Errors: `BadInput` where it is none of the four. Cost: one line."""
    texts = iter(lines)
    first = next(texts, None)
    if first is None:
        raise BadInput(str(lines.path), "the file is empty", "give a request trace")
    if first.lstrip().startswith("{"):
        return _recognise_json(lines, first, texts)
    columns = [name.strip() for name in _cells(lines, first)]
    for layout in _CSV_LAYOUTS:
        if all(columns.count(name) == 1 for name in layout.columns):
            return RequestStream(TraceFormat(layout.name), _csv_requests(lines, layout, columns, texts))
    raise lines.wrong(
        f"no known trace format, it starts with {quoted(first)}",
        "give an Azure or BurstGPT CSV (with its header line), or a Mooncake or derived ShareGPT JSONL",
    )


@dataclass(frozen=True, slots=True)
class _CsvLayout:
    """A CSV format: the three columns it is known by and how its time cell is read."""

    name: str
    columns: tuple[str, str, str]
    make_clock: Callable[[LineReader], Callable[[str], float]]


def _cells(lines: LineReader, text: str) -> list[str]:
    try:
        return next(csv.reader([text], strict=True))
    except csv.Error as error:
        raise lines.wrong(f"no CSV row ({error})", "mend or drop that line") from error


def _csv_requests(lines: LineReader, layout: _CsvLayout, columns: list[str], texts: Iterator[str]) -> Iterator[Request]:
    time_at, prompt_at, output_at = (columns.index(name) for name in layout.columns)
    _, prompt_column, output_column = layout.columns
    clock = layout.make_clock(lines)
    for text in texts:
        cells = _cells(lines, text)
        if len(cells) != len(columns):
            raise lines.wrong(f"{counted(len(cells), 'column')}, the header has {len(columns)}", "is the file cut off?")
        yield Request(
            clock(cells[time_at].strip()),
            _token_count(lines, prompt_column, cells[prompt_at]),
            _token_count(lines, output_column, cells[output_at]),
        )


def _token_count(lines: LineReader, column: str, cell: str) -> int:
    if _DIGITS.fullmatch(digits := cell.strip()) and (count := int(digits)) <= TOKENS_MAX:
        return count
    raise _no_token_count(lines, column, cell)


def _no_token_count(lines: LineReader, column: str, value: object) -> BadInput:
    return lines.wrong(
        f"{column} is {quoted(value)}, no count of tokens from 0 to {TOKENS_MAX}", "mend or drop that line"
    )


def _no_time(lines: LineReader, value: object, expected: str) -> BadInput:
    return lines.wrong(f"the time is {quoted(value)}, {expected}", "mend or drop that line")


def _date_clock(lines: LineReader) -> Callable[[str], float]:
    """Read dates as seconds since the first one's whole second: so small that all seven digits survive in a float."""
    first: datetime | None = None

    def seconds(cell: str) -> float:
        nonlocal first
        if (found := _DATE.fullmatch(cell)) is None:
            raise _no_time(lines, cell, "no date like 2023-11-16 18:15:46.6805900")
        whole, fraction, zone = found.groups()
        try:
            moment = datetime.fromisoformat(whole + (zone or ""))
        except ValueError as error:
            raise _no_time(lines, cell, f"no date ({error})") from error
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        first = first or moment
        return (moment - first).total_seconds() + float(fraction or 0)

    return seconds


def _seconds_clock(lines: LineReader) -> Callable[[str], float]:
    def seconds(cell: str) -> float:
        if _SECONDS.fullmatch(cell) and (value := float(cell)) <= SECONDS_MAX:
            return value
        raise _no_time(lines, cell, "no number of seconds")

    return seconds


_CSV_LAYOUTS = (
    _CsvLayout("azure", ("TIMESTAMP", "ContextTokens", "GeneratedTokens"), _date_clock),
    _CsvLayout("burstgpt", ("Timestamp", "Request tokens", "Response tokens"), _seconds_clock),
)


def _recognise_json(lines: LineReader, first: str, texts: Iterator[str]) -> RequestStream:
    row = _json_row(lines, first, "no known trace format: ", "give a JSONL, one request a line, or a CSV")
    if not {"timestamp", "input_length", "output_length"} <= row.keys():
        raise lines.wrong(
            f"no known trace format, the first object has the keys {quoted(sorted(row))}",
            "give a Mooncake or derived ShareGPT JSONL (timestamp, input_length, output_length)",
        )
    if "block_size" not in row:
        trace_format = TraceFormat("mooncake", MOONCAKE_BLOCK_SIZE)
    else:
        block_size = row["block_size"]
        if not _is_integer(block_size) or not 1 <= block_size <= TOKENS_MAX:
            raise lines.wrong(f"block_size is {quoted(block_size)}, no count from 1", "mend that line")
        trace_format = TraceFormat("sharegpt", block_size, prefix_covers_output=True, names_block_size=True)
    return RequestStream(trace_format, _json_requests(lines, trace_format, row, texts))


def _json_requests(
    lines: LineReader, trace_format: TraceFormat, first: dict[str, Any], texts: Iterator[str]
) -> Iterator[Request]:
    yield _json_request(lines, trace_format, first)
    for text in texts:
        yield _json_request(lines, trace_format, _json_row(lines, text))


def _json_row(
    lines: LineReader, text: str, before: str = "", remedy: str = "is the file cut off? mend or drop that line"
) -> dict[str, Any]:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: no JSON, or an integer of thousands of digits
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise lines.wrong(f"{before}no JSON object ({reason})", remedy) from error
    if not isinstance(row, dict):
        raise lines.wrong(f"{quoted(row)} where a JSON object belongs", "mend or drop that line")
    return row


def _json_request(lines: LineReader, trace_format: TraceFormat, row: dict[str, Any]) -> Request:
    prompt = _json_token_count(lines, row, "input_length")
    output = _json_token_count(lines, row, "output_length")
    ids = _prefix_ids(lines, trace_format, row, prompt, output)
    return Request(_json_milliseconds(lines, row) / 1000, prompt, output, ids)


def _json_token_count(lines: LineReader, row: dict[str, Any], key: str) -> int:
    value: object = row.get(key)
    if _is_integer(value) and 0 <= value <= TOKENS_MAX:
        return value
    raise _no_token_count(lines, key, value)


def _json_milliseconds(lines: LineReader, row: dict[str, Any]) -> float:
    value: object = row.get("timestamp")
    if (_is_integer(value) or isinstance(value, float)) and 0 <= value <= SECONDS_MAX * 1000:  # no NaN passes this
        return value
    raise _no_time(lines, value, "no number of milliseconds")


def _is_integer(value: object) -> TypeGuard[int]:
    """JSON's `true` is a Python int, too; here it is none."""
    return isinstance(value, int) and not isinstance(value, bool)


def _prefix_ids(
    lines: LineReader, trace_format: TraceFormat, row: dict[str, Any], prompt: int, output: int
) -> tuple[int, ...]:
    """Read `hash_ids`. More blocks than the tokens fill promise hits that cannot be; fewer are a shorter promise."""
    block_size = trace_format.prefix_block_size
    if row.get("block_size") != (block_size if trace_format.names_block_size else None):
        raise lines.wrong(f"block_size is {quoted(row.get('block_size'))}, unlike before", "use one block size a file")
    ids = row.get("hash_ids", [])
    if not isinstance(ids, list) or not all(_is_integer(name) and 0 <= name <= PREFIX_ID_MAX for name in ids):
        raise lines.wrong("hash_ids is no list of ids from 0 to 2^63 - 1", "mend or drop that line")
    covered = prompt + output if trace_format.prefix_covers_output else prompt
    if len(ids) > -(-covered // block_size):
        raise lines.wrong(
            f"{len(ids)} hash_ids of {counted(block_size, 'token')} for {counted(covered, 'token')}",
            "are lengths and ids of one request?",
        )
    return tuple(ids)

"""Each trap of the four trace formats, on small hand-written files: what is read, in which order, in which unit."""

import gzip
from pathlib import Path

import pytest
from pagedkv.bench.trace_formats import Request
from pagedkv.bench.traces import Trace, open_requests, read_trace

AZURE = (
    b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 23:59:59.9999999,374,44\r\n2023-11-17 00:00:00.0000001,9,1"
)
MOONCAKE = b"""\
{"timestamp": 0, "input_length": 513, "output_length": 5, "hash_ids": [0, 1]}
{"timestamp": 3001, "input_length": 512, "output_length": 0, "hash_ids": [0]}
"""
SHAREGPT = b"""\
{"timestamp":46.926808,"input_length":9,"output_length":8,"block_size":8,"hash_ids":[0,1]}
{"timestamp":47.926808,"input_length":1,"output_length":1,"block_size":8,"hash_ids":[]}
"""
BURSTGPT = b"""\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
5,GPT-4,0,0,0,Conversation log
7.5,ChatGPT,30,1,31,API log
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Nothing in the name tells the format."""
    return tmp_path / "requests"


def _read(file: Path, content: bytes) -> Trace:
    file.write_bytes(content)
    return read_trace(file)


def _lengths(trace: Trace) -> list[tuple[int, int]]:
    return list(zip(trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True))


def test_azure_with_crlf_without_last_newline_across_midnight(file: Path) -> None:
    trace = _read(file, AZURE)
    assert trace.format.name == "azure"
    assert _lengths(trace) == [(374, 44), (9, 1)]
    assert trace.arrival_s[1] == pytest.approx(2e-7, abs=1e-12), "seven digits, two ticks apart"


def test_azure_with_a_zone_and_without_a_fraction(file: Path) -> None:
    trace = _read(
        file,
        b"TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00+00:00,1,1\n2024-05-10 02:00:00.5+02:00,1,1\n",
    )
    assert trace.arrival_s.tolist() == [0, 0.5]


def test_mooncake_in_milliseconds_with_prompt_ids(file: Path) -> None:
    trace = _read(file, MOONCAKE)
    assert trace.format.name == "mooncake"
    assert (trace.format.prefix_block_size, trace.format.prefix_covers_output) == (512, False)
    assert _lengths(trace) == [(513, 5), (512, 0)]
    assert trace.arrival_s.tolist() == [0, 3.001]
    assert (trace.prefix_ids.tolist(), trace.prefix_starts.tolist()) == ([0, 1, 0], [0, 2, 3])


def test_derived_sharegpt_is_told_by_its_block_size(file: Path) -> None:
    trace = _read(file, SHAREGPT)
    assert trace.format.name == "sharegpt"
    assert (trace.format.prefix_block_size, trace.format.prefix_covers_output) == (8, True)
    assert _lengths(trace) == [(9, 8), (1, 1)]
    assert trace.arrival_s[1] == pytest.approx(0.001)


def test_mooncake_without_ids_is_read_too(file: Path) -> None:
    trace = _read(file, b'{"timestamp": 1, "input_length": 7, "output_length": 2}\n')
    assert (_lengths(trace), trace.prefix_ids.tolist()) == ([(7, 2)], [])


def test_burstgpt_in_seconds_with_ties_and_zero_lengths(file: Path) -> None:
    trace = _read(file, BURSTGPT)
    assert trace.format.name == "burstgpt"
    assert _lengths(trace) == [(472, 18), (0, 0), (30, 1)]
    assert trace.arrival_s.tolist() == [0, 0, 2.5]


def test_columns_are_found_by_name(file: Path) -> None:
    """A later release inserts a session and an elapsed time; a quoted cell holds a comma."""
    trace = _read(
        file,
        b"Timestamp,Session ID,Elapsed time,Model,Response tokens,Request tokens,Total tokens,Log Type\n"
        b'5,17,3.2,"GPT-4, May",18,472,490,Conversation log\n',
    )
    assert _lengths(trace) == [(472, 18)]


def test_unsorted_times_keep_file_order_and_sort_by_arrival(file: Path) -> None:
    rows = b"".join(b"%d,ChatGPT,%d,1,0,API log\n" % row for row in ((9, 1), (4, 2), (9, 3), (4, 4)))
    trace = _read(file, BURSTGPT.splitlines(keepends=True)[0] + rows)
    assert trace.prompt_tokens.tolist() == [1, 2, 3, 4]
    assert trace.arrival_s.tolist() == [5, 0, 5, 0]
    assert trace.by_arrival().tolist() == [1, 3, 0, 2], "ties in file order"


@pytest.mark.parametrize("name", ["requests.gz", "requests"])
def test_gzip_is_told_by_its_content(tmp_path: Path, name: str) -> None:
    trace = _read(tmp_path / name, gzip.compress(AZURE))
    assert _lengths(trace) == [(374, 44), (9, 1)]


def test_byte_order_mark_and_blank_lines(file: Path) -> None:
    assert _lengths(_read(file, b"\xef\xbb\xbf" + AZURE + b"\r\n\r\n")) == [(374, 44), (9, 1)]


def test_requests_limit_what_is_read_and_what_follows_may_be_broken(file: Path) -> None:
    file.write_bytes(BURSTGPT + b"no row at all\n")
    assert len(read_trace(file, 3)) == 3


def test_rate_of_a_single_moment_is_not_made_up(file: Path) -> None:
    assert _read(file, MOONCAKE).requests_per_s() == pytest.approx(1 / 3.001)
    assert _read(file, MOONCAKE.splitlines()[0]).requests_per_s() == 0


def test_requests_are_given_one_by_one(file: Path) -> None:
    file.write_bytes(MOONCAKE)
    stream = open_requests(file)
    assert next(stream.requests) == Request(0, 513, 5, (0, 1))
    assert [request.arrival_s for request in stream.requests] == [3.001]

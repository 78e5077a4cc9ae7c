"""No file, however broken, gives more than one line that says where, what and what to do."""

import gzip
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pagedkv.bench.failures import BadInput
from pagedkv.bench.line_reader import LINE_BYTES_MAX
from pagedkv.bench.traces import Trace, read_trace

AZURE = b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURSTGPT = b"Timestamp,Model,Request tokens,Response tokens\n"
MOMENT = b"2023-11-16 18:15:46.6805900"
ZIPPED = gzip.compress(AZURE + b"%s,1,1\n" % MOMENT * 9)


def _json(**fields: str) -> bytes:
    whole = {"timestamp": "0", "input_length": "600", "output_length": "1"} | fields
    return ("{" + ", ".join(f'"{key}": {value}' for key, value in whole.items()) + "}\n").encode()


def _complaint(path: Path) -> str:
    with pytest.raises(BadInput) as raised:
        read_trace(path)
    message = str(raised.value)
    assert message.isprintable(), "one line, whatever it quotes"
    assert message.startswith(str(path))
    return message


@pytest.mark.parametrize(
    ("content", "line", "said"),
    [
        (b"", None, "empty"),
        (b"\n\n", None, "empty"),
        (AZURE, None, "without requests"),
        (b"hello\nworld\n", 1, "no known trace format"),
        (b"TIMESTAMP,ContextTokens\n", 1, "no known trace format"),
        (AZURE.replace(b"GeneratedTokens", b"ContextTokens"), 1, "no known trace format"),
        (b"5,ChatGPT,472,18,490\n", 1, "no known trace format"),
        (b'"unclosed\n', 1, "no CSV row"),
        (AZURE + b"%s,1\n" % MOMENT, 2, "2 columns"),
        (AZURE + b"%s,1,2\n%s,1,2,3\n" % (MOMENT, MOMENT), 3, "4 columns"),
        (AZURE + b"%s,1,2\n2023-11-16 18:1" % MOMENT, 3, "cut off"),
        (AZURE + b"%s,-3,2\n" % MOMENT, 2, "ContextTokens is '-3'"),
        (AZURE + b"%s,3,2147483648\n" % MOMENT, 2, "GeneratedTokens is '2147483648'"),
        (AZURE + b"%s,3,%s\n" % (MOMENT, b"9" * 5000), 2, "GeneratedTokens is '99"),
        (AZURE + b"%s,3,\n" % MOMENT, 2, "GeneratedTokens is ''"),
        (AZURE + b"%s,3,nan\n" % MOMENT, 2, "GeneratedTokens is 'nan'"),
        (AZURE + b"%s,1_0,2\n" % MOMENT, 2, "ContextTokens is '1_0'"),
        (AZURE + "2023-11-16 18:15:46.68,٣,2\n".encode(), 2, "ContextTokens is '٣'"),
        (AZURE + b"%s,3.5,2\n" % MOMENT, 2, "ContextTokens is '3.5'"),
        (AZURE + b"2023-13-16 18:15:46,3,2\n", 2, "month"),
        (AZURE + b"yesterday,3,2\n", 2, "the time is 'yesterday'"),
        (AZURE + b"1700158546.68,3,2\n", 2, "the time is"),
        (BURSTGPT + b"-5,a,3,2\n", 2, "the time is '-5'"),
        (BURSTGPT + b"inf,a,3,2\n", 2, "the time is 'inf'"),
        (BURSTGPT + b"nan,a,3,2\n", 2, "the time is 'nan'"),
        (BURSTGPT + b"999999999999999,a,3,2\n", 2, "the time is"),
        (BURSTGPT + b"5,a\0b,3,2\n", 2, "NUL byte"),
        (BURSTGPT + b"5,caf\xe9,3,2\n", 2, "no UTF-8 text"),
        (BURSTGPT + b'5,"a,3,2\n6,b,3,2\n', 2, "no CSV row"),
        (b"\xff\xfe" + AZURE.decode().encode("utf-16-le"), 1, "no UTF-8 text"),
        (AZURE.decode().encode("utf-16-le"), 1, "NUL byte"),
        (b'{"input_toks": 5}\n', 1, "['input_toks']"),
        (b"{}\n", 1, "no known trace format"),
        (b'{"timestamp": 0, "input_le', 1, "no JSON object"),
        (b"[1, 2]\n", 1, "no known trace format"),
        (_json() + b"[1, 2]\n", 2, "where a JSON object belongs"),
        (_json() + b'{"timestamp": 0, "input_le', 2, "cut off"),
        (b'{\n "layers": 32\n}\n', 1, "no known trace format: no JSON object"),
        (_json() + b"[" * 100_000, 2, "nested too deeply"),
        (_json(input_length="-1"), 1, "input_length is -1"),
        (_json(input_length="1e3"), 1, "input_length is 1000.0"),
        (_json(input_length="true"), 1, "input_length is True"),
        (_json(output_length="9" * 5000), 1, "no JSON object"),
        (_json(output_length="9" * 30), 1, "output_length is 999"),
        (_json(output_length='"7"'), 1, "output_length is '7'"),
        (_json() + b'{"timestamp": 0, "input_length": 1}\n', 2, "output_length is None"),
        (_json(timestamp="NaN"), 1, "the time is nan"),
        (_json(timestamp="Infinity"), 1, "the time is inf"),
        (_json(timestamp="-1"), 1, "the time is -1"),
        (_json(timestamp="1" + "0" * 400), 1, "the time is 1000"),
        (_json(timestamp="null"), 1, "the time is None"),
        (_json(hash_ids="[0, 1, 2]"), 1, "3 hash_ids of 512 tokens for 600 tokens"),
        (_json(hash_ids="[0, -1]"), 1, "hash_ids is no list of ids"),
        (_json(hash_ids="[0, 1.5]"), 1, "hash_ids is no list of ids"),
        (_json(hash_ids="[9223372036854775808]"), 1, "hash_ids is no list of ids"),
        (_json(hash_ids='"0"'), 1, "hash_ids is no list of ids"),
        (_json(block_size="0"), 1, "block_size is 0"),
        (_json(block_size="-8"), 1, "block_size is -8"),
        (_json(block_size="8") + _json(block_size="16"), 2, "block_size is 16"),
        (_json(block_size="8") + _json(), 2, "block_size is None"),
        (_json() + _json(block_size="8"), 2, "block_size is 8"),
        (b"a" * (LINE_BYTES_MAX + 2), 1, "more than 16,777,216 bytes"),
        (b"\x1f\x8bgarbage that is no archive", None, "broken gzip data"),
        (ZIPPED[:-12], None, "broken gzip data"),
        (ZIPPED[:30] + b"\0\0\0\0" + ZIPPED[34:], None, "broken gzip data"),
        (ZIPPED + b"more", None, "broken gzip data"),
    ],
)
def test_broken_content(tmp_path: Path, content: bytes, line: int | None, said: str) -> None:
    path = tmp_path / "trace"
    path.write_bytes(content)
    message = _complaint(path)
    where, what = message.split(": ", 1)
    assert where == (str(path) if line is None else f"{path}:{line}")
    assert said in what
    assert "; " in what, "what to do comes last"


def test_gz_by_name_alone(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(AZURE + b"%s,1,1\n" % MOMENT)
    assert "no gzip data" in _complaint(path)


def test_folder_missing_file_and_impossible_name(tmp_path: Path) -> None:
    assert "directory" in _complaint(tmp_path)
    assert "No such file" in _complaint(tmp_path / "nothing")
    assert "too long" in _complaint(tmp_path / ("long" * 100))
    with pytest.raises(BadInput, match=r"null byte.*name a readable file"):
        read_trace(tmp_path / "a\0b")


def test_device_without_end() -> None:
    if not Path("/dev/zero").exists():
        pytest.skip("no /dev/zero on this system")
    assert "more than 16,777,216 bytes" in _complaint(Path("/dev/zero"))


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_unreadable_file(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(AZURE)
    path.chmod(0)
    assert "Permission denied" in _complaint(path)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file name for all examples."""
    return tmp_path_factory.mktemp("fuzz") / "trace"


def _trace_or_complaint(path: Path) -> Trace | str:
    try:
        return read_trace(path)
    except BadInput as bad_input:
        return str(bad_input)


@given(start=st.sampled_from([b"", AZURE, BURSTGPT, _json(), ZIPPED[:20]]), noise=st.binary(max_size=80))
def test_any_bytes_end_in_requests_or_in_one_complaint(scratch: Path, start: bytes, noise: bytes) -> None:
    scratch.write_bytes(start + noise)
    outcome = _trace_or_complaint(scratch)
    assert outcome.isprintable() if isinstance(outcome, str) else len(outcome) > 0


@given(cut=st.integers(0, 200))
def test_any_truncation_ends_in_requests_or_in_one_complaint(scratch: Path, cut: int) -> None:
    whole = AZURE + b"%s,374,44\n%s,12,3\n" % (MOMENT, MOMENT)
    scratch.write_bytes(whole[:cut])
    outcome = _trace_or_complaint(scratch)
    if isinstance(outcome, str):
        assert outcome.isprintable()
    else:
        assert outcome.prompt_tokens.tolist() == [374, 12][: len(outcome)]

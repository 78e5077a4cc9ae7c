"""The journal, read back: what a cache manager did, one line of JSON a transition.

    {"journal":"pagedkv","version":1,"blocks":40000,"block_size":16,"streams":2,"discipline":"fence","launches":64}
    {"op":"add","seq":3,"n":374,"out":[9,8]}
    {"op":"extend","seqs":[3,5],"counts":[2,1],"out":[77],"copies":[[5,9,77,3]]}
    {"op":"fork","parent":3,"child":6}
    {"op":"launch","id":7,"rows":[3,5],"counts":[2,1],"stream":1,"after":[6]}
    {"op":"retire","id":7,"freed":[4]}
    {"op":"release","seq":3}
    {"op":"end","lines":123456,"digest":"..."}

A line is an operation of the alphabet with the choices that the manager made: `out` are blocks taken, in order of
taking; a copy is (sequence, source, target, extent); `after` are launches that must have executed before; `freed` are
blocks that became free. Empty fields, counts of 1 and stream 0 may be left out. `launches` is the limit of launches in
flight; left out, there is none. Refused operations are no transitions; executions are the device's, and the host cannot
see them. Sequence names are the writer's, any integer of 64 bits.

The last line has the number of lines before it and their digest: BLAKE2b, 256 bits, in hexadecimal, over all bytes
before it, line ends included. So a line altered, lost or added anywhere is found at the latest there.

Nobody vouches for a file. What never was a journal of this kind (nothing, a picture, another version) is
`InvalidJournal`: bad input. What says in its first line that it is one and then is not in order is `Broken("JOURNAL",
"line N: ...")`: a failed audit. A last line that was cut off is reported and never guessed at. Reading is linear and
streams: one line is in memory at a time, and lines have a limit, so that a small archive cannot unpack to terabytes.
"""

import gzip
import hashlib
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from itertools import repeat
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from .alphabet import Add, Extend, Fork, Operation, Release, Retire, Submit
from .operations import Outcome, Rows
from .refusals import Broken
from .state import Config, Copy

VERSION = 1
LINE_BYTES_MAX = 1 << 26  # a launch of five million rows
NUMBER_MAX = 2**63 - 1
NO_LIMIT = NUMBER_MAX  # of launches in flight
QUOTED_CHARACTERS_MAX = 60
_GZIP_MAGIC = b"\x1f\x8b"


class InvalidJournal(Exception):  # noqa: N818  (the file is at fault, not the program)
    """A file is no journal of this kind: where it is, what is wrong with it, what to do about it."""

    def __init__(self, where: str, what: str, remedy: str) -> None:
        super().__init__(where, what, remedy)
        self.where = where
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{_printable(self.where)}: {self.what}; {self.remedy}"


class Record(NamedTuple):
    """One line: an operation that was done, and what the manager decided in it."""

    line: int  # from 1, the header's
    operation: Operation
    outcome: Outcome


class Journal:
    """An open journal. Iterate once over its records; the end is verified when it is reached.

    Errors while iterating: `Broken("JOURNAL", "line N: ...")`.
    """

    def __init__(self, name: str, raw: BinaryIO, lines: BinaryIO) -> None:
        self.name = name
        self.line = 0  # the number of the line that was read last
        self._raw = raw
        self._lines = lines
        self._digest = hashlib.blake2b(digest_size=32)
        self.config = self._header()

    @property
    def bytes_read(self) -> int:
        """How far into the file, compressed or not, reading is."""
        return self._raw.tell()

    def __iter__(self) -> Iterator[Record]:
        while True:
            line = self._next()
            if not line:
                raise Broken("JOURNAL", f"line {self.line + 1}: the journal stops here, and no line said `end`")
            fields = self._fields(line)
            word = fields.pop("op", None)
            if word == "end":
                self._verify_end(line, fields)
                return
            self._digest.update(line)
            try:
                yield Record(self.line, *_transition(word, fields, self.config))
            except ValueError as error:
                raise self._wrong(str(error)) from None

    def _header(self) -> Config:
        """Read the first line. What it takes for a journal at all is its kind, its version and its discipline."""
        line = self._next()
        if not line:
            raise InvalidJournal(self.name, "the file is empty", "name a journal")
        try:
            fields = self._fields(line)
        except Broken:
            fields = {}
        if fields.pop("journal", None) != "pagedkv":
            raise InvalidJournal(self.name, "the first line is not that of a journal", "name a journal of pagedkv")
        version, discipline = fields.pop("version", None), fields.pop("discipline", None)
        if version != VERSION or type(version) is not int:
            what = f"a journal of version {_quoted(version)}, and this reads version {VERSION}"
            raise InvalidJournal(self.name, what, "audit it with the version that wrote it")
        if discipline != "fence":
            what = f"a journal under the discipline {_quoted(discipline)}, and the audit knows `fence`"
            raise InvalidJournal(self.name, what, "audit it with a version that knows it")
        try:
            fields.setdefault("launches", NO_LIMIT)
            sizes = {field: _number(fields, field) for field in Config._fields}
            _nothing_else(fields)
        except ValueError as error:
            raise self._wrong(str(error)) from None
        if min(sizes.values()) < 1:
            raise self._wrong(f"every size must be at least 1: {sizes}")
        self._digest.update(line)
        return Config(**sizes)

    def _next(self) -> bytes:
        """Return the next line with its end; nothing at the end of the file."""
        try:
            line = self._lines.readline(LINE_BYTES_MAX + 1)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            if self.line:
                raise Broken("JOURNAL", f"line {self.line + 1}: the gzip data is broken ({error})") from None
            raise InvalidJournal(self.name, f"the gzip data is broken ({error})", "fetch it again") from None
        self.line += bool(line)
        if len(line) > LINE_BYTES_MAX:
            raise self._wrong(f"a line of more than {LINE_BYTES_MAX:,} bytes")
        if line and not line.endswith(b"\n") and self.line > 1:
            raise self._wrong("the line was cut off: it has no end")
        return line

    def _fields(self, line: bytes) -> dict[str, Any]:
        try:
            fields, end = _DECODER.raw_decode(line.decode("ascii"))
        except RecursionError:
            raise self._wrong("nested too deeply") from None
        except UnicodeDecodeError as error:
            raise self._wrong(f"not ASCII text at byte {error.start + 1}") from None
        except ValueError as error:
            raise self._wrong(f"not JSON ({_printable(str(error))[:QUOTED_CHARACTERS_MAX]})") from None
        if not isinstance(fields, dict):
            raise self._wrong(f"not a JSON object: {_quoted(fields)}")
        if line[end:].strip():
            raise self._wrong(f"more than one JSON object: {_quoted(line[end:])}")
        return fields

    def _verify_end(self, line: bytes, fields: dict[str, Any]) -> None:
        """Compare the last line with what it has to be, to the byte, and look for lines behind it."""
        before = self.line - 1
        if fields.get("lines") != before:
            raise self._wrong(f"{before} lines come before the end, and it says {_quoted(fields.get('lines'))}")
        if line != b'{"op":"end","lines":%d,"digest":"%s"}\n' % (before, self._digest.hexdigest().encode()):
            raise self._wrong("the digest does not fit the lines before it: something was altered")
        if self._next():
            raise self._wrong("a line after the end")

    def _wrong(self, what: str) -> Broken:
        return Broken("JOURNAL", f"line {self.line}: {what}")


@contextmanager
def open_journal(path: Path) -> Iterator[Journal]:
    """Open a journal, plain or gzip, and read its header. Errors: `InvalidJournal`; `Broken` for a wrong size in it."""
    name = str(path)
    try:
        with path.open("rb") as raw, _unpacked(path, raw) as lines:
            yield Journal(name, raw, lines)
    except OSError as error:
        raise InvalidJournal(name, f"cannot be read ({error.strerror or error})", "name a readable file") from None
    except ValueError as error:  # a NUL character in the name
        raise InvalidJournal(name, f"no file name ({error})", "name a readable file") from None


def _unpacked(path: Path, raw: BufferedReader) -> BinaryIO:
    if raw.peek(2)[:2] == _GZIP_MAGIC:
        return cast("BinaryIO", gzip.GzipFile(fileobj=raw))
    if path.suffix == ".gz":
        raise InvalidJournal(str(path), "no gzip data, though the name ends in .gz", "rename or compress it")
    return raw


# ---- from fields to operations ----------------------------------------------------------------------------------


Fields = dict[str, Any]


def _transition(word: object, fields: Fields, config: Config) -> tuple[Operation, Outcome]:
    """Return the operation of a line and what was decided; `ValueError` says what is wrong with it."""
    read = _READERS.get(word) if isinstance(word, str) else None
    if read is None:
        raise ValueError(f"no operation: {_quoted(word)}")
    found = read(fields)
    _nothing_else(fields)
    if isinstance(found[0], Submit) and not 0 <= found[0].stream < config.streams:
        raise ValueError(f"a launch on stream {found[0].stream}, and the header says {config.streams} streams")
    return found


def _add(fields: Fields) -> tuple[Operation, Outcome]:
    return Add(_number(fields, "seq"), _number(fields, "n", 1)), Outcome(blocks=tuple(_numbers(fields, "out")))


def _extend(fields: Fields) -> tuple[Operation, Outcome]:
    rows = _batch(fields, "seqs")
    copies = fields.pop("copies", [])
    if not isinstance(copies, list) or any(not isinstance(copy, list) or len(copy) != 4 for copy in copies):
        raise ValueError(f"`copies` must be a list of [sequence, source, target, extent]: {_quoted(copies)}")
    planned = tuple(Copy(*_all_numbers("copies", copy)) for copy in copies)
    return Extend(rows), Outcome(blocks=tuple(_numbers(fields, "out")), copies=planned)


def _fork(fields: Fields) -> tuple[Operation, Outcome]:
    return Fork(_number(fields, "parent"), _number(fields, "child")), Outcome()


def _launch(fields: Fields) -> tuple[Operation, Outcome]:
    rows, stream = _batch(fields, "rows"), _number(fields, "stream", 0)
    return Submit(rows, stream), Outcome(launch=_number(fields, "id"), after=_distinct(fields, "after"))


def _retire(fields: Fields) -> tuple[Operation, Outcome]:
    return Retire(_number(fields, "id")), Outcome(freed=_distinct(fields, "freed"))


def _release(fields: Fields) -> tuple[Operation, Outcome]:
    return Release(_number(fields, "seq")), Outcome(freed=_distinct(fields, "freed"))


_READERS: Mapping[str, Callable[[Fields], tuple[Operation, Outcome]]] = {
    "add": _add,
    "extend": _extend,
    "fork": _fork,
    "launch": _launch,
    "retire": _retire,
    "release": _release,
}


def _batch(fields: Fields, key: str) -> Rows:
    names = _numbers(fields, key)
    if "counts" not in fields:
        return tuple(zip(names, repeat(1)))
    counts = _numbers(fields, "counts")
    if len(counts) != len(names):
        raise ValueError(f"{len(counts)} counts for {len(names)} rows")
    return tuple(zip(names, counts, strict=True))


def _number(fields: Fields, key: str, default: int | None = None) -> int:
    value = fields.pop(key, default)
    if type(value) is int and -NUMBER_MAX <= value <= NUMBER_MAX:
        return value
    if value is None:
        raise ValueError(f"no field `{key}`")
    return _all_numbers(key, [value])[0]  # says what is wrong


def _numbers(fields: Fields, key: str) -> list[int]:
    values = fields.pop(key, [])
    if not isinstance(values, list):
        raise ValueError(f"`{key}` must be a list: {_quoted(values)}")  # noqa: TRY004  (one error for all that a line holds)
    return _all_numbers(key, values)


def _all_numbers(key: str, values: list[Any]) -> list[int]:
    """Return the values if all are integers of 64 bits. Passes over long lists, hence not a loop of ours."""
    if not values:
        return values
    if set(map(type, values)) != {int}:  # which true and false are not, here
        wrong = next(value for value in values if type(value) is not int)
        raise ValueError(f"`{key}` must be integers: {_quoted(wrong)}")
    if max(values) > NUMBER_MAX or min(values) < -NUMBER_MAX:
        raise ValueError(f"`{key}` has a number beyond 64 bits")
    return values


def _distinct(fields: Fields, key: str) -> frozenset[int]:
    values = _numbers(fields, key)
    distinct = frozenset(values)
    if len(distinct) < len(values):
        raise ValueError(f"`{key}` names something twice: {_quoted(values)}")
    return distinct


def _nothing_else(fields: Fields) -> None:
    if fields:
        raise ValueError(f"no such field here: {', '.join(_quoted(key) for key in fields)}"[:200])


def _without_duplicates(pairs: list[tuple[str, Any]]) -> Fields:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field stands twice")
    return fields


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is no number")


_DECODER = json.JSONDecoder(object_pairs_hook=_without_duplicates, parse_constant=_no_constant)


def _quoted(value: object) -> str:
    """Give a value as Python would write it, cut to a length that fits into a message."""
    try:
        text = _printable(repr(value)[: 4 * QUOTED_CHARACTERS_MAX])
    except RecursionError:
        return "something nested too deeply"
    return text if len(text) <= QUOTED_CHARACTERS_MAX else f"{text[: QUOTED_CHARACTERS_MAX - 3]}..."


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text)

"""The journal, read back: what a cache manager did, one line of JSON a transition.

    {"journal":"pagedkv","version":1,"blocks":40000,"block_size":16,"streams":2,"discipline":"fence","launches":64}
    {"op":"add","seq":3,"n":374,"out":[9,8]}
    {"op":"add","seq":4,"n":3,"tokens":[5,6,7],"salt":7,"hits":[5],"out":[9]}
    {"op":"extend","seqs":[3,5],"counts":[2,1],"out":[77],"copies":[[5,9,77,3]]}
    {"op":"fork","parent":3,"child":6}
    {"op":"launch","id":7,"rows":[3,5],"counts":[2,1],"stream":1,"after":[6]}
    {"op":"retire","id":7,"freed":[4]}
    {"op":"release","seq":3}
    {"op":"publish","seqs":[4],"tokens":[[8]],"retention":1,"published":[9],"merged":[[4,0,2,5]],"freed":[2]}
    {"op":"pin","pin":1,"tokens":[5,6],"salt":7,"hits":[5]}
    {"op":"unpin","pin":1,"freed":[5]}
    {"op":"clear","freed":[5]}
    {"op":"end","lines":123456,"digest":"..."}

A line is an operation of the alphabet with the choices that the manager made: `out` are blocks taken, in order of
taking; a copy is (sequence, source, target, extent); `after` are launches that must have executed before; `freed` are
blocks that became free, or evictable where they are published; `hits` are blocks found in the index; a merge is
(sequence, place in its row, its own block, the published one). Empty fields, counts of 1 and zeros may be left out.
`launches` is the limit of launches in flight; left out, there is none. Refused operations are no transitions;
executions are the device's, and the host cannot see them. Sequence names are the writer's, any integer of 64 bits.

The last line has the number of lines before it and their digest: BLAKE2b, 256 bits, in hexadecimal, over all bytes
before it, line ends included. So a line altered, lost or added anywhere is found at the latest there.

Nobody vouches for a file. What never was a journal of this kind (nothing, a picture, another version) is
`InvalidJournal`: bad input. What says in its first line that it is one and then is not in order is `Broken("JOURNAL",
"line N: ...")`: a failed audit. A last line that was cut off is reported and never guessed at. Reading is linear and
streams: one line is in memory at a time, and lines have a limit, so that a small archive cannot unpack to terabytes.
"""

import gzip
import hashlib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from .alphabet import Operation, Submit
from .journal_lines import NUMBER_MAX, Fields, nothing_else, number, parse, quoted, transition
from .outcome import Outcome
from .quoting import one_line
from .refusals import Broken
from .state import Config

VERSION = 1
LINE_BYTES_MAX = 1 << 26  # a launch of five million rows
NO_LIMIT = NUMBER_MAX  # of launches in flight
_GZIP_MAGIC = b"\x1f\x8b"


class InvalidJournal(Exception):  # noqa: N818  (the file is at fault, not the program)
    """A file is no journal of this kind: where it is, what is wrong with it, what to do about it."""

    def __init__(self, where: str, what: str, remedy: str) -> None:
        super().__init__(where, what, remedy)
        self.where = where
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{one_line(self.where)}: {self.what}; {self.remedy}"


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
                operation, outcome = transition(word, fields)
            except ValueError as error:
                raise self._wrong(str(error)) from None
            if isinstance(operation, Submit) and not 0 <= operation.stream < self.config.streams:
                raise self._wrong(f"stream {operation.stream}, and the header says {self.config.streams} streams")
            yield Record(self.line, operation, outcome)

    def _header(self) -> Config:
        """Read the first line. What it takes for a journal at all is its kind, its version and its discipline."""
        line, fields = b"", {}
        with suppress(Broken):  # whatever is wrong with it, it is no header
            line = self._next()
            fields = self._fields(line)
        if not self.line:
            raise InvalidJournal(self.name, "the file is empty", "name a journal")
        if fields.pop("journal", None) != "pagedkv":
            raise InvalidJournal(self.name, "the first line is not that of a journal", "name a journal of pagedkv")
        version, discipline = fields.pop("version", None), fields.pop("discipline", None)
        if version != VERSION or type(version) is not int:
            what = f"a journal of version {quoted(version)}, and this reads version {VERSION}"
            raise InvalidJournal(self.name, what, "audit it with the version that wrote it")
        if discipline != "fence":
            what = f"a journal under the discipline {quoted(discipline)}, and the audit knows `fence`"
            raise InvalidJournal(self.name, what, "audit it with a version that knows it")
        try:
            fields.setdefault("launches", NO_LIMIT)
            sizes = {field: number(fields, field) for field in Config._fields}
            nothing_else(fields)
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
        except OSError as error:
            raise _unreadable(self.name, error) from None
        self.line += bool(line)
        if len(line) > LINE_BYTES_MAX:
            raise self._wrong(f"a line of more than {LINE_BYTES_MAX:,} bytes")
        if line and not line.endswith(b"\n") and self.line > 1:
            raise self._wrong("the line was cut off: it has no end")
        return line

    def _fields(self, line: bytes) -> Fields:
        try:
            return parse(line.decode("ascii"))
        except UnicodeDecodeError as error:
            raise self._wrong(f"not ASCII text at byte {error.start + 1}") from None
        except ValueError as error:
            raise self._wrong(str(error)) from None

    def _verify_end(self, line: bytes, fields: Fields) -> None:
        """Compare the last line with what it has to be, to the byte, and look for lines behind it."""
        before = self.line - 1
        if fields.get("lines") != before:
            raise self._wrong(f"{before} lines come before the end, and it says {quoted(fields.get('lines'))}")
        if line != b'{"op":"end","lines":%d,"digest":"%s"}\n' % (before, self._digest.hexdigest().encode()):
            raise self._wrong("the digest does not fit the lines before it: something was altered")
        if self._next():
            raise self._wrong("a line after the end")

    def _wrong(self, what: str) -> Broken:
        return Broken("JOURNAL", f"line {self.line}: {what}")


@contextmanager
def open_journal(path: Path) -> Iterator[Journal]:
    """Open a journal, plain or gzip, and read its header. Errors: `InvalidJournal`; `Broken` for a wrong size in it."""
    try:
        raw = path.open("rb")
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the name
        raise _unreadable(str(path), error) from None
    with raw, _unpacked(path, raw) as lines:
        yield Journal(str(path), raw, lines)


def _unreadable(name: str, error: OSError | ValueError) -> InvalidJournal:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return InvalidJournal(name, f"cannot be read ({reason})", "name a readable file")


def _unpacked(path: Path, raw: BufferedReader) -> BinaryIO:
    try:
        magic = raw.peek(2)[:2]
    except OSError as error:
        raise _unreadable(str(path), error) from None
    if magic == _GZIP_MAGIC:
        return cast("BinaryIO", gzip.GzipFile(fileobj=raw))
    if path.suffix == ".gz":
        raise InvalidJournal(str(path), "no gzip data, though the name ends in .gz", "rename or compress it")
    return raw

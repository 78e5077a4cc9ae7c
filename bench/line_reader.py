"""Text lines of a file nobody vouches for, each with its number.

Traces and journals come from elsewhere: compressed or not, with any line ends, cut off, in the wrong encoding, or no
text at all. `LineReader` turns all of that into lines without line ends, or into one `BadInput` that names file and
line. It streams: one line is in memory at a time, and a line has a limit, so that a file without line ends (or a
small archive that unpacks to terabytes of them) costs no more than that limit.

A file is taken for gzip by its first two bytes. Where the name alone says `.gz` the file is refused, rather than read
as something that its writer did not mean.
"""

import gzip
import zlib
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

from pagedkv.bench.failures import BadInput

LINE_BYTES_MAX = 1 << 24
GZIP_MAGIC = b"\x1f\x8b"
BYTE_ORDER_MARK = "\ufeff"


class LineReader:
    """Iterate once over the lines of `path`; `number` is that of the line given last, from 1; 0 before the first.

    Blank lines are passed over (and counted). Errors: `BadInput` for a missing file, a directory, broken gzip, text
    that is not UTF-8, a NUL byte, a line of more than 16 MiB. Cost: linear in the file, memory of one line.
    """

    def __init__(self, path: Path) -> None:
        """Nothing is opened before the first line is asked for."""
        self.path = path
        self.number = 0

    def wrong(self, what: str, remedy: str) -> BadInput:
        """Say that the line given last is wrong (or the whole file, where none was given)."""
        where = f"{self.path}:{self.number}" if self.number else str(self.path)
        return BadInput(where, what, remedy)

    def __iter__(self) -> Iterator[str]:
        try:
            with self.path.open("rb") as file, self._unpacked(file) as unpacked:
                while line := unpacked.readline(LINE_BYTES_MAX + 1):
                    self.number += 1
                    if text := self._text(line):
                        yield text
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise BadInput(str(self.path), f"broken gzip data ({error})", "compress or fetch it again") from error
        except (OSError, ValueError) as error:  # ValueError: a NUL character in the name
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise BadInput(str(self.path), f"cannot be read ({reason})", "name a readable file") from error

    def _unpacked(self, file: BufferedReader) -> BufferedReader | gzip.GzipFile:
        """Unpack `file` where it is gzip. Peeking, not seeking: a pipe is as good as a file."""
        if file.peek(2)[:2] == GZIP_MAGIC:
            return gzip.GzipFile(fileobj=file)
        if self.path.suffix == ".gz":
            raise BadInput(str(self.path), "no gzip data, though the name ends in .gz", "rename or compress it")
        return file

    def _text(self, line: bytes) -> str:
        """Decode one line and take its end off."""
        if len(line) > LINE_BYTES_MAX:
            raise self.wrong(f"a line of more than {LINE_BYTES_MAX:,} bytes", "is this a text file?")
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.wrong(f"no UTF-8 text ({error.reason} at byte {error.start})", "save it as UTF-8") from error
        if "\0" in text:
            raise self.wrong("a NUL byte", "is this a text file? save it as UTF-8")
        if self.number == 1:
            text = text.removeprefix(BYTE_ORDER_MARK)
        return text.strip("\r\n")

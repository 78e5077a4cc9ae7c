"""The journal: one line of JSON at each transition, so that a run can be audited, compared and shown afterwards.

A header, one object an operation with the choices that the cache made, and a closing line with the number of lines
before it and a digest of all bytes before it (BLAKE2b, 256 bits). Empty fields, counts of 1 and stream 0 are left out;
refused operations are no transitions and leave no line. A file is there in full or not at all: it is written under a
temporary name beside its own and renamed when it is closed; where writing ends in an exception it is removed.

    {"journal":"pagedkv","version":1,"blocks":40000,"block_size":16,"streams":1,"discipline":"fence","launches":64}
    {"op":"add","seq":3,"n":374,"out":[9,8]}
    {"op":"extend","seqs":[3,5],"counts":[2,1],"out":[77],"copies":[[5,9,77,3]]}
    {"op":"fork","parent":3,"child":6}
    {"op":"launch","id":7,"rows":[3,5],"stream":1,"after":[6]}
    {"op":"retire","id":7,"freed":[4]}
    {"op":"release","seq":3}
    {"op":"end","lines":123456,"digest":"..."}

Cost: about 40 ns an integer. Lines are put together as text, since an encoder would look at each integer once more, and
a batch that comes again (an engine launches what it has just extended) is turned into text once.
"""

import contextlib
import gzip
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import mkstemp
from types import TracebackType
from typing import BinaryIO, Self, cast

import numpy as np

from .arrays import Int64Array
from .refusals import InvalidArgument

BUFFER_BYTES = 1 << 20


class JournalWriter:
    """Writes a journal. `close` completes it, `abandon` removes it; as a context manager it does the one or the other.

    It does not check what it is told, so drivers without a `BlockCache` can use it, too. Batches may be lists or int64
    arrays. Errors: `InvalidArgument` where the file can't be opened. Where a write fails, the journal is abandoned and
    `close` says so with the `OSError`, which is in `failure` from then on; the operation that wrote goes on, since it
    has been done, and an engine needs what it returns.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, blocks: int, block_size: int, streams: int = 1, launches: int = 64
    ) -> None:
        self.lines = 0
        self.failure: OSError | None = None
        try:
            self.path = Path(path).resolve()  # a link is followed, lest it is replaced
            if self.path.exists() and not self.path.is_file():
                raise InvalidArgument(f"cannot write a journal to {self.path}: it is no plain file; name another")
            handle, temporary = mkstemp(".part", f".{self.path.name}.", self.path.parent)
        except (OSError, RuntimeError, TypeError, ValueError) as error:  # a loop of links, no path, a NUL in it
            if isinstance(error, InvalidArgument):
                raise
            why = getattr(error, "strerror", None) or error
            raise InvalidArgument(f"cannot write a journal to {path!r}: {why}; name another file") from None
        self._temporary = Path(temporary)  # of its own, though two journals are written to one name
        self._temporary.chmod(0o666 & ~_umask())
        self._raw: BinaryIO = os.fdopen(handle, "wb")
        compressed = self.path.suffix == ".gz"
        self._file = cast("BinaryIO", gzip.GzipFile("", "wb", 6, self._raw, mtime=0) if compressed else self._raw)
        self._digest = hashlib.blake2b(digest_size=32)
        self._pending: list[str] = []
        self._pending_bytes = 0
        self._last_batch: tuple[Int64Array, str] | None = None
        header = {"journal": "pagedkv", "version": 1, "blocks": blocks, "block_size": block_size}
        header |= {"streams": streams, "discipline": "fence", "launches": launches}
        self._line(json.dumps(header, separators=(",", ":")))

    def add(self, seq: int, count: int, blocks: list[int]) -> None:
        """Write that a sequence of `count` tokens took `blocks`."""
        self._line(f'{{"op":"add","seq":{seq},"n":{count}{_field("out", blocks)}}}')

    def extend(
        self,
        seqs: Sequence[int] | Int64Array,
        counts: int | Sequence[int] | Int64Array,
        blocks: list[int],
        copies: Sequence[tuple[int, int, int, int]] = (),
    ) -> None:
        """Write that a batch was extended, taking `blocks`, planning copies (sequence, source, target, extent)."""
        batch = self._batch("seqs", seqs, counts)
        self._line(f'{{"op":"extend"{batch}{_field("out", blocks)}{_field("copies", [[*copy] for copy in copies])}}}')

    def fork(self, parent: int, child: int) -> None:
        """Write that a child began."""
        self._line(f'{{"op":"fork","parent":{parent},"child":{child}}}')

    def launch(
        self,
        launch_id: int,
        seqs: Sequence[int] | Int64Array,
        counts: int | Sequence[int] | Int64Array,
        stream: int = 0,
        after: Sequence[int] = (),
    ) -> None:
        """Write that a batch was launched, on a stream, after launches of other streams."""
        on = f',"stream":{stream}' if stream else ""
        self._line(
            f'{{"op":"launch","id":{launch_id}{self._batch("rows", seqs, counts)}{on}{_field("after", [*after])}}}'
        )

    def retire(self, launch_id: int, freed: list[int]) -> None:
        """Write that the host learnt of a launch's end, and which blocks became free."""
        self._line(f'{{"op":"retire","id":{launch_id}{_field("freed", freed)}}}')

    def release(self, seq: int, freed: list[int]) -> None:
        """Write that a sequence was let go, and which blocks became free at once."""
        self._line(f'{{"op":"release","seq":{seq}{_field("freed", freed)}}}')

    def close(self) -> None:
        """Write the closing line and give the file its name. A second call does nothing.

        Errors: `OSError` where this write or an earlier one failed; no file is left then.
        """
        if self.failure is not None:
            raise self.failure
        if self._raw.closed:
            return
        try:
            lines = self.lines
            self._flush()
            self._line(f'{{"op":"end","lines":{lines},"digest":"{self._digest.hexdigest()}"}}')
            self._flush()
            if self.failure is None:
                self._file.close()
                self._raw.close()
                self._temporary.replace(self.path)
        except BaseException:
            self.abandon()
            raise
        if self.failure is not None:
            raise self.failure

    def abandon(self) -> None:
        """Stop writing and leave nothing behind."""
        with contextlib.suppress(OSError):  # what is left in the buffers may find the disk full: it is of no use
            self._file.close()
        with contextlib.suppress(OSError):
            self._raw.close()
        self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def _line(self, text: str) -> None:
        if self._raw.closed:  # abandoned: what follows would be half of the truth
            return
        self.lines += 1
        self._pending.append(text)
        self._pending_bytes += len(text)
        if self._pending_bytes > BUFFER_BYTES:
            self._flush()

    def _flush(self) -> None:
        text = "".join(f"{line}\n" for line in self._pending).encode("ascii")
        self._pending.clear()
        self._pending_bytes = 0
        self._digest.update(text)
        try:
            self._file.write(text)
        except OSError as error:
            self.failure = error
            self.abandon()

    def _batch(self, key: str, seqs: Sequence[int] | Int64Array, counts: int | Sequence[int] | Int64Array) -> str:
        """Return the fields of a batch: names, and counts unless all are 1."""
        names = np.asarray(seqs, np.int64)
        if self._last_batch is None or not np.array_equal(self._last_batch[0], names):
            self._last_batch = names.copy(), _text(names.tolist())
        field = f',"{key}":{self._last_batch[1]}' if names.size else ""
        if isinstance(counts, int):
            return field if counts == 1 else field + _field("counts", [counts] * names.size)
        amounts = np.asarray(counts, np.int64)
        return field if (amounts == 1).all() else field + _field("counts", amounts.tolist())


def _umask() -> int:
    """Return the mask of new files, which can be read by setting it alone."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _field(key: str, values: list[int] | list[list[int]]) -> str:
    """Return a field of JSON, left out where it is empty."""
    return f',"{key}":{_text(values)}' if values else ""


def _text(values: list[int] | list[list[int]]) -> str:
    """Return a list of integers as JSON: Python writes it the same, with blanks."""
    return str(values).replace(" ", "")

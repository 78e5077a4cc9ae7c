"""Where a command's machine-readable results go: a file that is there in full or not at all.

A command that runs for minutes and can't write its result in the end has wasted them, so `output_file` is asked first:
it finds the missing folder, the folder in place of a file, and the file that is about to be read. Results are written
beside their file and renamed, so that a reader never sees half of them and a failure leaves the old ones. Renaming
would also replace what is no file, so a device, a pipe or `/dev/stdout` is refused, and a link is followed first.
"""

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pagedkv.bench.failures import BadInput


def output_file(path: Path, option: str, keep: Iterable[Path] = ()) -> Path:
    """Give the file that `path` leads to, links followed, if a result may be put in its place.

    Errors: `BadInput` where it can't be written, is no plain file, or is one of the files in `keep`.
    """
    where = f"{option} {path}"
    if "\0" in str(path):  # most of pathlib takes such a name for one that is not there
        raise BadInput(where, "no usable file name", "name another file")
    try:
        file = path.resolve()
        if file.exists() and (not file.is_file() or Path("/dev") in path.absolute().parents):
            raise BadInput(where, "no plain file", "name a file; it is written in full and put in place at the end")
        if not file.parent.is_dir():
            raise BadInput(where, f"there is no folder {file.parent}", "make it first")
        if (file.exists() and not os.access(file, os.W_OK)) or not takes_files(file.parent):
            raise BadInput(where, "may not be written", "name another file")
        for other in keep:
            if _is_same(file, other):
                raise BadInput(where, "in use by the same command", "name another file")
    except (OSError, RuntimeError) as error:  # a name too long, a loop of links
        raise BadInput(where, f"no usable file name ({error})", "name another file") from error
    return file


def takes_files(folder: Path) -> bool:
    """Say whether a file can be made in a folder, by making one that has no name and is gone at once.

    Rights alone don't say it: the superuser has all of them, on a file system that takes no files, too.
    """
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _is_same(file: Path, other: Path) -> bool:
    """Say whether two names are of one file; a name that is none is that of no file, as whoever reads it will say."""
    try:
        return other.resolve() == file or (file.exists() and other.exists() and file.samefile(other))
    except (OSError, RuntimeError, ValueError):
        return False


def write_json(file: Path, results: Mapping[str, Any]) -> None:
    """Write `results` to a plain file, all of it or nothing. Errors: `OSError`."""
    write_whole(file, (json.dumps(results, indent=2, allow_nan=False) + "\n").encode())


def write_whole(file: Path, content: bytes) -> None:
    """Write a plain file, all of it or nothing. Errors: `OSError`."""
    unfinished = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)

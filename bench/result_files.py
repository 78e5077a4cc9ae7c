"""Where a command's machine-readable results go: a file that is there in full or not at all.

A command that runs for minutes and can't write its result in the end has wasted them, so `check_output` is asked first:
it finds the missing folder, the folder in place of a file, and the file that is about to be read. `write_json` writes
beside the target and renames, so that a reader never sees half a file and a failure leaves the old one.
What is there and is no plain file (a pipe, `/dev/stdout`) is written to as it is: renaming would replace it.
"""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pagedkv.bench.failures import BadInput


def check_output(path: Path, option: str, keep: Iterable[Path] = ()) -> None:
    """Refuse a target that can't be written, or that is one of the files in `keep`. Errors: `BadInput`."""
    where = f"{option} {path}"
    if "\0" in str(path):  # most of pathlib takes such a name for one that is not there
        raise BadInput(where, "no usable file name", "name another file")
    try:
        if path.is_dir():
            raise BadInput(where, "a folder", "name a file")
        if not path.parent.is_dir():
            raise BadInput(where, f"there is no folder {path.parent}", "make it first")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise BadInput(where, "may not be written", "name another file")
        for other in keep:
            if other.resolve() == path.resolve() or (path.is_file() and other.exists() and path.samefile(other)):
                raise BadInput(where, "in use by the same command", "name another file")
    except (OSError, ValueError, RuntimeError) as error:  # a name too long, a loop of links
        raise BadInput(where, f"no usable file name ({error})", "name another file") from error


def write_json(path: Path, results: Mapping[str, Any]) -> None:
    """Write `results` to `path`, all of it or nothing. Errors: `OSError`."""
    text = json.dumps(results, indent=2, allow_nan=False) + "\n"
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)

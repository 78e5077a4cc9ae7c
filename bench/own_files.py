"""Files that the commands leave, told from one another where the wrong one is named.

A search leaves a trace beside a journal and a picture, and `replay`, `compare`, `show` and `fuzz --again` each take one
kind of file. Who names another kind is told what the file is, and the command that takes it. Only the beginning of a
file is looked at, so this costs nothing on a journal of gigabytes.
"""

import gzip
import shlex
import zlib
from pathlib import Path

from pagedkv.bench.failures import BadInput

TRACE_KIND = "pagedkv trace"
ENDINGS = TRACE, JOURNAL, PICTURE = (".trace.json", ".journal.jsonl", ".png")  # of the files of a counterexample
_LOOKED_AT_BYTES = 4096
_BEGINS = {JOURNAL: '{"journal": "pagedkv"', TRACE: f'{{"kind": "{TRACE_KIND}"'}


def beside(trace: Path) -> list[Path]:
    """Return a counterexample's files by the name of its trace file, itself among them."""
    stem = trace.name.removesuffix(TRACE)
    return [trace, *(trace.with_name(f"{stem}{ending}") for ending in ENDINGS)]


def another_of_ours(where: str, path: Path, wanted: str = "") -> BadInput | None:
    """Return what is to be said of a file that is a `JOURNAL` or a counterexample's `TRACE`, and not what is `wanted`.

    None where it is neither, or is of the kind that is wanted and wrong in another way.
    """
    begins, name = _dense(_beginning(path)), shlex.quote(str(path))
    if wanted != JOURNAL and begins.startswith(_dense(_BEGINS[JOURNAL])):
        remedy = f"pagedkv compare {name} audits it, pagedkv show {name} draws it"
        return BadInput(where, "the journal of a cache", remedy)
    if wanted != TRACE and begins.startswith(_dense(_BEGINS[TRACE])):
        pictures = [file for file in beside(path) if file.suffix == PICTURE and file.is_file()]
        drawn = f", its picture is {pictures[0]}" if pictures else ""
        return BadInput(where, "the trace of a counterexample", f"pagedkv fuzz --again {name} shows it{drawn}")
    return None


def _dense(text: str) -> str:
    """Return a text without blanks and line ends, which JSON may have anywhere."""
    return "".join(text.split())


def _beginning(path: Path) -> str:
    """Return how a plain file begins, unpacked; nothing of what can't be read."""
    try:
        if not path.is_file():  # a pipe can't be read twice
            return ""
        with path.open("rb") as raw:
            packed = raw.peek(2)[:2] == b"\x1f\x8b"
            with gzip.GzipFile(fileobj=raw) if packed else raw as lines:
                return lines.read(_LOOKED_AT_BYTES).decode(errors="replace")
    except (OSError, ValueError, EOFError, zlib.error):
        return ""

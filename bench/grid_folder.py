"""Finished cells of grids in a folder: each in a file of its own, whole or not there, under the key of its identity.

A grid that is stopped, by Ctrl-C, a full disk or the end of the machine, has lost only the cells that were under way.
Several grids may share a folder, also at the same time: a cell of one is a cell of the other. What cannot be read, was
written for another identity, or has figures that are not the ones that were written (their digest stands beside them),
is not there, and the cell is run again. Failures are not kept, since what failed (no
memory, a machine that left) may not fail the next time.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from pagedkv.bench.grid import DIGEST_BYTES, Figures, key_of
from pagedkv.bench.result_files import write_json

CELLS = "cells"


class FinishedCells:
    """The finished cells of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / CELLS

    def find(self, identity: dict[str, Any]) -> Figures | None:
        """Return the figures of a cell that was finished earlier."""
        try:
            kept = json.loads(self._file(identity).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        if not isinstance(kept, dict) or kept.get("identity") != identity or not isinstance(kept.get("figures"), dict):
            return None
        figures: Figures = kept["figures"]
        return figures if kept.get("figures_digest") == _digest(figures) else None

    def keep(self, identity: dict[str, Any], figures: Figures) -> None:
        """Put a finished cell into the folder, which is made if need be. Errors: `OSError`."""
        self._folder.mkdir(parents=True, exist_ok=True)
        write_json(self._file(identity), {"identity": identity, "figures_digest": _digest(figures), "figures": figures})

    def _file(self, identity: dict[str, Any]) -> Path:
        return self._folder / f"{key_of(identity)}.json"


def _digest(figures: Figures) -> str:
    """Return what changes with any figure: a number that JSON has read is that which it has written."""
    text = json.dumps(figures, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).hexdigest()

"""Live sequences, as the audit keeps them, and how it says that a line did what the spec refuses.

What a sequence knows of prefixes is kept with it, since it comes and goes with it.
"""

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from typing import NoReturn

from .refusals import Broken, Reason
from .state import Block, Copy, LaunchId, Name

Writes = tuple[tuple[LaunchId, int], ...]  # a launch, and the first position that it writes


class Tracked:
    """A live sequence: its row, its lengths, its newest launch or its parent's at the fork, its planned copy.

    What prefixes are about: its salt, the epoch of its weights, the ids it knows; how many blocks from the first are
    published (`settled`), which of its blocks none of its launches has reached yet (`unread`), and which launches of
    its parent's were in flight when it was forked (`inherited`), with the first position that each writes.
    """

    __slots__ = (
        "allocated",
        "begun",
        "copy",
        "inherited",
        "known",
        "launched",
        "newest",
        "row",
        "salt",
        "settled",
        "unread",
        "weights",
    )

    def __init__(self, row: list[Block], allocated: int, launched: int = 0, begun: LaunchId = 0) -> None:
        self.row = row
        self.allocated = allocated
        self.launched = launched
        self.begun = begun  # launches up to this one are none of its own
        self.newest: LaunchId = 0
        self.copy: Copy | None = None
        self.salt = self.weights = self.settled = 0
        self.known: list[int] = []
        self.unread: set[Block] = set()
        self.inherited: Writes = ()

    def clone(self) -> "Tracked":
        """Return an independent copy."""
        twin = Tracked(self.row.copy(), self.allocated, self.launched, self.begun)
        twin.newest, twin.copy = self.newest, self.copy
        twin.salt, twin.weights, twin.settled = self.salt, self.weights, self.settled
        twin.known, twin.unread, twin.inherited = self.known.copy(), self.unread.copy(), self.inherited
        return twin


def known_batch(sequences: Container[Name], rows: Sequence[tuple[Name, int]]) -> Mapping[Name, int]:
    """Guard a batch, each sequence once and each of them live, and return it by name. Errors: `Broken`."""
    batch = dict(rows)
    if len(batch) < len(rows):
        twice = Counter(name for name, _ in rows).most_common(1)[0][0]
        refused(Reason.DUPLICATE, f"sequence {twice} stands twice in the batch")
    for name in batch:
        if name not in sequences:
            refused(Reason.UNKNOWN, f"sequence {name} is not live")
    return batch


def refused(reason: Reason, why: str) -> NoReturn:
    """Say that a line has as done what the spec refuses. Errors: `Broken`, always."""
    space = reason in {Reason.NO_SPACE, Reason.TOO_LONG}
    raise Broken("R-CAP-1" if space else "R-TXN-1", f"done, and by the spec refused as {reason}: {why}")

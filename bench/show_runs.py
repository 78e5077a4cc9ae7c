"""From stills to what is drawn: runs of equal cells along a block's row, and a colour for each sequence.

The colours are Paul Tol's "light" scheme (SRON technical note, issue 3.2), made for cells with black text on them and
told apart by colour-blind readers. There are eight and any number of sequences, so a colour is given again, to the
sequence that comes next the one that has been out of sight longest. In print without colour the names in the cells, the
bands of shared blocks and the hatching of quarantined ones say the same.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from pagedkv.bench.show_film import Film
from pagedkv.bench.show_history import Cell, Holder, Standing
from pagedkv.spec.state import Block

COLOURS = ("#77AADD", "#EEDD88", "#EE8866", "#44BB99", "#FFAABB", "#BBCC33", "#99DDFF", "#AAAA00")
NOBODY = "#BBBBBB"  # held, and no row says by whom
NEVER_USED = Cell(Standing.FREE, (), 0, "")


class Run(NamedTuple):
    """A block that stays as it is, from one edge to another; the step n lies between n - 1/2 and n + 1/2."""

    left: float
    right: float
    cell: Cell


def edges(film: Film) -> list[float]:
    """Return the left edge of each still, and the right edge of the last."""
    return [still.number - 0.5 for still in film.stills] + [last_number(film) + 0.5]


def last_number(film: Film) -> int:
    """Return the number of the last step or, where that is later, of the one that breaks a rule."""
    last = film.first_number + max(film.steps, 1) - 1
    return max(last, film.mark.number if film.mark else 0, film.stills[-1].number if film.stills else 0)


def runs(film: Film, block: Block, *, reasons: bool = False) -> Iterator[Run]:
    """Yield the runs of a block's row; with `reasons`, one for each reason too. O(stills)."""
    start: Run | None = None
    for still, (left, right) in zip(film.stills, pairwise(edges(film)), strict=True):
        cell = still.cells.get(block, NEVER_USED)
        if start and (start.cell == cell if reasons else start.cell[:3] == cell[:3]):
            start = start._replace(right=right)
            continue
        if start:
            yield start
        start = Run(left, right, cell)
    if start:
        yield start


def colours(film: Film) -> dict[Holder, str]:
    """Return a colour for each sequence that is seen. O(stills x blocks)."""
    given: dict[Holder, str] = {}
    order = {colour: (-1, at) for at, colour in enumerate(COLOURS)}  # the still it was last seen in, its turn
    for at, still in enumerate(film.stills):
        seen = {holder: None for block in film.blocks for holder in still.cells.get(block, NEVER_USED).holders}
        for holder in seen.keys() & given.keys():
            order[given[holder]] = (at, order[given[holder]][1])
        for holder in seen:
            if holder not in given:
                given[holder] = min(COLOURS, key=order.__getitem__)
                order[given[holder]] = (at, len(COLOURS) + len(given))
    return given

"""The heart of the picture: a row a block, a column a step, each cell as the block stands after that step.

Free is blank. A block that one sequence holds has that sequence's colour; a shared one has a band for each of up to
three holders; one in quarantine has the colour of its last holder, hatched, an idle one dotted. Names stand in the
cells where there is room, and a dot tells a shared block where there is none. A copy-on-write is an arrow from source
to target at the step that planned it. The step that breaks a rule is framed, and the blocks that it takes or frees are
crossed out.
"""

from collections import defaultdict

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_hex, to_rgb
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.patheffects import withStroke
from pagedkv.bench.show_film import Film
from pagedkv.bench.show_history import Cell, Holder, Standing
from pagedkv.bench.show_runs import NOBODY, Run, colours, edges, last_number, runs

BANDS_MAX = 3
HATCH = "/////"
IDLE_HATCH = "...."
INK = "#222222"
WRONG = "#CC0022"
LABEL_POINTS = 7
CHARACTER_INCHES = 0.072  # of a label, a little more than it takes
LABEL_HEIGHT_INCHES = 0.11

Style = tuple[str, str]  # face colour, hatch
Corners = list[tuple[float, float]]


def draw_grid(axes: Axes, film: Film, step_inches: float, row_inches: float) -> None:
    """Draw rows and columns; an inch of the page is told so that labels are put only where they fit."""
    of_holder = colours(film)
    faces: dict[Style, list[Corners]] = defaultdict(list)
    outlines: list[Corners] = []
    for row, block in enumerate(film.blocks):
        for run in runs(film, block):
            if run.cell.standing is Standing.FREE:
                continue
            bands = _bands(run.cell, of_holder)
            for band, style in enumerate(bands):
                box = _box(run, row + band / len(bands), row + (band + 1) / len(bands))
                faces[style].append(box)
                outlines.append(box)
            if row_inches >= LABEL_HEIGHT_INCHES:
                _label(axes, run, row, step_inches)
    for (colour, hatch), corners in faces.items():
        edge = "#555555" if hatch else "none"
        axes.add_collection(PolyCollection(corners, facecolor=colour, edgecolor=edge, hatch=hatch, linewidth=0))
    axes.add_collection(PolyCollection(outlines, facecolor="none", edgecolor=INK, linewidth=0.5))
    left, right = edges(film)[0] if film.stills else film.first_number - 0.5, last_number(film) + 0.5
    lines = [[(left, row), (right, row)] for row in range(1, len(film.blocks))]
    axes.add_collection(LineCollection(lines, color="#CCCCCC", linewidth=0.4, zorder=0.5))
    _axis(axes, film, left, right)
    if film.step_stride == 1:
        _draw_copies(axes, film)
    _draw_mark(axes, film)


def _bands(cell: Cell, of_holder: dict[Holder, str]) -> list[Style]:
    if cell.standing in {Standing.QUARANTINED, Standing.IDLE}:
        hatch = HATCH if cell.standing is Standing.QUARANTINED else IDLE_HATCH
        return [(_pale(of_holder[cell.holders[0]] if cell.holders else NOBODY), hatch)]
    return [(of_holder[holder], "") for holder in cell.holders[:BANDS_MAX]] or [(NOBODY, "")]


def _box(run: Run, top: float, bottom: float) -> Corners:
    return [(run.left, top), (run.right, top), (run.right, bottom), (run.left, bottom)]


def _pale(colour: str) -> str:
    red, green, blue = to_rgb(colour)
    return to_hex((0.5 + red / 2, 0.5 + green / 2, 0.5 + blue / 2))


def _label(axes: Axes, run: Run, row: int, step_inches: float) -> None:
    """Write who holds a block into its cell, as much as there is room for."""
    names = list(run.cell.holders) or ["?"]
    room = int((run.right - run.left) * step_inches / CHARACTER_INCHES)
    texts = ["+".join(names), f"{len(names)} hold" if len(names) > 1 else "", "•" if len(names) > 1 else ""]
    text = next((text for text in texts if text and len(text) <= max(room, text == "•")), "")
    if not text:
        return
    backed = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.75}
    shown_on = backed if run.cell.standing is not Standing.HELD else None
    at = run.left + (run.right - run.left) / 2 if text == "•" else run.left + 0.04 / step_inches
    side = "center" if text == "•" else "left"
    axes.text(at, row + 0.5, text, ha=side, va="center", fontsize=LABEL_POINTS, color=INK, bbox=shown_on, clip_on=True)


def _axis(axes: Axes, film: Film, left: float, right: float) -> None:
    axes.set_xlim(left, right)
    axes.set_ylim(max(len(film.blocks), 1), 0)
    axes.set_yticks([row + 0.5 for row in range(len(film.blocks))], [str(block) for block in film.blocks])
    axes.tick_params(axis="y", length=0, labelsize=LABEL_POINTS)
    axes.set_ylabel("block", fontsize=LABEL_POINTS + 1)


def _draw_copies(axes: Axes, film: Film) -> None:
    place = {block: row + 0.5 for row, block in enumerate(film.blocks)}
    for number, copy in film.copies:
        if copy.source in place and copy.target in place:
            ends = ((number + 0.2, place[copy.source]), (number + 0.2, place[copy.target]))
            arrow = FancyArrowPatch(*ends, arrowstyle="-|>", mutation_scale=8, color=INK, linewidth=1.1, zorder=4)
            arrow.set_path_effects([withStroke(linewidth=2.6, foreground="white")])
            axes.add_patch(arrow)


def _draw_mark(axes: Axes, film: Film) -> None:
    if film.mark is None:
        return
    at, height = film.mark.number, max(len(film.blocks), 1)
    if film.step_stride > 1:
        axes.axvline(at, color=WRONG, linewidth=2, zorder=5)
    else:
        frame = Rectangle((at - 0.5, 0), 1, height, fill=False, edgecolor=WRONG, linewidth=2, zorder=5, clip_on=False)
        axes.add_patch(frame)
    for row, block in enumerate(film.blocks):
        if block in film.mark.blocks:
            cross = axes.text(
                at, row + 0.5, "✗", color=WRONG, fontsize=12, weight="bold", ha="center", va="center", zorder=6
            )
            cross.set_path_effects([withStroke(linewidth=2, foreground="white")])

"""The picture of a film: panels above one another on one page, measured in inches so that nothing overlaps.

From top to bottom: what this is; the rule that was broken, if one was; launches in flight; counts over time, where the
blocks below are a sample; the blocks; the operations; the legend. All panels share the step as their horizontal axis.
"""

import textwrap
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pagedkv.bench.show_film import Film
from pagedkv.bench.show_grid import INK, LABEL_POINTS, WRONG, draw_grid
from pagedkv.bench.show_runs import last_number
from pagedkv.bench.show_strips import (
    LETTERS,
    draw_areas,
    draw_in_flight,
    draw_launches,
    lanes,
    legend_handles,
    words_below,
)
from pagedkv.spec.counts import counted, nth

DOTS_AN_INCH = 110
LEFT_INCHES = 1.0
RIGHT_INCHES = 0.35
GAP_INCHES = 0.12
GRID_INCHES_MIN, GRID_INCHES_MAX = 9.0, 17.0
STEP_INCHES_MIN, STEP_INCHES_MAX = 0.085, 1.35
TEXT_LINE_INCHES = 0.17
LEGEND_LINE_INCHES = 0.22
TEXT_CHARACTER_INCHES = 0.082  # of the lines at the top


class Drawn(NamedTuple):
    """A picture and where on it the blocks are: left, top, width, height, in points from its upper left corner."""

    figure: Figure
    grid_points: tuple[float, float, float, float]


class Page:
    """A page that is filled from the top."""

    def __init__(self, width_inches: float, height_inches: float, grid_inches: float) -> None:
        self.figure = Figure(figsize=(width_inches, height_inches), dpi=DOTS_AN_INCH)
        self.width, self.height, self.grid = width_inches, height_inches, grid_inches
        self.top = GAP_INCHES

    def text(self, lines: list[str], *, colour: str = INK, bold: bool = False) -> None:
        """Put lines of text."""
        for line in lines:
            at = 1 - (self.top + TEXT_LINE_INCHES / 2) / self.height
            weight = "bold" if bold else "normal"
            self.figure.text(0.15 / self.width, at, line, fontsize=8.5, va="center", color=colour, weight=weight)
            self.top += TEXT_LINE_INCHES
        self.top += GAP_INCHES / 2

    def panel(self, height_inches: float) -> Axes:
        """Put a panel as wide as the blocks."""
        bottom = 1 - (self.top + height_inches) / self.height
        axes = self.figure.add_axes(
            (LEFT_INCHES / self.width, bottom, self.grid / self.width, height_inches / self.height)
        )
        axes.tick_params(axis="x", length=0, labelbottom=False)
        for side in axes.spines.values():
            side.set_linewidth(0.6)
        self.top += height_inches + GAP_INCHES
        return axes


def draw(film: Film) -> Drawn:
    """Draw a film. About a second for 40 blocks x 200 steps."""
    span = last_number(film) - film.first_number + 1
    ideal = STEP_INCHES_MIN * len(film.stills) if film.step_stride == 1 else GRID_INCHES_MAX
    grid = min(max(GRID_INCHES_MIN, ideal), GRID_INCHES_MAX, STEP_INCHES_MAX * span)
    step = grid / span
    width = LEFT_INCHES + RIGHT_INCHES + max(grid, GRID_INCHES_MIN - 1)
    row = 0.36 if len(film.blocks) <= 8 else 0.24 if len(film.blocks) <= 20 else 0.2
    columns = int((width - 0.3) / TEXT_CHARACTER_INCHES)
    heading, verdict = _heading(film, columns), _verdict(film, columns)
    flying, words, handles = lanes(film), words_below(film, step), legend_handles(film)
    launches = 0.24 * len(flying) if flying is not None else 0.7
    panels = 1 + bool(launches) + film.sampled
    counts = 1.7 if film.sampled else 0.0
    blocks = row * max(len(film.blocks), 1)
    below = words[2] if words else 0.5
    legend_columns = max(1, int(width / 4.2))
    legend = LEGEND_LINE_INCHES * -(-len(handles) // legend_columns)
    text = TEXT_LINE_INCHES * (len(heading) + len(verdict))
    page = Page(width, text + launches + counts + blocks + below + legend + (3 + panels) * GAP_INCHES, grid)

    page.text(heading[:1], bold=True)
    page.text(heading[1:])
    page.text(verdict, colour=WRONG)
    if flying is None:
        draw_in_flight(page.panel(launches), film)
    elif flying:
        draw_launches(page.panel(launches), film, flying, step)
    if counts:
        draw_areas(page.panel(counts), film)
    grid_points = (72 * LEFT_INCHES, 72 * page.top, 72 * grid, 72 * blocks)
    axes = page.panel(blocks)
    draw_grid(axes, film, step, row)
    for other in page.figure.axes:
        other.set_xlim(axes.get_xlim())
    _name_steps(axes, film, words)
    page.figure.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0.1 / width, 0.0),
        ncols=legend_columns,
        fontsize=LABEL_POINTS + 0.5,
        frameon=False,
    )
    return Drawn(page.figure, grid_points)


def _heading(film: Film, columns: int) -> list[str]:
    config = film.config
    blocks = f"{counted(config.blocks, 'block')} of {counted(config.block_size, 'slot')}"
    world = film.world or f"{blocks}, {counted(config.streams, 'stream')}"
    lines = [_printable(film.title), f"{world}; {counted(film.steps, 'operation')} that broke no rule."]
    if film.block_stride > 1:
        many = f"every {nth(film.block_stride)} of the {film.blocks_used:,} blocks that were used"
        lines.append(f"A sample of blocks: {many}, in order of first use.")
    elif not film.whole_pool:
        lines.append(f"The {len(film.blocks)} blocks that were used; the others are free throughout.")
    if film.step_stride > 1:
        lines.append(
            f"A sample of {film.unit}s: every {nth(film.step_stride)} for the blocks; counts are of all, as means."
        )
    if film.sampled:
        most = [max(series, default=0) for series in film.counts]
        lines.append(
            f"At most at once: {most[0]:,} held by one, {most[1]:,} shared, {most[2]:,} quarantined, {most[3]:,} idle; "
            f"{counted(most[4], 'launch', 'launches')} in flight. {counted(len(film.copies), 'copy', 'copies')}."
        )
    return [part for line in lines for part in textwrap.wrap(line, columns)]


def _verdict(film: Film, columns: int) -> list[str]:
    if film.mark is None:
        return []
    lines = [f"✗ {film.mark.rule}. {film.mark.sentence}", f"   {film.unit} {film.mark.number}: {film.mark.detail}"]
    if film.unit == "line":
        lines.append("   What follows that line is not drawn.")
    return [part for line in lines for part in textwrap.wrap(_printable(line), columns, subsequent_indent="   ")]


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text).replace("$", r"\$")


def _name_steps(axes: Axes, film: Film, words: tuple[list[str], int, float] | None) -> None:
    """Label the steps: in words where there is room, else a letter each, else by number alone."""
    axes.tick_params(axis="x", labelbottom=True, labelsize=LABEL_POINTS)
    numbers = [still.number for still in film.stills]
    if words:
        texts, rotation, _ = words
        side = "right" if rotation else "center"
        axes.set_xticks(numbers, texts, rotation=rotation, va="top", ha="center" if rotation else side)
        return
    if film.step_stride == 1:
        letters = [LETTERS[still.operation] for still in film.stills]
        axes.set_xticks(numbers, letters, fontsize=5, family="monospace")
        above = axes.secondary_xaxis(-0.02)
        above.tick_params(length=0, labelsize=LABEL_POINTS)
        above.spines["bottom"].set_visible(False)
        above.xaxis.set_major_locator(MaxNLocator(20, integer=True))
        seen = {still.operation for still in film.stills}
        key = ", ".join(f"{letter} {kind}" for kind, letter in LETTERS.items() if kind in seen)
        axes.set_xlabel(f"{film.unit} ({key})", fontsize=LABEL_POINTS + 1, labelpad=16)
        return
    axes.xaxis.set_major_locator(MaxNLocator(12, integer=True))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel(film.unit, fontsize=LABEL_POINTS + 1)

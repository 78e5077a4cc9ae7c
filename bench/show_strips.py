"""What lies above and below the blocks: launches in flight, counts over time, the operations, the legend.

Launches are drawn one by one while a dozen lanes are enough for them, else counted. Counts are means over groups of
steps where there are more steps than dots, so that areas add up to the truth; the peaks are told in words above.
"""

import textwrap
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator
from pagedkv.bench.show_film import Film, Flight
from pagedkv.bench.show_grid import BANDS_MAX, CHARACTER_INCHES, HATCH, IDLE_HATCH, INK, LABEL_POINTS, WRONG
from pagedkv.bench.show_history import Holder
from pagedkv.bench.show_runs import COLOURS, last_number
from pagedkv.spec.counts import counted, nth

LANES_MAX = 12
AREA_POINTS_MAX = 600
LETTERS = {"add": "A", "extend": "E", "fork": "F", "launch": "L", "execute": "X", "retire": "R", "release": "-"}
LETTERS |= {"publish": "P", "pin": "I", "unpin": "U", "clear": "C"}
LETTERS |= {"submit": "S", "schedule": "D", "complete": "T", "abort": "-", "finish": "Z"}  # of a stranger's scheduler
STREAM_GREYS = ("#E4E4E4", "#C4C4C4", "#F4F4F4", "#D4D4D4")
AREA_STYLES = (("#99AABB", ""), ("#445566", "..."), ("#FFFFFF", HATCH), ("#DDEEDD", IDLE_HATCH))  # as in `Tally`
HELD_BY_NONE = {
    "quarantined": (HATCH, "quarantined: held by none, and device work may touch it"),
    "idle": (IDLE_HATCH, "idle: held by none, and published"),
}
WORDS_LINE_INCHES = 0.13
WORDS_MAX = 44  # characters a line, where words stand upright

Lane = tuple[int, list[Flight]]  # a stream, and launches that do not overlap


def lanes(film: Film) -> list[Lane] | None:
    """Return launches in as many lanes as are in flight at once, stream by stream; None if there are too many."""
    found: dict[int, list[list[Flight]]] = defaultdict(list)
    for flight in sorted(film.flights, key=lambda flight: (flight.stream, flight.launch)):
        free = next((lane for lane in found[flight.stream] if _over(lane[-1], flight.first)), None)
        if free is None:
            found[flight.stream].append([flight])
        else:
            free.append(flight)
        if sum(map(len, found.values())) > LANES_MAX or film.step_stride > 1:
            return None
    return [(stream, lane) for stream in sorted(found) for lane in found[stream]]


def _over(flight: Flight, number: int) -> bool:
    return flight.last is not None and flight.last <= number


def draw_launches(axes: Axes, film: Film, rows: list[Lane], step_inches: float) -> None:
    """Draw a bar a launch, from the step that submitted it to the one that retired it; a triangle: executed."""
    executed = {launch: number for number, launch in film.executions}
    for row, (stream, lane) in enumerate(rows):
        for flight in lane:
            end = (last_number(film) + 1 if flight.last is None else flight.last) - 0.5
            left, width = flight.first - 0.5, end - flight.first + 0.5
            grey = STREAM_GREYS[stream % len(STREAM_GREYS)]
            axes.add_patch(Rectangle((left, row + 0.12), width, 0.76, facecolor=grey, edgecolor=INK, linewidth=0.6))
            text = f"#{flight.launch}"
            if len(text) * CHARACTER_INCHES <= width * step_inches:
                axes.text(
                    left + 0.04 / step_inches,
                    row + 0.5,
                    text,
                    va="center",
                    fontsize=LABEL_POINTS,
                    color=INK,
                    clip_on=True,
                )
            if flight.launch in executed:
                axes.plot(executed[flight.launch] + 0.25, row + 0.5, marker="v", color=INK, markersize=4)
    axes.set_ylim(len(rows), 0)
    streams = [stream for stream, _ in rows]
    firsts = [row for row, stream in enumerate(streams) if stream not in streams[:row]]
    middles = [row + streams.count(streams[row]) / 2 for row in firsts]
    axes.set_yticks(middles, [f"launches on\nstream {streams[row]}" for row in firsts])
    axes.tick_params(axis="y", length=0, labelsize=LABEL_POINTS - 1)
    for row in firsts[1:]:
        axes.axhline(row, color=INK, linewidth=0.4)


def draw_areas(axes: Axes, film: Film) -> None:
    """Stack how many blocks are held, shared, quarantined, idle over all steps; where steps are many, means of them."""
    numbers, series = _means(film, film.counts[:4])
    bottom = np.zeros_like(numbers)
    for values, (colour, hatch) in zip(series, AREA_STYLES, strict=True):
        axes.fill_between(
            numbers,
            bottom,
            bottom + values,
            facecolor=colour,
            hatch=hatch,
            edgecolor="#333333",
            linewidth=0.3,
            step="post",
        )
        bottom = bottom + values
    highest = float(bottom.max(initial=1.0))
    if film.config.blocks <= 3 * highest:
        axes.set_ylim(0, film.config.blocks)
        axes.set_ylabel(f"blocks of {film.config.blocks:,}", fontsize=LABEL_POINTS + 1)
    else:
        axes.set_ylim(0, highest * 1.15)
        axes.set_ylabel(f"blocks (cut: {film.config.blocks:,}\nin the pool)", fontsize=LABEL_POINTS + 1)
    axes.tick_params(axis="y", labelsize=LABEL_POINTS)
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))


def draw_in_flight(axes: Axes, film: Film) -> None:
    """Draw how many launches are in flight, where they are too many to be drawn one by one."""
    numbers, (values,) = _means(film, film.counts[4:])
    axes.fill_between(numbers, values, facecolor="#C4C4C4", edgecolor=INK, linewidth=0.5, step="post")
    axes.set_ylim(0, max(float(values.max(initial=1.0)) * 1.15, 1.0))
    axes.set_ylabel("launches\nin flight", fontsize=LABEL_POINTS)
    axes.tick_params(axis="y", labelsize=LABEL_POINTS)
    axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))


def _means(film: Film, series: Sequence[Sequence[int]]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return left edges and the mean of each series over equal groups of steps, with the end put behind."""
    group = -(-max(film.steps, 1) // AREA_POINTS_MAX)
    starts = np.arange(0, film.steps, group)
    sizes = np.diff(np.append(starts, film.steps))
    numbers = np.append(starts, film.steps) + film.first_number - 0.5
    means = [np.add.reduceat(np.array(values), starts) / sizes if film.steps else np.zeros(0) for values in series]
    return numbers, [np.append(mean, mean[-1:] if mean.size else 0.0) for mean in means]


def words_below(film: Film, step_inches: float) -> tuple[list[str], int, float] | None:
    """Return a step's words, cut into lines, their rotation and the inches that they need; None if there is no room."""
    texts = [f"{still.number}  {still.words}" for still in film.stills]
    if step_inches >= 0.9:
        wrapped = [textwrap.wrap(text, max(12, int(step_inches / 0.062))) for text in texts]
        return ["\n".join(lines) for lines in wrapped], 0, 0.1 + WORDS_LINE_INCHES * max(map(len, wrapped), default=1)
    room = int(step_inches / WORDS_LINE_INCHES)
    if not room or film.step_stride > 1:
        return None
    width = min(WORDS_MAX, max(-(-len(text) // room) + 4 for text in texts))
    wrapped = [textwrap.wrap(text, width, max_lines=room, placeholder=" …") for text in texts]
    longest = max(len(line) for lines in wrapped for line in lines)
    return ["\n".join(lines) for lines in wrapped], 90, 0.15 + longest * 0.061


def _begun_again(holder: Holder, kind: str) -> str:
    """Say what a name with a number behind it means: names of sequences come again, requests after a preemption."""
    name, _, time = holder.partition(".")
    if kind == "request":
        return f"request {name} again, after {counted(int(time) - 1, 'preemption')}"
    return f"the {nth(int(time))} sequence that is called {name}"


def legend_handles(film: Film) -> list[Artist]:
    """Return what the legend explains: only what is drawn."""
    cells = [cell for still in film.stills for cell in still.cells.values()]
    standings = {cell.standing.value for cell in cells}
    handles: list[Artist] = [Patch(facecolor="white", edgecolor="#CCCCCC", label="free")]
    if "held" in standings:
        label = f"held: a colour a {film.holder}, its name inside"
        handles.append(Patch(facecolor=COLOURS[0], edgecolor=INK, label=label))
    again = next((holder for cell in cells for holder in cell.holders if "." in holder), None)
    if again:
        handles.append(Line2D([], [], linestyle="", label=f"{again}: {_begun_again(again, film.holder)}"))
    if any(cell.standing == "held" and not cell.holders for cell in cells):
        handles.append(Patch(facecolor="#BBBBBB", edgecolor=INK, label="? held, by no row that is known"))
    if "shared" in standings:
        bands = f"• or a+b: shared, a band for each holder (up to {BANDS_MAX})"
        handles.append(Line2D([], [], marker="o", color=INK, linestyle="", markersize=4, label=bands))
    handles += [
        Patch(facecolor="#DDDDDD", edgecolor="#555555", hatch=hatch, label=f"{words} (colour: its last holder)")
        for standing, (hatch, words) in HELD_BY_NONE.items()
        if standing in standings
    ]
    if film.copies and film.step_stride == 1:
        handles.append(Line2D([], [], marker=r"$\downarrow$", color=INK, linestyle="", label="copy-on-write, planned"))
    if film.executions:
        handles.append(
            Line2D([], [], marker="v", color=INK, linestyle="", markersize=4, label="executed by the device")
        )
    if film.sampled:
        words = ("held by one", "shared", "quarantined", "idle")
        handles += [
            Patch(facecolor=face, hatch=hatch, edgecolor="#333333", linewidth=0.3, label=f"counts: {word}")
            for word, (face, hatch) in zip(words, AREA_STYLES, strict=True)
        ]
    if film.mark:
        label = f"✗ the first {film.unit} that breaks a rule"
        handles.append(Patch(facecolor="none", edgecolor=WRONG, linewidth=2, label=label))
    return handles

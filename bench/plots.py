"""What all plots share: how a panel looks, how numbers and titles are written, how a figure becomes files.

Plots are read in print and in grey, too: thin lines behind what is drawn, no frame, few ticks. Titles hold names of
files and models, which may hold anything, so what matplotlib would take for mathematics is kept from it. Files are the
same to the byte for the same figure, whenever and wherever they are drawn, and are there in full or not at all.
"""

import io
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pagedkv.bench.result_files import write_whole
from pagedkv.spec.quoting import cut

INK = "#1A1A1A"
DOTS_AN_INCH = 120
TITLE_CHARACTERS = 96
FORMATS = ("png", "svg")


def plain_panel(axes: Axes) -> None:
    """Take from a panel what distracts, its frame and most ticks; put pale lines behind the data, at the ticks of y."""
    axes.tick_params(labelsize=8)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def plain_title(text: str) -> str:
    """Cut a title to what fits, and keep what is not printable and dollar signs out of matplotlib's markup."""
    return plain(cut(text, TITLE_CHARACTERS))


def plain(text: str) -> str:
    """Keep what is not printable and dollar signs out of matplotlib's markup; lines stay lines."""
    return "".join(each if each.isprintable() or each == "\n" else "?" for each in text).replace("$", r"\$")


def short(value: float) -> str:
    """Write a number in at most five characters or so.

    >>> [short(value) for value in (793439, 50000, 4006.97, 125.2, 14.19, 3.26, 0.031, -9.14, 0)]
    ['793k', '50k', '4,007', '125', '14.2', '3.26', '0.031', '-9.14', '0']
    """
    for limit, divisor, unit in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= limit:
            return f"{value / divisor:.3g}{unit}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def write_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure as PNG and SVG; give the files."""
    files = [folder / f"{name}.{file_format}" for file_format in FORMATS]
    for file, file_format in zip(files, FORMATS, strict=True):
        write_whole(file, picture_bytes(figure, file_format))
    return files


def picture_bytes(figure: Figure, file_format: str, *, outlines: bool = False) -> bytes:
    """Return a picture as `png` or `svg`: of a figure always the same bytes; text in SVG as text, or as `outlines`."""
    buffer = io.BytesIO()
    nothing = {"Software": None} if file_format == "png" else {"Date": None, "Creator": None}
    fonts = "path" if outlines else "none"
    with mpl.rc_context({"svg.hashsalt": "pagedkv", "svg.fonttype": fonts, "hatch.linewidth": 0.6}):
        figure.savefig(buffer, format=file_format, metadata=nothing)
    return buffer.getvalue()

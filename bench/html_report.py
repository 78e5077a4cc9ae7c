"""A report as a web page: the tables that the terminal shows, the plots, and the command that makes it again.

One file that asks for nothing (`web_page`). A table is the very `rich` table that is printed, turned into HTML cell by
cell, so that page and terminal cannot differ. A plot is SVG with its letters drawn as outlines, so that it looks the
same where a font is missing; what it shows is in a table, too, and its alternative text says what it is. There is no
script. The same figures give the same page, byte for byte.
"""

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pagedkv.bench.web_page import web_page
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """main { max-width: 72em; margin: 2em auto; padding: 0 1.5em; }
h1 { font-size: 1.5em; margin: 0 0 1em; }
h2 { font-size: 1.15em; margin: 2em 0 .5em; }
p { margin: .3em 0; max-width: 60em; white-space: pre-wrap; }
.wide { overflow-x: auto; margin: 1em 0; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-style: italic; padding: .3em 0; }
th, td { padding: .15em .8em .15em 0; text-align: left; vertical-align: top;
         font-weight: normal; white-space: pre-wrap; }
thead th { font-weight: bold; border-bottom: 2px solid #222; }
tr.ends td, tr.ends th { border-bottom: 1px solid #999; }
.right { text-align: right; white-space: pre; }
figure { margin: 1.5em 0; }
img { max-width: 100%; height: auto; }
pre { background: #F2F2F2; padding: .8em 1em; white-space: pre-wrap; overflow-wrap: anywhere; }
"""


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure and what it shows, in a sentence, for whoever does not see it."""

    figure: "Figure"
    alternative: str


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands under it: lines of text, tables, plots."""

    heading: str
    parts: Sequence[str | Table | Plot]


def report_page(title: str, sections: Sequence[Section], command: str) -> bytes:
    """Return the page, UTF-8. Cost: that of its plots, about a second each, and 100 KB each."""
    body = [f"<main>\n<h1>{html.escape(title)}</h1>"]
    for section in sections:
        body.append(f"<section>\n<h2>{html.escape(section.heading)}</h2>")
        body += [_part(part) for part in section.parts]
        body.append("</section>")
    body += ["<h2>The command</h2>", f"<pre><code>{html.escape(command)}</code></pre>", "</main>\n"]
    return web_page(title, _STYLE, "\n".join(body), "img-src data:")


def _part(part: str | Table | Plot) -> str:
    match part:
        case Table():
            return _table(part)
        case Plot():
            return _plot(part)
        case _:
            return f"<p>{html.escape(part)}</p>"


def _plot(plot: Plot) -> str:
    from pagedkv.bench.plots import picture_bytes  # noqa: PLC0415  (matplotlib takes a second to import)

    svg = base64.b64encode(picture_bytes(plot.figure, "svg", outlines=True)).decode()
    width, height = (f"{96 * inches:.0f}" for inches in plot.figure.get_size_inches())
    alternative = html.escape(plot.alternative)
    return (
        f'<figure><img alt="{alternative}" width="{width}" height="{height}" src="data:image/svg+xml;base64,{svg}">'
        "</figure>"
    )


def _table(table: Table) -> str:
    """Turn a table of text into HTML: its first column names the rows."""
    classes = [' class="right"' if column.justify == "right" else "" for column in table.columns]
    heads = "".join(
        f'<th scope="col"{kind}>{_words(column.header)}</th>'
        for column, kind in zip(table.columns, classes, strict=True)
    )
    lines = [f"<caption>{_words(table.title)}</caption>"] if table.title else []
    lines.append(f"<thead><tr>{heads}</tr></thead>\n<tbody>")
    for row, (first, *others) in zip(
        table.rows, zip(*(column.cells for column in table.columns), strict=True), strict=True
    ):
        cells = "".join(f"<td{kind}>{_words(cell)}</td>" for cell, kind in zip(others, classes[1:], strict=True))
        ends = ' class="ends"' if row.end_section else ""
        lines.append(f'<tr{ends}><th scope="row"{classes[0]}>{_words(first)}</th>{cells}</tr>')
    return "\n".join(['<div class="wide"><table>', *lines, "</tbody></table></div>"])


def _words(cell: RenderableType) -> str:
    """Return what the terminal shows of a cell, its markup taken off."""
    text = cell if isinstance(cell, Text) else Text.from_markup(str(cell))
    return html.escape(text.plain)

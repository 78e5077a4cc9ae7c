"""Reports as web pages: what the terminal says is on them, cell by cell, and they ask for nothing."""

import base64
from xml.etree import ElementTree as ET

import pytest
from matplotlib.figure import Figure
from pagedkv.bench.html_report import Plot, Section, report_page
from rich.table import Table
from rich.text import Text

from page_parts import Page, assert_asks_for_nothing

TITLE = "a/model & <others>: $x$"
COMMAND = "pagedkv sweep --lengths '<b>.csv' --out \"a & b\""


def a_table() -> Table:
    """Two columns, a line below the first row, markup, and what HTML would take for its own."""
    table = Table(title=Text("figures <of> a run"))
    table.add_column("figure")
    table.add_column("value", justify="right")
    table.add_row("tail waste", "1,234", end_section=True)
    table.add_row("  [bold]bytes[/bold]", Text("[3] & <4>"))
    return table


def a_plot(values: list[float]) -> Plot:
    figure = Figure(figsize=(4, 2))
    axes = figure.add_subplot()
    axes.plot(values)
    axes.set_title("waste < 1 %")
    return Plot(figure, 'what "it" shows')


def a_page(*sections: Section) -> str:
    return report_page(TITLE, sections, COMMAND).decode()


def test_a_page_says_what_the_terminal_says() -> None:
    page = Page(a_page(Section("Figures", ["a line <of> words", a_table()])))
    assert page.tables == [[["figure", "value"], ["tail waste", "1,234"], ["  bytes", "[3] & <4>"]]]
    assert page.texts["caption"][:1] == ["figures <of> a run"]
    assert page.texts["h1"][0] == page.texts["title"][0] == TITLE
    assert page.texts["h2"][0] == "Figures"
    assert page.texts["p"][0] == "a line <of> words"
    assert page.texts["code"][0] == COMMAND
    rows = [attributes for tag, attributes in page.found if tag == "tr"]
    assert rows == [{}, {"class": "ends"}, {}]
    cells = [attributes for tag, attributes in page.found if tag == "td"]
    assert cells == [{"class": "right"}] * 2
    scopes = [attributes["scope"] for tag, attributes in page.found if tag == "th"]
    assert scopes == ["col", "col", "row", "row"]


def test_a_plot_is_in_the_page_and_needs_no_font() -> None:
    text = a_page(Section("Plots", [a_plot([1, 2, 3]), a_plot([3, 1])]))
    assert_asks_for_nothing(text)
    pictures = [attributes for tag, attributes in Page(text).found if tag == "img"]
    assert [picture["alt"] for picture in pictures] == ['what "it" shows'] * 2
    assert [(picture["width"], picture["height"]) for picture in pictures] == [("384", "192")] * 2
    for picture in pictures:
        drawn = ET.fromstring(base64.b64decode(str(picture["src"]).partition(",")[2]))  # noqa: S314  (our own)
        assert drawn.tag.endswith("}svg")
        assert not [each for each in drawn.iter() if each.tag.endswith("}text")]
    assert pictures[0]["src"] != pictures[1]["src"]


def test_the_same_figures_give_the_same_page() -> None:
    first, second = (a_page(Section("All", [a_table(), a_plot([1, 2])])) for _ in range(2))
    assert first == second


def test_what_asks_for_something_is_found() -> None:
    page = a_page()
    assert_asks_for_nothing(page)
    for planted in ('<img src="https://example.org/x.svg">', '<link rel="x" href="y.css">', '<a href="sweep.csv">'):
        with pytest.raises(AssertionError):
            assert_asks_for_nothing(page.replace("<main>", f"<main>{planted}"))

"""A web page taken apart: its elements, what they say, its tables, and whether it asks for anything."""

import re
from html.parser import HTMLParser

_OUTSIDE = r"@import|url\((?!#)|fetch\(|XMLHttpRequest|import\("


class Page(HTMLParser):
    """The elements of a page in order, the texts in each kind of element, and the cells of its tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.tables: list[list[list[str]]] = []
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._open = tag
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in {"th", "td"}:
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in {"th", "td"}:
            self._open = ""

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self._open, []).append(data)
        if self._open in {"th", "td"}:
            self.tables[-1][-1][-1] += data


def assert_asks_for_nothing(text: str) -> None:
    """Hold a page to its promise: it loads nothing, and the browser is told to allow nothing."""
    found = Page(text).found
    (policy,) = [attributes["content"] for tag, attributes in found if "http-equiv" in attributes]
    assert policy
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; ")
    for tag, attributes in found:
        assert tag not in {"link", "iframe", "object", "embed"}
        assert not attributes.keys() & {"srcset", "action", "data"}
        targets = [attributes.get("href"), attributes.get("xlink:href")]
        assert all(target is None or target.startswith("#") for target in targets), (tag, targets)
        source = attributes.get("src")
        assert source is None or (tag == "img" and source.startswith("data:image/svg+xml;base64,"))
    assert not re.search(_OUTSIDE, text)

"""A web page of its own: one file that asks for nothing, works offline, and can be mailed.

What all pages of the workbench have in common: the frame, and a content security policy that says to the browser, too,
that nothing may be loaded from anywhere. What a page needs stands in it: styles and scripts inline, pictures as SVG or
as data. Whatever is not ours (a file's name, a command line) is escaped by whoever puts it in; the title is escaped
here.
"""

import html

_FRAME = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; {policy}">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ margin: 0; background: white; color: #222; font: 14px/1.4 "DejaVu Sans", Verdana, sans-serif; }}
{style}</style>
{body}</html>
"""


def web_page(title: str, style: str, body: str, policy: str) -> bytes:
    """Return a page, UTF-8. `policy` is what may be used besides inline styles: scripts that stand in it, or data."""
    return _FRAME.format(title=html.escape(title), style=style, body=body, policy=policy).encode()

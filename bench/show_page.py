"""The picture as a web page of its own: the same drawing, and under the pointer what each cell is and why.

One file without a single request to anywhere (`web_page`): the drawing is in it as SVG, the cells as data, and the
script that looks them up is a page long. The arrow keys move from cell to cell once the drawing has the focus; what is
shown is text in the page, so a screen reader reads it.

A journal's name is the only text on the page that is not ours, and nobody vouches for it: it is escaped.
"""

import html
import json
import re
from typing import Any

from pagedkv.bench.plots import picture_bytes
from pagedkv.bench.show_film import Film
from pagedkv.bench.show_picture import draw
from pagedkv.bench.show_runs import edges, last_number, runs
from pagedkv.bench.web_page import web_page

_STYLE = """#picture { position: relative; }
#picture:focus { outline: none; }
#picture > svg { display: block; }
#cell { position: absolute; box-sizing: border-box; border: 2px solid #222; outline: 1px solid white;
        pointer-events: none; }
#told { position: absolute; z-index: 1; max-width: 26em; padding: .5em .7em; background: #222; color: white;
        border-radius: 4px; pointer-events: none; white-space: pre-line; font-size: 12px; }
details { margin: 0 1em 2em; }
li { font-size: 12px; }
li.broken { color: #c02; font-weight: bold; }
[hidden] { display: none; }
"""

_BODY = """<div id="picture" style="width: @WIDTH@pt" tabindex="0"
     aria-label="Blocks against steps; move with the arrow keys">
@SVG@
<div id="cell" hidden></div>
<div id="told" role="status" hidden></div>
</div>
<details>
<summary>@SUMMARY@</summary>
<ul>
@STEPS@
</ul>
</details>
<script type="application/json" id="film">@FILM@</script>
<script>
"use strict";
const film = JSON.parse(document.getElementById("film").textContent);
const picture = document.getElementById("picture");
const cell = document.getElementById("cell");
const told = document.getElementById("told");
const [left, top_, width, height] = film.grid_points;
const [first, last] = film.edges;
const wide = width / (last - first), high = height / film.blocks.length;
let row = 0, step = Math.ceil(first);

function words(run) {
  const [, , standing, since, why] = run;
  const start = since ? `since ${film.unit} ${since.toLocaleString("en")}` : "from the start";
  const still = film.steps.findLast(([number]) => number <= step) ?? [step, ""];
  const at = `block ${film.blocks[row]}, after ${film.unit} ${still[0].toLocaleString("en")}`;
  return `${at}: ${standing} ${start}\\n${why ? why + "\\n" : ""}${still[0]}  ${still[1]}`;
}

function tell() {
  const run = film.runs[row]?.find(([from, to]) => from < step && step < to);
  cell.hidden = told.hidden = !run;
  if (!run) return;
  cell.style.left = `${left + (run[0] - first) * wide}pt`;
  cell.style.top = `${top_ + row * high}pt`;
  cell.style.width = `${(run[1] - run[0]) * wide}pt`;
  cell.style.height = `${high}pt`;
  told.textContent = words(run);
  const x = left + (step - first) * wide;
  told.style.left = x < left + width / 2 ? `${x + 12}pt` : "";
  told.style.right = x < left + width / 2 ? "" : `${picture.clientWidth * 0.75 - x + 12}pt`;
  told.style.top = `${top_ + (row + 1) * high + 6}pt`;
}

picture.addEventListener("pointermove", event => {
  const box = picture.getBoundingClientRect();
  const x = (event.clientX - box.left) * 0.75 - left, y = (event.clientY - box.top) * 0.75 - top_;
  if (x < 0 || y < 0 || x >= width || y >= height) { cell.hidden = told.hidden = true; return; }
  row = Math.floor(y / high);
  step = Math.round(first + x / wide);
  tell();
});
picture.addEventListener("pointerleave", () => { cell.hidden = told.hidden = true; });
picture.addEventListener("keydown", event => {
  const [down, right] = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]}[event.key] ?? [];
  if (down === undefined) return;
  event.preventDefault();
  row = Math.min(Math.max(row + down, 0), film.blocks.length - 1);
  step = Math.min(Math.max(step + right * film.stride, Math.ceil(first)), Math.floor(last));
  tell();
});
</script>
"""


def page(film: Film) -> bytes:
    """Return the page, UTF-8. Its size: about 100 bytes a run and 60 a step, plus the drawing."""
    drawn = draw(film)
    svg = picture_bytes(drawn.figure, "svg").decode()
    broken = film.mark.number if film.mark else None
    steps = "\n".join(
        f"<li{' class=broken' * (still.number == broken)}>{still.number:,}&ensp;{html.escape(still.words)}</li>"
        for still in film.stills
    )
    what = f"{len(film.stills)} of {film.steps:,} operations" if film.step_stride > 1 else "The operations"
    parts = {
        "@WIDTH@": f"{drawn.figure.get_figwidth() * 72:g}",
        "@SVG@": svg[svg.index("<svg") :],
        "@SUMMARY@": what,
        "@STEPS@": steps,
        "@FILM@": _as_json(film, drawn.grid_points),
    }
    body = re.sub("@[A-Z]+@", lambda key: parts[key[0]], _BODY)
    return web_page(f"{film.title}: blocks", _STYLE, body, "script-src 'unsafe-inline'")


def _as_json(film: Film, grid_points: tuple[float, ...]) -> str:
    """Return what the script looks up, in a form that cannot end the element that it stands in."""
    facts: dict[str, Any] = {
        "unit": film.unit,
        "stride": film.step_stride,
        "grid_points": grid_points,
        "edges": [edges(film)[0] if film.stills else film.first_number - 0.5, last_number(film) + 0.5],
        "blocks": film.blocks,
        "steps": [[still.number, still.words] for still in film.stills],
        "runs": [
            [
                [run.left, run.right, run.cell.standing, run.cell.since, run.cell.why]
                for run in runs(film, b, reasons=True)
            ]
            for b in film.blocks
        ],
    }
    return json.dumps(facts, separators=(",", ":")).replace("<", "\\u003c")

"""The picture itself: what stands where, that nothing overlaps, and that the page needs nothing but itself."""

import io
import json
from collections.abc import Iterator
from itertools import combinations, pairwise
from pathlib import Path
from random import Random
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox
from pagedkv.bench.plots import picture_bytes
from pagedkv.bench.show_film import BLOCKS_MAX, Film, Still
from pagedkv.bench.show_history import Cell, History, Standing
from pagedkv.bench.show_page import page
from pagedkv.bench.show_picture import DOTS_AN_INCH, draw
from pagedkv.bench.show_runs import COLOURS, colours
from pagedkv.bench.show_sources import film_of_journal
from pagedkv.spec.alphabet import Add, Execute, apply
from pagedkv.spec.moves import draw_move
from pagedkv.spec.refusals import Broken, Refused
from pagedkv.spec.state import Config, Copy, initial

from hand_written_journal import JOURNAL, change, ended
from page_parts import Page, assert_asks_for_nothing


def film_of_lines(folder: Path, lines: list[str], name: str = "hand.jsonl") -> Film:
    path = folder / name
    path.write_bytes(ended(lines))
    return film_of_journal(path)


def drawn_by_lot(config: Config, names: int, steps: int, seed: int = 1) -> Film:
    """Return a film of random work that goes well."""
    random, state = Random(seed), initial(config)
    history, film = History(config), Film("by lot", config, "line")
    number = 1
    while number <= steps:
        operation = draw_move(state, names, random)
        if isinstance(operation, Add):
            operation = operation._replace(tokens=random.randint(1, 4 * config.block_size))
        try:
            state, outcome = apply(state, operation)
        except Refused:
            continue
        if not isinstance(operation, Execute):
            number += 1
            history.step(number, operation, outcome)
            film.shoot(history, number, operation, outcome)
    film.end()
    return film


def dots(film: Film) -> tuple[np.ndarray, tuple[float, ...]]:
    """Return a film's picture as an array of dots, and where the blocks are on it, in dots."""
    drawn = draw(film)
    picture = matplotlib.image.imread(io.BytesIO(picture_bytes(drawn.figure, "png")))
    return picture[:, :, :3], tuple(points / 72 * DOTS_AN_INCH for points in drawn.grid_points)


def patch(film: Film, picture: np.ndarray, grid: tuple[float, ...], block: int, step: int) -> np.ndarray:
    """Return the dots in the right half of a cell, clear of its edges and of its name."""
    left, top, width, height = grid
    wide, high = width / (film.steps + bool(film.mark)), height / len(film.blocks)
    x, y = left + (step - film.first_number + 0.6) * wide, top + film.blocks.index(block) * high
    return picture[round(y + 0.15 * high) : round(y + 0.85 * high), round(x) : round(x + 0.3 * wide)]


def shares(dots_of_cell: np.ndarray, colour: str) -> float:
    """Return which part of a cell has a colour."""
    return float((np.abs(dots_of_cell - np.array(to_rgb(colour))).max(axis=2) < 0.02).mean())


def test_each_cell_looks_as_its_block_stands(tmp_path: Path) -> None:
    film = film_of_lines(tmp_path, JOURNAL)
    picture, grid = dots(film)
    of = colours(film)

    def part(block: int, step: int, colour: str) -> float:
        return shares(patch(film, picture, grid, block, step), colour)

    assert part(4, 8, "white") == 1.0, "free is blank"
    assert part(1, 3, of["1"]) == 1.0, "held by 1"
    assert part(1, 9 + 1, of["2"]) == 1.0, "held by 2"
    assert part(2, 13, of["3"]) == 1.0, "held by 3"
    assert min(part(1, 6, of["1"]), part(1, 6, of["2"])) > 0.3, "shared: a band for each"
    hatched = patch(film, picture, grid, 3, 9)
    assert shares(hatched, of["1"]) < 0.05, "quarantined: not the colour of one that is held"
    darkness = hatched.mean(axis=2)
    assert (darkness < 0.5).mean() > 0.1, "but hatched,"
    assert (darkness > 0.7).mean() > 0.3, "on something pale"


def test_the_copy_is_an_arrow_between_its_blocks(tmp_path: Path) -> None:
    with_copy, grid = dots(film_of_lines(tmp_path, JOURNAL))
    film = film_of_lines(tmp_path, JOURNAL)
    film.copies[:] = [(5, Copy(1, 98, 99, 2))]  # of blocks that are not drawn
    without, _ = dots(film)
    left, top, width, height = grid
    rows, columns = np.nonzero(np.abs(with_copy - without).max(axis=2))
    high, wide = height / len(film.blocks), width / film.steps
    assert (top + 1.4 * high, top + 2.6 * high) == pytest.approx((rows.min(), rows.max()), abs=0.35 * high)
    assert left + 3 * wide < columns.min() <= columns.max() < left + 4 * wide, "in the column of line 5"


def test_the_line_that_breaks_a_rule_is_framed_and_its_blocks_are_crossed_out(tmp_path: Path) -> None:
    film = film_of_lines(tmp_path, change(9, '"seq":1', '"seq":1,"freed":[3]')(JOURNAL))
    picture, (left, top, width, height) = dots(film)
    red = np.abs(picture - np.array(to_rgb("#CC0022"))).max(axis=2) < 0.05
    inside = red[round(top) : round(top + height), round(left) : round(left + width)]
    wide = inside.shape[1] / (film.steps + 1)
    assert set(np.nonzero(inside.mean(axis=0) > 0.9)[0] // wide) <= {film.steps - 1, film.steps}, "the last column"
    assert (inside.mean(axis=0) > 0.9).sum() >= 3
    crossed = inside[:, round((film.steps + 0.2) * wide) : round((film.steps + 0.8) * wide)]
    rows = np.nonzero(crossed.any(axis=1))[0] / crossed.shape[0] * len(film.blocks)
    assert set(rows[(rows > 0.1) & (rows < 5.9)].astype(int)) == {2}, "block 3"


FILMS = {
    "one step": lambda: drawn_by_lot(Config(1, 1), 1, 1),
    "a few steps": lambda: drawn_by_lot(Config(6, 2, 2, 3), 3, 9),
    "words upright": lambda: drawn_by_lot(Config(12, 4, 2, 5), 5, 40),
    "letters": lambda: drawn_by_lot(Config(40, 4, 2, 6), 8, 200),
    "some of a large pool": lambda: drawn_by_lot(Config(1000, 4, 2, 4), 3, 60),
    "many steps": lambda: drawn_by_lot(Config(20, 4, 2, 4), 4, 450),
    "many blocks": lambda: drawn_by_lot(Config(200, 1, 2, 6), 12, 450),
    "nothing": lambda: drawn_by_lot(Config(4, 1), 2, 0),
}


@pytest.fixture(params=FILMS, scope="module")
def shown(request: pytest.FixtureRequest) -> tuple[Film, Figure]:
    """Return each kind of film with its picture; each second one ends in a broken rule with much to say."""
    film = FILMS[request.param]()
    if list(FILMS).index(request.param) % 2:
        film.mark_broken(Broken("R-COW-2", "a long story " * 30), film.first_number + film.steps)
    return film, draw(film).figure


def boxes(figure: Figure) -> Iterator[tuple[str, Bbox]]:
    """Yield the boxes of all that must not overlap: lines of text, panels with their labels, the legend."""
    for text in figure.texts:
        yield text.get_text(), text.get_window_extent()
    for number, axes in enumerate(figure.axes):
        box = axes.get_tightbbox()
        assert box is not None, "every panel is visible"
        yield f"panel {number}", box
    yield "legend", figure.legends[0].get_window_extent()


def test_nothing_overlaps_and_nothing_leaves_the_page(shown: tuple[Film, Figure]) -> None:
    _, figure = shown
    found = dict(boxes(figure))
    whole = figure.bbox.padded(1)
    for what, box in found.items():
        assert whole.x0 <= box.x0 < box.x1 <= whole.x1, what
        assert whole.y0 <= box.y0 < box.y1 <= whole.y1, what
    for (what, box), (other, second) in combinations(found.items(), 2):
        across = min(box.y1, second.y1) - max(box.y0, second.y0)
        along = min(box.x1, second.x1) - max(box.x0, second.x0)
        assert min(across, along) <= 2, f"{what} and {other}"


def test_the_labels_of_steps_do_not_overlap(shown: tuple[Film, Figure]) -> None:
    _, figure = shown
    labels = [label.get_window_extent() for label in figure.axes[-1].get_xticklabels() if label.get_text()]
    for box, following in pairwise(labels):
        assert box.x1 <= following.x0 + 1


def test_a_sample_says_that_it_is_one(shown: tuple[Film, Figure]) -> None:
    film, figure = shown
    words = " ".join(text.get_text() for text in figure.texts)
    assert ("A sample of" in words) == film.sampled
    assert ("every" in words) == film.sampled
    if film.config.blocks > BLOCKS_MAX and not film.sampled:
        assert "the others are free throughout" in words


def test_one_film_is_always_the_same_picture(tmp_path: Path) -> None:
    film = film_of_lines(tmp_path, JOURNAL)
    for file_format in ("png", "svg"):
        first, second = (picture_bytes(draw(film).figure, file_format) for _ in range(2))
        assert first == second
    assert first.startswith(b"<?xml")


def test_a_colour_is_given_again_to_the_one_out_of_sight_longest() -> None:
    film = Film("colours", Config(12, 1), "step")
    shelf: dict[int, Cell] = {}
    for number in range(1, 13):  # step n takes block n; block 1 leaves after step 4, block 2 after step 3
        shelf[number] = Cell(Standing.HELD, (str(number),), number, "")
        for block in {4: [2], 5: [1]}.get(number, []):
            del shelf[block]
        film.stills.append(Still(number, "add", "", dict(shelf)))
    film.blocks = list(range(1, 13))
    given = colours(film)
    assert len({given[str(number)] for number in range(1, 9)}) == len(COLOURS), "the first eight differ"
    assert (given["9"], given["10"]) == (given["2"], given["1"])


# ---- the page ---------------------------------------------------------------------------------------------------


def film_data(found: Page) -> Any:
    """Return the data that the script looks up."""
    return json.loads(next(text for text in found.texts["script"] if text.lstrip().startswith("{")))


def test_the_page_asks_for_nothing(tmp_path: Path) -> None:
    assert_asks_for_nothing(page(film_of_lines(tmp_path, JOURNAL)).decode())


def test_the_page_knows_each_cell(tmp_path: Path) -> None:
    film = film_of_lines(tmp_path, JOURNAL)
    facts = film_data(Page(page(film).decode()))
    assert (facts["blocks"], facts["edges"], facts["unit"]) == ([1, 2, 3, 4, 5, 6], [1.5, 14.5], "line")
    assert facts["runs"][2] == [
        [1.5, 4.5, "free", 0, ""],
        [4.5, 8.5, "held", 5, "sequence 1 holds it"],
        [8.5, 9.5, "quarantined", 9, "launches [2] in flight touch it"],
        [9.5, 14.5, "free", 10, ""],
    ]
    assert facts["steps"][3] == [5, "extend 1+1 2+1: took 3, copies 2 of block 2 to 3 for 1"]


@pytest.mark.parametrize("name", ["<script>alert(1)<!--.jsonl", "@FILM@@SVG@.jsonl", "a&b\"'$x$.jsonl"])
def test_a_name_is_a_name_whatever_is_in_it(tmp_path: Path, name: str) -> None:
    plain, odd = (Page(page(film_of_lines(tmp_path, JOURNAL, each)).decode()) for each in ("plain.jsonl", name))
    assert [tag for tag, _ in odd.found] == [tag for tag, _ in plain.found]
    assert odd.texts["title"][0] == f"{name}: blocks"
    assert film_data(odd) == film_data(plain)

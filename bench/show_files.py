"""Pictures as files: the ending of the name says what is drawn, and a file is there in full or not at all.

Matplotlib is imported where the first picture is drawn, since it takes longer to import than most commands to run.
"""

from collections.abc import Callable
from pathlib import Path

from pagedkv.bench.failures import BadInput
from pagedkv.bench.result_files import output_file, write_whole
from pagedkv.bench.show_film import Film


def _png(film: Film) -> bytes:
    from pagedkv.bench.plots import picture_bytes  # noqa: PLC0415  (see above)
    from pagedkv.bench.show_picture import draw  # noqa: PLC0415  (see above)

    return picture_bytes(draw(film).figure, "png")


def _svg(film: Film) -> bytes:
    from pagedkv.bench.plots import picture_bytes  # noqa: PLC0415  (see above)
    from pagedkv.bench.show_picture import draw  # noqa: PLC0415  (see above)

    return picture_bytes(draw(film).figure, "svg")


def _html(film: Film) -> bytes:
    from pagedkv.bench.show_page import page  # noqa: PLC0415  (see above)

    return page(film)


FORMATS: dict[str, Callable[[Film], bytes]] = {".png": _png, ".svg": _svg, ".html": _html}


def picture_file(path: Path, option: str, keep: list[Path]) -> Path:
    """Give the file that a picture may be put in. Errors: `BadInput` for an ending that is not drawn."""
    if path.suffix.lower() not in FORMATS:
        raise BadInput(f"{option} {path}", "no picture ends like that", f"end the name in {', '.join(FORMATS)}")
    return output_file(path, option, keep)


def write_picture(film: Film, path: Path) -> None:
    """Draw a film into a file, all of it or nothing. About a second. Errors: `OSError`."""
    write_whole(path, FORMATS[path.suffix.lower()](film))

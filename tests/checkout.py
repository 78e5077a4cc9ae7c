"""The checkout as text, for tests of the house: where it is, what git tracks in it, what its Markdown pages say."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("spec", "impl", "kernels", "bench")
_FENCED = re.compile(
    r"(?:^<!-- command: (?P<mark>\w+) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)


def tracked() -> list[str]:
    """Return what git tracks, relative to the top; without git (an unpacked archive) there is nothing to say."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True)
    return [name for name in listed.stdout.split("\0") if name]


def modules(*folders: str) -> list[Path]:
    """Return the modules of some folders, sorted."""
    return sorted(module for folder in folders for module in (ROOT / folder).glob("*.py"))


def fenced(page: str, language: str) -> list[str]:
    """Return the fenced blocks of one language on a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [found["text"] for found in _FENCED.finditer(text) if found["language"] == language]


def commands(page: str) -> dict[str, str]:
    """Return the fenced blocks that a page marks as commands, by their marks."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return {found["mark"]: found["text"] for found in _FENCED.finditer(text) if found["mark"]}


def table(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the one table of a page whose first heading is `heading`, rows below the headings."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    (start,) = [number for number, line in enumerate(lines) if line.startswith(f"| {heading} |")]
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line[1:-1].split("|")])
    return rows

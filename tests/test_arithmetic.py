"""The integers of the spec and of the implementation: proved by crosshair, and small tables by hand.

Three kinds of evidence, since each has a blind side. crosshair reads the contracts below the docstrings and confirms
them over all paths, for every length and every block size; but a contract may say too little. `diffbehavior` shows the
implementation's faster forms equal to the spec's plain ones; but both may be wrong alike. The tables are worked out by
hand, but are few. crosshair's verdict is read word by word, and wrong functions are handed to it too, so that a run
that checked nothing does not pass for a proof. The whole takes about 5 s.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from pagedkv.impl import arithmetic as faster
from pagedkv.impl.arithmetic import Paging
from pagedkv.spec import arithmetic as plain

import arithmetic_pairs

CONFIRMED = "info: Confirmed over all paths."
EXHAUSTED = "No differences found."  # followed by "All paths exhausted"

# length, block size, blocks needed, length of the last block
LENGTHS = [
    (0, 1, 0, 0),
    (0, 16, 0, 0),
    (1, 1, 1, 1),
    (3, 1, 3, 1),
    (1, 2, 1, 1),
    (2, 2, 1, 2),
    (3, 2, 2, 1),
    (4, 2, 2, 2),
    (7, 3, 3, 1),
    (9, 3, 3, 3),
    (1, 16, 1, 1),
    (15, 16, 1, 15),
    (16, 16, 1, 16),
    (17, 16, 2, 1),
    (32, 16, 2, 16),
    (1024, 16, 64, 16),
    (1025, 16, 65, 1),
    (1023, 512, 2, 511),
    (1024, 512, 2, 512),
    (14050, 24, 586, 10),  # the longest prompt of a public trace, in blocks that are no power of two
]
# position, block size, logical block, offset
POSITIONS = [
    (0, 1, 0, 0),
    (5, 1, 5, 0),
    (0, 16, 0, 0),
    (15, 16, 0, 15),
    (16, 16, 1, 0),
    (33, 16, 2, 1),
    (7, 3, 2, 1),
    (8, 3, 2, 2),
    (9, 3, 3, 0),
    (511, 512, 0, 511),
    (512, 512, 1, 0),
]
# block, offset, block size, slot
SLOTS = [(0, 0, 16, 0), (1, 0, 16, 16), (1, 15, 16, 31), (7, 2, 3, 23), (5, 0, 1, 5), (2**31 - 1, 15, 16, 2**35 - 1)]


def crosshair(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run crosshair beside this file; its limit is CPU seconds of its own, so that a busy machine changes nothing."""
    command, *rest = map(str, words)
    return subprocess.run(
        [sys.executable, "-m", "crosshair", command, "--per_condition_timeout", "30", *rest],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )


def contract_lines(path: Path) -> set[str]:
    """Return `file:line` of every postcondition in a source file."""
    text = path.read_text(encoding="utf-8").splitlines()
    return {f"{path}:{number}" for number, line in enumerate(text, 1) if line.lstrip().startswith("post:")}


@pytest.mark.parametrize("module", [plain, faster], ids=["spec", "impl"])
def test_every_contract_is_confirmed_over_all_paths(module: object) -> None:
    path = Path(str(getattr(module, "__file__", None))).resolve()
    run = crosshair("check", "--report_all", path)
    verdicts = dict(line.split(": ", 1) for line in run.stdout.splitlines())
    assert run.returncode == 0, run.stdout + run.stderr
    assert verdicts == dict.fromkeys(contract_lines(path), CONFIRMED)
    assert len(verdicts) >= 8


def test_wrong_functions_are_refuted_under_the_same_contracts() -> None:
    run = crosshair("check", "--report_all", arithmetic_pairs.__name__)
    found = {line.split(": ", 1)[1] for line in run.stdout.splitlines()}
    assert run.returncode == 1, run.stdout + run.stderr
    assert len(found) == len(contract_lines(Path(arithmetic_pairs.__file__))) == 2
    assert all(line.startswith("error: false when calling wrong_") for line in found), found


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("locate_by_division", "locate_by_shift"),
        ("blocks_by_division", "blocks_by_shift"),
        ("last_length_by_difference", "last_length_by_remainder"),
    ],
)
def test_the_faster_form_is_the_plain_one(one: str, other: str) -> None:
    run = crosshair("diffbehavior", f"arithmetic_pairs.{one}", f"arithmetic_pairs.{other}")
    assert run.returncode == 0, run.stdout + run.stderr
    verdict = run.stdout.splitlines()
    assert verdict[0].startswith(EXHAUSTED)
    assert verdict[1] == "All paths exhausted, functions are likely the same!"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("locate_by_division", "locate_by_a_short_mask"),
        ("blocks_by_division", "blocks_by_shift_and_one"),
        ("last_length_by_difference", "last_length_empty_when_full"),
    ],
)
def test_a_wrong_form_is_told_apart(one: str, other: str) -> None:
    run = crosshair("diffbehavior", f"arithmetic_pairs.{one}", f"arithmetic_pairs.{other}")
    assert run.returncode == 1, run.stdout + run.stderr
    assert run.stdout.startswith("Given: (")


@pytest.mark.parametrize(("length", "block_size", "blocks", "last"), LENGTHS)
def test_lengths(length: int, block_size: int, blocks: int, last: int) -> None:
    assert plain.blocks_needed(length, block_size) == faster.blocks_needed(length, block_size) == blocks
    assert plain.last_block_length(length, block_size) == faster.last_block_length(length, block_size) == last
    assert Paging(block_size).blocks_needed(length) == blocks


@pytest.mark.parametrize(("position", "block_size", "block", "offset"), POSITIONS)
def test_positions(position: int, block_size: int, block: int, offset: int) -> None:
    assert plain.locate(position, block_size) == faster.locate(position, block_size) == (block, offset)
    assert Paging(block_size).locate(position) == (block, offset)


@pytest.mark.parametrize(("block", "offset", "block_size", "expected"), SLOTS)
def test_slots(block: int, offset: int, block_size: int, expected: int) -> None:
    assert plain.slot(block, offset, block_size) == faster.slot(block, offset, block_size) == expected


@pytest.mark.parametrize("block_size", sorted({size for _, size, _, _ in LENGTHS}))
def test_arrays_as_integers(block_size: int) -> None:
    """What is proved of integers holds for arrays of them: the same table, as columns."""
    paging = Paging(block_size)
    lengths, needed = zip(*((each[0], each[2]) for each in LENGTHS if each[1] == block_size), strict=True)
    np.testing.assert_array_equal(paging.blocks_needed(np.array(lengths, dtype=np.int64)), needed)
    if places := [(p, b, o) for p, size, b, o in POSITIONS if size == block_size]:
        positions, blocks, offsets = zip(*places, strict=True)
        found = paging.locate(np.array(positions, dtype=np.int64))
        np.testing.assert_array_equal(found, [blocks, offsets])

"""Managers side by side: that each side does what its case says, and the table by hand. No time is asserted."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pagedkv.bench import peer_speeds
from pagedkv.bench.failures import BadInput
from pagedkv.bench.peer_cases import CONTEXT, Cancel, Decode, Evicting, EvictingOneLeaf, FullHit, Prompt, prompts, serve
from pagedkv.bench.peer_contenders import CONTENDERS, OURS, Contender, bytes_a_block
from pagedkv.bench.peer_sides import BLOCK_SIZE, OwnSide, Side
from pagedkv.bench.peer_speeds import Case, measure
from pagedkv.bench.peer_speeds_table import ON, Cell, rows_of, verdicts
from pagedkv.bench.peer_step_cases import OwnStepping, SchedulerStep

NAMES = [each.name for each in CONTENDERS]


def contender(name: str) -> Contender:
    """Return a manager; skip where it can't be imported."""
    (found,) = (each for each in CONTENDERS if each.name == name)
    if missing := found.missing():
        pytest.skip(missing)
    return found


def make(name: str, *, caching: bool) -> Callable[..., Side]:
    """Return what makes its sides; skip where it can't be imported or has none of the kind."""
    side = contender(name).side
    if caching not in side.caches:
        pytest.skip(f"{name} has no side with {caching=}")
    found: Callable[..., Side] = side
    return found


def in_use(case: Decode) -> list[int]:
    """Return how many blocks each sequence has; all are different blocks."""
    rows = case.side.rows(case.names)
    blocks = [block for row in rows for block in row]
    assert len({*blocks}) == len(blocks)
    return [len(row) for row in rows]


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_each_step_every_sequence_has_room_for_one_token_more(name: str, *, caching: bool) -> None:
    case = Decode(make(name, caching=caching), 18, 20, caching=caching)
    lengths = [CONTEXT + at % 16 for at in range(18)]
    for step in range(18):
        assert in_use(case) == [-(-(length + step) // 16) for length in lengths]
        case.turn()


@pytest.mark.parametrize("name", NAMES)
def test_a_full_hit_hits_and_nothing_of_an_unknown_prompt(name: str) -> None:
    side_of = make(name, caching=True)
    case = FullHit(side_of, 300, caching=True)
    case.turn()  # it raises where less than 2,048 tokens are hit
    case.turn()
    unknown = next(prompts(1024, seed=1))
    case.side.prepare(8, unknown)
    assert case.side.admit(8) == 0
    case.side.computed(8)
    case.side.leave(8)
    case.side.prepare(9, unknown)
    assert case.side.admit(9) == 1024 - BLOCK_SIZE, "the last token is left to compute, and with it its block"


@pytest.mark.parametrize("case", [Prompt, Cancel])
@pytest.mark.parametrize("name", NAMES)
def test_what_leaves_gives_everything_back(name: str, case: type[Prompt]) -> None:
    """A pool of one prompt serves one after the other, and each takes all of it."""
    served = case(make(name, caching=False), 1, caching=False)
    for _ in range(3):
        served.turn()


@pytest.mark.parametrize("name", NAMES)
def test_what_was_cached_first_is_evicted_first(name: str) -> None:
    """In a pool of four prompts, or blocks, one is served for each turn, and the oldest of those before is gone."""
    if not contender(name).evicts_by_block:
        pytest.skip("it lets all go at once")
    case = Evicting(make(name, caching=True), 4, caching=True)
    first, second, third, *_ = (ids for ids, _ in zip(prompts(1024), range(4), strict=False))
    case.turn()
    for number, (ids, hit) in enumerate(((third, True), (first, False))):
        case.side.prepare(number, ids)
        assert (case.side.admit(number) > 0) is hit
        case.side.leave(number)
    assert second.size == 1024
    leaves = EvictingOneLeaf(make(name, caching=True), 4, caching=True)
    for _ in range(8):
        leaves.turn()


@pytest.mark.parametrize("name", NAMES)
def test_a_scheduler_decodes_all_requests_in_each_step(name: str) -> None:
    found = contender(name)
    if found.stepping is None:
        pytest.skip(found.no_stepping)
    case = SchedulerStep(found.stepping, 6, 20)
    for _ in range(18):
        case.turn()  # it raises where a request has no part


def test_a_step_that_is_not_of_all_requests_is_none() -> None:
    case = SchedulerStep(OwnStepping, 3, 2)
    case.turn()
    case.requests = 4
    with pytest.raises(ValueError, match="3 rows, not 4"):
        case.turn()


def test_a_block_of_ours_weighs_what_its_arrays_weigh() -> None:
    """Full, it has its 16 ids of 4 bytes at least; the same prompts in a pool that is larger by them."""
    empty, full = bytes_a_block(CONTENDERS[0], full=False), bytes_a_block(CONTENDERS[0], full=True)
    assert 0 < empty < full
    assert full >= empty + 16 * 4


class Failing(OwnSide):
    """A side that fails at its second prompt."""

    def admit(self, name: int) -> int:
        """Fail."""
        self.admitted = getattr(self, "admitted", 0) + 1
        if self.admitted == 2:
            raise KeyError("a block")
        return super().admit(name)


def test_a_manager_that_fails_is_a_cell_that_says_so() -> None:
    sides = [Contender(OURS, OwnSide, OwnStepping), Contender("vllm", Failing, None)]
    case = Case("prompt", ON, lambda each: Prompt(each.side, 8, caching=True), lambda _: "", 8)
    ours, failing = measure(case, sides, seconds=9.0)
    assert (ours.turns, ours.note) == (8, "")
    assert ours.value is not None
    assert (failing.value, failing.note) == (None, "failed: KeyError: 'a block'")


def test_a_slow_manager_takes_fewer_turns_and_five_at_least() -> None:
    case = Case("prompt", ON, lambda each: Prompt(each.side, 20, caching=True), lambda _: "", 20)
    (ours,) = measure(case, CONTENDERS[:1], seconds=1e-9)
    assert ours.turns == 5


def test_the_rows_and_what_is_wanted_of_them_by_hand() -> None:
    cells = [
        Cell("decode step, 2,000", ON, OURS, 100.0, "us", 9, ""),
        Cell("decode step, 2,000", ON, "vllm", 9_900.0, "us", 9, ""),
        Cell("decode step, 2,000", ON, "sglang", 400.0, "us", 9, ""),
        Cell("full hit of 2,048", ON, OURS, 10.0, "us", 9, ""),
        Cell("full hit of 2,048", ON, "sglang", None, "us", 0, "not offered"),
    ]
    rows = rows_of(cells, {"nano_vllm": "not installed: get it", "vllm": ""}, {OURS: "", "vllm": "1", "sglang": "2"})
    assert [row["times_ours"] for row in rows] == [1.0, 99.0, 4.0, 1.0, None, None]
    assert (rows[-1]["manager"], rows[-1]["note"]) == ("nano_vllm", "not installed: get it")
    found = {(each["case"], each["manager"]): each for each in verdicts(rows) if each["caching"] == ON}
    assert found["decode step, 2,000", "vllm"]["holds"] is False
    assert found["decode step, 2,000", "sglang"]["holds"] is True
    assert found["decode step, 2,000", "nano_vllm"]["holds"] is None
    assert found["decode step, 2,000", ""]["nearest"] == "sglang"
    assert found["full hit of 2,048", ""]["holds"] is None


def absent(*_arguments: Any, **_options: Any) -> Side:
    raise BadInput("vllm", "cannot be imported", "get it")


def test_the_command_names_who_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = type("Missing", (), {"caches": (True,), "__new__": absent})
    case = Case("prompt", ON, lambda each: Prompt(each.side, 3, caching=True), lambda _: "", 3)
    monkeypatch.setattr(peer_speeds, "CONTENDERS", (CONTENDERS[0], Contender("vllm", missing, None)))
    monkeypatch.setattr(peer_speeds, "cases", lambda: [case])
    monkeypatch.setattr("torch.set_num_threads", lambda _: None)
    files = [tmp_path / "speeds.json", tmp_path / "speeds.csv"]
    assert peer_speeds.main(["--peers", "vllm", "--json", str(files[0]), "--csv", str(files[1])]) == 0
    assert "vLLM: not installed: vllm: cannot be imported; get it" in capsys.readouterr().out
    rows = json.loads(files[0].read_text())["rows"]
    assert [row["manager"] for row in rows] == [OURS, OURS, OURS, "vllm"]
    with files[1].open(newline="") as lines:
        assert [row["note"] for row in csv.DictReader(lines)][-1].startswith("not installed")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--peers", "vllm,nobody"], "unknown nobody"),
        (["--seconds", "0"], "--seconds must be"),
        (["--json", "/no/such/folder/x.json"], "there is no folder"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_of:
        peer_speeds.main(arguments)
    assert exit_of.value.code == 2
    assert words in capsys.readouterr().err.splitlines()[-1]


def test_a_prompt_is_served_in_full() -> None:
    side = OwnSide(4, 2, 64, caching=True)
    serve(side, 1, next(prompts(64)))
    assert side.cache.counts.idle == 4

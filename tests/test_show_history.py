"""What `pagedkv show` draws: blocks followed through a journal, held to the spec's own states, and samples of them."""

import re
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from pagedkv.bench.operation_words import told_in_words
from pagedkv.bench.show_film import BLOCKS_MAX, STEPS_MAX, Film
from pagedkv.bench.show_history import Cell, History, Standing, Tally
from pagedkv.bench.show_sources import film_of_counterexample, film_of_journal
from pagedkv.bench.show_strips import legend_handles
from pagedkv.spec.alphabet import Add, Execute, Extend, Fork, Operation, Publish, Release, Retire, Submit, apply
from pagedkv.spec.explore import explore
from pagedkv.spec.moves import draw_move
from pagedkv.spec.outcome import Outcome, Rows
from pagedkv.spec.outside import OUTSIDE
from pagedkv.spec.refusals import Broken, Refused
from pagedkv.spec.rules import RULES
from pagedkv.spec.shards import Settings
from pagedkv.spec.state import Block, Config, Name, State, initial, planned_copies
from pagedkv.spec.traces import Case, Finding

import planted_faults as faults
from from_outside import CONTENTS_ALONE
from hand_written_journal import JOURNAL, Alteration, change, ended, insert, lose
from outside_managers import SaysNothing, TellsItsFree
from test_planted_faults import CONTENTS, LOCK_STEP, Expected

Seen = tuple[Standing, tuple[str, ...], int]


class Expectation:
    """Cells worked out from the spec's states: who is in which row, and when that was last different."""

    def __init__(self, config: Config) -> None:
        self.blocks = range(1, config.blocks + 1)
        self.times: Counter[Name] = Counter()
        self.cells: dict[Block, Seen] = dict.fromkeys(self.blocks, (Standing.FREE, (), 0))

    def leaving(self, block: Block, operation: Operation, outcome: Outcome, old: tuple[str, ...]) -> tuple[str, ...]:
        """Return who left a block last."""
        match operation:
            case Release(name):
                return (self.called(name),)
            case Publish():
                return tuple(self.called(merge.sequence) for merge in outcome.merges if merge.old == block)[-1:]
            case _:
                return old[-1:]  # a pin, and it was the only holder or the last of several

    def follow(self, number: int, operation: Operation, outcome: Outcome, state: State) -> None:
        """Work out the cells after a step."""
        if isinstance(operation, Add | Fork):
            self.times[operation.name if isinstance(operation, Add) else operation.child] += 1
        for block in self.blocks:
            before, old, _ = self.cells[block]
            now = {self.called(name) for name, sequence in state.sequences.items() if block in sequence.row}
            now |= {f"pin {handle}" for handle, blocks in state.pins.items() if block in blocks}
            merged = [self.called(merge.sequence) for merge in outcome.merges if merge.new == block]  # in this order
            holders = (*(holder for holder in old if holder in now), *(merged or now - set(old)))
            standing = [Standing.FREE, Standing.HELD, Standing.SHARED][min(len(holders), 2)]
            if block in state.quarantine or block in state.evictable:
                published = any(entry.block == block for entry in state.prefixes.values())
                standing = Standing.IDLE if published else Standing.QUARANTINED
                waited = before in {Standing.QUARANTINED, Standing.IDLE}
                holders = old if waited else self.leaving(block, operation, outcome, old)
            if (standing, holders) != (before, old):
                self.cells[block] = (standing, holders, number)

    def called(self, name: Name) -> str:
        """Return what the sequence that has a name now is called."""
        return str(name) if self.times[name] == 1 else f"{name}.{self.times[name]}"


def wander(
    config: Config, names: int, steps: int, seed: int, *, sharing: bool
) -> list[tuple[Operation, Outcome, State]]:
    """Go through a world by lot; return what a host sees of it, with the state after each step."""
    random = Random(seed)
    state = initial(config)
    seen: list[tuple[Operation, Outcome, State]] = []
    for _ in range(steps):
        operation = draw_move(state, names, random, sharing=sharing)
        if isinstance(operation, Add) and isinstance(operation.tokens, int):
            operation = operation._replace(tokens=random.randint(1, 3 * config.block_size))
        try:
            state, outcome = apply(state, operation)
        except Refused:
            continue
        if not isinstance(operation, Execute):
            seen.append((operation, outcome, state))
    return seen


def reason_holds(cell: Cell, block: Block, state: State) -> bool:
    """Whether what a cell says keeps it from being free does, by the spec's state."""
    if cell.why == "a planned copy reads it":
        return any(copy.source == block for copy in planned_copies(state))
    said = re.fullmatch(r"launches \[([\d, ]+)\] in flight touch it", cell.why)
    assert said, cell.why
    named = {int(launch) for launch in said[1].split(",")}
    return named <= {each.id for each in state.launches if block in each.reads or block in each.writes}


@pytest.mark.parametrize(
    ("config", "names"),
    [(Config(3, 2, 2, 3), 3), (Config(8, 1, 3, 4), 4), (Config(12, 4, 2, 4), 5), (Config(30, 3, 2, 5), 6)],
)
@pytest.mark.parametrize("sharing", [False, True], ids=["counts", "prefixes"])
def test_history_and_spec_agree_on_every_block_after_every_step(config: Config, names: int, *, sharing: bool) -> None:
    history, expected = History(config), Expectation(config)
    met: Counter[Standing] = Counter()
    for number, (operation, outcome, state) in enumerate(
        wander(config, names, 1500, config.blocks, sharing=sharing), 2
    ):
        history.step(number, operation, outcome)
        expected.follow(number, operation, outcome, state)
        cells = {block: history.cell(block) for block in expected.blocks}
        assert {block: cell[:3] for block, cell in cells.items()} == expected.cells, (number, operation)
        for block, cell in cells.items():
            met[cell.standing] += 1
            assert cell.standing is not Standing.QUARANTINED or reason_holds(cell, block, state)
        standings = Counter(cell.standing for cell in cells.values())
        assert history.tally() == (*(standings[each] for each in list(Standing)[1:]), len(state.launches))
        assert list(history.in_flight()) == [launch.id for launch in state.launches]
    possible = [standing for standing in Standing if sharing or standing is not Standing.IDLE]
    assert min(met[standing] for standing in possible) > 20, "every standing was met"


# ---- a journal written by hand, drawn by hand -------------------------------------------------------------------


GRID = {  # block -> who holds it after lines 2 to 14; a letter: in quarantine, left by 1 (a) or 2 (b)
    1: ["1", "1", "12", "12", "12", "12", "12", "2", "2", "b", ".", ".", "."],
    2: ["1", "1", "12", "2", "2", "2", "2", "2", "2", "b", ".", "3", "."],
    3: [".", ".", ".", "1", "1", "1", "1", "a", ".", ".", ".", ".", "."],
    4: ["."] * 13,
}


def letters(film: Film, block: Block) -> list[str]:
    """Return a block's row of a film in the letters of `GRID`."""
    waiting = {"1": "a", "2": "b"}
    cells = [still.cells[block] for still in film.stills]
    return [
        waiting[cell.holders[0]] if cell.standing is Standing.QUARANTINED else "".join(cell.holders) or "."
        for cell in cells
    ]


def write(path: Path, lines: list[str]) -> Path:
    path.write_bytes(ended(lines))
    return path


def test_a_journal_worked_out_by_hand(tmp_path: Path) -> None:
    film = film_of_journal(write(tmp_path / "hand.jsonl", JOURNAL))
    assert {block: letters(film, block) for block in GRID} == GRID
    assert film.blocks == [1, 2, 3, 4, 5, 6]
    assert not film.sampled
    assert [(f.launch, f.stream, f.first, f.last) for f in film.flights] == [(1, 0, 3, 8), (2, 0, 6, 10), (3, 1, 7, 12)]
    assert [(number, *copy) for number, copy in film.copies] == [(5, 1, 2, 3, 2)]
    assert film.stills[7].cells[3].why == "launches [2] in flight touch it"
    assert film.stills[3].words == "extend 1+1 2+1: took 3, copies 2 of block 2 to 3 for 1"
    assert list(film.counts.shared) == [0, 0, 2, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0]
    assert list(film.counts.in_flight) == [0, 1, 1, 1, 2, 3, 2, 2, 1, 1, 0, 0, 0]
    assert film.mark is None


@pytest.mark.parametrize(
    ("altered", "rule", "line", "named"),
    [
        (change(7, ',"after":[1]', ""), "R-LIFE-2", 7, set()),
        (change(9, '"seq":1', '"seq":1,"freed":[3]'), "R-LIFE-1", 9, {3}),
        (change(13, "[2]", "[7]"), "R-OWN-1", 13, {7}),
        (lose(10), "R-LIFE-1", 11, {1, 2}),
        (change(12, ',"freed":[1,2]', ""), "R-LIFE-4", 12, set()),
        (change(5, ',"copies":[[1,2,3,2]]', ""), "R-COW-1", 5, {3}),
        (insert(6, '{"op":"add","seq":1}'), "R-TXN-1", 6, set()),
        (insert(6, '{"op":"dance"}'), "JOURNAL", 6, set()),
    ],
)
def test_a_film_ends_with_the_first_line_that_breaks_a_rule(
    tmp_path: Path, altered: Alteration, rule: str, line: int, named: set[Block]
) -> None:
    film = film_of_journal(write(tmp_path / "broken.jsonl", altered(JOURNAL)))
    assert film.mark is not None
    assert (film.mark.rule, film.mark.number, set(film.mark.blocks)) == (rule, line, named)
    assert film.mark.sentence
    assert not film.mark.detail.startswith("line")
    assert film.stills[-1].number == (line - 1 if rule == "JOURNAL" else line)
    assert film.steps == line - 2
    untouched = set(range(1, 7)) - named
    if rule != "JOURNAL":
        before, last = film.stills[-2].cells, film.stills[-1].cells
        assert {block: before[block] for block in untouched} == {block: last[block] for block in untouched}
        assert all(last[block].why.startswith(f"line {line} says that it ") for block in named)


def test_a_launch_that_breaks_a_rule_is_drawn_too(tmp_path: Path) -> None:
    film = film_of_journal(write(tmp_path / "broken.jsonl", change(7, ',"after":[1]', "")(JOURNAL)))
    assert [(flight.launch, flight.first, flight.last) for flight in film.flights] == [
        (1, 3, None),
        (2, 6, None),
        (3, 7, None),
    ]


def test_a_journal_cut_off_is_drawn_up_to_there(tmp_path: Path) -> None:
    path = tmp_path / "cut.jsonl"
    path.write_bytes("".join(JOURNAL[:5]).encode())
    film = film_of_journal(path)
    assert film.mark is not None
    assert (film.mark.rule, film.mark.number, film.stills[-1].number) == ("JOURNAL", 6, 5)


# ---- samples ----------------------------------------------------------------------------------------------------


class Shelf:
    """A scene of many blocks: step n takes block n; odd ones stay."""

    def __init__(self, blocks: int) -> None:
        self.config = Config(blocks, 1)
        self.number = 0

    def cell(self, block: Block) -> Cell:
        held = block <= self.number
        return Cell(Standing.HELD if held else Standing.FREE, (str(block),) * held, block * held, "")

    def tally(self) -> Tally[int]:
        return Tally(self.number, 0, 0, 0, 0)

    def in_flight(self) -> dict[int, object]:
        return {}

    def taken(self) -> tuple[Block, ...]:
        return (self.number,)


@pytest.mark.parametrize("steps", [1, 40, 41, 200, 201, 5000])
def test_a_film_of_any_length_keeps_so_many_blocks_and_steps(steps: int) -> None:
    shelf = Shelf(100_000)
    film = Film("shelf", shelf.config, "step")
    for shelf.number in range(1, steps + 1):
        film.shoot(shelf, shelf.number, Add(shelf.number, 1), Outcome(blocks=(shelf.number,)))
    film.end()
    assert len(film.blocks) <= BLOCKS_MAX
    assert len(film.stills) <= STEPS_MAX
    assert (film.sampled, film.blocks_used, film.steps) == (steps > BLOCKS_MAX, steps, steps)
    assert film.blocks == list(range(1, steps + 1, film.block_stride))
    assert [still.number for still in film.stills] == list(range(1, steps + 1, film.step_stride))
    assert min(len(film.blocks), len(film.stills)) >= min(steps, BLOCKS_MAX // 2)
    assert list(film.counts.held) == list(range(1, steps + 1))
    for still in film.stills:
        for block in film.blocks:
            assert still.cells.get(block, shelf.cell(10**9))[:2] == (
                (Standing.HELD, (str(block),)) if block <= still.number else (Standing.FREE, ())
            )


def test_a_sample_of_a_real_run_is_true_wherever_it_looks() -> None:
    config = Config(100, 2, 2, 4)
    steps = wander(config, 24, 1800, 5, sharing=False)
    history = History(config)
    film = Film("run", config, "line")
    for number, (operation, outcome, _) in enumerate(steps, 2):
        history.step(number, operation, outcome)
        film.shoot(history, number, operation, outcome)
    film.end()
    planned = [outcome.copies for operation, outcome, _ in steps if isinstance(operation, Extend)]
    assert [copy for _, copy in film.copies] == [copy for copies in planned for copy in copies]
    assert film.copies
    assert film.block_stride > 1
    assert film.step_stride > 1
    expected = Expectation(config)
    stills = {still.number: still for still in film.stills}
    for number, (operation, outcome, state) in enumerate(steps, 2):
        expected.follow(number, operation, outcome, state)
        if number in stills:
            cells = stills[number].cells
            for block in film.blocks:
                seen = cells[block][:3] if block in cells else (Standing.FREE, (), 0)
                assert seen == expected.cells[block]


# ---- counterexamples --------------------------------------------------------------------------------------------


QUICK = [
    pytest.param(fault, expected, lock_step, id=f"{fault.__name__}-{'lock-step' if lock_step else 'contents'}")
    for table, lock_step in ((LOCK_STEP, True), (CONTENTS, False))
    for fault, expected in table.items()
    if expected.length <= (8 if lock_step else 6)
]


def finding(fault: type[faults.Faulty], expected: Expected, *, lock_step: bool) -> Finding:
    report = explore(Settings(expected.scope, fault, lock_step, pairs=lock_step, aside=CONTENTS_ALONE), workers=1)
    assert report.broken is not None
    return Finding(Case(expected.scope.config, fault, lock_step, CONTENTS_ALONE), tuple(report.trace), report.broken)


@pytest.mark.parametrize(("fault", "expected", "lock_step"), QUICK)
def test_a_counterexample_is_filmed_to_the_step_that_breaks(
    fault: type[faults.Faulty], expected: Expected, *, lock_step: bool
) -> None:
    found = finding(fault, expected, lock_step=lock_step)
    film = film_of_counterexample(found)
    assert film.mark is not None
    assert (film.mark.rule, film.mark.number) == (found.broken.rule, expected.length)
    assert [still.number for still in film.stills] == list(range(1, expected.length + 1))


def test_a_picture_shows_what_the_manager_says() -> None:
    """The block that a cancelled sequence leaves is free at once, though launch 1 will read it."""
    film = film_of_counterexample(finding(faults.EarlyReuse, LOCK_STEP[faults.EarlyReuse], lock_step=True))
    held, launched, freed = (still.cells[1] for still in film.stills)
    assert held[:3] == launched[:3] == (Standing.HELD, ("1",), 1)
    assert freed == Cell(Standing.FREE, (), 3, "free, though launches [1] in flight touch it")
    assert film.mark is not None
    assert film.mark.blocks == {1}


def test_executions_are_steps_and_a_namesake_is_another() -> None:
    """By contents alone, early reuse shows once a namesake has taken the block and an old launch has written there."""
    trace = (
        *(Add(1, 1), Submit(((1, 1),)), Release(1)),
        *(Add(1, 2), Submit(((1, 1),), stream=1), Execute(2), Execute(1), Retire(1), Submit(((1, 1),)), Execute(3)),
    )
    case = Case(Config(2, 1, 2, 2), faults.EarlyReuse, lock_step=False, aside=CONTENTS_ALONE)
    film = film_of_counterexample(Finding(case, trace, Broken("R-DATA", "")))
    assert film.mark is not None
    assert (film.mark.rule, film.mark.number) == ("R-DATA", 10)
    assert film.executions == [(6, 2), (7, 1)]
    holders = {holder for still in film.stills for cell in still.cells.values() for holder in cell.holders}
    assert {"1", "1.2"} <= holders
    labels = [handle.get_label() for handle in legend_handles(film)]
    assert "1.2: the 2nd sequence that is called 1" in labels


class NoEdges(SaysNothing):
    """Says of a launch neither its number nor what it must wait for."""

    def launch(self, rows: Rows, stream: int) -> Outcome:
        super().launch(rows, stream)
        return Outcome()


def test_a_launch_that_breaks_a_rule_has_its_number_though_nobody_says_it() -> None:
    trace = (Add(1, 3), *(Submit(((1, 1),)), Execute(1), Retire(1)), Submit(((1, 1),)), Submit(((1, 1),), stream=1))
    case = Case(Config(3, 2, 2, 2), NoEdges, lock_step=False)
    film = film_of_counterexample(Finding(case, trace, Broken("R-LIFE-2", "")))
    assert film.mark is not None
    assert (film.mark.rule, film.mark.number) == ("R-LIFE-2", 6)
    assert [(flight.launch, flight.stream) for flight in film.flights] == [(1, 0), (2, 0), (3, 1)]


def test_a_manager_that_cannot_be_made_has_a_film_without_steps() -> None:
    def broken(_config: Config) -> faults.Faulty:
        raise RuntimeError("never")

    found = finding(faults.EarlyReuse, LOCK_STEP[faults.EarlyReuse], lock_step=True)
    film = film_of_counterexample(found._replace(case=found.case._replace(factory=broken)))
    assert (film.stills, film.steps) == ([], 0)
    assert film.mark is not None


def test_what_a_stranger_lost_is_not_drawn_free_and_the_sentence_is_of_the_book_that_judged() -> None:
    trace = (Add(1, 2), Add(2, 1), Release(1))
    case = Case(Config(4, 2, 1, 2), TellsItsFree, lock_step=False)
    film = film_of_counterexample(Finding(case, trace, Broken("R-OWN-5", "")))
    assert film.mark is not None
    assert (film.mark.rule, film.mark.sentence) == ("R-OWN-5", OUTSIDE["R-OWN-5"].sentence)
    assert OUTSIDE["R-OWN-5"].sentence != RULES["R-OWN-5"].sentence
    lost = [cell for cell in film.stills[-1].cells.values() if cell.standing is Standing.HELD and not cell.holders]
    assert [cell.why for cell in lost] == ["no row names it, and the manager does not have it as free"]


def test_what_is_not_told_to_be_freed_is_not_said() -> None:
    """A stranger's `release` answers nothing, and its blocks are free all the same."""
    assert told_in_words(Release(1), Outcome()) == ("release 1", "done")
    assert told_in_words(Release(1), Outcome(freed=frozenset({3}))) == ("release 1", "freed 3")

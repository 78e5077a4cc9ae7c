"""What is filmed: a journal, or a counterexample as its manager lives it again.

A journal is followed by the spec's auditor (`show_history`), so its picture shows what the spec makes of each line and
ends with the first that cannot be.

A counterexample is run again, and its picture shows what the *manager* says after each step, the last one too: there is
a block free that a launch still reads, or a row that names another's block. The device's own moves are steps of it. A
manager that shows nothing of itself but block tables is drawn from those; its quarantine, if it has one, can't be seen.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from pagedkv.bench.counterexample import sentences_of
from pagedkv.bench.failures import BadInput
from pagedkv.bench.operation_words import world_in_words
from pagedkv.bench.own_files import JOURNAL, another_of_ours
from pagedkv.bench.show_film import Film
from pagedkv.bench.show_history import Cell, History, Holder, Holders, Standing, Tally, cell_of_holders
from pagedkv.spec.alphabet import Add, Extend
from pagedkv.spec.asking import sight_of, table_of
from pagedkv.spec.counts import counted
from pagedkv.spec.foreign_judge import ForeignWorld, Happened
from pagedkv.spec.journal import InvalidJournal, Journal, Record, open_journal
from pagedkv.spec.moves import possible
from pagedkv.spec.observation import Observation
from pagedkv.spec.refusals import Broken
from pagedkv.spec.state import Block, Handle, LaunchId, Name
from pagedkv.spec.traces import Finding


def film_of_journal(path: Path, on_line: Callable[[Journal], None] = lambda _journal: None) -> Film:
    """Film a journal up to its end or to the first line that breaks a rule. Linear. Errors: `BadInput`."""
    try:
        with open_journal(path) as journal:
            film = Film(path.name, journal.config, "line")
            history = History(journal.config)
            record = None
            try:
                for record in journal:
                    history.step(*record)
                    film.shoot(history, *record)
                    on_line(journal)
            except Broken as broken:
                if record is None or broken.rule == "JOURNAL":
                    line, _, what = broken.detail.removeprefix("line ").partition(": ")  # the reader begins so
                    film.mark_broken(Broken(broken.rule, what), int(line))
                else:
                    film.break_off(broken, *record, cells=_claims(record))
            else:
                film.end()
            return film
    except InvalidJournal as error:
        bad = BadInput(error.where, error.what, error.remedy)
        raise another_of_ours(error.where, path, JOURNAL) or bad from None


def _claims(record: Record) -> dict[Block, Cell]:
    """Return what a line says of blocks, whether or not it can be."""
    holders: tuple[Holder, ...] = ()
    match record.operation:
        case Add(name):
            holders = (str(name),)
        case Extend(rows) if len(rows) == 1:
            holders = (str(rows[0][0]),)
        case _:
            pass
    says = f"line {record.line} says that it"
    taken = Cell(Standing.HELD, holders, record.line, f"{says} was taken")
    freed = Cell(Standing.FREE, (), record.line, f"{says} became free")
    return dict.fromkeys(record.outcome.blocks, taken) | dict.fromkeys(record.outcome.freed, freed)


def film_of_counterexample(finding: Finding) -> Film:
    """Run a trace again and film it up to the step that breaks a rule."""
    config = finding.case.config
    title = f"{finding.broken.rule} after {counted(len(finding.trace), 'operation')}"
    try:
        world = finding.case.start()
    except Exception:  # noqa: BLE001  (a stranger's constructor may raise anything)
        film = Film(title, config, "step", sentences=sentences_of(finding.case))
        film.mark_broken(finding.broken, 0)
        return film
    stage = ForeignStage(world) if isinstance(world, ForeignWorld) else Stage(world)
    film = Film(title, config, "step", stage.first_block, world=world_in_words(finding.case))
    film.sentences = sentences_of(finding.case)
    if isinstance(world, ForeignWorld):
        film.holder = "request"
    number = 0
    for operation in finding.trace:
        if not possible(world.state, operation):
            continue
        number += 1
        try:
            decided = world.step(operation)
        except Broken as broken:
            stage.look(number)
            cells = {block: stage.cell(block) for block in film.blocks}
            film.break_off(broken, number, operation, world.offered, cells)
            return film
        stage.look(number)
        film.shoot(stage, number, operation, decided)
    film.title += ": held this time"
    film.end()
    return film


class Stage:
    """The blocks as a manager shows them, with its judge's launches."""

    def __init__(self, world: Any) -> None:
        self.config = world.state.config
        self._world = world
        self.first_block = self._first_block()
        self._cells: dict[Block, Cell] = {}
        self._taken: tuple[Block, ...] = ()
        self._last_holders: dict[Block, tuple[Holder, ...]] = {}
        self._called = Holders()
        self._live: set[Name] = set()
        self.look(0)

    def look(self, number: int) -> None:
        """Look at the manager after a step. One that cannot even be looked at any more is left as it was."""
        try:
            cells = self._look()
        except Exception:  # noqa: BLE001  (after a step that broke a rule a stranger may raise anything)
            return
        before = self._cells
        self._taken = tuple(block for block, cell in cells.items() if cell.holders and not self._held(block))
        self._cells = {}
        for block, cell in cells.items():
            old = before.get(block)
            same = old is not None and old[:2] == cell[:2]
            self._cells[block] = cell._replace(since=old.since if same and old else number)
            if cell.standing in {Standing.HELD, Standing.SHARED}:
                self._last_holders[block] = cell.holders

    def cell(self, block: Block) -> Cell:
        """Look at a block."""
        return self._cells.get(block, cell_of_holders((), 0))

    def tally(self) -> Tally[int]:
        """Count."""
        standings = [cell.standing for cell in self._cells.values()]
        held, shared, waiting, idle = (standings.count(each) for each in list(Standing)[1:])
        return Tally(held, shared, waiting, idle, len(self._world.state.launches))

    def in_flight(self) -> dict[LaunchId, Any]:
        """Return the launches in flight, oldest first."""
        return {launch.id: launch for launch in self._world.state.launches}

    def taken(self) -> tuple[Block, ...]:
        """Return the blocks that got a first holder in the last step."""
        return self._taken

    def _held(self, block: Block) -> bool:
        return block in self._cells and bool(self._cells[block].holders)

    def _look(self) -> dict[Block, Cell]:
        """Return a cell for each block of the pool, and for each that a row names beside it."""
        shown, rows = self._shown()
        for name in rows.keys() - self._live:
            self._called.begin(name)
        self._live = set(rows)
        holders = self._holders(rows, shown.pins if shown else {})
        pool = range(self.first_block, self.first_block + self.config.blocks)
        cells = {
            block: cell_of_holders(tuple(holders.get(block, ())), 0) for block in {**dict.fromkeys(pool), **holders}
        }
        for block in shown.quarantined if shown else ():
            cells[block] = Cell(Standing.QUARANTINED, self._last_holders.get(block, ()), 0, self._what_keeps(block))
        for block in shown.idle if shown else ():
            cells[block] = Cell(
                Standing.IDLE, self._last_holders.get(block, ()), 0, self._touching(block) or "evictable"
            )
        free = shown.free if shown else self._told_free()
        for block, cell in cells.items():
            if free is not None and cell.standing is Standing.FREE and block not in free:
                cells[block] = Cell(Standing.HELD, (), 0, "no row names it, and the manager does not have it as free")
            elif cell.standing is Standing.FREE and (touching := self._touching(block)):
                cells[block] = cell._replace(why=f"free, though {touching}")
        return cells

    def _first_block(self) -> Block:
        first: Block = self._world.manager.first_block
        return first

    def _told_free(self) -> set[Block] | None:
        """Return what a manager that shows only tables tells to be free or cached; None where it does not tell."""
        return sight_of(self._world.manager, ()).available()

    def _shown(self) -> tuple[Observation | None, dict[Name, list[Block]]]:
        """Return what the manager shows of itself, if it does, and the rows."""
        manager = self._world.manager
        shown: Observation | None = manager.observe()
        if shown:
            return shown, {name: list(seen.row) for name, seen in shown.sequences.items()}
        return None, {name: list(table_of(manager, name)) for name in self._world.state.sequences}

    def _holders(
        self, rows: Mapping[Name, Iterable[Block]], pins: Mapping[Handle, Iterable[Block]]
    ) -> dict[Block, dict[Holder, None]]:
        """Return who holds each block that a row names or a pin holds: sequences first."""
        held = [(self._called[name], row) for name, row in rows.items()]
        held += [(f"pin {handle}", blocks) for handle, blocks in pins.items()]
        holders: dict[Block, dict[Holder, None]] = {}
        for holder, blocks in held:
            for block in blocks:
                holders.setdefault(block, {})[holder] = None
        return holders

    def _what_keeps(self, block: Block) -> str:
        copies = [each.copy for each in self._world.state.sequences.values() if each.copy]
        planned = [f"a planned copy for sequence {copy.sequence} reads it" for copy in copies if copy.source == block]
        return " and ".join(filter(None, [self._touching(block), *planned])) or "nothing keeps it"

    def _touching(self, block: Block) -> str:
        launches = [each.id for each in self._world.state.launches if block in each.reads or block in each.writes]
        return f"launches {launches} in flight touch it" if launches else ""


class ForeignStage(Stage):
    """The blocks as the steps of a stranger's scheduler name them: those of a request that waits are nobody's."""

    def _first_block(self) -> Block:
        first: Block = self._world.scheduler.first_block
        return first

    def _told_free(self) -> set[Block] | None:
        return None  # what is told of free blocks at a step's end says nothing of the requests that wait

    def _shown(self) -> tuple[Observation | None, dict[Name, list[Block]]]:
        rows = {request: [*served.row] for request, served in self._world.live.items() if served.row}
        said = self._world.offered.rows if isinstance(self._world.offered, Happened) else ()  # it may break a rule
        return None, rows | {row.request: [*row.blocks] for row in said}

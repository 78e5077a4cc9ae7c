"""A film of the blocks: a still after each step, few enough of them to be drawn, with all that went on beside them.

Up to 40 blocks and 200 steps a film is complete. Beyond, nothing that is drawn block by block can be read, so it keeps
a sample: every second, fourth, ... block in order of first use and every second, fourth, ... step, the stride doubled
and every other one let go whenever there are too many. So a journal of any length is filmed in one pass, and what is
kept does not grow with blocks x steps. Counts (held, shared, quarantined, in flight) are kept for every step.

A pool larger than 40 of which no more than 40 were ever used is no sample: a block that is free throughout has nothing
to show.

Where a rule is broken the film ends with that step, as the step itself tells it: what it took, what it says is free.
"""

from array import array
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pagedkv.bench.operation_words import kind_of, step_in_words
from pagedkv.bench.show_history import Cell, Scene, Tally
from pagedkv.spec.alphabet import Execute, Extend, Retire, Submit
from pagedkv.spec.foreign_alphabet import Finish
from pagedkv.spec.foreign_judge import Happened
from pagedkv.spec.outcome import Outcome
from pagedkv.spec.refusals import Broken, Refused
from pagedkv.spec.rules import RULES
from pagedkv.spec.scheduler_alphabet import Complete, Schedule
from pagedkv.spec.state import Block, Config, Copy, LaunchId

BLOCKS_MAX = 40
STEPS_MAX = 200
LISTED_MAX = 6  # rows or blocks in the words of a step
_SENTENCES = {name: rule.sentence for name, rule in RULES.items()}
_SENTENCES |= {"JOURNAL": "The file is not as its writer left it.", "CRASH": "The manager raised an error of its own."}


class Still(NamedTuple):
    """The chosen blocks after a step. A block that is missing had not been used by then."""

    number: int  # of the step, or of the journal's line
    operation: str  # its kind
    words: str  # what was done, and what was decided
    cells: Mapping[Block, Cell]


class Flight(NamedTuple):
    """A launch, from the step that submitted it to the one with which the host knew that it was done."""

    launch: LaunchId
    stream: int
    first: int
    last: int | None = None  # None: in flight when the film ends


class Mark(NamedTuple):
    """The first step that breaks a rule."""

    number: int
    rule: str
    sentence: str
    detail: str
    blocks: frozenset[Block]  # that it takes or frees


@dataclass
class Film:
    """Stills of chosen blocks at chosen steps, counts of all. `shoot` each step, then `end` or `break_off`."""

    title: str
    config: Config
    unit: str  # what numbers count: `line` or `step`
    first_block: int = 1
    holder: str = "sequence"  # what holds blocks: a `sequence`, or a `request` of a stranger's scheduler
    world: str = ""  # its sizes and limits in words, where there is more to say than `config` does
    sentences: Mapping[str, str] = field(default_factory=lambda: _SENTENCES)  # of rules, by their names
    stills: list[Still] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)  # chosen
    block_stride: int = 1
    step_stride: int = 1
    first_number: int = 0
    counts: Tally["array[int]"] = field(default_factory=lambda: Tally(*(array("q") for _ in Tally._fields)))
    flights: list[Flight] = field(default_factory=list)
    executions: list[tuple[int, LaunchId]] = field(default_factory=list)
    copies: list[tuple[int, Copy]] = field(default_factory=list)
    mark: Mark | None = None
    _used: set[Block] = field(default_factory=set)
    _flying: dict[int, "deque[Flight]"] = field(default_factory=dict)  # by stream, oldest first

    def __post_init__(self) -> None:
        if self.whole_pool:
            self.blocks = list(range(self.first_block, self.first_block + self.config.blocks))

    @property
    def whole_pool(self) -> bool:
        """Whether every block of the pool is drawn, used or not."""
        return self.config.blocks <= BLOCKS_MAX

    @property
    def sampled(self) -> bool:
        """Whether blocks or steps were left out."""
        return self.block_stride > 1 or self.step_stride > 1

    @property
    def steps(self) -> int:
        """How many steps held."""
        return len(self.counts.held)

    @property
    def blocks_used(self) -> int:
        """How many blocks were ever taken."""
        return len(self._used)

    def shoot(self, scene: Scene, number: int, operation: Any, decided: Outcome | Happened | Refused | None) -> None:
        """Take in the step `number` after it was done. O(streams), or O(chosen blocks) if the still is kept."""
        if not self.steps:
            self.first_number = number
        for series, value in zip(self.counts, scene.tally(), strict=True):
            series.append(value)
        self._use(scene.taken())
        if isinstance(decided, Outcome) and isinstance(operation, Extend):  # a launch takes along what was planned
            self.copies += [(number, copy) for copy in decided.copies]
        if isinstance(decided, Outcome | Happened):
            self._follow_launches(scene.in_flight(), number, operation, decided)
        if (self.steps - 1) % self.step_stride == 0:
            cells = {block: scene.cell(block) for block in self.blocks}
            self.stills.append(_still(number, operation, decided, cells))
            if len(self.stills) > STEPS_MAX:
                self.step_stride *= 2
                self.stills = self.stills[::2]

    def end(self) -> None:
        """End the film; what flies still flies."""
        self.flights += [flight for flying in self._flying.values() for flight in flying]
        self.flights.sort(key=lambda flight: flight.launch)
        self.blocks.sort()

    def break_off(
        self,
        broken: Broken,
        number: int,
        operation: Any,
        decided: Outcome | Happened | Refused | None,
        cells: Mapping[Block, Cell],
    ) -> None:
        """End the film at the step that breaks a rule: `cells` are the blocks as this step has them."""
        named: frozenset[Block] = frozenset()
        if isinstance(decided, Outcome):
            named = decided.freed.union(decided.blocks)
            if isinstance(operation, Submit):  # a stranger need not number it
                launches = len(self.flights) + sum(map(len, self._flying.values()))
                self.flights.append(Flight(decided.launch or launches + 1, operation.stream, number))
        elif isinstance(decided, Happened) and decided.launch:
            self.flights.append(Flight(decided.launch, 0, number))
        self._use(tuple(cells))
        before = self.stills[-1].cells if self.stills and self.step_stride == 1 else {}
        self.stills.append(_still(number, operation, decided, {**before, **cells}))
        self.mark_broken(broken, number, named)

    def mark_broken(self, broken: Broken, number: int, named: frozenset[Block] = frozenset()) -> None:
        """End the film at a place that is no step: a line that cannot be read."""
        sentence = self.sentences.get(broken.rule, "")
        self.mark = Mark(number, broken.rule, sentence, broken.detail, named)
        self.end()

    def _use(self, blocks: Collection[Block]) -> None:
        """Choose among blocks that are used for the first time."""
        for block in blocks:
            if block in self._used:
                continue
            chosen = len(self._used) % self.block_stride == 0
            self._used.add(block)
            if chosen and not self.whole_pool:
                self.blocks.append(block)
                if len(self.blocks) > BLOCKS_MAX:
                    self.block_stride *= 2
                    self.blocks = self.blocks[::2]

    def _follow_launches(
        self, in_flight: dict[LaunchId, Any], number: int, operation: Any, decided: Outcome | Happened
    ) -> None:
        match operation:
            case Submit(_, stream):
                newest = next(reversed(in_flight), 0)
                self._flying.setdefault(stream, deque()).append(Flight(newest, stream, number))
            case Schedule() if decided.launch:
                self._flying.setdefault(0, deque()).append(Flight(decided.launch, 0, number))
            case Execute(launch):
                self.executions.append((number, launch))
            case Retire() | Complete() | Finish():
                for flying in self._flying.values():
                    while flying and flying[0].launch not in in_flight:
                        self.flights.append(flying.popleft()._replace(last=number))
            case _:
                pass


def _still(
    number: int, operation: Any, decided: Outcome | Happened | Refused | None, cells: Mapping[Block, Cell]
) -> Still:
    return Still(number, kind_of(operation), step_in_words(operation, decided, LISTED_MAX), cells)

"""The frontier of an exhaustive walk, kept by one process or by several.

A world (spec state and manager) is costly to send and cheap to keep. So each process expands the worlds that it found
itself, and only their keys travel: the process that leads the walk answers which of them are new. The first levels are
walked by every process alike, since a walk from one state has nothing to share out; when there is enough of a
frontier, each keeps its part.
"""

import hashlib
import marshal
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from .alphabet import KINDS, REFUSALS, SHARING, Operation
from .manager import Factory
from .moves import Scope, all_moves
from .offers import NEEDED, Feature
from .processes import Processes
from .refusals import Broken, Reason, Refused
from .scheduler_drivers import SchedulerSettings
from .traces import Case
from .world import Place, World

Digest = bytes
Candidate = tuple[Digest, int, Any]  # key of a state, index of the state before, the operation between
Found = tuple[int, tuple[Any, ...], Broken]  # index of a state, the operations that broke a rule there

ENOUGH = 100  # states a process, before the frontier is shared out


class Settings(NamedTuple):
    """What to walk, and how."""

    scope: Scope
    factory: Factory
    lock_step: bool = True
    pairs: bool = False
    lacks: frozenset[Feature] = frozenset()  # what a black box does not offer, as its maker says
    aside: frozenset[str] = frozenset()  # rules that a black box is not judged by

    def vocabulary(self) -> list[str]:
        """Return what a walk to the end should meet."""
        never = {KINDS[kind] for kind, feature in NEEDED.items() if feature in self.lacks}
        return [kind for kind in KINDS.values() if (self.scope.sharing or kind not in SHARING) and kind not in never]

    def refusals(self) -> dict[str, tuple[Reason, ...]]:
        """Return what each operation of the scope should be refused for."""
        return {kind: REFUSALS[kind] for kind in self.vocabulary()}

    def words(self, operation: Operation, _decided: object = None) -> list[str]:
        """Return what is met by an operation."""
        return [KINDS[type(operation)]]

    def case(self) -> Case:
        """Return what to run a counterexample on."""
        return Case(self.scope.config, self.factory, self.lock_step, self.aside)

    def start(self) -> World:
        """Return the world that the walk begins in."""
        return self.case().start()

    def moves(self, here: World) -> Iterator[Operation]:
        """Yield every operation to be tried: of a black box, those that make sense and that it offers."""
        moves = all_moves(here.state, self.scope)
        if self.lock_step:
            return moves
        fitting = (here.fit(move) for move in moves)
        different = {(type(move), move): move for move in fitting if move is not None}  # releases equal retirements
        return iter(different.values())

    def look_ahead(self, there: World) -> None:
        """See nothing: what a cache is asked next is not its to say."""


AnySettings = Settings | SchedulerSettings


class Shard:
    """A part of the frontier: the worlds that one process found first, and what it takes to expand them."""

    def __init__(self, settings: AnySettings) -> None:
        self.settings: Any = settings
        self.frontier: list[tuple[int, Place]] = []
        self.candidates: list[tuple[Digest, int, Any, Place]] = []
        self.seen: set[Digest] = set()
        self.edges = 0
        self.fired: Counter[str] = Counter()
        self.refused: Counter[tuple[str, str]] = Counter()

    def start(self) -> Digest:
        """Take the initial world as the frontier."""
        first = self.settings.start()
        self.frontier = [(0, first)]
        return self._digest(first)

    def expand(self) -> tuple[list[Candidate], Found | None]:
        """Try every operation in every world of the frontier; return what this process has not seen, and a fault."""
        self.candidates = []
        for index, here in self.frontier:
            refused = []
            for operation in self.settings.moves(here):
                self.edges += 1
                if refusal := here.refusal(operation):
                    refused.append((operation, refusal))
                    continue
                try:
                    self._follow(index, here, operation)
                except Broken as broken:
                    return [], (index, (operation,), broken)
            if fault := self._try_refusals(here, refused):
                return [], (index, *fault)
        return [(digest, index, operation) for digest, index, operation, _ in self.candidates], None

    def adopt(self, numbers: list[int]) -> None:
        """Make the candidates with a number the next frontier; 0 says that another process has that state."""
        pairs = zip(numbers, self.candidates, strict=True)
        self.frontier = [(number, candidate[3]) for number, candidate in pairs if number]
        self.candidates = []

    def forget(self, yes: bool) -> None:  # noqa: FBT001  (read with its name)
        """Start counting anew, where another process counts what was walked by all."""
        if yes:
            self.edges = 0
            self.fired.clear()
            self.refused.clear()

    def _follow(self, index: int, here: Place, operation: Any) -> None:
        there = here.clone()
        decided = there.step(operation)
        if isinstance(decided, Refused):  # a black box alone knows whether it has space; what it then hides may change
            self.refused[self.settings.words(operation)[0], str(decided.reason)] += 1
        else:
            self.fired.update(self.settings.words(operation, decided))
        digest = self._digest(there)
        if digest not in self.seen:
            self.seen.add(digest)
            self.settings.look_ahead(there)
            self.candidates.append((digest, index, operation, there))

    def edges_tried(self) -> int:
        """Return how many operations were tried."""
        return self.edges

    def statistics(self) -> tuple[Counter[str], Counter[tuple[str, str]]]:
        """Return what fired and what was refused."""
        return self.fired, self.refused

    def _try_refusals(self, here: Place, refusals: list[tuple[Any, Refused]]) -> tuple[tuple[Any, ...], Broken] | None:
        """Try what is to be refused, all on one clone, and look once: a refusal changes nothing."""
        tried: list[Any] = []
        try:
            there = here.clone()
            for operation, refusal in refusals:
                tried.append(operation)
                there.step_refused(operation, refusal)
                self.refused[self.settings.words(operation)[0], str(refusal.reason)] += 1
            there.look()
        except Broken as broken:
            for operation in tried:  # one at a time, to know which
                try:
                    here.clone().step(operation)
                except Broken as alone:
                    return (operation,), alone
            return tuple(tried), broken  # it takes several
        return None

    def _digest(self, there: Place) -> Digest:
        key: Any = there.key(pairs=self.settings.pairs)
        try:
            text = marshal.dumps(key, 2)  # nested tuples of integers are written the same each time
        except ValueError as error:
            raise Broken("CRASH", f"fingerprint: {error}; give nested tuples of integers") from error
        return hashlib.blake2b(text, digest_size=16).digest()


class Local:
    """One shard, in this process."""

    def __init__(self, settings: AnySettings) -> None:
        self.shard = Shard(settings)

    def start(self) -> Digest:
        """Start on the initial world."""
        return self.shard.start()

    def expand(self) -> Sequence[tuple[list[Candidate], Found | None]]:
        """Expand a level."""
        return [self.shard.expand()]

    def adopt(self, numbers: list[list[int]]) -> None:
        """Make the new ones the next frontier."""
        self.shard.adopt(numbers[0])

    def edges(self) -> int:
        """Return how many operations were tried."""
        return self.shard.edges

    def statistics(self) -> tuple[Counter[str], Counter[tuple[str, str]]]:
        """Return what fired and what was refused."""
        return self.shard.statistics()

    def close(self) -> None:
        """Nothing to end."""


class Pool:
    """A shard a process."""

    def __init__(self, settings: AnySettings, workers: int) -> None:
        self.processes = Processes(workers, Shard, settings)
        self.shared_out = False
        self._edges = 0

    def start(self) -> Digest:
        """Start every process on the initial world."""
        return self.processes.ask_all("start")[0]  # type: ignore[no-any-return]

    def expand(self) -> Sequence[tuple[list[Candidate], Found | None]]:
        """Expand a level everywhere; before the frontier is shared out, one answer stands for all."""
        answers = self._heard("expand")
        self._edges = sum(self._heard("edges_tried"))
        return answers

    def adopt(self, numbers: list[list[int]]) -> None:
        """Tell each process which of its candidates are its next frontier."""
        workers = len(self.processes)
        if self.shared_out:
            self.processes.ask_all("adopt", numbers)
        elif sum(map(bool, numbers[0])) < ENOUGH * workers:
            self.processes.ask_all("adopt", numbers * workers)
        else:
            self.shared_out = True
            parts = [[n if at % workers == part else 0 for at, n in enumerate(numbers[0])] for part in range(workers)]
            self.processes.ask_all("adopt", parts)
            self.processes.ask_all("forget", [part > 0 for part in range(workers)])

    def edges(self) -> int:
        """Return how many operations were tried."""
        return self._edges

    def statistics(self) -> tuple[Counter[str], Counter[tuple[str, str]]]:
        """Return what fired and what was refused."""
        fired: Counter[str] = Counter()
        refused: Counter[tuple[str, str]] = Counter()
        for some, others in self._heard("statistics"):
            fired += some
            refused += others
        return fired, refused

    def close(self) -> None:
        """End the processes."""
        self.processes.close()

    def _heard(self, what: str) -> list[Any]:
        answers = self.processes.ask_all(what)
        return answers if self.shared_out else answers[:1]

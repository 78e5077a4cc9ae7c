"""The exhaustive driver: every reachable state of a small world, every operation in it, breadth first.

Why this is the strongest check there is: most faults of a cache manager show with two or three blocks, two sequences
and two launches in flight, if the right few operations come in the right order. A breadth-first walk tries every order, so what it finds comes
with the shortest possible counterexample, and what it does not find is not there, within the scope that it prints. (Jackson's
small-scope hypothesis; model checkers such as TLC report states, edges and depth in the same way.)

States that differ in names alone are visited once (`canonical`). With `pairs` a state is what the spec and the manager
hold together, hidden state included; without, it is the spec's state, which is far less and assumes that the manager
hides nothing that matters. An operation that never fired, or a refusal that was never met, is a hole in the run, and
`Report.holes` names it.

Several processes: each expands the states that it found first, and only keys travel. The answer does not depend on
how many there are.
"""

import hashlib
import marshal
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from .alphabet import KINDS, Operation
from .manager import Factory
from .moves import Scope, all_moves
from .refusals import Broken, Reason, Refused
from .world import World, world

# What each operation can be refused for (the table of operations), so that a reason that was never met is noticed.
REFUSALS: dict[str, tuple[Reason, ...]] = {
    "add": (Reason.DUPLICATE, Reason.EMPTY, Reason.TOO_LONG, Reason.NO_SPACE),
    "extend": (Reason.DUPLICATE, Reason.UNKNOWN, Reason.BAD_COUNT, Reason.TOO_LONG, Reason.NO_SPACE),
    "fork": (Reason.UNKNOWN, Reason.DUPLICATE, Reason.BUSY),
    "launch": (Reason.DUPLICATE, Reason.UNKNOWN, Reason.BAD_COUNT, Reason.BUSY),
    "execute": (),
    "retire": (Reason.UNKNOWN_LAUNCH,),
    "release": (Reason.UNKNOWN,),
}

Digest = bytes
Found = tuple[int, Operation, Broken]  # index of the state, the operation that broke a rule there


class Progress(NamedTuple):
    """Where a walk is, reported after each level."""

    depth: int
    states: int
    edges: int


@dataclass
class Report:
    """What a walk saw."""

    scope: str
    states: int = 1
    edges: int = 0
    depth: int = 0
    seconds: float = 0.0
    complete: bool = False  # every reachable state of the scope was expanded
    fired: Counter[str] = field(default_factory=Counter)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    broken: Broken | None = None
    trace: list[Operation] = field(default_factory=list)  # the counterexample, shortest possible

    def holes(self) -> list[str]:
        """Return what a complete walk should have met and did not."""
        never = [f"{kind} never fired" for kind in KINDS.values() if not self.fired[kind]]
        return never + [
            f"{kind} was never refused as {reason}"
            for kind, reasons in REFUSALS.items()
            for reason in reasons
            if not self.refused[kind, str(reason)]
        ]


class Settings(NamedTuple):
    """What to walk, and how."""

    scope: Scope
    factory: Factory
    lock_step: bool = True
    pairs: bool = False


class Shard:
    """A part of the frontier: the worlds that one process found first, and what it takes to expand them."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.frontier: list[tuple[int, World]] = []
        self.candidates: list[tuple[Digest, int, Operation, World]] = []
        self.seen: set[Digest] = set()
        self.edges = 0
        self.fired: Counter[str] = Counter()
        self.refused: Counter[tuple[str, str]] = Counter()

    def start(self) -> Digest:
        """Take the initial world as the frontier."""
        first = world(self.settings.scope.config, self.settings.factory, lock_step=self.settings.lock_step)
        self.frontier = [(0, first)]
        return self._digest(first)

    def expand(self) -> tuple[list[tuple[Digest, int, Operation]], Found | None]:
        """Try every operation in every world of the frontier; return the worlds not seen by this process, and a fault."""
        self.candidates = []
        for index, here in self.frontier:
            refused = []
            for operation in all_moves(here.state, self.settings.scope):
                self.edges += 1
                if not here.fires(operation):
                    refused.append(operation)
                    continue
                try:
                    self._follow(index, here, operation)
                except Broken as broken:
                    return [], (index, operation, broken)
            if fault := self._try_refusals(here, refused):
                return [], (index, *fault)
        return [(digest, index, operation) for digest, index, operation, _ in self.candidates], None

    def adopt(self, numbers: list[int]) -> None:
        """Make the candidates with a number the next frontier; 0 says that another process has that state."""
        pairs = zip(numbers, self.candidates, strict=True)
        self.frontier = [(number, candidate[3]) for number, candidate in pairs if number]
        self.candidates = []

    def _follow(self, index: int, here: World, operation: Operation) -> None:
        there = here.clone()
        decided = there.step(operation)
        if isinstance(decided, Refused):  # a black box alone knows whether it has space
            self.refused[KINDS[type(operation)], str(decided.reason)] += 1
            return
        self.fired[KINDS[type(operation)]] += 1
        digest = self._digest(there)
        if digest not in self.seen:
            self.seen.add(digest)
            self.candidates.append((digest, index, operation, there))

    def _try_refusals(self, here: World, operations: list[Operation]) -> tuple[Operation, Broken] | None:
        """Try what is to be refused, all on one clone, and look once: a refusal changes nothing."""
        there = here.clone()
        try:
            for operation in operations:
                decided = there.step(operation, look=False)
                assert isinstance(decided, Refused)
                self.refused[KINDS[type(operation)], str(decided.reason)] += 1
            there.look()
        except Broken:
            for operation in operations:  # one at a time, to know which
                try:
                    here.clone().step(operation)
                except Broken as broken:
                    return operation, broken
            raise
        return None

    def _digest(self, there: World) -> Digest:
        key = there.key(pairs=self.settings.pairs)
        return hashlib.blake2b(marshal.dumps(key, 2), digest_size=16).digest()


def explore(
    settings: Settings,
    *,
    workers: int = 1,
    seconds: float | None = None,
    max_states: int | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
) -> Report:
    """Walk every state of a scope; stop at the first broken rule, at a limit, or when there is nothing new.

    With more than one worker the factory must be importable by name: the processes are spawned.
    """
    began = time.monotonic()
    report = Report(settings.scope.describe())
    pool: _Local | _Pool = _Local(settings) if workers == 1 else _Pool(settings, workers)
    try:
        seen = {pool.start()}
        origin: list[tuple[int, Operation | None]] = [(0, None)]
        while True:
            numbers: list[list[int]] = []
            faults: list[Found] = []
            for candidates, fault in pool.expand():
                numbers.append([])
                faults += [fault] if fault else []
                for digest, index, operation in candidates:
                    known = digest in seen
                    numbers[-1].append(0 if known else len(origin))
                    if not known:
                        seen.add(digest)
                        origin.append((index, operation))
            if faults:
                index, operation, report.broken = faults[0]
                report.trace = [*_path(origin, index), operation]
                break
            report.complete = len(origin) == report.states
            report.depth += not report.complete
            report.states = len(origin)
            report.edges = pool.edges()
            progress(Progress(report.depth, report.states, report.edges))
            late = seconds is not None and time.monotonic() - began > seconds
            if report.complete or late or (max_states and report.states >= max_states):
                break
            pool.adopt(numbers)
        report.edges = pool.edges()
        report.fired, report.refused = pool.statistics()
    finally:
        pool.close()
    report.seconds = time.monotonic() - began
    return report


def _path(origin: list[tuple[int, Operation | None]], index: int) -> list[Operation]:
    path: list[Operation] = []
    while index:
        index, operation = origin[index]
        assert operation is not None
        path.append(operation)
    return path[::-1]


class _Local:
    """One shard, in this process."""

    def __init__(self, settings: Settings) -> None:
        self.shard = Shard(settings)

    def start(self) -> Digest:
        return self.shard.start()

    def expand(self) -> Iterable[tuple[list[tuple[Digest, int, Operation]], Found | None]]:
        return [self.shard.expand()]

    def adopt(self, numbers: list[list[int]]) -> None:
        self.shard.adopt(numbers[0])

    def edges(self) -> int:
        return self.shard.edges

    def statistics(self) -> tuple[Counter[str], Counter[tuple[str, str]]]:
        return self.shard.fired, self.shard.refused

    def close(self) -> None:
        pass


class _Pool:
    """A shard a process; requests go over pipes as (method, argument)."""

    def __init__(self, settings: Settings, workers: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipes: list[Connection] = []
        self.processes = []
        self._edges = 0
        for number in range(workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, settings, number == 0), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def start(self) -> Digest:
        return self._ask("start")[0]  # type: ignore[no-any-return]

    def expand(self) -> Iterable[tuple[list[tuple[Digest, int, Operation]], Found | None]]:
        answers = self._ask("expand")
        self._edges = sum(edges for _, edges in answers)
        return [answer for answer, _ in answers]

    def adopt(self, numbers: list[list[int]]) -> None:
        self._ask("adopt", numbers)

    def edges(self) -> int:
        return self._edges

    def statistics(self) -> tuple[Counter[str], Counter[tuple[str, str]]]:
        fired: Counter[str] = Counter()
        refused: Counter[tuple[str, str]] = Counter()
        for some, others in self._ask("statistics"):
            fired += some
            refused += others
        return fired, refused

    def close(self) -> None:
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            pipe.close()
            process.terminate()
            process.join()

    def _ask(self, what: str, arguments: list[Any] | None = None) -> list[Any]:
        for number, pipe in enumerate(self.pipes):
            pipe.send((what, arguments[number] if arguments else None))
        answers = [pipe.recv() for pipe in self.pipes]
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers


def _serve(pipe: Connection, settings: Settings, first: bool) -> None:  # noqa: FBT001
    """Answer requests until the other end closes."""
    shard = Shard(settings)
    while True:
        try:
            what, argument = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            if what == "start":
                answer: Any = shard.start()
                shard.frontier = shard.frontier if first else []
            elif what == "expand":
                answer = shard.expand(), shard.edges
            elif what == "adopt":
                answer = shard.adopt(argument)
            else:
                answer = shard.fired, shard.refused
        except KeyboardInterrupt:
            return
        except Exception as error:  # noqa: BLE001  (it is raised again where it can be reported)
            answer = error
        pipe.send(answer)

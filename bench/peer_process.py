"""The process that a peer lives in: a peer may do anything, and whatever it does ends that process alone.

It runs rounds of seeds. Where one was its death, a new process runs the seeds again one by one, and each case and
operation is written to a file before it is taken, so that what was written last is what killed it. The file is not
flushed to the disk: it outlives a process, not the machine.

Cost: some seconds for each process to import the peer, and a write for each operation that is written down.
"""

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import IO, Any

from pagedkv.bench.foreign_search import TRIED, foreign_plan
from pagedkv.bench.peers import Level, Peer
from pagedkv.bench.peers_report import report_finding
from pagedkv.bench.targets import kind_of, load_target, plan_of, trial, world_for
from pagedkv.spec import fuzz, traces
from pagedkv.spec.alphabet import KINDS
from pagedkv.spec.foreign_asking import made
from pagedkv.spec.foreign_drivers import MET_BY
from pagedkv.spec.foreign_scheduler import ForeignScheduler
from pagedkv.spec.fuzz_plan import Plan
from pagedkv.spec.fuzz_tally import Tally
from pagedkv.spec.manager import Discipline, Manager, lacks
from pagedkv.spec.outside import OUTSIDE, not_judged
from pagedkv.spec.processes import Processes
from pagedkv.spec.refusals import Broken
from pagedkv.spec.state import Config

ROUND_S_MAX = 300.0  # without an answer a process is taken for dead
SMALL = Config(4, 4, 1, 2)  # in which a manager is made to be asked what it claims


class Server:
    """A peer in a process of its own."""

    def __init__(self, peer: Peer, printed: Path | None = None) -> None:
        """Whatever the peer prints goes to a file, if one is named: it would spoil a terminal."""
        self.peer = peer
        if printed is not None:
            with printed.open("ab") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)

    @property
    def factory(self) -> Any:
        """The adapter, which is imported when it is first asked for. Errors: `BadInput`."""
        return load_target(self.peer.target)

    def is_scheduler(self) -> bool:
        """Whether it is one that is judged from outside. Errors: `BadInput`."""
        return kind_of(self.factory) is ForeignScheduler

    def manager(self) -> Manager:
        """Make one, to be asked what it claims. Errors: `BadInput`."""
        return trial(self.factory, self.peer.target, world_for(self.peer.target, SMALL))

    def about(self) -> dict[str, Any]:
        """Return what the adapter claims, and which rules bear on it, each with what must be met for it to fail.

        Errors: `BadInput`.
        """
        if self.is_scheduler():
            scheduler = made(self.factory, *TRIED)
            fenced = scheduler.discipline is Discipline.FENCE
            return {
                "level": Level.SCHEDULER,
                "discipline": str(scheduler.discipline),
                "block_sizes": sorted(scheduler.block_sizes),
                "rules": {rule: [word] for rule, word in MET_BY.items()},
                "not_judged": {} if fenced else {"R-LIFE-1": f"it claims {scheduler.discipline}"},
                "not_offered": sorted(map(str, scheduler.not_offered)),
            }
        manager = self.manager()
        return {
            "level": Level.MANAGER,
            "discipline": str(manager.discipline),
            "block_sizes": sorted(manager.block_sizes),
            "rules": {name: [KINDS[kind] for kind in rule.on or KINDS] for name, rule in OUTSIDE.items()},
            "not_judged": not_judged(manager),
            "not_offered": sorted(map(str, lacks(manager))),
        }

    def plan(self, aside: frozenset[str]) -> Any:
        """Return what to fuzz, with rules set aside."""
        if self.is_scheduler():
            return foreign_plan(self.factory)._replace(aside=aside)
        return plan_of(self.factory, self.manager())._replace(aside=aside)

    def run(self, seed: int, operations: int, aside: frozenset[str], config: Config | None = None) -> Tally:
        """Run seeds up to the first finding, which is shrunk, or until so many operations are done.

        In drawn worlds, or in one.
        """
        plan = self.plan(aside)
        if config and isinstance(plan, Plan):
            config = plan.limited(config)
        return fuzz.fuzz(plan._replace(config=config), seed=seed, operations=operations)

    def report(self, finding: traces.Finding, found_by: str, directory: Path) -> dict[str, Any]:
        """Write the files of a finding; return what they say and where they are."""
        return report_finding(finding, self.peer, found_by, directory, run_again=True)

    def run_written_down(self, seed: int, aside: frozenset[str], file: Path) -> Tally:
        """Run one seed, its case and each operation written to a file before they are taken; nothing is shrunk."""
        plan = self.plan(aside)
        with file.open("wb", buffering=0) as out:
            return fuzz.run(_WrittenDown(plan, out), seed)


class _WrittenDown:
    """A plan whose case and operations are written down before they are taken."""

    def __init__(self, plan: Any, out: IO[bytes]) -> None:
        self._plan, self._out = plan, out

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plan, name)

    def draw_case(self, random: Random) -> Any:
        """Draw the plan's case."""
        case = self._plan.draw_case(random)
        pickle.dump(case, self._out)
        return case

    def draw(self, here: Any, random: Random) -> Iterator[Any]:
        """Yield the plan's operations."""
        for operation in self._plan.draw(here, random):
            pickle.dump(operation, self._out)
            yield operation


class PeerProcess:
    """The process of a peer, started anew where it dies."""

    def __init__(self, peer: Peer, printed: Path | None = None) -> None:
        self.peer = peer
        self.printed = printed  # where what the peer prints goes
        self._processes: Processes | None = None

    def ask(self, method: str, *arguments: object) -> Any:
        """Ask, and wait. Errors: what the server raises; `Broken`, CRASH, where it died or gives no answer."""
        if self._processes is None:
            self._processes = Processes(1, Server, self.peer, self.printed)
        try:
            self._processes.send(0, method, *arguments)
            return self._processes.receive(0, ROUND_S_MAX)
        except (Broken, TimeoutError) as error:
            self.close()
            if isinstance(error, Broken):
                raise
            raise Broken("CRASH", f"a round was not done within {ROUND_S_MAX:.0f} s") from error

    def close(self) -> None:
        """End it."""
        if self._processes is not None:
            self._processes.close()
            self._processes = None


def read_written_down(file: Path) -> list[Any]:
    """Return what was written down: the case, then the operations; nothing, where the process died before that."""
    found: list[Any] = []
    if not file.exists():
        return found
    with file.open("rb") as source:
        while True:
            try:
                found.append(pickle.load(source))  # noqa: S301  (we wrote it, a moment ago)
            except (EOFError, pickle.UnpicklingError):  # the last may be cut short
                return found

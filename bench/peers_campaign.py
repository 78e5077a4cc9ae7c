"""A campaign against one peer: random runs until so many operations are done, behind every rule that is found broken.

What a rule's first violation hides is found, too: the rule is set aside, and the seeds go on. Where a counterexample is
longer than 15 operations, more seeds are run for that rule alone in the smallest worlds, and the shortest is kept.

A peer may do anything, so it lives in a process of its own, which runs a round of seeds at a time. If that process
dies, or gives no answer even to an interruption (native code that does not come back), a new one runs the round again,
seed by seed, and writes each operation down before it takes it; what was written last is the finding. The campaign goes
on with the seeds after it, and ends after a few such deaths.

The same seeds give the same findings. Cost: that of the peer, and some seconds for each process to import it.
"""

import os
import pickle
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import IO, Any

from pagedkv.bench.foreign_search import TRIED, foreign_plan
from pagedkv.bench.peers import Level, Peer
from pagedkv.bench.peers_report import report_finding
from pagedkv.bench.targets import OURS, imported, load_target, plan_of, trial, world_for
from pagedkv.spec import fuzz, traces
from pagedkv.spec.foreign_judge import RULES_OUTSIDE
from pagedkv.spec.foreign_scheduler import ForeignScheduler, made
from pagedkv.spec.manager import Discipline, Manager, lacks
from pagedkv.spec.outside import OUTSIDE, not_judged
from pagedkv.spec.processes import Processes
from pagedkv.spec.refusals import Broken
from pagedkv.spec.state import Config

LONG = 15  # operations: a longer counterexample is looked for again
ROUND_OPERATIONS = 2_000
ROUND_S_MAX = 300.0  # without an answer a process is taken for dead
DEATHS_MAX = 3
SMALL = Config(4, 4, 1, 2)  # in which a manager is made to be asked what it claims


@dataclass
class Campaign:
    """What became of a peer."""

    peer: Peer
    about: dict[str, Any] = field(default_factory=dict)  # what the adapter claims, and which rules bear on it
    operations: int = 0
    runs: int = 0
    seconds: float = 0.0
    fired: Counter[str] = field(default_factory=Counter)
    findings: list[traces.Finding] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)  # of the findings
    unsafe: set[str] = field(default_factory=set)  # rules whose counterexample ends the process that runs it
    failed: str = ""  # why there was no campaign

    @property
    def aside(self) -> frozenset[str]:
        """The rules that were found broken."""
        return frozenset(finding.broken.rule for finding in self.findings)


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
        """Whether it is one, by its class. Errors: `BadInput`."""
        factory: Any = load_target(self.peer.target)
        kind = factory if self.peer.target in OURS else imported(self.peer.target)
        return isinstance(kind, type) and issubclass(kind, ForeignScheduler)

    def manager(self) -> Manager:
        """Make one, to be asked what it claims. Errors: `BadInput`."""
        return trial(self.factory, self.peer.target, world_for(self.peer.target, SMALL))

    def about(self) -> dict[str, Any]:
        """Return what the adapter claims, and which rules bear on it. Errors: `BadInput`."""
        if self.is_scheduler():
            scheduler = made(self.factory, *TRIED)
            fenced = scheduler.discipline is Discipline.FENCE
            return {
                "level": Level.SCHEDULER,
                "discipline": str(scheduler.discipline),
                "block_sizes": sorted(scheduler.block_sizes),
                "rules": [*RULES_OUTSIDE],
                "not_judged": {} if fenced else {"R-LIFE-1": f"it claims {scheduler.discipline}"},
                "not_offered": sorted(map(str, scheduler.not_offered)),
            }
        manager = self.manager()
        return {
            "level": Level.MANAGER,
            "discipline": str(manager.discipline),
            "block_sizes": sorted(manager.block_sizes),
            "rules": [*OUTSIDE],
            "not_judged": not_judged(manager),
            "not_offered": sorted(map(str, lacks(manager))),
        }

    def plan(self, aside: frozenset[str]) -> Any:
        """Return what to fuzz, with rules set aside."""
        if self.is_scheduler():
            return foreign_plan(self.factory)._replace(aside=aside)
        return plan_of(self.factory, self.manager())._replace(aside=aside)

    def run(self, seed: int, operations: int, aside: frozenset[str], config: Config | None = None) -> fuzz.Tally:
        """Run seeds up to the first finding, which is shrunk, or until so many operations are done.

        In drawn worlds, or in one.
        """
        plan = self.plan(aside)
        if config and isinstance(plan, fuzz.Plan):
            config = plan.limited(config)
        return fuzz.fuzz(plan._replace(config=config), seed=seed, operations=operations)

    def report(self, finding: traces.Finding, found_by: str, directory: Path) -> dict[str, Any]:
        """Write the files of a finding; return what they say and where they are."""
        return report_finding(finding, self.peer, found_by, directory, run_again=True)

    def run_written_down(self, seed: int, aside: frozenset[str], file: Path) -> None:
        """Run one seed, each operation written to a file before it is taken."""
        plan = self.plan(aside)
        with file.open("wb", buffering=0) as out:
            fuzz.run(_WrittenDown(plan, out), seed)


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
            raise Broken("CRASH", f"no answer within {ROUND_S_MAX:.0f} s, not even to an interruption") from error

    def close(self) -> None:
        """End it."""
        if self._processes is not None:
            self._processes.close()
            self._processes = None


def run_campaign(
    process: PeerProcess, operations: int, seed: int, progress: Callable[[Campaign], None] = lambda _: None
) -> Campaign:
    """Run seeds from `seed` on until so many operations are done. Errors: `BadInput`, where the peer is not there."""
    campaign = Campaign(process.peer, process.ask("about"))
    deaths = 0
    while campaign.operations < operations and deaths < DEATHS_MAX:
        at = seed + campaign.runs
        try:
            tally = process.ask("run", at, min(ROUND_OPERATIONS, operations - campaign.operations), campaign.aside)
        except Broken as death:
            deaths += 1
            tally = _what_killed(process, at, campaign, death)
        _add(campaign, tally)
        if tally.finding and tally.finding.broken.rule not in campaign.aside:
            _keep(campaign, _shortest(process, tally, campaign))
        progress(campaign)
    return campaign


def _add(campaign: Campaign, tally: fuzz.Tally) -> None:
    campaign.operations += tally.operations
    campaign.runs += tally.runs
    campaign.seconds += tally.seconds
    campaign.fired += tally.fired


def _keep(campaign: Campaign, tally: fuzz.Tally) -> None:
    assert tally.finding is not None
    campaign.findings.append(tally.finding)
    campaign.seeds.append(tally.seed)


def _shortest(process: PeerProcess, tally: fuzz.Tally, campaign: Campaign) -> fuzz.Tally:
    """Look for a shorter way to break the same rule, where the one found is long."""
    assert tally.finding is not None
    best, rule = tally, tally.finding.broken.rule
    others = frozenset({*campaign.about["rules"], "CRASH"}) - {rule}
    at = tally.seed + 1
    for config in _small_worlds(campaign) if rule not in campaign.unsafe else ():
        if best.finding is None or len(best.finding.trace) <= LONG:
            break
        try:
            more = process.ask("run", at, 10 * ROUND_OPERATIONS, others, config)
        except Broken:  # it died of something else; what is known is kept
            break
        at += more.runs
        if more.finding and len(more.finding.trace) < len(best.finding.trace):
            best = more
    return best


def _small_worlds(campaign: Campaign) -> Iterator[Config]:
    """Yield the smallest worlds that there can be: what is found in them is short."""
    for size in campaign.about["block_sizes"][:2]:
        yield from (Config(blocks, size, 1, 2) for blocks in (2, 3, 4))


def _what_killed(process: PeerProcess, first: int, campaign: Campaign, death: Broken) -> fuzz.Tally:
    """Run the seeds of a round again, each written down, until the process dies again; return how far it came."""
    total = fuzz.Tally()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "operations"
        for seed in range(first, first + ROUND_OPERATIONS):
            try:
                process.ask("run_written_down", seed, campaign.aside, file)
            except Broken as again:
                case, *trace = _read(file)
                total.finding, total.seed = traces.Finding(case, tuple(trace), again), seed
            total.runs += 1
            total.operations += len(_read(file)) - 1
            if total.finding or total.operations >= ROUND_OPERATIONS:
                break
    if total.finding:
        campaign.unsafe.add("CRASH")
    else:
        campaign.failed = f"once, and not again: {death.detail}"
    return total


def _read(file: Path) -> list[Any]:
    """Return what was written down: the case, then the operations; the last may be cut short."""
    found = []
    with file.open("rb") as source:
        while True:
            try:
                found.append(pickle.load(source))  # noqa: S301  (we wrote it, a moment ago)
            except (EOFError, pickle.UnpicklingError):
                return found

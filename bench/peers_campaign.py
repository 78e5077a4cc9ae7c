"""A campaign against one peer: random runs until so many operations are done, behind every rule that is found broken.

What a rule's first violation hides is found, too: the rule is set aside, and the seeds go on. A manager is then no
longer judged by it. A scheduler's run still ends where it breaks it again, as its judge cannot go on behind that, so
what always comes later is not found; nor is what comes behind a crash. Where a counterexample is longer than 15
operations, more seeds are run for that rule alone in the smallest worlds, and the shortest is kept.

A peer may do anything, so it lives in a process of its own (`peer_process`), which runs a round of seeds at a time. If
that process dies, or a round is not done in time (native code that does not come back), a new one runs the round again,
seed by seed, and writes each operation down before it takes it; what was written last is the finding. The campaign goes
on with the seeds after it, and ends after a few such deaths, which the report then says: a rule that no operation can
have broken is told as not met, and not as kept. A death that leaves no trace is told as well.

The same seeds break the same rules; how short a trace gets depends on the time that shrinking has. Cost: that of the
peer, and some seconds for each process to import it.
"""

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pagedkv.bench.peer_process import PeerProcess, read_written_down
from pagedkv.bench.peers import Peer
from pagedkv.spec import traces
from pagedkv.spec.fuzz_tally import Tally
from pagedkv.spec.refusals import Broken
from pagedkv.spec.state import Config

LONG = 15  # operations: a longer counterexample is looked for again
ROUND_OPERATIONS = 2_000
DEATHS_MAX = 3


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
    ended: str = ""  # why it ended before its operations were done
    untraced: list[str] = field(default_factory=list)  # deaths that no operations are known of, and why not

    @property
    def aside(self) -> frozenset[str]:
        """The rules that were found broken."""
        return frozenset(finding.broken.rule for finding in self.findings)


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
    if campaign.operations < operations:
        campaign.ended = f"deaths of its process: {deaths}"
    return campaign


def _add(campaign: Campaign, tally: Tally) -> None:
    campaign.operations += tally.operations
    campaign.runs += tally.runs
    campaign.seconds += tally.seconds
    campaign.fired += tally.fired


def _keep(campaign: Campaign, tally: Tally) -> None:
    assert tally.finding is not None
    campaign.findings.append(tally.finding)
    campaign.seeds.append(tally.seed)


def _shortest(process: PeerProcess, tally: Tally, campaign: Campaign) -> Tally:
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


def _what_killed(process: PeerProcess, first: int, campaign: Campaign, death: Broken) -> Tally:
    """Run the seeds of a round again, each written down, until the process dies again; return how far it came."""
    total = Tally()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first, first + ROUND_OPERATIONS):
            file = Path(folder) / f"{seed}"  # a death before it is opened must not be told with the seed before
            try:
                total.add(process.ask("run_written_down", seed, campaign.aside, file))
            except Broken as again:
                written = read_written_down(file)
                total.runs += 1
                total.operations += len(written[1:])
                _blame(campaign, total, seed, written, again)
                return total
            if total.finding or total.operations >= ROUND_OPERATIONS:
                break
    campaign.untraced.append(f"once, and not again: {death.detail}")
    return total


def _blame(campaign: Campaign, tally: Tally, seed: int, written: list[Any], death: Broken) -> None:
    """Make a finding of what was written down before a death; where nothing was, the death alone is told."""
    if not written:
        campaign.untraced.append(f"seed {seed}, before its first operation: {death.detail}")
        return
    case, *trace = written
    tally.finding, tally.seed = traces.Finding(case, tuple(trace), death), seed
    campaign.unsafe.add("CRASH")

"""The seeded random driver: one seed is one run, completions come in every way, shrinking leaves no surplus."""

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
from pagedkv.bench.adapter import Implementation
from pagedkv.spec import traces
from pagedkv.spec.alphabet import Retire, Submit
from pagedkv.spec.crew import Job
from pagedkv.spec.fuzz import ENOUGH, ENOUGH_FOR_HITS, Plan, Tally, fuzz, run
from pagedkv.spec.offers import Feature
from pagedkv.spec.reference import Reference
from pagedkv.spec.state import Config
from pagedkv.spec.traces import Case, Finding, shrink, tell

from planted_faults import CopySourceFreed, EarlyReuse, LateCompletion, MissingEdge, OffByOne
from watched_manager import Watched


def asked(seed: int, plan: Plan) -> list[tuple[object, ...]]:
    """Return every call that a manager gets in the run of a seed."""
    assert run(plan, seed).finding is None
    return Watched.latest.calls


def test_one_seed_is_one_run() -> None:
    plan = Plan(Watched)
    once, again, other = asked(5, plan), asked(5, plan), asked(6, plan)
    assert len(once) > 300
    assert once == again
    assert once != other


@pytest.mark.parametrize("lock_step", [True, False], ids=["lock-step", "contents alone"])
def test_processes_share_seeds_and_come_to_the_same(*, lock_step: bool) -> None:
    plan = Plan(Reference, lock_step=lock_step, operations=60)
    one, two = (fuzz(plan, seed=11, runs=30, workers=workers) for workers in (1, 2))
    assert one.runs == 30
    assert asdict(two) | {"seconds": 0} == asdict(one) | {"seconds": 0}


def test_runs_add_up() -> None:
    plan = Plan(Reference, operations=60)
    whole, parts = fuzz(plan, seed=0, runs=9), [run(plan, seed) for seed in range(9)]
    assert whole.operations == sum(part.operations for part in parts)
    for kind in whole.fired:
        assert whole.fired[kind] == sum(part.fired[kind] for part in parts)
    met = {kind: count for kind, count in whole.fired.items() if kind != "hit"}  # a hit is an `add`, too
    assert whole.operations == sum(met.values()) + sum(whole.refused.values())


def test_time_ends_a_search_that_finds_nothing() -> None:
    assert fuzz(Plan(Reference, operations=10), seconds=0.05).runs >= 1


def test_the_first_finding_is_that_of_the_lowest_seed() -> None:
    """However many processes look: what was begun before is finished."""
    plan = Plan(MissingEdge, Config(4, 2, 2, 3), operations=40)
    first = next(seed for seed in range(3, 200) if run(plan, seed).finding)
    one, two = (fuzz(plan, seed=3, runs=200, workers=workers) for workers in (1, 2))
    assert one.seed == two.seed == first
    assert one.finding is not None
    assert two.finding is not None
    assert one.finding.trace == two.finding.trace


class OneAfterAnother:
    """A crew of one that works here."""

    def __init__(self) -> None:
        self.given: list[Job] = []
        self.closed = False

    def room(self) -> int:
        return 1 - len(self.given)

    def give(self, job: Job) -> None:
        self.given.append(job)

    def take(self) -> tuple[Job, Any]:
        job = self.given.pop()
        return job, job()

    def close(self) -> None:
        self.closed = True


def test_nobody_works_on_while_a_finding_is_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    crew, closed = OneAfterAnother(), list[bool]()

    def shrunk(finding: Finding) -> Finding:
        closed.append(crew.closed)
        return finding

    monkeypatch.setattr(sys.modules["pagedkv.spec.fuzz"], "shrink", shrunk)
    tally = fuzz(Plan(MissingEdge, Config(4, 2, 2, 3)), operations=1, crew=crew)
    assert tally.finding is not None
    assert closed == [True]


@pytest.mark.parametrize("operations", [0, 1, 7, 400])
def test_a_run_ends_drained(operations: int) -> None:
    for seed in range(12):
        asked(seed, Plan(Watched, operations=operations))
        state = Watched.latest.state
        assert (state.sequences, state.launches, state.quarantine) == ({}, (), {})
        assert not state.pins
        assert len(state.free) + len(state.evictable) == state.config.blocks


def test_drawn_worlds_are_small_and_of_every_size() -> None:
    configs = [asked(seed, Plan(Watched, operations=0))[0] for seed in range(300)]
    for sizes, expected in zip(
        zip(*configs, strict=True), (range(1, 9), range(1, 5), range(1, 4), range(1, 5)), strict=True
    ):
        assert set(sizes) == set(expected)
    assert {asked(seed, Plan(Watched, operations=0, streams=1))[0][2] for seed in range(50)} == {1}


def test_completions_come_in_every_way() -> None:
    """Late, in any order across streams, twice, of no launch at all, after the sequence is gone, of a namesake."""
    Watched.met.clear()
    for seed in range(40):
        asked(seed, Plan(Watched))
    for way in (
        "late",
        "reordered",
        "executed out of order",
        "twice",
        "of none",
        "after its sequence",
        "of a namesake",
    ):
        assert Watched.met[way] >= 20, way


def test_every_operation_fires_and_every_refusal_is_met() -> None:
    """The table of operations: 18 reasons without sharing, 6 more with it."""
    alone = fuzz(Plan(Reference, sharing=False), runs=60)
    assert set(alone.fired) == {"add", "extend", "fork", "launch", "execute", "retire", "release"}
    assert len(alone.refused) == 4 + 5 + 3 + 4 + 1 + 1
    tally = fuzz(Plan(Reference), runs=60)
    assert set(tally.fired) == {*alone.fired, "publish", "pin", "unpin", "clear", "hit"}
    assert len(tally.refused) == len(alone.refused) + 3 + 2 + 1
    assert tally.refusals("retire") == {"UnknownLaunch": tally.refused["retire", "UnknownLaunch"]}


def test_what_long_runs_never_met_is_a_hole_in_them() -> None:
    sharing, small = Plan(Reference), Plan(Reference, Config(1, 1, 1, 1))
    all_but_extend = Counter(word for word in sharing.offered() if word not in ("extend", "hit"))
    long = Tally(operations=ENOUGH, fired=all_but_extend)
    assert long.holes(sharing) == ["extend never fired"]
    assert replace(long, operations=ENOUGH_FOR_HITS).holes(sharing) == ["extend never fired", "hit never fired"]
    assert replace(long, operations=ENOUGH - 1).holes(sharing) == []
    assert long.holes(small) == [], "in a pool of one slot nothing grows"
    asked = replace(long, refused=Counter([("extend", "NoSpace")]))
    assert asked.holes(small) == ["extend never fired, it was refused each time"]
    alone = Plan(Reference, lock_step=False, sharing=False, lacks=frozenset({Feature.FORK}))
    assert alone.offered() == ["add", "extend", "launch", "execute", "retire", "release"]


# ---- shrinking ------------------------------------------------------------------------------------------------------


def first_finding(fault: type[Implementation], config: Config) -> Finding:
    """Return what the first seed with a long trace found, as it was found."""
    seeds = (run(Plan(fault, config), seed).finding for seed in range(500))
    return next(found for found in seeds if found and len(found.trace) > 20)


@pytest.mark.parametrize("fault", [EarlyReuse, MissingEdge, OffByOne, CopySourceFreed, LateCompletion])
def test_shrinking_keeps_the_rule_and_leaves_no_surplus(fault: type[Implementation]) -> None:
    found = first_finding(fault, Config(4, 2, 2, 3))
    small = shrink(found)
    assert small.broken.rule == found.broken.rule
    assert 0 < len(small.trace) < len(found.trace)
    told, broken = tell(small.case, small.trace)
    assert broken is not None
    assert (broken.rule, len(told)) == (found.broken.rule, len(small.trace))
    marked = traces._mark(small.case, small.trace)
    for left_out in range(len(marked)):
        _, without = traces._run_marked(small.case, marked[:left_out] + marked[left_out + 1 :])
        assert without is None or without.rule != small.broken.rule, f"{small.trace[left_out]} is not needed"


def test_shrinking_renames_completions() -> None:
    """What was launched before and is taken out no longer counts."""
    found = first_finding(LateCompletion, Config(4, 2, 2, 3))
    small = shrink(found)
    newest = [
        max(operation.launch for operation in trace if isinstance(operation, Retire))
        for trace in (found.trace, small.trace)
    ]
    assert newest[1] < newest[0]
    assert newest[1] <= sum(isinstance(operation, Submit) for operation in small.trace)


def test_what_holds_is_left_as_it_was() -> None:
    found = first_finding(EarlyReuse, Config(4, 2, 2, 3))
    sound = Finding(Case(found.case.config, Implementation), found.trace, found.broken)
    assert shrink(sound) == sound


@pytest.mark.parametrize("limit", [lambda found: shrink(found, tries=3), lambda found: shrink(found, seconds=0)])
def test_shrinking_has_an_end(limit: Callable[[Finding], Finding]) -> None:
    found = first_finding(EarlyReuse, Config(4, 2, 2, 3))
    assert len(limit(found).trace) > len(shrink(found).trace)

"""The rules that show from outside: each broken by name, each planted fault seen or why it can't be, ours held to all.

The faults are planted in our own manager, which is judged here as a stranger's would be (`lock_step=False`): by its
answers, its block tables, the blocks that it tells to be free or cached, and what a virtual device reads.
"""

from collections.abc import Callable
from typing import Any

import pytest
from pagedkv.bench.adapter import Implementation
from pagedkv.spec.alphabet import Add, Clear, Execute, Fork, Operation, Pin, Publish, Release, Retire, Submit
from pagedkv.spec.explore import explore
from pagedkv.spec.fuzz import fuzz, run
from pagedkv.spec.fuzz_plan import Plan
from pagedkv.spec.manager import Discipline, Manager
from pagedkv.spec.moves import Scope
from pagedkv.spec.outside import OUTSIDE, PAGES, not_judged
from pagedkv.spec.reference import Reference
from pagedkv.spec.rules import RULES
from pagedkv.spec.shards import Settings
from pagedkv.spec.state import Config
from pagedkv.spec.traces import Case, Finding, tell

import outside_managers as managers
import planted_faults as faults
import planted_sharing_faults as sharing
from test_foreign_manager import ForgetsCopySource, FreesShared, NoCopyOnWrite

CRASH = "CRASH"

# A rule that shows each fault from outside; others may, too.
SEEN: dict[Any, str] = {
    faults.EarlyReuse: "R-LIFE-1",
    faults.OneFence: "R-LIFE-1",
    faults.MissingEdge: "R-LIFE-2",
    faults.RowRecycled: "R-TAB-1",
    faults.NoCopyOnWrite: "R-COW-1",
    faults.EdgeKept: "R-OWN-4",
    faults.DoubleFree: CRASH,
    faults.CopySourceFreed: "R-LIFE-1",
    faults.OffByOne: "R-TAB-1",
    faults.LateCompletion: "R-LIFE-1",
    faults.RefusedBatchKeepsBlock: "R-TXN-1",
    sharing.HeadKept: "R-OWN-5",
    sharing.OtherTenantsHit: "R-HASH-1",
    sharing.WholePromptHit: "R-HASH-5",
    sharing.PublishedUnwritten: "R-LIFE-2",
    sharing.StaleEntry: "R-OWN-4",
    sharing.FencedEvicted: "R-LIFE-1",
    sharing.MergedUnmapped: "R-OWN-3",
    sharing.OldWeightsHit: "R-HASH-6",
    sharing.IdleHitCountedTwice: CRASH,
    sharing.DigestTrusted: "R-HASH-2",
    sharing.PinLost: "R-EVICT-1",
}
# The same, where lots are long in finding it: two idle blocks, of which the older one is hit and evicted by one prompt;
# a batch of five, a parent and its forks, whose only launch is in flight when another stream hits what it writes.
BY_HAND: dict[Any, tuple[str, Config, tuple[Operation, ...]]] = {
    sharing.HitNotHeld: (
        "R-EVICT-1",
        Config(3, 1, 1, 1),
        (
            *(Add(1, (0,)), Submit(((1, 1),)), Execute(1), Retire(1), Publish(((1, ()),)), Release(1)),
            *(Add(2, (1,)), Submit(((2, 1),)), Execute(2), Retire(2), Publish(((2, ()),)), Release(2)),
            *(Add(3, 1), Add(4, (0, 1))),
        ),
    ),
    sharing.ForkTakenForWritten: (
        "R-LIFE-2",
        Config(3, 1, 2, 2),
        (
            *(Add(1, (0,)), Submit(((1, 1),)), Fork(1, 2), Fork(1, 3), Fork(1, 4), Fork(1, 5)),
            *(Publish(tuple([(name, ()) for name in range(1, 6)])), Add(6, (0, 1)), Submit(((6, 1),), 1)),
        ),
    ),
}
UNSEEN: dict[Any, str] = {
    sharing.ParentFirst: "a child whose parent was evicted is never found, which costs time and no content",
    sharing.FencesNotHandedUp: "the same, in one order of events among many",
    sharing.SiblingForgotten: "the order in which idle blocks are evicted is a policy",
    sharing.EvictedForNothing: "what is evicted too soon is computed again; whether it had to go is a policy",
    sharing.RetentionIgnored: "the order in which idle blocks are evicted is a policy; what is hit is right",
}

# For each rule a manager that breaks it, looked for with every other rule set aside.
BROKEN_BY: dict[str, Callable[[Config], Any]] = {
    "R-DATA": NoCopyOnWrite,
    "R-TAB-1": managers.ShortTables,
    "R-TXN-1": faults.RefusedBatchKeepsBlock,
    "R-OWN-3": FreesShared,
    "R-OWN-4": managers.Leaks,
    "R-OWN-5": managers.TellsItsFree,
    "R-LIFE-1": faults.EarlyReuse,
    "R-LIFE-2": faults.MissingEdge,
    "R-LIFE-4": managers.DeafToCompletions,
    "R-LIFE-8": ForgetsCopySource,
    "R-COW-1": NoCopyOnWrite,
    "R-COW-3": managers.CopiesElsewhere,
    "R-CAP-1": managers.KeepsABlockBack,
    "R-EVICT-1": sharing.PinLost,
    "R-HASH-1": sharing.OtherTenantsHit,
    "R-HASH-2": sharing.DigestTrusted,
    "R-HASH-3": managers.StaleHit,
    "R-HASH-4": managers.HitsTheUnwritten,
    "R-HASH-5": sharing.WholePromptHit,
    "R-HASH-6": sharing.OldWeightsHit,
}
TIGHT: dict[Any, Config] = {  # found there soon
    sharing.IdleHitCountedTwice: Config(4, 2, 1, 2),
    sharing.PublishedUnwritten: Config(4, 1, 2, 2),
}
SEEDS = 150


def first_finding(plan: Plan) -> Finding | None:
    """Return what the first seed that finds something finds, as it was found."""
    return next((finding for seed in range(SEEDS) if (finding := run(plan, seed).finding)), None)


def test_every_fault_is_in_one_of_the_tables() -> None:
    assert sorted(map(repr, (*SEEN, *BY_HAND, *UNSEEN))) == sorted(map(repr, (*faults.FAULTS, *sharing.SHARING_FAULTS)))


@pytest.mark.parametrize("fault", SEEN, ids=lambda fault: fault.__name__)
def test_it_shows_from_outside(fault: type[Implementation]) -> None:
    aside = frozenset({*OUTSIDE, CRASH}) - {SEEN[fault]}
    finding = first_finding(Plan(fault, TIGHT.get(fault), lock_step=False, aside=aside))
    assert finding is not None
    assert finding.broken.rule == SEEN[fault], finding.broken


@pytest.mark.parametrize("fault", BY_HAND, ids=lambda fault: fault.__name__)
def test_it_shows_from_outside_by_hand(fault: type[Implementation]) -> None:
    rule, config, trace = BY_HAND[fault]
    assert tell(Case(config, Implementation, lock_step=False), trace)[1] is None
    told, broken = tell(Case(config, fault, lock_step=False), trace)
    assert broken is not None
    assert (broken.rule, len(told)) == (rule, len(trace))


@pytest.mark.deep
@pytest.mark.parametrize("fault", UNSEEN, ids=lambda fault: fault.__name__)
def test_no_rule_names_it_from_outside(fault: type[Implementation]) -> None:
    """Ours may trip over it: the index misses what it is to let go."""
    finding = first_finding(Plan(fault, lock_step=False))
    assert finding is None or finding.broken.rule == CRASH, UNSEEN[fault]


def test_the_rules_stand_on_their_pages_each_with_its_sentence() -> None:
    assert set(BROKEN_BY) == set(OUTSIDE)
    assert set(OUTSIDE) <= set(RULES)
    assert {rule.predicate.__module__ for rule in OUTSIDE.values()} == {page.__name__ for page in PAGES}
    assert all(rule.sentence.endswith(".") for rule in OUTSIDE.values())


@pytest.mark.parametrize("name", BROKEN_BY)
def test_each_rule_is_broken_by_name(name: str) -> None:
    aside = frozenset({*OUTSIDE, CRASH}) - {name}
    finding = first_finding(Plan(BROKEN_BY[name], lock_step=False, aside=aside))
    assert finding is not None
    assert finding.broken.rule == name, finding.broken


@pytest.mark.parametrize("sound", [Implementation, Reference, managers.SaysNothing], ids=lambda sound: sound.__name__)
def test_the_sound_ones_pass(sound: type[Any]) -> None:
    assert fuzz(Plan(sound, lock_step=False), seed=1000, runs=12).finding is None


@pytest.mark.deep
def test_ours_passes_a_hundred_thousand_operations() -> None:
    tally = fuzz(Plan(Implementation, lock_step=False), operations=100_000)
    assert tally.finding is None
    assert tally.operations >= 100_000


PUBLISHED: tuple[Operation, ...] = (Add(1, (0,)), Submit(((1, 1),)), Execute(1), Retire(1), Publish(((1, ()),)))
# Block 1 is cached; then hit, and read by launch 2 when its only holder leaves.
HIT_IN_FLIGHT: tuple[Operation, ...] = (*PUBLISHED, Release(1), Add(2, (0, 1)), Submit(((2, 1),)), Release(2))
# What a manager tells wrongly of the last operation of a trace is named at that operation, whichever it is.
NAMED_AT_ONCE: dict[type[Manager], tuple[str, tuple[Operation, ...]]] = {
    managers.ClearsWhatIsInFlight: ("R-LIFE-1", (*HIT_IN_FLIGHT, Clear())),
    managers.TellsThePinnedFree: ("R-EVICT-1", (*PUBLISHED, Release(1), Pin(1, (0,)))),
}


@pytest.mark.parametrize("fault", NAMED_AT_ONCE, ids=lambda fault: fault.__name__)
def test_what_is_told_wrongly_is_named_at_once(fault: type[Manager]) -> None:
    rule, trace = NAMED_AT_ONCE[fault]
    config = Config(3, 1, 1, 2)
    assert tell(Case(config, Reference, lock_step=False), trace)[1] is None
    told, broken = tell(Case(config, fault, lock_step=False), trace)
    assert broken is not None
    assert (broken.rule, len(told)) == (rule, len(trace)), broken


def test_what_a_manager_does_not_claim_is_not_judged() -> None:
    config = Config(4, 4, 1, 2)
    assert not_judged(Implementation(config)) == {}
    plain = not_judged(managers.CannotBeCopied(config))
    assert {"R-LIFE-1", "R-LIFE-2", "R-LIFE-8", "R-COW-3", "R-EVICT-1", "R-HASH-1", "R-OWN-5"} <= plain.keys()
    assert not plain.keys() & {"R-DATA", "R-TAB-1", "R-OWN-3", "R-OWN-4", "R-COW-1", "R-CAP-1", "R-TXN-1", "R-LIFE-4"}
    assert Discipline.STREAM_ORDER in plain["R-LIFE-1"]


# Managers that may refuse though there is room, and tell nothing of free blocks: what shows of them all the same, and
# the operations that it takes. What grows alone has a block to spare; a refusal that leaves a block behind shows at
# once in an empty pool, and else when all is released.
INEXACT: dict[type[Manager], tuple[str, int]] = {
    managers.NeverAdds: ("R-CAP-1", 1),
    managers.NeverExtends: ("R-CAP-1", 2),
    managers.NeverForks: ("R-CAP-1", 5),  # add, launch, execute, retire, fork: with a launch in flight it may wait
    managers.NeverLaunches: ("R-CAP-1", 2),
    managers.KeepsWhatAFailedAddTook: ("R-OWN-4", 1),
    managers.KeepsWhatAFailedExtensionTook: ("R-OWN-4", 2),
}
IN_THREE_BLOCKS = Scope(Config(blocks=3, block_size=1, streams=1, launches=1), sequences=2, tokens=2, rows=1)


@pytest.mark.parametrize("fault", INEXACT, ids=lambda fault: fault.__name__)
def test_who_may_refuse_more_than_it_must_is_judged_all_the_same(fault: type[Manager]) -> None:
    report = explore(Settings(IN_THREE_BLOCKS, fault, lock_step=False))
    assert report.broken is not None
    assert (report.broken.rule, len(report.trace)) == INEXACT[fault], report.broken
    finding = fuzz(Plan(fault, lock_step=False), runs=20).finding
    assert finding is not None
    assert finding.broken.rule == INEXACT[fault][0], finding.broken


def test_who_wants_a_block_to_spare_passes() -> None:
    report = explore(Settings(IN_THREE_BLOCKS, managers.KeepsASpare, lock_step=False))
    assert (report.broken, report.complete) == (None, True)
    assert report.refused["extend", "NoSpace"]
    assert fuzz(Plan(managers.KeepsASpare, lock_step=False), runs=20).finding is None

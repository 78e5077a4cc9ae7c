"""Every fault planted in prefix sharing is found: by the exhaustive driver, by fuzzing, and by contents where it shows.

As `test_planted_faults`: the tables are the claim. Lengths are those of a breadth-first walk over the spec's states,
so no shorter counterexample shows there. Not all of them reads can tell: to evict the wrong block costs time alone.
"""

from typing import NamedTuple

import pytest
from pagedkv.bench.adapter import Implementation
from pagedkv.spec.explore import Report, explore
from pagedkv.spec.fuzz import fuzz
from pagedkv.spec.fuzz_plan import Plan
from pagedkv.spec.moves import Scope
from pagedkv.spec.moves_sharing import Sharing
from pagedkv.spec.rules import RULES
from pagedkv.spec.shards import Settings
from pagedkv.spec.state import Config

import planted_sharing_faults as faults
from from_outside import CONTENTS_ALONE


class Expected(NamedTuple):
    """What a walk finds: with how much to share, which rule, after how many operations."""

    sharing: Sharing
    rule: str
    length: int


def shared(letters: int = 1, salts: int = 1, retentions: int = 1, pins: int = 0) -> Sharing:
    """Return how much is shared: as little as may be."""
    return Sharing(letters, salts, retentions, pins)


LOCK_STEP = {
    faults.HitNotHeld: Expected(shared(letters=2), "R-OWN-1", 13),
    faults.OtherTenantsHit: Expected(shared(salts=2), "R-HASH-1", 6),
    faults.WholePromptHit: Expected(shared(), "R-HASH-5", 6),
    faults.PublishedUnwritten: Expected(shared(), "R-HASH-4", 3),
    faults.StaleEntry: Expected(shared(), "R-HASH-3", 7),
    faults.ParentFirst: Expected(shared(letters=2), "R-EVICT-2", 7),
    faults.FencedEvicted: Expected(shared(), "R-LIFE-1", 7),
    faults.EvictedForNothing: Expected(shared(), "R-EVICT-1", 7),
    faults.MergedUnmapped: Expected(shared(), "R-TAB-1", 10),
    faults.OldWeightsHit: Expected(shared(), "R-HASH-3", 6),
    faults.IdleHitCountedTwice: Expected(shared(), "CRASH", 8),
    faults.DigestTrusted: Expected(shared(letters=2), "R-HASH-1", 6),
    faults.PinLost: Expected(shared(pins=1), "R-OWN-2", 6),
    faults.RetentionIgnored: Expected(shared(letters=2, retentions=2), "R-EVICT-2", 13),
}

CONTENTS = {
    faults.OtherTenantsHit: Expected(shared(salts=2), "R-DATA", 8),
    faults.WholePromptHit: Expected(shared(), "R-HASH-5", 6),
    faults.DigestTrusted: Expected(shared(letters=2), "R-DATA", 8),
}


class Deep(NamedTuple):
    """What lots find where a walk would take too long: in which world, which rule, how far it is shrunk at least.

    A shrunk trace is not the shortest there is, and how short it gets depends on the one that was found.
    """

    config: Config
    rule: str
    length: int


# Each takes a story: blocks that are published, shared, cancelled and released in one order of many.
DEEP = {
    faults.FencesNotHandedUp: Deep(Config(8, 1, 2, 4), "R-EVICT-2", 16),
    faults.SiblingForgotten: Deep(Config(4, 1, 1, 1), "R-EVICT-2", 19),
    faults.HeadKept: Deep(Config(7, 4, 1, 2), "R-OWN-2", 30),
    faults.ForkTakenForWritten: Deep(Config(6, 3, 2, 3), "R-HASH-4", 13),
}
ENOUGH = 60_000  # operations in these worlds; the first took 7,000
ENOUGH_IN_DRAWN_WORLDS = 300_000

# What fuzzing finds by contents alone within 150 runs, besides.
CONTENTS_BY_LOT = (faults.StaleEntry, faults.FencedEvicted, faults.MergedUnmapped, faults.OldWeightsHit)
RUNS = 150


def walk(fault: type[Implementation], sharing: Sharing, *, lock_step: bool) -> Report:
    """Explore with the fault planted: two blocks of one token, two sequences of up to two."""
    scope = Scope(Config(2, 1, 1, 1), sequences=2, tokens=2, rows=1, sharing=sharing)
    return explore(Settings(scope, fault, lock_step=lock_step, pairs=not lock_step, aside=CONTENTS_ALONE))


def test_every_fault_is_in_the_table() -> None:
    assert {*LOCK_STEP, *DEEP} == set(faults.SHARING_FAULTS)


@pytest.mark.parametrize("fault", LOCK_STEP, ids=lambda fault: fault.__name__)
def test_explore_finds_it_in_as_few_operations_as_can_be(fault: type[faults.SharingFaulty]) -> None:
    expected = LOCK_STEP[fault]
    report = walk(fault, expected.sharing, lock_step=True)
    assert report.broken is not None
    assert (report.broken.rule, len(report.trace)) == (expected.rule, expected.length), report.broken
    assert expected.rule in {*RULES, "CRASH"}


@pytest.mark.parametrize("fault", CONTENTS, ids=lambda fault: fault.__name__)
def test_contents_alone_show_it(fault: type[faults.SharingFaulty]) -> None:
    expected = CONTENTS[fault]
    report = walk(fault, expected.sharing, lock_step=False)
    assert report.broken is not None
    assert (report.broken.rule, len(report.trace)) == (expected.rule, expected.length), report.broken


@pytest.mark.deep
@pytest.mark.parametrize("fault", LOCK_STEP, ids=lambda fault: fault.__name__)
def test_fuzz_finds_it(fault: type[faults.SharingFaulty]) -> None:
    tally = fuzz(Plan(fault), seed=0, runs=RUNS)
    assert tally.finding is not None
    assert tally.finding.broken.rule in {*RULES, "CRASH"}


@pytest.mark.deep
@pytest.mark.parametrize("fault", [*CONTENTS, *CONTENTS_BY_LOT], ids=lambda fault: fault.__name__)
def test_fuzz_finds_it_by_contents_alone(fault: type[faults.SharingFaulty]) -> None:
    tally = fuzz(Plan(fault, lock_step=False, aside=CONTENTS_ALONE), seed=0, runs=RUNS)
    assert tally.finding is not None


@pytest.mark.parametrize("fault", DEEP, ids=lambda fault: fault.__name__)
def test_fuzz_finds_what_lies_deep(fault: type[faults.SharingFaulty]) -> None:
    expected = DEEP[fault]
    tally = fuzz(Plan(fault, expected.config), seed=0, operations=ENOUGH)
    assert tally.finding is not None
    assert tally.finding.broken.rule == expected.rule
    assert len(tally.finding.trace) <= expected.length


@pytest.mark.deep
@pytest.mark.parametrize("fault", DEEP, ids=lambda fault: fault.__name__)
def test_fuzz_finds_what_lies_deep_in_drawn_worlds(fault: type[faults.SharingFaulty]) -> None:
    tally = fuzz(Plan(fault), seed=0, operations=ENOUGH_IN_DRAWN_WORLDS)
    assert tally.finding is not None
    assert tally.finding.broken.rule == DEEP[fault].rule


@pytest.mark.parametrize("fault", [faults.DigestTrusted, faults.OldWeightsHit], ids=lambda fault: fault.__name__)
def test_fuzz_finds_two_of_them_soon(fault: type[faults.SharingFaulty]) -> None:
    assert fuzz(Plan(fault), seed=0, runs=30).finding is not None


def test_the_sound_manager_passes_where_the_faults_are_found() -> None:
    report = walk(Implementation, shared(letters=2, pins=1), lock_step=True)
    assert report.broken is None
    assert report.complete
    assert report.holes() == []

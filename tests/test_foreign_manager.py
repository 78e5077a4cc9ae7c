"""A stranger's manager under our drivers: the sound one passes, and each of its faults is found, from outside.

`foreign_manager` knows nothing of this project, and `foreign_adapter` is what its author would write to attach it. No
lock-step: the manager shows nothing of itself but block tables; a virtual device does what it is told to, each slot
that is read must hold the right prefix, and the rules that show from outside hold. The faults are slips that such
managers had in public. The exhaustive driver's counterexamples are the shortest there are, so their lengths are known
beforehand; each case says how it comes about: as a rule is broken, and as wrong contents are read.
"""

from pathlib import Path
from typing import NamedTuple

import pytest
from pagedkv.spec.alphabet import Add, Extend, Fork, Release, Submit, describe
from pagedkv.spec.explore import explore
from pagedkv.spec.fuzz import fuzz
from pagedkv.spec.fuzz_plan import Plan
from pagedkv.spec.manager import Feature
from pagedkv.spec.moves import Scope
from pagedkv.spec.shards import Settings
from pagedkv.spec.shrinking import shrink
from pagedkv.spec.state import Config
from pagedkv.spec.traces import Case as TraceCase
from pagedkv.spec.traces import Finding, tell

import foreign_adapter
from foreign_adapter import Foreign
from foreign_manager import BlockManager, Seq
from from_outside import CONTENTS_ALONE

ONE_LAUNCH = Scope(Config(blocks=3, block_size=2, streams=1, launches=1), sequences=2, tokens=3, rows=1)
FEW_BLOCKS = Config(blocks=3, block_size=2, streams=1, launches=2)
BATCHES = Scope(Config(blocks=2, block_size=2, streams=1, launches=2), sequences=2, tokens=2, rows=2)


class NoCopyOnWrite(Foreign):
    """Appends to a block in place, whoever shares it."""

    class manager_class(BlockManager):  # noqa: N801  (named as the attribute that it is)
        """Call no block shared."""

        def _is_shared(self, block_id: int) -> bool:  # noqa: ARG002  (the signature is the protocol's)
            return False


class InWholeSteps(NoCopyOnWrite):
    """The same; and a launch takes every planned sequence."""

    not_offered = frozenset({Feature.PARTIAL_STEPS})


class FreesShared(Foreign):
    """Frees a sequence's blocks whoever shares them."""

    class manager_class(BlockManager):  # noqa: N801  (named as the attribute that it is)
        """Count no references when letting go."""

        def _unref(self, block_id: int) -> None:
            self.ref_count[block_id] = 1
            super()._unref(block_id)


class OffByOne(Foreign):
    """Takes no block for the token after an exact multiple of the block size."""

    class manager_class(BlockManager):  # noqa: N801  (named as the attribute that it is)
        """Call a block full one token late."""

        def _is_full(self, seq: Seq) -> bool:
            return seq.num_tokens > len(seq.block_table) * self.block_size


class ForgetsCopySource(Foreign):
    """Lets go of a copy's source before the copy is done."""

    class manager_class(BlockManager):  # noqa: N801  (named as the attribute that it is)
        """Take a planned copy for a done one."""

        def may_append(self, seq: Seq) -> tuple[int, int] | None:
            copy = super().may_append(seq)
            self.copies_done(seq)
            return copy


class FreesLater(Foreign):
    """Sound, and hides something: a block that nobody has any more is free when somebody asks for one, or forks."""

    class manager_class(BlockManager):  # noqa: N801  (named as the attribute that it is)
        """Keep what was let go apart until somebody asks."""

        later: tuple[int, ...] = ()

        def can_allocate(self, seq: Seq) -> bool:
            self._settle()
            return super().can_allocate(seq)

        def can_append(self, seq: Seq) -> bool:
            self._settle()
            return super().can_append(seq)

        def fork(self, parent: Seq) -> Seq:
            self._settle()
            return super().fork(parent)

        def _unref(self, block_id: int) -> None:
            self.later += (block_id,)

        def _settle(self) -> None:
            for block_id in self.later:
                super()._unref(block_id)
            self.later = ()


class Case(NamedTuple):
    """A fault, where to look for it, and the shortest way to a rule that it breaks, and to what is read wrong."""

    fault: type[Foreign]
    scope: Scope
    seen: tuple[str, int]
    read: tuple[str, int]


CASES = [
    # add, launch; fork; extend both, launch one: it writes where the other has a position. With both launches executed,
    # one has written over the other's token.
    Case(NoCopyOnWrite, BATCHES, ("R-COW-1", 5), ("R-DATA", 7)),
    # add, launch, fork, release one: the other's block is free, and as it grows it is given that block again, so its
    # row names it twice; its launch is executed after the first was executed and retired (one may be in flight).
    Case(FreesShared, ONE_LAUNCH, ("R-OWN-3", 5), ("R-DATA", 9)),
    # add, extend to one token more than a block.
    Case(OffByOne, ONE_LAUNCH, ("R-TAB-1", 2), ("R-TAB-1", 2)),
    # add, launch, fork, extend: a copy is planned; release the other, add a new sequence into the source; three
    # launches (the first, the new sequence's, the one with the copy) are executed, and retired in between.
    Case(ForgetsCopySource, ONE_LAUNCH, ("R-LIFE-8", 6), ("R-DATA", 13)),
]


def test_the_exhaustive_driver_finds_nothing_in_the_sound_one() -> None:
    report = explore(Settings(ONE_LAUNCH, Foreign, lock_step=False))
    assert report.broken is None, (report.broken, [*map(describe, report.trace)])
    assert report.complete
    assert all(report.fired[kind] for kind in ("add", "extend", "fork", "launch", "execute", "retire", "release"))
    assert report.refused["add", "NoSpace"]
    assert report.refused["extend", "NoSpace"]


def test_a_block_that_the_manager_hides_is_no_crash() -> None:
    """It is in no block table and not free, and its id may be any, 0 too, where ids begin at 0."""
    scope = Scope(Config(blocks=2, block_size=2, streams=1, launches=1), sequences=2, tokens=2, rows=1)
    report = explore(Settings(scope, FreesLater, lock_step=False))
    assert report.broken is None, (report.broken, [*map(describe, report.trace)])
    assert report.complete


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.fault.__name__)
def test_the_exhaustive_driver_finds_each_fault(case: Case) -> None:
    for expected, aside in ((case.seen, frozenset[str]()), (case.read, CONTENTS_ALONE)):
        report = explore(Settings(case.scope, case.fault, lock_step=False, aside=aside))
        assert report.broken is not None
        assert (report.broken.rule, len(report.trace)) == expected, [*map(describe, report.trace)]


def test_the_random_driver_finds_nothing_in_the_sound_one() -> None:
    tally = fuzz(Plan(Foreign, lock_step=False), runs=100)
    assert tally.finding is None
    assert tally.operations > 10_000


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.fault.__name__)
def test_the_random_driver_finds_each_fault(case: Case) -> None:
    tally = fuzz(Plan(case.fault, FEW_BLOCKS, lock_step=False), runs=400)
    assert tally.finding is not None
    assert tally.finding.broken.rule == case.seen[0]


def test_a_sequence_that_has_no_part_in_it_is_left_out() -> None:
    """Its beginning, its row in a launch and its end go together: none of them can go alone."""
    trace = (
        *(Add(1, 1), Add(2, 3), Submit(((1, 1), (2, 3))), Fork(1, 3), Release(2)),
        *(Extend(((1, 1),)), Extend(((3, 1),)), Submit(((1, 1), (3, 1)))),
    )
    case = TraceCase(FEW_BLOCKS, InWholeSteps, lock_step=False)
    told, broken = tell(case, trace)
    assert broken is not None
    assert (broken.rule, len(told)) == ("R-COW-1", 8)
    found = shrink(Finding(case, trace, broken))
    assert found.trace == (Add(1, 1), Submit(((1, 1),)), Fork(1, 3), *trace[5:])


def test_the_adapter_is_short() -> None:
    assert len(Path(foreign_adapter.__file__).read_text(encoding="utf-8").splitlines()) < 100

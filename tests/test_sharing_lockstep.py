"""Prefix sharing in lock-step and by contents: the implementation by lot, and traces that were found so, pinned."""

from collections import Counter
from typing import Any

import pytest
from pagedkv.bench.adapter import Implementation
from pagedkv.spec.alphabet import Add, Execute, Extend, Fork, Operation, Pin, Publish, Release, Retire, Submit, Unpin
from pagedkv.spec.fuzz import fuzz
from pagedkv.spec.fuzz_plan import Plan
from pagedkv.spec.lock_step import LockStep
from pagedkv.spec.manager import Factory
from pagedkv.spec.observation import Observation
from pagedkv.spec.outcome import Outcome
from pagedkv.spec.reference import Reference
from pagedkv.spec.refusals import Broken, Reason, Refused
from pagedkv.spec.state import Config
from pagedkv.spec.traces import Case, tell


def done(launch: int, *rows: tuple[int, int]) -> tuple[Operation, ...]:
    """Return a launch from its submission to its end."""
    return Submit(rows), Execute(launch), Retire(launch)


# Sequence 0 publishes block 1. Sequence 1 computes the same in block 2, and block 3; its fork is cancelled while a
# launch reads both. 1 is merged into block 1 and publishes 3 behind it. When 1 leaves, the launch still reads 3, and
# nothing reads 1; but 1 may not be evictable before 3.
PARENT_WAITS = (
    *(Add(0, (5,)), *done(1, (0, 1)), Publish(((0, ()),)), Release(0)),
    *(Add(1, 2), *done(2, (1, 2)), Fork(1, 2), Extend(((2, 1),)), Submit(((2, 1),)), Release(2)),
    *(Publish(((1, (5, 6)),)), Release(1), Execute(3), Retire(3), Add(3, 4)),
)

# The same, but 1 is merged before its fork is launched and cancelled, and publishes block 3 after that.
PARENT_WAITS_THOUGH_MERGED_BEFORE = (
    *(Add(0, (5,)), *done(1, (0, 1)), Publish(((0, ()),)), Release(0)),
    *(Add(1, 2), *done(2, (1, 2)), Fork(1, 2), Publish(((1, (5,)),)), Extend(((2, 1),)), Submit(((2, 1),))),
    *(Release(2), Publish(((1, (6,)),)), Release(1), Execute(3), Retire(3), Add(3, 4)),
)

# Sequences 0 and 2 both have block 1, which 2 published; then, in one batch, 0 publishes the block behind it, and 2 is
# to be merged into that, since it stands later in the batch, though 0 has more to look at.
EARLIER_ROW_FIRST = (
    *(Add(0, 2), Submit(((0, 2),)), Fork(0, 3), Fork(0, 2), Execute(1), Extend(((3, 2), (2, 2))), Retire(1)),
    *(Submit(((3, 2), (2, 1))), Release(0), Fork(3, 0), Execute(2), Retire(2), *done(3, (2, 1))),
    *(Publish(((0, (0,)), (2, (0, 0)))), Publish(((0, (0, 0, 0)), (2, (0, 0))))),
)

# Sequence 3, a fork of 2, is merged into block 1; what it has written in place in the tail that both began with stays
# unpublished, since 2 is still to copy that tail, which it knows behind another block.
TAIL_TO_BE_COPIED = (
    *(Add(1, (1, 2, 9)), *done(1, (1, 3)), Publish(((1, ()),)), Release(1)),
    *(Add(2, 3), *done(2, (2, 3)), Fork(2, 3), Extend(((2, 1),)), Extend(((3, 1),)), *done(3, (3, 1))),
    *(Publish(((3, (1, 2, 3, 4)),)), Release(3)),
)

# Sequence 1, merged into block 1, knows the tail behind it; 2 is still to copy that tail, and knows another block
# before it. So it stays unpublished, whoever asks for it, by itself or in a batch.
SOURCE_OF_A_COPY = (
    *(Add(3, (1, 1, 9)), *done(1, (3, 3)), Publish(((3, ()),))),
    *(Add(1, 3), *done(2, (1, 3)), Fork(1, 2), Extend(((2, 1),)), Extend(((1, 1),)), *done(3, (1, 1))),
    *(Publish(((1, (1, 1)),)), Publish(((1, (2, 2)),)), Release(1), Release(3)),
)
SOURCE_OF_A_COPY_IN_A_BATCH = (
    *(Add(3, (1, 1, 9)), *done(1, (3, 3)), Publish(((3, ()),))),
    *(Add(4, (7, 7)), Extend(((4, 2),)), *done(2, (4, 4)), Publish(((4, ()),))),
    *(Add(1, 3), *done(3, (1, 3)), Fork(1, 2), Extend(((2, 1),)), Extend(((1, 1),)), *done(4, (1, 1))),
    *(Publish(((1, (1, 1)),)), Publish(((1, (2, 2)), (4, (5, 5)))), Release(1), Release(3)),
)
# The same, but 2 holds the tail, and copies nothing.
SHARED_BEHIND_ANOTHER = (
    *(Add(3, (1, 1, 9)), *done(1, (3, 3)), Publish(((3, ()),))),
    *(Add(1, 4), *done(2, (1, 4)), Fork(1, 2), Publish(((1, (1, 1)),)), Publish(((1, (2, 2)),))),
)
# What sequence 1 publishes in a batch, behind a block that it was merged into, a launch of its fork still reads.
PARENT_WAITS_IN_A_BATCH = (
    *(Add(3, (1, 1, 9)), *done(1, (3, 3)), Publish(((3, ()),))),
    *(Add(4, (7, 7)), Extend(((4, 2),)), *done(2, (4, 4)), Publish(((4, ()),))),
    *(Add(1, 4), *done(3, (1, 4)), Fork(1, 2), Publish(((1, (1, 1)),)), Extend(((2, 1),)), Submit(((2, 1),))),
    *(Release(2), Publish(((1, (2, 2)), (4, (5, 5)))), Release(1), Release(3), Execute(4), Retire(4)),
)
# In one batch 1 is merged into block 1 and publishes behind it, and 5, later in the batch, has the same two blocks.
CHILD_OF_THE_SAME_BATCH = (
    *(Add(3, (1, 1, 9)), *done(1, (3, 3)), Publish(((3, ()),))),
    *(Add(5, (1, 1, 2)), Extend(((5, 1),)), *done(2, (5, 2)), Add(1, 4), *done(3, (1, 4))),
    *(Publish(((1, (1, 1, 2, 2)), (5, (2,)))), Release(1), Release(5)),
)

PINNED = {
    "a block that another will copy stays unpublished": (Config(10, 2, 1, 2), SOURCE_OF_A_COPY),
    "the same in a batch": (Config(20, 2, 1, 2), SOURCE_OF_A_COPY_IN_A_BATCH),
    "a block that another holds behind its own": (Config(10, 2, 1, 2), SHARED_BEHIND_ANOTHER),
    "a parent waits for a child that was published in a batch": (Config(20, 2, 1, 2), PARENT_WAITS_IN_A_BATCH),
    "a parent gets its child within the batch": (Config(20, 2, 1, 2), CHILD_OF_THE_SAME_BATCH),
    "a parent waits for its child": (Config(5, 1, 1, 2), PARENT_WAITS),
    "a parent waits, though it was merged before": (Config(5, 1, 1, 2), PARENT_WAITS_THOUGH_MERGED_BEFORE),
    "a tail that is to be copied": (Config(5, 2, 1, 4), TAIL_TO_BE_COPIED),
    "an earlier row of a batch first": (Config(6, 2, 2, 1), EARLIER_ROW_FIRST),
}


@pytest.mark.parametrize("name", PINNED)
def test_a_pinned_trace_holds_in_the_spec(name: str) -> None:
    config, trace = PINNED[name]
    told, broken = tell(Case(config, Reference), trace)
    assert broken is None
    assert [step.operation for step in told] == [*trace]
    assert not any(isinstance(step.offered, Refused) for step in told)


@pytest.mark.parametrize("name", PINNED)
def test_a_pinned_trace_holds(name: str) -> None:
    config, trace = PINNED[name]
    assert tell(Case(config, Implementation), trace)[1] is None


@pytest.mark.parametrize("factory", [Reference, Implementation], ids=["spec", "impl"])
@pytest.mark.parametrize("lock_step", [True, False], ids=["lock-step", "contents alone"])
def test_sound_managers_pass_by_lot(factory: Factory, *, lock_step: bool) -> None:
    tally = fuzz(Plan(factory, lock_step=lock_step), seed=0, runs=16)
    assert tally.finding is None
    assert min(tally.fired[kind] for kind in ("publish", "pin", "unpin", "clear")) > 10


@pytest.mark.deep
@pytest.mark.parametrize("lock_step", [True, False], ids=["lock-step", "contents alone"])
def test_the_implementation_passes_for_long(*, lock_step: bool) -> None:
    tally = fuzz(Plan(Implementation, lock_step=lock_step), seed=50_000, runs=1500)
    assert tally.finding is None


def test_what_is_to_be_met_is_met(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs by lot hit idle, fenced and held blocks, merge, evict, and build chains of several blocks."""
    met: Counter[str] = Counter()
    step = LockStep.step

    def watched(self: LockStep, operation: Operation) -> Outcome | Refused:
        old = self.state
        decided = step(self, operation)
        if isinstance(decided, Outcome):
            met["evicted"] += sum(block in old.evictable for block in decided.blocks)
            met["idle hits"] += sum(block in old.evictable for block in decided.hits)
            met["fenced hits"] += sum(block in old.quarantine for block in decided.hits)
            met["hits"] += len(decided.hits)
            met["merges"] += len(decided.merges)
            met["chains"] += any(len(key.tokens) > 2 * old.config.block_size for key in old.prefixes)
        return decided

    monkeypatch.setattr(LockStep, "step", watched)
    assert fuzz(Plan(Reference), seed=0, runs=90).finding is None
    assert min(met[what] for what in ("evicted", "idle hits", "fenced hits", "hits", "merges", "chains")) > 10, met


class SharesWithoutSaying(Reference):
    """A black box whose hits are right; it says nothing else of itself."""

    def observe(self) -> None:  # type: ignore[override]
        return None


def test_a_black_box_is_judged_by_its_hits() -> None:
    assert fuzz(Plan(SharesWithoutSaying, lock_step=False), seed=0, runs=16).finding is None


def test_a_refusal_to_let_a_pin_go_is_a_fault() -> None:
    class Keeps(SharesWithoutSaying):
        def unpin(self, handle: int) -> Outcome:
            raise Refused(Reason.BUSY, f"pin {handle}")

    trace = (Add(1, (5,)), *done(1, (1, 1)), Publish(((1, ()),)), Pin(1, (5,)), Unpin(1))
    broken = tell(Case(Config(2, 1, 1, 1), Keeps, lock_step=False), trace)[1]
    assert isinstance(broken, Broken)
    assert broken.rule == "R-OWN-4"


@pytest.mark.parametrize(
    ("field", "shown", "rule", "last"),
    [
        ("pins", {1: ()}, "R-OWN-2", Pin(1, (5,))),  # the pin is a holder of block 1
        ("in_flight", (), "R-LIFE-3", Submit(((2, 1),))),  # launch 2 has not retired
    ],
)
def test_what_is_shown_wrongly_is_named_by_its_rule(field: str, shown: Any, rule: str, last: Operation) -> None:
    class Shows(Reference):
        def observe(self) -> Observation:
            right = super().observe()
            return right._replace(**{field: shown}) if 2 in self.state.sequences and getattr(right, field) else right

    trace = (Add(1, (5,)), *done(1, (1, 1)), Publish(((1, ()),)), Add(2, 1), last)
    told, broken = tell(Case(Config(3, 1, 1, 1), Shows), trace)
    assert isinstance(broken, Broken)
    assert (broken.rule, len(told)) == (rule, len(trace)), broken

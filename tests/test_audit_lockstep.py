"""The auditor is held to the spec: in every state of a small world it accepts what the spec's operations accept."""

from collections.abc import Callable
from random import Random
from typing import Any
from unittest import mock

import pytest
from pagedkv.bench.adapter import Implementation
from pagedkv.spec import operations
from pagedkv.spec.alphabet import Execute, apply
from pagedkv.spec.audit import Auditor
from pagedkv.spec.audit_blocks import Blocks
from pagedkv.spec.audit_launches import Clock, Launches
from pagedkv.spec.explore import Report, explore
from pagedkv.spec.moves import Scope, draw_move
from pagedkv.spec.operations import Outcome, Result, Rows
from pagedkv.spec.reference import Reference
from pagedkv.spec.refusals import Broken, Refused
from pagedkv.spec.shards import Settings
from pagedkv.spec.state import Config, LaunchId, Name, initial

from audited_manager import Audited, beside, compare, judge, judge_refused


class Late(Reference):
    """The spec with other choices: the highest ids, blocks freed as late as may be, edges to all in flight."""

    def add(self, name: Name, count: int) -> Outcome:
        _, early = operations.add(self.state, name, count)
        return self._follow(operations.add, name, count, choice=self._highest(early))

    def extend(self, rows: Rows) -> Outcome:
        _, early = operations.extend(self.state, rows)
        return self._follow(operations.extend, rows, choice=self._highest(early))

    def launch(self, rows: Rows, stream: int) -> Outcome:
        every = frozenset(launch.id for launch in self.state.launches)
        return self._follow(operations.launch, rows, stream, choice=Outcome(after=every))

    def retire(self, launch: LaunchId) -> Outcome:
        return self._free_late(operations.retire, launch)

    def release(self, name: Name) -> Outcome:
        return self._free_late(operations.release, name)

    def _highest(self, early: Outcome) -> Outcome:
        blocks = tuple(sorted(self.state.free, reverse=True)[: len(early.blocks)])
        new = dict(zip(early.blocks, blocks, strict=True))
        return Outcome(blocks, tuple(copy._replace(target=new[copy.target]) for copy in early.copies))

    def _free_late(self, operation: Callable[..., Result], argument: int) -> Outcome:
        _, early = operation(self.state, argument)
        freed = early.freed
        for block in early.freed:
            try:
                operation(self.state, argument, choice=Outcome(freed=freed - {block}))
                freed -= {block}
            except Broken:
                continue
        return self._follow(operation, argument, choice=Outcome(freed=freed))

    def _follow(self, operation: Callable[..., Result], *arguments: object, choice: Outcome) -> Outcome:
        self.state, outcome = operation(self.state, *arguments, choice=choice)
        return outcome


class AuditedLate(Audited):
    """The spec with other choices, and the auditor."""

    inner = Late


class AuditedImplementation(Audited):
    """The implementation, and the auditor."""

    inner = Implementation


def walk(scope: Scope, factory: type[Audited], *, pairs: bool = False, workers: int = 1) -> Report:
    return explore(Settings(scope, factory, pairs=pairs), workers=workers)


@pytest.mark.parametrize("factory", [Audited, AuditedLate, AuditedImplementation])
def test_audit_and_spec_agree_on_every_choice_in_every_state(factory: type[Audited]) -> None:
    report = walk(Scope(Config(blocks=2, block_size=2, streams=2, launches=2), sequences=2, tokens=2, rows=1), factory)
    assert report.broken is None, (report.broken, report.trace)
    assert report.complete
    assert report.holes() == []


@pytest.mark.deep
@pytest.mark.parametrize(
    "scope",
    [
        Scope(Config(blocks=3, block_size=2, streams=2, launches=2), sequences=2, tokens=3, rows=2),
        Scope(Config(blocks=3, block_size=1, streams=2, launches=3), sequences=2, tokens=2, rows=1),
    ],
)
@pytest.mark.parametrize("factory", [Audited, AuditedLate, AuditedImplementation])
def test_audit_and_spec_agree_in_larger_worlds(scope: Scope, factory: type[Audited]) -> None:
    report = walk(scope, factory, workers=2)
    assert report.broken is None, (report.broken, report.trace)
    assert report.complete


@pytest.mark.deep
@pytest.mark.parametrize("factory", [Audited, AuditedLate, AuditedImplementation])
def test_audit_and_spec_agree_with_three_holders_of_a_block(factory: type[Audited]) -> None:
    """The nearest states of a world too large to end: several copies of one source, fences of several streams."""
    scope = Scope(Config(blocks=4, block_size=2, streams=2, launches=2), sequences=3, tokens=2, rows=2)
    report = explore(Settings(scope, factory), workers=2, max_states=15_000)
    assert report.broken is None, (report.broken, report.trace)
    assert report.fired["fork"] > 1000


@pytest.mark.deep
def test_what_the_audit_hides_does_not_matter() -> None:
    """States of the spec and of the auditor together, so that two ways to one state of the spec are both followed."""
    scope = Scope(Config(blocks=2, block_size=2, streams=2, launches=2), sequences=2, tokens=3, rows=2)
    report = walk(scope, Audited, pairs=True, workers=2)
    assert report.broken is None, (report.broken, report.trace)
    assert report.complete


def wander(config: Config, names: int, steps: int, seed: int) -> None:
    """Go through a world by lot, taking any choice that the spec allows, with the auditor beside it."""
    random = Random(seed)
    state, auditor = initial(config), Auditor(config)
    for _ in range(steps):
        operation = draw_move(state, names, random)
        try:
            after, right = apply(state, operation)
        except Refused:
            judge_refused(state, auditor, operation)
            continue
        if not isinstance(operation, Execute):
            others = list(beside(state, operation, right))
            chosen = right
            for choice in random.sample(others, min(12, len(others))):
                if judge(state, auditor.clone(), operation, choice) is not None:
                    chosen = choice
            following = judge(state, auditor, operation, chosen)
            assert following is not None
            after = following
            compare(after, auditor)
        state = after


@pytest.mark.parametrize(
    "config",
    [Config(3, 2, 2, 3), Config(5, 2, 3, 4), Config(8, 1, 2, 3), Config(6, 4, 1, 2), Config(12, 3, 2, 4)],
)
def test_audit_and_spec_agree_by_lot(config: Config) -> None:
    wander(config, names=4, steps=1500, seed=config.blocks)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(40))
def test_audit_and_spec_agree_by_lot_for_long(seed: int) -> None:
    config = Config(blocks=3 + seed % 9, block_size=1 + seed % 4, streams=1 + seed % 3, launches=1 + seed % 5)
    wander(config, names=2 + seed % 4, steps=4000, seed=seed)


def only_its_stream(launches: Launches, stream: int, _: object) -> Clock:
    return dict(launches._newest.get(stream, {}))


FAULTS: dict[str, Any] = {
    "a fence forgotten": mock.patch.object(Blocks, "_touched", return_value=False),
    "a fence for ever": mock.patch.object(Blocks, "_touched", return_value=True),
    "no launch left behind": mock.patch.object(Blocks, "_leave_behind"),
    "dropped copies forgotten": mock.patch.object(Blocks, "drop_copy"),
    "no order": mock.patch.object(Launches, "not_before", return_value=[]),
    "edges unheard": mock.patch.object(Launches, "clock", only_its_stream),
    "copies unseen": mock.patch.object(Auditor, "_copy_on_write"),
    "batches unchecked": mock.patch.object(Auditor, "_known_batch"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_auditor_is_found(fault: str) -> None:
    """The comparison can fail: each precaution of the auditor, taken away, shows within a few operations."""
    scope = Scope(Config(blocks=3, block_size=2, streams=2, launches=2), sequences=2, tokens=2, rows=1)
    with FAULTS[fault]:
        report = walk(scope, Audited)
    assert report.broken is not None

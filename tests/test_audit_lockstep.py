"""The auditor is held to the spec: in every state of a small world it accepts what the spec's operations accept."""

from collections.abc import Callable
from random import Random
from typing import Any
from unittest import mock

import pytest
from pagedkv.bench.adapter import Implementation
from pagedkv.spec import audit, audit_prefixes, operations
from pagedkv.spec.alphabet import Execute, apply
from pagedkv.spec.audit import Auditor
from pagedkv.spec.audit_blocks import Blocks
from pagedkv.spec.audit_launches import Clock, Launches
from pagedkv.spec.audit_prefixes import Prefixes
from pagedkv.spec.explore import Report, explore
from pagedkv.spec.moves import Scope, draw_move
from pagedkv.spec.moves_sharing import Sharing
from pagedkv.spec.outcome import Outcome, Result, Rows, Telling
from pagedkv.spec.reference import Reference
from pagedkv.spec.refusals import Broken, Refused
from pagedkv.spec.shards import Settings
from pagedkv.spec.state import Config, Handle, LaunchId, Name, Tokens, initial

from audited_manager import Audited, beside, compare, judge, judge_refused


class Late(Reference):
    """The spec with other choices: the highest ids, blocks freed as late as may be, edges to all in flight."""

    def add(self, name: Name, count: int) -> Outcome:
        _, early = operations.add(self.state, name, count)
        return self._follow(operations.add, name, count, choice=self._highest(early))

    def add_prompt(self, name: Name, tokens: int | Tokens, salt: int) -> Outcome:
        _, early = operations.add(self.state, name, tokens, salt)
        return self._follow(operations.add, name, tokens, salt, choice=self._highest(early))

    def publish(self, rows: Telling, retention: int) -> Outcome:
        return self._free_late(operations.publish, rows, retention)

    def unpin(self, handle: Handle) -> Outcome:
        return self._free_late(operations.unpin, handle)

    def clear(self) -> Outcome:
        return self._free_late(operations.clear)

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
        free = tuple(sorted(self.state.free, reverse=True)[: len(early.blocks)])
        blocks = free + early.blocks[len(free) :]  # those that are evicted are little of a choice
        new = dict(zip(early.blocks, blocks, strict=True))
        copies = tuple(copy._replace(target=new[copy.target]) for copy in early.copies)
        return early._replace(blocks=blocks, copies=copies)

    def _free_late(self, operation: Callable[..., Result], *arguments: object) -> Outcome:
        _, early = operation(self.state, *arguments)
        freed = early.freed
        for block in early.freed:
            try:
                operation(self.state, *arguments, choice=early._replace(freed=freed - {block}))
                freed -= {block}
            except Broken:
                continue
        return self._follow(operation, *arguments, choice=early._replace(freed=freed))

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


@pytest.mark.parametrize("factory", [Audited, AuditedLate, AuditedImplementation])
def test_audit_and_spec_agree_where_prefixes_are_shared(factory: type[Audited]) -> None:
    sharing = Sharing(letters=1, salts=1, retentions=1, pins=1)
    scope = Scope(Config(blocks=2, block_size=1, streams=1, launches=1), sequences=2, tokens=2, rows=1, sharing=sharing)
    report = walk(scope, factory)
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


def wander(config: Config, names: int, steps: int, seed: int, *, sharing: bool = False) -> None:
    """Go through a world by lot, taking any choice that the spec allows, with the auditor beside it."""
    random = Random(seed)
    state, auditor = initial(config), Auditor(config)
    for _ in range(steps):
        operation = draw_move(state, names, random, sharing=sharing)
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
@pytest.mark.parametrize("sharing", [False, True], ids=["counts", "prefixes"])
def test_audit_and_spec_agree_by_lot(config: Config, *, sharing: bool) -> None:
    wander(config, names=4, steps=1500, seed=config.blocks, sharing=sharing)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("sharing", [False, True], ids=["counts", "prefixes"])
def test_audit_and_spec_agree_by_lot_for_long(seed: int, *, sharing: bool) -> None:
    config = Config(blocks=3 + seed % 9, block_size=1 + seed % 4, streams=1 + seed % 3, launches=1 + seed % 5)
    wander(config, names=2 + seed % 4, steps=4000, seed=seed, sharing=sharing)


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
    "batches unchecked": mock.patch.object(audit, "known_batch", lambda _sequences, rows: dict(rows)),
}
SHARING_FAULTS: dict[str, Any] = {
    "hits unseen": mock.patch.object(Auditor, "look_up"),
    "evictions in any order": mock.patch.object(Prefixes, "rank", lambda prefixes, _: prefixes.best()),
    "eviction while blocks are free": mock.patch.object(Blocks, "free", 0),
    "tenants not told apart": mock.patch.object(audit_prefixes, "_key", lambda parent, _, ids: (parent, 0, tuple(ids))),
    "published before it is written": mock.patch.object(Auditor, "pending", return_value=()),
    "merged blocks stay": mock.patch.object(Auditor, "_let_go_of_duplicate"),
    "weights of before": mock.patch.object(Blocks, "clear"),
    "parents before children": mock.patch.object(Blocks, "_leads_to_touched", return_value=True),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_auditor_is_found(fault: str) -> None:
    """The comparison can fail: each precaution of the auditor, taken away, shows within a few operations."""
    scope = Scope(Config(blocks=3, block_size=2, streams=2, launches=2), sequences=2, tokens=2, rows=1)
    with FAULTS[fault]:
        report = walk(scope, Audited)
    assert report.broken is not None


@pytest.mark.parametrize("fault", SHARING_FAULTS)
def test_a_fault_in_the_audit_of_prefixes_is_found(fault: str) -> None:
    """The same for what the auditor does where prefixes are shared, by lot: evictions in order take many steps."""
    with SHARING_FAULTS[fault], pytest.raises(Broken) as verdict:  # noqa: PT012  (which of the worlds shows it is open)
        for seed in range(40):
            config = Config(blocks=3 + seed % 5, block_size=1 + seed % 2, streams=1 + seed % 2, launches=1 + seed % 3)
            wander(config, names=4, steps=400, seed=seed, sharing=True)
    assert verdict.value.rule == "AUDIT"

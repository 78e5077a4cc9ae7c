"""How a black box is asked: only what makes sense and what it offers; how it is branched where it cannot be copied.

What is judged of its answers is in `test_outside_rules`, and how crashes and hangs are survived in `test_calls` and
`test_peers_command`.
"""

from collections import Counter

import pytest
from pagedkv.bench.adapter import Implementation
from pagedkv.bench.targets import plan_of
from pagedkv.spec.alphabet import Add, Execute, Extend, Fork, Operation, Publish, Release, Retire, Submit
from pagedkv.spec.black_box import BlackBox
from pagedkv.spec.explore import explore
from pagedkv.spec.fuzz import fuzz
from pagedkv.spec.fuzz_plan import Plan
from pagedkv.spec.manager import Feature, Manager, Outcome, Rows, lacks
from pagedkv.spec.moves import Scope
from pagedkv.spec.offers import fit, is_in_flight, missing
from pagedkv.spec.reference import Reference
from pagedkv.spec.refusals import Reason, Refused
from pagedkv.spec.shards import Settings
from pagedkv.spec.state import Config
from pagedkv.spec.traces import Case, tell

import outside_managers as managers

ALL = frozenset(Feature)
SMALL = Scope(Config(blocks=2, block_size=1, streams=1, launches=1), sequences=2, tokens=2, rows=1)
FEW = Config(4, 2, 1, 2)


def box(lacking: set[Feature] | frozenset[Feature] = frozenset(), config: Config = FEW) -> BlackBox:
    """Return a sound manager, judged from outside, that offers all but some."""
    kind = type("Lacking", (Reference,), {"not_offered": frozenset(lacking)})
    return BlackBox(config, kind(config), kind)


def after(here: BlackBox, *operations: Operation) -> BlackBox:
    """Take some operations that can be done."""
    for operation in operations:
        assert not isinstance(here.step(operation), Refused), operation
    return here


# ---- what is not offered ---------------------------------------------------------------------------------------------


def test_what_is_not_overridden_is_not_offered() -> None:
    class Plain(Manager):
        """Nothing but what it must have."""

    class Sharing(Plain):
        shares_prefixes = True

        def fork(self, parent: int, child: int) -> None: ...

        def pin(self, handle: int, tokens: tuple[int, ...], salt: int) -> None: ...

    assert lacks(Plain) == {Feature.FORK, Feature.PUBLISH, Feature.PIN, Feature.CLEAR, Feature.SALT}
    assert lacks(Sharing) == {Feature.PUBLISH, Feature.PIN, Feature.CLEAR}  # a pin that can't be let go is none
    assert lacks(Implementation) == frozenset()


START = (Add(1, 3), Add(2, 1), Submit(((1, 3), (2, 1))))
CASES: list[tuple[Feature, tuple[Operation, ...], Operation, Operation | None]] = [
    (Feature.FORK, (*START,), Fork(1, 3), None),
    (Feature.COPY_ON_WRITE, (*START,), Fork(1, 3), None),
    (Feature.SALT, (), Add(1, (5, 6, 7), 1), Add(1, (5, 6, 7), 0)),
    (Feature.PUBLISH, (*START,), Publish(((1, (0,)),)), None),
    (Feature.BATCHES, (*START,), Extend(((2, 2), (1, 1))), Extend(((2, 2),))),
    (Feature.SEVERAL_TOKENS, (*START,), Extend(((2, 2), (1, 1))), Extend(((2, 1), (1, 1)))),
    (Feature.CHUNKS, (Add(1, 3),), Submit(((1, 2),)), Submit(((1, 3),))),
    (Feature.PARTIAL_STEPS, (Add(1, 3), Add(2, 1)), Submit(((2, 1),)), Submit(((1, 3), (2, 1)))),
    (Feature.PARTIAL_STEPS, (Add(1, 3),), Release(1), None),
    (Feature.CANCEL_IN_FLIGHT, (*START,), Release(1), None),
    (Feature.REPEATED_COMPLETION, (*START, Execute(1), Retire(1)), Retire(1), None),
    (Feature.LATE_TOKENS, (), Add(1, 2), Add(1, (0, 0))),
    (Feature.LATE_TOKENS, (Add(1, (4, 5)), Extend(((1, 1),))), Submit(((1, 3),)), Publish(((1, (1,)),))),
]


@pytest.mark.parametrize(("feature", "before", "asked", "fitting"), CASES, ids=lambda each: str(each)[:30])
def test_the_nearest_that_is_offered_is_asked(
    feature: Feature, before: tuple[Operation, ...], asked: Operation, fitting: Operation | None
) -> None:
    here = after(box(), *before)
    assert fit(here.state, asked, frozenset()) == asked
    assert missing(here.state, asked, frozenset({feature})) == [feature]
    got = fit(here.state, asked, frozenset({feature}))
    assert (type(got), got) == (type(fitting), fitting)
    if fitting:
        assert missing(here.state, fitting, frozenset({feature})) == []


def test_what_is_offered_no_more_needed_is_asked_again() -> None:
    """A full tail needs no copy-on-write; what has retired is in flight no more."""
    here = after(box({Feature.COPY_ON_WRITE, Feature.CANCEL_IN_FLIGHT}), Add(1, 4), Submit(((1, 4),)))
    assert is_in_flight(here.state, 1)
    assert here.fit(Fork(1, 2)) == Fork(1, 2)
    assert here.fit(Release(1)) is None
    after(here, Execute(1), Retire(1))
    assert here.fit(Release(1)) == Release(1)


def test_a_trace_that_asks_for_it_all_the_same_does_not_reach_the_manager() -> None:
    here = after(box({Feature.FORK}), Add(1, 2), Submit(((1, 2),)))
    answer = here.step(Fork(1, 2))
    assert isinstance(answer, Refused)
    assert (answer.reason, answer.what) == (Reason.NOT_OFFERED, "fork")
    assert list(here.state.sequences) == [1]


@pytest.mark.parametrize("lacking", [{each} for each in Feature] + [ALL - {Feature.PUBLISH}, ALL], ids=len)
def test_drivers_never_ask_for_it(lacking: set[Feature]) -> None:
    met: Counter[str] = Counter()

    class Lacking(Reference):
        not_offered = frozenset(lacking)
        launches_offered = 1

    class Watching(BlackBox):
        def step(self, operation: Operation) -> Outcome | Refused:
            met.update(map(str, missing(self.state, operation, frozenset(lacking))))
            answer = super().step(operation)
            met["refused by us"] += isinstance(answer, Refused) and answer.reason not in ("NoSpace", "TooLong", "Empty")
            met["launches"] += isinstance(operation, Submit)
            assert len(self.state.launches) <= 1
            return answer

    class WatchedCase(Case):
        def start(self) -> BlackBox:
            return Watching(self.config, self.factory(self.config), self.factory)

    class WatchedPlan(Plan):
        def draw_case(self, random: object) -> Case:
            return WatchedCase(*super().draw_case(random))  # type: ignore[arg-type]

    plan = WatchedPlan(*plan_of(Lacking, Lacking(Config(2, 2, 1, 1))))._replace(operations=60)
    assert fuzz(plan, runs=6).finding is None
    assert met.pop("launches") > 10
    assert sum(met.values()) == 0, met


# ---- branching -------------------------------------------------------------------------------------------------------


def test_what_cannot_be_copied_is_asked_all_over_again() -> None:
    class Copied(managers.CannotBeCopied):
        def __init__(self, config: Config) -> None:
            super().__init__(config)
            del self.uncopyable

    assert Copied(SMALL.config).clone().tables == {}
    with pytest.raises(NotImplementedError):
        managers.CannotBeCopied(SMALL.config).clone()
    first, second = (explore(Settings(SMALL, kind, lock_step=False)) for kind in (managers.CannotBeCopied, Copied))
    assert first.broken is None
    assert first.complete
    assert (first.states, first.edges, first.fired) == (second.states, second.edges, second.fired)


def test_a_leak_shows_without_a_copy_and_sooner_where_free_blocks_are_told() -> None:
    trace = (Add(1, 2), Add(2, 1), Release(1), Release(2))
    found = [tell(Case(FEW, leaky, lock_step=False), trace) for leaky in (managers.Leaks, managers.TellsItsFree)]
    assert [(len(told), broken and broken.rule) for told, broken in found] == [(4, "R-OWN-4"), (3, "R-OWN-5")]
    counts = [[(step.free, step.held, step.quarantined) for step in told] for told, _ in found]  # neither comes last
    assert counts[0] == [(3, 1, 0), (2, 2, 0), (3, 1, 0), (4, 0, 0)]  # as far as tables tell
    assert counts[1] == [(3, 1, 0), (2, 2, 0), (2, 1, 1)]


def test_what_does_not_answer_alike_is_a_crash() -> None:
    trace = (Add(1, 1), Release(1))
    broken = tell(Case(Config(2, 1, 1, 1), managers.Forgetful, lock_step=False), trace)[1]
    assert broken is None  # nothing has to be asked again: one copy, of nothing that is held
    report = explore(Settings(SMALL, managers.Forgetful, lock_step=False))
    assert report.broken is not None
    assert report.broken.rule == "CRASH"
    assert "asked the same once more" in report.broken.detail


# ---- own calls -------------------------------------------------------------------------------------------------------


def test_a_counterexample_is_told_in_own_calls_too() -> None:
    """What the device does alone is no call of the manager's."""
    trace = (Add(1, 3), Extend(((1, 2),)), Submit(((1, 5),)), Execute(1), Release(1), Retire(1))
    told, broken = tell(Case(Config(4, 2, 1, 1), managers.Leaks, lock_step=False), trace)
    assert [step.own_calls for step in told] == [("grow(1, 3)",), ("grow(1, 5)",), (), (), ("free([4, 3, 2])",), ()]
    late = (Add(1, 3), Submit(((1, 3),)), Release(1), Execute(1))
    told, _ = tell(Case(Config(4, 2, 1, 1), managers.Leaks, lock_step=False), late)
    assert [step.own_calls for step in told] == [("grow(1, 3)",), (), ("free([4, 3])",), ()]
    assert broken is not None


class EveryDay(managers.CannotBeCopied):
    """It takes a crash of its own for the end of the world."""

    def extend(self, rows: Rows) -> list[object]:  # type: ignore[override]
        raise SystemExit(f"no more than {rows}")


def test_a_crash_is_found_and_shrunk_and_others_go_on() -> None:
    tally = fuzz(Plan(EveryDay, lock_step=False), runs=5)
    assert tally.finding is not None
    assert (tally.finding.broken.rule, len(tally.finding.trace)) == ("CRASH", 2)
    behind = fuzz(Plan(EveryDay, lock_step=False, aside=frozenset({"CRASH"})), runs=5)
    assert behind.finding is None
    assert behind.runs == 5

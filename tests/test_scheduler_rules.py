"""Every rule of scheduling can fail: for each, steps that break it, one for each thing that its sentence says.

As with the rules of a cache (`test_rules.py`), each case takes a right step of the policy and changes by hand what is
said of it.
"""

from collections.abc import Callable
from typing import Any

import pytest
from pagedkv.spec.refusals import Broken, Reason, Refused
from pagedkv.spec.requests import Engine, Limits, Request
from pagedkv.spec.rules_scheduling import SCHEDULING, SchedulerStep
from pagedkv.spec.scheduler import ReferenceScheduler
from pagedkv.spec.scheduler_alphabet import Cancel, Complete, Drain, Fail, Operation, Preempt, Schedule, Submit, apply
from pagedkv.spec.scheduler_progress import finish
from pagedkv.spec.scheduler_world import SchedulerLockStep
from pagedkv.spec.serving import start
from pagedkv.spec.state import Config
from pagedkv.spec.turn import Decision, Preemption

LIMITS = Limits(max_tokens_per_step=8, max_running=4, steps_ahead=2)
A, B = Request(0, 2, 3), Request(1, 2, 3)
BOTH = (Submit(A), Submit(B), Schedule())
SHORT = (*BOTH, Complete())  # of 2 blocks both sequences hold one, and each needs another


def engine(*operations: Operation, blocks: int = 2, limits: Limits = LIMITS) -> Engine:
    """Return the engine that operations lead to. Blocks have two slots."""
    here = start(Config(blocks, 2, launches=2), limits)
    for operation in operations:
        here, _ = apply(here, operation)
    return here


def step(old: Engine, operation: Operation) -> SchedulerStep:
    """Return the policy's own step, which breaks no rule."""
    new, decided = apply(old, operation)
    return SchedulerStep(old, operation, decided, new)


def planned(taken: SchedulerStep, **fields: Any) -> SchedulerStep:
    """Return a step whose plan says something else."""
    plan = taken.decision.plan._replace(**fields)
    return taken._replace(decided=taken.decision._replace(plan=plan))


def knowing(old: Engine, request: int, name: int, **fields: Any) -> Engine:
    """Return an engine that knows something else of a sample."""
    job = old.jobs[request]
    samples = {**job.samples, name: job.samples[name]._replace(**fields)}
    return old._replace(jobs={**old.jobs, request: job._replace(samples=samples)})


def broken(taken: SchedulerStep) -> set[str]:
    """Return the rules that bear on a step and do not hold."""
    relevant = (rule for rule in SCHEDULING.values() if rule.on is None or isinstance(taken.operation, rule.on))
    return {rule.name for rule in relevant if any(rule.predicate(taken))}


CASES: dict[str, Callable[[], SchedulerStep]] = {}


def case(rule: str) -> Callable[[Callable[[], SchedulerStep]], Callable[[], SchedulerStep]]:
    """Register a step that breaks a rule."""

    def register(make: Callable[[], SchedulerStep]) -> Callable[[], SchedulerStep]:
        CASES[f"{rule} {make.__name__}"] = make
        return make

    return register


@case("R-CAP-3")
def taken_in_though_it_never_fits() -> SchedulerStep:
    right = step(engine(), Submit(A))
    return right._replace(operation=Submit(A._replace(outputs=9)))


@case("R-CAP-3")
def refused_though_it_would_fit() -> SchedulerStep:
    return SchedulerStep(engine(), Submit(A), Refused(Reason.TOO_LONG), engine())


@case("R-CAP-3")
def failed_beside_others() -> SchedulerStep:
    right = step(engine(*SHORT), Schedule())
    return planned(right, failed=(1,), preempted=())


@case("R-CAP-3")
def others_leave_with_it() -> SchedulerStep:
    right = step(engine(Submit(A), Submit(B)), Schedule())
    return planned(right, failed=(0,), admitted=())._replace(new=engine())


@case("R-CAP-3")
def nothing_runs_and_nobody_is_admitted() -> SchedulerStep:
    old = engine(Submit(A))
    return SchedulerStep(old, Schedule(), Decision(), old)


@case("R-CAP-4")
def waits_and_holds() -> SchedulerStep:
    """Of three samples one has no sequence, as if the request could get it later."""
    right = step(engine(Submit(A._replace(outputs=2, samples=2)), Schedule(), blocks=4), Complete())
    rest = {0: right.new.cache.sequences[0]}
    return right._replace(new=right.new._replace(cache=right.new.cache._replace(sequences=rest)))


@case("R-CAP-4")
def holds_for_a_sample_that_is_done() -> SchedulerStep:
    right = step(engine(*BOTH), Complete())
    return right._replace(new=knowing(right.new, 0, 0, done=True))


@case("R-CAP-4")
def reserved_in_part() -> SchedulerStep:
    right = step(engine(Submit(A)), Schedule())
    sequence = right.new.cache.sequences[0]
    short = right.new.cache._replace(sequences={0: sequence._replace(text=())})
    return right._replace(new=right.new._replace(cache=short))


@case("R-CAP-4")
def more_than_may_run() -> SchedulerStep:
    right = step(engine(Submit(A), Submit(B)), Schedule())
    return right._replace(new=right.new._replace(limits=LIMITS._replace(max_running=1)))


@case("R-CAP-4")
def overtaken() -> SchedulerStep:
    right = step(engine(Submit(A), Submit(B)), Schedule())
    waiting = right.new.cache._replace(sequences={1: right.new.cache.sequences[1]})
    return planned(right, admitted=(1,))._replace(new=right.new._replace(cache=waiting))


@case("R-CAP-4")
def watermark_used_up() -> SchedulerStep:
    right = step(engine(Submit(A), Submit(B)), Schedule())
    return right._replace(new=right.new._replace(limits=LIMITS._replace(watermark_blocks=1)))


@case("R-PRE-1")
def pending_while_it_waits() -> SchedulerStep:
    right = step(engine(*BOTH), Preempt(0))
    return right._replace(new=knowing(right.new, 0, 0, pending=1))


@case("R-PRE-1")
def preempted_and_still_there() -> SchedulerStep:
    right = step(engine(*BOTH), Preempt(0))
    return right._replace(new=right.new._replace(cache=right.old.cache))


@case("R-PRE-1")
def preempted_and_forgotten() -> SchedulerStep:
    right = step(engine(*SHORT), Preempt(0))
    return right._replace(new=knowing(right.new, 0, 0, outputs=()))


@case("R-PRE-1")
def too_little_to_compute_anew() -> SchedulerStep:
    right = step(engine(*SHORT), Preempt(0))
    return right._replace(decided=right.decision._replace(preempted=(Preemption(0, ((0, 2),)),)))


@case("R-PRE-1")
def begun_in_the_middle() -> SchedulerStep:
    right = step(engine(Submit(A)), Schedule())
    return planned(right, rows=(right.decision.plan.rows[0]._replace(length=1),))


@case("R-PRE-1")
def pending_for_nothing() -> SchedulerStep:
    right = step(engine(*BOTH), Complete())
    return right._replace(new=knowing(right.new, 0, 0, pending=1))


@case("R-PRE-2")
def planned_though_it_left() -> SchedulerStep:
    right = step(engine(*SHORT), Schedule())
    victim = right.decision.plan.rows[0]._replace(name=1)
    return planned(right, rows=(*right.decision.plan.rows, victim))


@case("R-PRE-2")
def more_than_the_budget() -> SchedulerStep:
    right = step(engine(Submit(A)), Schedule())
    return right._replace(new=right.new._replace(limits=LIMITS._replace(max_tokens_per_step=1)))


@case("R-PRE-2")
def admitted_while_another_left() -> SchedulerStep:
    return planned(step(engine(*SHORT), Schedule()), admitted=(1,))


@case("R-PRE-2")
def planned_and_not_launched() -> SchedulerStep:
    return planned(step(engine(Submit(A)), Schedule()), rows=())


@case("R-PRE-2")
def too_far_ahead() -> SchedulerStep:
    right = step(engine(Submit(A)), Schedule())
    return right._replace(new=right.new._replace(flights=right.new.flights * 3))


@case("R-PRE-3")
def the_first_is_preempted() -> SchedulerStep:
    return planned(step(engine(*SHORT), Schedule()), preempted=(Preemption(0, ((0, 3),)),))


@case("R-PRE-3")
def nothing_of_the_last_was_released() -> SchedulerStep:
    right = step(engine(*SHORT), Schedule())
    return right._replace(decided=right.decision._replace(steps=()))


@case("R-PRE-3")
def preempted_without_need() -> SchedulerStep:
    right = step(engine(*SHORT), Schedule())
    steps = [
        each._replace(old=each.old._replace(free=frozenset({8, 9}))) if at == 0 else each
        for at, each in enumerate(right.decision.steps)
    ]
    return right._replace(decided=right.decision._replace(steps=tuple(steps)))


@case("R-LIFE-7")
def a_token_too_many() -> SchedulerStep:
    right = step(engine(*BOTH), Complete())
    return right._replace(new=knowing(right.new, 0, 0, outputs=(1, 1)))


@case("R-LIFE-7")
def taken_from_an_older_life() -> SchedulerStep:
    right = step(engine(*BOTH, Preempt(1)), Complete())
    return right._replace(new=knowing(right.new, 1, 1, outputs=(1,)))


@case("R-LIFE-7")
def a_second_completion_changes_something() -> SchedulerStep:
    right = step(engine(*SHORT), Complete(-1))
    return right._replace(new=right.new._replace(submitted=9))


@case("R-LIFE-7")
def a_second_failure_changes_something() -> SchedulerStep:
    right = step(engine(*SHORT), Fail(-1))
    return right._replace(new=right.new._replace(names=9))


@case("R-LIFE-7")
def somebody_leaves_unasked() -> SchedulerStep:
    right = step(engine(*BOTH), Cancel(0))
    return right._replace(new=right.new._replace(jobs={}))


@case("R-LIFE-7")
def draining_does_more() -> SchedulerStep:
    right = step(engine(*BOTH), Drain())
    return right._replace(new=right.new._replace(names=9))


@pytest.mark.parametrize("name", CASES)
def test_each_rule_can_be_broken(name: str) -> None:
    assert name.split(maxsplit=1)[0] in broken(CASES[name]())


def test_no_rule_is_without_a_case() -> None:
    assert {name.split()[0] for name in CASES} == set(SCHEDULING)


@pytest.mark.parametrize("name", SCHEDULING)
def test_the_rule_is_registered_with_its_sentence(name: str) -> None:
    assert SCHEDULING[name].name == name
    assert SCHEDULING[name].sentence.endswith(".")


@pytest.mark.parametrize("last", [Schedule(), Complete(), Fail(), Cancel(0), Preempt(0), Drain()])
def test_a_right_step_breaks_nothing(last: Operation) -> None:
    for old in (engine(*BOTH), engine(*SHORT, Schedule())):
        assert broken(step(old, last)) == set()
    assert broken(step(engine(*SHORT, Schedule()), Complete(-1))) == set()


# ---- progress -------------------------------------------------------------------------------------------------------


def test_a_scheduler_that_stands_still_is_found() -> None:
    """A sample that is known to be nowhere: nobody runs, and who waits is never let in."""
    stuck = engine(*BOTH)._replace(limits=LIMITS._replace(max_running=0))
    with pytest.raises(Broken) as verdict:
        finish(apply(stuck, Preempt(0))[0])
    assert verdict.value.rule == "R-PRE-3"


def test_blocks_left_behind_are_found() -> None:
    lost = engine(Submit(A))
    lost = lost._replace(cache=lost.cache._replace(free=frozenset({1})), jobs={})
    with pytest.raises(Broken) as verdict:
        finish(lost)
    assert verdict.value.rule == "R-OWN-4"


def test_a_request_that_fails_without_reason_is_found() -> None:
    lost = engine(Submit(A), Schedule(), Complete())
    lost = lost._replace(cache=lost.cache._replace(free=frozenset()))
    with pytest.raises(Broken) as verdict:
        finish(lost)
    assert verdict.value.rule == "R-CAP-3"


# ---- the lock-step --------------------------------------------------------------------------------------------------


def test_what_a_scheduler_knows_is_compared_with_the_policy() -> None:
    for fields, rule in (({"outputs": (1, 1)}, "R-LIFE-7"), ({"pending": 1}, "R-PRE-1")):
        config = Config(2, 2, launches=2)
        world = SchedulerLockStep(config, LIMITS, ReferenceScheduler(config, LIMITS))
        for operation in SHORT:
            world.step(operation)
        scheduler = world.scheduler
        assert isinstance(scheduler, ReferenceScheduler)
        scheduler.engine = knowing(scheduler.engine, 0, 0, **fields)
        with pytest.raises(Broken) as verdict:
            world.look()
        assert verdict.value.rule == rule


def test_refused_and_done_are_told_apart() -> None:
    config = Config(2, 2, launches=2)
    world = SchedulerLockStep(config, LIMITS, ReferenceScheduler(config, LIMITS))
    world.step(Submit(A))
    world.scheduler = ReferenceScheduler(config, LIMITS)
    with pytest.raises(Broken) as verdict:
        world.step(Cancel(0))
    assert verdict.value.rule == "R-TXN-1"

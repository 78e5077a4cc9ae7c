"""Publicly reported bugs, pinned: each trace runs in lock-step on our implementation, and finds the engine's fault.

`reported_bugs` tells each report in a sentence, with its trace and what is right at each step. Three things are held:
our implementation does what is right, under every rule and equal to the spec; what is right by the trace is what the
spec does, too; and where one of our planted faults is the engine's, the trace finds it. At the end everything is
drained, and every block is free (R-OWN-4).
"""

import pytest
from pagedkv.bench.adapter import Implementation
from pagedkv.spec.alphabet import Execute, Release, Retire
from pagedkv.spec.manager import Factory
from pagedkv.spec.operations import ready
from pagedkv.spec.outcome import Outcome
from pagedkv.spec.reference import Reference
from pagedkv.spec.refusals import Broken, Refused
from pagedkv.spec.rules import RULES
from pagedkv.spec.traces import Case
from pagedkv.spec.world import World

from reported_bugs import Report, Step
from reported_lifetime_bugs import COPY_ON_WRITE, IN_FLIGHT
from reported_ownership_bugs import BOUNDARIES, LEAKS, OWNERSHIP

REPORTS = (*OWNERSHIP, *LEAKS, *BOUNDARIES, *IN_FLIGHT, *COPY_ON_WRITE)

reports = pytest.mark.parametrize("report", REPORTS, ids=[f"{each.id} {each.rule}" for each in REPORTS])


def replay(report: Report, factory: Factory) -> World:
    """Run a report's trace in lock-step, holding each step against what must come of it."""
    world = Case(report.config, factory, lock_step=True).start()
    for step in report.steps:
        hold(step, world.step(step.operation), world)
    return world


def hold(step: Step, decided: Outcome | Refused, world: World) -> None:
    """Hold what was decided against what must come of a step."""
    if isinstance(decided, Refused) or step.refused:
        assert isinstance(decided, Refused), step
        assert decided.reason is step.refused, step
        return
    free, _, _ = world.blocks()
    assert step.free in {None, free}, (step, free)
    assert decided.after == step.after, step
    if not decided.launch:  # a launch takes along the copies that were planned
        assert tuple(copy.extent for copy in decided.copies) == step.extents, step


def drain(world: World) -> None:
    """Let everything go: sequences first, then what is in flight."""
    for name in list(world.state.sequences):
        world.step(Release(name))
    while world.state.launches:
        launch = next(launch for launch in world.state.launches if launch.executed or ready(world.state, launch))
        if not launch.executed:
            world.step(Execute(launch.id))
        world.step(Retire(launch.id))


@reports
@pytest.mark.parametrize("manager", [Implementation, Reference], ids=["implementation", "spec"])
def test_what_was_reported_is_right_here(report: Report, manager: Factory) -> None:
    world = replay(report, manager)
    drain(world)
    assert world.blocks() == (report.config.blocks, 0, 0)


@pytest.mark.parametrize("report", [each for each in REPORTS if each.fault], ids=lambda each: each.id)
def test_the_trace_finds_the_fault_that_was_reported(report: Report) -> None:
    assert report.fault is not None
    with pytest.raises(Broken) as verdict:
        drain(replay(report, report.fault))
    assert verdict.value.rule in RULES, verdict.value


@reports
def test_each_report_names_a_rule_and_tells_what_was(report: Report) -> None:
    """R-COW-4 speaks of published blocks, which come with sharing by content; all others are registered."""
    assert report.rule in {*RULES, "R-COW-4"}
    assert "#" in report.id
    assert len(report.what.split()) > 8

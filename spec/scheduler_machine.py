"""The Hypothesis driver of a scheduler: a rule-based state machine, one rule an operation (see `machine`).

At the end of each example everything that is there must still be possible to finish: a state in which two requests
preempt each other for ever breaks no rule on the way into it.
"""

from typing import Any

from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from .machine import JudgedMachine
from .refusals import Broken, Refused
from .requests import Request
from .scheduler_alphabet import Cancel, Complete, Drain, Fail, Operation, Preempt, Schedule, Submit
from .scheduler_drivers import SchedulerCase
from .scheduler_moves import STRANGER
from .traces import Finding

IDS = st.sampled_from((0, 1, 2, 3, 0, 1, 2, STRANGER))
COUNTS = st.sampled_from((1, 2, 3, 4, 1, 2, 3, 0))
PROMPTS = st.one_of(COUNTS, st.lists(st.integers(0, 1), max_size=5).map(tuple))
PLACES = st.sampled_from((0, 0, 0, 0, 1, -1))  # which launch: mostly the oldest


class SchedulerMachine(JudgedMachine):
    """A scheduler beside the policy. Subclasses name the case; see `scheduler_machine`."""

    case: SchedulerCase

    def step(self, operation: Operation) -> Any:
        """Take an operation on both sides; return what was decided."""
        decided = super().step(operation)
        if not isinstance(decided, Refused) and decided.plan.preempted:
            event("somebody was preempted")
        return decided

    @rule(
        id_=IDS,
        prompt=PROMPTS,
        outputs=COUNTS,
        samples=st.sampled_from((1, 1, 2, 3, 0)),
        priority=st.sampled_from((0, 0, 1, 256)),
        salt=st.sampled_from((0, 0, 1)),
    )
    def submit(self, id_: int, prompt: Any, outputs: int, samples: int, priority: int, salt: int) -> None:
        """Take a request in."""
        self.step(Submit(Request(id_, prompt, outputs, samples, priority, salt)))

    @precondition(lambda self: bool(self.world.engine.jobs))
    @rule()
    def schedule(self) -> None:
        """Plan a step."""
        self.step(Schedule())

    @precondition(lambda self: bool(self.world.engine.flights))
    @rule(place=PLACES, stops=st.sampled_from((False, False, True)), surplus=st.sampled_from((0, 0, 0, 0, 0, 1, -1)))
    def complete(self, place: int, *, stops: bool, surplus: int) -> None:
        """Deliver a completion; its first token may end its sample."""
        takers = self.world.engine.flights[0].takers
        self.step(Complete(place, tuple(name for name, _ in takers[:1] if stops), surplus))

    @precondition(lambda self: bool(self.world.engine.flights))
    @rule(place=PLACES)
    def fail(self, place: int) -> None:
        """Say that a launch could not be done."""
        self.step(Fail(place))

    @precondition(lambda self: bool(self.world.engine.jobs))
    @rule(id_=IDS)
    def cancel(self, id_: int) -> None:
        """Let a request go."""
        self.step(Cancel(id_))

    @precondition(lambda self: bool(self.world.engine.jobs))
    @rule(id_=IDS)
    def preempt(self, id_: int) -> None:
        """Put a request back to wait."""
        self.step(Preempt(id_))

    @precondition(lambda self: len(self.trace) > 20)
    @rule()
    def drain(self) -> None:
        """Take no more requests in."""
        self.step(Drain())

    def teardown(self) -> None:
        """See that everything there can be finished."""
        try:
            self.world.look_ahead()
        except Broken as broken:
            type(self).finding = Finding(self.case, tuple(self.trace), broken)
            raise


def scheduler_machine(case: SchedulerCase) -> type[SchedulerMachine]:
    """Return the state machine of a case: also a test, as `scheduler_machine(case).TestCase`."""
    return type("Machine", (SchedulerMachine,), {"case": case})

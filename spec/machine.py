"""The Hypothesis driver: a rule-based state machine, one rule an operation.

Slower than the seeded driver (draws cost more than steps), and better at shrinking: what it finds is minimal in every
number. One rule an operation, and not one rule for all, so that Hypothesis can switch operations off for a whole
example (swarm testing). Under `CI=true` Hypothesis loads a profile that tries the same examples every time; fuzzing
means new ones, so it has a profile of its own, `pagedkv-fuzz`.
"""

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, event, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from .alphabet import Add, Execute, Extend, Fork, Operation, Release, Retire, Submit
from .moves import possible
from .operations import ready
from .refusals import Broken, Refused
from .traces import Case, Finding

settings.register_profile(
    "pagedkv-fuzz",
    max_examples=200,
    stateful_step_count=40,
    deadline=None,
    derandomize=False,
    print_blob=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

NAMES = st.integers(0, 3)
COUNTS = st.integers(0, 4)
BATCHES = st.lists(st.tuples(NAMES, COUNTS), min_size=1, max_size=3).map(tuple)


class CacheMachine(RuleBasedStateMachine):
    """A cache manager beside its judge. Subclasses name the case; see `machine`."""

    case: Case
    last_trace: tuple[Operation, ...] = ()  # of the example that ran last, which after shrinking is the minimal one

    def __init__(self) -> None:
        super().__init__()
        self.world = self.case.start()
        self.trace: list[Operation] = []

    def step(self, operation: Operation) -> None:
        """Take an operation on both sides."""
        self.trace.append(operation)
        type(self).last_trace = tuple(self.trace)
        decided = self.world.step(operation)
        if isinstance(decided, Refused):
            event(f"{type(operation).__name__} refused as {decided.reason}")

    def has_sequences(self) -> bool:
        """Whether anything is live."""
        return bool(self.world.state.sequences)

    def able(self) -> list[int]:
        """Return the launches that the device may execute now."""
        return [launch.id for launch in self.world.state.launches if ready(self.world.state, launch)]

    def is_able(self) -> bool:
        """Whether the device may execute a launch now."""
        return bool(self.able())

    @rule(name=NAMES, count=st.integers(0, 9))
    def add(self, name: int, count: int) -> None:
        """Start a sequence."""
        self.step(Add(name, count))

    @precondition(has_sequences)
    @rule(rows=BATCHES)
    def extend(self, rows: tuple[tuple[int, int], ...]) -> None:
        """Make room."""
        self.step(Extend(rows))

    @precondition(has_sequences)
    @rule(parent=NAMES, child=NAMES)
    def fork(self, parent: int, child: int) -> None:
        """Fork."""
        self.step(Fork(parent, child))

    @precondition(has_sequences)
    @rule(rows=BATCHES, stream=st.integers(0, 2))
    def launch(self, rows: tuple[tuple[int, int], ...], stream: int) -> None:
        """Submit a step."""
        self.step(Submit(rows, stream % self.case.config.streams))

    @precondition(is_able)
    @rule(data=st.data())
    def execute(self, data: st.DataObject) -> None:
        """Let the device do a launch."""
        self.step(Execute(data.draw(st.sampled_from(self.able()))))

    @precondition(lambda self: bool(self.world.state.issued))
    @rule(data=st.data())
    def retire(self, data: st.DataObject) -> None:
        """Deliver a completion: due, for the second time, or of a launch that never was."""
        state = self.world.state
        choices = [launch for launch in range(1, state.issued + 2) if possible(state, Retire(launch))]
        self.step(Retire(data.draw(st.sampled_from(choices))))

    @precondition(has_sequences)
    @rule(name=NAMES)
    def release(self, name: int) -> None:
        """Let a sequence go."""
        self.step(Release(name))


def machine(case: Case) -> type[CacheMachine]:
    """Return the state machine of a case: also a test, as `machine(case).TestCase`."""
    return type("Machine", (CacheMachine,), {"case": case})


def hunt(
    case: Case, *, number: int | None = None, examples: int = 200, progress: Callable[[], None] = lambda: None
) -> Finding | None:
    """Let Hypothesis look for a broken rule; return the minimal trace that it found."""
    kind: Any = machine(case)
    if number is not None:
        kind = seed(number)(kind)
    profile = settings(settings.get_profile("pagedkv-fuzz"), max_examples=examples, database=None, phases=_PHASES)
    try:
        run_state_machine_as_test(kind, settings=profile)
    except Broken as broken:
        return Finding(case, kind.last_trace, broken)
    finally:
        progress()
    return None


_PHASES = (Phase.explicit, Phase.generate, Phase.target, Phase.shrink)

"""The Hypothesis driver: a rule-based state machine, one rule an operation.

Slower than the seeded driver (draws cost more than steps), and it looks elsewhere: with one rule an operation, and not
one rule for all, Hypothesis switches operations off for a whole example (swarm testing). Under `CI=true` Hypothesis
loads a profile that tries the same examples every time; fuzzing means new ones, so it has a profile of its own,
`pagedkv-fuzz`.

What it finds is shrunk as what every driver finds (`shrinking`). Hypothesis' own shrinking was tried: it took half
a minute where that takes a second, and left ten operations where three suffice, since a completion names a launch by
its place in a list that changes when anything before it is taken out.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import HealthCheck, Phase, event, seed, settings
from hypothesis import strategies as st
from hypothesis.configuration import set_hypothesis_home_dir
from hypothesis.errors import Flaky
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from .alphabet import (
    Add,
    Clear,
    Execute,
    Extend,
    Fork,
    Pin,
    Publish,
    Release,
    Retire,
    Submit,
    Unpin,
)
from .fuzz_tally import Hunted
from .moves import possible
from .moves_sharing import truly
from .operations import ready
from .refusals import Broken, Refused
from .shrinking import shrink
from .traces import Case, Finding, Startable

settings.register_profile(
    "pagedkv-fuzz",
    max_examples=200,
    stateful_step_count=40,
    deadline=None,
    derandomize=False,
    database=None,
    print_blob=False,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),  # a stranger's manager may be slow
    phases=(Phase.explicit, Phase.generate),
)

ROUND_EXAMPLES = 50  # between two looks at the clock
STRANGER = 9  # a name that is never live
ALL = 9  # all that is planned
PICKS = st.sampled_from((0, 1, 2, 3, 0, 1, 2, 3, STRANGER))  # which live sequence, or none
TOKENS = st.sampled_from((1, 2, 3, 4, 1, 2, 3, 0, 99))
COUNTS = st.sampled_from((1, 2, 3, 1, 1, 0))
BATCHES = st.lists(st.tuples(PICKS, COUNTS), min_size=1, max_size=3)
IDS = st.lists(st.sampled_from((0, 0, 0, 1)), max_size=5)  # short and of few letters, so that prefixes are equal
SALTS = st.sampled_from((0, 0, 0, 1))
TELLINGS = st.lists(st.tuples(PICKS, st.sampled_from((ALL, 0, 1, 2)), IDS), min_size=1, max_size=3)
SUBMISSIONS = st.lists(st.tuples(PICKS, st.sampled_from((ALL, 1, ALL, 2, ALL, 0))), min_size=1, max_size=3)


class JudgedMachine(RuleBasedStateMachine):
    """What is under test, beside its judge: a cache manager, or a scheduler. Subclasses name the case."""

    case: Any  # a `Case` or a `SchedulerCase`
    finding: Finding | None = None  # of the last example that broke a rule
    operations = 0  # of all examples

    def __init__(self) -> None:
        super().__init__()
        self.world = self.case.start()
        self.trace: list[Any] = []

    def step(self, operation: Any) -> Any:
        """Take an operation on both sides, if it is one to be asked; return what was decided."""
        operation = self.world.fit(operation)
        if operation is None:
            return None
        self.trace.append(operation)
        type(self).operations += 1
        try:
            decided = self.world.step(operation)
        except Broken as broken:
            type(self).finding = Finding(self.case, tuple(self.trace), broken)
            raise
        if isinstance(decided, Refused):
            event(f"{type(operation).__name__} refused as {decided.reason}")
        return decided


class CacheMachine(JudgedMachine):
    """A cache manager beside its judge. Subclasses name the case; see `machine`."""

    case: Case

    def name(self, pick: int, among: list[int]) -> int:
        """Return the name that a pick stands for: one of those given, so that most of what is drawn can be done."""
        return among[pick % len(among)] if pick != STRANGER else STRANGER

    def live(self) -> list[int]:
        """Return the live sequences."""
        return sorted(self.world.state.sequences)

    def planned(self) -> list[int]:
        """Return the sequences that have something to launch."""
        return [name for name in self.live() if self.world.state.sequences[name].planned]

    def able(self) -> list[int]:
        """Return the launches that the device may execute now."""
        return [launch.id for launch in self.world.state.launches if ready(self.world.state, launch)]

    @rule(name=st.integers(0, 3), tokens=TOKENS)
    def add(self, name: int, tokens: int) -> None:
        """Start a sequence."""
        self.step(Add(name, tokens))

    @precondition(lambda self: bool(self.live()))
    @rule(batch=BATCHES)
    def extend(self, batch: list[tuple[int, int]]) -> None:
        """Make room."""
        self.step(Extend(tuple({self.name(pick, self.live()): count for pick, count in batch}.items())))

    @precondition(lambda self: bool(self.live()))
    @rule(parent=PICKS, child=st.integers(0, 3))
    def fork(self, parent: int, child: int) -> None:
        """Fork."""
        self.step(Fork(self.name(parent, self.live()), child))

    @precondition(lambda self: bool(self.planned()))
    @rule(batch=SUBMISSIONS, stream=st.integers(0, 2))
    def launch(self, batch: list[tuple[int, int]], stream: int) -> None:
        """Submit a step of what is planned, all of it or a part."""
        sequences = self.world.state.sequences
        rows = {self.name(pick, self.planned()): count for pick, count in batch}
        for name, count in rows.items():
            rows[name] = sequences[name].planned if count == ALL and name in sequences else count
        self.step(Submit(tuple(rows.items()), stream % self.case.config.streams))

    @precondition(lambda self: bool(self.able()))
    @rule(pick=st.integers(0, 3))
    def execute(self, pick: int) -> None:
        """Let the device do a launch."""
        self.step(Execute(self.name(pick, self.able())))

    @precondition(lambda self: bool(self.world.state.issued))
    @rule(pick=st.integers(0, 7))
    def retire(self, pick: int) -> None:
        """Deliver a completion: the newest that can come, or an older one, a second time, or of none that ever was."""
        state = self.world.state
        due = [launch for launch in range(state.issued + 1, 0, -1) if possible(state, Retire(launch))]
        self.step(Retire(due[(pick + 1) % len(due)]))

    @precondition(lambda self: bool(self.live()))
    @rule(pick=PICKS)
    def release(self, pick: int) -> None:
        """Let a sequence go."""
        self.step(Release(self.name(pick, self.live())))


class SharingMachine(CacheMachine):
    """The same with prefixes shared."""

    @rule(name=st.integers(0, 3), ids=IDS, salt=SALTS)
    def add_prompt(self, name: int, ids: list[int], salt: int) -> None:
        """Start a sequence by its ids."""
        self.step(Add(name, tuple(ids), salt))

    @precondition(lambda self: bool(self.live()))
    @rule(batch=TELLINGS, retention=st.sampled_from((0, 0, 1, 3, 4)))
    def publish(self, batch: list[tuple[int, int, list[int]]], retention: int) -> None:
        """Tell the next ids: so many, drawn ones and then 0; where an id was told before, that one."""
        state, strangers, wished = self.world.state, [], {}
        for pick, count, drawn in batch:
            name = self.name(pick, self.live())
            if name == STRANGER:
                strangers = [(name, ())]
                continue
            unknown = state.sequences[name].allocated - len(state.sequences[name].known)
            length = min(count, unknown)
            wished[name] = (*drawn, *[0] * length)[:length]
        self.step(Publish((*truly(state, wished), *strangers), retention))

    @rule(handle=st.integers(1, 2), ids=IDS, salt=SALTS)
    def pin(self, handle: int, ids: list[int], salt: int) -> None:
        """Pin a prefix."""
        self.step(Pin(handle, tuple(ids), salt))

    @rule(handle=st.integers(1, 2))
    def unpin(self, handle: int) -> None:
        """Let a pin go."""
        self.step(Unpin(handle))

    @precondition(lambda self: any(sequence.known for sequence in self.world.state.sequences.values()))
    @rule()
    def clear(self) -> None:
        """Change the weights."""
        self.step(Clear())


def machine(case: Case) -> type[CacheMachine]:
    """Return the state machine of a case: also a test, as `machine(case).TestCase`."""
    try:
        sharing = case.start().manager.shares_prefixes
    except Broken:  # it can't be made, which its first example says
        sharing = False
    kind = SharingMachine if sharing else CacheMachine
    return type("Machine", (kind,), {"case": case})


def hunt(
    case: Startable,
    *,
    machine_of: Callable[[Any], Any] = machine,
    number: int = 0,
    examples: int = 200,
    seconds: float = math.inf,
    progress: Callable[[Hunted], None] = lambda _: None,
) -> Finding | None:
    """Let Hypothesis look for a broken rule, in rounds, until so many examples are tried or time is up.

    `machine_of` gives the state machine of the case. Return what it found, shrunk. One number is one hunt: nothing is
    kept from one to the next.
    """
    began, operations = time.monotonic(), 0
    for done in range(0, examples, ROUND_EXAMPLES):
        kind, count = machine_of(case), min(ROUND_EXAMPLES, examples - done)
        with _nothing_left_behind():
            finding = _round(kind, f"{number} {done}", count)
        operations += kind.operations
        progress(Hunted(done + count, operations, time.monotonic() - began))
        if finding:
            return shrink(finding)
        if time.monotonic() - began > seconds:
            break
    return None


@contextmanager
def _nothing_left_behind() -> Iterator[None]:
    """Keep Hypothesis' cache of constants, which it writes without a database, too, out of the current folder."""
    with TemporaryDirectory() as folder:
        set_hypothesis_home_dir(folder)
        try:
            yield
        finally:
            set_hypothesis_home_dir(None)  # back to its default


def _round(kind: Any, seed_of_round: str, examples: int) -> Finding | None:
    seeded: Any = seed(seed_of_round)(kind)
    profile = settings(settings.get_profile("pagedkv-fuzz"), max_examples=examples)
    try:
        run_state_machine_as_test(seeded, settings=profile)
    except Broken as broken:
        return kind.finding or Finding(kind.case, (), broken)  # it could not even be made
    except Flaky:  # it broke a rule once, and held when the same was tried again
        found: Finding | None = kind.finding
        return found
    return None

"""A scheduler and the policy, side by side: the lock-step that all drivers of schedulers end in.

After each operation: the scheduler asked its cache for the same operations in the same order, and each was a step that
the spec of the cache allows, with every rule of a cache; plan, names and what has finished are equal; the rules of
scheduling hold; what is known of each request is equal, and the whole cache as in any lock-step.

The device is slow here: a launch is executed at the moment of its completion, as late as can be, and reads the rows
that the scheduler's cache shows then. All launches are on one stream, so an earlier moment would show the same
contents, and fewer faults. A launch that fails is executed, too: what it wrote must not matter.
"""

from collections.abc import Hashable, Mapping
from typing import Any

from . import operations, rules
from .alphabet import Execute
from .calls import call
from .canonical import hidden, in_order
from .lock_step import compare_rows, difference, same_refusal
from .refusals import Broken, Refused
from .requests import Engine, Flight, Job, Limits, RequestId
from .rules_scheduling import SCHEDULING, SchedulerStep
from .scheduler import Scheduler, Shown, ask, requests_of
from .scheduler_alphabet import KINDS, Complete, Fail, Operation, apply, arguments, describe
from .scheduler_progress import finish
from .serving import start
from .state import Config, Name, State
from .turn import Decision
from .views import observe

# Which rule is broken where the two decisions differ, in the order in which they are compared.
_PLANNED_BY = {
    "launch": "R-PRE-2",
    "rows": "R-PRE-2",
    "admitted": "R-CAP-4",
    "preempted": "R-PRE-1",
    "failed": "R-CAP-3",
    "forked": "R-COW-2",
}
_DECIDED_BY = {"names": "R-LIFE-7", "finished": "R-LIFE-7", "preempted": "R-PRE-1"}


class SchedulerLockStep:
    """A scheduler and the policy, side by side."""

    def __init__(self, config: Config, limits: Limits, scheduler: Scheduler) -> None:
        self.engine = start(config, limits)
        self.scheduler = scheduler
        self.offered: Decision | Refused | None = None  # the scheduler's last answer

    @property
    def state(self) -> State:
        """The cache of the policy."""
        return self.engine.cache

    def clone(self) -> "SchedulerLockStep":
        """Return an independent copy, to branch from."""
        twin = object.__new__(SchedulerLockStep)
        twin.engine, twin.scheduler, twin.offered = self.engine, call("clone", self.scheduler.clone), None
        return twin

    def fit(self, operation: Operation) -> Operation:
        """Return an operation as it is: what is compared with the spec is asked everything."""
        return operation

    def refusal(self, operation: Operation) -> Refused | None:
        """Return the policy's refusal of an operation, None if it would do it."""
        try:
            apply(self.engine, operation)
        except Refused as refused:
            return refused
        return None

    def step(self, operation: Operation) -> Decision | Refused:
        """Take one operation on both sides, and compare all that can be observed afterwards."""
        if isinstance(operation, Complete | Fail) and operation.ahead == 0 and self.engine.flights:
            self._execute(self.engine.flights[0])
        self.offered = None  # lest a crash shows the answer before
        given = arguments(self.engine, operation)
        self.offered = ask(self.scheduler, KINDS[type(operation)], given)
        choices = list(call("issued", self.scheduler.issued))
        old = self.engine
        decided: Decision | Refused
        try:
            new, decided = apply(old, operation, None if isinstance(self.offered, Refused) else choices)
        except Refused as refusal:
            new, decided = old, refusal
        same_refusal(lambda: describe(operation), decided, self.offered)
        self._check(SchedulerStep(old, operation, decided, new))
        self.engine = new
        self._same_decision(operation, decided)
        self.look()
        return decided

    def step_refused(self, operation: Operation, refusal: Refused) -> None:
        """Ask the scheduler for what the policy refuses; the caller looks afterwards whether something changed."""
        self.offered = None
        self.offered = ask(self.scheduler, KINDS[type(operation)], arguments(self.engine, operation))
        same_refusal(lambda: describe(operation), refusal, self.offered)
        if issued := list(call("issued", self.scheduler.issued)):
            raise Broken("R-TXN-1", f"{describe(operation)} was refused, and {issued} asked of the cache")

    def look(self) -> None:
        """Compare everything that the scheduler and its cache show with the engine."""
        if found := call("observe", difference, self.scheduler, observe(self.engine.cache)):
            raise Broken(*found)
        shown, right = call("requests", self.scheduler.requests), requests_of(self.engine)
        if shown != right:
            raise _differing(shown, right)

    def look_ahead(self) -> None:
        """See that from here every request can be finished, by the policy alone. Errors: `Broken`."""
        finish(self.engine)

    def key(self, *, pairs: bool) -> Hashable:
        """Return what makes this world one with others: the engine, or what the scheduler hides as well.

        Sequences and requests are told apart by their ranks, so nothing but blocks and launches can be renamed.
        """
        engine = self.engine
        order = [name for job in engine.jobs.values() for name in job.samples]
        live = tuple(name for name in order if name in engine.cache.sequences)
        key, naming = in_order(engine.cache, live)
        numbers = {name: number for number, name in enumerate(order)}
        jobs = tuple([_job(job) for job in engine.jobs.values()])
        flights = tuple([_flight(engine, flight, numbers) for flight in engine.flights])
        prefixes = engine.cache.prefixes.items()
        found = sorted((key.root.salt, key.tokens, naming.blocks[entry.block]) for key, entry in prefixes)
        everything = (key, jobs, flights, engine.draining, tuple(found))
        if not pairs:
            return everything
        naming = naming._replace(sequences=numbers)
        return (everything, hidden(self.scheduler, naming, engine.cache))

    def own_calls(self) -> tuple[str, ...]:
        """Return what an adapter says that it called at the last operation: nothing, its state is shown."""
        return ()

    def blocks(self) -> tuple[int, int, int]:
        """Return how many blocks are free or idle, held, and quarantined."""
        shown = observe(self.state)
        return len(shown.free) + len(shown.idle), len(shown.references), len(shown.quarantined)

    def _execute(self, flight: Flight) -> None:
        """Let the device do a launch; what it reads is judged."""
        launch = next(launch for launch in self.state.launches if launch.id == flight.launch)
        if launch.executed:
            return
        rows = call("rows_read", self.scheduler.rows_read, launch.id)
        compare_rows(launch, tuple([tuple([int(block) for block in row]) for row in rows]))
        new, outcome = operations.execute(self.state, launch.id)
        rules.check(rules.Step(self.state, Execute(launch.id), outcome, new))
        self.engine = self.engine._replace(cache=new)

    def _check(self, step: SchedulerStep) -> None:
        """Check every rule of a cache on each of its steps, then those of scheduling."""
        for each in step.decision.steps:
            rules.check(rules.Step(each.old, each.operation, each.outcome, each.new))
        for rule in SCHEDULING.values():
            if rule.on is None or isinstance(step.operation, rule.on):
                for line in rule.predicate(step):
                    raise Broken(rule.name, line)

    def _same_decision(self, operation: Operation, decided: Decision | Refused) -> None:
        offered = self.offered
        if isinstance(decided, Refused) or not isinstance(offered, Decision):
            return
        for mine, theirs, judged_by in ((decided.plan, offered.plan, _PLANNED_BY), (decided, offered, _DECIDED_BY)):
            for field, rule in judged_by.items():
                said, right = getattr(theirs, field), getattr(mine, field)
                if said != right:
                    raise Broken(rule, f"{describe(operation)}: {field} {said}, by the policy {right}")


def _differing(shown: Mapping[RequestId, Shown], right: Mapping[RequestId, Shown]) -> Broken:
    """Return what is broken where a scheduler knows other things of its requests than the policy."""
    for id_ in right:
        if id_ not in shown or shown[id_] != right[id_]:
            said = shown.get(id_, "gone")
            unlike = isinstance(said, str) or _outputs(said) != _outputs(right[id_])
            rule = "R-LIFE-7" if unlike else "R-PRE-1"  # tokens, or placeholders and whether it runs
            return Broken(rule, f"request {id_} is {said}, by the policy {right[id_]}")
    return Broken("R-LIFE-7", f"requests {sorted(shown.keys() - right.keys())} have left, by the policy")


def _outputs(shown: Shown) -> dict[Name, tuple[int, ...]]:
    return {name: sample.outputs for name, sample in shown.samples.items()}


def _job(job: Job) -> tuple[Any, ...]:
    """Return what the future of a request depends on."""
    shape = (job.request.id, job.request.prompt, job.request.outputs, job.request.priority, job.request.salt)
    ids = not isinstance(job.request.prompt, int)
    samples = [(s.outputs if ids else len(s.outputs), s.pending, s.done) for s in job.samples.values()]
    return shape, tuple(samples)


def _flight(engine: Engine, flight: Flight, numbers: dict[int, int]) -> tuple[Any, ...]:
    """Return what the completion of a launch will bring, and to whom: none for what lives no more."""
    rows = [numbers[life[0]] if engine.lives(life) else -1 for life in flight.rows]
    return tuple(rows), tuple([numbers[life[0]] if engine.lives(life) else -1 for life in flight.takers])

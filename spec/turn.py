"""What an operation of a scheduler decides, and how it asks its cache: the parts of which the policy is made.

An operation of the scheduler is a *turn*: it asks the cache for this and that, puts down what has become of requests,
and ends in a `Decision`. `Turn.do` is the one way to the cache. Given the cache operations of an implementation as
`choices`, it holds them one by one to those that the policy asks for, and follows their outcomes, each of which the
spec of the cache checks in turn. So the policy is written once, and is both what a right scheduler does and the judge
of another. What was refused is no operation: a scheduler may find out in its own way whether something fits.
"""

from collections.abc import Iterable
from typing import NamedTuple

from .alphabet import Add, Fork, Operation, Publish, Release, Retire, apply, describe
from .outcome import Outcome
from .refusals import Broken
from .requests import Engine, Job, RequestId
from .state import LaunchId, Name, State

Choices = Iterable[tuple[Operation, Outcome]]  # what an implementation asked of its cache, and what it got


class Row(NamedTuple):
    """A sequence's part in a step; not its row of blocks."""

    name: Name
    start: int  # its first position
    length: int
    tokens: int  # that come of it: 1 where it reaches the end of what is known, one a sample behind a prompt


class Preemption(NamedTuple):
    """A request was put back to wait."""

    request: RequestId
    recompute: tuple[tuple[Name, int], ...]  # of each sample that is not done: positions 0 up to this, to compute anew


class Plan(NamedTuple):
    """A step: a launch as it is planned, and who comes and goes for it."""

    launch: LaunchId = 0  # 0: nothing was launched
    rows: tuple[Row, ...] = ()
    admitted: tuple[RequestId, ...] = ()
    preempted: tuple[Preemption, ...] = ()
    failed: tuple[RequestId, ...] = ()
    forked: tuple[tuple[Name, Name], ...] = ()  # (parent, child)


class CacheStep(NamedTuple):
    """A cache operation that the scheduler issued."""

    old: State
    operation: Operation
    outcome: Outcome
    new: State


class Decision(NamedTuple):
    """What came of an operation of the scheduler."""

    names: tuple[Name, ...] = ()  # given to the samples of a request, by `submit`
    plan: Plan = Plan()  # by `schedule`
    finished: tuple[RequestId, ...] = ()  # by `complete`
    preempted: tuple[Preemption, ...] = ()  # by `fail` and `preempt`
    steps: tuple[CacheStep, ...] = ()  # what was asked of the cache


Result = tuple[Engine, Decision]


class Turn:
    """An operation of the scheduler under way: the engine so far, and what was asked of the cache."""

    def __init__(self, engine: Engine, choices: Choices | None = None) -> None:
        self.engine = engine
        self.steps: list[CacheStep] = []
        self._choices = None if choices is None else iter(choices)

    def do(self, operation: Operation) -> Outcome:
        """Do a cache operation, as the implementation did, if it is followed."""
        choice = None
        if self._choices is not None:
            issued, choice = next(self._choices, (None, None))
            if issued != operation:
                raise _differing(issued, operation)
        old = self.engine.cache
        new, outcome = apply(old, operation, choice)
        self.engine = self.engine._replace(cache=new)
        self.steps.append(CacheStep(old, operation, outcome, new))
        return outcome

    def put(self, job: Job) -> None:
        """Keep what has become of a request."""
        self.engine = self.engine._replace(jobs={**self.engine.jobs, job.request.id: job})

    def let_go(self, job: Job) -> None:
        """Release every sequence of a request."""
        for name in job.samples:
            if name in self.engine.cache.sequences:
                self.do(Release(name))

    def preempt(self, job: Job) -> Preemption:
        """Put a request back to wait: its sequences and placeholders go, what is known stays (R-PRE-1)."""
        self.let_go(job)
        self.put(job._replace(samples={name: sample._replace(pending=0) for name, sample in job.samples.items()}))
        return Preemption(job.request.id, tuple((name, job.known(name)) for name in job.unfinished()))

    def leave(self, job: Job) -> None:
        """Let a request go for good."""
        self.let_go(job)
        rest = {id_: other for id_, other in self.engine.jobs.items() if id_ != job.request.id}
        self.engine = self.engine._replace(jobs=rest)

    def end(self) -> Engine:
        """Return the engine as it is now; the implementation must not have asked for more."""
        if self._choices is not None and (surplus := next(self._choices, None)):
            raise _differing(surplus[0], None)
        return self.engine


def _differing(issued: Operation | None, right: Operation | None) -> Broken:
    """Return what is broken where another operation was asked of the cache than the policy asks."""
    kinds = {type(issued), type(right)}
    rule = next((rule for kind, rule in _JUDGED_BY.items() if kind in kinds), "R-PRE-2")
    if rule == "R-PRE-3" and isinstance(right, Release):
        rule = "R-PRE-1"  # somebody was not let go
    said = [describe(operation) if operation else "nothing" for operation in (issued, right)]
    return Broken(rule, f"{said[0]} was asked of the cache; by the policy, {said[1]}")


# Which rule is broken where one of two operations that should be the same is of this kind: the first that is met.
_JUDGED_BY = {Publish: "R-HASH-4", Add: "R-CAP-4", Release: "R-PRE-3", Fork: "R-COW-2", Retire: "R-LIFE-4"}

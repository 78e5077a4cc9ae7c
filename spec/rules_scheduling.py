"""Rules of scheduling: who is let in, who must leave, what becomes of it, and what a late result may change.

Each is a predicate over a step of the scheduler: the engine before, the operation, what was decided, the engine after.
They have a book of their own, since what they look at is another thing; R-LIFE-7 stands in both. They are written apart
from the policy, and say less: it is one policy of many that would be right. R-PRE-3 alone asks the policy's `walk` and
`need`: what rows there would have been, and how many blocks they take. That it goes forward (the last part of R-PRE-3)
no single step can show; `scheduler_progress` does.
"""

from typing import NamedTuple

from .alphabet import Extend, Release
from .arithmetic import blocks_needed
from .refusals import Reason, Refused
from .requests import Engine, Job, RequestId, available, leaving
from .rule_book import Book, Lines, rule
from .scheduler_alphabet import Cancel, Complete, Drain, Fail, Operation, Schedule, Submit
from .scheduling import need, walk
from .state import Name
from .turn import CacheStep, Decision, Plan

SCHEDULING: Book = {}


class SchedulerStep(NamedTuple):
    """A transition of a scheduler."""

    old: Engine
    operation: Operation
    decided: Decision | Refused
    new: Engine

    @property
    def decision(self) -> Decision:
        """What was decided; nothing, where the operation was refused."""
        return Decision() if isinstance(self.decided, Refused) else self.decided


@rule("R-CAP-3", Submit, Schedule, book=SCHEDULING)
def what_can_never_fit(step: SchedulerStep) -> Lines:
    """What cannot fit an empty pool is refused when submitted; a lone request that outgrows the pool fails alone.

    And no watermark stands in the way where nothing runs.
    """
    config = step.new.cache.config
    if isinstance(step.operation, Submit):
        request = step.operation.request
        positions = request.prompt_length + request.outputs - 1
        fits = request.samples * blocks_needed(positions, config.block_size) <= config.blocks
        if not isinstance(step.decided, Refused) and not fits:
            yield f"{request} was taken in and can never fit {config.blocks} blocks"
        if isinstance(step.decided, Refused) and step.decided.reason is Reason.TOO_LONG and fits:
            yield f"{request} was refused as too long and would fit {config.blocks} blocks"
        return
    plan = step.decision.plan
    if plan.failed:
        others = [job.request.id for job in step.new.running() if job.request.id not in plan.admitted]
        if len(plan.failed) > 1 or others or step.old.flights or step.old.cache.quarantine:
            yield f"{plan.failed} failed, with {others} running and launches {step.old.flights} in flight"
        if step.old.jobs.keys() - step.new.jobs.keys() != set(plan.failed):
            yield f"{plan.failed} failed, and others left with it"
    if step.new.waiting() and not step.new.running() and not step.new.flights:
        first = step.new.waiting()[0]
        if not plan.preempted and not plan.failed and _room_for(first, step.new) <= available(step.new.cache):
            yield f"nothing runs, request {first.request.id} would fit, and it was not admitted"


def _room_for(job: Job, engine: Engine) -> int:
    return sum(blocks_needed(job.known(name), engine.cache.config.block_size) for name in job.beginnings())


@rule("R-CAP-4", book=SCHEDULING)
def no_hold_and_wait(step: SchedulerStep) -> Lines:
    """Who waits holds nothing, and who is let in is reserved in full, in rank order: there is no hold-and-wait.

    In full: a place for each sample that is not done, and blocks for all that is known. Nobody overtakes, and the
    watermark stays where anything else runs.
    """
    new = step.new
    for job in new.running():
        present = [name for name in job.unfinished() if name in new.cache.sequences]
        if len(present) != len(job.unfinished()) and not (len(present) == 1 and _fresh(job)):
            yield f"request {job.request.id} runs with {present} of {job.unfinished()}"
        if any(name in new.cache.sequences for name, sample in job.samples.items() if sample.done):
            yield f"request {job.request.id} holds blocks for a sample that is done"
        for name in present:
            known = job.request.prompt_length + len(job.samples[name].outputs)
            if new.cache.sequences[name].allocated < known - 1:
                yield f"sequence {name} knows {known} tokens and has room for {new.cache.sequences[name].allocated}"
    places = sum(len(job.unfinished()) for job in new.running())
    if places > new.limits.max_running:
        yield f"{places} sequences run, and {new.limits.max_running} may"
    if admitted := step.decision.plan.admitted:
        last = max(new.rank(new.jobs[id_]) for id_ in admitted)
        overtaken = [job.request.id for job in new.waiting() if new.rank(job) < last]
        if overtaken:
            yield f"{admitted} were admitted before {overtaken}, which wait"
        if len(new.running()) > 1 and available(new.cache) < new.limits.watermark_blocks:
            yield f"{admitted} were admitted, and {available(new.cache)} blocks are left of the watermark"


def _fresh(job: Job) -> bool:
    return not any(sample.outputs for sample in job.samples.values())


@rule("R-PRE-1", book=SCHEDULING)
def begun_anew(step: SchedulerStep) -> Lines:
    """Preemption clears every row, length and placeholder, and keeps what is known, all to be computed anew.

    From position 0, or the end of what is hit.
    """
    for job in step.new.waiting():
        if any(sample.pending for sample in job.samples.values()):
            yield f"request {job.request.id} waits and has tokens pending"
    for id_, recompute in (*step.decision.plan.preempted, *step.decision.preempted):
        if step.new.runs(step.new.jobs[id_]):
            yield f"request {id_} was preempted and has sequences left"
        kept = {name: sample.outputs for name, sample in step.old.jobs[id_].samples.items()}
        if {name: sample.outputs for name, sample in step.new.jobs[id_].samples.items()} != kept:
            yield f"request {id_} was preempted, and knows other tokens than before"
        prompt, unfinished = step.old.jobs[id_].request.prompt_length, step.old.jobs[id_].unfinished()
        if recompute != tuple((name, prompt + len(kept[name])) for name in unfinished):
            yield f"request {id_} was preempted, and is to compute {recompute} anew"
    yield from _wrong_beginnings(step)
    yield from _wrong_placeholders(step)


def _wrong_beginnings(step: SchedulerStep) -> Lines:
    for id_ in step.decision.plan.admitted:
        for name in step.old.jobs[id_].beginnings():
            known, sequence = step.old.jobs[id_].known(name), step.new.cache.sequences.get(name)
            if sequence is None:
                yield f"request {id_} was admitted without sequence {name}"
                continue
            launched = sum(row.length for row in step.decision.plan.rows if row.name == name)
            hits = sequence.launched - launched
            least_left = 1 if step.new.limits.prefix_cache else known
            if sequence.allocated != known or known - hits < least_left:
                yield f"sequence {name} knows {known} tokens and begins with {hits} of {sequence.allocated}"


def _wrong_placeholders(step: SchedulerStep) -> Lines:
    for job in step.new.running():
        for name, sample in job.samples.items():
            ahead = sum(name == taker for flight in step.new.flights for taker, _ in _live(step.new, flight.takers))
            if sample.pending != ahead:
                yield f"sequence {name} has {sample.pending} tokens pending and {ahead} in flight"


def _live(engine: Engine, lives: tuple[tuple[Name, int], ...]) -> list[tuple[Name, int]]:
    return [life for life in lives if engine.lives(life)]


@rule("R-PRE-2", Schedule, book=SCHEDULING)
def out_of_the_plan(step: SchedulerStep) -> Lines:
    """Who must leave is out of the plan whole: what is planned is what runs, is launched, and keeps to the budget.

    And nobody is let in beside it.
    """
    plan = step.decision.plan
    gone = {name for id_ in (*_victims(plan), *plan.failed) for name in step.old.jobs[id_].samples}
    if rows := [row for row in plan.rows if row.name in gone]:
        yield f"{rows} are planned for requests that were turned away"
    if sum(row.length for row in plan.rows) > step.new.limits.max_tokens_per_step:
        yield f"more than {step.new.limits.max_tokens_per_step} tokens are planned: {plan.rows}"
    if (plan.preempted or plan.failed) and plan.admitted:
        yield f"{plan.admitted} were admitted while {plan.preempted} had to leave"
    launched = step.new.cache.launches[-1] if plan.launch else None
    parts = [(part.sequence, part.start, part.stop - part.start) for part in launched.computations] if launched else []
    if parts != [(row.name, row.start, row.length) for row in plan.rows]:
        yield f"{plan.rows} are planned, and {parts} launched"
    if len(step.new.flights) > step.new.limits.steps_ahead:
        yield f"{len(step.new.flights)} launches are in flight"


@rule("R-PRE-3", Schedule, book=SCHEDULING)
def no_further_than_needed(step: SchedulerStep) -> Lines:
    """Preemption takes the last in rank, never the first, and stops once what is about to be available is enough.

    About to be: in quarantine, until launches in flight have retired. So the first of those that run goes on, and
    finishes in a bounded number of steps.
    """
    plan = step.decision.plan
    if not plan.preempted:
        return
    victims = _victims(plan)
    ranks = [step.old.rank(step.old.jobs[id_]) for id_ in victims]
    staying = [step.old.rank(job) for job in step.old.running() if job.request.id not in victims]
    if ranks != sorted(ranks, reverse=True) or not staying or max(staying) > ranks[-1]:
        yield f"{victims} were preempted, and others that come after them in rank stay"
    before = _before_the_last(step)
    if before is None:
        yield f"{victims} were preempted, and nothing of the last was released"
        return
    spared = {name for id_ in victims[:-1] for name in step.old.jobs[id_].samples}
    rows = [row for row in walk(step.old)[0] if row.name not in spared and not before.old.sequences[row.name].planned]
    if not rows or need(before.old, Extend(tuple((row.name, 1) for row in rows))) <= available(before.old) + leaving(
        before.old
    ):
        yield f"{victims} were preempted, the last of them without need"


def _victims(plan: Plan) -> list[RequestId]:
    return [each.request for each in plan.preempted]


def _before_the_last(step: SchedulerStep) -> CacheStep | None:
    """Return the step of the cache by which the last victim begins to leave."""
    last = step.old.jobs[step.decision.plan.preempted[-1].request].samples
    releases = [Release(name) for name in last]
    return next((each for each in step.decision.steps if each.operation in releases), None)


@rule("R-LIFE-7", book=SCHEDULING)
def of_its_own_epoch(step: SchedulerStep) -> Lines:
    """A result carries the epoch of its launch: its tokens go to the lives they were sampled for, and nowhere else.

    A result of an older epoch, or of a launch that has left, changes nothing; and nobody leaves but who has finished,
    failed, or was cancelled.
    """
    taking: set[Name] = set()
    if isinstance(step.operation, Complete) and len(step.new.flights) < len(step.old.flights):
        taking = {name for name, _ in _live(step.old, step.old.flights[0].takers)}
    for id_, job in step.new.jobs.items():
        old = step.old.jobs.get(id_)
        for name, sample in job.samples.items():
            before = old.samples[name].outputs if old and name in old.samples else ()
            if sample.outputs[: len(before)] != before or len(sample.outputs) != len(before) + (name in taking):
                yield f"sequence {name} had sampled {before}, and now {sample.outputs}"
    late = isinstance(step.operation, Complete | Fail) and len(step.new.flights) == len(step.old.flights)
    if late and step.new != step.old:
        yield f"{step.operation} is of a launch that has left, and changed something"
    expected = set(step.decision.finished) | set(step.decision.plan.failed)
    expected |= {step.operation.request} & step.old.jobs.keys() if isinstance(step.operation, Cancel) else set()
    if step.old.jobs.keys() - step.new.jobs.keys() != expected:
        yield f"{step.operation} let {step.old.jobs.keys() - step.new.jobs.keys()} go, to go were {expected}"
    if isinstance(step.operation, Drain) and step.new != step.old._replace(draining=True):
        yield "draining changed something else"

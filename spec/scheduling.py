"""The policy of the scheduler, as a function: which rows go into the next launch, who is let in, who must leave.

`schedule` is the whole of it, in five steps:

1. *Rows.* The running requests are walked in rank order, their sequences in name order, with a budget of tokens. A
   prompt (or what is computed anew after a preemption) gets a chunk, as much as is left of it and of the budget;
   otherwise a sequence that has outputs to come gets one position more.
2. *Room.* All that decode are extended together. Where blocks are short and those about to leave quarantine would do,
   the last row waits a step for them; else the last-ranked running request is preempted, whole; and again. A request
   that runs alone has nobody to take from: its row waits for what is in flight, and without that it fails, alone.
3. *Admission*, where step 2 turned nobody away. The waiting are taken in rank order, nobody overtakes, as long as
   there is budget, a place, and room for everything that is known of the request, with the watermark left (unless
   nothing runs). Nothing is held while waiting, and all that is needed is reserved at once (R-CAP-4).
4. *Launch* of all rows, in the order in which they were found.
5. *Forks.* A request of several samples parts when its prompt has been launched: every sample takes a token of it.

Given the cache operations of an implementation as `choices`, it follows them (`turn`), so that plans and caches on both
sides are compared for equality.

Sources: iteration-level scheduling, Yu et al., "Orca" (OSDI 2022); preemption by recompute, Kwon et al.,
"PagedAttention" (SOSP 2023); prompts in chunks beside decodes, Agrawal et al., "Sarathi-Serve" (OSDI 2024). Considered:
to fork in the schedule that follows; the prompt may have been completed by then and its one sequence be gone, if its
first token ended it.
"""

from collections.abc import Iterable

from . import operations
from .alphabet import Add, Extend, Fork, Submit, apply
from .arithmetic import blocks_needed
from .refusals import Refused
from .requests import Engine, Flight, Job, Life, RequestId, available, leaving
from .state import Name, Sequence, State
from .turn import Choices, Decision, Plan, Preemption, Result, Row, Turn


def schedule(engine: Engine, choices: Choices | None = None) -> Result:
    """Plan a step and launch it; an empty plan where as many launches are in flight as may be. Never refused."""
    turn = Turn(engine, choices)
    plan = Plan()
    if len(engine.flights) < engine.limits.steps_ahead:
        walked, budget = walk(engine)
        rows, plan = _make_room(turn, walked)
        turned_away = plan.preempted or len(rows) < len(walked)
        if not turned_away:
            new, admitted = _admit(turn, budget)
            rows, plan = rows + new, plan._replace(admitted=admitted)
        if rows:
            plan = _launch(turn, rows, plan)
    return turn.end(), Decision(plan=plan, steps=tuple(turn.steps))


def walk(engine: Engine) -> tuple[list[Row], int]:
    """1. Return the rows of the running requests, if there is room for all, and the budget that is left."""
    budget = engine.limits.max_tokens_per_step
    rows = []
    for job in engine.running():
        for name, sample in job.samples.items():
            sequence = engine.cache.sequences.get(name)
            if sequence and (sequence.planned or len(sample.outputs) + sample.pending < job.request.outputs):
                row = _row(name, sequence, budget)
                rows += [row] if row.length else []
                budget -= row.length
    return rows, budget


def _row(name: Name, sequence: Sequence, budget: int) -> Row:
    """Return the next chunk of a sequence, or its next position. It samples if nothing that is known is left then."""
    count = min(sequence.planned or 1, budget)
    return Row(name, sequence.launched, count, tokens=int(sequence.launched + count >= sequence.allocated))


def _make_room(turn: Turn, rows: list[Row]) -> tuple[list[Row], Plan]:
    """2. Extend the rows that decode, all that are left when those have gone for which there is no room."""
    preempted: list[Preemption] = []
    while growing := [row for row in rows if not turn.engine.cache.sequences[row.name].planned]:
        batch = Extend(tuple((row.name, 1) for row in growing))
        cache, running = turn.engine.cache, turn.engine.running()
        needed = need(cache, batch)
        if needed <= available(cache):
            turn.do(batch)
            break
        covered = needed <= available(cache) + leaving(cache)
        alone = len(running) == 1
        if covered or (alone and turn.engine.flights):
            rows = [row for row in rows if row is not growing[-1]]
        elif alone:
            turn.leave(running[0])
            return [], Plan(preempted=tuple(preempted), failed=(running[0].request.id,))
        else:
            victim = running[-1]
            rows = [row for row in rows if row.name not in victim.samples]
            preempted.append(turn.preempt(victim))
    return rows, Plan(preempted=tuple(preempted))


def need(cache: State, batch: Extend) -> int:
    """Return how many blocks a batch takes: asked of the function that takes them, in a pool without end (R-CAP-1)."""
    usable = cache.config.blocks
    without_end = frozenset(range(usable + 1, usable + 1 + 2 * len(batch.rows)))  # a row takes a copy and a block
    _, outcome = operations.extend(cache._replace(free=cache.free | without_end), batch.rows)
    return len(outcome.blocks)


def _admit(turn: Turn, budget: int) -> tuple[list[Row], tuple[RequestId, ...]]:
    """3. Let waiting requests in as long as the first of them fits."""
    rows: list[Row] = []
    admitted: list[RequestId] = []
    for job in turn.engine.waiting():
        if not budget or not _fits(turn.engine, job):
            break
        for name in job.beginnings():
            turn.do(begin(turn.engine, job, name))
            row = _row(name, turn.engine.cache.sequences[name], budget)
            rows += [row] if row.length else []
            budget -= row.length
        admitted.append(job.request.id)
    return rows, tuple(admitted)


def _fits(engine: Engine, job: Job) -> bool:
    """Whether there is a place for each sample of a request, and room for all that is known of them."""
    running = engine.running()
    places = engine.limits.max_running - sum(len(other.unfinished()) for other in running)
    reserve = engine.limits.watermark_blocks if running else 0
    return len(job.unfinished()) <= places and _available_after(engine, job) >= reserve


def _available_after(engine: Engine, job: Job) -> int:
    """Return how many blocks are available once a request has what it needs, below 0 if there are not so many.

    Of one sequence that is told by the function that takes them, which knows what it hits; several are reckoned as if
    they shared nothing.
    """
    first, *others = job.beginnings()
    if others:
        size = engine.cache.config.block_size
        return available(engine.cache) - sum(blocks_needed(job.known(name), size) for name in (first, *others))
    try:
        return available(apply(engine.cache, begin(engine, job, first))[0])
    except Refused:
        return -1


def begin(engine: Engine, job: Job, name: Name) -> Add:
    """Return how a sequence begins: by its tokens, where prefixes are shared and they are given, else by their number.

    All of them are computed but for what is hit; after a preemption, too (R-PRE-1).
    """
    tokens = job.tokens(name) if engine.limits.prefix_cache else None
    return Add(name, tokens or job.known(name), job.request.salt)


def _launch(turn: Turn, rows: list[Row], plan: Plan) -> Plan:
    """4. Launch the rows. 5. Fork what has launched the prompt of several samples."""
    launched = turn.do(Submit(tuple((row.name, row.length) for row in rows)))
    takers: list[Name] = []
    forked: list[tuple[Name, Name]] = []
    for at, row in enumerate(rows):
        if row.tokens:
            names = turn.engine.owner(row.name).unfinished()
            children = [name for name in names if name not in turn.engine.cache.sequences]
            forked += [(row.name, child) for child in children]
            takers += [row.name, *children]
            rows[at] = row._replace(tokens=1 + len(children))
    for parent, child in forked:
        turn.do(Fork(parent, child))
    for name in takers:
        job = turn.engine.owner(name)
        sample = job.samples[name]
        turn.put(job._replace(samples={**job.samples, name: sample._replace(pending=sample.pending + 1)}))
    flight = Flight(launched.launch, lives(turn.engine, [row.name for row in rows]), lives(turn.engine, takers))
    turn.engine = turn.engine._replace(flights=(*turn.engine.flights, flight))
    return plan._replace(launch=launched.launch, rows=tuple(rows), forked=tuple(forked))


def lives(engine: Engine, names: Iterable[Name]) -> tuple[Life, ...]:
    """Return sequences with the epochs that they are in."""
    return tuple((name, engine.cache.sequences[name].epoch) for name in names)

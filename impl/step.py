"""One iteration: from who runs and who waits to one launch (Orca, OSDI '22).

In this order, which is the policy; the spec says the same:

1. *Rows.* Running sequences in the order of their requests' ranks. One that is behind gets a chunk of what it knows
   (chunked prefill, Sarathi-Serve, OSDI '24), any other one more position, as long as the step's tokens last. A
   sequence whose last token is on its way gets no row.
2. *Room.* The decoding rows are extended together. Where blocks lack for that and those in quarantine would do, rows
   from the last-ranked on wait a step; else the last-ranked request is preempted whole, by recompute (vLLM, SOSP '23),
   and its rows leave the step (R-PRE-2, R-PRE-3). A request that runs alone is never preempted, for that would help
   nobody: it waits for its own launches, and fails if there is nothing to wait for.
3. *Admission*, where nobody had to give way: who waits, by rank, and nobody overtakes. All blocks for what it knows are
   taken at once (R-CAP-4). What it does not take is left to the running ones, down to the watermark.
4. *Launch* of all rows together.
5. *Forks*: a request whose prompt is launched goes on as all its samples, each of which gets a token of that launch.

Guarantees: the cache refuses nothing that is asked here, but for the extension of step 2. Cost: a dozen passes over the
batch and one call of each kind to the cache; whoever comes, leaves or is preempted costs its own blocks beside that.
"""

from dataclasses import dataclass, field

import numpy as np

from .arithmetic import blocks_needed
from .arrays import IndexArray, Int64Array, frozen
from .plans import NOTHING, Admission, Flight, Fork, Plan, Preemption
from .refusals import NoSpace
from .requests import Live
from .results import Added, Extension, Forked
from .running import Running
from .serving import Serving


@dataclass(slots=True)
class _Step:
    """What is settled of a step so far."""

    slots: IndexArray  # the rows
    counts: Int64Array
    decoding: Int64Array  # 1 where a row writes one position more, 0 where a part of what is known
    budget: int  # tokens that are left
    extension: Extension | None = None
    held_back: bool = False
    begun: list[Added | Forked] = field(default_factory=list)
    admitted: list[Admission] = field(default_factory=list)
    preempted: list[Preemption] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    forked: list[Fork] = field(default_factory=list)


def plan_step(serving: Serving) -> Plan:
    """Plan and launch one iteration. O(running sequences + blocks of those who come or leave)."""
    serving.running.tidy()
    step = _walk(serving.running, serving.limits.max_tokens_per_step)
    _make_room(serving, step)
    if serving.waiting and not (step.preempted or step.failed or step.held_back):
        _admit(serving, step)
    if not step.slots.size:
        if not step.preempted and not step.failed:
            return NOTHING
        return NOTHING._replace(preempted=tuple(step.preempted), failed=tuple(step.failed))
    return _launch(serving, step)


def _walk(running: Running, budget: int) -> _Step:
    """Give each running sequence its row, as long as the budget lasts."""
    order = running.order
    if not running.unfinished:  # all decode
        ready = running.more[order] > 0
        slots = (order if np.count_nonzero(ready) == order.size else order[ready])[:budget]
        ones = frozen(np.ones(slots.size, np.int64))
        return _Step(slots, ones, ones, budget - slots.size)
    behind = running.behind[order]
    decoding = ((behind == 0) & (running.more[order] > 0)).astype(np.int64)
    wanted = behind + decoding
    ends = np.cumsum(wanted)
    total = ends.item(-1)
    if total > budget:
        wanted = np.clip(budget - (ends - wanted), 0, wanted)
        total = budget
    rows = wanted.nonzero()[0]
    return _Step(order[rows], wanted[rows], decoding[rows], budget - total)


def _make_room(serving: Serving, step: _Step) -> None:
    """Extend the decoding rows, or as many of them as there is room for when others have given way."""
    running, cache = serving.running, serving.cache
    at = step.decoding.nonzero()[0]
    decoding = step.slots if at.size == step.slots.size else step.slots[at]
    if not decoding.size:
        return
    names = running.name[decoding]
    try:
        step.extension = cache.extend(names)
    except NoSpace:
        pass
    else:
        return
    need = cache.blocks_to_extend(names)
    rows = _make_way(serving, step, decoding, need)
    if decoding is step.slots:
        step.slots = decoding[:rows]
        step.counts = step.decoding = step.decoding[:rows]
    else:
        keep = running.life[step.slots] != 0
        keep[at[rows:]] = False
        step.slots, step.counts, step.decoding = step.slots[keep], step.counts[keep], step.decoding[keep]
    if rows:
        step.extension = cache.extend(names[:rows])


def _make_way(serving: Serving, step: _Step, decoding: IndexArray, need: Int64Array) -> int:
    """Let rows wait or requests give way until there is room; return how many decoding rows go on."""
    running, cache = serving.running, serving.cache
    rows = decoding.size
    while rows and need.item(rows - 1) > (available := cache.available):
        alone = serving.running_requests == 1
        in_time = cache.blocks - cache.counts.held  # what is there, and what will be when launches have retired
        if need.item(rows - 1) <= in_time or (alone and serving.flights):
            step.held_back = True
            return int(np.searchsorted(need[:rows], available, "right"))
        last = running.owner[running.order.item(-1)]
        assert last is not None, "a sequence that runs is a request's"
        if alone:
            serving.remove(last)
            step.failed.append(last.id)
        else:
            step.preempted.append(serving.preempt(last))
        running.tidy()
        rows = int(np.count_nonzero(running.life[decoding[:rows]]))  # what has left stood behind all others
    return rows


def _admit(serving: Serving, step: _Step) -> None:
    """Start requests that wait, by rank, until one has no room."""
    limits, running = serving.limits, serving.running
    slots: list[int] = []
    counts: list[int] = []
    while step.budget > 0 and (request := serving.waiting.first()) is not None:
        if running.sequences + request.sequences > limits.max_running or not _has_room(serving, request):
            break
        serving.waiting.pop()
        for slot, known in _start(serving, step, request):
            chunk = min(known, step.budget)
            if chunk:
                slots.append(slot)
                counts.append(chunk)
                step.budget -= chunk
    if slots:
        step.slots = np.concatenate((step.slots, np.array(slots, np.intp)))
        step.counts = np.concatenate((step.counts, np.array(counts, np.int64)))
        step.decoding = np.concatenate((step.decoding, np.zeros(len(slots), np.int64)))


def _has_room(serving: Serving, request: Live) -> bool:
    """Whether there are blocks for all that a request knows, and for the running ones to go on.

    To look for hits costs a pass over the prompt, and whoever waits is asked in every step. So it is left out where
    the answer is known: no more blocks can be hit than last time, but for those published since.
    """
    cache, spare = serving.cache, serving.limits.watermark_blocks if serving.running_requests else 0
    available = cache.available
    if request.need - (serving.published - request.need_seen) + spare > available:
        return False
    if not request.fresh and len(request.slots) > 1:  # reserved as if they shared nothing
        need = sum(blocks_needed(serving.known(slot), cache.block_size) for slot in request.slots)
    elif request.prompt is None:
        need = blocks_needed(_known_at_start(serving, request), cache.block_size)
    else:
        ids = serving.known_ids(request.slots[0]) if request.slots else request.prompt
        assert ids is not None, "its prompt is kept"
        need, available = cache.room(ids, request.salt)
    request.need, request.need_seen = need, serving.published
    return need + spare <= available


def _known_at_start(serving: Serving, request: Live) -> int:
    """Return how many tokens of a request's first sample are known."""
    return serving.known(request.slots[0]) if request.slots else request.prompt_tokens


def _start(serving: Serving, step: _Step, request: Live) -> list[tuple[int, int]]:
    """Let a request run; return the slots of the sequences added, each with how many tokens it has to launch."""
    running, cache = serving.running, serving.cache
    resumed = bool(request.slots)
    if not resumed:
        running.open(request)
    started, total, hit_tokens = [], 0, 0
    for slot in request.slots[:1] if request.fresh else request.slots:
        known, ids = serving.known(slot), serving.known_ids(slot)
        added = cache.add(running.name.item(slot), known if ids is None else ids, request.salt)
        hits = added.hits * cache.block_size
        running.begin(slot, known - hits)
        step.begun.append(added)
        started.append((slot, known - hits))
        total += known
        hit_tokens += hits
    request.running = True
    serving.running_requests += 1
    running.sequences += len(request.slots)
    names = tuple(running.name.item(slot) for slot, _ in started)
    step.admitted.append(Admission(request.id, names, total, hit_tokens, resumed))
    return started


def _launch(serving: Serving, step: _Step) -> Plan:
    """Launch the rows, fork what has its prompt launched, and note who gets the tokens."""
    running = serving.running
    decode_only = step.decoding is step.counts
    launch = serving.cache.launch(running.name[step.slots], 1 if decode_only else step.counts)
    samples = running.launched(step.slots, step.counts)
    lives = running.life[step.slots]
    if decode_only:
        flight = Flight(step.slots, lives, step.decoding, step.slots, lives, ())
    else:
        rows = (samples > step.decoding).nonzero()[0].tolist()  # they end what was known at their start
        firsts = tuple(slot for slot in step.slots[rows].tolist() if _is_fresh(running, slot))
        if firsts:
            _fork(serving, step, firsts)
        receivers = _receivers(running, step.slots, samples, firsts)
        flight = Flight(step.slots, lives, step.decoding, receivers, running.life[receivers], firsts)
    serving.flights[launch.id] = flight
    return Plan(
        launch,
        step.counts,
        samples,
        step.extension,
        tuple(step.begun),
        tuple(step.admitted),
        tuple(step.preempted),
        tuple(step.failed),
        tuple(step.forked),
    )


def _is_fresh(running: Running, slot: int) -> bool:
    request = running.owner[slot]
    return request is not None and request.fresh


def _fork(serving: Serving, step: _Step, firsts: tuple[int, ...]) -> None:
    """Let each request whose prompt is launched go on as all its samples."""
    running = serving.running
    for parent in firsts:
        request = running.owner[parent]
        assert request is not None, "a sequence that runs is a request's"
        for slot in request.slots[1:]:
            fork = Fork(running.name.item(parent), running.name.item(slot))
            step.begun.append(serving.cache.fork(*fork))
            running.begin_like(parent, slot)
            step.forked.append(fork)


def _receivers(running: Running, slots: IndexArray, samples: Int64Array, firsts: tuple[int, ...]) -> IndexArray:
    """Return the slots that get a token each, in row order; a first launch's row gives one to each sample.

    `samples` is corrected where a row gives more than one.
    """
    siblings = {slot: owner.slots for slot in firsts if (owner := running.owner[slot]) and len(owner.slots) > 1}
    if not siblings:
        return slots[samples > 0]
    receivers: list[int] = []
    for row, slot in enumerate(slots.tolist()):
        if slot in siblings:
            samples[row] = len(siblings[slot])
            receivers += siblings[slot]
        elif samples[row]:
            receivers.append(slot)
    return np.array(receivers, np.intp)

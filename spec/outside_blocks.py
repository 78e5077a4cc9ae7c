"""Rules of blocks as seen from outside: who holds what, what a refusal leaves, what is lost, how much room there is."""

from collections import Counter

from .alphabet import Add, Clear, Extend, Fork, Publish, Release, Retire, Submit, Unpin, describe
from .arithmetic import blocks_needed
from .offers import Discipline, Feature
from .outside_book import OUTSIDE, OutsideStep
from .refusals import Reason, Refused
from .rule_book import HOST, Lines, rule
from .state import Block, Name


@rule("R-TXN-1", *HOST, book=OUTSIDE)
def atomic(step: OutsideStep) -> Lines:
    """A refusal changes no block table and no block that nobody holds; what is done changes no other's table."""
    what = describe(step.operation)
    if isinstance(step.answer, Refused):
        if step.after.tables != step.before.tables:
            yield f"{what} was refused and block tables changed"
        old, new = step.before.available(), step.after.available()
        if old is not None and new is not None and old != new:
            yield f"{what} was refused, and the blocks that nobody holds were {sorted(old)} and are {sorted(new)}"
        return
    named = _named(step)
    for name, row in step.rows_after.items():
        if name not in named and name in step.old.sequences and step.row(step.before, step.old, name) != row:
            old_row = step.row(step.before, step.old, name)
            yield f"{what} changed the block table of sequence {name} from {old_row} to {row}"


@rule("R-LIFE-4", Retire, book=OUTSIDE)
def completions_are_taken(step: OutsideStep) -> Lines:
    """A completion is always taken, whatever became of the sequences that it was for."""
    if isinstance(step.answer, Refused):
        yield f"{describe(step.operation)} was refused as {step.answer.reason}: it must always be possible"


@rule("R-CAP-1", Add, Extend, Fork, Submit, Publish, Clear, book=OUTSIDE)
def room_is_used(step: OutsideStep) -> Lines:
    """What makes sense is refused for want of space alone, and only where it needs more blocks than nobody holds.

    Nobody: no sequence, no pin, no planned copy; under *fence* no launch in flight either. A prefix index keeps what
    leads to such blocks, too, so with ids known and launches in flight this is not judged there. Who does not offer
    EXACT_SPACE answers for a sequence that is alone: for one that starts in an empty pool, and for one that goes on
    with a block to spare. Else a manager that refuses everything would be judged for nothing. Nor is it judged where a
    pin's blocks were not told.
    """
    answer = step.answer
    if not isinstance(answer, Refused):
        return
    if answer.reason not in (Reason.NO_SPACE, Reason.TOO_LONG) or not isinstance(step.operation, Add | Extend | Fork):
        yield f"{describe(step.operation)} was refused as {answer.reason}: nothing but want of space may be refused"
        return
    if not all(step.old.pins.values()):
        return
    fenced = step.claims.discipline is Discipline.FENCE
    if fenced and step.names and (step.old.launches or any(step.plans.values())):
        return
    held: set[Block] = {block for row in step.before.tables.values() for block in row}
    held.update(block for blocks in step.old.pins.values() for block in blocks)
    held.update(block for copies in step.plans.values() for copy in copies for block in (copy.source, copy.target))
    if fenced:
        held |= step.in_flight
    room, need = len({*step.claims.usable} - held), _need(step)
    if need + _spare(step) <= room:
        yield f"{describe(step.operation)} was refused: blocks needed: {need}, held by nobody: {room}"


@rule("R-EVICT-1", *HOST, book=OUTSIDE)
def what_is_held_is_not_evicted(step: OutsideStep) -> Lines:
    """Only blocks that nobody holds are evicted or free: none that a pin holds, or that this operation has just hit."""
    answer = step.answer
    if isinstance(answer, Refused):
        return
    hits = answer.hits if isinstance(step.operation, Add) else ()
    pinned = {block: handle for handle, blocks in step.new.pins.items() for block in blocks}
    for name, block in step.taken:
        if block in hits:
            yield f"block {block} was hit for sequence {name} and handed out to it as a new one as well"
        elif block in pinned:
            yield f"block {block} was handed out to sequence {name}, and pin {pinned[block]} holds it"
    for block in step.after.free or ():
        if block in pinned:
            yield f"block {block} is free, and pin {pinned[block]} holds it"
    held = {block: f"sequence {name}" for name, row in step.rows_after.items() for block in row}
    held |= {block: f"pin {handle}" for block, handle in pinned.items()}
    for block in step.after.cached or ():
        if block in held:
            yield f"block {block} may be evicted, and {held[block]} holds it"


@rule("R-OWN-3", *HOST, book=OUTSIDE)
def held_is_not_handed_out(step: OutsideStep) -> Lines:
    """No block is handed out, or free, that a sequence holds, and none twice: each edge is dropped exactly once."""
    seen: dict[Block, Name] = {}
    for name, block in step.taken:
        others = [other for other in step.holders.get(block, ()) if other != name]
        if others:
            yield f"block {block} was handed out to sequence {name}, and sequence {others[0]} holds it"
        if block in seen:
            yield f"block {block} was handed out to sequence {seen[block]} and to sequence {name}"
        seen[block] = name
    for name, row in step.rows_after.items():
        if len(set(row)) < len(row):
            yield f"the block table of sequence {name} names a block twice: {row}"
    yield from _free_once(step)


def _free_once(step: OutsideStep) -> Lines:
    """Yield what is told to be free and is held, or is told twice."""
    free = step.after.free or ()
    for block, count in Counter(free).items():
        if count > 1:
            yield f"block {block} is free {count} times"
    for name, row in step.rows_after.items():
        if both := sorted({*free} & {*row}):
            yield f"blocks {both} are free, and sequence {name} holds them"


@rule("R-OWN-4", *HOST, book=OUTSIDE)
def every_exit(step: OutsideStep) -> Lines:
    """Every exit lets all go: a release is never refused, and when all is over the whole pool can be had again.

    A refusal is an exit, too, and what it leaves behind shows in no block table. So where it is not told which blocks
    are free, all is released on a copy after each.
    """
    refused = isinstance(step.answer, Refused)
    if isinstance(step.answer, Refused) and isinstance(step.operation, Release | Unpin):
        yield f"{describe(step.operation)} was refused as {step.answer.reason}: it must always be possible"
    if step.new.launches or isinstance(step.operation, Submit):
        return
    available, blocks = step.after.available(), step.new.config.blocks
    if step.new.sequences or step.new.pins:
        needs_room = isinstance(step.operation, Add | Extend | Fork)
        if refused and needs_room and available is None and not step.probe():
            what = f"{describe(step.operation)} was refused; when all is released then"
            yield f"{what} a sequence as long as the whole pool finds no room"
    elif available is not None and step.after.cached is not None and len(available) < blocks:
        yield f"all is over, and neither free nor cached: {blocks - len(available)} of {blocks} blocks"
    elif not step.probe():
        yield "all is over, and a sequence as long as the whole pool finds no room"


@rule("R-OWN-5", *HOST, book=OUTSIDE)
def told_adds_up(step: OutsideStep) -> Lines:
    """What is told adds up: no block is free and cached or none at all; with nothing in flight each has its place."""
    free, cached = step.after.free, step.after.cached
    if free is None:
        return
    strangers = sorted({*free, *(cached or ())} - {*step.claims.usable})
    if strangers:
        usable = step.claims.usable
        what = f"blocks {strangers} are told to be free or cached, and are none of the pool"
        yield f"{what}, which is {usable[0]} to {usable[-1]}: see first_block"
    if both := sorted({*free} & {*(cached or ())}):
        yield f"blocks {both} are free and cached"
    told = cached is not None or not _may_cache(step)
    planned = any(step.plans.values()) or (not isinstance(step.answer, Refused) and step.answer.copies)
    if not told or planned or step.new.launches or not all(step.new.pins.values()):
        return
    held = {block for row in step.after.tables.values() for block in row}
    held.update(block for blocks in step.new.pins.values() for block in blocks)
    if lost := sorted({*step.claims.usable} - held - {*free, *(cached or ())}):
        yield f"blocks {lost} are not free, not cached and held by nobody, and nothing is in flight"


def _may_cache(step: OutsideStep) -> bool:
    return bool(step.names)


def _named(step: OutsideStep) -> set[Name]:
    """Return the sequences whose block tables an operation may change."""
    match step.operation:
        case Add(name) | Release(name) | Fork(_, name):
            return {name}
        case Extend(rows) | Submit(rows) | Publish(rows):
            return {name for name, _ in rows}
        case Retire():  # what is done may be found twice: a row is then pointed at the other block, as at `publish`
            left = {launch.id for launch in step.old.launches} - {launch.id for launch in step.new.launches}
            return {part.sequence for launch in step.old.launches if launch.id in left for part in launch.computations}
        case _:
            return set()


def _spare(step: OutsideStep) -> int:
    """Return how many blocks more than it needs an operation may want, by what its manager offers."""
    if Feature.EXACT_SPACE not in step.claims.lacks:
        return 0
    alone = len(step.old.sequences) <= (not isinstance(step.operation, Add))
    if not alone or step.old.launches or step.old.pins or any(step.plans.values()):
        return step.old.config.blocks + 1  # as many as there are not
    return 0 if isinstance(step.operation, Add) else 1


def _need(step: OutsideStep) -> int:
    """Return how many blocks an operation needs at most: no hit, and a copy of each tail that another may read."""
    size = step.old.config.block_size
    operation = step.operation
    if isinstance(operation, Add):
        return blocks_needed(operation.length, size)
    if isinstance(operation, Fork):  # which may copy at once
        return blocks_needed(step.old.sequences[operation.parent].allocated, size)
    need = 0
    sources = {copy.source for copies in step.plans.values() for copy in copies}
    if isinstance(operation, Extend):
        for name, count in operation.rows:
            allocated = step.old.sequences[name].allocated
            tail = step.row(step.before, step.old, name)[-1:]
            shared = any(len(step.holders[block]) > 1 or block in sources for block in tail)
            need += blocks_needed(allocated + count, size) - blocks_needed(allocated, size)
            need += shared and allocated % size > 0
    return need

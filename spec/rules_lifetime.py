"""Rules of lifetime: what is in flight, and what must not change, move or be given away until it has landed.

A device works later than its host. Between the submission of a launch and the moment the host learns of its end, the
blocks, rows and copies that it uses are in use, whatever became of the sequences that it was made for.
"""

from itertools import product

from .alphabet import Add, Execute, Fork, Retire, Submit
from .arithmetic import blocks_needed
from .outcome import Outcome
from .rule_book import HOST, Lines, Slot, Step, rule
from .state import Block, Computation, Copy, Launch, LaunchId, before, leads_to, planned_copies


@rule("R-LIFE-1", *HOST)
def no_early_reuse(step: Step) -> Lines:
    """No block is allocatable while a launch in flight reads or writes it.

    Allocatable is what is free or evictable.
    """
    allocatable = step.new.free | step.new.evictable.keys()
    for launch in step.new.launches:
        if not (allocatable.isdisjoint(launch.reads) and allocatable.isdisjoint(launch.writes)):
            early = allocatable & (launch.reads.keys() | launch.writes.keys())
            yield f"blocks {sorted(early)} are free and launch {launch.id} in flight touches them"


@rule("R-LIFE-2", Submit)
def ordered(step: Step) -> Lines:
    """Two launches in flight that touch a common slot, one writing, are ordered by their stream or by an edge."""
    size = step.new.config.block_size
    for newest in step.submitted:
        reads, writes = _slots(newest, size)
        if reads != {(block, at) for block, high in newest.reads.items() for at in range(high)}:
            yield f"launch {newest.id} reads other slots than it says"
        if writes != {(block, at) for block, (low, high) in newest.writes.items() for at in range(low, high)}:
            yield f"launch {newest.id} writes other slots than it says"
        earlier = before(step.new.launches, newest)
        for older in step.new.launches[:-1]:
            if older.id not in earlier:
                its_reads, its_writes = _slots(older, size)
                if writes & (its_reads | its_writes) or reads & its_writes:
                    yield f"launches {older.id} and {newest.id} conflict and are not ordered"


def _slots(launch: Launch, size: int) -> tuple[set[Slot], set[Slot]]:
    """Return the slots that a launch reads and writes, as its copies and rows have it."""
    reads = {(copy.source, at) for copy in launch.copies for at in range(copy.extent)}
    writes = {(copy.target, at) for copy in launch.copies for at in range(copy.extent)}
    for part in launch.computations:
        slots = [*product(part.row, range(size))][: part.stop]
        reads.update(slots)
        writes.update(slots[part.start :])
    return reads, writes


@rule("R-LIFE-3", *HOST)
def completion_alone_ends_a_launch(step: Step) -> Lines:
    """Cancelling is not completion: a launch leaves when it, or one after it, retires, and has been executed then."""
    if step.new.launches is step.old.launches and not isinstance(step.operation, Retire):
        return
    due: set[LaunchId] = set()
    if isinstance(step.operation, Retire):
        for launch in step.old.launches:
            if launch.id == step.operation.launch:
                due = before(step.old.launches, launch) | {launch.id}
    staying = {launch.id for launch in step.new.launches}
    gone = {launch.id: launch.executed for launch in step.old.launches if launch.id not in staying}
    if gone.keys() != due:
        yield f"{step.operation} ended {[*gone]}, to be ended {sorted(due)}"
    if not all(gone.values()):
        yield f"{step.operation} ended a launch that the device has not executed"


@rule("R-LIFE-4", *HOST)
def discharged(step: Step) -> Lines:
    """Every quarantine entry is discharged: something still keeps each block there; a second completion is nothing."""
    state = step.new
    if state.quarantine:
        oldest = min([launch.id for launch in state.launches], default=state.issued + 1)
        kept = {copy.source for copy in planned_copies(state)}
        if kept:
            keys = [key for key, entry in state.prefixes.items() if entry.block in kept]  # they keep what leads to them
            kept |= {e.block for key, e in state.prefixes.items() if any(leads_to(key, other) for other in keys)}
        copied = {copy.source for launch in step.submitted for copy in launch.copies}  # from here on that keeps them
        for block, fence in state.quarantine.items():
            if fence < oldest and block not in kept:
                yield f"block {block} is quarantined and nothing keeps it there"
            right = state.issued if block in copied else step.old.quarantine.get(block, state.issued)
            if fence != right:
                yield f"{step.operation} made block {block} wait for launch {fence}, not {right}"
    late = isinstance(step.operation, Retire) and all(e.id != step.operation.launch for e in step.old.launches)
    if late and state != step.old:
        yield f"{step.operation}: it had left already, and its completion changed something"


@rule("R-LIFE-5", *HOST)
def quarantine_is_no_capacity(step: Step) -> Lines:
    """Quarantined blocks are no capacity: what is taken was free or evictable, what no longer is was taken or found."""
    old, new = step.old, step.new
    if new.free is old.free and new.evictable is old.evictable and not step.taken:
        return
    gone = {*old.free, *old.evictable} - {*new.free, *new.evictable}
    found: set[Block] = set()
    if isinstance(step.decided, Outcome):
        found = {*step.decided.hits, *[merge.new for merge in step.decided.merges]}
    if gone - found != {*step.taken}:
        yield f"blocks {sorted(step.taken)} were taken, {sorted(found)} found, and {sorted(gone)} are available no more"


@rule("R-LIFE-6")
def rows_keep(step: Step) -> Lines:
    """A row is in flight like its blocks: what a device reads when it executes is what the launch captured.

    Here captured rows are values, and this says that they are the rows as they were at the launch, and stay; that an
    implementation's rows do is seen when the device reads them, by the lock-step. What else there is of a launch stays
    as well: until it leaves, it changes in nothing but that it is executed, by the device, once.
    """
    if step.new.launches is step.old.launches and not isinstance(step.operation, Execute):
        return
    executes = step.operation.launch if isinstance(step.operation, Execute) else 0
    staying = {launch.id for launch in step.new.launches}
    right = [
        Launch(*launch[:-1], executed=True) if launch.id == executes else launch
        for launch in step.old.launches
        if launch.id in staying
    ]
    right += [_captured(step, launch) for launch in step.submitted]
    if [*step.new.launches] != right:
        yield f"{step.operation} left in flight {step.new.launches}, not {right}"


def _captured(step: Step, launch: Launch) -> Launch:
    """Return a launch with what it has to capture: of each row all that is below the positions asked for, and its copy.

    Its order and its slots are judged by R-LIFE-2.
    """
    assert isinstance(step.operation, Submit)
    copies: list[Copy] = []
    parts: list[Computation] = []
    for name, count in step.operation.rows:
        epoch, text, start, row, copy, _, _ = step.old.sequences[name]
        stop = start + count
        needed = blocks_needed(stop, step.old.config.block_size)
        parts.append(Computation(name, epoch, start, stop, row[:needed], text[:stop]))
        copies += [copy] if copy else []
    _, _, after, _, _, reads, writes, _ = launch
    return Launch(step.old.issued + 1, step.operation.stream, after, tuple(copies), tuple(parts), reads, writes)


@rule("R-LIFE-7", *HOST)
def epochs(step: Step) -> Lines:
    """No epoch and no launch id is used twice, and a completion, of whatever epoch, changes no sequence."""
    old, new = step.old, step.new
    if new.epochs != old.epochs + isinstance(step.operation, _BEGINNINGS):
        yield f"{step.operation} took the epochs from {old.epochs} to {new.epochs}"
    if new.issued != old.issued + isinstance(step.operation, Submit):
        yield f"{step.operation} took the launches issued from {old.issued} to {new.issued}"
    for launch in step.submitted:
        if launch.id != new.issued:
            yield f"launch {launch.id} was submitted, and {new.issued} is the newest issued"
    if isinstance(step.operation, Retire) and new.sequences != old.sequences:
        yield f"{step.operation} changed a sequence"
    for name, sequence in step.changed.items():
        was = old.sequences.get(name)
        if sequence.epoch != (old.epochs if was is None else was.epoch):
            yield f"sequence {name} is of epoch {sequence.epoch}, which is not {'new' if was is None else 'its own'}"


_BEGINNINGS = (Add, Fork)


@rule("R-LIFE-8", *HOST)
def plans_are_protected(step: Step) -> Lines:
    """What is planned and not launched is protected like what is in flight: no planned copy's source can be taken."""
    for copy in planned_copies(step.new):
        if copy.source in step.new.free or copy.source in step.new.evictable:
            yield f"block {copy.source} may be taken and the planned {copy} reads it"
        if copy.target not in step.new.sequences[copy.sequence].row:
            yield f"the planned {copy} fills a block that its sequence does not hold"

"""Rules of lifetime: what is in flight, and what must not change, move or be given away until it has landed.

A device works later than its host. Between the submission of a launch and the moment the host learns of its end, the
blocks, rows and copies that it uses are in use, whatever became of the sequences that it was made for.
"""

from itertools import product

from .alphabet import Add, Clear, Execute, Extend, Fork, Pin, Publish, Release, Retire, Submit, Unpin
from .outcome import Outcome
from .rule_book import HOST, Lines, Slot, Step, rule
from .state import Launch, LaunchId, before, leads_to, planned_copies


@rule("R-LIFE-1", *HOST)
def no_early_reuse(step: Step) -> Lines:
    """No block is allocatable while a launch in flight reads or writes it.

    Allocatable is what is free or evictable.
    """
    allocatable = step.new.free | step.new.evictable.keys()
    for launch in step.new.launches:
        early = allocatable & (launch.reads.keys() | launch.writes.keys())
        if early:
            yield f"blocks {sorted(early)} are free and launch {launch.id} in flight touches them"


@rule("R-LIFE-2", Submit)
def ordered(step: Step) -> Lines:
    """Two launches in flight that touch a common slot, one writing, are ordered by their stream or by an edge."""
    *others, newest = step.new.launches
    size = step.new.config.block_size
    reads, writes = _slots(newest, size)
    if reads != {(block, at) for block, high in newest.reads.items() for at in range(high)}:
        yield f"launch {newest.id} reads other slots than it says"
    if writes != {(block, at) for block, (low, high) in newest.writes.items() for at in range(low, high)}:
        yield f"launch {newest.id} writes other slots than it says"
    earlier = before(step.new.launches, newest)
    for older in others:
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


@rule("R-LIFE-3", Add, Extend, Fork, Submit, Release, Retire, Publish, Pin, Unpin, Clear)
def completion_alone_ends_a_launch(step: Step) -> Lines:
    """Cancelling is not completion: a launch leaves when it, or one after it, retires, and has been executed then."""
    due: set[LaunchId] = set()
    if step.new.launches is step.old.launches and not isinstance(step.operation, Retire):
        return
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
        keys = [key for key, entry in state.prefixes.items() if entry.block in kept]  # they keep what leads to them
        kept |= {e.block for key, e in state.prefixes.items() if any(leads_to(key, other) for other in keys)}
        for block, fence in state.quarantine.items():
            if fence < oldest and block not in kept:
                yield f"block {block} is quarantined and nothing keeps it there"
            if fence > state.issued:
                yield f"block {block} waits for a launch that was never issued"
            if step.old.quarantine.get(block, fence) != fence and not isinstance(step.operation, Submit):
                yield f"{step.operation} made block {block} wait for another launch"
    late = isinstance(step.operation, Retire) and all(e.id != step.operation.launch for e in step.old.launches)
    if late and state != step.old:
        yield f"{step.operation}: it had left already, and its completion changed something"


@rule("R-LIFE-5", Add, Extend)
def quarantine_is_no_capacity(step: Step) -> Lines:
    """Quarantined blocks are no capacity: what is taken was free or evictable, what no longer is was taken or hit."""
    available, left = (state.free | state.evictable.keys() for state in (step.old, step.new))
    hits = step.decided.hits if isinstance(step.decided, Outcome) else ()
    if set(step.taken) != available - left - set(hits):
        gone = sorted(available - left)
        yield f"blocks {sorted(step.taken)} were taken, {sorted(hits)} hit, and {gone} are available no more"


@rule("R-LIFE-6")
def rows_keep(step: Step) -> Lines:
    """A row is in flight like its blocks: what a device reads when it executes is what the launch captured.

    Here captured rows are values, and this says that they stay; that an implementation's rows do is seen when the
    device reads them, by the lock-step.
    """
    if step.new.launches is step.old.launches:
        return
    old = {launch.id: launch for launch in step.old.launches}
    for launch in step.new.launches:
        before_it = old.get(launch.id, launch)
        if before_it is not launch and before_it._replace(executed=launch.executed) != launch:
            yield f"launch {launch.id} changed while it was in flight"
        its_own = isinstance(step.operation, Execute) and step.operation.launch == launch.id
        if before_it.executed != launch.executed and not its_own:
            yield f"launch {launch.id} was executed by {step.operation}"


@rule("R-LIFE-7", Add, Extend, Fork, Submit, Retire, Publish)
def epochs(step: Step) -> Lines:
    """A namesake is a new epoch, and a completion, of whatever epoch, changes no sequence."""
    if isinstance(step.operation, Retire) and step.new.sequences != step.old.sequences:
        yield f"{step.operation} changed a sequence"
    for name, sequence in step.changed.items():
        old = step.old.sequences.get(name)
        if old is None and (sequence.epoch != step.old.epochs or step.new.epochs != step.old.epochs + 1):
            yield f"sequence {name} began in an epoch that is not new"
        if old is not None and sequence.epoch != old.epoch:
            yield f"{step.operation} changed the epoch of sequence {name}"


@rule("R-LIFE-8", *HOST)
def plans_are_protected(step: Step) -> Lines:
    """What is planned and not launched is protected like what is in flight: no planned copy's source can be taken."""
    for copy in planned_copies(step.new):
        if copy.source in step.new.free or copy.source in step.new.evictable:
            yield f"block {copy.source} may be taken and the planned {copy} reads it"
        if copy.target not in step.new.sequences[copy.sequence].row:
            yield f"the planned {copy} fills a block that its sequence does not hold"

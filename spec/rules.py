"""The rules of a paged KV cache, each a named predicate with its sentence.

Two kinds. A *state rule* looks at one moment. A *step rule* looks at a transition: the state before, the operation,
what was decided, the state after. A predicate yields a line for each place where the rule does not hold; no line, and
it holds. `check` runs them all and raises `Broken` at the first.

The predicates are written apart from the operations on purpose: the operations say how, these say what must be true
whatever the how. The exhaustive driver evaluates every rule on every reachable state of a small world, so what is
said here has been tried on all of them. The sentences are the project's own copy of the rules; `README.md` beside this
file lists them with the operations.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import NamedTuple

from .alphabet import KINDS, Add, Execute, Extend, Fork, Operation, Release, Retire, Submit
from .arithmetic import blocks_needed, locate
from .operations import Outcome
from .refusals import Broken, Reason, Refused
from .state import NULL, Block, Copy, Launch, LaunchId, Name, Sequence, State, before, planned_copies, written

Edge = tuple[Name, Block]


class Step:
    """A transition, with what several rules need worked out once."""

    def __init__(self, old: State, operation: Operation, decided: Outcome | Refused, new: State) -> None:
        self.old = old
        self.operation = operation
        self.decided = decided
        self.new = new

    @cached_property
    def old_edges(self) -> set[Edge]:
        """Holder edges before."""
        return edges(self.old)

    @cached_property
    def new_edges(self) -> set[Edge]:
        """Holder edges after."""
        return edges(self.new)

    @cached_property
    def taken(self) -> tuple[Block, ...]:
        """Blocks that the operation took."""
        return self.decided.blocks if isinstance(self.decided, Outcome) else ()


def edges(state: State) -> set[Edge]:
    """Return the holder edges of a state: who holds what."""
    return {(name, block) for name, sequence in state.sequences.items() for block in sequence.row}


Slot = tuple[Block, int]  # a block and an offset in it
Lines = Iterator[str]


class Rule(NamedTuple):
    """A rule: its name everywhere, its sentence, and the predicate over a step (state rules look at `step.new`)."""

    name: str
    sentence: str
    predicate: Callable[[Step], Lines]
    on: tuple[type, ...] | None  # the operations whose steps it can fail on; None: any that changes the state


RULES: dict[str, Rule] = {}


def rule(name: str, *on: type) -> Callable[[Callable[[Step], Lines]], Callable[[Step], Lines]]:
    """Register a predicate under its rule's name; its docstring begins with the sentence."""

    def register(predicate: Callable[[Step], Lines]) -> Callable[[Step], Lines]:
        sentence = (predicate.__doc__ or "").split("\n\n")[0]
        RULES[name] = Rule(name, " ".join(sentence.split()), predicate, on or None)
        return predicate

    return register


def check(step: Step) -> None:
    """Check every rule that bears on a step; raise `Broken` with the first that does not hold."""
    if isinstance(step.decided, Refused):
        space = step.decided.reason is Reason.NO_SPACE
        relevant: tuple[Rule, ...] = (RULES["R-TXN-1"], RULES["R-CAP-1"]) if space else (RULES["R-TXN-1"],)
    else:
        relevant = _RULES_ON[type(step.operation)]
    for each in relevant:
        for line in each.predicate(step):
            raise Broken(each.name, line)


# ---- the rule above the rules -----------------------------------------------------------------------------------


@rule("R-DATA", Execute)
def data(step: Step) -> Lines:
    """When a launch executes, every slot that it reads holds the KV of exactly the prefix that should be there."""
    size = step.new.config.block_size
    for launch in step.new.launches:
        if isinstance(step.operation, Execute) and launch.id == step.operation.launch:
            for part in launch.computations:
                for index, block in enumerate(part.row):
                    wanted = part.text[index * size : (index + 1) * size]
                    found = step.new.memory[block][: len(wanted)]
                    if found != wanted:
                        yield f"sequence {part.sequence} reads {found} in block {block}, not {wanted}"


# ---- ownership --------------------------------------------------------------------------------------------------


@rule("R-OWN-1")
def one_state(step: Step) -> Lines:
    """Every block is in exactly one state: free, held, quarantined, or reserved (the null block)."""
    state = step.new
    count = Counter([*state.free, *{block for _, block in step.new_edges}, *state.quarantine])
    if count != dict.fromkeys(range(1, state.config.blocks + 1), 1):
        for block in sorted({*range(1, state.config.blocks + 1), *count}):
            if count[block] != (1 <= block <= state.config.blocks):
                yield f"block {block} is in {count[block]} states"


@rule("R-OWN-2")
def one_edge(step: Step) -> Lines:
    """The references of a block are its holders, one a sequence; no row names a block twice."""
    for name, sequence in step.new.sequences.items():
        if len(set(sequence.row)) != len(sequence.row):
            yield f"the row of sequence {name} names a block twice: {sequence.row}"


@rule("R-OWN-3")
def dropped_once(step: Step) -> Lines:
    """Each edge is dropped exactly once: by the release of its sequence, or by the copy that takes its place."""
    dropped = step.old_edges - step.new_edges
    expected: set[Edge] = set()
    if isinstance(step.operation, Release):
        expected = {edge for edge in step.old_edges if edge[0] == step.operation.name}
    if isinstance(step.operation, Extend) and isinstance(step.decided, Outcome):
        expected = {(copy.sequence, copy.source) for copy in step.decided.copies}
    if dropped != expected:
        yield f"edges dropped {sorted(dropped)}, to be dropped {sorted(expected)}"


@rule("R-OWN-4")
def every_exit(step: Step) -> Lines:
    """Every exit drops all edges: with no sequence and nothing in flight, every block is free."""
    state = step.new
    if not state.sequences and not state.launches and len(state.free) != state.config.blocks:
        yield f"all is over and {state.config.blocks - len(state.free)} blocks are not free"


@rule("R-OWN-5")
def counters(step: Step) -> Lines:
    """Counters equal a walk over unique ids: free + held + quarantined = N."""
    state = step.new
    held = len({block for _, block in step.new_edges})
    if len(state.free) + held + len(state.quarantine) != state.config.blocks:
        yield f"{len(state.free)} free + {held} held + {len(state.quarantine)} quarantined is not {state.config.blocks}"


@rule("R-OWN-6", Release, Retire)
def recorded_ids(step: Step) -> Lines:
    """What is released is the id recorded when it was acquired: blocks become free out of a row or the quarantine."""
    mine = set(step.old.sequences[step.operation.name].row) if isinstance(step.operation, Release) else set()
    strangers = (step.new.free - step.old.free) - mine - step.old.quarantine.keys()
    if strangers:
        yield f"blocks {sorted(strangers)} became free out of nowhere"


@rule("R-TXN-1")
def atomic(step: Step) -> Lines:
    """An operation is atomic: refused, it changes nothing; done, it is done in full, and to what it names alone."""
    if isinstance(step.decided, Refused):
        if step.new != step.old:
            yield f"{step.operation} was refused and the state changed"
        return
    old, new, counts = step.old.sequences, step.new.sequences, _named(step.operation)
    for name in old.keys() | new.keys():
        changed = old.get(name) is not new.get(name) and old.get(name) != new.get(name)
        if changed != (name in counts):
            yield f"{step.operation} {'changed' if changed else 'left as it was'} sequence {name}"
    for name, count in counts.items():
        if isinstance(step.operation, Extend) and new[name].allocated != old[name].allocated + count:
            yield f"sequence {name} was not extended by {count}"
        if isinstance(step.operation, Submit) and new[name].launched != old[name].launched + count:
            yield f"sequence {name} was not launched by {count}"
    if not isinstance(step.operation, Execute) and step.new.memory is not step.old.memory:
        yield f"{step.operation} changed what slots hold, which is the device's to do"


def _named(operation: Operation) -> dict[Name, int]:
    """Return the sequences that an operation names as those it is done to, with the counts of a batch."""
    match operation:
        case Add(name) | Release(name) | Fork(_, name):
            return {name: 0}
        case Extend(rows) | Submit(rows):
            return dict(rows)
        case _:
            return {}


# ---- lifetime ---------------------------------------------------------------------------------------------------


@rule("R-LIFE-1")
def no_early_reuse(step: Step) -> Lines:
    """No block is allocatable while a launch in flight reads or writes it."""
    for launch in step.new.launches:
        early = step.new.free & (launch.reads.keys() | launch.writes.keys())
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
        slots = [(block, at) for block in part.row for at in range(size)][: part.stop]
        reads.update(slots)
        writes.update(slots[part.start :])
    return reads, writes


@rule("R-LIFE-3", Add, Extend, Fork, Submit, Release, Retire)
def completion_alone_ends_a_launch(step: Step) -> Lines:
    """Cancelling is not completion: a launch leaves when it, or one after it, retires, and has been executed then."""
    due: set[LaunchId] = set()
    if isinstance(step.operation, Retire):
        for launch in step.old.launches:
            if launch.id == step.operation.launch:
                due = before(step.old.launches, launch) | {launch.id}
    staying = {launch.id for launch in step.new.launches}
    gone = [launch for launch in step.old.launches if launch.id not in staying]
    if {launch.id for launch in gone} != due:
        yield f"{step.operation} ended {[launch.id for launch in gone]}, to be ended {sorted(due)}"
    if not all(launch.executed for launch in gone):
        yield f"{step.operation} ended a launch that the device has not executed"


@rule("R-LIFE-4")
def discharged(step: Step) -> Lines:
    """Every quarantine entry is discharged: something still keeps each block there; a second completion is nothing."""
    state = step.new
    if state.quarantine:
        oldest = min((launch.id for launch in state.launches), default=state.issued + 1)
        kept = {copy.source for copy in planned_copies(state)}
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
    """Quarantined blocks are not free capacity: what is taken was free, and what was free and is not, was taken."""
    if set(step.taken) != step.old.free - step.new.free:
        yield f"blocks {sorted(step.taken)} were taken, and {sorted(step.old.free - step.new.free)} are free no more"


@rule("R-LIFE-6")
def rows_keep(step: Step) -> Lines:
    """A row is in flight like its blocks: what a device reads when it executes is what the launch captured.

    Here captured rows are values, and this says that they stay; that an implementation's rows do is seen when the
    device reads them, by the lock-step.
    """
    old = {launch.id: launch for launch in step.old.launches}
    for launch in step.new.launches:
        before_it = old.get(launch.id, launch)
        if before_it is not launch and before_it._replace(executed=launch.executed) != launch:
            yield f"launch {launch.id} changed while it was in flight"
        its_own = isinstance(step.operation, Execute) and step.operation.launch == launch.id
        if before_it.executed != launch.executed and not its_own:
            yield f"launch {launch.id} was executed by {step.operation}"


@rule("R-LIFE-7", Add, Extend, Fork, Submit, Retire)
def epochs(step: Step) -> Lines:
    """A namesake is a new epoch, and a completion, of whatever epoch, changes no sequence."""
    if isinstance(step.operation, Retire) and step.new.sequences != step.old.sequences:
        yield f"{step.operation} changed a sequence"
    for name, sequence in step.new.sequences.items():
        old = step.old.sequences.get(name)
        if old is None and (sequence.epoch != step.old.epochs or step.new.epochs != step.old.epochs + 1):
            yield f"sequence {name} began in an epoch that is not new"
        if old is not None and sequence.epoch != old.epoch:
            yield f"{step.operation} changed the epoch of sequence {name}"


@rule("R-LIFE-8")
def plans_are_protected(step: Step) -> Lines:
    """What is planned and not launched is protected like what is in flight: no source of a planned copy is free."""
    for copy in planned_copies(step.new):
        if copy.source in step.new.free:
            yield f"block {copy.source} is free and the planned {copy} reads it"
        if copy.target not in step.new.sequences[copy.sequence].row:
            yield f"the planned {copy} fills a block that its sequence does not hold"


# ---- copy-on-write ----------------------------------------------------------------------------------------------


@rule("R-COW-1", Extend, Fork, Submit)
def sole_writer(step: Step) -> Lines:
    """A slot is written by the sole holder of its block: nobody else holds what is planned or launched for writing."""
    count = Counter(block for _, block in step.new_edges)
    for name, sequence in step.new.sequences.items():
        for block in _planned_blocks(sequence, step.new.config.block_size):
            if count[block] > 1:
                yield f"sequence {name} will write block {block}, which {count[block]} sequences hold"
    if isinstance(step.operation, Submit):
        for block in step.new.launches[-1].writes:
            if count[block] != 1:
                yield f"launch {step.new.launches[-1].id} writes block {block}, which {count[block]} sequences hold"


def _planned_blocks(sequence: Sequence, size: int) -> tuple[Block, ...]:
    return sequence.row[sequence.launched // size :] if sequence.planned else ()


@rule("R-COW-2", Fork, Extend)
def copied_by_the_first_writer(step: Step) -> Lines:
    """A fork adds one edge per distinct block; the first writer of a shared tail copies, the last holder does not."""
    if isinstance(step.operation, Fork):
        expected = {(step.operation.child, block) for block in step.old.sequences[step.operation.parent].row}
        if step.new_edges - step.old_edges != expected:
            yield f"the fork added the edges {sorted(step.new_edges - step.old_edges)}"
    if isinstance(step.operation, Extend) and isinstance(step.decided, Outcome):
        held = {block for _, block in step.new_edges}
        for copy in step.decided.copies:
            if copy.source not in held:
                yield f"{copy} was made though its sequence was the last holder"


@rule("R-COW-3", Submit, Extend)
def exact_copies(step: Step) -> Lines:
    """A copy comes before every write to what it reads or fills; copies have distinct targets and exact extents."""
    size = step.new.config.block_size
    for launch in step.new.launches:
        targets = [copy.target for copy in launch.copies]
        if len(set(targets)) < len(targets) or {copy.source for copy in launch.copies} & set(targets):
            yield f"the copies of launch {launch.id} overlap: {launch.copies}"
        starts = {part.sequence: part.start for part in launch.computations}
        for copy in launch.copies:
            if starts[copy.sequence] % size != copy.extent:
                yield f"{copy} does not end where its sequence writes on, at position {starts[copy.sequence]}"
            if launch.writes.get(copy.source, (copy.extent, 0))[0] < copy.extent:
                yield f"{copy} reads what its own launch writes"
    for name, sequence in step.new.sequences.items():
        if sequence.copy:
            index, extent = locate(sequence.launched, size)
            expected = Copy(name, sequence.copy.source, sequence.row[index], extent)
            if sequence.copy != expected:
                yield f"sequence {name} plans {sequence.copy}, not {expected}"
            if any(expected.target in (*launch.reads, *launch.writes) for launch in step.new.launches):
                yield f"{expected} fills a block that a launch in flight touches"


# ---- capacity and tables ----------------------------------------------------------------------------------------


@rule("R-CAP-1", Add, Extend)
def need_is_what_is_taken(step: Step) -> Lines:
    """What is taken is what the arithmetic says is needed, and only what exceeds the free blocks is refused."""
    assert isinstance(step.operation, Add | Extend)
    need = _need(step.old, step.operation, step.old_edges)
    if not isinstance(step.decided, Refused):
        if len(step.taken) != need:
            yield f"{len(step.taken)} blocks were taken and {need} needed"
    elif step.decided.reason is Reason.NO_SPACE and need <= len(step.old.free):
        yield f"refused for want of space, though {need} are needed and {len(step.old.free)} free"


def _need(state: State, operation: Add | Extend, held: set[Edge]) -> int:
    """Return how many blocks are needed: growth, and of k writers of a tail with r holders min(k, r - 1) copies."""
    size = state.config.block_size
    if isinstance(operation, Add):
        return blocks_needed(operation.tokens, size)
    growth = sum(
        blocks_needed(state.sequences[name].allocated + count, size) - len(state.sequences[name].row)
        for name, count in operation.rows
    )
    references = Counter(block for _, block in held)
    sequences = [state.sequences[name] for name, _ in operation.rows]
    writers = Counter(sequence.row[-1] for sequence in sequences if sequence.allocated % size)
    return growth + sum(min(count, references[block] - 1) for block, count in writers.items())


@rule("R-CAP-2")
def one_length_convention(step: Step) -> Lines:
    """A row has ceil(allocated / B) blocks, exact multiples too; launched <= allocated; what is written stays so."""
    for name, sequence in step.new.sequences.items():
        if len(sequence.row) != blocks_needed(sequence.allocated, step.new.config.block_size):
            yield f"sequence {name} has {len(sequence.row)} blocks for {sequence.allocated} positions"
        if not 0 <= sequence.launched <= sequence.allocated:
            yield f"sequence {name}: launched {sequence.launched} of {sequence.allocated}"
        old = step.old.sequences.get(name)
        if old is not None and isinstance(step.operation, Submit | Retire):
            least, now = written(step.old, old), written(step.new, sequence)
            if now < least or (now > least and isinstance(step.operation, Submit)):
                yield f"{step.operation} took sequence {name} from {least} to {now} positions written"


@rule("R-TAB-1", Submit)
def exact_tables(step: Step) -> Lines:
    """What a kernel sees has exactly ceil(len / B) valid entries."""
    for launch in step.new.launches:
        for part in launch.computations:
            valid = [block for block in part.row if 1 <= block <= step.new.config.blocks]
            if not len(valid) == len(part.row) == blocks_needed(part.stop, step.new.config.block_size):
                yield f"launch {launch.id} sees the row {part.row} for {part.stop} positions"


@rule("R-TAB-2", Extend, Submit)
def null_block_apart(step: Step) -> Lines:
    """The null block never aliases live data: no launch reads or writes it, and no copy names it."""
    for launch in step.new.launches:
        if NULL in launch.reads or NULL in launch.writes:
            yield f"launch {launch.id} touches the null block"
    for copy in (*planned_copies(step.new), *(copy for launch in step.new.launches for copy in launch.copies)):
        if NULL in (copy.source, copy.target):
            yield f"{copy} names the null block"


_RULES_ON: dict[type, tuple[Rule, ...]] = {
    kind: tuple(each for each in RULES.values() if each.on is None or kind in each.on) for kind in KINDS
}

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
from .arithmetic import blocks_needed
from .operations import Outcome, conflict
from .refusals import Broken, Reason, Refused
from .state import NULL, Block, LaunchId, Name, Sequence, State, before, planned_copies, written

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


Lines = Iterator[str]


class Rule(NamedTuple):
    """A rule: its name everywhere, its sentence, and the predicate over a step (state rules look at `step.new`)."""

    name: str
    sentence: str
    predicate: Callable[[Step], Lines]
    on: tuple[type, ...] | None  # the operations whose steps it can fail on; None: any that changes the state


RULES: dict[str, Rule] = {}


def rule(name: str, *on: type) -> Callable[[Callable[[Step], Lines]], Callable[[Step], Lines]]:
    """Register a predicate under its rule's name; its docstring is the sentence."""

    def register(predicate: Callable[[Step], Lines]) -> Callable[[Step], Lines]:
        RULES[name] = Rule(name, " ".join((predicate.__doc__ or "").split()), predicate, on or None)
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
    launch = next(launch for launch in step.new.launches if Execute(launch.id) == step.operation)
    for part in launch.computations:
        for index, block in enumerate(part.row):
            wanted = part.text[index * size : (index + 1) * size]
            found = step.new.memory[block][: len(wanted)]
            if found != wanted:
                yield f"sequence {part.sequence} in launch {launch.id} reads {found} in block {block}, not {wanted}"


# ---- ownership --------------------------------------------------------------------------------------------------


@rule("R-OWN-1")
def one_state(step: Step) -> Lines:
    """Every block is in exactly one state: free, held, quarantined, or reserved (the null block)."""
    state = step.new
    held = {block for _, block in step.new_edges}
    count = Counter([*state.free, *held, *state.quarantine])
    for block in range(1, state.config.blocks + 1):
        if count[block] != 1:
            yield f"block {block} is in {count[block]} states"
    if count[NULL]:
        yield "the null block is in use"


@rule("R-OWN-2")
def one_edge(step: Step) -> Lines:
    """The references of a block are its holder edges; an edge counts once, so a row names a block once."""
    for name, sequence in step.new.sequences.items():
        if len(set(sequence.row)) != len(sequence.row):
            yield f"the row of sequence {name} names a block twice: {sequence.row}"


@rule("R-OWN-3", Add, Extend, Fork, Submit, Execute, Retire, Release)
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


@rule("R-TXN-1", Add, Extend, Fork, Submit, Retire, Release)
def atomic(step: Step) -> Lines:
    """An operation is atomic: refused, it changes nothing; done, every row of its batch is done in full."""
    if isinstance(step.decided, Refused):
        if step.new != step.old:
            yield f"{step.operation} was refused and the state changed"
    elif isinstance(step.operation, Extend):
        for name, count in step.operation.rows:
            if step.new.sequences[name].allocated != step.old.sequences[name].allocated + count:
                yield f"sequence {name} was not extended by {count}"


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
    launches = step.new.launches
    for newer in launches:
        order = before(launches, newer)
        for older in launches:
            if older.id < newer.id and older.id not in order and conflict(older, newer):
                yield f"launches {older.id} and {newer.id} conflict and are not ordered"


@rule("R-LIFE-3", Release)
def cancelling_is_not_completing(step: Step) -> Lines:
    """Cancelling is not completion: what was submitted stays in flight when its sequence leaves."""
    if step.new.launches != step.old.launches:
        yield f"{step.operation} changed what is in flight"


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
    late = isinstance(step.operation, Retire) and all(e.id != step.operation.launch for e in step.old.launches)
    if late and state != step.old:
        yield f"{step.operation}: it had left already, and its completion changed something"


@rule("R-LIFE-5", Add, Extend)
def quarantine_is_no_capacity(step: Step) -> Lines:
    """Quarantined blocks are not free capacity: what is taken was free."""
    if not step.old.free.issuperset(step.taken):
        yield f"blocks {sorted(set(step.taken) - step.old.free)} were taken and not free"


@rule("R-LIFE-6", Submit, Execute)
def rows_keep(step: Step) -> Lines:
    """A row is in flight like its blocks: what a device reads when it executes is what the launch captured."""
    captured: dict[LaunchId, object] = {launch.id: launch.computations for launch in step.old.launches}
    for launch in step.new.launches:
        if captured.get(launch.id, launch.computations) != launch.computations:
            yield f"the rows of launch {launch.id} changed while it was in flight"


@rule("R-LIFE-7", Add, Fork, Retire)
def epochs(step: Step) -> Lines:
    """A namesake is a new epoch, and a completion, of whatever epoch, changes no sequence."""
    if isinstance(step.operation, Retire) and step.new.sequences != step.old.sequences:
        yield f"{step.operation} changed a sequence"
    used = {sequence.epoch for sequence in step.old.sequences.values()}
    used |= {part.epoch for launch in step.old.launches for part in launch.computations}
    for name in step.new.sequences.keys() - step.old.sequences.keys():
        if step.new.sequences[name].epoch in used:
            yield f"sequence {name} began in an epoch that was in use"


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
    """A slot is written by the sole holder of its block: planned positions lie in blocks that nobody else holds."""
    count = Counter(block for _, block in step.new_edges)
    for name, sequence in step.new.sequences.items():
        for block in _planned_blocks(sequence, step.new.config.block_size):
            if count[block] > 1:
                yield f"sequence {name} will write block {block}, which {count[block]} sequences hold"


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
    for launch in step.new.launches:
        targets = [copy.target for copy in launch.copies]
        if len(set(targets)) < len(targets) or {copy.source for copy in launch.copies} & set(targets):
            yield f"the copies of launch {launch.id} overlap: {launch.copies}"
        starts = {part.sequence: part.start for part in launch.computations}
        for copy in launch.copies:
            if starts[copy.sequence] % step.new.config.block_size != copy.extent:
                yield f"{copy} does not end where its sequence writes on, at position {starts[copy.sequence]}"
            if launch.writes.get(copy.source, (copy.extent, 0))[0] < copy.extent:
                yield f"{copy} reads what its own launch writes"


# ---- capacity and tables ----------------------------------------------------------------------------------------


@rule("R-CAP-1", Add, Extend)
def need_is_what_is_taken(step: Step) -> Lines:
    """What is taken is what the arithmetic says is needed, and only what exceeds the free blocks is refused."""
    if not isinstance(step.operation, Add | Extend):
        return
    refused = isinstance(step.decided, Refused)
    if refused and isinstance(step.decided, Refused) and step.decided.reason is not Reason.NO_SPACE:
        return
    need = _need(step.old, step.operation, step.old_edges)
    if refused and need <= len(step.old.free):
        yield f"refused for want of space, though {need} are needed and {len(step.old.free)} free"
    if not refused and len(step.taken) != need:
        yield f"{len(step.taken)} blocks were taken and {need} needed"


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
    """A row has ceil(allocated / B) blocks, exact multiples too; written <= launched <= allocated."""
    for name, sequence in step.new.sequences.items():
        if len(sequence.row) != blocks_needed(sequence.allocated, step.new.config.block_size):
            yield f"sequence {name} has {len(sequence.row)} blocks for {sequence.allocated} positions"
        if not 0 <= written(step.new, sequence) <= sequence.launched <= sequence.allocated:
            yield f"sequence {name}: launched {sequence.launched} of {sequence.allocated}"


@rule("R-TAB-1", Submit)
def exact_tables(step: Step) -> Lines:
    """What a kernel sees has exactly ceil(len / B) valid entries."""
    for launch in step.new.launches:
        for part in launch.computations:
            valid = [block for block in part.row if 1 <= block <= step.new.config.blocks]
            if not len(valid) == len(part.row) == blocks_needed(part.stop, step.new.config.block_size):
                yield f"launch {launch.id} sees the row {part.row} for {part.stop} positions"


@rule("R-TAB-2", Submit)
def null_block_apart(step: Step) -> Lines:
    """The null block never aliases live data: no launch reads or writes it, and no copy names it."""
    for launch in step.new.launches:
        if NULL in launch.reads or NULL in launch.writes:
            yield f"launch {launch.id} touches the null block"


_RULES_ON: dict[type, tuple[Rule, ...]] = {
    kind: tuple(each for each in RULES.values() if each.on is None or kind in each.on) for kind in KINDS
}

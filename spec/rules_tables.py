"""Rules of writing, room and tables: who may write a block, how many blocks there must be, what a kernel is shown.

Copy-on-write keeps a shared block as its holders know it; the capacity rules say that need is counted by one
convention; the table rules that a kernel finds exactly the blocks of its positions.
"""

from .alphabet import Add, Extend, Fork, Retire, Submit
from .arithmetic import blocks_needed, locate
from .outcome import Outcome
from .refusals import Reason, Refused
from .rule_book import HOST, Edge, Lines, Step, planned_blocks, rule
from .state import NULL, Block, Copy, Root, State, planned_copies, written


@rule("R-COW-1", Extend, Fork, Submit)
def sole_writer(step: Step) -> Lines:
    """A slot is written by the sole holder of its block: nobody else holds what is planned or launched for writing."""
    held = [block for _, block in step.new_edges]
    for name, sequence in step.new.sequences.items():
        for block in planned_blocks(sequence, step.new.config.block_size):
            if (count := held.count(block)) > 1:
                yield f"sequence {name} will write block {block}, which {count} sequences hold"
    for launch in step.submitted:
        for block in launch.writes:
            if (count := held.count(block)) != 1:
                yield f"launch {launch.id} writes block {block}, which {count} sequences hold"


@rule("R-COW-2", Fork, Extend)
def copied_by_the_first_writer(step: Step) -> Lines:
    """A fork adds one edge per distinct block; the first writer of a shared tail copies, the last holder does not."""
    if isinstance(step.operation, Fork):
        expected = {(step.operation.child, block) for block in step.old.sequences[step.operation.parent].row}
        if step.new_edges - step.old_edges != expected:
            yield f"the fork added the edges {sorted(step.new_edges - step.old_edges)}"
    if isinstance(step.operation, Extend) and isinstance(step.decided, Outcome):
        for copy in step.decided.copies:
            if copy.source not in step.held:
                yield f"{copy} was made though its sequence was the last holder"


@rule("R-COW-3", Submit, Extend)
def exact_copies(step: Step) -> Lines:
    """A copy comes before every write to what it reads or fills; copies have distinct targets and exact extents."""
    size = step.new.config.block_size
    for launch in step.submitted:
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


@rule("R-CAP-1", Add, Extend)
def need_is_what_is_taken(step: Step) -> Lines:
    """What is taken is what the arithmetic says is needed, and only what exceeds what is available is refused.

    Available is what is free or evictable; a hit that is idle counts once: as no need, and not as available.
    """
    assert isinstance(step.operation, Add | Extend)
    hits = _hits(step.old, step.operation) if isinstance(step.operation, Add) else set()
    need = _need(step.old, step.operation, step.old_edges) - len(hits)
    if not isinstance(step.decided, Refused):
        if len(step.taken) != need:
            yield f"{len(step.taken)} blocks were taken and {need} needed"
        return
    available = len(step.old.free) + len(step.old.evictable.keys() - hits)
    if step.decided.reason is Reason.NO_SPACE and need <= available:
        yield f"refused for want of space, though {need} are needed and {available} available"


def _hits(state: State, operation: Add) -> set[Block]:
    """Return what an `add` finds: the published blocks whose whole key it begins with and leaves a token behind."""
    tokens = () if isinstance(operation.tokens, int) else operation.tokens
    root = Root(operation.salt, state.weights)
    return {
        entry.block
        for key, entry in state.prefixes.items()
        if key.root == root and len(key.tokens) < len(tokens) and key.tokens == tokens[: len(key.tokens)]
    }


def _need(state: State, operation: Add | Extend, held: frozenset[Edge]) -> int:
    """Return how many blocks are needed: growth, and of k writers of a tail with r holders min(k, r - 1) copies."""
    size = state.config.block_size
    if isinstance(operation, Add):
        return blocks_needed(operation.length, size)
    growth = 0
    tails: list[Block] = []
    for name, count in operation.rows:
        sequence = state.sequences[name]
        growth += blocks_needed(sequence.allocated + count, size) - len(sequence.row)
        tails += sequence.row[-1:] if sequence.allocated % size else ()
    references = [block for _, block in held]
    return growth + sum([min(tails.count(tail), references.count(tail) - 1) for tail in set(tails)])


@rule("R-CAP-2", *HOST)
def one_length_convention(step: Step) -> Lines:
    """A row has ceil(allocated / B) blocks, exact multiples too; launched <= allocated; what is written stays so.

    What is written is looked at where launches come and go alone, on `launch` and `retire`: it takes a walk over all in
    flight for each sequence.
    """
    size = step.new.config.block_size
    for name, sequence in step.changed.items():
        if len(sequence.row) != blocks_needed(sequence.allocated, size):
            yield f"sequence {name} has {len(sequence.row)} blocks for {sequence.allocated} positions"
        if not 0 <= sequence.launched <= sequence.allocated:
            yield f"sequence {name}: launched {sequence.launched} of {sequence.allocated}"
    submits = isinstance(step.operation, Submit)
    if submits or isinstance(step.operation, Retire):
        for name in step.old.sequences.keys() & step.new.sequences.keys():
            least, now = written(step.old, step.old.sequences[name]), written(step.new, step.new.sequences[name])
            if now < least or (now > least and submits):
                yield f"{step.operation} took sequence {name} from {least} to {now} positions written"


@rule("R-TAB-1", Submit)
def exact_tables(step: Step) -> Lines:
    """What a kernel sees has exactly ceil(len / B) valid entries."""
    for launch in step.submitted:
        for part in launch.computations:
            valid = [block for block in part.row if 1 <= block <= step.new.config.blocks]
            if not len(valid) == len(part.row) == blocks_needed(part.stop, step.new.config.block_size):
                yield f"launch {launch.id} sees the row {part.row} for {part.stop} positions"


@rule("R-TAB-2", Extend, Submit)
def null_block_apart(step: Step) -> Lines:
    """The null block never aliases live data: no launch reads or writes it, and no copy names it."""
    copies = planned_copies(step.new)
    for launch in step.submitted:
        copies += launch.copies
        if NULL in launch.reads or NULL in launch.writes:
            yield f"launch {launch.id} touches the null block"
    for copy in copies:
        if NULL in (copy.source, copy.target):
            yield f"{copy} names the null block"

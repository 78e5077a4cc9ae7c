"""Rules of launches as seen from outside: what is read, what is in flight, what may be written.

What a launch touches is told by the block tables that it was given and by the copies that were asked for; what a slot
should hold, by the shadow. Of the disciplines, *fence* alone promises that nothing in flight is handed out.
"""

from .alphabet import Add, Execute, Extend, Fork, Submit
from .arithmetic import blocks_needed
from .counts import counted
from .offers import Discipline, Feature
from .outside_book import OUTSIDE, OutsideStep, blocks_of, is_inside, slots_of
from .refusals import Refused
from .rule_book import HOST, Lines, rule
from .state import Block, Content, Name, before


@rule("R-DATA", Execute, book=OUTSIDE)
def data(step: OutsideStep) -> Lines:
    """When a launch executes, every slot that it reads holds the KV of exactly the prefix that should be there."""
    size = step.new.config.block_size
    for launch in step.new.launches:
        if not isinstance(step.operation, Execute) or launch.id != step.operation.launch:
            continue
        for part in launch.computations:
            for position, wanted in enumerate(part.text):
                index, offset = divmod(position, size)
                held = step.new.memory.get(part.row[index], (None,) * size)[offset]
                if held != wanted:
                    what = f"position {held[1]} of epoch {held[0]}" if held else "nothing"
                    yield (
                        f"launch {launch.id}: position {position} of sequence {part.sequence} (epoch {wanted[0]}) "
                        f"is read from block {part.row[index]} slot {offset}, which holds {what}"
                    )


@rule("R-TAB-1", Add, Extend, Fork, book=OUTSIDE)
def room_for_each_position(step: OutsideStep) -> Lines:
    """A block table names a usable block for each position that its sequence has room for, hits first."""
    if isinstance(step.answer, Refused):
        return
    size = step.new.config.block_size
    match step.operation:
        case Add(name) | Fork(_, name):
            changed = [name]
        case Extend(rows):
            changed = [name for name, _ in rows]
        case _:
            changed = []
    for name in changed:
        positions = step.new.sequences[name].allocated
        row = step.rows_after[name]
        if len(row) < blocks_needed(positions, size) or any(block not in step.claims.usable for block in row):
            needed = f"{counted(blocks_needed(positions, size), 'block')} for {counted(positions, 'position')}"
            what = f"sequence {name} needs {needed}: {row}"
            yield f"{what}; the pool is {step.claims.usable[0]} to {step.claims.usable[-1]}"
        hits = step.answer.hits if isinstance(step.operation, Add) else ()
        if row[: len(hits)] != hits:
            yield f"sequence {name} was told to begin with blocks {hits}, and its block table is {row}"


@rule("R-LIFE-1", *HOST, book=OUTSIDE)
def no_early_reuse(step: OutsideStep) -> Lines:
    """Where *fence* is claimed, no block is handed out, or free, while a launch in flight reads or writes it."""
    if step.claims.discipline is not Discipline.FENCE or isinstance(step.answer, Refused):
        return
    for launch in step.new.launches:
        blocks = {*blocks_of(launch, step)}
        for name, block in step.taken:
            if block in blocks:
                yield f"block {block} was handed out to sequence {name} while launch {launch.id} in flight touches it"
        if early := sorted(blocks.intersection(step.after.free or ())):
            yield f"blocks {early} are free and launch {launch.id} in flight touches them"


@rule("R-LIFE-8", Add, Extend, Fork, book=OUTSIDE)
def planned_copies_keep_their_source(step: OutsideStep) -> Lines:
    """No block is handed out that a copy, asked for and not launched yet, has still to read.

    Where a launch takes all that is planned, the copy comes first in it, and this is not asked for.
    """
    if Feature.PARTIAL_STEPS in step.claims.lacks:
        return
    sources = {copy.source: copy for copies in step.plans.values() for copy in copies}
    for name, block in step.taken:
        if block in sources:
            what = f"block {block} was handed out to sequence {name}, and {sources[block]} has still to read it"
            yield f"{what} (if copies run in the step that asked for them, put PARTIAL_STEPS into not_offered)"


@rule("R-COW-3", Extend, Fork, book=OUTSIDE)
def copies_are_inside(step: OutsideStep) -> Lines:
    """A copy is for a sequence of its batch, between usable blocks, into one of its row, of at most a block."""
    if isinstance(step.answer, Refused) or not isinstance(step.operation, Extend | Fork):
        return
    operation = step.operation
    batch = {operation.child} if isinstance(operation, Fork) else {name for name, _ in operation.rows}
    for copy in step.answer.copies:
        if not is_inside(copy, batch, step.claims.usable, step.new.config.block_size):
            yield f"{copy} is not inside usable blocks, or for no sequence of the batch"
        elif copy.target not in step.rows_after[copy.sequence]:
            yield f"{copy} fills a block that its sequence does not hold"


@rule("R-COW-1", Submit, book=OUTSIDE)
def no_write_into_what_another_holds(step: OutsideStep) -> Lines:
    """No launch writes a slot where the block table of another live sequence has a position of other contents."""
    size = step.new.config.block_size
    if isinstance(step.answer, Refused):
        return
    held: dict[tuple[Block, int], list[tuple[Name, int, Content]]] = {}
    for name, row in step.rows_after.items():
        for position, content in enumerate(step.new.sequences[name].text[: len(row) * size]):
            held.setdefault((row[position // size], position % size), []).append((name, position, content))
    newest = step.new.launches[-1]
    for part, row in zip(newest.computations, step.rows[newest.id], strict=True):
        for position in range(part.start, min(part.stop, len(row) * size)):
            slot = (row[position // size], position % size)
            for name, at, content in held.get(slot, ()):
                if name != part.sequence and content != part.text[position]:
                    yield (
                        f"launch {newest.id} writes position {position} of sequence {part.sequence} into block "
                        f"{slot[0]} slot {slot[1]}, which is position {at} of sequence {name}"
                    )


@rule("R-LIFE-2", Submit, book=OUTSIDE)
def ordered(step: OutsideStep) -> Lines:
    """Two launches in flight that touch a common slot, one writing, are ordered by their stream or by an edge."""
    if isinstance(step.answer, Refused):
        return
    *others, newest = step.new.launches
    if strange := sorted(edge for edge in step.answer.after if not 1 <= edge < newest.id):
        yield f"launch {newest.id} waits for {strange}, which were never issued before it"
    earlier = before(step.new.launches, newest)
    unordered = [older for older in others if older.id not in earlier]
    if not unordered:
        return
    reads, writes = slots_of(newest, step)
    for older in unordered:
        its_reads, its_writes = slots_of(older, step)
        if common := sorted(writes & (its_reads | its_writes) | reads & its_writes):
            yield (
                f"launches {older.id} and {newest.id} both touch block {common[0][0]} slot {common[0][1]}, one writes "
                "it, and neither their stream nor an edge orders them"
            )

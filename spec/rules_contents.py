"""Rules of contents and ownership: what a launch reads, who holds a block, and that nothing happens by halves.

R-DATA stands above all others: whatever the bookkeeping says, what is read must be right. The ownership rules are why
it is: a block has one owner or is shared knowingly, and no edge is lost or dropped twice.
"""

from collections import Counter
from operator import attrgetter

from .alphabet import Clear, Execute, Extend, Publish, Release, Retire, Unpin
from .outcome import Outcome
from .refusals import Refused
from .rule_book import HOST, Edge, Lines, Step, rule
from .rule_effects import effect
from .state import Block, LaunchId, State


@rule("R-DATA", Execute)
def data(step: Step) -> Lines:
    """When a launch executes, every slot that it reads holds the KV of exactly the prefix that should be there."""
    size = step.new.config.block_size
    for launch in step.new.launches:
        if isinstance(step.operation, Execute) and launch.id == step.operation.launch:
            for part in launch.computations:
                for index, block in enumerate(part.row):
                    wanted = part.text[index * size : (index + 1) * size]
                    found = step.new.memory.get(block, ())[: len(wanted)]
                    if found != wanted:
                        yield f"sequence {part.sequence} reads {found} in block {block}, not {wanted}"


@rule("R-OWN-1", *HOST)
def one_state(step: Step) -> Lines:
    """Every block is in exactly one state: free, held, idle, quarantined, or reserved (the null block).

    Idle is published without holder: evictable, or waiting among the quarantined until no device work may touch it.
    """
    state = step.new
    blocks, states = range(1, state.config.blocks + 1), [*state.free, *step.held, *state.quarantine, *state.evictable]
    if sorted(states) != [*blocks]:
        count = Counter(states)
        for block in sorted({*blocks, *count}):
            if count[block] != (block in blocks):
                yield f"block {block} is in {count[block]} states"


@rule("R-OWN-2", *HOST)
def one_edge(step: Step) -> Lines:
    """The references of a block are its holders, one a sequence or pin; no row names a block twice."""
    for name, sequence in step.changed.items():
        if len(set(sequence.row)) != len(sequence.row):
            yield f"the row of sequence {name} names a block twice: {sequence.row}"
    for handle, blocks in step.new.pins.items():
        if len(set(blocks)) != len(blocks) or not blocks:
            yield f"pin {handle} holds {blocks}"


@rule("R-OWN-3", *HOST)
def dropped_once(step: Step) -> Lines:
    """Each edge is dropped exactly once: by the release of its holder, or by the block that takes its place."""
    dropped = step.old_edges - step.new_edges
    expected: set[Edge] = set()
    if isinstance(step.operation, Release):
        expected = {edge for edge in step.old_edges if edge[0] == step.operation.name}
    if isinstance(step.operation, Extend) and isinstance(step.decided, Outcome):
        expected = {(copy.sequence, copy.source) for copy in step.decided.copies}
    if isinstance(step.operation, Publish) and isinstance(step.decided, Outcome):
        expected = {(merge.sequence, merge.old) for merge in step.decided.merges}
    if dropped != expected:
        yield f"edges dropped {sorted(dropped)}, to be dropped {sorted(expected)}"
    if not step.old.pins:
        return
    unpinned = {handle for handle, blocks in step.old.pins.items() if step.new.pins.get(handle) != blocks}
    due = {step.operation.handle} if isinstance(step.operation, Unpin) else set()
    if unpinned != (set(step.old.pins) if isinstance(step.operation, Clear) else due):
        yield f"{step.operation} dropped or changed the pins {sorted(unpinned)}"


@rule("R-OWN-4", *HOST)
def every_exit(step: Step) -> Lines:
    """Every exit drops all edges: with no sequence, no pin and nothing in flight, free + idle = N."""
    state = step.new
    if not (state.sequences or state.pins or state.launches):
        missing = state.config.blocks - len(state.free) - len(state.evictable)
        if missing:
            yield f"all is over and {missing} blocks are neither free nor evictable"


@rule("R-OWN-5", *HOST)
def counters(step: Step) -> Lines:
    """Counters equal a walk over unique ids: free + held + idle + quarantined = N."""
    state = step.new
    free, held = len(state.free), len(step.held)
    evictable, waiting = len(state.evictable), len(state.quarantine)
    if free + held + evictable + waiting != state.config.blocks:
        yield f"{free} free + {held} held + {evictable} evictable + {waiting} waiting is not {state.config.blocks}"


@rule("R-OWN-6", Release, Retire, Publish, Unpin, Clear)
def recorded_ids(step: Step) -> Lines:
    """What is released is the id recorded when it was acquired: blocks become free out of what held or kept them."""
    old, new = step.old, step.new
    mine: set[Block] = set()
    if isinstance(step.operation, Release):
        mine = set(old.sequences[step.operation.name].row)
    elif isinstance(step.operation, Unpin):
        mine = set(old.pins[step.operation.handle])
    elif isinstance(step.operation, Clear):
        mine = set(old.evictable).union(*old.pins.values())
    elif isinstance(step.decided, Outcome):
        mine = {merge.old for merge in step.decided.merges}
    freed = (new.free - old.free) | (new.evictable.keys() - old.evictable.keys())
    if strangers := freed - mine - old.quarantine.keys():
        yield f"blocks {sorted(strangers)} became free out of nowhere"
    if isinstance(step.decided, Outcome) and step.decided.freed != freed:
        yield f"blocks {sorted(freed)} became free, and {sorted(step.decided.freed)} is what was said"


@rule("R-TXN-1")
def atomic(step: Step) -> Lines:
    """An operation is atomic: refused, it changes nothing; done, it is done in full, and to what it names alone."""
    if isinstance(step.decided, Refused):
        if step.new != step.old:
            yield f"{step.operation} was refused and the state changed"
        return
    yield from _done_in_full(step, step.decided)
    if isinstance(step.operation, Execute):
        yield from _done_by_the_device(step, step.operation.launch)
    elif step.new.memory is not step.old.memory:
        yield f"{step.operation} changed what slots hold, which is the device's to do"
    if step.new.config != step.old.config:
        yield f"{step.operation} changed the pool itself"


def _done_in_full(step: Step, decided: Outcome) -> Lines:
    new = step.new
    sequences, pins, ids, said = effect(step, decided)
    if new.sequences != sequences:
        for name in sorted({*new.sequences, *sequences}):
            if (now := new.sequences.get(name)) != (due := sequences.get(name)):
                yield f"{step.operation} left sequence {name} as {now}, not {due}"
    if new.pins != pins:
        yield f"{step.operation} left the pins {dict(new.pins)}, not {dict(pins)}"
    if new.ids != ids:
        yield f"{step.operation} left other ids of contents than were told"
    if decided != said:
        yield f"{step.operation} said {decided}, and what is to be said is {said}"


def _done_by_the_device(step: Step, executed: LaunchId) -> Lines:
    old, new = step.old, step.new
    if _OF_THE_HOST(new) != _OF_THE_HOST(old):
        yield f"{step.operation} changed more than what slots hold and what is executed"
    if [launch.id for launch in new.launches] != [launch.id for launch in old.launches]:
        yield f"{step.operation} changed which launches are in flight"
    writes = next((launch.writes for launch in old.launches if launch.id == executed), {})
    if len(new.memory) != len(old.memory):
        yield f"{step.operation} changed how many blocks have slots"
    for block, now in new.memory.items():
        was, (low, high) = old.memory.get(block, ()), writes.get(block, (0, 0))
        if now is not was and now[:low] + now[high:] != was[:low] + was[high:]:
            yield f"{step.operation} wrote slots of block {block} that are not its to write"


_OF_THE_HOST = attrgetter(*[field for field in State._fields if field not in {"memory", "launches"}])

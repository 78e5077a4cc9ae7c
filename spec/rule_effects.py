"""What an operation done in full leaves behind, worked out from what it was asked and what it decided (R-TXN-1).

Which blocks it took, hit, copied or merged is its choice, or what it found, and other rules judge that. Given those,
there is one right answer to what each sequence, each pin and each told id is afterwards, and to what else was to be
said. It is written here once more, apart from the operations. Whole values are compared, so a field that nobody thought
of is compared as well.

Cost: a dictionary of the sequences, a new sequence for each that is named, and an outcome: one to three microseconds.
"""

from collections.abc import Callable, Mapping
from typing import Any

from .alphabet import Add, Clear, Execute, Extend, Fork, Pin, Publish, Release, Retire, Submit, Unpin
from .arithmetic import blocks_needed
from .outcome import Merge, Outcome
from .rule_book import Step
from .state import Block, Content, Handle, Ids, Name, Root, Sequence, State, tell

Sequences = Mapping[Name, Sequence]
Pins = Mapping[Handle, tuple[Block, ...]]
Effect = tuple[Sequences, Pins, Ids, Outcome]  # all sequences, pins and ids as they must be, and what must be said


def effect(step: Step, decided: Outcome) -> Effect:
    """Return what an operation must leave behind and say, given what it decided."""
    return _EFFECTS[type(step.operation)](step, step.operation, decided)


def _add(step: Step, operation: Add, decided: Outcome) -> Effect:
    """What it hits is launched, and its contents have the names that they had."""
    old, (name, tokens, salt) = step.old, operation
    known = () if isinstance(tokens, int) else tokens
    text = sum([_names(old, block) for block in decided.hits], ())
    found = len(text)
    text += tuple([(old.epochs, position) for position in range(found, operation.length)])
    row = decided.hits + decided.blocks
    begun = Sequence(old.epochs, text, found, row, None, Root(salt, old.weights), known)
    ids = tell(old.ids, text, known) if known else old.ids
    return {**old.sequences, name: begun}, old.pins, ids, Outcome(decided.blocks, hits=decided.hits)


def _names(state: State, block: Block) -> tuple[Content, ...]:
    """Return the names that the contents of a published block have."""
    return next((entry.text for entry in state.prefixes.values() if entry.block == block), ())


def _extend(step: Step, operation: Extend, decided: Outcome) -> Effect:
    """The blocks taken go to the rows in order, a copy's target before growth; what is copied is said in order, too."""
    old, blocks = step.old, decided.blocks
    sequences = dict(old.sequences)
    planned = {copy.sequence: copy for copy in decided.copies}
    for name, count in operation.rows:
        epoch, text, launched, row, copy, root, known = sequences[name]
        if name in planned:
            row, copy = row[:-1], planned[name]
        start, stop = len(text), len(text) + count
        more = blocks_needed(stop, old.config.block_size) - len(row)
        text += tuple([(epoch, position) for position in range(start, stop)])
        sequences[name] = Sequence(epoch, text, launched, row + blocks[:more], copy, root, known)
        blocks = blocks[more:]
    copies = tuple([planned[name] for name, _ in operation.rows if name in planned]) if planned else ()
    return sequences, old.pins, old.ids, Outcome(decided.blocks, copies)


def _fork(step: Step, operation: Fork, _: Outcome) -> Effect:
    old, (parent, child) = step.old, operation
    twin = Sequence(old.epochs, *old.sequences[parent][1:])
    return {**old.sequences, child: twin}, old.pins, old.ids, Outcome()


def _launch(step: Step, operation: Submit, _: Outcome) -> Effect:
    old = step.old
    sequences = dict(old.sequences)
    for name, count in operation.rows:
        epoch, text, launched, row, _copy, root, known = sequences[name]
        sequences[name] = Sequence(epoch, text, launched + count, row, None, root, known)
    said = Outcome()
    for launch in step.submitted:
        said = Outcome((), launch.copies, launch.id, launch.after)
    return sequences, old.pins, old.ids, said


def _execute(step: Step, _operation: Execute, _: Outcome) -> Effect:
    return step.old.sequences, step.old.pins, step.old.ids, Outcome()


def _retire(step: Step, _operation: Retire, decided: Outcome) -> Effect:
    return step.old.sequences, step.old.pins, step.old.ids, Outcome(freed=decided.freed)


def _release(step: Step, operation: Release, decided: Outcome) -> Effect:
    old = step.old
    sequences = dict(old.sequences)
    del sequences[operation.name]
    return sequences, old.pins, old.ids, Outcome(freed=decided.freed)


def _publish(step: Step, operation: Publish, decided: Outcome) -> Effect:
    """Where a row is merged, it has the published block, and the names of its contents."""
    old, new, size = step.old, step.new, step.old.config.block_size
    sequences, ids = dict(old.sequences), old.ids
    for name, tokens in operation.rows:
        if tokens:
            epoch, text, launched, row, copy, root, known = sequences[name]
            ids = tell(ids, text[len(known) :], tokens)
            sequences[name] = Sequence(epoch, text, launched, row, copy, root, known + tokens)
    for name, at, _, block in decided.merges:
        epoch, text, launched, row, copy, root, known = sequences[name]
        text = (*text[: at * size], *_names(new, block), *text[(at + 1) * size :])
        row = (*row[:at], block, *row[at + 1 :])
        sequences[name] = Sequence(epoch, text, launched, row, copy, root, known)
    published: tuple[Block, ...] = ()
    if new.prefixes is not old.prefixes:
        published = tuple([entry.block for key, entry in new.prefixes.items() if key not in old.prefixes])
    merges: list[Merge] = []
    for name, _ in operation.rows if decided.merges else ():
        rows = enumerate(zip(old.sequences[name].row, sequences[name].row, strict=False))
        merges += [Merge(name, at, was, now) for at, (was, now) in rows if was != now]
    said = Outcome(freed=decided.freed, published=published, merges=tuple(merges))
    return sequences, old.pins, ids, said


def _pin(step: Step, operation: Pin, decided: Outcome) -> Effect:
    old = step.old
    return old.sequences, {**old.pins, operation.handle: decided.hits}, old.ids, Outcome(hits=decided.hits)


def _unpin(step: Step, operation: Unpin, decided: Outcome) -> Effect:
    old = step.old
    pins = {handle: blocks for handle, blocks in old.pins.items() if handle != operation.handle}
    return old.sequences, pins, old.ids, Outcome(freed=decided.freed)


def _clear(step: Step, _operation: Clear, decided: Outcome) -> Effect:
    return step.old.sequences, {}, step.old.ids, Outcome(freed=decided.freed)


_EFFECTS: dict[type, Callable[[Step, Any, Outcome], Effect]] = {
    Add: _add,
    Extend: _extend,
    Fork: _fork,
    Submit: _launch,
    Execute: _execute,
    Retire: _retire,
    Release: _release,
    Publish: _publish,
    Pin: _pin,
    Unpin: _unpin,
    Clear: _clear,
}

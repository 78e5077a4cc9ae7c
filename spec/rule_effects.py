"""What an operation done in full leaves behind, worked out from what it was asked and what it decided (R-TXN-1).

Which blocks it took, hit, copied or merged is its choice, or what it found, and other rules judge that. Given those,
there is one right answer to what each sequence, each pin and each told id is afterwards, and to what else was to be
said. It is written here once more, apart from the operations. Whole values are compared, so a field that nobody thought
of is compared as well.

Cost: a dictionary of the sequences, and a new sequence for each that is named.
"""

from collections.abc import Iterator, Mapping

from .alphabet import Add, Clear, Execute, Extend, Fork, Pin, Publish, Release, Retire, Submit, Unpin
from .arithmetic import blocks_needed
from .outcome import Outcome, Rows, Telling
from .rule_book import Step
from .state import Block, Content, Handle, Ids, Name, Root, Sequence, tell

Sequences = Mapping[Name, Sequence]
Pins = Mapping[Handle, tuple[Block, ...]]


def sequences_after(step: Step, decided: Outcome) -> Sequences:
    """Return all sequences as an operation must leave them."""
    old, operation = step.old.sequences, step.operation
    match operation:
        case Add(name):
            return {**old, name: _begun(step, operation, decided)}
        case Extend(rows):
            return {**old, **dict(_extended(step, rows, decided))}
        case Fork(parent, child):
            return {**old, child: old[parent]._replace(epoch=step.old.epochs)}
        case Submit(rows):
            return {**old, **{name: _launched(old[name], count) for name, count in rows}}
        case Release(released):
            return {name: sequence for name, sequence in old.items() if name != released}
        case Publish(rows):
            return {**old, **dict(_told(step, rows, decided))}
        case _:
            return old


def _begun(step: Step, operation: Add, decided: Outcome) -> Sequence:
    """Return a new sequence: what it hit is launched, and its contents have the names that they had."""
    text: tuple[Content, ...] = ()
    if decided.hits:
        names = {entry.block: entry.text for entry in step.old.prefixes.values()}
        text = sum([names.get(block, ()) for block in decided.hits], ())
    found, epoch = len(text), step.old.epochs
    text += tuple([(epoch, position) for position in range(found, operation.length)])
    known = () if isinstance(operation.tokens, int) else operation.tokens
    return Sequence(
        epoch, text, found, decided.hits + decided.blocks, None, Root(operation.salt, step.old.weights), known
    )


def _extended(step: Step, rows: Rows, decided: Outcome) -> Iterator[tuple[Name, Sequence]]:
    """Yield sequences with room for more: the blocks taken go to the rows in order, a copy's target before growth."""
    copies = {copy.sequence: copy for copy in decided.copies}
    blocks = decided.blocks
    for name, count in rows:
        epoch, text, launched, row, copy, root, known = step.old.sequences[name]
        stop = len(text) + count
        if name in copies:
            row, copy = row[:-1], copies[name]
        more = blocks_needed(stop, step.old.config.block_size) - len(row)
        text += tuple([(epoch, position) for position in range(len(text), stop)])
        yield name, Sequence(epoch, text, launched, row + blocks[:more], copy, root, known)
        blocks = blocks[more:]


def _launched(sequence: Sequence, count: int) -> Sequence:
    epoch, text, launched, row, _, root, known = sequence
    return Sequence(epoch, text, launched + count, row, None, root, known)


def _told(step: Step, rows: Telling, decided: Outcome) -> Iterator[tuple[Name, Sequence]]:
    """Yield sequences that know more; where one is merged, with the published block and its contents' names."""
    size = step.old.config.block_size
    for name, tokens in rows:
        epoch, text, launched, row, copy, root, known = step.old.sequences[name]
        for merge in decided.merges:
            if merge.sequence == name:
                names = {entry.block: entry.text for entry in step.new.prefixes.values()}
                row = (*row[: merge.at], merge.new, *row[merge.at + 1 :])
                text = (*text[: merge.at * size], *names.get(merge.new, ()), *text[(merge.at + 1) * size :])
        yield name, Sequence(epoch, text, launched, row, copy, root, known + tokens)


def pins_after(step: Step, decided: Outcome) -> Pins:
    """Return the pins as an operation must leave them."""
    pins = step.old.pins
    match step.operation:
        case Pin(handle):
            return {**pins, handle: decided.hits}
        case Unpin(handle):
            return {other: blocks for other, blocks in pins.items() if other != handle}
        case Clear():
            return {}
        case _:
            return pins


def ids_after(step: Step) -> Ids:
    """Return the ids that have been told of contents (ghost): those from before, and those told with it."""
    ids = step.old.ids
    match step.operation:
        case Add(name, tokens) if not isinstance(tokens, int):
            return tell(ids, step.new.sequences[name].text, tokens)
        case Publish(rows):
            for name, tokens in rows:
                if tokens:
                    sequence = step.old.sequences[name]
                    ids = tell(ids, sequence.text[len(sequence.known) :], tokens)
    return ids


def outcome_after(step: Step, decided: Outcome) -> Outcome:
    """Return what an operation must say: what it decided, what its effect shows, and nothing that is not its to say."""
    old, new = step.old, step.new
    match step.operation:
        case Add():
            return Outcome(blocks=decided.blocks, hits=decided.hits)
        case Extend(rows):
            planned = [new.sequences[name].copy for name, _ in rows if not old.sequences[name].copy]
            return Outcome(blocks=decided.blocks, copies=tuple([copy for copy in planned if copy]))
        case Fork() | Execute():
            return Outcome()
        case Submit():
            newest = new.launches[-1] if new.launches else None
            return Outcome(copies=newest.copies, launch=newest.id, after=newest.after) if newest else Outcome()
        case Publish():
            published = tuple([entry.block for key, entry in new.prefixes.items() if key not in old.prefixes])
            return Outcome(freed=decided.freed, published=published, merges=decided.merges)
        case Pin():
            return Outcome(hits=decided.hits)
        case _:
            return Outcome(freed=decided.freed)

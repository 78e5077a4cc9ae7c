"""Prefix sharing: what is found again, published, merged, pinned and forgotten.

`publish · pin · unpin · clear`, and the look-up inside `add`; each a pure function like those of `operations`, with its
guards first.

A full block whose tokens are known, all from position 0 on, and whose slots retired launches have written, can be
*published*: the index says from then on which block holds the KV of these tokens under this root. A later sequence that
begins with the same tokens *hits* it and computes nothing there. A block that is published is never written again; its
holders come and go, and when the last has left it stays, idle, until it is evicted.

Two sequences that computed the same are found out when the second publishes: its row is pointed at the published block
and its own copy is let go (*merge*). What a launch in flight reads is not changed by that: it has its row.

A hit or a merge takes over the names of the contents along with the block. Equal tokens under an equal root have equal
KV, so whoever computed it first gave it its name.

Considered: partial blocks (a writer would have to copy what it shares); merging siblings nobody told of (rows change
that no operation names).

Sources: automatic prefix caching of vLLM (Kwon et al., 2023) and RadixAttention of SGLang (Zheng et al., 2024); why a
key is the whole prefix: two blocks with the same tokens after different beginnings have different KV.
"""

from .outcome import Merge, Outcome, Result, Telling
from .refusals import Broken, Reason, guard_batch, refuse_if
from .state import Block, Handle, Key, Name, Published, Root, Sequence, State, Tokens, key_of, tell, written
from .supply import discharge, hold, let_go

RETENTIONS = range(4)


def match(state: State, root: Root, tokens: Tokens) -> tuple[Published, ...]:
    """Return the longest chain of published blocks that these tokens begin with, under this root."""
    size = state.config.block_size
    found: list[Published] = []
    for stop in range(size, len(tokens) + 1, size):
        entry = state.prefixes.get(Key(root, tokens[:stop]))
        if entry is None:
            break
        found.append(entry)
    return tuple(found)


def look_up(
    state: State, root: Root, tokens: Tokens, most: int, choice: Outcome | None
) -> tuple[State, tuple[Published, ...]]:
    """Find the longest chain, cut after `most` blocks, and hold it: one action, so nothing comes between (R-TXN-2).

    What is found is no choice: an implementation's hits are compared here.
    """
    chain = match(state, root, tokens)
    found = chain[:most]
    blocks = tuple(entry.block for entry in found)
    if choice and choice.hits != blocks:
        raise _wrong_hits(choice, tuple(entry.block for entry in chain), most)
    return hold(state, blocks), found


def _wrong_hits(choice: Outcome, chain: tuple[Block, ...], most: int) -> Broken:
    said = f"hits {list(choice.hits)}, and {list(chain)} are published for these tokens, at most {most} to be taken"
    return Broken("R-HASH-1" if choice.hits != chain[: len(choice.hits)] else "R-HASH-5", said)


def publish(state: State, rows: Telling, retention: int = 0, choice: Outcome | None = None) -> Result:
    """Tell sequences the ids of their next unknown positions, and publish what is known and written, block by block.

    A row is published in the state that the rows before it have left. From its first block on: one that is published
    stays; one whose key is not in the index is published, in this retention class (0 to 3: a higher one is evicted
    later); one whose key is there under another block is merged into that. The row ends at a block that a fork of the
    sequence holds, or is to copy, behind another one, since only one of the two has merged: whoever holds a published
    block holds its parent. A sequence that began under older weights learns its ids and publishes nothing.

    The caller tells the truth: of one content always one id, whichever sequences share it (`moves.possible`).

    Refused: Duplicate, Unknown, BadCount (more ids than positions without one; a retention that there is not).
    """
    guard_batch(state.sequences, rows)
    unknown = {name: state.sequences[name].allocated - len(state.sequences[name].known) for name, _ in rows}
    refuse_if(any(len(tokens) > unknown[name] for name, tokens in rows), Reason.BAD_COUNT)
    refuse_if(retention not in RETENTIONS, Reason.BAD_COUNT)
    published: list[Block] = []
    merges: list[Merge] = []
    for name, tokens in rows:
        sequence = state.sequences[name]
        ids = tell(state.ids, sequence.text[len(sequence.known) :], tokens)
        sequence = sequence._replace(known=sequence.known + tokens)
        state = state._replace(sequences={**state.sequences, name: sequence}, ids=ids)
        state, decided = _publish_row(state, name, retention)
        published += decided.published
        merges += decided.merges
    outcome = Outcome(published=tuple(published), merges=tuple(merges))
    if choice:
        _compare(choice, outcome)
    state, discharged = discharge(let_go(state, {merge.old: state.issued for merge in merges}), choice)
    return state, outcome._replace(freed=discharged.freed)


def _publish_row(state: State, name: Name, retention: int) -> Result:
    """Publish what can be of one row, block by block."""
    size = state.config.block_size
    published: list[Block] = []
    merges: list[Merge] = []
    for index in range(_publishable(state, name)):
        sequence = state.sequences[name]
        own, key = sequence.row[index], key_of(sequence, index, size)
        there = state.prefixes.get(key)
        if own in {entry.block for entry in state.prefixes.values()}:
            continue
        if there:
            state = _merge(state, name, index, there)
            merges.append(Merge(name, index, own, there.block))
        elif _has_two_parents(state, sequence, index):
            break
        else:
            entry = Published(own, sequence.text[index * size : (index + 1) * size], retention)
            state = state._replace(prefixes={**state.prefixes, key: entry})
            published.append(own)
    return state, Outcome(published=tuple(published), merges=tuple(merges))


def _publishable(state: State, name: Name) -> int:
    """Return how many leading blocks of a sequence are full, known and written by retired launches (R-HASH-4)."""
    sequence = state.sequences[name]
    if sequence.root.weights != state.weights:
        return 0
    return min(len(sequence.known), written(state, sequence)) // state.config.block_size


def _merge(state: State, name: Name, index: int, there: Published) -> State:
    """Point a row at a published block with the contents of its own, and hold it; its own it lets go afterwards."""
    sequence, size = state.sequences[name], state.config.block_size
    row = (*sequence.row[:index], there.block, *sequence.row[index + 1 :])
    text = (*sequence.text[: index * size], *there.text, *sequence.text[(index + 1) * size :])
    merged = sequence._replace(row=row, text=text)
    return hold(state, (there.block,))._replace(sequences={**state.sequences, name: merged})


def _has_two_parents(state: State, sequence: Sequence, index: int) -> bool:
    """Whether another sequence has the block at this index, or is to copy it, behind another block: one has merged.

    It would hold or read a published block and not hold its parent, which could not be evicted without losing it.
    """
    if not index:
        return False
    own, parent = sequence.row[index], sequence.row[index - 1]
    others = [other for other in state.sequences.values() if other.row[index - 1 : index] not in {(parent,), ()}]
    return any(own in other.row or (other.copy is not None and other.copy.source == own) for other in others)


def _compare(choice: Outcome, right: Outcome) -> None:
    """Compare what an implementation published and merged, neither of which is a choice."""
    if choice.published != right.published:
        early = not set(choice.published) <= set(right.published)
        said = f"published {list(choice.published)}, not {list(right.published)}"
        raise Broken("R-HASH-4" if early else "R-HASH-3", said)
    if choice.merges != right.merges:
        raise Broken("R-EVICT-3", f"merged {list(choice.merges)}, not {list(right.merges)}")


def pin(state: State, handle: Handle, tokens: Tokens, salt: int = 0, choice: Outcome | None = None) -> Result:
    """Hold the longest chain of published blocks that these tokens begin with, for no sequence.

    Refused: Duplicate (the handle is in use), Empty (nothing is published for them).
    """
    root = Root(salt, state.weights)
    refuse_if(handle in state.pins, Reason.DUPLICATE)
    refuse_if(not match(state, root, tokens), Reason.EMPTY)
    state, found = look_up(state, root, tokens, len(tokens), choice)
    blocks = tuple(entry.block for entry in found)
    return state._replace(pins={**state.pins, handle: blocks}), Outcome(hits=blocks)


def unpin(state: State, handle: Handle, choice: Outcome | None = None) -> Result:
    """Drop a pin's edges; what nobody else holds is idle again.

    Refused: Unknown.
    """
    refuse_if(handle not in state.pins, Reason.UNKNOWN)
    dropped = dict.fromkeys(state.pins[handle], state.issued)
    pins = {other: blocks for other, blocks in state.pins.items() if other != handle}
    return discharge(let_go(state._replace(pins=pins), dropped), choice)


def clear(state: State, choice: Outcome | None = None) -> Result:
    """Forget all that is published, since the weights have changed: a new epoch of them begins.

    What was evictable is free; what device work touches waits on; what sequences hold is theirs, and published no
    more. Pins are dropped: what they held is of no use.
    """
    pinned = {block: state.issued for blocks in state.pins.values() for block in blocks}
    evictable = dict.fromkeys(state.evictable, 0)
    state = state._replace(prefixes={}, evictable={}, pins={}, weights=state.weights + 1)
    return discharge(let_go(state, {**pinned, **evictable}), choice)

"""The operations: what can happen to a paged KV cache, each a pure function.

`add · extend · fork · launch · execute · retire · release`, each `(state, arguments, choice) -> (state, outcome)`;
those that share prefixes, `publish · pin · unpin · clear`, stand in `sharing`. The guards stand first, in the order in
which they are tested over the whole call; the first that does not hold is the `Refused` that is raised. `NoSpace` alone
is met on the way, when the supply of blocks runs dry, so that need and allocation cannot disagree. Then comes the
effect. A state is never changed in place, so a refusal changes nothing, and an operation is atomic by construction
(R-TXN-1).

Where more than one outcome is right (which free blocks, when a quarantined block becomes free), the spec takes the
lowest ids and frees as early as safety allows. An implementation may choose otherwise: its outcome is given as
`choice`, checked to be an allowed one (else `Broken`, with the rule), and followed. So states stay equal on both sides.

The discipline is *fence*: a block without holder is not reused before the host has seen every launch retire that may
touch it. Sources: paging and copy-on-write of KV blocks, Kwon et al., "Efficient Memory Management for Large Language
Model Serving with PagedAttention" (SOSP 2023); deferred reuse behind completion, Fraser, "Practical lock-freedom"
(2004, epoch-based reclamation).
"""

from collections.abc import Iterable, Mapping

from .arithmetic import blocks_needed, locate
from .outcome import Outcome, Result, Rows
from .refusals import Broken, Reason, guard_batch, refuse_if
from .sharing import clear, look_up, pin, publish, unpin
from .state import (
    NULL,
    Block,
    Computation,
    Copy,
    Launch,
    LaunchId,
    Name,
    Root,
    Sequence,
    State,
    Tokens,
    before,
    holders,
    tell,
)
from .supply import Supply, discharge, let_go


def add(state: State, name: Name, tokens: int | Tokens, salt: int = 0, choice: Outcome | None = None) -> Result:
    """Start a sequence of so many tokens, or of these ids: a row of ceil(count / B) blocks, nothing launched yet.

    Where the ids are given, it begins with what is published for them under this salt: at most floor((count - 1) / B)
    blocks, since one token must be left to compute (R-HASH-5). Its positions go on behind them.

    Refused: Duplicate, Empty, TooLong, NoSpace.
    """
    size = state.config.block_size
    count, known = (tokens, ()) if isinstance(tokens, int) else (len(tokens), tokens)
    refuse_if(name in state.sequences, Reason.DUPLICATE)
    refuse_if(count < 1, Reason.EMPTY)
    refuse_if(blocks_needed(count, size) > state.config.blocks, Reason.TOO_LONG)
    root = Root(salt, state.weights)
    state, found = look_up(state, root, known, (count - 1) // size, choice)
    hits = tuple(entry.block for entry in found)
    text = tuple(content for entry in found for content in entry.text)
    sequences = {**state.sequences, name: Sequence(state.epochs, text, len(text), hits, root=root, known=known)}
    supply = Supply(state, choice)
    sequences[name], _ = _grow(sequences, name, count - len(text), supply)
    ids = tell(state.ids, sequences[name].text, known)
    state = state._replace(sequences=sequences, epochs=state.epochs + 1, ids=ids, **supply.left())
    return state, Outcome(blocks=supply.taken(), hits=hits)


def extend(state: State, rows: Rows, choice: Outcome | None = None) -> Result:
    """Make room for the next `count` positions of each row: all or nothing, in the order given.

    A row is extended in the state that the rows before it have left. So of two siblings that share a tail block the
    first copies it, and the last holder left writes in place.

    Refused: Duplicate, Unknown, BadCount, TooLong, NoSpace.
    """
    guard_batch(state.sequences, rows)
    refuse_if(min([count for _, count in rows], default=1) < 1, Reason.BAD_COUNT)
    longest = max([state.sequences[name].allocated + count for name, count in rows], default=0)
    refuse_if(blocks_needed(longest, state.config.block_size) > state.config.blocks, Reason.TOO_LONG)
    supply = Supply(state, choice)
    sequences = dict(state.sequences)
    copies: list[Copy] = []
    for name, count in rows:
        sequences[name], copy = _grow(sequences, name, count, supply)
        copies += [copy] if copy else []
    if choice and choice.copies != tuple(copies):
        raise Broken("R-COW-2", f"copies must be {copies}, not {list(choice.copies)}")
    state = state._replace(sequences=sequences, **supply.left())
    return state, Outcome(blocks=supply.taken(), copies=tuple(copies))


def fork(state: State, parent: Name, child: Name, choice: Outcome | None = None) -> Result:  # noqa: ARG001  (the signature is the protocol's)
    """Start a sequence as its parent is now: same text, same row, one more edge to each distinct block.

    Refused: Unknown, Duplicate, Busy (planned positions; without them there is no planned copy to inherit).
    """
    refuse_if(parent not in state.sequences, Reason.UNKNOWN)
    refuse_if(child in state.sequences, Reason.DUPLICATE)
    refuse_if(state.sequences[parent].planned > 0, Reason.BUSY)
    twin = state.sequences[parent]._replace(epoch=state.epochs)
    return state._replace(sequences={**state.sequences, child: twin}, epochs=state.epochs + 1), Outcome()


def launch(state: State, rows: Rows, stream: int = 0, choice: Outcome | None = None) -> Result:
    """Submit a step: planned copies first, then write `count` planned positions of each row, reading all before them.

    It must be ordered after every launch in flight with which it conflicts: by its stream or by an edge (R-LIFE-2).

    Refused: Duplicate, Unknown, BadCount, Busy (too many in flight).
    """
    guard_batch(state.sequences, rows)
    refuse_if(any(not 1 <= count <= state.sequences[name].planned for name, count in rows), Reason.BAD_COUNT)
    refuse_if(len(state.launches) >= state.config.launches, Reason.BUSY)

    sequences = [state.sequences[name] for name, _ in rows]
    copies = tuple([sequence.copy for sequence in sequences if sequence.copy])
    parts = tuple([_computation(state, name, count) for name, count in rows])
    new = Launch(
        id=state.issued + 1,
        stream=stream,
        after=frozenset(),
        copies=copies,
        computations=parts,
        reads=_reads(parts, copies, state.config.block_size),
        writes=_writes(parts, copies, state.config.block_size),
    )
    new = _ordered(state, new, choice)
    submitted = {
        name: sequence._replace(launched=sequence.launched + count, copy=None)
        for (name, count), sequence in zip(rows, sequences, strict=True)
    }
    # A source that nobody holds any more was kept by the plan; from here on this launch keeps it.
    kept = {copy.source: new.id for copy in copies if copy.source in state.quarantine}
    state = state._replace(
        sequences={**state.sequences, **submitted},
        quarantine={**state.quarantine, **kept},
        launches=(*state.launches, new),
        issued=new.id,
    )
    return state, Outcome(copies=copies, launch=new.id, after=new.after)


def ready(state: State, launch: Launch) -> bool:
    """Whether the device may execute a launch now: not done yet, and all that happens before it is done."""
    if launch.executed:
        return False
    pending = {other.id for other in state.launches if not other.executed}
    return not before(state.launches, launch) & pending


def execute(state: State, launch_id: LaunchId, choice: Outcome | None = None) -> Result:  # noqa: ARG001  (the signature is the protocol's)
    """Let the device do a launch: copies, then writes. What it then reads is judged by R-DATA.

    The device's own move, at any time that its order allows: the caller asks for launches that are `ready` alone
    (`moves.possible`). The copies of a launch are done at once: each reads what was there before any of them.
    """
    memory = dict(state.memory)
    done = next((launch for launch in state.launches if launch.id == launch_id), None)
    if done is None:
        raise ValueError(f"launch {launch_id} is not in flight")
    copied = {
        copy.target: memory[copy.source][: copy.extent] + memory[copy.target][copy.extent :] for copy in done.copies
    }
    memory.update(copied)
    for part in done.computations:
        position = part.start
        while position < part.stop:  # a block at a time
            index, offset = locate(position, state.config.block_size)
            new = part.text[position : min(part.stop, position - offset + state.config.block_size)]
            old = memory[part.row[index]]
            memory[part.row[index]] = old[:offset] + new + old[offset + len(new) :]
            position += len(new)
    launches = tuple([e._replace(executed=True) if e is done else e for e in state.launches])
    return state._replace(memory=memory, launches=launches), Outcome()


def retire(state: State, launch_id: LaunchId, choice: Outcome | None = None) -> Result:
    """Learn that a launch has been executed: it leaves, and with it all that happens before it.

    A completion may be delivered late, and more than once: a launch that has left already changes nothing (R-LIFE-4).
    The device tells of what it has done alone: the caller retires launches that are executed, or have left
    (`moves.possible`).

    Refused: UnknownLaunch.
    """
    refuse_if(not 1 <= launch_id <= state.issued, Reason.UNKNOWN_LAUNCH)
    done = next((launch for launch in state.launches if launch.id == launch_id), None)
    if done is None:
        if choice and choice.freed:
            raise Broken("R-LIFE-4", f"launch {launch_id} had left already, and {sorted(choice.freed)} became free")
        return state, Outcome()
    leaving = before(state.launches, done) | {done.id}
    launches = tuple([launch for launch in state.launches if launch.id not in leaving])
    return discharge(state._replace(launches=launches), choice)


def release(state: State, name: Name, choice: Outcome | None = None) -> Result:
    """Let a sequence go, finished or cancelled, at any time: every edge is dropped, its planned copy with them.

    What was submitted goes on. A block that nobody else holds waits in quarantine; one that no launch has ever touched
    is free at once. What is published stays to be found.

    Refused: Unknown.
    """
    refuse_if(name not in state.sequences, Reason.UNKNOWN)
    leaving = state.sequences[name]
    rest = {other: sequence for other, sequence in state.sequences.items() if other != name}
    launched = blocks_needed(leaving.launched, state.config.block_size)
    untouched = {*leaving.row[launched:], leaving.copy.target if leaving.copy else NULL}
    dropped = {block: 0 if block in untouched else state.issued for block in leaving.row}
    return discharge(let_go(state._replace(sequences=rest), dropped), choice)


# ---- what the operations share ----------------------------------------------------------------------------------


def _grow(sequences: Mapping[Name, Sequence], name: Name, count: int, supply: Supply) -> tuple[Sequence, Copy | None]:
    """Give a sequence room for `count` more positions; copy its tail block first if another sequence holds it too."""
    sequence = sequences[name]
    start, stop = sequence.allocated, sequence.allocated + count
    index, extent = locate(start, supply.block_size)
    row, copy = sequence.row, None
    if extent and len(holders(sequences, row[index])) > 1:
        copy = Copy(name, source=row[index], target=supply.take(), extent=extent)
        row = (*row[:index], copy.target)
    missing = blocks_needed(stop, supply.block_size) - len(row)
    row += tuple([supply.take() for _ in range(missing)])
    text = sequence.text + tuple([(sequence.epoch, position) for position in range(start, stop)])
    return sequence._replace(text=text, row=row, copy=copy or sequence.copy), copy


def _computation(state: State, name: Name, count: int) -> Computation:
    sequence = state.sequences[name]
    start, stop = sequence.launched, sequence.launched + count
    row = sequence.row[: blocks_needed(stop, state.config.block_size)]
    return Computation(name, sequence.epoch, start, stop, row, sequence.text[:stop])


def _reads(parts: Iterable[Computation], copies: Iterable[Copy], size: int) -> Mapping[Block, int]:
    """Return how many leading slots a launch reads of each block: all positions of its rows, its copies' sources."""
    reads: dict[Block, int] = {}
    for part in parts:
        for index, block in enumerate(part.row):
            reads[block] = max(reads.get(block, 0), min(size, part.stop - index * size))
    for copy in copies:
        reads[copy.source] = max(reads.get(copy.source, 0), copy.extent)
    return reads


def _writes(parts: Iterable[Computation], copies: Iterable[Copy], size: int) -> Mapping[Block, tuple[int, int]]:
    """Return the slots that a launch writes of each block: its new positions, and what its copies fill."""
    writes = {copy.target: (0, copy.extent) for copy in copies}
    for part in parts:
        for index in range(part.start // size, len(part.row)):
            low, high = max(part.start - index * size, 0), min(part.stop - index * size, size)
            low = writes.get(part.row[index], (low, high))[0]  # a copy fills the slots just below
            writes[part.row[index]] = (low, high)
    return writes


def conflict(older: Launch, newer: Launch) -> bool:
    """Whether two launches touch a common slot, one of them writing.

    Where blocks wait for their fences and shared ones are copied, only the last line ever holds: a newer launch reads
    what an older one writes. The others are here for what the rule says.
    """
    for block, (low, high) in newer.writes.items():
        first, stop = older.writes.get(block, (0, 0))
        if low < older.reads.get(block, 0) or (low < stop and first < high):
            return True
    return any(low < newer.reads.get(block, 0) for block, (low, _) in older.writes.items())


def _ordered(state: State, new: Launch, choice: Outcome | None) -> Launch:
    """Return a new launch with edges: to what it conflicts with on other streams, or those chosen if they suffice."""
    conflicting = frozenset([launch.id for launch in state.launches if conflict(launch, new)])
    if choice is None:
        on_its_stream = {launch.id for launch in state.launches if launch.stream == new.stream}
        return new._replace(after=conflicting - on_its_stream)
    if any(not 1 <= edge <= state.issued for edge in choice.after):
        raise Broken("R-LIFE-2", f"an edge to a launch that was never issued: {sorted(choice.after)}")
    chosen = new._replace(after=choice.after & {launch.id for launch in state.launches})
    missing = conflicting - before((*state.launches, chosen), chosen)
    if missing:
        raise Broken("R-LIFE-2", f"launch {new.id} conflicts with {sorted(missing)} in flight and is not ordered after")
    return chosen


__all__ = [
    "add",
    "clear",
    "conflict",
    "execute",
    "extend",
    "fork",
    "launch",
    "pin",
    "publish",
    "ready",
    "release",
    "retire",
    "unpin",
]

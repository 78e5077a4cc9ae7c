"""What a manager claims and what it does not offer, so that nobody judges it for what it never promised.

Engines differ by design: one waits for each step, one relies on the order of its stream, one names events; many have
no fork, no pin, no way to cancel what is in flight. None of that is a fault. So a manager says what it lacks
(`Manager.not_offered`), and drivers never ask for it: `fit` turns an operation that was drawn into the nearest one
that the manager offers, or drops it. And it claims a discipline (`Manager.discipline`), which says when a block may be
handed out again; it is judged by that one (`outside`).

Considered and left out: asking all the same and taking a refusal. It fills reports with noise, and a refusal of what
is not offered can't be told from one for want of space.
"""

from collections.abc import Iterator
from enum import StrEnum

from .alphabet import Add, Clear, Extend, Fork, Operation, Pin, Publish, Release, Retire, Submit, Unpin
from .moves_sharing import truly
from .outcome import Rows
from .state import Name, State, Tokens


class Discipline(StrEnum):
    """How a manager keeps a block from being overwritten while a launch still reads it."""

    FENCE = "fence"  # a block is handed out again only when every launch that reads or writes it has retired
    STREAM_ORDER = "stream order"  # at once: there is one stream, and what is launched later is executed later
    EVENTS = "events"  # at once: the launch that uses it names in `Outcome(after=...)` what it must wait for


class Feature(StrEnum):
    """What a manager may lack; the comment says what is then never asked."""

    FORK = "fork"  # `fork`
    COPY_ON_WRITE = "copy-on-write"  # a fork while the last block of the parent is not full
    SALT = "salt"  # a salt other than 0
    PUBLISH = "publish"  # `publish`: prompts alone are found again
    LATE_TOKENS = "late tokens"  # a prompt without ids, a launch of positions whose ids `publish` has not told yet
    PIN = "pin"  # `pin` and `unpin`
    CLEAR = "clear"  # `clear`
    BATCHES = "batches"  # `extend` of more than one sequence
    SEVERAL_TOKENS = "several tokens"  # `extend` of a sequence by more than one position
    CHUNKS = "chunks"  # a launch of a part of what is planned for a sequence
    PARTIAL_STEPS = "partial steps"  # a launch that leaves a planned sequence out; a release of a planned one
    CANCEL_IN_FLIGHT = "cancel in flight"  # `release` while a launch of the sequence is in flight
    REPEATED_COMPLETION = "repeated completion"  # `retire` of a launch that is known to be done
    EXACT_SPACE = "exact space"  # nothing: it may refuse for want of space though there is room (R-CAP-1)


NEEDED: dict[type, Feature] = {
    Fork: Feature.FORK,
    Publish: Feature.PUBLISH,
    Pin: Feature.PIN,
    Unpin: Feature.PIN,
    Clear: Feature.CLEAR,
}


def missing(state: State, operation: Operation, lacks: frozenset[Feature]) -> list[Feature]:
    """Return which of the features that a manager lacks an operation would need of it."""
    if not lacks:
        return []
    needed = {NEEDED.get(type(operation)), *_needed(state, operation)}
    if Feature.PUBLISH in lacks and isinstance(operation, Submit):
        needed.discard(Feature.LATE_TOKENS)  # there is no other way to tell them
    return [feature for feature in Feature if feature in needed & lacks]


def _needed(state: State, operation: Operation) -> Iterator[Feature | None]:
    """Yield what an operation needs besides its method."""
    sequences = state.sequences
    match operation:
        case Add(_, tokens, salt) | Pin(_, tokens, salt):
            yield Feature.SALT if salt else None
            yield Feature.LATE_TOKENS if isinstance(tokens, int) else None
        case Extend(rows):
            yield Feature.BATCHES if len(rows) > 1 else None
            yield Feature.SEVERAL_TOKENS if any(count > 1 for _, count in rows) else None
        case Fork(parent):
            yield Feature.COPY_ON_WRITE if sequences[parent].allocated % state.config.block_size else None
        case Submit(rows):
            yield Feature.CHUNKS if any(count < sequences[name].planned for name, count in rows) else None
            yield Feature.PARTIAL_STEPS if len(rows) < len(_planned(state)) else None
            yield Feature.LATE_TOKENS if _untold(state, rows) else None
        case Release(name):
            yield Feature.PARTIAL_STEPS if sequences[name].planned else None
            yield Feature.CANCEL_IN_FLIGHT if is_in_flight(state, name) else None
        case Retire(launch):
            yield Feature.REPEATED_COMPLETION if all(each.id != launch for each in state.launches) else None
        case _:
            pass


def fit(state: State, operation: Operation, lacks: frozenset[Feature]) -> Operation | None:
    """Return the nearest operation that needs nothing of what a manager lacks, None if there is none.

    The operation must make sense in the state (`guards`). Cost: none where nothing is lacking.
    """
    if not lacks:
        return operation
    match operation:
        case Add(name, tokens, salt):
            if isinstance(tokens, int) and Feature.LATE_TOKENS in lacks:
                tokens = _ids(state.epochs, range(tokens))
            operation = Add(name, tokens, 0 if Feature.SALT in lacks else salt)
        case Extend(rows):
            rows = rows[:1] if Feature.BATCHES in lacks else rows
            operation = Extend(tuple((name, 1) for name, _ in rows) if Feature.SEVERAL_TOKENS in lacks else rows)
        case Submit(rows, stream):
            planned = _planned(state)
            if Feature.CHUNKS in lacks:
                rows = tuple((name, planned[name]) for name, _ in rows)
            if Feature.PARTIAL_STEPS in lacks:
                rows = tuple((planned | dict(rows)).items())
            operation = Submit(rows, stream)
            told_first = Feature.LATE_TOKENS in lacks and Feature.PUBLISH not in lacks
            if told_first and (untold := _untold(state, rows)):
                operation = Publish(truly(state, untold))
        case _:
            pass
    return None if missing(state, operation, lacks) else operation


def is_in_flight(state: State, name: Name) -> bool:
    """Whether a launch in flight computes positions of a live sequence."""
    epoch = state.sequences[name].epoch
    return any(part.epoch == epoch for launch in state.launches for part in launch.computations)


def _untold(state: State, rows: Rows) -> dict[Name, Tokens]:
    """Return ids for the positions of a launch that have none."""
    found = {}
    for name, count in rows:
        sequence = state.sequences[name]
        if (stop := sequence.launched + count) > len(sequence.known):
            found[name] = _ids(sequence.epoch, range(len(sequence.known), stop))
    return found


def _ids(epoch: int, positions: range) -> Tokens:
    """Return ids that are often those of others, and not always."""
    return tuple(int((epoch + position) % 3 == 2) for position in positions)


def _planned(state: State) -> dict[Name, int]:
    return {name: sequence.planned for name, sequence in state.sequences.items() if sequence.planned}

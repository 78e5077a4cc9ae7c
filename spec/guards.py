"""What makes no sense to ask of a stranger's manager, and is not asked: it need not answer for it.

Names that are not live or live already, counts of zero, batches of nothing, more than is planned, streams that there
are not, pins of less than a block, completions of what was never launched. Whether there is space only the manager
knows. A state is the shadow's.
"""

from .alphabet import Add, Clear, Execute, Extend, Fork, Operation, Pin, Publish, Release, Retire, Submit, Unpin
from .refusals import Reason, guard_batch, refuse_if
from .sharing import RETENTIONS
from .state import State


def guard(state: State, operation: Operation) -> None:
    """Refuse what makes no sense to ask. Errors: `Refused`."""
    match operation:
        case Add(name):
            refuse_if(name in state.sequences, Reason.DUPLICATE)
            refuse_if(operation.length < 1, Reason.EMPTY)
        case Extend(rows):
            refuse_if(not rows, Reason.EMPTY)
            guard_batch(state.sequences, rows)
            refuse_if(any(count < 1 for _, count in rows), Reason.BAD_COUNT)
        case Submit(rows, stream):
            refuse_if(not rows, Reason.EMPTY)
            refuse_if(not 0 <= stream < state.config.streams, Reason.BAD_COUNT)
            guard_batch(state.sequences, rows)
            refuse_if(any(not 1 <= c <= state.sequences[n].planned for n, c in rows), Reason.BAD_COUNT)
            refuse_if(len(state.launches) >= state.config.launches, Reason.BUSY)
        case Fork(parent, child):
            refuse_if(parent not in state.sequences, Reason.UNKNOWN)
            refuse_if(child in state.sequences, Reason.DUPLICATE)
            refuse_if(state.sequences[parent].planned > 0, Reason.BUSY)
        case Release(name):
            refuse_if(name not in state.sequences, Reason.UNKNOWN)
        case Retire(launch):
            refuse_if(not 1 <= launch <= state.issued, Reason.UNKNOWN_LAUNCH)
        case Execute():
            pass
        case _:
            _guard_sharing(state, operation)


def _guard_sharing(state: State, operation: Publish | Pin | Unpin | Clear) -> None:
    match operation:
        case Publish(rows, retention):
            refuse_if(not rows, Reason.EMPTY)
            guard_batch(state.sequences, rows)
            unknown = {name: state.sequences[name].allocated - len(state.sequences[name].known) for name, _ in rows}
            refuse_if(any(len(tokens) > unknown[name] for name, tokens in rows), Reason.BAD_COUNT)
            refuse_if(retention not in RETENTIONS, Reason.BAD_COUNT)
        case Pin(handle, tokens):
            refuse_if(handle in state.pins, Reason.DUPLICATE)
            refuse_if(len(tokens) < state.config.block_size, Reason.EMPTY)
        case Unpin(handle):
            refuse_if(handle not in state.pins, Reason.UNKNOWN)
        case Clear():
            pass

"""What a state shows of itself, in the terms in which managers show theirs.

Both sides of a lock-step are turned into one `Observation` and compared for equality. So this says what an
implementation has to agree on, and leaves out what it may keep as it likes: free lists, fences, layouts.
"""

from .manager import Observation, Seen
from .state import Block, State, planned_copies, written


def observe(state: State) -> Observation:
    """Return what the spec's state shows of itself, in the terms in which managers do."""
    sequences = {
        name: Seen(sequence.row, sequence.allocated, sequence.launched, written(state, sequence))
        for name, sequence in state.sequences.items()
    }
    references: dict[Block, int] = {}
    for sequence in state.sequences.values():
        for block in set(sequence.row):
            references[block] = references.get(block, 0) + 1
    return Observation(
        sequences,
        references,
        state.free,
        frozenset(state.quarantine),
        frozenset(planned_copies(state)),
        tuple(launch.id for launch in state.launches),
        (len(state.free), state.config.blocks - len(state.free) - len(state.quarantine), len(state.quarantine)),
    )

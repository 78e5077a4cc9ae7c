"""What a state shows of itself, in the terms in which managers show theirs.

Both sides of a lock-step are turned into one `Observation` and compared for equality. So this says what an
implementation has to agree on, and leaves out what it may keep as it likes: free lists, fences, layouts.
"""

from collections import Counter

from .manager import Observation, Seen
from .state import State, planned_copies, written


def observe(state: State) -> Observation:
    """Return what the spec's state shows of itself, in the terms in which managers do."""
    sequences = {
        name: Seen(sequence.row, sequence.allocated, sequence.launched, written(state, sequence), len(sequence.known))
        for name, sequence in state.sequences.items()
    }
    references = Counter(block for sequence in state.sequences.values() for block in set(sequence.row))
    references.update(block for blocks in state.pins.values() for block in blocks)
    published = frozenset(entry.block for entry in state.prefixes.values())
    waiting = frozenset(state.quarantine)
    idle = waiting & published | state.evictable.keys()
    return Observation(
        sequences,
        dict(references),
        state.free,
        waiting - published,
        frozenset(planned_copies(state)),
        tuple(launch.id for launch in state.launches),
        (len(state.free), len(references), len(waiting - published)),
        published,
        idle,
        state.pins,
        (len(idle), len(state.evictable)),
    )

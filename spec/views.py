"""What a state of the spec shows of itself: what a manager in lock-step has to show, too (`observation`).

Nothing is counted here as it goes along: counters are those of a walk over the state, which is what R-OWN-5 asks.
"""

from .observation import Observation, Seen
from .state import Block, State, planned_copies, written


def observe(state: State) -> Observation:
    """Return what the spec's state shows of itself, in the terms in which managers do."""
    sequences = {
        name: Seen(sequence.row, sequence.allocated, sequence.launched, written(state, sequence), len(sequence.known))
        for name, sequence in state.sequences.items()
    }
    references: dict[Block, int] = {}
    for blocks in (*[sequence.row for sequence in state.sequences.values()], *state.pins.values()):
        for block in set(blocks):
            references[block] = references.get(block, 0) + 1
    published = frozenset([entry.block for entry in state.prefixes.values()])
    waiting = frozenset(state.quarantine)
    idle = waiting & published | state.evictable.keys()
    quarantined = waiting - published
    return Observation(
        sequences,
        references,
        state.free,
        quarantined,
        frozenset(planned_copies(state)),
        tuple([launch.id for launch in state.launches]),
        (len(state.free), len(references), len(quarantined)),
        published,
        idle,
        state.pins,
        (len(idle), len(state.evictable)),
    )

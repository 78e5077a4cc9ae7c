"""What a manager shows of itself in lock-step, and the names under which two states count as one.

A manager that gives `observe` is compared with the spec after each operation: both sides are an `Observation`, and the
two must be equal. `views` makes the spec's. Whoever shows less is judged from outside (`black_box`) and needs nothing
of this page but `Naming`, and that only for a `fingerprint`.

What is here is what users and devices can tell apart: rows and lengths, who holds which block, what may be taken and
what must wait, copies and launches under way, what can be found again. Counters stand beside the sets that they count,
since an implementation keeps both and can be wrong in one of them. Free lists, fences, layouts and hashes are left
out: an implementation keeps them as it likes. Two observations are compared in time proportional to what they show.
"""

from collections.abc import Mapping
from typing import NamedTuple

from .state import Block, Copy, Handle, LaunchId, Name


class Seen(NamedTuple):
    """What an implementation shows of one sequence."""

    row: tuple[Block, ...]  # as stored, to the last entry that is not null
    allocated: int
    launched: int
    written: int
    known: int = 0


class Observation(NamedTuple):
    """What an implementation shows of itself, to be equal to the same seen in the spec's state."""

    sequences: Mapping[Name, Seen]
    references: Mapping[Block, int]  # of held blocks: sequences, and pins
    free: frozenset[Block]
    quarantined: frozenset[Block]  # without holder, not published, not free
    copies: frozenset[Copy]  # planned
    in_flight: tuple[LaunchId, ...]
    counters: tuple[int, int, int]  # free, held, quarantined: as counted while it runs, not by a walk
    published: frozenset[Block] = frozenset()
    idle: frozenset[Block] = frozenset()  # published, without holder
    pins: Mapping[Handle, tuple[Block, ...]] = {}  # what each holds, from the first block of its chain
    idle_counters: tuple[int, int] = (0, 0)  # idle, and of these evictable: as counted


class Naming(NamedTuple):
    """New names for old, under which two states that differ in names alone become equal."""

    blocks: Mapping[Block, int]
    sequences: Mapping[Name, int]
    launches: Mapping[LaunchId, int]  # of those in flight

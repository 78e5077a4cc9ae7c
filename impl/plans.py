"""What a scheduler answers: what a step does, and what came of one.

A `Plan` is for the device: a launch, how many tokens each of its rows samples, and what changed in the block table. It
also names the requests to which something happened, for whoever looks after them. Arrays are the caller's to keep.
"""

from typing import NamedTuple

import numpy as np

from .arrays import IndexArray, Int64Array, frozen
from .results import Added, Extension, Forked, Launch, Publication


class Admission(NamedTuple):
    """A request runs from here on."""

    request: int
    names: tuple[int, ...]  # of the sequences that were added
    tokens: int  # known tokens of these, together
    hit_tokens: int  # of them, those that need no computing, since their blocks were found in the prefix cache
    resumed: bool  # it had run before and was preempted: what is no hit is computed again


class Preemption(NamedTuple):
    """A request waits again, without any block."""

    request: int
    recompute: tuple[tuple[int, int], ...]  # (name, n) of each sample: its positions 0 to n - 1 are to be computed anew


class Fork(NamedTuple):
    """A sample goes on from its request's prompt."""

    parent: int
    child: int


class Plan(NamedTuple):
    """One step. A mirror of the block table takes `extension.edits` and `begun`, in this order.

    `samples` are tokens sampled: 0 where a row's launch does not reach its last known token; else 1, or as many as the
    request has samples where this ends its prompt. `complete` takes `samples.sum()` tokens, row by row.
    """

    launch: Launch | None  # None where there is nothing to do
    counts: Int64Array  # [rows] positions written
    samples: Int64Array  # [rows] tokens sampled
    extension: Extension | None  # slots and table edits of the decoding rows, None where there are none
    begun: tuple[Added | Forked, ...]  # table rows that began: of admitted sequences, then of forks
    admitted: tuple[Admission, ...] = ()
    preempted: tuple[Preemption, ...] = ()
    failed: tuple[int, ...] = ()  # requests that can't go on, whatever the engine does: they have left
    forked: tuple[Fork, ...] = ()


class Completion(NamedTuple):
    """What came of a launch. A mirror of the block table takes the publication's edits."""

    finished: tuple[int, ...]  # requests all samples of which are done, and which have left
    publication: Publication | None  # what became hittable by it, None where nobody shares


class Flight(NamedTuple):
    """A launch that is not completed: whose rows these are, and who gets the tokens."""

    slots: IndexArray  # [rows]
    lives: Int64Array  # [rows]
    decoding: (
        Int64Array  # [rows] 1 where the row wrote one sampled token, 0 where a part of what was known at its start
    )
    receivers: IndexArray  # [tokens] slots, in order
    receiver_lives: Int64Array  # [tokens]
    firsts: tuple[int, ...]  # slots of the rows whose request may get its first token


NO_COUNTS: Int64Array = frozen(np.empty(0, np.int64))
NOTHING = Plan(None, NO_COUNTS, NO_COUNTS, None, ())
NOTHING_CAME = Completion((), None)

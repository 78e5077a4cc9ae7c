"""Which tokens a launch is given, and where what it samples comes from: what the scheduler knows, as arrays.

A row that decodes is given the last token that was sampled for it. Two steps ahead, the host may not have it yet: then
it is a *placeholder*, a place among the tokens that the launch in flight samples, and the device fills it in. A row
that prefills or recomputes is given a chunk of what is known of it: its prompt, and behind it what was sampled.

Guarantees: a placeholder is a sampled token of the row's present life. What a launch in flight samples for an earlier
one (the sequence was preempted since, and is computed anew) is never used (R-LIFE-7). Cost: a few gathers along the
rows, and one call a row that prefills. Considered: keeping the last token of each sequence on the device for good (one
array more that has to follow every fork, move and preemption).
"""

from typing import NamedTuple

import numpy as np

from .arrays import NO_SLOTS, IndexArray, Int64Array
from .plans import Flight, Plan
from .refusals import InvalidArgument
from .serving import Serving

KNOWN = -1  # in `StepTokens.sources`


class StepTokens(NamedTuple):
    """The tokens of a launch: what goes in, and where new ones come out."""

    ids: Int64Array  # [tokens] token ids of the new positions, row by row; some token where `sources` names a place
    sources: Int64Array  # [tokens] place among the tokens that the previous launch samples, or -1: the id is known
    sampling: Int64Array  # [samples] which of the new positions is sampled; one may stand several times
    ordinals: Int64Array  # [samples] 0, 1, 2 ... where one position is sampled several times


class Placeholders:
    """What the launch in flight samples, and for whom."""

    __slots__ = ("_launch", "_life", "_place")

    def __init__(self) -> None:
        self._launch = 0  # whose tokens they are
        self._life: Int64Array = NO_SLOTS  # by slot: the life that gets a token of it, or one that is over
        self._place: Int64Array = NO_SLOTS  # by slot: which

    def tokens(self, serving: Serving, plan: Plan) -> StepTokens:
        """Return the tokens of a plan that has a launch, just made. O(rows + tokens)."""
        assert plan.launch is not None, "a plan without launch has no tokens"
        flight = serving.flights[plan.launch.id]
        ends = np.cumsum(plan.counts)
        ids = np.zeros(ends.item(-1), np.int64)
        sources = np.full(ids.size, KNOWN)
        decoding = flight.decoding.nonzero()[0]
        if decoding.size == flight.slots.size:  # a step of decode: a token a row
            self._fill_decoding(serving, flight.slots, flight.lives, ids, sources)
        else:
            _fill_chunks(serving, plan, flight, ends, ids)
            last_ids, last_sources = ids[ends[decoding] - 1], sources[ends[decoding] - 1]
            self._fill_decoding(serving, flight.slots[decoding], flight.lives[decoding], last_ids, last_sources)
            ids[ends[decoding] - 1], sources[ends[decoding] - 1] = last_ids, last_sources
        self._remember(plan.launch.id, flight, len(serving.running.owner))
        return StepTokens(ids, sources, *_sampling(plan, ends))

    def _fill_decoding(
        self, serving: Serving, slots: IndexArray, lives: Int64Array, ids: Int64Array, sources: Int64Array
    ) -> None:
        """Write the last token of each slot, and its place in the launch in flight where that samples it."""
        if not slots.size:
            return
        ids[:] = serving.running.tokens.last(slots)
        if self._launch in serving.flights:
            np.copyto(sources, self._place[slots], where=self._life[slots] == lives)

    def _remember(self, launch_id: int, flight: Flight, slots: int) -> None:
        """Note who gets the tokens of a launch, in the order in which they are sampled."""
        if self._life.size < slots:
            self._life, self._place = np.zeros(slots, np.int64), np.zeros(slots, np.int64)
        self._life[:] = 0  # a life is above 0
        self._launch = launch_id
        self._life[flight.receivers] = flight.receiver_lives
        self._place[flight.receivers] = np.arange(flight.receivers.size)


def _fill_chunks(serving: Serving, plan: Plan, flight: Flight, ends: Int64Array, ids: Int64Array) -> None:
    """Write the ids of rows that prefill or recompute."""
    assert plan.launch is not None, "a plan without launch has no tokens"
    rows = (flight.decoding == 0).nonzero()[0]
    columns = (flight.slots[rows], plan.launch.starts[rows], plan.launch.lengths[rows], ends[rows])
    for slot, start, length, end in zip(*(column.tolist() for column in columns), strict=True):
        request = serving.running.owner[slot]
        if request is None or request.given_ids is None:
            raise InvalidArgument("a request has no token ids to compute with: submit it by the loop")
        known = np.concatenate((request.given_ids, serving.running.tokens.of(slot)))
        ids[end - (length - start) : end] = known[start:length]


def _sampling(plan: Plan, ends: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return (sampling, ordinals)."""
    samples = plan.samples
    least, most = samples.min(), samples.max()
    if least == most == 1:
        return ends - 1, np.zeros(ends.size, np.int64)
    if most <= 1:
        sampling = (ends - 1)[samples > 0]
        return sampling, np.zeros(sampling.size, np.int64)
    before = np.cumsum(samples) - samples
    ordinals = np.arange(samples.sum()) - np.repeat(before, samples)
    return np.repeat(ends - 1, samples), ordinals

"""The samples that a scheduler has begun, one array a field, and the order in which those that run are served.

A sample has a *slot* from its request's first admission until it is done, through preemption. While it runs it has a
*life*, a number that no other sample had or will have: a launch keeps the lives of its rows, and a result whose life is
over is nobody's (R-LIFE-7). The cache's own epochs say the same, but the cache forgets them as a sequence leaves.

`behind` is how much of the known tokens is not launched: above 0 for a prompt or a recompute that goes on. `left` is
how many tokens the sample may still be given, and `more` the same less those that launches in flight will give. They
are all that a step has to know of a sequence; lengths are the cache's. What a step needs is read in a few gathers
along `order`: the running slots by rank of their requests, and by name within one.

Guarantees: a slot is used again only after it has left `order`. Cost: O(batch) a step; to leave is O(1), since `order`
is tidied once a step however many leave; to come is O(1) behind all others, else O(running).
"""

from typing import Self

import numpy as np

from .arrays import NO_IDS, IndexArray, Int64Array, grown
from .requests import Live
from .sampled_tokens import SampledTokens

SLOTS_AT_FIRST = 64


class Running:
    """Slots of samples, and who runs.

    Samples: `open`, `close`. Sequences: `begin`, `begin_like`, `stop`, `tidy`. Steps: `launched`.
    """

    __slots__ = (
        "_free",
        "_leaving",
        "_lives",
        "_untidy",
        "behind",
        "left",
        "life",
        "more",
        "name",
        "order",
        "owner",
        "rank",
        "sequences",
        "sharers",
        "shares",
        "tokens",
        "unfinished",
    )

    def __init__(self) -> None:
        self.order: IndexArray = NO_IDS
        self.sequences = 0  # samples of running requests, those among them that are not forked yet
        self.unfinished = 0  # sequences that are behind
        self.owner: list[Live | None] = [None] * SLOTS_AT_FIRST
        self.name = np.zeros(SLOTS_AT_FIRST, np.int64)
        self.rank = np.zeros(SLOTS_AT_FIRST, np.int64)
        self.life = np.zeros(SLOTS_AT_FIRST, np.int64)  # 0 where it has no sequence
        self.behind = np.zeros(SLOTS_AT_FIRST, np.int64)
        self.left = np.zeros(SLOTS_AT_FIRST, np.int64)
        self.more = np.zeros(SLOTS_AT_FIRST, np.int64)
        self.shares = np.zeros(SLOTS_AT_FIRST, bool)  # whether its prefix is shared: its token ids are known
        self.sharers = 0  # slots that do
        self.tokens = SampledTokens(SLOTS_AT_FIRST)
        self._free = list(range(SLOTS_AT_FIRST - 1, -1, -1))
        self._leaving: list[int] = []  # done, and perhaps still in `order`
        self._lives = 0
        self._untidy = False  # whether `order` has slots without sequence

    def open(self, request: Live) -> None:
        """Give each sample of a request a slot. O(samples)."""
        if len(self._free) < len(request.names):
            self._grow(len(request.names))
        for name in request.names:
            slot = self._free.pop()
            self.owner[slot] = request
            self.name[slot] = name
            self.rank[slot] = request.rank
            self.left[slot] = self.more[slot] = request.outputs
            self.shares[slot] = request.prompt is not None
            self.tokens.open(slot, request.outputs)
            request.slots.append(slot)
        self.sharers += len(request.names) if request.prompt is not None else 0

    def close(self, slot: int) -> None:
        """Take away the slot of a sample that is done and has no sequence any more. O(1)."""
        self.owner[slot] = None
        if self.shares.item(slot):
            self.sharers -= 1
        self.tokens.close(slot)
        self._leaving.append(slot)
        self._untidy = True

    def begin(self, slot: int, behind: int) -> None:
        """Let a sample run, with so many known tokens to be launched, in the place that its request's rank gives it."""
        self._lives += 1
        self.life[slot] = self._lives
        self.behind[slot] = behind
        self.unfinished += behind > 0
        rank, order = self.rank.item(slot), self.order
        if not order.size or self.rank.item(order.item(-1)) <= rank:
            self.order = np.append(order, slot)
        else:
            self.order = np.insert(order, int(np.searchsorted(self.rank[order], rank, "right")), slot)

    def begin_like(self, parent: int, slot: int) -> None:
        """Let a sample run as a fork of its sibling, all of which is launched."""
        self.begin(slot, 0)
        self.more[slot] = self.more[parent]

    def stop(self, slot: int) -> int:
        """End a sample's life; return its sequence's name. Tokens on their way to it are lost. O(1)."""
        self.life[slot] = 0
        self._untidy = True
        if self.behind.item(slot):
            self.behind[slot] = 0
            self.unfinished -= 1
        self.more[slot] = self.left[slot]
        return self.name.item(slot)

    def tidy(self) -> None:
        """Take out of `order` whoever has left. O(running) where somebody has."""
        if not self._untidy:
            return
        self._untidy = False
        self.order = self.order[self.life[self.order] != 0]
        self._free += self._leaving
        self._leaving.clear()

    def launched(self, slots: IndexArray, counts: int | Int64Array) -> Int64Array:
        """Move on by a launch; return how many tokens each row samples, 1 or 0. O(rows)."""
        if not self.unfinished:
            self.more[slots] -= 1
            return np.ones(slots.size, np.int64)
        behind = np.maximum(self.behind[slots] - counts, 0)  # a decode row was not behind
        finished = behind == 0
        self.unfinished -= int(np.count_nonzero(self.behind[slots]) - np.count_nonzero(behind))
        self.behind[slots] = behind
        samples: Int64Array = finished.astype(np.int64)
        self.more[slots] -= samples
        return samples

    def clone(self, live: dict[int, Live]) -> Self:
        """Return an independent copy, whose requests are the clones given by id."""
        twin = object.__new__(type(self))
        twin.owner = [owner and live[owner.id] for owner in self.owner]
        twin.order, twin.sequences, twin.unfinished = self.order.copy(), self.sequences, self.unfinished
        twin.sharers = self.sharers
        for field in ("name", "rank", "life", "behind", "left", "more", "shares"):
            setattr(twin, field, getattr(self, field).copy())
        twin.tokens = self.tokens.clone()
        twin._free, twin._leaving, twin._lives = self._free.copy(), self._leaving.copy(), self._lives
        twin._untidy = self._untidy
        return twin

    def _grow(self, more: int) -> None:
        """Make room for at least so many more slots: twice as many as there are. O(slots)."""
        old = len(self.owner)
        new = 2 * old + more
        self._free = [*range(new - 1, old - 1, -1), *self._free]
        self.owner += [None] * (new - old)
        self.tokens.grow(new)
        self.name, self.rank, self.life = grown(self.name, new), grown(self.rank, new), grown(self.life, new)
        self.shares = grown(self.shares, new)
        self.behind, self.left, self.more = grown(self.behind, new), grown(self.left, new), grown(self.more, new)

"""What a scheduler works on: the requests that have not left, where they are, and how they leave a place.

A request is in one place at a time: it waits, or it runs. Whoever leaves for good or is preempted gives all of it back
in one action: every sequence of its samples is released, whatever of it is in flight, and what the launches in flight
would have given it is nobody's (R-PRE-1). Nothing is kept back by somebody who waits (R-CAP-4).
"""

from typing import Self

import numpy as np

from .arrays import IndexArray, Int32Array
from .cache import BlockCache
from .plans import Flight, Preemption
from .refusals import InvalidArgument
from .requests import Limits, Live
from .results import Publication
from .running import Running
from .waiting import Waiting


class Serving:
    """The state of a scheduler between two operations.

    Requests: `preempt`, `remove`, `take_first_tokens`, `finish_sample`. Tokens: `known`, `known_ids`, `publish`.
    """

    __slots__ = ("cache", "flights", "limits", "live", "published", "running", "running_requests", "waiting")

    def __init__(self, cache: BlockCache, limits: Limits) -> None:
        if not isinstance(cache, BlockCache) or not isinstance(limits, Limits):
            raise InvalidArgument("a scheduler is made of a BlockCache and its Limits")
        self.cache = cache
        self.limits = limits
        self.live: dict[int, Live] = {}
        self.waiting = Waiting()
        self.running = Running()
        self.running_requests = 0
        self.published = 0  # blocks, in all
        self.flights: dict[int, Flight] = {}  # launch -> whose rows it has, oldest first

    def known(self, slot: int) -> int:
        """Return how many tokens of a sample are known: its prompt and what was sampled."""
        request = self.running.owner[slot]
        assert request is not None, "a sample that is done has no length"
        return request.prompt_tokens + request.outputs - self.running.left.item(slot)

    def known_ids(self, slot: int) -> Int32Array | None:
        """Return the known tokens of a sample, None where they are not kept."""
        request = self.running.owner[slot]
        assert request is not None, "a sample that is done has no tokens"
        if request.prompt is None or request.fresh:
            return request.prompt
        return np.concatenate((request.prompt, self.running.tokens.of(slot)))

    def publish(self, flight: Flight) -> Publication | None:
        """Tell the cache what tokens a launch that has retired wrote; None if there is nobody to tell it of. O(rows).

        A decoding row wrote the last token that was sampled for it before; what it samples now has no position yet. A
        part of a prompt was known from the start.
        """
        running, slots, decoding = self.running, flight.slots, flight.decoding
        if not running.sharers:
            return None
        told = (running.life[slots] == flight.lives) & running.shares[slots]
        if np.count_nonzero(told) < slots.size:
            slots, decoding = slots[told], decoding[told]
            if not slots.size:
                return None
        tokens = running.tokens.last(slots[decoding > 0])
        publication = self.cache.publish(running.name[slots], tokens, decoding)
        self.published += publication.blocks.size
        return publication

    def preempt(self, request: Live) -> Preemption:
        """Let a running request wait again at its rank, without a block, row or pending token. O(its blocks)."""
        self._stop(request)
        request.need = 0  # it knows more than when it was looked at
        self.waiting.push(request)
        names = self.running.name
        return Preemption(request.id, tuple((names.item(slot), self.known(slot)) for slot in request.slots))

    def remove(self, request: Live) -> None:
        """Let a request go, wherever it is. O(its blocks)."""
        del self.live[request.id]
        if request.running:
            self._stop(request)
        else:
            self.waiting.remove(request)
        for slot in request.slots:
            self.running.close(slot)

    def take_first_tokens(self, alive: IndexArray, firsts: tuple[int, ...]) -> None:
        """Note that requests have a token of each sample, where the slot of their first is still alive. O(batch)."""
        for slot in set(firsts).intersection(alive.tolist()):
            request = self.running.owner[slot]
            assert request is not None, "a sequence that runs is a request's"
            request.fresh = False

    def finish_sample(self, slot: int) -> int | None:
        """Let a sample go that is done; return its request if that was the last of it. O(its blocks)."""
        running = self.running
        request = running.owner[slot]
        assert request is not None, "R-OWN-3: a sample is done twice"
        self.cache.release(running.stop(slot))
        running.close(slot)
        running.sequences -= 1
        request.slots.remove(slot)
        if request.slots:
            return None
        del self.live[request.id]
        self.running_requests -= 1
        return request.id

    def _stop(self, request: Live) -> None:
        """Release every sequence of a running request, in the order of their names."""
        running, cache = self.running, self.cache
        for slot in request.slots:
            if running.life.item(slot):  # else it is to be forked yet
                cache.release(running.stop(slot))
        running.sequences -= len(request.slots)
        self.running_requests -= 1
        request.running = False

    def clone(self) -> Self:
        """Return an independent copy, on a copy of the cache."""
        twin = object.__new__(type(self))
        twin.cache, twin.limits = self.cache.clone(), self.limits
        twin.live = {request.id: request.clone() for request in self.live.values()}
        twin.waiting, twin.running = self.waiting.clone(twin.live), self.running.clone(twin.live)
        twin.published = self.published
        twin.running_requests, twin.flights = self.running_requests, self.flights.copy()
        return twin

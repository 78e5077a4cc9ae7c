"""The requests that wait, first in rank first.

A binary heap, so that a submission costs O(log waiting) and a step that admits nobody O(1), however many wait. Who is
cancelled while it waits stays in the heap until it comes to the top, or until more than half of the heap are such.
"""

from heapq import heapify, heappop, heappush
from typing import Self

from .requests import Live


class Waiting:
    """Requests by rank: `push`, `first`, `pop`, `remove`."""

    __slots__ = ("_gone", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[int, Live]] = []
        self._gone: set[int] = set()  # ranks of those removed and still in the heap

    def __len__(self) -> int:
        return len(self._heap) - len(self._gone)

    def push(self, request: Live) -> None:
        """Let a request wait. O(log waiting)."""
        heappush(self._heap, (request.rank, request))

    def first(self) -> Live | None:
        """Return the request that is next, None if nobody waits."""
        heap = self._heap
        while heap and heap[0][0] in self._gone:
            self._gone.remove(heappop(heap)[0])
        return heap[0][1] if heap else None

    def pop(self) -> None:
        """Take out the request that is next. O(log waiting)."""
        heappop(self._heap)

    def remove(self, request: Live) -> None:
        """Take out a request that waits. O(1) over time."""
        self._gone.add(request.rank)
        if 2 * len(self._gone) > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[0] not in self._gone]
            heapify(self._heap)
            self._gone.clear()

    def clone(self, live: dict[int, Live]) -> Self:
        """Return an independent copy, whose requests are the clones given by id."""
        twin = object.__new__(type(self))
        twin._heap = [(rank, live[request.id]) for rank, request in self._heap if rank not in self._gone]
        heapify(twin._heap)
        twin._gone = set()
        return twin

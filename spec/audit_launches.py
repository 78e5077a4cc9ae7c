"""Launches in flight, as the audit keeps them: who happens before whom, in constant time.

Each launch has a *clock* (Fidge and Mattern's vector clocks): for each stream, the newest launch that happens before it
or is it. Launches of one stream execute in order, so one number a stream says it all: a launch happens before another
if its id is at most what the other's clock has for its stream. A clock is worked out once, at submission, from the
clock of the launch before it on its stream and those of the launches that it names, in O(streams) each.

What has left takes with it all that happens before it. So a clock may go on mentioning launches that have left: they
are simply in flight no more, and nobody needs to be ordered after them.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from .state import LaunchId, Name

Clock = dict[int, LaunchId]  # stream -> the newest launch of it that happens before, or is the one meant


class Flight(NamedTuple):
    """A launch in flight."""

    stream: int
    clock: Clock
    rows: Mapping[Name, int]  # how many positions it writes of each


class Launches:
    """The launches in flight, in order of submission, and the newest id."""

    def __init__(self) -> None:
        self.issued: LaunchId = 0
        self.in_flight: dict[LaunchId, Flight] = {}
        self._streams: dict[int, deque[LaunchId]] = {}  # in flight, a stream, oldest first
        self._newest: dict[int, Clock] = {}  # the clock of each stream's newest launch

    @property
    def oldest(self) -> LaunchId:
        """The oldest launch in flight; the next id where there is none."""
        return next(iter(self.in_flight), self.issued + 1)

    def clock(self, stream: int, after: Iterable[LaunchId]) -> Clock:
        """Return what would happen before a launch on this stream after these, stream by stream. O(streams x after)."""
        clock = dict(self._newest.get(stream, ()))
        for launch in after:
            if launch in self.in_flight:
                merge(clock, self.in_flight[launch].clock)
        return clock

    def not_before(self, launches: Iterable[LaunchId], clock: Clock) -> list[LaunchId]:
        """Return those of some launches that are in flight and that the clock does not know to happen before."""
        flights = self.in_flight
        return sorted(
            launch for launch in launches if launch in flights and clock.get(flights[launch].stream, 0) < launch
        )

    def submit(self, stream: int, clock: Clock, rows: Mapping[Name, int]) -> LaunchId:
        """Take a launch in; what happens before it is in `clock`. O(1)."""
        self.issued += 1
        clock[stream] = self.issued
        self._newest[stream] = clock
        self.in_flight[self.issued] = Flight(stream, clock, rows)
        self._streams.setdefault(stream, deque()).append(self.issued)
        return self.issued

    def retire(self, launch: LaunchId) -> None:
        """Let a launch in flight leave, and all that happens before it. O(streams + what leaves)."""
        for stream, newest in self.in_flight[launch].clock.items():
            queue = self._streams[stream]
            while queue and queue[0] <= newest:
                del self.in_flight[queue.popleft()]

    def clone(self) -> "Launches":
        """Return an independent copy; clocks are written at submission alone, and shared."""
        twin = Launches()
        twin.issued, twin.in_flight, twin._newest = self.issued, self.in_flight.copy(), self._newest.copy()
        twin._streams = {stream: queue.copy() for stream, queue in self._streams.items()}
        return twin


def merge(clock: Clock, other: Clock) -> None:
    """Raise a clock to another, stream by stream."""
    for stream, launch in other.items():
        if clock.get(stream, 0) < launch:
            clock[stream] = launch

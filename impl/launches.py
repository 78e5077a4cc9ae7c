"""Launches in flight: what the host has handed to the device and not yet learnt the end of.

Launches of one stream execute in the order of submission; a launch may also name launches of other streams that must
have executed before it. So each launch has a *clock* (the vector clocks of Fidge and Mattern, one entry a stream): the
newest launch of each stream that happens before it or is it. `retire(L)` means that the host knows L has executed, and
with it everything up to L's clock: each stream's *retired mark* moves up to it, and what lies at or below the marks
leaves.

A launch also carries what waits for it: blocks without holder, and table rows without sequence, which may be used
again once it has retired. They are looked at when their launch leaves and not before.

Guarantees: an id is used once; a launch leaves once, whatever became of its sequences; a completion that is delivered
twice finds nothing to do (R-LIFE-4). Cost: O(streams) a submission; a retirement O(launches in flight up to it).
Considered: counting unretired readers a block, which is a pass over every block of every row at each launch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from .arguments import shown
from .arrays import IndexArray, Int32Array, Int64Array
from .refusals import UnknownLaunch
from .results import Launch


@dataclass(slots=True)
class InFlight:
    """A launch, what happens before it, and what waits for it."""

    launch: Launch
    clock: tuple[int, ...]  # for each stream, the newest launch that happens before this one or is it
    operation: int  # how many operations there had been
    waiting_blocks: list[IndexArray]
    waiting_rows: list[int]


class LaunchLog:
    """The launches in flight, in order of submission.

    Operations: `submit`, `retire`. Questions: `pending`, `busy`, `edges`, `oldest`, `streams`.
    """

    __slots__ = ("_clocks", "in_flight", "issued", "limit", "retired")

    def __init__(self, streams: int, limit: int) -> None:
        self.limit = limit
        self.issued = 0  # the newest id
        self.retired = [0] * streams  # for each stream: its launches up to this id have retired
        self.in_flight: dict[int, InFlight] = {}
        self._clocks: list[tuple[int, ...]] = [(0,) * streams] * streams  # for each stream, its newest launch's clock

    @property
    def streams(self) -> int:
        """How many streams there are."""
        return len(self.retired)

    @property
    def oldest(self) -> int:
        """The oldest launch in flight, or the next id if none is."""
        return next(iter(self.in_flight), self.issued + 1)

    def busy(self, stream: int) -> bool:
        """Whether a launch of this stream is in flight. O(1)."""
        return self._clocks[stream][stream] > self.retired[stream]

    def pending(self, fences: Sequence[int]) -> bool:
        """Whether any launch that these fences name, one a stream, has not retired. O(streams)."""
        for fence, retired in zip(fences, self.retired, strict=False):  # noqa: SIM110  (any() costs three times as much)
            if fence > retired:
                return True
        return False

    def edges(self, stream: int, fences: Int64Array, rows: IndexArray) -> tuple[int, ...]:
        """Return what a launch on `stream` must name to be ordered after the fences of these rows. O(rows x streams).

        Left out: what has retired, and what already happens before the stream's newest launch.
        """
        after = []
        for other, known in enumerate(self._clocks[stream]):
            if other != stream and self.busy(other):
                fence = int(fences[other][rows].max())
                if fence > known and fence > self.retired[other]:
                    after.append(fence)
        return tuple(after)

    def submit(self, launch: Launch, operation: int) -> None:
        """Take a launch in; its id is the next one. O(streams x edges)."""
        stream = launch.stream
        launch_id = self.issued = launch.id
        clock = self._clocks[stream]
        for other in launch.after:
            clock = tuple(map(max, clock, self.in_flight[other].clock))
        clock = self._clocks[stream] = (*clock[:stream], launch_id, *clock[stream + 1 :])
        self.in_flight[launch_id] = InFlight(launch, clock, operation, [], [])

    def retire(self, launch_id: int) -> list[InFlight]:
        """Let a launch leave with all that happens before it; return what left, oldest first."""
        if not 1 <= launch_id <= self.issued:
            raise UnknownLaunch(f"launch {shown(launch_id)} was never issued; the newest is {self.issued}")
        done = self.in_flight.get(launch_id)
        if done is None:
            return []
        leaving = []
        for older, flight in self.in_flight.items():
            if older > launch_id:
                break  # what happens before a launch is older than it
            if older <= done.clock[flight.launch.stream]:
                leaving.append(flight)
        for flight in leaving:
            del self.in_flight[flight.launch.id]
        for stream, mark in enumerate(done.clock):
            if mark > self.retired[stream]:  # noqa: PLR1730  (a call would cost more than all else in this loop)
                self.retired[stream] = mark
        return leaving

    def clone(self, table: Int32Array, twin_table: Int32Array) -> Self:
        """Return an independent copy whose launches read `twin_table` where these read `table`.

        A table that growth has left behind is written by nobody any more, and stays shared.
        """
        twin = object.__new__(type(self))
        twin.limit, twin.issued, twin.retired = self.limit, self.issued, self.retired.copy()
        twin._clocks = self._clocks.copy()
        twin.in_flight = {
            launch_id: InFlight(
                flight.launch._replace(table=twin_table) if flight.launch.table is table else flight.launch,
                flight.clock,
                flight.operation,
                flight.waiting_blocks.copy(),
                flight.waiting_rows.copy(),
            )
            for launch_id, flight in self.in_flight.items()
        }
        return twin

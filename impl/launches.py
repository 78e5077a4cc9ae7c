"""Launches in flight: what the host has handed to the device and not yet learnt the end of.

Launches of one stream execute in the order of submission; a launch may also name launches of other streams that must have executed before it.
So each launch has a *clock* (Fidge and Mattern's vector clocks, one entry a stream): the newest launch of each stream that happens
before it or is it. `retire(L)` means that the host knows L has executed, and with it everything up to L's clock: every stream's
*retired mark* moves up to it, and what lies at or below the marks leaves.

A launch also carries what waits for it: blocks and table rows without holder, which may be reused once it has
retired. Waiting things are moved when their launch leaves and not before, so cost follows what was released, never what is held.

Guarantees: an id is used once; a launch leaves once, whatever became of its sequences; a completion that comes twice finds nothing to do
(R-LIFE-4). Cost: O(streams) a submission; a retirement O(launches that leave). Considered: counting unretired readers a
block, which costs a pass over every block of every row at each launch.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from .arrays import IndexArray, Int32Array
from .refusals import UnknownLaunch
from .results import Launch


@dataclass(slots=True)
class InFlight:
    """A launch, what happens before it, and what waits for it."""

    launch: Launch
    clock: tuple[int, ...]  # for each stream, the newest launch that happens before this one or is it
    operation: int  # how many operations there had been
    waiting_blocks: list[IndexArray] = field(default_factory=list)
    waiting_rows: list[int] = field(default_factory=list)


class LaunchLog:
    """The launches in flight, in order of submission."""

    __slots__ = ("_clocks", "_queues", "in_flight", "issued", "limit", "retired")

    def __init__(self, streams: int, limit: int) -> None:
        self.limit = limit
        self.issued = 0  # the newest id
        self.retired = [0] * streams  # per stream: launches up to this id have retired
        self.in_flight: dict[int, InFlight] = {}
        self._queues: list[deque[int]] = [deque() for _ in range(streams)]  # ids in flight a stream, oldest first
        self._clocks: list[tuple[int, ...]] = [(0,) * streams] * streams  # per stream, its newest launch's clock

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
        return bool(self._queues[stream])

    def pending(self, fences: Sequence[int]) -> bool:
        """Whether any launch that these fences name, one a stream, has not retired. O(streams)."""
        for fence, retired in zip(fences, self.retired, strict=False):  # noqa: SIM110  (any() costs three times as much)
            if fence > retired:
                return True
        return False

    def edges(self, stream: int, fences: Sequence[int]) -> tuple[int, ...]:
        """Return what a launch on `stream` must name to be ordered after `fences`, one a stream. O(streams).

        Left out: what has retired, and what already happens before the stream's newest launch.
        """
        clock = self._clocks[stream]
        return tuple(
            fence
            for other, fence in enumerate(fences)
            if other != stream and fence > self.retired[other] and fence > clock[other]
        )

    def submit(self, launch: Launch, operation: int) -> None:
        """Take a launch in: its id is the next one. O(streams x edges)."""
        stream = launch.stream
        clock = list(self._clocks[stream])
        for other in launch.after:
            clock = [max(pair) for pair in zip(clock, self.in_flight[other].clock, strict=True)]
        clock[stream] = launch.id
        self._clocks[stream] = tuple(clock)
        self._queues[stream].append(launch.id)
        self.in_flight[launch.id] = InFlight(launch, self._clocks[stream], operation)
        self.issued = launch.id

    def retire(self, launch_id: int) -> list[InFlight]:
        """Let a launch leave with all that happens before it; return what left, oldest first. O(what leaves)."""
        if not 1 <= launch_id <= self.issued:
            raise UnknownLaunch(f"launch {launch_id} was never issued; the newest is {self.issued}")
        done = self.in_flight.get(launch_id)
        if done is None:
            return []
        leaving: list[int] = []
        for stream, mark in enumerate(done.clock):
            queue = self._queues[stream]
            while queue and queue[0] <= mark:
                leaving.append(queue.popleft())
            self.retired[stream] = max(self.retired[stream], mark)
        return [self.in_flight.pop(old) for old in sorted(leaving)]

    def clock_of(self, stream: int) -> tuple[int, ...]:
        """Return the clock of a stream's newest launch."""
        return self._clocks[stream]

    def clone(self, table: Int32Array, twin_table: Int32Array) -> "LaunchLog":
        """Return an independent copy whose launches read `twin_table` where these read `table`.

        A table that growth has left behind is written by nobody any more, and stays shared.
        """
        twin = LaunchLog.__new__(LaunchLog)
        twin.limit, twin.issued, twin.retired = self.limit, self.issued, self.retired.copy()
        twin._queues = [queue.copy() for queue in self._queues]
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

"""What can be seen of a scheduler without changing it: requests, their samples, launches that are not completed.

Values, each made when it is asked for. A sample that is done is not among them: its tokens are the engine's, which was
the first to have them.
"""

from typing import NamedTuple

from .cache import BlockCache
from .requests import Limits
from .serving import Serving


class Sample(NamedTuple):
    """A sample that is not done."""

    name: int  # of its sequence
    tokens: tuple[int, ...]  # sampled so far
    pending: int  # tokens that launches in flight will give it
    running: bool  # whether it has a sequence in the cache


class RequestView(NamedTuple):
    """A request that has not left."""

    id: int
    running: bool
    samples: tuple[Sample, ...]  # in the order of their names


class SchedulerViews:
    """The views of a `Scheduler`.

    What it was made of: `cache`, `limits`. How many: `waiting`, `running`, `sequences`. Which: `requests`, `request`,
    `in_flight`.
    """

    _serving: Serving
    __slots__ = ("_serving",)

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    @property
    def cache(self) -> BlockCache:
        """The cache that it schedules. To change it is the scheduler's business, but for pins."""
        return self._serving.cache

    @property
    def limits(self) -> Limits:
        """The limits that it was made with."""
        return self._serving.limits

    @property
    def serving(self) -> Serving:
        """What it works on: for whoever brings its steps to a device. To change it is the scheduler's business."""
        return self._serving

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._serving.waiting)

    @property
    def running(self) -> int:
        """How many requests run."""
        return self._serving.running_requests

    @property
    def sequences(self) -> int:
        """How many samples of running requests are not done: what `max_running` is about."""
        return self._serving.running.sequences

    def requests(self) -> list[int]:
        """Return the ids of all requests that have not left, in order of submission. O(requests)."""
        return list(self._serving.live)

    def request(self, request: int) -> RequestView:
        """Show a request that has not left; `KeyError` where it has. O(samples x tokens)."""
        live = self._serving.live[request]
        if not live.slots:
            return RequestView(live.id, live.running, tuple(Sample(name, (), 0, running=False) for name in live.names))
        return RequestView(live.id, live.running, tuple(self._sample(slot) for slot in live.slots))

    def in_flight(self) -> list[int]:
        """Return the launches that are not completed, oldest first."""
        return list(self._serving.flights)

    def _sample(self, slot: int) -> Sample:
        running = self._serving.running
        pending = running.left.item(slot) - running.more.item(slot)
        tokens = tuple(running.tokens.of(slot).tolist())
        return Sample(running.name.item(slot), tokens, pending, running.life.item(slot) != 0)

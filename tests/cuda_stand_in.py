"""torch's streams and events where there is no GPU: everything that is queued is done at once.

With it the code for a GPU runs on a CPU, all but the calls themselves: which work is queued where, what lands where,
what a failed piece of work does. What a GPU does with it is not shown.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock


class Stream:
    """A stream on which nothing is ever left to do."""

    def __init__(self, device: Any) -> None:
        self.device = device

    def wait_stream(self, other: "Stream") -> None:
        assert other.device == self.device

    def synchronize(self) -> None:
        """Nothing is left to do."""


class Event:
    """An event that has happened once it is recorded."""

    def __init__(self) -> None:
        self.recorded: Stream | None = None

    def record(self, stream: Stream) -> None:
        self.recorded = stream

    def query(self) -> bool:
        return self.recorded is not None

    def synchronize(self) -> None:
        assert self.recorded is not None, "an event that was never recorded"


class Ranges:
    """NVTX ranges: which are open, and all that began and ended, in order."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.seen: list[str] = []

    def push(self, name: str) -> None:
        self.open.append(name)
        self.seen.append(f"{name} begins")

    def pop(self) -> None:
        self.seen.append(f"{self.open.pop()} ends")


@contextmanager
def cuda_stand_in() -> Iterator[Ranges]:
    """Let torch.cuda have streams, events and NVTX ranges; give the ranges."""
    ranges = Ranges()
    with (
        mock.patch.multiple(
            "torch.cuda", Stream=Stream, Event=Event, stream=lambda _: nullcontext(), synchronize=lambda _: None
        ),
        mock.patch.multiple("torch.cuda.nvtx", range_push=ranges.push, range_pop=ranges.pop),
    ):
        yield ranges
    assert ranges.open == [], "every range that begins ends"

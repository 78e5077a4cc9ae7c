"""A replay as a time line for Perfetto: each step's plan, launch and retirement, and what ran, waited and was held.

The file is in the Chrome trace event format (JSON, one event a line), which ui.perfetto.dev opens, gzipped too. It has
a track of the *host*, on which a step is planned and a launch is retired; one of the *device* for each launch that may
be in flight, from the end of its planning to the beginning of its retirement; and counters of requests and blocks, as
they are once a step is planned. A track is there once something happens on it.

Times are whole microseconds. A viewer drops a slice that begins before the one ahead of it on its track has ended, and
trace processors that take a fraction of a microsecond by its binary digits and cut the rest off let slices that touch
overlap by a nanosecond.

Whose time it is depends on the replay. Without a clock (`replay_watch`) it is the host's, measured: how long scheduler
and cache really take. On simulated time (`TimelineFileMeter`) a launch lasts what the model of time says, and planning
and retiring are moments at its beginning and end. The file says which, and so does the device's name. It is written in
full or not at all.

Cost: about 0.1 ms and 560 bytes a step (50 compressed), so 100,000 steps make a file of 56 MB.
"""

import gzip
import json
import os
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from pagedkv.bench.meters import Meter, Stretch

HOST, DEVICE = 1, 2  # tracks; a second launch in flight has the one behind
NO_DEVICE = "device (host's clock: no device here)"
PROCESS = 1


class TimelineFile:
    """Writes events, microseconds from the first one on; as a context manager, whole or not at all."""

    def __init__(self, path: Path, command: str, clock: str, device: str = "device") -> None:
        """`clock` says whose time it is, `device` is the name of its track. Errors: `OSError`."""
        self._names = {HOST: "host", DEVICE: device, DEVICE + 1: f"{device}, second launch in flight"}
        self._path = path
        self._unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        self._file: IO[str] = _opened(self._unfinished, compressed=path.suffix == ".gz")
        head = json.dumps({"command": command, "clock": clock})
        self._file.write(f'{{"otherData":{head},"traceEvents":[\n')
        self._file.write(json.dumps({"ph": "M", "name": "process_name", "pid": PROCESS, "args": {"name": "replay"}}))

    def slice(self, track: int, name: str, begin_us: float, end_us: float, **facts: int) -> None:
        """Write what lasts from here to there."""
        self._name(track)
        begin, end = round(begin_us), round(end_us)
        duration = max(end - begin, 0)
        self._event(
            {"ph": "X", "name": name, "pid": PROCESS, "tid": track, "ts": begin, "dur": duration, "args": facts}
        )

    def moment(self, track: int, name: str, at_us: float, **facts: int) -> None:
        """Write what happens at once."""
        self._name(track)
        at = round(at_us)
        self._event({"ph": "i", "s": "t", "name": name, "pid": PROCESS, "tid": track, "ts": at, "args": facts})

    def counters(self, at_us: float, sequences: int, waiting: int, held: int, quarantined: int, cached: int) -> None:
        """Write what runs and waits, and who has the blocks, from here on."""
        requests = {"running sequences": sequences, "waiting requests": waiting}
        blocks = {"held": held, "quarantined": quarantined, "cached": cached}
        for name, values in (("requests", requests), ("blocks", blocks)):
            self._event({"ph": "C", "name": name, "pid": PROCESS, "ts": round(at_us), "args": values})

    def _name(self, track: int) -> None:
        """Name a track before the first thing that happens on it: a viewer shows those that have a name."""
        if name := self._names.pop(track, None):
            self._event({"ph": "M", "name": "thread_name", "pid": PROCESS, "tid": track, "args": {"name": name}})

    def _event(self, event: dict[str, Any]) -> None:
        self._file.write(",\n")
        self._file.write(json.dumps(event, separators=(",", ":")))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if kind is None:
                self._file.write("\n]}\n")
            self._file.close()
            if kind is None:
                self._unfinished.replace(self._path)
        finally:
            self._unfinished.unlink(missing_ok=True)


def _opened(path: Path, *, compressed: bool) -> IO[str]:
    if compressed:
        return gzip.open(path, "wt", compresslevel=6, encoding="utf-8")
    return path.open("w", encoding="utf-8")


class TimelineFileMeter(Meter):
    """Writes the steps of a clocked replay into a time line, in simulated time."""

    def __init__(self, timeline: TimelineFile) -> None:
        self._timeline = timeline
        self._start_ms: float | None = None
        self._launches = 0

    def passed(self, stretch: Stretch) -> None:
        """Write a step; of time in which nothing runs, only that nothing does."""
        if self._start_ms is None:
            self._start_ms = stretch.begin_ms
        begin_us, end_us = ((at - self._start_ms) * 1e3 for at in (stretch.begin_ms, stretch.end_ms))
        self._timeline.counters(
            begin_us,
            stretch.running,
            stretch.waiting,
            stretch.held_blocks,
            stretch.quarantined_blocks,
            stretch.cached_blocks,
        )
        if not stretch.decoding_rows and not stretch.prompt_tokens:
            return
        self._launches += 1
        launch = self._launches
        tokens = stretch.prompt_tokens + stretch.decoding_rows
        self._timeline.moment(HOST, "plan", begin_us, launch=launch, tokens=tokens)
        self._timeline.slice(
            DEVICE,
            "launch",
            begin_us,
            end_us,
            launch=launch,
            prompt_tokens=stretch.prompt_tokens,
            decoding_rows=stretch.decoding_rows,
            context_tokens=stretch.context_tokens,
        )
        self._timeline.moment(HOST, "retire", end_us, launch=launch)

"""Request traces as columns: what the workbench replays, sweeps and plots.

`read_trace` recognises a file by its content (`trace_formats`), reads it as a stream and keeps it as arrays, one entry
a request, *in file order*: prefix hits are counted in that order, and a request's index in the file is its name
everywhere, in a journal and in a list of refusals. `by_arrival` gives the order of arrival; some traces are not
sorted, and many have ties, which keep their file order.

Zero lengths stay in: a trace's request with no prompt tokens is counted as a request here and refused by name when it
is replayed (`Empty`), as an engine would; one with no output tokens holds its prompt and is done after it.

A request costs 24 bytes and about 5 us of parsing, and 8 bytes for each prefix id.
"""

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pagedkv.bench.failures import BadInput
from pagedkv.bench.line_reader import LineReader
from pagedkv.bench.own_files import another_of_ours
from pagedkv.bench.trace_formats import RequestStream, TraceFormat, recognise

Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]

REQUESTS_MAX = 1 << 24


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """The requests of one file.

    Arrays of one entry a request, in file order: `arrival_s` (float64, seconds since the earliest arrival),
    `prompt_tokens` and `output_tokens` (int64). The prefix ids of request i are
    `prefix_ids[prefix_starts[i] : prefix_starts[i + 1]]` (int64, none where the format has none).
    """

    path: Path
    format: TraceFormat
    arrival_s: Float64Array
    prompt_tokens: Int64Array
    output_tokens: Int64Array
    prefix_ids: Int64Array
    prefix_starts: Int64Array

    def __len__(self) -> int:
        return len(self.arrival_s)

    def by_arrival(self) -> Int64Array:
        """Give the request indices in order of arrival, ties in file order (int64). Cost: a sort."""
        return np.argsort(self.arrival_s, kind="stable").astype(np.int64, copy=False)

    def requests_per_s(self) -> float:
        """Give the mean arrival rate, one over the mean gap between arrivals; 0 where nothing can be said."""
        span_s = float(self.arrival_s.max())
        return (len(self) - 1) / span_s if span_s > 0 else 0.0


def open_requests(path: Path) -> RequestStream:
    """Recognise the format of `path` and give its requests one by one. Errors: `BadInput`. Cost: one line in memory."""
    try:
        return recognise(LineReader(path))
    except BadInput as bad:
        raise another_of_ours(str(path), path) or bad from bad


def read_trace(
    path: Path, requests: int | None = None, on_read: Callable[[int], None] = lambda _requests: None
) -> Trace:
    """Read the first `requests` requests of `path` (all of them by default) into columns.

    `on_read` hears how many there are so far. Errors: `BadInput` for whatever is no trace, for one without requests,
    and for more than 2^24 of them.
    """
    stream = open_requests(path)
    limit = REQUESTS_MAX + 1 if requests is None else requests
    arrival_s, prompt, output = array("d"), array("q"), array("q")
    ids, starts = array("q"), array("q", [0])
    for request in islice(stream.requests, limit):
        arrival_s.append(request.arrival_s)
        prompt.append(request.prompt_tokens)
        output.append(request.output_tokens)
        ids.extend(request.prefix_ids)
        starts.append(len(ids))
        on_read(len(arrival_s))
    if not arrival_s:
        raise BadInput(str(path), f"a {stream.format.name} trace without requests", "give one that has some")
    if len(arrival_s) > REQUESTS_MAX:
        raise BadInput(str(path), f"more than {REQUESTS_MAX:,} requests", "read the first of them with --requests")
    times = np.array(arrival_s, dtype=np.float64)
    return Trace(
        path=path,
        format=stream.format,
        arrival_s=times - times.min(),
        prompt_tokens=np.array(prompt, dtype=np.int64),
        output_tokens=np.array(output, dtype=np.int64),
        prefix_ids=np.array(ids, dtype=np.int64),
        prefix_starts=np.array(starts, dtype=np.int64),
    )

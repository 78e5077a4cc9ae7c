"""A grid of replays: every trace with every block size, policy and pool, each a cell that knows nothing of the others.

All but how long the replay itself took follows from a cell's settings, its requests and the code alone. So these three
make its key: a cell that was finished once is taken as it was, in a later run, on another machine, from a copy of the
trace under another name; and it is run again when a request, an option or a module has changed.

A cell ends in figures or in a failure that says why: a pool beyond reason, a pool that holds no request, a broken rule,
no memory. A failure is a row of the table like any other. Figures are those of `pagedkv replay`, under its names; with
a clock, those of a clocked one.

An axis is a field of `CellSettings`: what it means to a replay is said in `run_cell`; keys, tables and files follow.
"""

import hashlib
import itertools
import json
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pagedkv.bench.clocked_report import ClockedReport
from pagedkv.bench.clocked_trace import ClockSettings, replay_clocked
from pagedkv.bench.code_version import code_version
from pagedkv.bench.failures import BadInput
from pagedkv.bench.impl_engine import open_impl_engine
from pagedkv.bench.replay import replay
from pagedkv.bench.replay_arrivals import TrafficSettings
from pagedkv.bench.replay_queue import ReplaySettings
from pagedkv.bench.replay_report import ReplayReport, refusals_in_words
from pagedkv.bench.replay_scheduler import replay_scheduled
from pagedkv.bench.scheduler_options import PolicyName
from pagedkv.bench.scheduler_report import SchedulerReport
from pagedkv.bench.traces import Trace
from pagedkv.impl.invariants import CorruptState
from pagedkv.impl.refusals import Refused
from pagedkv.impl.requests import Limits
from pagedkv.spec.calls import said
from pagedkv.spec.counts import counted
from pagedkv.spec.refusals import Broken

DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSettings:
    """What is done with the requests: the loop's settings, the scheduler's where there is one, and its clock's."""

    policy: PolicyName
    replay: ReplaySettings
    limits: Limits | None = None
    traffic: TrafficSettings | None = None
    clock: ClockSettings | None = None

    def as_json(self) -> dict[str, Any]:
        """Give all settings under their names, those that say nothing of this policy left out."""
        parts = [asdict(part) for part in (self.replay, self.limits, self.traffic, self.clock) if part is not None]
        named = {name: value for part in parts for name, value in part.items()}
        assert len(named) == sum(map(len, parts)), "two settings of one name: a cell's key would not have both"
        named.setdefault("policy", self.policy.value)
        assert named["policy"] == self.policy.value, "a cell has the policy of its scheduler"
        return named


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of the grid: its place in the table, its trace's among the traces, and what is done with the requests.

    `CellJob` is the same with its trace, to be run.
    """

    number: int
    trace_number: int
    settings: CellSettings


@dataclass(frozen=True, slots=True)
class Failed:
    """In place of figures: why there are none; where it is a fault of this program, with what a report of it needs."""

    why: str
    traceback: str | None = None


Figures = dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class CellJob:
    """A cell with its requests, to be sent to wherever it is run: 24 bytes a request, 8 a prefix id."""

    cell: Cell
    trace: Trace

    def __call__(self) -> Figures | Failed:
        """Run it."""
        return run_cell(self.trace, self.cell.settings)


def cells_of(traces: int, settings: Sequence[CellSettings]) -> list[Cell]:
    """Give each of so many traces with all settings, in the order of the table."""
    pairs = itertools.product(range(traces), settings)
    return [Cell(number, trace_number, each) for number, (trace_number, each) in enumerate(pairs)]


def run_cell(trace: Trace, settings: CellSettings) -> Figures | Failed:
    """Replay the requests of one cell. Nothing but Ctrl-C escapes: the other cells are to go on. Cost: a replay's."""
    try:
        report = _replayed(trace, settings)
    except (BadInput, Broken, CorruptState) as error:
        return Failed(str(error))
    except (Refused, MemoryError, OSError) as error:
        return Failed(said(error))
    except Exception as error:  # noqa: BLE001  (a fault of ours, and in this cell alone)
        return Failed(said(error), traceback.format_exc())
    figures = report.as_json()
    figures.pop("timeline", None)  # a curve of hundreds of points, which a table of cells has no place for
    if figures["refused"] == figures["requests"]:
        run = report.outcome.scheduled if isinstance(report, ClockedReport) else report
        reasons = refusals_in_words(run.refusals, run.requests)
        pool = counted(run.blocks, "block")
        return Failed(f"none of {counted(run.requests, 'request')} could ever run in {pool}: {reasons}")
    return figures


def _replayed(trace: Trace, settings: CellSettings) -> ReplayReport | SchedulerReport | ClockedReport:
    if settings.limits is None or settings.traffic is None:
        return replay(trace, settings.replay, lambda options: open_impl_engine(options, None))
    if settings.clock is None:
        return replay_scheduled(trace, settings.replay, settings.limits, settings.traffic)
    return replay_clocked(trace, settings.replay, settings.limits, settings.traffic, settings.clock)


def requests_digest(trace: Trace) -> str:
    """Return what tells apart traces whose requests differ in anything that a replay looks at. Cost: a pass over them.

    The file's name does not count, nor how it is compressed.
    """
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    digest.update(f"{trace.format.prefix_block_size} {trace.format.prefix_covers_output}\n".encode())
    columns = (trace.arrival_s, trace.prompt_tokens, trace.output_tokens, trace.prefix_ids, trace.prefix_starts)
    for column in columns:
        digest.update(f"{column.dtype.str} {column.size}\n".encode())
        digest.update(column.tobytes())
    return digest.hexdigest()


def identity(digest: str, settings: CellSettings) -> dict[str, Any]:
    """Return all that a cell's result follows from."""
    return {"code": code_version(), "requests_digest": digest, **settings.as_json()}


def key_of(cell_identity: dict[str, Any]) -> str:
    """Return the name under which a finished cell is kept."""
    text = json.dumps(cell_identity, sort_keys=True, allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).hexdigest()

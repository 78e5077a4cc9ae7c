"""How much faster two workers fuzz than one: `python -m pagedkv.bench.fuzz_speed [--runs 400] [--rounds 3]`.

One process, two processes, and a local Dask cluster of two take turns at the same seeds, so that all do the same work
and what else the machine does meets all of them. Two ratios are printed. *By wall time* is the one that was promised,
and is true where nobody else is on the machine: at least 1.8 for processes, 1.6 for Dask, whose scheduler and client
have no core to themselves here. *By CPU time* compares operations per second of CPU of all processes, theirs included:
times two, it is what the ratio would be with a core for each worker, and a busy machine moves it less. It can't see a
worker that waits.

In the figure is what a search has, too: processes are started (a cluster is there before), and in the end one worker
has the last batch and the other has none.
"""

import argparse
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from pagedkv.bench.adapter import Implementation
from pagedkv.bench.dask_workers import DaskCrew, connected
from pagedkv.bench.failures import BadInput
from pagedkv.bench.progress import LateSpinner
from pagedkv.spec.fuzz import fuzz
from pagedkv.spec.fuzz_plan import Plan
from rich.console import Console
from rich.table import Table

WORKERS = 2
ALONE = "one process"
TARGETS = {"two processes": 1.8, "Dask, two workers": 1.6}
PLAN = Plan(Implementation)


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn at the seeds: operations a second of wall time, and of CPU time."""

    by_wall: float
    by_cpu: float


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; return the exit status: 1 where a ratio by wall time is missed."""
    parser = argparse.ArgumentParser(prog="python -m pagedkv.bench.fuzz_speed", description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=400, help="seeds a turn; default 400: 25 s of one idle core")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each; default 3")
    options = parser.parse_args(arguments)
    if not (1 <= options.runs <= 1e6 and 1 <= options.rounds <= 1000):
        parser.error("--runs must be from 1 to 1000000, and --rounds from 1 to 1000")
    try:
        turns = measure(options.runs, options.rounds)
    except BadInput as bad:
        print(bad, file=sys.stderr)  # noqa: T201  (a command's one line)
        return 2
    return _report(turns)


def measure(runs: int, rounds: int) -> dict[str, list[Turn]]:
    """Let each take its turn, round by round; without Dask only the first two. Errors: `BadInput`."""
    turns: dict[str, list[Turn]] = {}
    with ExitStack() as stack:
        ways: dict[str, Callable[[], Turn]] = {
            ALONE: lambda: _turn(runs, 1),
            "two processes": lambda: _turn(runs, WORKERS),
        }
        if (address := stack.enter_context(_cluster())) is not None:
            ways["Dask, two workers"] = lambda: _turn_by_dask(runs, address)
        spinner = stack.enter_context(LateSpinner("measuring"))
        for number in range(rounds):
            for name, way in ways.items():
                spinner.says(f"round {number + 1} of {rounds}, {name}")
                turns.setdefault(name, []).append(way())
    return turns


@contextmanager
def _cluster() -> Iterator[str | None]:
    """Give the address of a local cluster; None without Dask."""
    try:
        from distributed import LocalCluster  # noqa: PLC0415  (an extra)
    except ImportError:
        yield None
        return
    with LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as cluster:
        yield cluster.scheduler_address


def _turn(runs: int, workers: int) -> Turn:
    cpu_s = _cpu_s()
    tally = fuzz(PLAN, runs=runs, workers=workers)
    return Turn(tally.operations / tally.seconds, tally.operations / (_cpu_s() - cpu_s))


def _turn_by_dask(runs: int, address: str) -> Turn:
    with connected(address) as client:
        cpu_s = _cpu_s() + sum(client.run(time.process_time).values())
        tally = fuzz(PLAN, runs=runs, crew=DaskCrew(client))
        spent_s = _cpu_s() + sum(client.run(time.process_time).values()) - cpu_s
    return Turn(tally.operations / tally.seconds, tally.operations / spent_s)


def _cpu_s() -> float:
    """Return the CPU time of this process and of those that it had."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _report(turns: dict[str, list[Turn]]) -> int:
    table = Table("workers", title="fuzz, in lock-step with the spec: medians in turns", title_justify="left")
    for heading in ("operations/s", "ratio", "promised", "per CPU s", "ratio by CPU"):
        table.add_column(heading, justify="right")
    walls = {name: statistics.median(turn.by_wall for turn in some) for name, some in turns.items()}
    cpus = {name: statistics.median(turn.by_cpu for turn in some) for name, some in turns.items()}
    missed = 0
    for name in turns:
        ratio, target = walls[name] / walls[ALONE], TARGETS.get(name)
        missed += target is not None and ratio < target
        figures = [f"{walls[name]:,.0f}", f"{ratio:.2f}", "-" if target is None else f"{target}", f"{cpus[name]:,.0f}"]
        table.add_row(name, *figures, "-" if name == ALONE else f"{WORKERS * cpus[name] / cpus[ALONE]:.2f}")
    console = Console(emoji=False)
    console.print(table)
    if len(turns) < 1 + len(TARGETS):
        console.print("Dask was not measured: it is not installed (pip install 'pagedkv[dask]')", highlight=False)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

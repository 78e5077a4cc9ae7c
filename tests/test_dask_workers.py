"""`--dask`: searches and grids by the workers of a real scheduler, here a local cluster of two; and what can go wrong.

One cluster serves all tests, since it takes seconds to start. Its scheduler gives a job up when a worker has ended with
it once, unless a test allows more.
"""

import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

distributed = pytest.importorskip("distributed", reason="the extra `dask` is not installed")

from pagedkv.bench import dask_workers  # noqa: E402  (after the skip)
from pagedkv.bench.code_version import code_version  # noqa: E402
from pagedkv.bench.command_line import run  # noqa: E402
from pagedkv.bench.dask_workers import DaskCrew, connected, readiness  # noqa: E402
from pagedkv.bench.grid_workers import run_by  # noqa: E402
from pagedkv.bench.traces import read_trace  # noqa: E402
from pagedkv.spec.alphabet import to_json  # noqa: E402
from pagedkv.spec.explore import Report, explore  # noqa: E402
from pagedkv.spec.fuzz import Batch, fuzz  # noqa: E402
from pagedkv.spec.fuzz import run as run_seed  # noqa: E402
from pagedkv.spec.fuzz_plan import Plan  # noqa: E402
from pagedkv.spec.fuzz_tally import Tally  # noqa: E402
from pagedkv.spec.moves import Scope  # noqa: E402
from pagedkv.spec.reference import Reference  # noqa: E402
from pagedkv.spec.scopes import explore_scopes  # noqa: E402
from pagedkv.spec.shards import Settings  # noqa: E402
from pagedkv.spec.state import Config  # noqa: E402

from grid_jobs import EndsItsProcess  # noqa: E402
from planted_faults import EarlyReuse  # noqa: E402
from searching import Captured, refused  # noqa: E402
from test_grid import TRACE, jobs_on, told  # noqa: E402

PLAN = Plan(Reference, operations=20)


class Cluster:
    """A scheduler in this process, and workers as a user starts them: without a nanny, so none comes back by itself."""

    def __init__(self) -> None:
        self.local = distributed.LocalCluster(n_workers=0, dashboard_address=":0", silence_logs=50)
        self.address: str = self.local.scheduler_address
        self.scheduler = self.local.scheduler
        self.scheduler.allowed_failures = 0
        self.workers: list[subprocess.Popen[bytes]] = []

    def fill(self) -> None:
        """See that there are two workers: a test may have ended one."""
        self.workers = [worker for worker in self.workers if worker.poll() is None]
        command = [sys.executable, "-m", "distributed.cli.dask_worker", self.address, "--no-nanny", "--nthreads", "1"]
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
        while len(self.workers) < 2:
            self.workers.append(
                subprocess.Popen([*command, "--no-dashboard"], env=environment, stderr=subprocess.DEVNULL)
            )
        deadline_s = time.monotonic() + 60
        while len(self.scheduler.workers) != 2:
            assert time.monotonic() < deadline_s
            time.sleep(0.02)

    def close(self) -> None:
        """End all of it."""
        for worker in self.workers:
            worker.kill()
            worker.wait()
        self.local.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A scheduler for all tests of this file."""
    started = Cluster()
    yield started
    started.close()


@pytest.fixture
def address(cluster: Cluster) -> str:
    """Return the scheduler's address, once it has two workers."""
    cluster.fill()
    return cluster.address


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing that a command leaves lie in the checkout, nor a folder with targets stay on the path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])


def as_told(tally: Tally) -> dict[str, Any]:
    """Return what two searches with the same seeds agree on."""
    return asdict(tally) | {"seconds": 0}


# ---- fuzz -----------------------------------------------------------------------------------------------------------


def test_two_workers_come_to_what_one_process_comes_to(address: str) -> None:
    with connected(address) as client:
        shared = fuzz(PLAN, seed=11, runs=30, crew=DaskCrew(client))
    assert as_told(shared) == as_told(fuzz(PLAN, seed=11, runs=30))


@pytest.mark.parametrize("allowed", [0, 3], ids=["given up", "given to another"])
def test_a_worker_that_is_killed_costs_its_own_seeds_at_most(
    cluster: Cluster, address: str, monkeypatch: pytest.MonkeyPatch, allowed: int
) -> None:
    """Killed in the middle, with one batch of 8 under way and one at hand."""
    monkeypatch.setattr(cluster.scheduler, "allowed_failures", allowed)

    def kill_one(_tally: Tally) -> None:
        cluster.workers[0].kill()  # at the first tally; later it is gone already

    with connected(address) as client:
        shared = fuzz(PLAN, seed=0, runs=64, crew=DaskCrew(client), progress=kill_one)
    lost = [seed for seeds, _ in shared.lost for seed in seeds]
    assert shared.runs + len(lost) == 64
    assert len(lost) <= (16 if allowed == 0 else 0)
    kept = [run_seed(PLAN, seed).operations for seed in range(64) if seed not in lost]
    assert shared.operations == sum(kept)


def test_the_command_shares_seeds_and_shrinks_and_saves_the_first_counterexample(
    capsys: Captured, address: str
) -> None:
    command = ["fuzz", "--runs", "64", "--target", "planted_faults:EarlyReuse", "--dask", address]
    assert run([*command, "--json", "shared.json"]) == 1
    assert "R-LIFE-1 does not hold after 3 operations" in capsys.readouterr().out
    facts = json.loads(Path("shared.json").read_text(encoding="utf-8"))
    alone = fuzz(Plan(EarlyReuse), seed=0, runs=64)
    assert alone.finding is not None
    assert (facts["rule"], facts["counterexample_length"], facts["lost"]) == ("R-LIFE-1", 3, [])
    assert facts["seed"] == alone.seed
    saved = json.loads(Path(facts["trace"]).read_text(encoding="utf-8"))
    assert saved["operations"] == json.loads(json.dumps([to_json(operation) for operation in alone.finding.trace]))


def test_seeds_that_end_their_workers_are_named(capsys: Captured, address: str) -> None:
    target = ["--target", "hostile_managers:Dies"]
    assert run(["fuzz", "--runs", "8", "--seed", "40", *target, "--dask", address, "--json", "facts.json"]) == 1
    (lost,) = json.loads(Path("facts.json").read_text(encoding="utf-8"))["lost"]
    assert (lost["seed"], lost["runs"]) == (40, 8)
    said = "lost: seeds 40 to 47, the workers that had it ended, one after the other; it may be what ends them; run"
    assert said in capsys.readouterr().out


# ---- explore and grid -----------------------------------------------------------------------------------------------


def test_scopes_are_walked_by_workers(address: str) -> None:
    scopes = [Settings(Scope(Config(blocks, 1, 1, 1), sequences=2, tokens=1, rows=1), Reference) for blocks in (1, 2)]
    with connected(address) as client:
        walks = explore_scopes(scopes, crew=DaskCrew(client))
    for settings, walk in zip(scopes, walks.outcomes, strict=True):
        alone = explore(settings)
        assert isinstance(walk, Report)
        assert (walk.states, walk.edges, walk.fired, walk.refused) == (
            alone.states,
            alone.edges,
            alone.fired,
            alone.refused,
        )


def test_the_command_shares_scopes(address: str) -> None:
    options = ["--max-tokens", "1", "--launches", "1", "--target", "planted_faults:EarlyReuse", "--json", "facts.json"]
    assert run(["explore", "--scopes", "blocks=1,2 block-size=1,2", "--dask", address, *options]) == 1
    facts = json.loads(Path("facts.json").read_text(encoding="utf-8"))
    assert (facts["rule"], facts["counterexample_length"], facts["lost"]) == ("R-LIFE-1", 3, 0)


def test_a_grid_is_run_by_workers_and_a_cell_that_ends_them_is_a_row(address: str) -> None:
    Path("trace.csv").write_text(TRACE, encoding="utf-8")
    jobs = jobs_on(read_trace(Path("trace.csv")), [2, 3, 20])
    jobs[1] = EndsItsProcess(jobs[1].cell, jobs[1].trace)
    with connected(address) as client:
        outcomes = told(run_by(DaskCrew(client), jobs))
    assert outcomes.pop(1).startswith("lost: the workers that had it ended")
    assert {number: outcomes[number] for number in outcomes} == {0: 2, 2: 3} or set(outcomes) == {0, 2}


def test_the_command_runs_a_grid_by_workers(address: str) -> None:
    Path("trace.csv").write_text(TRACE, encoding="utf-8")
    command = ["grid", "trace.csv", "--block-sizes", "4", "--policies", "reserve,fcfs", "--blocks", "20"]
    assert run([*command, "--dask", address, "--out", "there"]) == 0
    cells = json.loads(Path("there/grid.json").read_text(encoding="utf-8"))["cells"]
    assert [(cell["finished"], cell["earlier"]) for cell in cells] == [(3, False)] * 2
    assert run([*command, "--dask", "tcp://127.0.0.1:1", "--out", "there"]) == 0, "nothing is left to run"


# ---- what can be wrong ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address", ["tcp://127.0.0.1:1", "nonsense", "ucx://hill:1", "smoke://hill:8786", "", "tcp://127.0.0.1:abc"]
)
@pytest.mark.parametrize("command", [["fuzz"], ["explore", "--scopes", "blocks=1"]], ids=["fuzz", "explore"])
def test_an_address_where_nobody_answers(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, command: list[str], address: str
) -> None:
    monkeypatch.setattr(dask_workers, "CONNECT_S", 0.2)
    assert f"--dask {address}: no Dask scheduler answers" in refused(capsys, *command, "--dask", address)


def test_dask_that_is_not_installed(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert "pip install 'pagedkv[dask]'" in refused(capsys, "fuzz", "--dask", "tcp://127.0.0.1:1")


def test_a_scheduler_without_workers(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_workers, "CONNECT_S", 0.5)
    with distributed.LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as empty:
        said = refused(capsys, "fuzz", "--dask", empty.scheduler_address)
    assert "the scheduler has no workers; start some: dask worker" in said


def test_a_target_that_workers_cannot_import(capsys: Captured, address: str) -> None:
    Path("only_here.py").write_text("from pagedkv.spec.reference import Reference as Ours\n", encoding="utf-8")
    said = refused(capsys, "fuzz", "--dask", address, "--target", "only_here:Ours")
    assert "--target only_here:Ours: on worker tcp://" in said
    assert "it cannot be imported (ModuleNotFoundError: No module named 'only_here')" in said


def test_workers_with_other_code(capsys: Captured, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setattr(dask_workers, "code_version", lambda: "0.0+other")
    assert "has pagedkv 0.1.0+" in refused(capsys, "fuzz", "--dask", address)


def test_a_worker_that_comes_later_with_other_code_does_nothing(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    with connected(address) as client, monkeypatch.context() as patched:
        patched.setattr(dask_workers, "code_version", lambda: "0.0+other")
        tally = fuzz(PLAN, seed=0, runs=8, crew=DaskCrew(client))
    ((seeds, why),) = tally.lost
    assert seeds == range(8)
    assert "the worker that had it cannot run it: pagedkv 0.1.0+" in why
    with connected(address) as client:
        ((_, why),) = fuzz(PLAN, seed=0, runs=8, crew=DaskCrew(client, "no_such_module:x")).lost
    assert "no_such_module:x cannot be imported" in why


def test_a_worker_says_what_it_has() -> None:
    version, missing = readiness("impl")
    assert (version, missing) == (code_version(), None)
    assert readiness("planted_faults:EarlyReuse")[1] is None
    assert "not callable" in str(readiness("hostile_managers:NOT_CALLABLE")[1])


# ---- a scheduler that goes ------------------------------------------------------------------------------------------


class Deaf:
    """A client of a scheduler that takes jobs and never answers; how many threads it has left is for a test to say."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.submitted: SimpleQueue[Any] = SimpleQueue()

    def nthreads(self) -> dict[str, int]:
        if self.threads < 0:
            raise OSError("connection closed")
        return {"worker": self.threads} if self.threads else {}

    def submit(self, *arguments: Any, pure: bool) -> "Deaf":
        assert not pure, "two jobs with the same arguments are two jobs"
        assert pickle.loads(arguments[-1]).seeds  # noqa: S301  (made here)
        self.submitted.put(arguments)
        return self.__class__(self.threads)

    def add_done_callback(self, _function: Any) -> None:
        """Never call it."""

    def cancel(self, *_futures: Any) -> None:
        raise OSError("nobody hears it")


@pytest.fixture
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("LOOK_S", 0.01), ("ALONE_S", 0.05), ("GRACE_S", 0.05)):
        monkeypatch.setattr(dask_workers, name, seconds)


@pytest.mark.usefixtures("_hurried")
@pytest.mark.parametrize(
    ("threads", "why"),
    [(0, "s there was no worker"), (-1, "the connection to the scheduler is lost (OSError: connection closed)")],
)
def test_where_nobody_is_left_the_rest_is_lost(threads: int, why: str) -> None:
    client: Any = Deaf(1)
    crew = DaskCrew(client)
    assert crew.room() == dask_workers.JOBS_A_THREAD
    client.threads = threads
    tally = fuzz(PLAN, seed=0, runs=40, crew=crew)
    assert [seeds for seeds, _ in tally.lost if len(seeds) == 8]
    assert sorted(seed for seeds, _ in tally.lost for seed in seeds) == list(range(40))
    assert why in tally.lost[0].why
    assert tally.lost[-1].why == "nobody was left to run them"
    assert crew.room() == 0


@pytest.mark.usefixtures("_hurried")
def test_jobs_that_outlast_the_time_by_far_are_lost() -> None:
    client: Any = Deaf(1)
    began_s = time.monotonic()
    tally = fuzz(PLAN, seed=0, seconds=0.1, crew=DaskCrew(client, seconds=0.1))
    assert time.monotonic() - began_s >= 0.1
    assert {why for _, why in tally.lost} == {"no answer long after time was up"}
    assert len(tally.lost) == dask_workers.JOBS_A_THREAD


def test_a_crew_takes_back_what_is_out() -> None:
    client: Any = Deaf(2)
    crew = DaskCrew(client)
    for first in range(3):
        crew.give(Batch(PLAN, range(first, first + 1), None))
    assert crew.room() == 2 * dask_workers.JOBS_A_THREAD - 3
    crew.close()
    assert crew.room() == 2 * dask_workers.JOBS_A_THREAD

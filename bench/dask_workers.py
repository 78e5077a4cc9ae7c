"""Workers on many machines, by Dask: the crew that `--dask ADDRESS` puts to work.

A user starts `dask scheduler` on one machine and `dask worker ADDRESS --nthreads 1` on each core that is to help, in an
environment that has pagedkv and the target; this is a client of that scheduler. Before anything is shared out every
worker is asked for its code and for the target, so that a missing module is one line, not a finding.

What is lost: Dask gives the jobs of a worker that is gone to another one, so a machine that leaves costs only time. A
job that has outlived several workers (`distributed.scheduler.allowed-failures`) it gives up, since the job is then what
ends them; that job is `Lost`, and the others go on. Lost, too, are jobs that are still out long after time is up: a
manager that never returns can be interrupted only where it has a process to itself, which a worker's thread does not.
If the scheduler is gone, or stays without workers, everything that is out is lost, and there is room for nothing more.

Each thread has one job and the next at hand, so that it never waits for the network. Threads of one process share one
interpreter, hence `--nthreads 1`. Arguments travel as pickled bytes, which Dask passes on without looking into them.

Considered: the Dask backend of joblib. Its loop never hears of a job that was given up with its worker (seen with
joblib 1.6.0 and distributed 2026.8.0), and waits for it for ever.

Cost: some milliseconds a job, seconds to connect.
"""

import logging
import pickle
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pagedkv.bench.code_version import code_version
from pagedkv.bench.failures import BadInput
from pagedkv.bench.targets import OURS, load_target
from pagedkv.spec.calls import said
from pagedkv.spec.crew import Job, Lost

if TYPE_CHECKING:
    from distributed import Client, Future

CONNECT_S = 5.0
OTHER_TRANSPORTS = ("ucx://", "inproc://")  # whose addresses have no port
LOOK_S = 1.0  # between two looks at who is there
ALONE_S = 30.0  # without a worker, before the crew gives up
GRACE_S = 15.0  # that a job may still be out when time is up: longer than one call may take
JOBS_A_THREAD = 2

Dask = Annotated[
    str | None,
    typer.Option(
        "--dask", metavar="ADDRESS", help="Share the work out among the workers of a Dask scheduler (tcp://host:8786)."
    ),
]


@contextmanager
def connected(address: str, target: str | None = None) -> "Iterator[Client]":
    """Give a client of the scheduler at `address`, whose workers have our code and the target. Errors: `BadInput`."""
    where = f"--dask {address}"
    try:
        import distributed  # noqa: PLC0415  (an extra, and a second to import)
    except ImportError as error:
        raise BadInput(where, f"Dask cannot be imported ({error})", "pip install 'pagedkv[dask]'") from error
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what it has to say is said here, in one line
    remedy = "start `dask scheduler` there, and name the address that it prints"
    try:
        if not address.startswith(OTHER_TRANSPORTS):
            # a client that can't even begin complains once more when it is collected
            distributed.comm.addressing.get_address_host_port(address)
        client = distributed.Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        raise BadInput(where, f"no Dask scheduler answers ({said(error)})", remedy) from error
    with client:
        _see_workers(client, where, target)
        yield client


def _see_workers(client: "Client", where: str, target: str | None) -> None:
    """See that there are workers, with our code and the target. Errors: `BadInput`."""
    with suppress(TimeoutError):
        client.wait_for_workers(1, timeout=CONNECT_S)
    try:
        answers = client.run(readiness, target, on_error="return")
    except Exception as error:
        raise BadInput(where, f"its workers cannot be asked ({said(error)})", "start them where pagedkv is") from error
    if not answers:
        raise BadInput(where, "the scheduler has no workers", "start some: dask worker ADDRESS --nthreads 1")
    for worker, answer in sorted(answers.items()):
        if isinstance(answer, BaseException):
            raise BadInput(where, f"worker {worker} cannot run pagedkv ({said(answer)})", "install it there")
        version, missing = answer
        if version != code_version():
            what = f"worker {worker} has pagedkv {version}, and here it is {code_version()}"
            raise BadInput(where, what, "install the same on both sides, and start the worker anew")
        if missing:
            raise BadInput(
                f"--target {target}", f"on worker {worker} it {missing}", "install it there, or name another"
            )


def readiness(target: str | None) -> tuple[str, str | None]:
    """Return, on a worker, which code it has, and what is wrong with the target there."""
    missing = None
    if target is not None and target not in OURS:
        try:
            load_target(target)
        except BadInput as error:
            missing = error.what
    return code_version(), missing


class DaskCrew:
    """The workers of a Dask scheduler, a `spec.crew.Crew`."""

    def __init__(self, client: "Client", target: str | None = None, seconds: float | None = None) -> None:
        """Take the workers that there are, and those that come. Jobs that outlast `seconds` by far are lost."""
        self._client = client
        self._target = target
        self._end = None if seconds is None else time.monotonic() + seconds + GRACE_S
        self._out: dict[Future[Any], Job] = {}
        self._done: SimpleQueue[Future[Any]] = SimpleQueue()
        self._threads = 0
        self._seen_s = time.monotonic()  # when there were workers
        self._look_s = 0.0  # when to look again
        self._deserted: str | None = None

    def room(self) -> int:
        """Return how many jobs would not have to wait for long; one at least, as long as there is hope."""
        self._look()
        return 0 if self._deserted else max(0, max(1, JOBS_A_THREAD * self._threads) - len(self._out))

    def give(self, job: Job) -> None:
        """Give a job to whichever worker has time."""
        future = self._client.submit(_do, code_version(), self._target, pickle.dumps(job), pure=False)
        self._out[future] = job
        future.add_done_callback(self._done.put)

    def take(self) -> tuple[Job, Any]:
        """Wait for an answer, or for the loss of a job. Errors: what the job raised."""
        while not self._deserted:
            with suppress(Empty):
                future = self._done.get(timeout=LOOK_S)
                if future in self._out and (answer := self._answer(future)):  # else it was given up, or is not done yet
                    return self._out.pop(future), answer[0]
            self._look()
            if self._end is not None and time.monotonic() > self._end:
                return self._give_up("no answer long after time was up")
        return self._give_up(self._deserted)

    def _answer(self, future: "Future[Any]") -> tuple[Any] | None:
        """Return what came of a job; None where it is to be done again: its worker left with the answer.

        Errors: what the job raised.
        """
        from distributed import KilledWorker  # noqa: PLC0415  (an extra)

        try:
            return (future.result(timeout=LOOK_S),)
        except KilledWorker:
            return (Lost("the workers that had it ended, one after the other; it may be what ends them"),)
        except UnreadyError as error:
            return (Lost(f"the worker that had it cannot run it: {error}"),)
        except CancelledError:
            return (Lost("the scheduler knows it no more"),)
        except TimeoutError:
            future.add_done_callback(self._done.put)
            return None

    def _give_up(self, why: str) -> tuple[Job, Lost]:
        """Return some job that is out as lost."""
        future, job = self._out.popitem()
        with suppress(Exception):  # whoever it is told to may be gone
            future.cancel()
        return job, Lost(why)

    def close(self) -> None:
        """Take back what is out; what has begun ends by itself."""
        with suppress(Exception):
            self._client.cancel(list(self._out))
        self._out.clear()

    def _look(self) -> None:
        """See who is there."""
        now_s = time.monotonic()
        if now_s < self._look_s or self._deserted:
            return
        self._look_s = now_s + LOOK_S
        try:
            self._threads = sum(self._client.nthreads().values())
        except Exception as error:  # noqa: BLE001  (of a connection that is lost; Dask has many kinds)
            self._deserted = f"the connection to the scheduler is lost ({said(error)})"
            return
        if self._threads:
            self._seen_s = now_s
        elif now_s - self._seen_s > ALONE_S:
            self._deserted = f"for {ALONE_S:g} s there was no worker"


class UnreadyError(Exception):
    """A worker that came later has other code, or not the target."""


def _do(version: str, target: str | None, pickled: bytes) -> object:
    """Do a job, on a worker. Errors: `UnreadyError`; what the job raises."""
    here, missing = readiness(target)
    if here != version or missing:
        raise UnreadyError(f"{target} {missing}" if missing else f"pagedkv {here} in place of {version}")
    job: Job = pickle.loads(pickled)  # noqa: S301  (from the client, who may run any code there)
    return job()


@contextmanager
def crew_of(address: str | None, target: str | None = None, seconds: float | None = None) -> Iterator[DaskCrew | None]:
    """Give the crew that `--dask` names, or none. Errors: `BadInput`."""
    if address is None:
        yield None
        return
    with connected(address, target) as client:
        yield DaskCrew(client, target, seconds)


def refuse_beside_dask(context: typer.Context, *names: str) -> None:
    """See that no option was given that has no meaning beside `--dask`. Errors: `BadInput`."""
    for name in names:
        source = context.get_parameter_source(name)
        if context.params.get("dask") is not None and source is not None and source.name == "COMMANDLINE":
            raise BadInput(f"--{name.replace('_', '-')}", "has no meaning beside --dask", "leave out one of the two")

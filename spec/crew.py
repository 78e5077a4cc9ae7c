"""Jobs that know nothing of each other, shared out among workers: the next to whoever is done first.

A search by seeds falls apart into batches of seeds, and one over several scopes into walks. A *crew* does such jobs:
processes of this machine (`ProcessCrew`), or whatever else has room for a job, takes one, and gives an answer; the
workbench has one of workers on other machines. A driver sees answers alone, so what it reports does not depend on who
did the work.

Machines are lost, and with one the jobs that it had, no more. So an answer may be `Lost`, and says why; what is made of
it is the driver's to say. A process of this machine that ends is no such loss: it ended of the manager under test, and
the search says so (`processes`).

Why no `concurrent.futures.Executor`: it takes any number of jobs, and a search would have to know how many to give it;
and where one of its processes ends, all that was given to it has failed.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from .processes import Processes

Job = Callable[[], Any]  # importable by name with all that it holds, since it is sent to where it is done
AnyJob = TypeVar("AnyJob", bound=Job)


class Lost(NamedTuple):
    """In place of an answer: a job was given out and nothing came back."""

    why: str


class Crew(Protocol):
    """Whoever does jobs, several at a time, in any order."""

    def room(self) -> int:
        """Return how many more jobs may be given out now; none for ever, where nobody is left."""

    def give(self, job: Job) -> None:
        """Give out a job."""

    def take(self) -> tuple[Job, Any]:
        """Wait for an answer, or for the loss of a job, and return it beside the job. Errors: what the job raised."""

    def close(self) -> None:
        """End what is under way."""


def share_out(crew: Crew, jobs: Iterator[AnyJob]) -> Iterator[tuple[AnyJob, Any]]:
    """Yield each job with its answer, in the order of the answers. Jobs are drawn when there is room for them.

    It ends when every job that was drawn has been answered, and none is left or nobody would take it.
    """
    under_way = 0
    while True:
        while crew.room() and (drawn := next(jobs, None)) is not None:
            crew.give(drawn)
            under_way += 1
        if not under_way:
            return
        under_way -= 1
        job, answer = crew.take()
        yield cast("AnyJob", job), answer  # one that it was given


class ProcessCrew:
    """So many processes of this machine, a job each."""

    def __init__(self, workers: int) -> None:
        """Start them."""
        self._processes = Processes(workers, JobServer)
        self._idle = list(range(workers))
        self._busy: dict[int, Job] = {}

    def room(self) -> int:
        """Return how many processes have nothing to do."""
        return len(self._idle)

    def give(self, job: Job) -> None:
        """Give a job to one of them."""
        number = self._idle.pop()
        self._busy[number] = job
        self._processes.send(number, "do", job)

    def take(self) -> tuple[Job, Any]:
        """Wait for the first answer. Errors: `Broken`, CRASH, where a process ended; what a job raised."""
        number, answer = self._processes.receive_any(list(self._busy))
        self._idle.append(number)
        return self._busy.pop(number), answer

    def close(self) -> None:
        """End the processes, whatever they are doing."""
        self._processes.close()


class JobServer:
    """What a process holds: nothing from one job to the next."""

    def do(self, job: Job) -> object:
        """Do a job."""
        return job()

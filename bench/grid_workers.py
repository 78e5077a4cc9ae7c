"""Who runs the cells of a grid: processes of this machine by joblib, or workers on many by Dask.

A cell may end its process: killed for want of memory, or by a fault in native code. joblib then gives up all that was
under way, so each of those cells is run once more with nobody beside it, and the one that ends its process again is
the failure; the others go on. That is also why there is always a process for a cell, with one worker too: a cell may
not end the grid. On many machines Dask does the same (`dask_workers`).

joblib has a backend for Dask, and it was tried first: the call never returns where a worker is killed with its cell
(`dask_workers`), so cells go to the crew that `fuzz` and `explore` have.

Cost: half a second to start a process; a cell's requests are sent with it.
"""

from collections.abc import Generator, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool

from joblib import Parallel, delayed
from joblib.externals.loky import get_reusable_executor
from pagedkv.bench.grid import Cell, CellJob, Failed, Figures
from pagedkv.spec.crew import Crew, Lost, share_out

CellOutcome = Figures | Failed
ENDED = Failed("its process ended without a word: killed for want of memory, most likely")


def run_here(jobs: Sequence[CellJob], workers: int) -> Generator[tuple[Cell, CellOutcome], None, None]:
    """Yield each cell with its outcome, in the order in which they end, so many at a time."""
    waiting = {job.cell.number: job for job in jobs}
    try:
        while waiting:
            begun: list[CellJob] = []
            try:
                for number, outcome in _processes(workers)(_beginning(list(waiting.values()), begun)):
                    yield waiting.pop(number).cell, outcome
            except BrokenProcessPool:
                for job in begun:
                    if job.cell.number in waiting:
                        del waiting[job.cell.number]
                        yield job.cell, _alone(job)
    finally:
        get_reusable_executor().shutdown(wait=True, kill_workers=True)


def run_by(crew: Crew, jobs: Sequence[CellJob]) -> Generator[tuple[Cell, CellOutcome], None, None]:
    """Yield each cell with its outcome, in the order in which they end; the crew is closed in the end."""
    left = iter(jobs)
    try:
        for job, outcome in share_out(crew, left):
            yield job.cell, Failed(f"lost: {outcome.why}") if isinstance(outcome, Lost) else outcome
        for job in left:  # none, unless nobody is left to take them
            yield job.cell, Failed("lost: nobody was left to run it")
    finally:
        crew.close()


def _processes(workers: int) -> Parallel:
    """Return so many processes, and one more where joblib would do without: with a single one it stays in this."""
    return Parallel(
        n_jobs=max(2, workers),
        backend="loky",
        return_as="generator_unordered",
        pre_dispatch=workers,  # that many cells at a time
        batch_size=1,
        max_nbytes=None,  # requests are sent, not put into shared files
    )


def _beginning(jobs: Sequence[CellJob], begun: list[CellJob]) -> Iterator[object]:
    """Yield jobs in the form of joblib, and note down which have been drawn: they are under way, or done."""
    for job in jobs:
        begun.append(job)
        yield delayed(_numbered)(job)


def _numbered(job: CellJob) -> tuple[int, CellOutcome]:
    return job.cell.number, job()


def _alone(job: CellJob) -> CellOutcome:
    """Run a cell with nobody beside it."""
    try:
        ((_, outcome),) = _processes(1)([delayed(_numbered)(job)])
    except BrokenProcessPool:
        return ENDED
    result: CellOutcome = outcome
    return result

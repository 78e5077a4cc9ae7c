"""Worker processes that keep something between requests, answer over pipes, and end when they are told to.

Each holds one *server*, an object made there; a request names one of its methods. Why no executor of the standard
library: a walk's worker keeps its worlds from one request to the next; a search must end at once on Ctrl-C, whatever
the manager under test is doing; and where a process dies of that manager, the search says so.

Ctrl-C reaches every process of a terminal's group. It is for the one that leads: workers are started with the signal
blocked, and killed at the end, since they have nothing to save.
"""

import multiprocessing
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

from .calls import patience
from .refusals import Broken


class Processes:
    """So many processes, each with a server of its own. What a server raises is raised where its answer is awaited."""

    def __init__(self, count: int, make_server: Callable[..., object], *arguments: object) -> None:
        """Start them. All that is passed must be importable by name: the processes are spawned."""
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes: list[multiprocessing.process.BaseProcess] = []
        try:
            with _interrupts_wait():
                for _ in range(count):
                    ours, theirs = context.Pipe()
                    process = context.Process(target=_serve, args=(theirs, make_server, arguments), daemon=True)
                    self._pipes.append(ours)
                    self._processes.append(process)
                    process.start()
                    theirs.close()
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._pipes)

    def send(self, number: int, method: str, *arguments: object) -> None:
        """Ask one process; it answers in its own time."""
        try:
            self._pipes[number].send((method, arguments))
        except OSError:
            self._mourn(number)

    def receive(self, number: int, seconds: float | None = None) -> Any:
        """Wait for the answer of one process. Errors: `TimeoutError`, where there is none within so many seconds."""
        if not self._pipes[number].poll(seconds):
            raise TimeoutError
        try:
            answer = self._pipes[number].recv()
        except (EOFError, OSError):
            self._mourn(number)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def receive_any(self, among: Sequence[int]) -> tuple[int, Any]:
        """Wait for the first answer of several processes."""
        ready = wait([self._pipes[number] for number in among])
        number = next(number for number in among if self._pipes[number] in ready)
        return number, self.receive(number)

    def ask_all(self, method: str, arguments: Sequence[object] | None = None) -> list[Any]:
        """Ask every process, each with its own argument if there are any, and wait for all answers."""
        for number in range(len(self)):
            self.send(number, method, *([arguments[number]] if arguments is not None else []))
        return [self.receive(number) for number in range(len(self))]

    def close(self) -> None:
        """End the processes, in the middle of whatever they are doing."""
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.close()
            if process.pid is not None:  # else it was never started
                process.kill()
                process.join()

    def _mourn(self, number: int) -> None:
        process = self._processes[number]
        process.join()
        raise Broken("CRASH", f"a worker process ended with exit code {process.exitcode}: killed, or out of memory")


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Block Ctrl-C, for this process for a moment, for those that are started meanwhile for good."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # it unblocks the signal after its own start: let that be over
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: Connection, make_server: Callable[..., object], arguments: tuple[object, ...]) -> None:
    """Answer requests until the other end closes."""
    server = make_server(*arguments)
    with patience():
        while True:
            try:
                method, details = pipe.recv()
                answer = _answer(server, method, details)
                pipe.send(answer)
            except (EOFError, OSError):
                return


def _answer(server: object, method: str, arguments: tuple[object, ...]) -> object:
    try:
        return getattr(server, method)(*arguments)
    except Exception as error:  # noqa: BLE001  (raised again where it can be reported)
        error.add_note(f"in a worker process:\n{traceback.format_exc()}")
        return error

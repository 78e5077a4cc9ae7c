"""Code that is not ours may raise, hang, exit or die, in this process or in a worker; and Ctrl-C is never lost."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from types import FunctionType

import pytest
from pagedkv.spec import calls
from pagedkv.spec.calls import SAID_CHARACTERS_MAX, call, patience, said
from pagedkv.spec.processes import Processes
from pagedkv.spec.refusals import Broken, Reason, Refused

from worker_server import Server


def raising(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "said_of_it"),
    [
        (ValueError("no"), "ValueError: no"),
        (SystemExit(0), "SystemExit: 0"),
        (Refused(Reason.BUSY), "Refused: Busy"),
        (Broken("R-DATA", "its own"), "Broken: R-DATA: its own"),
        (ExceptionGroup("two", [KeyError(1), KeyError(2)]), "ExceptionGroup: two (2 sub-exceptions)"),
        (RecursionError("deep"), "RecursionError: deep"),
    ],
)
def test_whatever_is_raised_is_a_verdict(error: BaseException, said_of_it: str) -> None:
    with pytest.raises(Broken) as broken:
        call("here", raising, error)
    place = f"test_calls.py:{raising.__code__.co_firstlineno + 1} in raising"
    assert (broken.value.rule, broken.value.detail) == ("CRASH", f"here: {said_of_it} at {place}")


def test_an_answer_is_passed_on_and_words_are_made_when_needed() -> None:
    assert call(lambda: pytest.fail("nobody asked"), max, 1, 2) == 2
    with pytest.raises(Broken, match=r"CRASH: there: ZeroDivisionError"):
        call(lambda: "there", divmod, 1, 0)


def test_the_place_is_the_last_that_is_neither_ours_nor_the_standard_library_s() -> None:
    line = test_the_place_is_the_last_that_is_neither_ours_nor_the_standard_library_s.__code__.co_firstlineno + 3
    with pytest.raises(Broken, match=rf"JSONDecodeError: .* at test_calls\.py:{line} in <lambda>$") as broken:
        call("here", lambda: json.loads("{"))
    assert (broken.value.__cause__, broken.value.__context__) == (None, None), "no frame is kept"


def test_ctrl_c_is_no_crash() -> None:
    with pytest.raises(KeyboardInterrupt):
        call("here", raising, KeyboardInterrupt())


def test_what_is_said_is_cut_and_never_raises() -> None:
    class UnsayableError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert said(UnsayableError()) == "UnsayableError"
    assert len(said(ValueError("x" * 10**6))) == SAID_CHARACTERS_MAX


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let patience end soon."""
    monkeypatch.setattr(calls, "CALL_S_MAX", 0.05)
    monkeypatch.setattr(calls, "TICK_S", 0.01)


def deaf() -> None:
    """Take every interruption for an error of its own, as well as an `Exception` can be one."""
    while True:
        try:
            time.sleep(1000)
        except Exception:  # noqa: BLE001, S112  (what cannot be imported is not there)
            continue


@pytest.mark.usefixtures("short")
def test_a_call_that_never_returns_is_interrupted() -> None:
    with patience(), pytest.raises(Broken, match=r"CRASH: here: no answer within 0\.05 s"):
        call("here", deaf)


@pytest.mark.usefixtures("short")
def test_many_short_calls_are_not_one_long_call() -> None:
    with patience():
        for _ in range(20):
            call("here", time.sleep, 0.01)


def test_afterwards_signals_are_as_before() -> None:
    before = signal.getsignal(signal.SIGALRM), signal.getsignal(signal.SIGINT)
    with patience():
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    assert (signal.getsignal(signal.SIGALRM), signal.getsignal(signal.SIGINT)) == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


# ---- Ctrl-C ---------------------------------------------------------------------------------------------------------


def interrupted() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000):  # signals are handled between instructions
        pass


def interrupt_inside(module: str) -> None:
    """Interrupt this process while code of a module is at work."""
    FunctionType(interrupted.__code__, {"__name__": module, "os": os, "signal": signal})()


def test_ctrl_c_is_felt_at_once() -> None:
    with patience(), pytest.raises(KeyboardInterrupt):
        interrupt_inside("anything")


def test_ctrl_c_inside_hypothesis_is_felt_at_the_next_call() -> None:
    """Raised there it may be dropped, by a callback of the garbage collector."""
    with patience():
        interrupt_inside("hypothesis.internal")
        with pytest.raises(KeyboardInterrupt):
            call("here", max, 1, 2)
        assert call("here", max, 1, 2) == 2, "once"


def test_ctrl_c_inside_hypothesis_is_felt_at_the_end() -> None:
    with pytest.raises(KeyboardInterrupt), patience():
        interrupt_inside("hypothesis.internal")


# ---- worker processes -----------------------------------------------------------------------------------------------


@pytest.fixture
def processes() -> Iterator[Processes]:
    """Two workers that keep a number each."""
    workers = Processes(2, Server, 10)
    yield workers
    workers.close()


def test_each_worker_keeps_what_it_has(processes: Processes) -> None:
    assert processes.ask_all("add", [1, 2]) == [11, 12]
    assert processes.ask_all("add", [1, 2]) == [12, 14]
    processes.send(1, "add", 100)
    assert processes.receive_any([0, 1]) == (1, 114)


def test_what_a_worker_raises_is_raised_here(processes: Processes) -> None:
    processes.send(0, "fail")
    with pytest.raises(LookupError) as error:
        processes.receive(0)
    assert "raise LookupError(self.number)" in error.value.__notes__[0], "with the traceback from over there"
    processes.send(0, "judge")
    with pytest.raises(Broken, match="R-DATA: over there"):
        processes.receive(0)
    assert processes.ask_all("add", [0, 0]) == [10, 10], "and it goes on"


def test_a_worker_that_dies_is_missed(processes: Processes) -> None:
    processes.send(0, "die")
    with pytest.raises(Broken, match="CRASH: a worker process ended with exit code 7"):
        processes.receive(0)


@pytest.mark.parametrize("way", [lambda pid: os.kill(pid, signal.SIGINT), lambda _: None], ids=["Ctrl-C", "nothing"])
def test_ctrl_c_is_not_for_workers_and_closing_waits_for_nobody(
    processes: Processes, way: Callable[[int], None]
) -> None:
    ids = processes.ask_all("who")
    for pid in ids:
        way(pid)
    assert processes.ask_all("add", [0, 0]) == [10, 10]
    processes.send(0, "wait")
    processes.close()
    for pid in ids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

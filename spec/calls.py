"""Calls into a manager under test, which may do anything: raise, exit, never return.

A driver must end with a report whatever it drives, so every call to code that is not ours goes through `call`. What
goes wrong there is `Broken` by the name CRASH, and is found, shrunk and shown like any other broken rule. It says what
was raised, and in which file and line of the manager's.

A call that never returns would stop a search for good. Within `patience` a timer looks once a second whether the same
call is still under way, and interrupts it after `CALL_S_MAX`. It can't interrupt native code that does not come back
to Python, and it needs a main thread and Unix; elsewhere calls may take for ever. Considered and left out: a timer
armed for each call (two system calls, more than a small operation costs).

Nor may Ctrl-C be lost. Hypothesis has a callback of the garbage collector, and what is raised in one is dropped. So
where its code is at work, Ctrl-C waits for the next call, a millisecond later.

Cost of `call`: about 0.2 us.
"""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import PurePath
from types import FrameType, TracebackType
from typing import TypeVar

from .quoting import cut
from .refusals import Broken

CALL_S_MAX = 10
TICK_S = 1.0
SAID_CHARACTERS_MAX = 300
NAME_CHARACTERS_MAX = 100  # of a file, of a function
OURS = "pagedkv"
AT = " at "  # between what an exception says and where it arose

Answer = TypeVar("Answer")


class TooSlow(BaseException):
    """The call under way takes too long. No `Exception`, lest the manager takes it for one of its own."""


class _Watch:
    """Which call is under way, and for how many ticks of the timer it has been."""

    def __init__(self) -> None:
        self.calls = 0
        self.under_way = False
        self.seen = 0
        self.ticks = 0
        self.interrupted = False

    def tick(self, _number: int, _frame: FrameType | None) -> None:
        """Interrupt the call under way if it was there at every tick of late."""
        same = self.under_way and self.seen == self.calls
        self.ticks = self.ticks + 1 if same else 0
        self.seen = self.calls
        if self.ticks * TICK_S >= CALL_S_MAX:
            self.ticks = 0
            raise TooSlow

    def interrupt(self, _number: int, frame: FrameType | None) -> None:
        """Let Ctrl-C be felt at once, or take note of it where it might be lost."""
        self.interrupted = frame is not None and str(frame.f_globals.get("__name__")).startswith("hypothesis.")
        if not self.interrupted:
            raise KeyboardInterrupt

    def feel(self) -> None:
        """Raise an interrupt that came when it could not be raised."""
        if self.interrupted:
            self.interrupted = False
            raise KeyboardInterrupt


_watch = _Watch()


def call(what: str | Callable[[], str], function: Callable[..., Answer], *arguments: object) -> Answer:
    """Call code that is not ours; whatever it raises is `Broken`, CRASH, and `what` says in which call."""
    if _watch.interrupted:
        _watch.feel()
    _watch.calls += 1
    _watch.under_way = True
    try:
        return function(*arguments)
    except KeyboardInterrupt:
        raise
    except TooSlow:
        happened = f"no answer within {CALL_S_MAX} s"
    except BaseException as error:  # noqa: BLE001  (SystemExit, too: a manager that exits has not held)
        happened = said(error) + _place(error.__traceback__)
    finally:
        _watch.under_way = False
    raise Broken("CRASH", f"{what if isinstance(what, str) else what()}: {happened}")


def said(error: BaseException) -> str:
    """Return what an exception says, cut short, even if saying it raises."""
    try:
        text = f"{type(error).__name__}: {error}".removesuffix(": ")  # many have no words
    except Exception:  # noqa: BLE001  (a stranger's __str__)
        text = type(error).__name__
    return cut(text, SAID_CHARACTERS_MAX)


def _place(traceback: TracebackType | None) -> str:
    """Return where an exception arose: the last frame that is neither ours nor the standard library's; "" if none.

    A file has its name alone, so that a finding says the same from whatever folder it is run again. It is words alone,
    since a traceback that is kept keeps all that its frames hold.
    """
    place = ""
    while traceback is not None:
        frame, line = traceback.tb_frame, traceback.tb_lineno
        module = str(frame.f_globals.get("__name__")).partition(".")[0]
        if module != OURS and module not in sys.stdlib_module_names:
            code = frame.f_code
            file, function = (
                cut(name, NAME_CHARACTERS_MAX) for name in (PurePath(code.co_filename).name, code.co_name)
            )
            place = f"{AT}{file}:{line} in {function}"
        traceback = traceback.tb_next
    return place


@contextmanager
def patience() -> Iterator[None]:
    """Interrupt calls that take longer than `CALL_S_MAX`, and lose no Ctrl-C, as long as this lasts."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return
    on_alarm = signal.signal(signal.SIGALRM, _watch.tick)
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, _watch.interrupt)
    signal.setitimer(signal.ITIMER_REAL, TICK_S, TICK_S)
    try:
        yield
        _watch.feel()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, on_alarm)
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        _watch.interrupted = False

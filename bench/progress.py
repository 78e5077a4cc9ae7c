"""A progress bar that appears only where it helps: on a terminal, and only once work has taken two seconds."""

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import Progress
from rich.status import Status

QUIET_S = 2.0
BETWEEN_S = 0.1


class LateProgress:
    """A bar on stderr for one piece of work; `reached(n)` tells how much is done. Cost: about 0.1 us a call."""

    def __init__(self, description: str, total: int | None = None) -> None:
        """Nothing is shown before two seconds have passed; without a total the bar only shows that work goes on."""
        self._description = description
        self._total = total
        self._next_s = time.monotonic() + QUIET_S if sys.stderr.isatty() else float("inf")
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def reached(self, done: int) -> None:
        """Show that `done` of the total is done, a few times a second at most."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + BETWEEN_S
        if self._bar is None:
            self._bar = Progress(console=Console(stderr=True, emoji=False), transient=True)
            self._bar.add_task(self._description, total=self._total)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=done)


class LateSpinner:
    """A line on stderr for work of unknown size, shown as late as a bar; `says(text)` tells where it is."""

    def __init__(self, description: str) -> None:
        self._description = description
        self._show_at_s = time.monotonic() + QUIET_S if sys.stderr.isatty() else float("inf")
        self._status: Status | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._status is not None:
            self._status.stop()

    def says(self, text: str) -> None:
        """Show where the work is."""
        if self._status is None:
            if time.monotonic() < self._show_at_s:
                return
            self._status = Status("", console=Console(stderr=True, emoji=False))
            self._status.start()
        self._status.update(f"{self._description}: {text}")

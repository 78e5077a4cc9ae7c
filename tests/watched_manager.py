"""The spec's own model as a manager that remembers what it was asked, so that a test can see what a driver does."""

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, Self

from pagedkv.spec.outcome import Outcome, Rows
from pagedkv.spec.reference import Reference
from pagedkv.spec.state import Block, Config, LaunchId, Name, before


class Watched(Reference):
    """Keeps every call in `calls`, and counts in `met` the ways in which completions come."""

    latest: ClassVar[Self]
    met: ClassVar[Counter[str]] = Counter()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.calls: list[tuple[object, ...]] = [config]
        self.executed: list[LaunchId] = []
        type(self).latest = self

    def _asked(self, *call: object) -> None:
        self.calls.append(call)

    def add(self, name: Name, count: int) -> Outcome:
        self._asked("add", name, count)
        return super().add(name, count)

    def extend(self, rows: Rows) -> Outcome:
        self._asked("extend", rows)
        return super().extend(rows)

    def fork(self, parent: Name, child: Name) -> Outcome:
        self._asked("fork", parent, child)
        return super().fork(parent, child)

    def launch(self, rows: Rows, stream: int) -> Outcome:
        self._asked("launch", rows, stream)
        return super().launch(rows, stream)

    def rows_read(self, launch: LaunchId) -> Sequence[Sequence[Block]]:
        """In lock-step these are asked for when the device executes a launch, and at no other time."""
        self._asked("execute", launch)
        if any(other > launch for other in self.executed):
            type(self).met["executed out of order"] += 1
        self.executed.append(launch)
        return super().rows_read(launch)

    def retire(self, launch: LaunchId) -> Outcome:
        self._asked("retire", launch)
        in_flight = {each.id: each for each in self.state.launches}
        if launch in in_flight:
            done = in_flight[launch]
            self._count("late", launch < max(in_flight))
            self._count("reordered", bool(min(in_flight) < launch and not before(self.state.launches, done)))
            live = {(name, each.epoch) for name, each in self.state.sequences.items()}
            gone = [part for part in done.computations if (part.sequence, part.epoch) not in live]
            self._count("after its sequence", bool(gone))
            self._count("of a namesake", any(part.sequence in self.state.sequences for part in gone))
        else:
            self._count("twice", 1 <= launch <= self.state.issued)
            self._count("of none", launch > self.state.issued)
        return super().retire(launch)

    def release(self, name: Name) -> Outcome:
        self._asked("release", name)
        return super().release(name)

    def _count(self, way: str, happened: bool) -> None:  # noqa: FBT001  (reads as the sentence it is)
        type(self).met[way] += happened

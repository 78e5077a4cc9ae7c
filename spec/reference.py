"""The spec itself as a manager: slow, plain, and right by definition.

It stands where an implementation would, so that the drivers can be tried without one, so that `replay --engine spec`
runs real traffic on the model, and so that a fault can be planted in a copy of the spec (`tests/planted_faults.py`).
"""

from collections.abc import Collection, Hashable, Sequence
from typing import Self

from . import operations
from .manager import Discipline, Manager
from .observation import Naming, Observation
from .outcome import Outcome, Rows, Telling
from .state import Block, Config, Handle, LaunchId, Name, Tokens, initial
from .views import observe


class Reference(Manager):
    """A manager that is the spec's state and nothing else."""

    discipline = Discipline.FENCE
    streams_offered = 8
    shares_prefixes = True

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.state = initial(config)

    def add(self, name: Name, count: int) -> Outcome:
        """Take the spec's step."""
        self.state, outcome = operations.add(self.state, name, count)
        return outcome

    def add_prompt(self, name: Name, tokens: int | Tokens, salt: int) -> Outcome:
        """Take the spec's step."""
        self.state, outcome = operations.add(self.state, name, tokens, salt)
        return outcome

    def publish(self, rows: Telling, retention: int) -> Outcome:
        """Take the spec's step."""
        self.state, outcome = operations.publish(self.state, rows, retention)
        return outcome

    def pin(self, handle: Handle, tokens: Tokens, salt: int) -> Outcome:
        """Take the spec's step."""
        self.state, outcome = operations.pin(self.state, handle, tokens, salt)
        return outcome

    def unpin(self, handle: Handle) -> Outcome:
        """Take the spec's step."""
        self.state, outcome = operations.unpin(self.state, handle)
        return outcome

    def clear(self) -> Outcome:
        """Take the spec's step."""
        self.state, outcome = operations.clear(self.state)
        return outcome

    def extend(self, rows: Rows) -> Outcome:
        """Take the spec's step."""
        self.state, outcome = operations.extend(self.state, rows)
        return outcome

    def fork(self, parent: Name, child: Name) -> Outcome:
        """Take the spec's step."""
        self.state, outcome = operations.fork(self.state, parent, child)
        return outcome

    def launch(self, rows: Rows, stream: int) -> Outcome:
        """Take the spec's step."""
        self.state, outcome = operations.launch(self.state, rows, stream)
        return outcome

    def retire(self, launch: LaunchId) -> Outcome:
        """Take the spec's step."""
        self.state, outcome = operations.retire(self.state, launch)
        return outcome

    def release(self, name: Name) -> Outcome:
        """Take the spec's step."""
        self.state, outcome = operations.release(self.state, name)
        return outcome

    def block_table(self, name: Name) -> Sequence[Block]:
        """Return the row of a live sequence."""
        return self.state.sequences[name].row

    def rows_read(self, launch: LaunchId) -> Sequence[Sequence[Block]]:
        """Return the rows captured at the launch, which is what a right device reads."""
        return [part.row for part in next(e for e in self.state.launches if e.id == launch).computations]

    def free_blocks(self) -> Collection[Block]:
        """Return the free blocks."""
        return self.state.free

    def cached_blocks(self) -> Collection[Block]:
        """Return the published blocks without holder, evictable or waiting."""
        published = {entry.block for entry in self.state.prefixes.values()}
        return published & (self.state.evictable.keys() | self.state.quarantine.keys())

    def clone(self) -> Self:
        """Return another manager at the same state, which is frozen."""
        twin = object.__new__(type(self))
        twin.config, twin.state = self.config, self.state
        return twin

    def observe(self) -> Observation:
        """Return what the state shows."""
        return observe(self.state)

    def fingerprint(self, naming: Naming) -> Hashable:  # noqa: ARG002  (the signature is the protocol's)
        """Nothing is hidden: what the next operation takes depends on ids, which are names."""
        return None

"""The device that a stranger's steps go to: what each reads and writes, slot by slot, judged.

Limits, tables, and who writes what are judged when a step is launched; contents when it is executed, which is at its
completion, as late as can be, with the block tables that it reads then. All steps are on one stream, so an earlier
moment would show no more. Cost: a few microseconds for each row, and about one for each position that is read.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from .arithmetic import blocks_needed
from .counts import counted
from .foreign_requests import Served, Taking
from .foreign_scheduler import Row, Step
from .outside_book import is_inside
from .refusals import Broken
from .requests import Limits, RequestId
from .rule_book import Slot
from .shadow import Misread, Shadow
from .state import Block, Computation, Config, LaunchId, Tokens


class Flight(NamedTuple):
    """A step that is not complete."""

    launch: LaunchId
    step: Step
    takings: tuple[tuple[Served, Taking], ...]  # of each row
    hits: tuple[int, ...]  # of each row: the positions before it, where it is the first of a life
    touched: frozenset[Slot]  # read or written


class Device:
    """A virtual device with shadow memory, and the steps in flight."""

    def __init__(
        self, config: Config, limits: Limits, first_block: int, *, fenced: bool, shares_prefixes: bool
    ) -> None:
        self.config, self.limits = config, limits
        self.fenced, self.shares_prefixes = fenced, shares_prefixes
        self.shadow = Shadow(config, first_block)
        self.flights: deque[Flight] = deque()
        self.writers: dict[Slot, tuple[LaunchId, RequestId]] = {}  # who wrote a slot last

    # ---- a step is launched

    def launch(self, step: Step, live: Mapping[RequestId, Served]) -> Flight:
        """Take a step whose rows are of live requests. Errors: `Broken`."""
        self._check_limits(step)
        self._check_copies(step)
        launch = self.shadow.state.issued + 1
        takings = tuple([(live[row.request], live[row.request].begin_row(row)) for row in step.rows])
        for row in step.rows:
            self._check_table(row)
        writes = self._writes(step)
        self.writers |= {slot: (launch, request) for slot, request in writes.items()}
        reads = {slot for row in step.rows for slot in self._slots(row, 0)}
        reads |= {(copy.source, at) for copy in step.copies for at in range(copy.extent)}
        if self.fenced:
            self._check_fences(writes)
        hits = []
        for row, (served, _) in zip(step.rows, takings, strict=True):
            hits.append(0 if served.seen else row.start)
            self._check_sole_writer(served, row.blocks)
            served.row, served.seen, served.seen_to = tuple(row.blocks), launch, served.computed
        parts = [
            Computation(row.request, taking.life, row.start, served.computed, (), served.text[: served.computed])
            for row, (served, taking) in zip(step.rows, takings, strict=True)
        ]
        self.shadow.compute(parts, step.copies)
        flight = Flight(launch, step, takings, tuple(hits), frozenset(reads | writes.keys()))
        self.flights.append(flight)
        return flight

    def _check_limits(self, step: Step) -> None:
        positions, rows = sum(row.length for row in step.rows), len(step.rows)
        if positions > self.limits.max_tokens_per_step:
            raise Broken(
                "R-PRE-2", f"a step of {counted(positions, 'position')}, and {self.limits.max_tokens_per_step} may be"
            )
        if rows > self.limits.max_running:
            raise Broken("R-CAP-4", f"a step of {counted(rows, 'request')}, and {self.limits.max_running} may run")

    def _check_copies(self, step: Step) -> None:
        requests = {row.request for row in step.rows}
        for copy in step.copies:
            if not is_inside(copy, requests, self.shadow.usable, self.config.block_size):
                what = f"{counted(copy.extent, 'slot')} of block {copy.source} to {copy.target} for {copy.sequence}"
                raise Broken("R-COW-3", f"a copy of {what}: not inside usable blocks, or no request of the step")

    def _check_table(self, row: Row) -> None:
        needed = blocks_needed(row.start + row.length, self.config.block_size)
        read = tuple(row.blocks[:needed])
        if len(read) < needed or any(block not in self.shadow.usable for block in read):
            of = f"{counted(needed, 'block')} for {counted(row.start + row.length, 'position')}"
            raise Broken("R-TAB-1", f"request {row.request} needs {of}: {read}")
        if len(set(read)) < needed:
            raise Broken("R-OWN-3", f"a block stands twice in the table of request {row.request}: {read}")

    def _writes(self, step: Step) -> dict[Slot, RequestId]:
        """Return who writes which slot; no two write to one block, by copies or by rows."""
        writes: dict[Slot, RequestId] = {}
        owners: dict[Block, RequestId] = {}
        copied = [((copy.target, at), copy.sequence) for copy in step.copies for at in range(copy.extent)]
        computed = [(slot, row.request) for row in step.rows for slot in self._slots(row, row.start)]
        for slot, request in (*copied, *computed):
            other = owners.setdefault(slot[0], request)
            if other != request:
                raise Broken("R-OWN-3", f"requests {other} and {request} write to block {slot[0]} in one step")
            writes[slot] = request
        return writes

    def _check_fences(self, writes: Iterable[Slot]) -> None:
        for flight in self.flights:
            if shared := flight.touched.intersection(writes):
                block, offset = min(shared)
                raise Broken(
                    "R-LIFE-1", f"block {block} slot {offset} is written, and launch {flight.launch} is in flight on it"
                )

    def _check_sole_writer(self, served: Served, blocks: Sequence[Block]) -> None:
        """See that nobody else has written what a request held since its last row, and still holds."""
        size = self.config.block_size
        for position in range(served.seen_to if served.seen else 0):
            at, offset = divmod(position, size)
            block = blocks[at]
            launch, writer = self.writers.get((block, offset), (0, 0))
            if launch > served.seen and writer != served.request.id and served.row[at] == block:
                raise Broken(
                    "R-COW-1",
                    f"request {writer} wrote to block {block} slot {offset}, which holds position {position} of "
                    f"request {served.request.id} all the while",
                )

    def _slots(self, row: Row, start: int) -> Iterator[Slot]:
        """Yield the slots of a row's positions from `start` to its end."""
        for position in range(start, row.start + row.length):
            at, offset = divmod(position, self.config.block_size)
            yield row.blocks[at], offset

    # ---- and executed

    def execute(self, flight: Flight, tables: Sequence[Sequence[Block]]) -> None:
        """Execute a step with the tables it reads now; the host may learn of it. Errors: `Broken`."""
        for row, table in zip(flight.step.rows, tables, strict=True):
            self._check_table(row._replace(blocks=table))
        try:
            self.shadow.execute(flight.launch, tables)
        except Misread as misread:
            raise self._named(misread, flight) from None
        self.shadow.retire(flight.launch)
        self.flights.remove(flight)

    def _named(self, misread: Misread, flight: Flight) -> Broken:
        """Return what was misread under the name of the rule nearest to its cause."""
        at = [row.request for row in flight.step.rows].index(misread.part.sequence)
        position, (block, offset) = misread.position, misread.slot
        found = f"position {misread.found[1]} of request {misread.found[0]}" if misread.found else "nothing"
        line = (
            f"position {position} of request {misread.part.sequence} is read from block {block} slot {offset}, "
            f"which holds {found}"
        )
        if position >= flight.hits[at]:
            return Broken("R-DATA", line)
        line = f"{line}; it was not computed for this request"
        served, taking = flight.takings[at]
        part_of_a_block = flight.hits[at] % self.config.block_size and not flight.step.copies
        if not self.shares_prefixes or part_of_a_block:
            return Broken("R-PRE-1" if taking.life else "R-DATA", line)
        if misread.found is None:
            return Broken("R-HASH-4", line)
        key = next(key for key, content in self.shadow.names.items() if content == misread.found)
        same: Tokens = served.tokens[: position + 1]
        return Broken("R-HASH-1" if key.tokens == same else "R-HASH-3", line)

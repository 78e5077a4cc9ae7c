"""A manager judged by contents alone.

The manager's word is taken for everything but contents: a virtual device with shadow memory (`shadow`) executes what
it submits. So a stranger's manager can be judged, and so can the rules that catch a fault long before it would show
in anything read. What makes no sense to ask (a name that is not live, a count of zero) is not put to the manager: it
need not answer for it.
"""

from collections.abc import Hashable, Sequence

from .alphabet import (
    Add,
    Clear,
    Execute,
    Extend,
    Fork,
    Operation,
    Pin,
    Publish,
    Release,
    Retire,
    Submit,
    Unpin,
    describe,
)
from .asking import ask, rows_of, table_of, twin_of
from .calls import call
from .canonical import canonical, hidden
from .manager import Manager, Naming
from .outcome import Outcome
from .refusals import Broken, Reason, Refused, guard_batch, refuse_if
from .shadow import Shadow
from .sharing import RETENTIONS
from .state import Block, Computation, Config, Launch, LaunchId, State


class BlackBox:
    """A manager and a virtual device that knows contents alone."""

    def __init__(self, config: Config, manager: Manager) -> None:
        self.shadow = Shadow(config, manager.first_block)
        self.manager = manager
        self.tables: dict[LaunchId, list[tuple[int, ...]]] = {}  # handed over at the launch, unless rows are live
        self.offered: Outcome | Refused | None = None  # the manager's last answer

    @property
    def state(self) -> State:
        """What drivers look at to choose operations."""
        return self.shadow.state

    def clone(self) -> "BlackBox":
        """Return an independent copy, to branch from."""
        twin = object.__new__(BlackBox)
        twin.shadow, twin.manager, twin.tables = self.shadow.clone(), twin_of(self.manager), dict(self.tables)
        twin.offered = None
        return twin

    def refusal(self, operation: Operation) -> Refused | None:
        """Return why an operation makes no sense to ask; whether there is space only the manager knows."""
        try:
            self._guard(operation)
        except Refused as refused:
            return refused
        return None

    def step_refused(self, operation: Operation, refusal: Refused) -> None:
        """Ask nothing: what makes no sense is not put to a stranger's manager."""

    def step(self, operation: Operation) -> Outcome | Refused:
        """Take one operation; a refusal by the manager must have changed no block table."""
        self.offered = self.refusal(operation)
        if self.offered:
            return self.offered
        if isinstance(operation, Execute):
            self.shadow.execute(operation.launch, self._rows(operation.launch))
            return Outcome()
        tables = self._block_tables()
        offered = self.offered = ask(self.manager, operation)
        if isinstance(offered, Refused):
            if self._block_tables() != tables:
                raise Broken("R-TXN-1", f"{describe(operation)} was refused and block tables changed")
            if isinstance(operation, Release | Retire | Unpin):
                rule = "R-LIFE-4" if isinstance(operation, Retire) else "R-OWN-4"
                raise Broken(rule, f"{describe(operation)} was refused as {offered.reason}: it must always be possible")
            return offered
        self._follow(operation, offered)
        if not (self.state.sequences or self.state.launches or self.state.pins):
            self._everything_is_free()
        return offered

    def look(self) -> None:
        """Nothing to compare: contents are judged when launches execute."""

    def key(self, *, pairs: bool) -> Hashable:  # noqa: ARG002  (a black box is never known by the spec's state alone)
        """Return what makes this world one with others: contents, tables, and what the manager says it hides."""
        shadow = self.shadow
        sequences = {
            name: sequence._replace(row=table_of(self.manager, name), copy=None)
            for name, sequence in shadow.state.sequences.items()
        }
        launches = tuple(launch._replace(computations=self._parts(launch)) for launch in shadow.state.launches)
        rows = [part.row for launch in launches for part in launch.computations]
        rows += [sequence.row for sequence in sequences.values()]
        empty = (None,) * shadow.config.block_size
        named = {0, *shadow.usable}.union(*rows)  # even what is no block of the pool
        memory = {block: shadow.state.memory.get(block, empty) for block in named}
        seen = shadow.state._replace(sequences=sequences, launches=launches, memory=memory)
        key, naming = canonical(seen)
        plans = [
            (naming.sequences[name], *((naming.blocks[c.source], naming.blocks[c.target], c.extent) for c in copies))
            for name, copies in shadow.plans.items()
        ]
        return key, tuple(sorted(plans)), self._remembered(naming), hidden(self.manager, naming, seen)

    def _remembered(self, naming: Naming) -> Hashable:
        """Return which known prefixes slots hold: they may be asked for again, though nobody does now."""
        shadow = self.shadow
        meaning = {content: key for key, content in shadow.names.items() if key.root.weights == self.state.weights}
        if not meaning:
            return len(self.state.pins)
        held = [
            (naming.blocks.get(block, -block), at, meaning[content])
            for block, contents in shadow.state.memory.items()
            for at, content in enumerate(contents)
            if content in meaning
        ]
        return tuple(sorted((block, at, key.root.salt, key.tokens) for block, at, key in held)), len(self.state.pins)

    def blocks(self) -> tuple[int, int, int]:
        """Return how many blocks are free, held and quarantined, by the manager's word or else by its block tables."""
        if counts := call("observe", _counts, self.manager):
            return counts
        held = len({block for table in self._block_tables().values() for block in table})
        return self.shadow.config.blocks - held, held, 0

    def _parts(self, launch: Launch) -> tuple[Computation, ...]:
        rows = self._rows(launch.id)
        return tuple(part._replace(row=row) for part, row in zip(launch.computations, rows, strict=True))

    def _rows(self, launch: LaunchId) -> Sequence[tuple[Block, ...]]:
        """Return what the device reads: the tables it was given, or the manager's rows as they are now."""
        rows = self.tables[launch] if launch in self.tables else rows_of(self.manager, launch)
        wanted = next(len(each.computations) for each in self.state.launches if each.id == launch)
        if rows is None or len(rows) != wanted:
            raise Broken("R-TAB-1", f"launch {launch} has {len(rows or ())} rows to read, not {wanted}")
        return rows

    def _block_tables(self) -> dict[int, tuple[int, ...]]:
        return {name: table_of(self.manager, name) for name in self.state.sequences}

    def _guard(self, operation: Operation) -> None:
        """Refuse what makes no sense to ask: a stranger's manager need not answer for it."""
        state = self.state
        match operation:
            case Add(name):
                refuse_if(name in state.sequences, Reason.DUPLICATE)
                refuse_if(operation.length < 1, Reason.EMPTY)
            case Extend(rows):
                guard_batch(state.sequences, rows)
                refuse_if(any(count < 1 for _, count in rows), Reason.BAD_COUNT)
            case Submit(rows, _):
                guard_batch(state.sequences, rows)
                refuse_if(any(not 1 <= c <= state.sequences[n].planned for n, c in rows), Reason.BAD_COUNT)
                refuse_if(len(state.launches) >= state.config.launches, Reason.BUSY)
            case Fork(parent, child):
                refuse_if(parent not in state.sequences, Reason.UNKNOWN)
                refuse_if(child in state.sequences, Reason.DUPLICATE)
                refuse_if(state.sequences[parent].planned > 0, Reason.BUSY)
            case Release(name):
                refuse_if(name not in state.sequences, Reason.UNKNOWN)
            case Retire(launch):
                refuse_if(not 1 <= launch <= state.issued, Reason.UNKNOWN_LAUNCH)
            case Execute():
                pass
            case _:
                self._guard_sharing(operation)

    def _guard_sharing(self, operation: Publish | Pin | Unpin | Clear) -> None:
        state = self.state
        match operation:
            case Publish(rows, retention):
                guard_batch(state.sequences, rows)
                unknown = {name: state.sequences[name].allocated - len(state.sequences[name].known) for name, _ in rows}
                refuse_if(any(len(tokens) > unknown[name] for name, tokens in rows), Reason.BAD_COUNT)
                refuse_if(retention not in RETENTIONS, Reason.BAD_COUNT)
            case Pin(handle):
                refuse_if(handle in state.pins, Reason.DUPLICATE)
            case Unpin(handle):
                refuse_if(handle not in state.pins, Reason.UNKNOWN)
            case Clear():
                pass

    def _follow(self, operation: Operation, outcome: Outcome) -> None:
        """Tell the shadow what the manager did."""
        match operation:
            case Add(name, tokens, salt):
                self.shadow.add(name, tokens, salt, outcome.hits)
            case Extend(rows):
                self.shadow.extend(rows, outcome.copies)
            case Fork(parent, child):
                self.shadow.fork(parent, child)
            case Submit(rows, stream):
                launch = self.shadow.launch(rows, stream, outcome.after)
                if rows_of(self.manager, launch) is None:
                    self.tables[launch] = [table_of(self.manager, name) for name, _ in rows]
            case Retire(launch):
                self.shadow.retire(launch)
            case Release(name):
                self.shadow.release(name)
            case Execute():
                pass
            case _:
                self._follow_sharing(operation)

    def _follow_sharing(self, operation: Publish | Pin | Unpin | Clear) -> None:
        match operation:
            case Publish(rows):
                self.shadow.publish(rows)
            case Pin(handle):
                self.shadow.pin(handle)
            case Unpin(handle):
                self.shadow.unpin(handle)
            case Clear():
                self.shadow.clear()

    def _everything_is_free(self) -> None:
        """R-OWN-4 from outside: with nothing left, one sequence as long as the whole pool must find room."""
        config = self.shadow.config
        probe = twin_of(self.manager)
        if isinstance(ask(probe, Add(0, config.blocks * config.block_size)), Refused):
            raise Broken(
                "R-OWN-4", f"all is over, and a sequence of {config.blocks} blocks, the whole pool, finds no room"
            )


def _counts(manager: Manager) -> tuple[int, int, int] | None:
    shown = manager.observe()
    if not shown:
        return None
    return len(shown.free) + len(shown.idle), len(shown.references), len(shown.quarantined)

"""A manager judged from outside: by what a device reads, and by what its answers and block tables show.

The manager's word is taken for everything but contents: a virtual device with shadow memory (`shadow`) executes what
it submits. So a stranger's manager can be judged, and so can the rules that catch a fault long before it would show
in anything read. After each operation the rules that can be seen from outside hold (`outside`). What makes no sense to
ask (`guards`) and what the manager does not offer (`offers`) is not put to it.

To branch, a world needs a copy of its manager. Where there can be none, a new one is made and asked all over again,
which takes as long as what was asked so far; it must answer alike.
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
)
from .asking import ask, made, rows_of, sight_of, table_of, twin_of
from .calls import call
from .canonical import canonical, hidden
from .guards import guard
from .manager import Factory, Manager, lacks
from .observation import Naming
from .offers import fit, missing
from .outcome import Outcome
from .outside import OutsideStep, check
from .outside_book import Claims, is_inside
from .refusals import Broken, Reason, Refused
from .shadow import Shadow
from .state import Block, Computation, Config, Launch, LaunchId, State

History = tuple["History | None", Operation]  # what was asked: all before, and the last


class BlackBox:
    """A manager, a virtual device that knows contents alone, and the rules that show from outside."""

    def __init__(self, config: Config, manager: Manager, factory: Factory, aside: frozenset[str] = frozenset()) -> None:
        self.shadow = Shadow(config, manager.first_block)
        self.manager = manager
        self.factory = factory
        self.aside = aside  # rules that are not judged
        self.claims = Claims(self.shadow.usable, manager.discipline, lacks(manager))
        self.tables: dict[LaunchId, list[tuple[int, ...]]] = {}  # as they were at the launch
        self.live: set[LaunchId] = set()  # launches that read rows as they are when they execute
        self.sight = sight_of(manager, ())
        self.offered: Outcome | Refused | None = None  # the manager's last answer
        self.asked: History | None = None
        self.asked_count = 0
        self._next_probe = 0  # where a probe has to ask all over again

    @property
    def state(self) -> State:
        """What drivers look at to choose operations."""
        return self.shadow.state

    def clone(self) -> "BlackBox":
        """Return an independent copy, to branch from."""
        twin = object.__new__(BlackBox)
        twin.shadow, twin.manager, twin.factory = self.shadow.clone(), self._twin(), self.factory
        twin.aside, twin.claims, twin.sight, twin.offered = self.aside, self.claims, self.sight, None
        twin.tables, twin.live = dict(self.tables), set(self.live)
        twin.asked, twin.asked_count, twin._next_probe = self.asked, self.asked_count, self._next_probe
        return twin

    def fit(self, operation: Operation) -> Operation | None:
        """Return the nearest operation that makes sense and that the manager offers, None if there is none."""
        try:
            guard(self.state, operation)
        except Refused:
            return None
        return fit(self.state, operation, self.claims.lacks)

    def refusal(self, operation: Operation) -> Refused | None:
        """Return why an operation is not asked; whether there is space only the manager knows."""
        try:
            guard(self.state, operation)
        except Refused as refused:
            return refused.with_traceback(None)
        if features := missing(self.state, operation, self.claims.lacks):
            return Refused(Reason.NOT_OFFERED, ", ".join(features))
        return None

    def step_refused(self, operation: Operation, refusal: Refused) -> None:
        """Ask nothing: what makes no sense is not put to a stranger's manager."""

    def step(self, operation: Operation) -> Outcome | Refused:
        """Take one operation, and judge what shows of it."""
        if self.manager.own_calls:
            self.manager.own_calls.clear()
        self.offered = self.refusal(operation)
        if self.offered:
            return self.offered
        old, plans, before = self.state, dict(self.shadow.plans), self.sight
        if isinstance(operation, Execute):
            self.shadow.execute(operation.launch, self._rows(operation.launch), judged=False)
            answer: Outcome | Refused = Outcome()
        else:
            answer = self._ask(operation)
        check(
            OutsideStep(
                operation,
                answer,
                old,
                self.state,
                plans,
                before,
                self.sight,
                self.claims,
                self.tables,
                self.shadow.names,
                self._finds_room,
            ),
            self.aside,
        )
        return answer

    def look(self) -> None:
        """Nothing to compare: what shows is judged with each step."""

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
        rows += shadow.state.pins.values()
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

    def own_calls(self) -> tuple[str, ...]:
        """Return what the adapter says that it called at the last operation."""
        return tuple(self.manager.own_calls or ())

    def blocks(self) -> tuple[int, int, int]:
        """Return how many blocks are free or idle, held, and neither, by its word as far as it tells."""
        if counts := call("observe", _counts, self.manager):
            return counts
        sight, blocks = sight_of(self.manager, self.state.sequences), self.shadow.config.blocks
        held = {block for table in sight.tables.values() for block in table}.union(*self.state.pins.values())
        available = sight.available()
        free = blocks - len(held) if available is None else len(available - held)
        return free, len(held), blocks - free - len(held)

    # ---- asking

    def _ask(self, operation: Operation) -> Outcome | Refused:
        """Put an operation to the manager, tell the shadow what it did, and look at what it shows then."""
        answer = self.offered = ask(self.manager, operation)
        self.asked, self.asked_count = (self.asked, operation), self.asked_count + 1
        if not isinstance(answer, Refused):
            self._follow(operation, answer)
        self.sight = sight_of(self.manager, self.state.sequences)
        return answer

    def _follow(self, operation: Operation, outcome: Outcome) -> None:
        """Tell the shadow what the manager did, as far as that can be; what cannot is judged by the rules."""
        shadow, size = self.shadow, self.shadow.config.block_size
        match operation:
            case Add(name, tokens, salt):
                shadow.add(name, tokens, salt, outcome.hits[: (operation.length - 1) // size])
            case Extend(rows):
                batch = {name for name, _ in rows}
                shadow.extend(rows, [copy for copy in outcome.copies if is_inside(copy, batch, shadow.usable, size)])
            case Fork(parent, child):
                copies = [copy for copy in outcome.copies if is_inside(copy, {child}, shadow.usable, size)]
                shadow.fork(parent, child, copies)
            case Submit(rows, stream):
                issued = range(1, self.state.issued + 1)
                launch = shadow.launch(rows, stream, frozenset(edge for edge in outcome.after if edge in issued))
                self.tables[launch] = [table_of(self.manager, name) for name, _ in rows]
                if rows_of(self.manager, launch) is not None:
                    self.live.add(launch)
            case Retire(launch):
                shadow.retire(launch)
            case Release(name):
                shadow.release(name)
            case _:
                self._follow_sharing(operation, outcome)

    def _follow_sharing(self, operation: Operation, outcome: Outcome) -> None:
        match operation:
            case Publish(rows):
                self.shadow.publish(rows)
            case Pin(handle):
                self.shadow.pin(handle, outcome.hits)
            case Unpin(handle):
                self.shadow.unpin(handle)
            case Clear():
                self.shadow.clear()
            case _:
                pass

    # ---- branching

    def _twin(self) -> Manager:
        """Return an independent copy of the manager; where there can be none, another that was asked the same."""
        return twin_of(self.manager) or self._asked_again()

    def _asked_again(self) -> Manager:
        manager = made(self.factory, self.shadow.config)
        for operation in _in_order(self.asked):
            ask(manager, operation)
        if (sight := sight_of(manager, self.state.sequences)) != self.sight:
            raise Broken("CRASH", f"asked the same once more, a new manager shows {sight}, not {self.sight}")
        return manager

    def _finds_room(self) -> bool:
        """Whether a sequence as long as the whole pool finds room once all others are released: tried on a copy.

        Where a copy costs all that was asked before, it is tried when all is over alone, and the next one waits until
        as much again has been asked.
        """
        state, lacks = self.state, self.claims.lacks
        exits: list[Operation] = [*map(Release, state.sequences), *map(Unpin, state.pins)]
        if any(fit(state, each, lacks) is None for each in exits):
            return True
        probe = twin_of(self.manager)
        if probe is None:
            if exits or self.asked_count < self._next_probe:
                return True
            self._next_probe = 2 * self.asked_count
            probe = self._asked_again()
        for each in exits:
            ask(probe, each)
        config = self.shadow.config
        longest = fit(state, Add(0, config.blocks * config.block_size), lacks)
        return longest is None or not isinstance(ask(probe, longest), Refused)

    # ---- what the device reads

    def _rows(self, launch: LaunchId) -> Sequence[tuple[Block, ...]]:
        """Return what the device reads: the tables it was given, or the manager's rows as they are now."""
        rows = rows_of(self.manager, launch) if launch in self.live else self.tables[launch]
        wanted = next(len(each.computations) for each in self.state.launches if each.id == launch)
        if rows is None or len(rows) != wanted:
            raise Broken("R-TAB-1", f"launch {launch} has {len(rows or ())} rows to read, not {wanted}")
        return rows

    def _parts(self, launch: Launch) -> tuple[Computation, ...]:
        rows = self._rows(launch.id)
        return tuple(part._replace(row=row) for part, row in zip(launch.computations, rows, strict=True))

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


def _in_order(asked: History | None) -> list[Operation]:
    """Return what was asked, from the first on."""
    operations: list[Operation] = []
    while asked is not None:
        asked, operation = asked
        operations.append(operation)
    return operations[::-1]


def _counts(manager: Manager) -> tuple[int, int, int] | None:
    shown = manager.observe()
    if not shown:
        return None
    return len(shown.free) + len(shown.idle), len(shown.references), len(shown.quarantined)

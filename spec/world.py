"""A manager under test and what judges it, taken one operation further by `step`.

Every driver ends here: exhaustive, Hypothesis, seeded random, replay of a trace. Two judges:

- `LockStep`: the spec takes each operation too. It follows the manager's choices where it allows them; after each
  operation every rule holds, and rows, lengths, references, block states, planned copies and launches in flight are
  equal on both sides. A refusal on one side is a refusal on the other, with the same reason, and nothing has changed.
- `BlackBox`: a virtual device with shadow memory alone. The manager's word is taken for everything but contents.

`step` returns the outcome, or the refusal that both sides agree on, and raises `Broken` with the rule that does not hold.
"""

from collections.abc import Callable, Hashable
from typing import Any

from . import rules
from .alphabet import Add, Execute, Extend, Fork, Operation, Release, Retire, Submit, apply, describe
from .canonical import Key, canonical
from .manager import Factory, Manager, Naming, NotOffered
from .operations import Outcome, ready
from .refusals import Broken, Reason, Refused
from .shadow import Shadow, refuse_if_unknown, rows_at_launch
from .state import Config, Copy, LaunchId, State, initial
from .views import observe

# Which rule is broken where the two observations differ, in the order in which they are compared.
_JUDGED_BY = {
    "free": "R-OWN-1",
    "quarantined": "R-LIFE-5",
    "references": "R-OWN-2",
    "copies": "R-LIFE-8",
    "in_flight": "R-LIFE-4",
    "sequences": "R-TAB-1",
}


class LockStep:
    """A manager and the spec, side by side."""

    def __init__(self, config: Config, manager: Manager) -> None:
        self.state = initial(config)
        self.manager = manager
        self.offered: Outcome | Refused | None = None  # the manager's last answer

    def clone(self) -> "LockStep":
        """Return an independent copy, to branch from."""
        twin = object.__new__(LockStep)
        twin.state, twin.manager, twin.offered = self.state, self.manager.clone(), None
        return twin

    def refusal(self, operation: Operation) -> Refused | None:
        """Return the spec's refusal of an operation, None if it would do it, with some choice."""
        try:
            apply(self.state, operation)
        except Refused as refused:
            return refused
        return None

    def step(self, operation: Operation) -> Outcome | Refused:
        """Take one operation on both sides, and compare all that can be observed afterwards."""
        refusal = self.refusal(operation)
        if refusal:
            self.step_refused(operation, refusal)
            self.look()
            return refusal
        self.offered = None
        if isinstance(operation, Execute):
            self._compare_rows(operation)
            self.offered = Outcome()
        else:
            self.offered = call(self.manager, operation)
        old, choice = self.state, self.offered
        new, decided = apply(old, operation, None if isinstance(choice, Refused) else choice)
        _same_answer(operation, decided, choice)
        rules.check(rules.Step(old, operation, decided, new))
        self.state = new
        if not isinstance(operation, Execute):  # the host sees nothing of what a device does
            self.look()
        return decided

    def step_refused(self, operation: Operation, refusal: Refused) -> None:
        """Ask the manager for what the spec refuses; the caller looks afterwards whether something changed."""
        self.offered = call(self.manager, operation)
        _same_answer(operation, refusal, self.offered)
        rules.check(rules.Step(self.state, operation, refusal, self.state))

    def look(self) -> None:
        """Compare everything that the manager shows with the spec's state."""
        shown = self.manager.observe()
        right = observe(self.state)
        if shown != right and shown is not None:
            for field, rule in _JUDGED_BY.items():
                theirs, ours = getattr(shown, field), getattr(right, field)
                if theirs != ours:
                    raise Broken(
                        rule, f"{field.replace('_', ' ')}: {_only(theirs, ours)}, by the spec {_only(ours, theirs)}"
                    )

    def key(self, *, pairs: bool) -> Hashable:
        """Return what makes this world one with others: the spec's state, or the manager's hidden state as well."""
        key, naming = canonical(self.state)
        return (key, _hidden(self.manager, naming, self.state)) if pairs else key

    def blocks(self) -> tuple[int, int, int]:
        """Return how many blocks are free, held and quarantined."""
        free, waiting = len(self.state.free), len(self.state.quarantine)
        return free, self.state.config.blocks - free - waiting, waiting

    def _compare_rows(self, operation: Execute) -> None:
        """R-LIFE-6: what the device reads when it executes is what was captured at the launch."""
        rows = self.manager.rows_read(operation.launch)
        launch = next(launch for launch in self.state.launches if launch.id == operation.launch)
        for part, row in zip(launch.computations, rows or (), strict=rows is not None):
            seen = tuple(int(block) for block in row[: len(part.row)])
            if seen != part.row:
                raise Broken(
                    "R-LIFE-6", f"launch {launch.id} reads the row {seen} of sequence {part.sequence}, not {part.row}"
                )


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
        twin.shadow, twin.manager, twin.tables = self.shadow.clone(), self.manager.clone(), dict(self.tables)
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
        offered = self.offered = call(self.manager, operation)
        if isinstance(offered, Refused):
            if self._block_tables() != tables:
                raise Broken("R-TXN-1", f"{describe(operation)} was refused and block tables changed")
            return offered
        self._follow(operation, offered)
        if not self.state.sequences and not self.state.launches:
            self._everything_is_free()
        return offered

    def look(self) -> None:
        """Nothing to compare: contents are judged when launches execute."""

    def key(self, *, pairs: bool) -> Hashable:  # noqa: ARG002  (a black box is never known by the spec's state alone)
        """Return what makes this world one with others: contents, tables, and what the manager says it hides."""
        shadow = self.shadow
        sequences = {
            name: sequence._replace(
                row=tuple(int(b) for b in self.manager.block_table(name)), copy=_one(shadow.plans.get(name))
            )
            for name, sequence in shadow.state.sequences.items()
        }
        launches = tuple(
            launch._replace(
                computations=tuple(
                    part._replace(row=tuple(int(block) for block in row))
                    for part, row in zip(launch.computations, self._rows(launch.id), strict=True)
                )
            )
            for launch in shadow.state.launches
        )
        empty = (None,) * shadow.config.block_size
        memory = {block: shadow.state.memory.get(block, empty) for block in (*shadow.usable, 0)}
        seen = shadow.state._replace(sequences=sequences, launches=launches, memory=memory)
        key, naming = canonical(seen)
        return key, _hidden(self.manager, naming, seen)

    def blocks(self) -> tuple[int, int, int]:
        """Return how many blocks are free, held and quarantined, by the manager's word or else by its block tables."""
        if shown := self.manager.observe():
            return len(shown.free), len(shown.references), len(shown.quarantined)
        held = len({block for table in self._block_tables().values() for block in table})
        return self.shadow.config.blocks - held, held, 0

    def _rows(self, launch: LaunchId) -> Any:
        return self.tables[launch] if launch in self.tables else self.manager.rows_read(launch)

    def _block_tables(self) -> dict[int, tuple[int, ...]]:
        return {name: tuple(int(b) for b in self.manager.block_table(name)) for name in self.state.sequences}

    def _guard(self, operation: Operation) -> None:
        """Refuse what makes no sense to ask: a stranger's manager need not answer for it."""
        state = self.state
        match operation:
            case Add(name, count):
                _refuse_if(name in state.sequences, Reason.DUPLICATE)
                _refuse_if(count < 1, Reason.EMPTY)
            case Extend(rows):
                refuse_if_unknown(self.shadow, rows)
                _refuse_if(any(count < 1 for _, count in rows), Reason.BAD_COUNT)
            case Submit(rows, _):
                refuse_if_unknown(self.shadow, rows)
                _refuse_if(any(not 1 <= c <= state.sequences[n].planned for n, c in rows), Reason.BAD_COUNT)
                _refuse_if(len(state.launches) >= state.config.launches, Reason.BUSY)
            case Fork(parent, child):
                _refuse_if(parent not in state.sequences, Reason.UNKNOWN)
                _refuse_if(child in state.sequences, Reason.DUPLICATE)
                _refuse_if(state.sequences[parent].planned > 0, Reason.BUSY)
            case Release(name):
                _refuse_if(name not in state.sequences, Reason.UNKNOWN)
            case Retire(launch):
                _refuse_if(not 1 <= launch <= state.issued, Reason.UNKNOWN_LAUNCH)
            case Execute():
                pass

    def _follow(self, operation: Operation, outcome: Outcome) -> None:
        """Tell the shadow what the manager did."""
        match operation:
            case Add(name, count):
                self.shadow.add(name, count)
            case Extend(rows):
                self.shadow.extend(rows, outcome.copies)
            case Fork(parent, child):
                self.shadow.fork(parent, child)
            case Submit(rows, stream):
                launch = self.shadow.launch(rows, stream, outcome.after)
                if self.manager.rows_read(launch) is None:
                    self.tables[launch] = rows_at_launch(self.manager, rows)
            case Retire(launch):
                self.shadow.retire(launch)
            case Release(name):
                self.shadow.release(name)
            case Execute():
                pass

    def _everything_is_free(self) -> None:
        """R-OWN-4 from outside: with nothing left, one sequence as long as the whole pool must find room."""
        config = self.shadow.config
        probe = self.manager.clone()
        if isinstance(call(probe, Add(0, config.blocks * config.block_size)), Refused):
            raise Broken("R-OWN-4", "all is over, and a sequence as long as the pool finds no room")


World = LockStep | BlackBox


def world(config: Config, factory: Factory, *, lock_step: bool) -> World:
    """Return a new manager with its judge."""
    manager = factory(config)
    return LockStep(config, manager) if lock_step else BlackBox(config, manager)


def can_execute(state: State, launch: LaunchId) -> bool:
    """Whether the device may execute a launch now."""
    return any(each.id == launch and ready(state, each) for each in state.launches)


def can_retire(state: State, launch: LaunchId) -> bool:
    """Whether a completion may arrive: the launch is done, or has left, or was never there."""
    return all(each.executed for each in state.launches if each.id == launch)


def call(manager: Manager, operation: Operation) -> Outcome | Refused:
    """Ask the manager; anything it raises but a refusal is a crash, and a crash breaks the rule that it hides."""
    method: Callable[..., Any] = getattr(manager, _METHODS[type(operation)])
    try:
        answer = method(*operation)
    except Refused as refusal:
        return refusal
    except Exception as error:
        raise Broken("CRASH", f"{describe(operation)} raised {type(error).__name__}: {error}") from error
    if answer is None:
        return Outcome()
    return answer if isinstance(answer, Outcome) else Outcome(copies=tuple(Copy(*each) for each in answer))


_METHODS = {Add: "add", Extend: "extend", Fork: "fork", Submit: "launch", Retire: "retire", Release: "release"}


def _refuse_if(condition: bool, reason: Reason) -> None:  # noqa: FBT001  (reads as the sentence it is)
    if condition:
        raise Refused(reason)


def _one(copies: tuple[Copy, ...] | None) -> Copy | None:
    return copies[0] if copies else None


def _same_answer(operation: Operation, decided: Outcome | Refused, offered: Outcome | Refused) -> None:
    if isinstance(decided, Refused) or isinstance(offered, Refused):
        reasons = [each.reason if isinstance(each, Refused) else None for each in (decided, offered)]
        if reasons[0] != reasons[1]:
            space = {Reason.NO_SPACE, Reason.TOO_LONG} & set(reasons)
            words = [f"refused as {reason}" if reason else "done" for reason in reasons]
            raise Broken(
                "R-CAP-1" if space else "R-TXN-1", f"{describe(operation)} was {words[1]}, by the spec {words[0]}"
            )
    elif decided != offered:
        rule = "R-COW-3" if decided.copies != offered.copies else "R-LIFE-7"
        raise Broken(rule, f"{describe(operation)} gave {offered}, by the spec {decided}")


def _only(these: Any, those: Any) -> Any:
    """Return what makes these differ from those, to be read by a person."""
    if isinstance(these, frozenset):
        return sorted(these - those) or "none more"
    if isinstance(these, dict):
        return {name: value for name, value in these.items() if those.get(name) != value} or "none more"
    return these


def _hidden(manager: Manager, naming: Naming, state: State) -> Hashable:
    """Return the manager's hidden state with blocks renamed jointly: named ones first, then waiting ones, then free ones."""
    blocks = dict(naming.blocks)
    waiting = sorted((fence, block) for block, fence in state.quarantine.items() if block not in blocks)
    for block in (*(block for _, block in waiting), *manager.free_order()):
        blocks.setdefault(block, len(blocks) + 1)
    return manager.fingerprint(Naming(blocks, naming.sequences, naming.launches))


__all__ = ["BlackBox", "Key", "LockStep", "NotOffered", "World", "can_execute", "can_retire", "observe", "world"]

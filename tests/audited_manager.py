"""A manager in front of another that lets the auditor judge everything that happens, beside the spec.

To the drivers it is the manager that it wraps. With each operation it asks the auditor three things and raises
`Broken("AUDIT", ...)` where the answer is not the spec's: whether what was done is accepted; whether what was refused
would have been rejected; and, of every choice a little beside the right one (another block, an edge less, a copy with
another extent, a block freed early or late), whether it is accepted exactly if `apply` accepts it. Afterwards all that
the auditor keeps is compared with what the spec's state says.

The state here lacks executions, which no manager is told of and no journal has: no operation of the host depends on
them.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import chain, combinations
from typing import Self

from pagedkv.spec.alphabet import (
    Add,
    Clear,
    Extend,
    Fork,
    Operation,
    Pin,
    Publish,
    Release,
    Retire,
    Submit,
    Unpin,
    apply,
    describe,
)
from pagedkv.spec.asking import ask
from pagedkv.spec.audit import Auditor
from pagedkv.spec.manager import Manager
from pagedkv.spec.observation import Naming, Observation
from pagedkv.spec.outcome import Outcome, Rows, Telling
from pagedkv.spec.reference import Reference
from pagedkv.spec.refusals import Broken, Refused
from pagedkv.spec.state import Block, Config, Copy, Handle, LaunchId, Name, State, Tokens, before, initial
from pagedkv.spec.views import observe


class Audited(Manager):
    """A manager, the spec's state beside it, and the auditor under test."""

    shares_prefixes = True
    inner: Callable[[Config], Manager] = Reference

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.manager = type(self).inner(config)
        self.state = initial(config)
        self.auditor = Auditor(config)

    def add(self, name: Name, count: int) -> Outcome:
        """Take the step on all sides."""
        return self._step(Add(name, count))

    def add_prompt(self, name: Name, tokens: int | Tokens, salt: int) -> Outcome:
        """Take the step on all sides."""
        return self._step(Add(name, tokens, salt))

    def publish(self, rows: Telling, retention: int) -> Outcome:
        """Take the step on all sides."""
        return self._step(Publish(rows, retention))

    def pin(self, handle: Handle, tokens: Tokens, salt: int) -> Outcome:
        """Take the step on all sides."""
        return self._step(Pin(handle, tokens, salt))

    def unpin(self, handle: Handle) -> Outcome:
        """Take the step on all sides."""
        return self._step(Unpin(handle))

    def clear(self) -> Outcome:
        """Take the step on all sides."""
        return self._step(Clear())

    def extend(self, rows: Rows) -> Outcome:
        """Take the step on all sides."""
        return self._step(Extend(rows))

    def fork(self, parent: Name, child: Name) -> Outcome:
        """Take the step on all sides."""
        return self._step(Fork(parent, child))

    def launch(self, rows: Rows, stream: int) -> Outcome:
        """Take the step on all sides."""
        return self._step(Submit(rows, stream))

    def retire(self, launch: LaunchId) -> Outcome:
        """Take the step on all sides."""
        return self._step(Retire(launch))

    def release(self, name: Name) -> Outcome:
        """Take the step on all sides."""
        return self._step(Release(name))

    def block_table(self, name: Name) -> Sequence[Block]:
        """Ask the manager."""
        return self.manager.block_table(name)

    def rows_read(self, launch: LaunchId) -> Sequence[Sequence[Block]] | None:
        """Ask the manager."""
        return self.manager.rows_read(launch)

    def observe(self) -> Observation | None:
        """Ask the manager."""
        return self.manager.observe()

    def free_order(self) -> Sequence[Block]:
        """Ask the manager."""
        return self.manager.free_order()

    def clone(self) -> Self:
        """Return an independent copy."""
        twin = object.__new__(type(self))
        twin.config, twin.state = self.config, self.state
        twin.manager, twin.auditor = self.manager.clone(), self.auditor.clone()
        return twin

    def fingerprint(self, naming: Naming) -> Hashable:
        """Return the hidden state of the auditor: what it keeps that the spec's state does not say."""
        return self.manager.fingerprint(naming), hidden(self.auditor, naming)

    def _step(self, operation: Operation) -> Outcome:
        offered = ask(self.manager, operation)
        if isinstance(offered, Refused):
            judge_refused(self.state, self.auditor, operation)
            raise offered
        for wrong in beside(self.state, operation, offered):
            judge(self.state, self.auditor.clone(), operation, wrong)
        after = judge(self.state, self.auditor, operation, offered)
        if after is None:
            raise Broken("AUDIT", f"{describe(operation)} with {offered} is accepted by nobody")
        self.state = after
        compare(self.state, self.auditor)
        return offered


def judge(state: State, auditor: Auditor, operation: Operation, choice: Outcome) -> State | None:
    """Let spec and auditor judge a choice; return the state after it if both accept it, none if neither does."""
    try:
        after, _ = apply(state, operation, choice)
        verdict = ""
    except (Broken, Refused) as no:
        after, verdict = None, str(no)
    if isinstance(operation, Submit) and choice.launch != state.issued + 1:
        after, verdict = None, "launches are numbered from 1"  # `apply` numbers them itself
    try:
        auditor.step(operation, choice)
        found = ""
    except Broken as broken:
        found = str(broken)
    if bool(verdict) != bool(found):
        words = f"by the spec {verdict or 'allowed'}, by the audit {found or 'allowed'}"
        raise Broken("AUDIT", f"{describe(operation)} with {choice}: {words}")
    return after


def judge_refused(state: State, auditor: Auditor, operation: Operation) -> None:
    """See that the auditor rejects what was refused, had it been done with all that is free."""
    try:
        available = (*sorted(state.free), *sorted(state.evictable))
        auditor.clone().step(operation, Outcome(blocks=available, launch=state.issued + 1))
    except Broken:
        return
    raise Broken("AUDIT", f"{describe(operation)} was refused, and by the audit it is allowed")


def beside(state: State, operation: Operation, right: Outcome) -> Iterator[Outcome]:
    """Yield choices that are a little beside the right one; some are right as well."""
    ids = range(state.config.blocks + 2)
    match operation:
        case Add() | Extend():
            yield from (right._replace(blocks=blocks) for blocks in _other_lists(right.blocks, ids))
            yield from (right._replace(hits=hits) for hits in _other_lists(right.hits, ids))
            yield from _other_copies(state, right, ids)
        case Submit():
            yield from (right._replace(launch=right.launch + by) for by in (-1, 1))
            edges = range(max(0, state.issued - 2), state.issued + 2)
            yield from (right._replace(after=some) for some in _other_sets(right.after, edges))
        case Retire() | Release() | Publish() | Unpin() | Clear():
            yield from (right._replace(freed=some) for some in _other_sets(right.freed, ids))
            yield from (right._replace(published=some) for some in _other_lists(right.published, ids))
            for at, merge in enumerate(right.merges):
                rest = (*right.merges[:at], *right.merges[at + 1 :])
                yield right._replace(merges=rest)
                yield right._replace(merges=(*rest, merge._replace(old=merge.new, new=merge.old)))
        case Pin():
            yield from (right._replace(hits=hits) for hits in _other_lists(right.hits, ids))
        case _:
            return


def _other_lists(right: tuple[Block, ...], ids: range) -> Iterator[tuple[Block, ...]]:
    for at in range(len(right)):
        yield from ((*right[:at], other, *right[at + 1 :]) for other in ids)
        yield (*right[:at], *right[at + 1 :])
    yield from ((*right, more) for more in ids)
    yield right[::-1]


def _other_copies(state: State, right: Outcome, ids: range) -> Iterator[Outcome]:
    names = [*state.sequences, max(state.sequences, default=0) + 1]
    for at, copy in enumerate(right.copies):
        rest = (*right.copies[:at], *right.copies[at + 1 :])
        yield right._replace(copies=rest)
        yield right._replace(copies=rest, blocks=tuple(block for block in right.blocks if block != copy.target))
        yield right._replace(copies=(*rest, copy))
        yield right._replace(copies=(*right.copies, copy))
        others = chain(
            (copy._replace(sequence=name) for name in names),
            (copy._replace(source=block) for block in ids),
            (copy._replace(target=block) for block in ids),
            (copy._replace(extent=extent) for extent in range(state.config.block_size + 2)),
        )
        yield from (right._replace(copies=(*right.copies[:at], other, *right.copies[at + 1 :])) for other in others)
    for free in sorted(state.free.difference(right.blocks))[:1]:  # a copy that was not needed
        for name, sequence in state.sequences.items():
            extra = (Copy(name, sequence.row[-1], free, 1),)
            yield right._replace(blocks=(*right.blocks, free), copies=(*right.copies, *extra))
            yield right._replace(blocks=(free, *right.blocks), copies=(*extra, *right.copies))


def _other_sets(right: frozenset[int], things: range) -> Iterator[frozenset[int]]:
    """Yield every subset where there are few, else the right one with up to two things put in or left out."""
    few = len(things) <= 5
    changes = chain.from_iterable(combinations(things, size) for size in range(1, (len(things) if few else 2) + 1))
    yield from (right.symmetric_difference(change) for change in changes)


def compare(state: State, auditor: Auditor) -> None:
    """See that what the auditor keeps is what the spec's state says."""
    right = observe(state)
    shown = {
        name: (tuple(s.row), s.allocated, s.launched, s.copy, tuple(s.known), s.salt, s.weights)
        for name, s in auditor.sequences.items()
    }
    expected = {name: (s.row, s.allocated, s.launched, s.copy, s.known, *s.root) for name, s in state.sequences.items()}
    prefixes = auditor.blocks.prefixes
    order = {
        launch: {
            other for other, flight in auditor.launches.in_flight.items() if other <= known.clock.get(flight.stream, 0)
        }
        for launch, known in auditor.launches.in_flight.items()
    }
    pairs = {
        "sequences": (shown, expected),
        "references": (auditor.blocks.holders, right.references),
        "shared edges": (auditor.blocks.shared, sum(right.references.values()) - len(right.references)),
        "waiting": (set(auditor.blocks.quarantine), set(state.quarantine)),
        "published": (set(prefixes.nodes), right.published),
        "evictable": (_ranks(prefixes.evictable), _ranks(state.evictable)),
        "pins": (auditor.pins, right.pins),
        "written": (
            {n: min([at for _, at in auditor.pending(n)], default=s.launched) for n, s in auditor.sequences.items()},
            {name: seen.written for name, seen in right.sequences.items()},
        ),
        "planned copies": (sum(auditor.blocks.readers.values()), len(right.copies)),
        "in flight": (list(auditor.launches.in_flight), list(right.in_flight)),
        "order": (order, {launch.id: before(state.launches, launch) | {launch.id} for launch in state.launches}),
    }
    for what, (ours, theirs) in pairs.items():
        if ours != theirs:
            raise Broken("AUDIT", f"{what}: the auditor has {ours}, the spec {theirs}")


def _ranks(moments: Mapping[Block, int]) -> dict[Block, int]:
    """Return moments as ranks."""
    order = sorted(set(moments.values()))
    return {block: order.index(moment) for block, moment in moments.items()}


def hidden(auditor: Auditor, naming: Naming) -> Hashable:
    """Return what the auditor keeps under new names, less what cannot matter: launches that have left are all alike."""
    ages = naming.launches
    blocks = auditor.blocks

    def clock(known: dict[int, LaunchId]) -> Hashable:
        return tuple(sorted((stream, ages[launch]) for stream, launch in known.items() if launch in ages))

    return (
        tuple(sorted((naming.sequences[name], ages.get(s.newest, 0)) for name, s in auditor.sequences.items())),
        tuple(clock(auditor.launches._newest.get(stream, {})) for stream in range(auditor.config.streams)),
        tuple(clock(flight.clock) for flight in auditor.launches.in_flight.values()),
        tuple(
            sorted(
                (naming.blocks.get(block, 0), ages.get(wait.user, 0), sum(age <= wait.submitted for age in ages))
                for block, wait in blocks.quarantine.items()
            )
        ),
        tuple(sorted((naming.blocks.get(block, 0), clock(known)) for block, known in blocks.left_behind.items())),
        tuple(
            sorted(
                naming.blocks.get(block, 0)
                for wait in blocks._due
                for block in wait.blocks
                if blocks.quarantine.get(block) is wait
            )
        ),
    )

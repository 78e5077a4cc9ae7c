"""What the drivers need of a cache manager, ours or a stranger's.

To put your own manager under test, subclass `Manager` and give `add`, `extend`, `release` and `block_table`; give
`fork`, `launch` and `retire` where your manager has a say in them. Then name the class to the command line:

    pagedkv fuzz --target your_package.your_module:YourManager

A manager with a prefix cache says `shares_prefixes = True` and gives `add_prompt`, which may begin a sequence with
blocks that it finds. `publish` tells it token ids; from then on what is full and written may be hit. `pin`, `unpin` and
`clear` are asked for, and may be left out. Its hits are judged by their contents, as everything is.

The class (or a function that returns an instance) is called as `YourManager(config)`, with a `Config` of `blocks`
(usable block ids 1..blocks; say `first_block = 0` if yours start at 0), `block_size`, `streams` and `launches` (the
limit of launches in flight).

A sequence's life: `add` gives room for its known tokens and `extend` for more of them; `launch` submits a step that
writes the K and V of the next of these positions and reads all before them; the device executes it later; `retire`
says that this is known. `fork` comes only where every position has been launched, `release` at any time. A copy that
`extend` asks for is done at the head of the next launch of its sequence, not at once: its source must keep its
contents until then. With one stream (`streams_offered = 1`), launches execute in the order of submission, so a manager
that frees at once is right; with more, what orders two launches is their stream or `Outcome(after=...)`.

What makes no sense is not asked of a black box: names that are not live or live already, counts of zero, more
than is planned, too many launches in flight. What you must answer for is space: raise `Refused(Reason.NO_SPACE)` and
change nothing. A pin may be refused where nothing is found. Anything else that is raised is reported as a crash, with
the operations that led to it, and so are an answer of the wrong type and none within ten seconds.

What is checked, of any manager, is contents: a virtual device executes the launches in every order that their streams
and edges allow, as late as it likes before they retire, and every slot that a launch reads must hold the KV of the
right prefix (R-DATA). It needs nothing but block tables and copies. Two more things show from outside: a refusal
changes no block table (R-TXN-1), and when no sequence, no pin and no launch is left, one sequence as long as the whole
pool finds room (R-OWN-4; it is added to a `clone`). A manager that also gives `observe` is compared with the spec,
operation by operation, and then answers for every refusal, with the spec's reason.
"""

import copy
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from operator import index
from typing import Any, NamedTuple, Self

from .alphabet import (
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
    describe,
)
from .calls import call
from .outcome import Merge, Outcome, Rows, Telling
from .refusals import Reason, Refused
from .state import Block, Config, Copy, Handle, LaunchId, Name, Tokens


class Seen(NamedTuple):
    """What an implementation shows of one sequence."""

    row: tuple[Block, ...]  # as stored, to the last entry that is not null
    allocated: int
    launched: int
    written: int
    known: int = 0


class Observation(NamedTuple):
    """What an implementation shows of itself, to be equal to the same seen in the spec's state."""

    sequences: Mapping[Name, Seen]
    references: Mapping[Block, int]  # of held blocks: sequences, and pins
    free: frozenset[Block]
    quarantined: frozenset[Block]  # without holder, not published, not free
    copies: frozenset[Copy]  # planned
    in_flight: tuple[LaunchId, ...]
    counters: tuple[int, int, int]  # free, held, quarantined: as counted while it runs, not by a walk
    published: frozenset[Block] = frozenset()
    idle: frozenset[Block] = frozenset()  # published, without holder
    pins: Mapping[Handle, tuple[Block, ...]] = {}  # what each holds, from the first block of its chain
    idle_counters: tuple[int, int] = (0, 0)  # idle, and of these evictable: as counted


class Naming(NamedTuple):
    """New names for old, under which two states that differ in names alone become equal."""

    blocks: Mapping[Block, int]
    sequences: Mapping[Name, int]
    launches: Mapping[LaunchId, int]  # of those in flight


class Manager:
    """A paged KV-cache manager under test. See the module's text for what to override."""

    first_block = 1  # the lowest usable block id
    streams_offered = 1  # how many streams launches may use; 1: stream order protects what is in flight
    shares_prefixes = False  # whether token ids are told and `publish`, `pin`, `unpin` and `clear` are asked for

    def __init__(self, config: Config) -> None:
        self.config = config

    # ---- what every manager gives

    def add(self, name: Name, count: int) -> Outcome | None:
        """Start a sequence of `count` known tokens: allocate its blocks."""
        raise NotImplementedError

    def extend(self, rows: Rows) -> Outcome | Iterable[Copy] | None:
        """Make room for `count` more positions of each `(name, count)`, all or nothing.

        Return the block copies to be done before these positions are written, each once, at the head of the sequence's
        next launch: `Copy(sequence, source, target, extent)` of `pagedkv.spec.state`, of the first `extent` slots (a
        black box may copy whole blocks). None: there are none. Until that launch has executed the source must keep.
        """
        raise NotImplementedError

    def release(self, name: Name) -> Outcome | None:
        """Let a sequence go, even while launches that read its blocks are in flight."""
        raise NotImplementedError

    def block_table(self, name: Name) -> Sequence[Block]:
        """Return the physical blocks of a live sequence, in order."""
        raise NotImplementedError

    # ---- what some have

    def fork(self, parent: Name, child: Name) -> Outcome | None:  # noqa: ARG002  (the signature is the protocol's)
        """Start `child` with the blocks of `parent`. By default not offered: refused always."""
        raise NotOffered("fork")

    def add_prompt(self, name: Name, tokens: int | Tokens, salt: int) -> Outcome | None:  # noqa: ARG002  (as above)
        """Start a sequence whose token ids are known, or one of a tenant with a salt; by default like any other.

        Return `Outcome(hits=...)`: the blocks that it begins with because they hold the KV of its first tokens, each in
        full. Their positions count as launched. At least one token is left to compute.
        """
        return self.add(name, tokens if isinstance(tokens, int) else len(tokens))

    def publish(self, rows: Telling, retention: int) -> Outcome | None:
        """Take note of the ids of each sequence's next positions without one; what is written may be hit from now on.

        A row may be pointed at another block that holds the same: block tables are read again at the next launch.
        """

    def pin(self, handle: Handle, tokens: Tokens, salt: int) -> Outcome | None:  # noqa: ARG002  (as above)
        """Keep the blocks that hold these tokens from being evicted. By default not offered: refused always."""
        raise NotOffered("pin")

    def unpin(self, handle: Handle) -> Outcome | None:  # noqa: ARG002  (as above)
        """Let a pin go."""
        raise NotOffered("unpin")

    def clear(self) -> Outcome | None:
        """Let nothing that was published so far be hit again: the weights have changed."""
        raise NotOffered("clear")

    def launch(self, rows: Rows, stream: int) -> Outcome | None:
        """Take note that a step was submitted; say `Outcome(after=...)` which launches must be executed before it.

        Launches are numbered from 1 in the order of these calls; `Outcome` is `pagedkv.spec.outcome`'s. Copies need
        not be named again.
        """

    def retire(self, launch: LaunchId) -> Outcome | None:
        """Take note that a launch, and all that happens before it, is known to be done."""

    def rows_read(self, launch: LaunchId) -> Sequence[Sequence[Block]] | None:
        """Return the rows, one a sequence of the launch, as a device that executes it now would read them.

        None, the default: the device was given copies of the block tables at the launch.
        """

    # ---- what the exhaustive driver and the lock-step can use

    def clone(self) -> Self:
        """Return an independent copy. The exhaustive driver takes one an operation: a faster one is worth its lines."""
        return copy.deepcopy(self)

    def observe(self) -> Observation | None:
        """Return what the manager shows of itself; None: it is a black box, and judged by contents alone."""
        return None

    def fingerprint(self, naming: Naming) -> Hashable:  # noqa: ARG002  (the signature is the protocol's)
        """Return all state on which future behaviour depends and which neither rows nor `observe` show, in new names.

        The exhaustive driver takes states that differ in nothing else for one. What is left out here may hide a fault
        from it, though not from the random driver.
        """
        return None

    def free_order(self) -> Sequence[Block]:
        """Return the free blocks in the order in which they will be taken, if there is one."""
        return ()


class NotOffered(Refused):
    """The manager has no such operation."""

    def __init__(self, what: str) -> None:
        super().__init__(Reason.BUSY, f"{what} is not offered")


Factory = Callable[[Config], Manager]


# ---- asking a manager -------------------------------------------------------------------------------------------
# All of what follows answers in the spec's own types, or raises `Broken` by the name CRASH where the manager raised,
# did not answer, or answered with something else. Integers of any library (numpy's, say) are taken for integers.


def made(factory: Factory, config: Config) -> Manager:
    """Make a manager."""
    return call(lambda: f"a manager of {config}", _made, factory, config)


def ask(manager: Manager, operation: Operation) -> Outcome | Refused:
    """Ask for an operation: what was decided, or why it was refused."""
    if isinstance(operation, Add) and isinstance(operation.tokens, int) and not operation.salt:
        return call(lambda: describe(operation), _answered, manager.add, operation[:2])
    method: Callable[..., object] = getattr(manager, _METHODS[type(operation)])
    return call(lambda: describe(operation), _answered, method, operation)


def table_of(manager: Manager, name: Name) -> tuple[Block, ...]:
    """Return the block table of a live sequence."""
    return call("block_table", _table, manager, name)


def rows_of(manager: Manager, launch: LaunchId) -> tuple[tuple[Block, ...], ...] | None:
    """Return the rows that a launch reads as they are now; None where the device was given copies at the launch."""
    return call("rows_read", _rows, manager, launch)


def twin_of(manager: Manager) -> Manager:
    """Return an independent copy."""
    return call("clone", _twin, manager)


def _made(factory: Factory, config: Config) -> Manager:
    manager = factory(config)
    if not isinstance(manager, Manager):
        raise TypeError(f"{_short(manager)} is no pagedkv.spec.manager.Manager")
    if type(manager.first_block) is not int or manager.first_block < 0:
        raise TypeError(f"first_block is {_short(manager.first_block)}, not an integer of at least 0")
    if type(manager.streams_offered) is not int or manager.streams_offered < 1:
        raise TypeError(f"streams_offered is {_short(manager.streams_offered)}, not an integer of at least 1")
    return manager


def _answered(method: Callable[..., object], arguments: tuple[object, ...]) -> Outcome | Refused:
    try:
        answer = method(*arguments)
    except Refused as refusal:
        refusal.reason = Reason(refusal.reason)
        return refusal.with_traceback(None)  # its frames would hold it in turn, and much else with it
    try:
        return _outcome(answer)
    except (TypeError, ValueError) as error:
        raise TypeError(f"the answer {_short(answer)} is no Outcome: {error}") from error


def _outcome(answer: Any) -> Outcome:
    if answer is None:
        return Outcome()
    if not isinstance(answer, Outcome):
        return Outcome(copies=_copies(answer))
    blocks, copies, launch, after, freed, hits, published, merges = answer
    return Outcome(  # most fields of most answers are as they are by default
        blocks if blocks is _NONE.blocks else _integers(blocks),
        copies if copies is _NONE.copies else _copies(copies),
        index(launch),
        after if after is _NONE.after else frozenset(_integers(after)),
        freed if freed is _NONE.freed else frozenset(_integers(freed)),
        hits if hits is _NONE.hits else _integers(hits),
        published if published is _NONE.published else _integers(published),
        merges if merges is _NONE.merges else tuple([Merge(*_integers(each)) for each in merges]),
    )


_NONE = Outcome()


def _copies(answer: Any) -> tuple[Copy, ...]:
    return tuple([Copy(*_integers(each)) for each in answer])


def _integers(answer: Any) -> tuple[int, ...]:
    return tuple(map(index, answer))


def _table(manager: Manager, name: Name) -> tuple[Block, ...]:
    return _integers(manager.block_table(name))


def _rows(manager: Manager, launch: LaunchId) -> tuple[tuple[Block, ...], ...] | None:
    rows = manager.rows_read(launch)
    return None if rows is None else tuple([_integers(row) for row in rows])


def _twin(manager: Manager) -> Manager:
    twin = manager.clone()
    if not isinstance(twin, Manager):
        raise TypeError(f"{_short(twin)} is no Manager")
    return twin


def _short(thing: object) -> str:
    return repr(thing)[:60]


_METHODS = {
    Add: "add_prompt",
    Extend: "extend",
    Fork: "fork",
    Submit: "launch",
    Retire: "retire",
    Release: "release",
    Publish: "publish",
    Pin: "pin",
    Unpin: "unpin",
    Clear: "clear",
}

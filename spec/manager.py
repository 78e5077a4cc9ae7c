"""The protocol of a cache manager under test, ours or a stranger's. This text is all that an adapter's author needs.

The methods stand below, one by one. An *adapter* is a class of yours, in front of your manager, that derives from
`Manager`. Four methods are enough:

    from pagedkv.spec.manager import Copy, Discipline, Feature, Manager, Outcome, Reason, Refused

    class MyAdapter(Manager):
        first_block = 0                                  # the lowest usable block id of yours; default 1

        def __init__(self, config):                      # called with a Config as the only argument
            super().__init__(config)
            self.pool = MyPool(config.blocks, config.block_size)
            self.tables = {}

        def add(self, name, count):                      # a new sequence with `count` tokens; name: an int
            try:
                self.tables[name] = self.pool.allocate(count)
            except OutOfBlocks as error:
                raise Refused(Reason.NO_SPACE) from error  # and nothing has changed

        def extend(self, rows):                          # room for `count` more positions of each (name, count)
            ...
            return [Copy(name, source, target, self.config.block_size)]  # if a shared block must be copied; else None

        def release(self, name): ...                     # the sequence is over
        def block_table(self, name): ...                 # its physical block ids, in order: integers

    pagedkv fuzz --target my_module:MyAdapter            # random runs; run it where my_module can be imported
    pagedkv explore --target my_module:MyAdapter         # every state of a small world

**Config**: `blocks` (usable blocks: exactly so many, with the ids first_block .. first_block + blocks - 1; if yours
keeps one for itself, give it one more), `block_size` (tokens a block), `streams`, `launches` (how many may be in
flight). Worlds are small on purpose: 1 to 8 blocks of 1 to 4 tokens. Switch watermarks and reserves off: a sequence as
long as the whole pool must find room in an empty pool, evicting what is cached.

**A life.** `add` and `extend` make room (positions are then *planned*); `launch` submits a step to the device, which
writes the K and V of the next planned positions of each `(name, count)` and reads all positions before them; the device
executes it at some later time; `retire` says that the host has learnt of that. Launches are numbered 1, 2, 3 ... in the
order of `launch` calls. Your manager needs to do something at `launch` and `retire` only if it has a say in them.
`release` may come at any time, in flight and planned too. Names may be used again after a release. `fork` comes when
every position of the parent has been launched. A copy that `extend` or `fork` asks for (`Copy(sequence, source, target,
extent)`: the first `extent` slots of block `source` to block `target`; whole blocks do) is done at the head of the next
launch of its sequence: its source is not to be handed out before that launch, and after it as your discipline says.

What makes no sense is never asked: names that are not live or live already, counts of zero, launches of more than is
planned, more launches in flight than `config.launches`. Refuse for want of space with `Refused(Reason.NO_SPACE)`,
having changed nothing; more than the whole pool may be asked for, too. Where your manager can fail by itself, call it
and translate its exception; asking first hides what a failed allocation leaves behind. Nothing else needs a refusal,
and any other is a fault, except that a pin may be refused where nothing is found. Anything else that is raised is
reported as a crash, with the operations that led to it, and so are an answer of the wrong type and none within ten
seconds. `block_table` and what else only looks is asked often and must change nothing; the same calls on a new manager
must give the same answers.

**What you do not offer** is not asked, and is no fault. `fork`, `pin` with `unpin`, `clear` and `publish` are offered
where you override them (FORK, PIN, CLEAR and PUBLISH need not be said). The rest is said in `not_offered`, a frozenset
of `Feature`:

    COPY_ON_WRITE        forks come only where the parent's last block is full
    SALT                 no salt but 0
    LATE_TOKENS          every prompt has ids, and `publish` tells those of extended positions before they are launched
    BATCHES              `extend` names one sequence at a time (else: all or nothing for the batch)
    SEVERAL_TOKENS       `extend` asks for one position at a time
    CHUNKS               a launch takes all that is planned of a sequence
    PARTIAL_STEPS        a launch takes every planned sequence, and none is released between `extend` and `launch`;
                         say so where a prompt hits blocks that are allocated and not launched yet, and, too, if your
                         engine runs its copy-on-write copies in the step that asked for them, as early vLLM does
    CANCEL_IN_FLIGHT     no release while a launch of the sequence is in flight
    REPEATED_COMPLETION  `retire` comes once a launch
    EXACT_SPACE          you may refuse for want of space though there is room: for example, can_append_slot wants a
                         free block even when none is needed. An empty pool must still take a sequence as long as it,
                         and one alone in it grow while there is a block more than it needs

`launches_offered = 1` says that you wait for each step; `streams_offered = 2` (or more) that launches may use several
streams; `block_sizes = (2, 4)` with which block sizes it can be made.

**Which discipline you claim** decides when a block may be handed out again, and what you are judged by:

    Discipline.STREAM_ORDER (the default)  at once; there is one stream, so what is launched later is executed later
    Discipline.FENCE   when every launch in flight that reads or writes it has retired, and not before (R-LIFE-1)
    Discipline.EVENTS  at once, and `launch` returns `Outcome(after={...})`, the launches that must be executed first
                       (R-LIFE-2)

**A prefix cache**: say `shares_prefixes = True`. Then `add_prompt` is called in place of `add` where token ids are
known, and returns `Outcome(hits=[...])`, the blocks that the sequence begins with because they hold the KV of its first
tokens; they must be the first of its block table. At least one token is left to compute: at most (tokens - 1) //
block_size blocks. Token ids come as tuples of small integers, rows as tuples of pairs. Of some sequences no ids are
known, and none of positions that were extended, until `publish` tells them, perhaps after they were launched; if yours
must have ids by then, do not offer LATE_TOKENS. What you find must have been written by launches that were submitted by
then (or be planned, where PARTIAL_STEPS is not offered); equal tokens under another salt, or from before `clear`, are
other contents.

**Worth its lines, never needed**: `free_blocks` and `cached_blocks` (faults show sooner, leaks above all), `clone`
(`explore` branches; by default a deep copy, and where that fails the operations are run again), `fingerprint`
(`explore` then takes states that differ in it for two: give what future answers depend on), `free_order`
(beside it: the free blocks in the order in which they will be taken, so that states in which ids alone differ are one),
`rows_read`, if the device reads block tables that the host may change after `launch`, and `own_calls`: set it to a list
in `__init__` and append each call of your manager as a line of text; a finding is then told in these, too.

**What is checked** is named in every report, with the operations that led to it: from `explore` the fewest possible,
from `fuzz` the fewest found. A search in which something that you offer never happened fails, too. R-DATA (a virtual
device with shadow memory executes the launches as late as it likes, in every order that streams and edges allow, and
every slot that a launch reads must hold the KV of the right prefix) and the rules in `pagedkv.spec.outside`: no block
handed out that somebody holds, none lost, refusals that change nothing, no write into what another sequence holds, hits
of the right contents only. A manager that gives `observe`, too (`pagedkv.spec.observation`), is compared with the spec
operation by operation instead, and then answers for every refusal, with the spec's reason; `--contents-only` judges it
from outside.
"""

# ruff: noqa: PLC0414  (adapters take these names from here; an `__all__` would make `help` tell all of int and str, too)
import copy
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Self

from .observation import Naming, Observation
from .offers import Discipline as Discipline
from .offers import Feature as Feature
from .outcome import Outcome as Outcome
from .outcome import Rows as Rows
from .outcome import Telling as Telling
from .refusals import Reason as Reason
from .refusals import Refused as Refused
from .state import Block as Block
from .state import Config as Config
from .state import Copy as Copy
from .state import Handle, LaunchId
from .state import Name as Name
from .state import Tokens as Tokens


class Manager:
    """A paged KV-cache manager under test. See the module's text for what to override."""

    first_block = 1  # the lowest usable block id
    discipline = Discipline.STREAM_ORDER
    not_offered: frozenset[Feature] = frozenset()  # besides the methods that are not overridden
    streams_offered = 1  # how many streams launches may use
    launches_offered: int | None = None  # how many launches may be in flight; None: as many as one likes
    block_sizes: Sequence[int] = (1, 2, 3, 4)  # that it may be made with
    shares_prefixes = False  # whether token ids are told, by `add_prompt` and `publish`
    own_calls: list[str] | None = None  # the owner's own calls, for reports; emptied before each operation

    def __init__(self, config: Config) -> None:
        self.config = config

    # ---- what every manager gives

    def add(self, name: Name, count: int) -> Outcome | None:
        """Start a sequence of `count` known tokens: allocate its blocks."""
        raise NotImplementedError

    def extend(self, rows: Rows) -> Outcome | Iterable[Copy] | None:
        """Make room for `count` more positions of each `(name, count)`, all or nothing.

        Return the `Copy` of each block that must be copied before these positions are written; None: there is none.
        """
        raise NotImplementedError

    def release(self, name: Name) -> Outcome | None:
        """Let a sequence go, even while launches that read its blocks are in flight."""
        raise NotImplementedError

    def block_table(self, name: Name) -> Sequence[Block]:
        """Return the physical blocks of a live sequence, in order."""
        raise NotImplementedError

    # ---- what some have: what is not overridden is not offered, and not asked

    def fork(self, parent: Name, child: Name) -> Outcome | Iterable[Copy] | None:
        """Start `child` with the blocks of `parent`; return copies to be done before it writes, as `extend` does."""
        raise NotImplementedError

    def add_prompt(self, name: Name, tokens: int | Tokens, salt: int) -> Outcome | None:  # noqa: ARG002  (the protocol's)
        """Start a sequence whose token ids are known, or one of a tenant with a salt; by default like any other.

        Return the blocks that it begins with, as `Outcome(hits=...)`; their positions count as launched. `tokens` is a
        number where there is a salt and no id.
        """
        return self.add(name, tokens if isinstance(tokens, int) else len(tokens))

    def publish(self, rows: Telling, retention: int) -> Outcome | None:
        """Take note of the ids of each sequence's next positions without one; what is written may be hit from now on.

        Blocks of a higher `retention` class, 0 to 3, are worth more; from outside nobody is judged by that. A row may
        be pointed at another block that holds the same: block tables are read again at the next launch.
        """

    def pin(self, handle: Handle, tokens: Tokens, salt: int) -> Outcome | None:
        """Keep the blocks that hold these tokens from being evicted; return them, as `Outcome(hits=...)`."""
        raise NotImplementedError

    def unpin(self, handle: Handle) -> Outcome | None:
        """Let a pin go."""
        raise NotImplementedError

    def clear(self) -> Outcome | None:
        """Let nothing that was published so far be hit again, and every pin go: the weights have changed."""
        raise NotImplementedError

    def launch(self, rows: Rows, stream: int) -> Outcome | None:
        """Take note that a step was submitted; say `Outcome(after=...)` which launches must be executed before it.

        Copies need not be named again.
        """

    def retire(self, launch: LaunchId) -> Outcome | None:
        """Take note that a launch, and all that happens before it, is known to be done.

        A row of it may be pointed at another block that holds the same, as by `publish`.
        """

    def rows_read(self, launch: LaunchId) -> Sequence[Sequence[Block]] | None:
        """Return the rows, one a sequence of the launch, as a device that executes it now would read them.

        None, the default: the device was given copies of the block tables at the launch.
        """

    # ---- what it may tell of itself

    def free_blocks(self) -> Collection[Block] | None:
        """Return the blocks that may be handed out now and hold nothing worth keeping; None: it does not tell."""
        return None

    def cached_blocks(self) -> Collection[Block] | None:
        """Return the blocks that nobody holds and a later prompt may find; None: it does not tell."""
        return None

    # ---- what the exhaustive driver and the lock-step can use

    def clone(self) -> Self:
        """Return an independent copy. The exhaustive driver takes one an operation: a faster one is worth its lines.

        Raise NotImplementedError where there can be none: a black box then has its operations run again on a new one.
        """
        try:
            return copy.deepcopy(self)
        except Exception as error:
            raise NotImplementedError(f"{type(self).__name__} can't be copied") from error

    def observe(self) -> Observation | None:
        """Return what the manager shows of itself; None: it is a black box, and judged from outside."""
        return None

    def fingerprint(self, naming: Naming) -> Hashable:  # noqa: ARG002  (the signature is the protocol's)
        """Return all state on which future behaviour depends and which neither rows nor `observe` show, in new names.

        `naming.blocks`, `naming.sequences` and `naming.launches` (those in flight) map yours to the new ones. The
        exhaustive driver takes states that differ in nothing else for one. What is left out here may hide a fault from
        it, though not from the random driver.
        """
        return None

    def free_order(self) -> Sequence[Block]:
        """Return the free blocks in the order in which they will be taken, if there is one."""
        return ()


Factory = Callable[[Config], Manager]

_OVERRIDDEN = {
    Feature.FORK: ("fork",),
    Feature.PIN: ("pin", "unpin"),
    Feature.CLEAR: ("clear",),
    Feature.PUBLISH: ("publish",),
}
_OF_PREFIXES = frozenset({Feature.PIN, Feature.CLEAR, Feature.PUBLISH, Feature.SALT})


def lacks(manager: Manager | type[Manager]) -> frozenset[Feature]:
    """Return what a manager does not offer: by what it says, and by what it does not override."""
    kind = manager if isinstance(manager, type) else type(manager)
    left_out = {
        feature
        for feature, methods in _OVERRIDDEN.items()
        if any(getattr(kind, method) is getattr(Manager, method) for method in methods)
    }
    return frozenset({*manager.not_offered, *left_out, *(() if manager.shares_prefixes else _OF_PREFIXES)})

"""A virtual device with shadow memory: what is right, told from block tables and copies alone.

`Shadow` keeps, for each slot, which content it truly holds, and for each sequence which contents its positions should
have. It executes launches one at a time, each at any moment that the streams and edges allow, and reads block tables
*when a launch executes*, as a device does: a row that was recycled too early names the wrong blocks by then. It knows
nothing of reference counts, free lists or fences, so it judges managers that nobody here wrote, under whatever
discipline they have.

It judges R-DATA and R-TAB-1 (a row names a usable block for each position that is read) as a launch executes; whoever
tells it of hits, copies and edges has judged them (`outside`, `foreign_device`).

Cost: a launch is executed in time proportional to the positions that it reads.

Prefix sharing needs no more than names: contents of positions whose tokens are known from the first on are named by
them, so equal prefixes under an equal root have equal names, whoever computes them, and a hit is right if its slots
hold what it was hit for. When tokens are told of contents that have a name already, they are renamed.

It looks like the spec's state to a driver (`sequences`, `launches`, `issued`, `pins`), so that one generator of
operations serves both.
"""

from collections.abc import Iterable, Mapping, Sequence

from .arithmetic import blocks_needed
from .counts import counted
from .outcome import Rows, Telling
from .outside_book import is_inside
from .refusals import Broken
from .state import (
    Block,
    Computation,
    Config,
    Content,
    Copy,
    Handle,
    Key,
    Launch,
    LaunchId,
    Name,
    Root,
    State,
    Tokens,
    before,
    tell,
)
from .state import Sequence as Tracked


class Misread(Broken):
    """R-DATA does not hold: a launch reads a slot that does not hold what it should."""

    def __init__(
        self, launch: LaunchId, part: Computation, position: int, slot: tuple[Block, int], found: Content | None
    ) -> None:
        what = f"position {found[1]} of epoch {found[0]}" if found else "nothing"
        super().__init__(
            "R-DATA",
            f"launch {launch}: position {position} of sequence {part.sequence} (epoch {part.text[position][0]}) "
            f"is read from block {slot[0]} slot {slot[1]}, which holds {what}",
        )
        self.part, self.position, self.slot, self.found = part, position, slot, found


class Shadow:
    """Shadow memory beside a manager. `state` borrows the spec's types; its rows are what the manager said."""

    def __init__(self, config: Config, first_block: int = 1) -> None:
        self.config = config
        self.usable = range(first_block, first_block + config.blocks)
        self.state = State(config, {}, frozenset(), {}, (), {})
        self.plans: dict[Name, tuple[Copy, ...]] = {}
        self.names: dict[Key, Content] = {}  # the contents of a known prefix; a key of any length

    def clone(self) -> "Shadow":
        """Return an independent copy: the parts are frozen, so this costs one new object."""
        twin = Shadow(self.config)
        twin.usable, twin.state, twin.plans = self.usable, self.state, dict(self.plans)
        twin.names = dict(self.names)
        return twin

    # ---- what the host does

    def add(self, name: Name, tokens: int | Tokens, salt: int, hits: Sequence[Block]) -> None:
        """A sequence was started, of so many tokens or of these ids; its first blocks are hits, launched already."""
        count, known = (tokens, ()) if isinstance(tokens, int) else (len(tokens), tokens)
        root, epoch = Root(salt, self.state.weights), self.state.epochs
        launched = len(hits) * self.config.block_size
        assert launched < count, "one token is left to compute"
        text = tuple([(epoch, position) for position in range(count)])
        named = [self.names.setdefault(Key(root, known[: at + 1]), text[at]) for at in range(len(known))]
        text = (*named, *text[len(named) :])
        self.state = self.state._replace(ids=tell(self.state.ids, text, known))
        self._put(name, Tracked(epoch, text, launched, (), root=root, known=known), epochs=1)

    def publish(self, rows: Telling) -> None:
        """Token ids were told: contents that turn out to be those of a known prefix are called so from now on."""
        for name, tokens in rows:
            old = self.state.sequences[name]
            known = old.known + tokens
            self.state = self.state._replace(ids=tell(self.state.ids, old.text[len(old.known) :], tokens))
            self._put(name, old._replace(known=known))
            for at in range(len(old.known), len(known)):
                content = self.state.sequences[name].text[at]
                self._rename(content, self.names.setdefault(Key(old.root, known[: at + 1]), content))

    def pin(self, handle: Handle, blocks: Sequence[Block] = ()) -> None:
        """A prefix was pinned; which blocks hold it the manager may tell."""
        self.state = self.state._replace(pins={**self.state.pins, handle: tuple(blocks)})

    def unpin(self, handle: Handle) -> None:
        """A pin was dropped."""
        pins = {other: blocks for other, blocks in self.state.pins.items() if other != handle}
        self.state = self.state._replace(pins=pins)

    def clear(self) -> None:
        """The weights have changed: what begins now has other contents, whatever its tokens."""
        self.state = self.state._replace(weights=self.state.weights + 1, pins={})

    def extend(self, rows: Rows, copies: Iterable[Copy]) -> None:
        """Rows were extended; the copies go to the head of the next launch of their sequence."""
        for name, count in rows:
            old = self.state.sequences[name]
            new = tuple((old.epoch, position) for position in range(old.allocated, old.allocated + count))
            self._put(name, old._replace(text=old.text + new))
        batch = {name for name, _ in rows}
        for copy in copies:
            assert is_inside(copy, batch, self.usable, self.config.block_size), copy
            self.plans[copy.sequence] = (*self.plans.get(copy.sequence, ()), copy)

    def fork(self, parent: Name, child: Name, copies: Iterable[Copy] = ()) -> None:
        """A sequence was forked; the copies go to the head of the child's next launch."""
        self._put(child, self.state.sequences[parent]._replace(epoch=self.state.epochs), epochs=1)
        if plan := tuple(copies):
            self.plans[child] = plan

    def launch(self, rows: Rows, stream: int, after: frozenset[LaunchId]) -> LaunchId:
        """A step was submitted; its tables are read when it executes."""
        assert all(1 <= edge <= self.state.issued for edge in after), "an edge is to a launch that was issued"
        parts: list[Computation] = []
        copies: list[Copy] = []
        for name, count in rows:
            old = self.state.sequences[name]
            stop = old.launched + count
            parts.append(Computation(name, old.epoch, old.launched, stop, (), old.text[:stop]))
            copies += self.plans.pop(name, ())
            self._put(name, old._replace(launched=stop))
        issued = self.state.issued + 1
        new = Launch(issued, stream, after, tuple(copies), tuple(parts), {}, {})
        self.state = self.state._replace(launches=(*self.state.launches, new), issued=issued)
        return issued

    def text_of(self, root: Root, tokens: Tokens, epoch: int) -> tuple[Content, ...]:
        """Return what positions with these tokens hold: named after `epoch` where no prefix before was the same."""
        keys = [Key(root, tokens[: at + 1]) for at in range(len(tokens))]
        return tuple([self.names.setdefault(key, (epoch, at)) for at, key in enumerate(keys)])

    def compute(self, parts: Sequence[Computation], copies: Sequence[Copy]) -> LaunchId:
        """A step was submitted whose parts say themselves what they compute; they need not be sequences known here."""
        issued = self.state.issued + 1
        new = Launch(issued, 0, frozenset(), tuple(copies), tuple(parts), {}, {})
        self.state = self.state._replace(launches=(*self.state.launches, new), issued=issued)
        return issued

    def release(self, name: Name) -> None:
        """A sequence left; what it submitted goes on, what it planned does not."""
        rest = {other: sequence for other, sequence in self.state.sequences.items() if other != name}
        self.state = self.state._replace(sequences=rest)
        self.plans.pop(name, None)

    def retire(self, launch_id: LaunchId) -> None:
        """The host learnt that a launch is done: it leaves, with all that happens before it."""
        for launch in self.state.launches:
            if launch.id == launch_id:
                leaving = before(self.state.launches, launch) | {launch_id}
                kept = tuple(other for other in self.state.launches if other.id not in leaving)
                self.state = self.state._replace(launches=kept)
                return

    # ---- what the device does

    def execute(self, launch_id: LaunchId, rows: Sequence[Sequence[Block]], *, judged: bool = True) -> None:
        """Execute a launch with the rows it reads now: copies, writes, then reads, each against R-DATA if `judged`."""
        launch = next(launch for launch in self.state.launches if launch.id == launch_id)
        memory = dict(self.state.memory)
        size = self.config.block_size
        empty: tuple[Content | None, ...] = (None,) * size
        for copy in launch.copies:  # all at once: each reads what was there before any of them
            held = memory.get(copy.target, empty)
            memory[copy.target] = self.state.memory.get(copy.source, empty)[: copy.extent] + held[copy.extent :]
        seen = [self._visible(part, row) for part, row in zip(launch.computations, rows, strict=True)]
        for part, row in zip(launch.computations, seen, strict=True):
            for position in range(part.start, part.stop):
                index, offset = divmod(position, size)
                held = memory.get(row[index], empty)
                memory[row[index]] = (*held[:offset], part.text[position], *held[offset + 1 :])
        for part, row in zip(launch.computations, seen, strict=True) if judged else ():
            for index, block in enumerate(row):
                wanted = part.text[index * size : (index + 1) * size]
                found = memory.get(block, empty)[: len(wanted)]
                if found != wanted:
                    offset = next(at for at, content in enumerate(wanted) if found[at] != content)
                    raise Misread(launch_id, part, index * size + offset, (block, offset), found[offset])
        launches = tuple(
            done._replace(executed=True, computations=_captured(done, seen)) if done is launch else done
            for done in self.state.launches
        )
        self.state = self.state._replace(memory=memory, launches=launches)

    def _visible(self, part: Computation, row: Sequence[Block]) -> tuple[Block, ...]:
        """Return the blocks that a kernel reads of a row: those of the positions below `stop`."""
        needed = blocks_needed(part.stop, self.config.block_size)
        blocks = tuple(int(block) for block in row[:needed])
        if len(blocks) < needed or any(block not in self.usable for block in blocks):
            of = f"{counted(needed, 'block')} for {counted(part.stop, 'position')}"
            raise Broken("R-TAB-1", f"sequence {part.sequence} needs {of}: {blocks}")
        return blocks

    def _rename(self, old: Content, new: Content) -> None:
        """Call contents by another name, wherever they are expected or held."""
        if old == new:
            return
        state, names = self.state, {old: new}
        self.state = state._replace(
            sequences={name: each._replace(text=_renamed(each.text, names)) for name, each in state.sequences.items()},
            launches=tuple([_with_renamed_text(launch, names) for launch in state.launches]),
            memory={block: tuple([names.get(c, c) if c else c for c in held]) for block, held in state.memory.items()},
        )

    def _put(self, name: Name, sequence: Tracked, epochs: int = 0) -> None:
        sequences = {**self.state.sequences, name: sequence}
        self.state = self.state._replace(sequences=sequences, epochs=self.state.epochs + epochs)


def _renamed(text: tuple[Content, ...], names: Mapping[Content, Content]) -> tuple[Content, ...]:
    return tuple([names.get(content, content) for content in text])


def _with_renamed_text(launch: Launch, names: Mapping[Content, Content]) -> Launch:
    parts = [part._replace(text=_renamed(part.text, names)) for part in launch.computations]
    return launch._replace(computations=tuple(parts))


def _captured(launch: Launch, rows: list[tuple[Block, ...]]) -> tuple[Computation, ...]:
    return tuple(part._replace(row=row) for part, row in zip(launch.computations, rows, strict=True))

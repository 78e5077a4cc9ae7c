"""What a paged KV cache is made of, as frozen data.

KV storage is cut into *blocks* of `block_size` token *slots*. A *sequence* (a request being served) has a *row*: its
block table, logical block i -> physical block. A *launch* is one piece of device work in flight: it copies blocks,
writes the K and V of new positions and reads all positions before them; a device executes it some time after the
host has submitted it, and the host learns of that later still. Nearly every rule of this spec is about those delays.

Some things here no real manager has. They are *ghost state*, there to say what is right:

- `Content`: what a slot truly holds. The KV of a token depends on all tokens before it, so a slot's content is a
  *prefix*, and `(epoch, position)` names it: "the tokens of that sequence up to that position". A fork shares the
  names of its parent, since it shares the prefix; every later position gets a name of its own, since its token may
  differ. `Sequence.text` says which content each position should have, `State.memory` which content each slot has,
  `Published.text` which those of a published block have.
- `Launch.executed`: whether the device has done it, which the host cannot see.
- `State.ids`: which id was told of a content, so that no driver tells two.

Sequences with a common beginning share its blocks: the *prefix index* says which block holds the KV of which tokens. A
real index finds a block by a hash of them; here a key is the tokens themselves, all from position 0 on, under the
*root* that they were computed with. So two contents cannot be taken for one, and this is what a hash has to equal.

Nothing that can be derived is stored: who holds a block, whether it is shared, what is written, are functions at the
end of this file. The free, the evictable and the waiting blocks are stored, so that "every block is in exactly one
state" (R-OWN-1) is a rule that could break; a launch keeps what it reads and writes, which follow from its copies and
rows, since a launch is compared with every other in flight (R-LIFE-2 works both out again).
"""

from collections.abc import Mapping
from typing import NamedTuple

Block = int  # a physical block: 1..N; block 0 is the null block, owned by nobody
Name = int  # the caller's name of a sequence
LaunchId = int  # counted up from 1, never reused
Handle = int  # the caller's name of a pin
Tokens = tuple[int, ...]  # token ids
Content = tuple[int, int]  # (epoch, position): the prefix that ends there
Ids = Mapping[int, Mapping[int, int]]  # epoch -> position -> id of that content, where one was told

NULL: Block = 0


class Config(NamedTuple):
    """The size of the world: usable blocks, slots a block, device streams, launches that may be in flight."""

    blocks: int
    block_size: int
    streams: int = 1
    launches: int = 64


class Root(NamedTuple):
    """What the KV of a token depends on besides the tokens before it: who may share it, and the weights."""

    salt: int = 0  # tenants with different salts never share
    weights: int = 0  # counted up where weights or adapters change


class Key(NamedTuple):
    """What a full block holds, in full: its root, and the tokens from position 0 to its end."""

    root: Root
    tokens: Tokens


class Published(NamedTuple):
    """A block that later sequences may find."""

    block: Block
    text: tuple[Content, ...]  # ghost: what its slots hold
    retention: int  # 0 to 3: blocks of a higher class are evicted later


class Copy(NamedTuple):
    """Copy the first `extent` slots of block `source` to block `target`, on behalf of a sequence."""

    sequence: Name
    source: Block
    target: Block
    extent: int


class Sequence(NamedTuple):
    """A live sequence. Its positions are allocated (`text`), of these the first `launched` have been submitted."""

    epoch: int  # each `add` or `fork` starts a new one, so that late results of an earlier namesake are recognised
    text: tuple[Content, ...]  # what each allocated position should hold
    launched: int
    row: tuple[Block, ...]
    copy: Copy | None = None  # planned by `extend`, not launched yet; only the tail block can ever need one
    root: Root = Root()
    known: Tokens = ()  # the ids of its first positions, as far as the host has told them

    @property
    def allocated(self) -> int:
        """Positions that the row has room for."""
        return len(self.text)

    @property
    def planned(self) -> int:
        """Positions that are allocated and not launched."""
        return len(self.text) - self.launched


class Computation(NamedTuple):
    """One sequence's part in a launch: write positions `start` to `stop`, read all positions below `stop`."""

    sequence: Name
    epoch: int
    start: int
    stop: int
    row: tuple[Block, ...]  # as captured at the launch: exactly the blocks of positions below `stop`
    text: tuple[Content, ...]  # what those positions should hold


class Launch(NamedTuple):
    """Device work that the host has submitted and not yet learnt the end of."""

    id: LaunchId
    stream: int
    after: frozenset[LaunchId]  # launches that must execute before this one, besides those before it on its stream
    copies: tuple[Copy, ...]  # executed first
    computations: tuple[Computation, ...]
    reads: Mapping[Block, int]  # block -> how many of its leading slots are read
    writes: Mapping[Block, tuple[int, int]]  # block -> the slots written, from and up to
    executed: bool = False


class State(NamedTuple):
    """Everything there is at one moment. Operations map a state to the next; nothing is changed in place."""

    config: Config
    sequences: Mapping[Name, Sequence]
    free: frozenset[Block]
    # Waiting, without holder: quarantined, or fenced where published. Each up to which launch, 0: for none.
    quarantine: Mapping[Block, LaunchId]
    launches: tuple[Launch, ...]  # in flight, in order of submission
    memory: Mapping[Block, tuple[Content | None, ...]]  # ghost: what each slot holds
    issued: LaunchId = 0  # the newest launch id
    epochs: int = 0  # how many `add` and `fork` there have been
    prefixes: Mapping[Key, Published] = {}  # the prefix index; never changed, like all that is here
    evictable: Mapping[Block, int] = {}  # published, no holder, waits for nothing; a larger number: since later
    pins: Mapping[Handle, tuple[Block, ...]] = {}  # holders besides the sequences
    weights: int = 0  # the epoch of the weights now
    ids: Ids = {}  # noqa: RUF012  (a Mapping by another name; ghost)


def initial(config: Config) -> State:
    """Return the empty cache: every block free, every slot without content."""
    blocks = range(1, config.blocks + 1)
    empty = (None,) * config.block_size
    return State(config, {}, frozenset(blocks), {}, (), dict.fromkeys(blocks, empty))


def holders(sequences: Mapping[Name, Sequence], block: Block) -> list[Name]:
    """Return the sequences that hold a block: one edge each, even where a row named it twice (R-OWN-2).

    Pins are left out: they hold published blocks, which nobody writes.
    """
    return [name for name, sequence in sequences.items() if block in sequence.row]


def held(state: State) -> set[Block]:
    """Return the blocks that a sequence or a pin holds."""
    rows = [sequence.row for sequence in state.sequences.values()]
    return set().union(*rows, *state.pins.values())


def told(state: State, text: tuple[Content, ...]) -> Tokens:
    """Return the ids of some contents up to the first of which none was told, by whichever sequence had it then."""
    tokens: list[int] = []
    for epoch, position in text:
        token = state.ids.get(epoch, {}).get(position)
        if token is None:
            break
        tokens.append(token)
    return tuple(tokens)


def tell(ids: Ids, text: tuple[Content, ...], tokens: Tokens) -> Ids:
    """Return the ids that are told with those of the first of some contents. None ever changes, nor is forgotten."""
    more = dict(ids)
    for (epoch, position), token in zip(text, tokens, strict=False):
        more[epoch] = {**more.get(epoch, {}), position: token}
    return more


def key_of(sequence: Sequence, index: int, size: int) -> Key:
    """Return the key of a full block of a sequence whose tokens are known."""
    return Key(sequence.root, sequence.known[: (index + 1) * size])


def above(key: Key, size: int) -> Key:
    """Return the key of the block before: of its parent in the index; without tokens where there is none."""
    return key._replace(tokens=key.tokens[:-size])


def leads_to(key: Key, other: Key) -> bool:
    """Whether a key is on the chain to another, or is it: an equal root, and its tokens come first."""
    return key.root == other.root and key.tokens == other.tokens[: len(key.tokens)]


def planned_copies(state: State) -> list[Copy]:
    """Return the copies that `extend` has chosen and no launch has taken along yet."""
    return [sequence.copy for sequence in state.sequences.values() if sequence.copy]


def touched(state: State) -> set[Block]:
    """Return the blocks that device work may still read or write: of launches in flight, and sources of planned copies.

    A planned copy's target is held by its sequence.
    """
    blocks = {copy.source for copy in planned_copies(state)}
    for launch in state.launches:
        blocks.update(launch.reads, launch.writes)
    return blocks


def before(launches: tuple[Launch, ...], launch: Launch) -> set[LaunchId]:
    """Return the launches in flight that happen before this one: earlier on its stream, or named by `after`; closed."""
    found: set[LaunchId] = set()
    streams, named = {launch.stream}, {*launch.after}
    for other in reversed(launches):  # a launch can only be ordered after older ones, so one pass backwards suffices
        if other.id < launch.id and (other.stream in streams or other.id in named):
            found.add(other.id)
            streams.add(other.stream)
            named |= other.after
    return found


def written(state: State, sequence: Sequence) -> int:
    """Return how many leading positions retired launches have written, its own or its ancestors' up to the fork.

    Contents have one writer, so a position is not yet written exactly if a launch in flight writes its content.
    """
    stop = sequence.launched
    for launch in state.launches:
        for part in launch.computations:
            if part.start < stop and part.text[part.start] == sequence.text[part.start]:
                stop = part.start
    return stop

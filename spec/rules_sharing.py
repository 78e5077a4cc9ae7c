"""Rules of prefix sharing: what may be found again, what is evicted, what a published block is.

The worst that a prefix cache can do is to be right most of the time: a hit on the wrong block gives fluent, wrong text.
So these rules look at the index from outside: at what the slots of a published block hold, at what the sequences that
hold it know, and at who was there before whom.
"""

from collections.abc import Mapping

from .alphabet import Add, Clear, Execute, Extend, Pin, Publish, Submit
from .outcome import Outcome
from .rule_book import HOST, Lines, Step, planned_blocks, rule
from .state import Block, Key, Launch, Published, Root, State, Tokens, above, leads_to, planned_copies, touched, written


@rule("R-TXN-2", Add, Pin, Publish)
def held_where_found(step: Step) -> Lines:
    """What a look-up finds is held in the same action: a hit, or the block a row is merged into, has a holder then."""
    if isinstance(step.decided, Outcome):
        for block in (*step.decided.hits, *(merge.new for merge in step.decided.merges)):
            if block not in _held_by_it(step):
                yield f"block {block} was found, and {step.operation} does not hold it"
            if block in step.new.evictable or block in step.new.quarantine or block in step.new.free:
                yield f"block {block} was found, and may be taken away again"


def _held_by_it(step: Step) -> tuple[Block, ...]:
    """Return what is held by those whom an operation looked up for."""
    match step.operation:
        case Add(name):
            return step.new.sequences[name].row
        case Pin(handle):
            return step.new.pins[handle]
        case _:
            merges = step.decided.merges if isinstance(step.decided, Outcome) else ()
            return tuple(block for merge in merges for block in step.new.sequences[merge.sequence].row)


@rule("R-HASH-1", Add, Pin)
def keys_commit_to_everything(step: Step) -> Lines:
    """A key commits to all that determines the KV: a hit has the root asked for (salt, weights) and the same tokens."""
    if isinstance(step.operation, Add | Pin) and isinstance(step.decided, Outcome):
        tokens = () if isinstance(step.operation.tokens, int) else step.operation.tokens
        right = _chain(step.old, Root(step.operation.salt, step.old.weights), tokens)
        for block, wanted in zip(step.decided.hits, (*right, *[0] * len(step.decided.hits)), strict=False):
            if block != wanted:
                yield f"block {block} was hit and is not published for these tokens under this salt"


def _chain(state: State, root: Root, tokens: Tokens) -> list[Block]:
    """Return the published blocks whose keys begin these tokens, as far as none is missing; by looking at every key."""
    size = state.config.block_size
    whole = Key(root, tokens)
    found = {len(key.tokens): entry.block for key, entry in state.prefixes.items() if leads_to(key, whole)}
    chain: list[Block] = []
    while size * (len(chain) + 1) in found:
        chain.append(found[size * (len(chain) + 1)])
    return chain


@rule("R-HASH-2", *HOST, of_the_index=True)
def tokens_not_digests(step: Step) -> Lines:
    """An equal digest is not equal content: who holds a published block knows, as far as it knows, just its tokens."""
    keys = {entry.block: key for key, entry in step.new.prefixes.items()}
    size = step.new.config.block_size
    for name, sequence in step.new.sequences.items():
        for index, block in enumerate(sequence.row):
            if block in keys and not _agrees(keys[block], sequence.root, sequence.known, (index + 1) * size):
                yield f"sequence {name} has block {block}, published as {keys[block]}, at {index} of its row"


def _agrees(key: Key, root: Root, known: Tokens, stop: int) -> bool:
    return len(key.tokens) == stop and key.root == root and key.tokens[: len(known)] == known[:stop]


@rule("R-HASH-3", of_the_index=True)
def index_and_blocks_agree(step: Step) -> Lines:
    """index[key] = b iff b is published under key with its contents intact; only publish, eviction and clear change it.

    One block a key and one key a block: so the index never has more entries than there are blocks.
    """
    old, new = step.old.prefixes, step.new.prefixes
    blocks = [entry.block for entry in new.values()]
    if len(set(blocks)) < len(blocks):
        yield f"a block is published twice: {blocks}"
    for key, entry in new.items():
        if entry.block in step.new.free or not 1 <= entry.block <= step.new.config.blocks:
            yield f"block {entry.block} is in the index and no block in use"
        elif step.new.memory[entry.block] != entry.text or len(entry.text) != step.new.config.block_size:
            yield f"block {entry.block} is in the index and holds {step.new.memory[entry.block]}, not {entry.text}"
        if old.get(key, entry) != entry or (key not in old and not isinstance(step.operation, Publish)):
            yield f"{step.operation} changed what is published as {key}"
    gone = {entry.block for key, entry in old.items() if key not in new}
    if not isinstance(step.operation, Clear) and gone != {entry.block for entry in old.values()}.intersection(
        step.taken
    ):
        yield f"{step.operation} took {list(step.taken)}, and blocks {sorted(gone)} left the index"


@rule("R-HASH-4", Publish, of_the_index=True)
def written_before_found(step: Step) -> Lines:
    """Only a block of known tokens that retired launches have written in full is published."""
    size = step.new.config.block_size
    in_flight = {block for launch in step.new.launches for block in launch.writes}
    for key, entry in step.new.prefixes.items():
        if key not in step.old.prefixes:
            if entry.block in in_flight:
                yield f"block {entry.block} was published and a launch in flight writes it"
            if not any(_has_it(step, name, entry.block, len(key.tokens)) for name in step.new.sequences):
                yield f"block {entry.block} was published and nobody knows its tokens and has it written"
            if len(key.tokens) % size or not key.tokens:
                yield f"block {entry.block} was published under {len(key.tokens)} tokens"


def _has_it(step: Step, name: int, block: Block, stop: int) -> bool:
    """Whether a sequence had a block in its row that ends at a position it knows and that was written."""
    before, after = step.old.sequences[name], step.new.sequences[name]
    index = stop // step.new.config.block_size - 1
    its_own = 0 <= index < len(before.row) and before.row[index] == block
    return its_own and len(after.known) >= stop and written(step.old, before) >= stop


@rule("R-HASH-5", Add)
def one_token_left(step: Step) -> Lines:
    """A hit is the longest published chain, at most floor((known - 1) / B) blocks; positions go on behind it."""
    if isinstance(step.operation, Add) and isinstance(step.decided, Outcome):
        size, hits = step.new.config.block_size, step.decided.hits
        tokens = () if isinstance(step.operation.tokens, int) else step.operation.tokens
        chain = _chain(step.old, Root(step.operation.salt, step.old.weights), tokens)
        most = (step.operation.length - 1) // size
        if len(hits) != min(len(chain), most):
            yield f"{len(hits)} blocks were hit, {len(chain)} are published, and at most {most} leave a token"
        sequence = step.new.sequences[step.operation.name]
        if sequence.row[: len(hits)] != hits or sequence.launched != len(hits) * size or sequence.known != tokens:
            yield f"sequence {step.operation.name} does not go on behind its hits: {sequence}"


@rule("R-HASH-6", *HOST)
def other_weights_other_epoch(step: Step) -> Lines:
    """A change of weights invalidates by epoch: no key is of older weights, and nobody is of weights yet to come."""
    weights = step.new.weights
    for key, entry in step.new.prefixes.items():
        if key.root.weights != weights:
            yield f"the weights are of epoch {weights}, and block {entry.block} in the index is of {key.root.weights}"
    if weights != step.old.weights + isinstance(step.operation, Clear):
        yield f"{step.operation} took the weights from epoch {step.old.weights} to {weights}"
    for name, sequence in step.changed.items():
        old = step.old.sequences.get(name, sequence)
        if old.root != sequence.root or sequence.root.weights > weights:
            yield f"{step.operation} made the root of sequence {name} {sequence.root}"
    if isinstance(step.operation, Clear) and (step.new.prefixes or step.new.pins or step.new.evictable):
        yield "something published or pinned has outlived its weights"


@rule("R-EVICT-1", *HOST)
def only_idle_blocks_are_evicted(step: Step) -> Lines:
    """What is evicted had no holder but the index and no launch or planned copy to touch it, and no block was free."""
    evicted = [block for block in step.taken if block not in step.old.free]
    if not (evicted or step.new.evictable):
        return
    published = {entry.block for entry in step.new.prefixes.values()}
    in_use = touched(step.new)
    for block in step.new.evictable:
        if block not in published or block in in_use:
            yield f"block {block} is evictable and not published, or device work touches it"
    if evicted:
        hits = step.decided.hits if isinstance(step.decided, Outcome) else ()
        if not set(evicted) <= step.old.evictable.keys() - set(hits):
            yield f"blocks {evicted} were evicted, of {sorted(step.old.evictable)}, and {list(hits)} were hit"
        if step.new.free or list(step.taken[-len(evicted) :]) != evicted:
            yield f"blocks {evicted} were evicted while others were free"


@rule("R-EVICT-2", *HOST, of_the_index=True)
def children_before_parents(step: Step) -> Lines:
    """Children go before parents, of leaves one of the lowest class, evictable for longest: what stays is reachable."""
    size, by_key = step.new.config.block_size, step.new.prefixes
    for key, entry in by_key.items():
        parent = by_key.get(above(key, size))
        if parent is None and len(key.tokens) > size:
            yield f"block {entry.block} is published, and the block before it is not"
        if parent is not None and parent.block in step.new.evictable and entry.block not in step.new.evictable:
            yield f"block {parent.block} may be evicted, and block {entry.block}, which it leads to, may not"
    there = dict(step.old.prefixes)
    for block in step.taken:
        if block in step.old.evictable:
            least = min(_ranks(there, step).values(), default=None)
            if _ranks(there, step).get(block) != least:
                yield f"block {block} was evicted before what is worth less"
            there = {key: entry for key, entry in there.items() if entry.block != block}


def _ranks(there: Mapping[Key, Published], step: Step) -> dict[Block, tuple[int, int]]:
    """Return the worth of each leaf that is idle, its class first: the less, the earlier it goes."""
    hits = step.decided.hits if isinstance(step.decided, Outcome) else ()
    return {
        entry.block: (entry.retention, step.old.evictable[entry.block])
        for key, entry in there.items()
        if entry.block in step.old.evictable and entry.block not in hits
        if not any(len(other.tokens) > len(key.tokens) and leads_to(key, other) for other in there)
    }


@rule("R-EVICT-3", Publish)
def remapped_before_released(step: Step) -> Lines:
    """Where equal contents are merged, rows are remapped before the duplicate is let go: no row still names it then."""
    if isinstance(step.decided, Outcome):
        keys = {entry.block: key for key, entry in step.new.prefixes.items()}
        size = step.new.config.block_size
        for name, at, old, new in step.decided.merges:
            sequence = step.new.sequences[name]
            if sequence.row[at] != new or step.old.sequences[name].row[at] != old:
                yield f"the row of sequence {name} has block {sequence.row[at]}, not {new} in place of {old}"
            if new not in keys or not _agrees(keys[new], sequence.root, sequence.known, (at + 1) * size):
                yield f"block {new} is not published for what sequence {name} knows"
            if sequence.text[at * size : (at + 1) * size] != step.new.memory[new]:
                yield f"sequence {name} expects other contents than those of block {new}"
            if old in step.held and (old in step.new.free or old in step.new.quarantine):
                yield f"block {old} was let go, and a row still names it"


@rule("R-COW-4", of_the_index=True)
def published_is_immutable(step: Step) -> Lines:
    """A published block is immutable: what its slots hold stays, and nothing that would write it is launched."""
    published = {entry.block for entry in step.new.prefixes.values()}
    if isinstance(step.operation, Execute):
        for block in published:
            if step.new.memory[block] != step.old.memory[block]:
                yield f"block {block} is published and {step.operation} changed it"
    launches: tuple[Launch, ...] = step.new.launches if isinstance(step.operation, Submit | Publish) else ()
    for launch in launches:
        if wrong := published & launch.writes.keys():
            yield f"launch {launch.id} writes the published blocks {sorted(wrong)}"
    size = step.new.config.block_size
    for name, sequence in step.new.sequences.items():
        if wrong := published.intersection(planned_blocks(sequence, size)):
            yield f"sequence {name} plans to write the published blocks {sorted(wrong)}"
    if isinstance(step.operation, Extend) and any(copy.target in published for copy in planned_copies(step.new)):
        yield "a copy is planned into a published block"

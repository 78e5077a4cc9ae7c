"""What is known and published, by its shape: token ids, salts and pins are names, too.

All that matters of a token id is which other one it equals after the same beginning. So what sequences know and what
the index has is a tree: a root for each salt, a branch for each id that follows. A tree is written down from its leaves
up, the branches of each fork sorted by how they look, which leaves the ids out and says everything else: where what a
sequence knows ends, and where what was told of its contents; which block is published there, how it stands, how many
pins end there.

Ticks become ranks, and a sequence that began under older weights has its number of known ids alone: nobody will ever
compare them.
"""

from collections.abc import Mapping
from typing import Any

from .state import Block, Content, Key, Name, Published, Root, State, Tokens, told

Shape = tuple[Any, ...]


def shape(
    state: State, order: tuple[Name, ...], blocks: Mapping[Block, int], contents: Mapping[Content | None, int]
) -> tuple[Shape, list[Block]]:
    """Return what is known and published without the ids, and the published blocks in the order in which it has them.

    Sequences are named by their place in `order`, blocks and contents as given; others have no name.
    """
    sequences = [state.sequences[name] for name in order]
    roots = {sequence.root for sequence in sequences}
    all_alike = len(roots) <= 1 and all(root.weights == state.weights for root in roots)
    if all_alike and not state.prefixes and not any(told(state, s.text) for s in sequences):
        return (), []
    now = {root for root in (*roots, *(key.root for key in state.prefixes)) if root.weights == state.weights}
    trees = sorted(_Tree(state, order, root).shape((), blocks, contents) for root in now)
    old = [(at, len(s.known)) for at, s in enumerate(sequences) if s.root.weights != state.weights]
    return (tuple(tree for tree, _ in trees), tuple(old)), [block for _, found in trees for block in found]


class _Tree:
    """What is known and published under one root."""

    def __init__(self, state: State, order: tuple[Name, ...], root: Root) -> None:
        self.state = state
        self.root = root
        self.ends: dict[Tokens, list[int]] = {}
        self.branches: dict[Tokens, set[Tokens]] = {}
        for at, name in enumerate(order):
            sequence = state.sequences[name]
            if sequence.root == root:
                self.ends.setdefault(sequence.known, []).append(2 * at)
                self.ends.setdefault(told(state, sequence.text), []).append(2 * at + 1)
        for tokens in (*self.ends, *(key.tokens for key in state.prefixes if key.root == root)):
            for stop in range(len(tokens)):
                self.branches.setdefault(tokens[:stop], set()).add(tokens[: stop + 1])
        self.ranks = {since: rank for rank, since in enumerate(sorted(set(state.evictable.values())), 1)}

    def shape(
        self, tokens: Tokens, blocks: Mapping[Block, int], contents: Mapping[Content | None, int]
    ) -> tuple[Shape, list[Block]]:
        """Return the shape of what follows some tokens, and the published blocks in it."""
        branches = sorted(self.shape(longer, blocks, contents) for longer in self.branches.get(tokens, ()))
        entry = self.state.prefixes.get(Key(self.root, tokens))
        here = self._entry(entry, blocks, contents) if entry else ()
        found = [entry.block] if entry else []
        found += [block for _, more in branches for block in more]
        return (tuple(self.ends.get(tokens, ())), here, tuple(branch for branch, _ in branches)), found

    def _entry(self, entry: Published, blocks: Mapping[Block, int], contents: Mapping[Content | None, int]) -> Shape:
        state, block = self.state, entry.block
        fence = state.quarantine.get(block, -1)
        return (
            blocks.get(block, 0),
            entry.retention,
            self.ranks.get(state.evictable.get(block, 0), 0),
            sum(launch.id <= fence for launch in state.launches) if block in state.quarantine else -1,
            sum(held[-1] == block for held in state.pins.values()),
            tuple(contents.get(content, 0) for content in entry.text),
            state.memory.get(block) == entry.text,
        )

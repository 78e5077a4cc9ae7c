"""Published blocks, as the audit keeps them: under which key, behind which other, and who is evicted next.

The spec's keys are whole prefixes, which is exact and costs the prefix. Here a key is (the published block before, the
block's own tokens), which says the same as long as a parent stays while it has children (R-EVICT-2, which is checked):
so a look-up and a publication cost the tokens of their blocks.

Who is evicted next is asked of a heap of leaves, by class and by the moment since when they are idle. Its entries go
stale (a block was hit, or evicted, or got a child) and are dropped when they come to the top: O(log blocks) each.
"""

from collections.abc import Collection, Iterator, Sequence
from heapq import heappop, heappush

from .state import Block

PrefixKey = tuple[Block, int, tuple[int, ...]]  # the block before (0: none), the salt where there is none, the tokens
Rank = tuple[int, int]  # retention class, moment


class Node:
    """A published block."""

    __slots__ = ("children", "key", "retention")

    def __init__(self, key: PrefixKey, retention: int, children: Collection[Block] = ()) -> None:
        self.key = key
        self.retention = retention
        self.children = set(children)


class Prefixes:
    """The index, and which of its blocks are evictable."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.nodes: dict[Block, Node] = {}
        self.evictable: dict[Block, int] = {}  # and since which moment
        self._block_of: dict[PrefixKey, Block] = {}
        self._leaves: list[tuple[int, int, Block]] = []  # a heap; some are none any more
        self._moment = 0

    def find(self, parent: Block, salt: int, tokens: Sequence[int]) -> Block:
        """Return the block published behind another (or first under a salt) for the tokens of one block; 0: none."""
        return self._block_of.get(_key(parent, salt, tokens), 0)

    def chain(self, salt: int, tokens: Sequence[int]) -> Iterator[Block]:
        """Yield the longest chain of published blocks that some tokens begin with. O(tokens)."""
        size, block = self.block_size, 0
        for start in range(0, len(tokens) - size + 1, size):
            block = self.find(block, salt, tokens[start : start + size])
            if not block:
                return
            yield block

    def publish(self, block: Block, parent: Block, salt: int, tokens: Sequence[int], retention: int) -> None:
        """Publish a block. O(its tokens)."""
        key = _key(parent, salt, tokens)
        self._block_of[key] = block
        self.nodes[block] = Node(key, retention)
        if parent:
            self.nodes[parent].children.add(block)

    def let_evict(self, blocks: Collection[Block]) -> None:
        """Let published blocks be evictable from now on, all since the same moment."""
        self._moment += 1
        for block in blocks:
            self.evictable[block] = self._moment
            self._rank_leaf(block)

    def best(self) -> Rank:
        """Return the rank of what is to be evicted next; something must be evictable."""
        while True:
            retention, moment, block = self._leaves[0]
            if self.evictable.get(block) == moment and not self.nodes[block].children:
                return retention, moment
            heappop(self._leaves)

    def rank(self, block: Block) -> Rank | None:
        """Return the rank of an evictable leaf; None of what may not be evicted."""
        if block not in self.evictable or self.nodes[block].children:
            return None
        return self.nodes[block].retention, self.evictable[block]

    def evict(self, block: Block) -> None:
        """Take an evictable leaf out of the index."""
        del self.evictable[block]
        key = self.nodes.pop(block).key
        del self._block_of[key]
        if parent := key[0]:
            self.nodes[parent].children.discard(block)
            if parent in self.evictable:
                self._rank_leaf(parent)

    def clear(self) -> Collection[Block]:
        """Forget all; return what was evictable."""
        idle = [*self.evictable]
        self.nodes.clear()
        self.evictable.clear()
        self._block_of.clear()
        self._leaves.clear()
        return idle

    def clone(self) -> "Prefixes":
        """Return an independent copy."""
        twin = Prefixes(self.block_size)
        twin.nodes = {block: Node(node.key, node.retention, node.children) for block, node in self.nodes.items()}
        twin.evictable, twin._block_of = self.evictable.copy(), self._block_of.copy()
        twin._leaves, twin._moment = self._leaves.copy(), self._moment
        return twin

    def _rank_leaf(self, block: Block) -> None:
        if not self.nodes[block].children:
            heappush(self._leaves, (self.nodes[block].retention, self.evictable[block], block))


def _key(parent: Block, salt: int, tokens: Sequence[int]) -> PrefixKey:
    return parent, 0 if parent else salt, tuple(tokens)

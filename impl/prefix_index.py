"""The prefix index: which block holds the KV of which tokens, behind which other tokens, for whom.

A *published* block is known by its root (a tenant's salt; only blocks of the present weights are in the index), by its
parent (the published block before it, 0 for the first) and by its own tokens. Exactly one block has a key, and a block
has one key. So a chain of blocks is a prefix, and equal keys are equal prefixes: nothing else decides.

A hash of the prefix finds candidates, a prompt's blocks all at once, as `names` finds rows: a direct-mapped table
guesses the block by the low bits of the hash, the block's own hash confirms it, and blocks whose place is another's are
in a dictionary. A candidate counts when its tokens, its parent and, for the first, its salt compare equal: one
comparison for all of them. Blocks of one hash are all kept and told apart (R-HASH-2). Engines that trust a digest pay
for a cryptographic one, block by block; here no two prefixes can be confused, whatever the hash.

Children are let go before parents, so where a prefix isn't published nothing behind it is.

Cost: O(tokens) to look up, O(blocks) to change; 4 bytes a position and 45 a block, all of it committed as it is used.
Considered: a dictionary for all (its entries take 100 bytes each and as long as everything else); a radix tree
(pointers to chase, nodes to split, and the same comparison).
"""

from typing import Self

import numpy as np
from numpy.typing import NDArray

from .arrays import NO_IDS, IndexArray, Int32Array, Int64Array, frozen
from .events import EventLog
from .prefix_hash import PrefixHash

NO_HASHES: Int64Array = frozen(np.empty(0, np.int64))


class PrefixIndex:
    """Published blocks by their prefix, and the token ids of all blocks as far as they are known.

    Look-up: `match`, `find`, `new`, `candidates`. Changes: `store`, `insert`, `remove`, `clear`.
    Arrays by block, valid where `published`: `hashes`, `parents`, `depths` (blocks before it), and `salts` of those
    without a parent. `tokens` is [blocks + 1, B].
    """

    __slots__ = (
        "_home",
        "_mask",
        "_more",
        "_others",
        "block_size",
        "depths",
        "events",
        "hash",
        "hashes",
        "parents",
        "published",
        "salts",
        "tokens",
    )

    def __init__(self, blocks: int, block_size: int, events: EventLog | None = None) -> None:
        self.block_size = block_size
        self.events = events
        self.hash = PrefixHash(block_size)
        self.tokens = np.zeros((blocks + 1, block_size), np.int32)
        self.published = np.zeros(blocks + 1, bool)
        self.hashes = np.zeros(blocks + 1, np.int64)
        self.parents = np.zeros(blocks + 1, np.intp)
        self.depths = np.zeros(blocks + 1, np.intp)
        self.salts = np.zeros(blocks + 1, np.int64)
        self._mask = (1 << (8 * blocks - 1).bit_length()) - 1  # eight homes a block, so that few meet
        self._home = np.zeros(self._mask + 1, np.int32)  # low bits of a hash -> the last block that came with it, or 0
        self._others: dict[int, int] = {}  # hash -> a block that is not at home, since another is
        self._more: dict[int, list[int]] = {}  # hash -> further blocks of this hash: hardly ever any

    # ---- look-up ----------------------------------------------------------------------------------------------------

    def match(self, tokens: Int32Array, limit: int, salt: int) -> tuple[IndexArray, Int64Array]:
        """Return the longest chain of published blocks that begins at the salt's root and holds these tokens.

        At most `limit` full blocks of them; and the hashes of all full blocks. O(tokens).
        """
        full = tokens.size // self.block_size
        if not full:
            return NO_IDS, NO_HASHES
        pages = tokens[: full * self.block_size].reshape(full, self.block_size)
        hashes = self.hash.chain(pages, self.hash.root(salt))
        if limit < 1 or self.new(hashes.item(0)):
            return NO_IDS, hashes
        return self.find(pages[:limit], hashes[:limit], 0, salt), hashes

    def find(self, pages: Int32Array, hashes: Int64Array, parent: int, salt: int) -> IndexArray:
        """Return the longest chain of published blocks behind `parent` with these pages, whose hashes are given."""
        ids = self._home.take(hashes & self._mask).astype(np.intp)
        right = self.hashes.take(ids) == hashes
        right &= ids != 0
        if np.count_nonzero(right) < ids.size:
            for place in (~right).nonzero()[0].tolist():
                other = self._others.get(hashes.item(place))
                if other is None:
                    ids = ids[:place]
                    break
                ids[place] = other
            if not ids.size:
                return NO_IDS
        parents = self.parents.take(ids)
        if (
            parents.item(0) != parent
            or (not parent and self.salts.item(ids.item(0)) != salt)
            or np.count_nonzero(parents[1:] != ids[:-1])
            or np.count_nonzero(self.tokens.take(ids, axis=0) != pages[: ids.size])
        ):
            return self._walk(pages, hashes.tolist(), parent, salt)
        return ids

    def _walk(self, pages: Int32Array, hashes: list[int], parent: int, salt: int) -> IndexArray:
        """Find a chain block by block, since one of the candidates has only the same hash."""
        chain: list[int] = []
        for page, prefix_hash in zip(pages, hashes, strict=True):
            for block in self.candidates(prefix_hash):
                same = self.parents.item(block) == parent and (parent or self.salts.item(block) == salt)
                if same and np.array_equal(self.tokens[block], page):
                    chain.append(block)
                    parent = block
                    break
            else:
                break
        return np.array(chain, np.intp)

    def candidates(self, prefix_hash: int) -> list[int]:
        """Return all published blocks of one hash. O(1)."""
        home = self._home.item(prefix_hash & self._mask)
        at_home = [home] if home and self.hashes.item(home) == prefix_hash else []
        other = self._others.get(prefix_hash)
        return at_home if other is None else [*at_home, other, *self._more.get(prefix_hash, ())]

    def new(self, prefix_hash: int) -> bool:
        """Whether no published block has this hash: then none has any prefix of it. O(1)."""
        home = self._home.item(prefix_hash & self._mask)
        return not (home and self.hashes.item(home) == prefix_hash) and prefix_hash not in self._others

    def all_new(self, hashes: Int64Array) -> NDArray[np.bool_]:
        """Return for each hash whether no published block has it. O(hashes)."""
        home = self._home.take(hashes & self._mask)
        new: NDArray[np.bool_] = (self.hashes.take(home) != hashes) | (home == 0)
        if self._others:
            new &= [prefix_hash not in self._others for prefix_hash in hashes.tolist()]
        return new

    # ---- changes ----------------------------------------------------------------------------------------------------

    def store(self, ids: IndexArray, tokens: Int32Array, hashes: Int64Array) -> None:
        """Write tokens of blocks that were taken, and hashes of those that are full: all but the last at least."""
        full = hashes.size
        end = full * self.block_size
        self.hashes[ids[:full]] = hashes
        self.tokens[ids[:full]] = tokens[:end].reshape(full, self.block_size)
        if end < tokens.size:
            self.tokens[ids.item(full), : tokens.size - end] = tokens[end:]

    def insert(self, ids: IndexArray, hashes: Int64Array, parents: IndexArray, depths: IndexArray) -> None:
        """Publish blocks, whose tokens and salts are there, under keys that nobody has; parents first. O(ids)."""
        self.published[ids] = True
        self.hashes[ids] = hashes
        self.parents[ids] = parents
        self.depths[ids] = depths
        homes = hashes & self._mask
        before = self._home.take(homes)
        self._home[homes] = ids
        away = self._home.take(homes) != ids  # two of these may have one home
        if np.count_nonzero(before) or np.count_nonzero(away):
            self._send_away({*before[before.nonzero()[0]].tolist(), *ids[away].tolist()})
        if self.events is not None:
            self.events.stored(ids, parents, self.salts[ids].tolist(), self.tokens[ids])

    def _send_away(self, blocks: set[int]) -> None:
        """Note where blocks are found that have no home any more, or have found none."""
        for block in blocks:
            prefix_hash = self.hashes.item(block)
            if prefix_hash in self._others:
                self._more.setdefault(prefix_hash, []).append(block)
            else:
                self._others[prefix_hash] = block

    def remove(self, ids: IndexArray) -> None:
        """Let published blocks go. O(ids)."""
        self.published[ids] = False
        hashes = self.hashes[ids]
        homes = hashes & self._mask
        away = self._home[homes] != ids
        self._home[homes[~away]] = 0
        if np.count_nonzero(away):
            for prefix_hash, block in zip(hashes[away].tolist(), ids[away].tolist(), strict=True):
                self._forget(prefix_hash, block)
        if self.events is not None:
            self.events.removed(ids)

    def _forget(self, prefix_hash: int, block: int) -> None:
        """Let go a block that is not at home."""
        more = self._more.get(prefix_hash, [])
        if self._others[prefix_hash] != block:
            more.remove(block)
        elif more:
            self._others[prefix_hash] = more.pop()
        else:
            del self._others[prefix_hash]
        if prefix_hash in self._more and not more:
            del self._more[prefix_hash]

    def clear(self) -> None:
        """Let all published blocks go. O(blocks)."""
        self.published.fill(0)
        self._home.fill(0)
        self._others.clear()
        self._more.clear()
        if self.events is not None:
            self.events.cleared()

    def published_ids(self) -> IndexArray:
        """Return all published blocks, in order of id. O(blocks)."""
        return self.published.nonzero()[0]

    def entries(self) -> int:
        """Return how many blocks can be found. O(blocks)."""
        return int(np.count_nonzero(self._home)) + len(self._others) + sum(map(len, self._more.values()))

    def clone(self) -> Self:
        """Return an independent copy with the same hash."""
        twin = object.__new__(type(self))
        twin.block_size, twin.hash, twin._mask = self.block_size, self.hash, self._mask
        twin.events = self.events  # until it is given its own
        twin.tokens, twin.published = self.tokens.copy(), self.published.copy()
        twin.hashes, twin.parents = self.hashes.copy(), self.parents.copy()
        twin.depths, twin.salts, twin._home = self.depths.copy(), self.salts.copy(), self._home.copy()
        twin._others = self._others.copy()
        twin._more = {prefix_hash: blocks.copy() for prefix_hash, blocks in self._more.items()}
        return twin

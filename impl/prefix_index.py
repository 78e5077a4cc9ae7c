"""The prefix index: which block holds the KV of which tokens, behind which other tokens, for whom.

A *published* block is known by its root (a tenant's salt; only blocks of the present weights are in the index), by its
parent (the published block before it, 0 for the first) and by its own tokens. Exactly one block has a key, and a block
has one key. So a chain of blocks is a prefix, and equal keys are equal prefixes: nothing else decides.

A hash finds candidates. It is linear, sum of token x key over all positions so far, modulo 2**64, with one random key a
position, an addend a block, and a root that mixes the salt in: so the hashes of a whole prompt's blocks are one product
and two sums. Multilinear hashing is universal (Carter and Wegman, 1979; Lemire and Kaser, 2014): as long as the keys,
drawn anew in each process, are secret, nobody can make two prefixes meet. No answer rests on that: a candidate counts
when tokens, parent and salt compare equal, all blocks of a prompt in one comparison, and blocks of one hash are all
kept. (R-HASH-2; engines that trust a digest pay for a cryptographic one, block by block.)

Cost: O(tokens) to look up; 4 bytes a position, about 25 a block, and a dictionary entry of some 100 for each published
block. Considered: a radix tree (pointers to chase, nodes to split, and the same comparison); dictionary look-ups by
(parent, bytes), five times slower; a hash that is chained block by block, which can't be computed for all at once.
"""

import secrets
from itertools import repeat
from typing import Self

import numpy as np

from .arrays import NO_IDS, IndexArray, Int32Array, Int64Array

NO_BLOCK = 0
FEWEST_KEYS = 64  # blocks that keys are drawn for at first


class PrefixIndex:
    """Published blocks by their prefix, and the token ids of all blocks as far as they are known.

    Hashes: `root`, `chain`, `contributions`. Look-up: `match`, `find`. Changes: `insert`, `remove`, `clear`.
    Arrays by block, valid where `published`: `hashes`, `parents`, `depths`, `salts`. `tokens` is [blocks + 1, B].
    """

    __slots__ = (
        "_addends",
        "_block_of",
        "_keys",
        "_others",
        "_salt_key",
        "_starts",
        "block_size",
        "depths",
        "hashes",
        "parents",
        "published",
        "salts",
        "tokens",
    )

    def __init__(self, blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.tokens = np.zeros((blocks + 1, block_size), np.int32)
        self.published = np.zeros(blocks + 1, bool)
        self.hashes = np.zeros(blocks + 1, np.int64)
        self.parents = np.zeros(blocks + 1, np.intp)
        self.depths = np.zeros(blocks + 1, np.int32)  # blocks before it
        self.salts = np.zeros(blocks + 1, np.int64)
        self._block_of: dict[int, int] = {}  # hash -> the first block that has it
        self._others: dict[int, list[int]] = {}  # hash -> further blocks that have it: hardly ever any
        self._salt_key = _random(1).item()
        self._keys, self._addends = _random(FEWEST_KEYS * block_size).reshape(-1, block_size), _random(FEWEST_KEYS)
        self._starts = np.arange(0, FEWEST_KEYS * block_size, block_size)

    def entries(self) -> int:
        """Return how many blocks are published. O(colliding blocks)."""
        return len(self._block_of) + sum(map(len, self._others.values()))

    # ---- hashes -----------------------------------------------------------------------------------------------------

    def root(self, salt: int) -> int:
        """Return what the hashes of a salt's prefixes begin with."""
        return (salt * self._salt_key + 2**63) % 2**64 - 2**63

    def chain(self, pages: Int32Array, root: int) -> Int64Array:
        """Return the hash of the prefix that ends with each of a prompt's first blocks, [n, B] tokens. O(tokens)."""
        count = len(pages)
        self.make_keys(count)
        products = (pages * self._keys[:count]).reshape(-1)
        sums: Int64Array = np.add.reduceat(products, self._starts[:count])
        sums += self._addends[:count]
        sums[:1] += root
        return sums.cumsum()

    def contributions(self, pages: Int32Array, depths: IndexArray) -> Int64Array:
        """Return what blocks at these depths, [n, B] tokens, add to the hashes of the prefixes before them."""
        self.make_keys(int(depths.max()) + 1)
        products = (pages * self._keys[depths]).reshape(-1)
        sums: Int64Array = np.add.reduceat(products, np.arange(0, products.size, self.block_size))
        sums += self._addends[depths]
        return sums

    def make_keys(self, blocks: int) -> None:
        """Have keys for prefixes of so many blocks."""
        have = self._addends.size
        if blocks > have:
            more = max(blocks, 2 * have) - have
            keys = _random(more * self.block_size).reshape(-1, self.block_size)
            self._keys = np.concatenate((self._keys, keys))
            self._addends = np.concatenate((self._addends, _random(more)))
            self._starts = np.arange(0, self._keys.size, self.block_size)

    # ---- look-up ----------------------------------------------------------------------------------------------------

    def match(self, tokens: Int32Array, limit: int, salt: int) -> IndexArray:
        """Return the longest chain of published blocks that begins at the salt's root and holds these tokens.

        At most `limit` full blocks of them. O(tokens), and O(B) where even the first block is nobody's.
        """
        if not self._block_of or limit < 1:
            return NO_IDS
        pages = tokens[: limit * self.block_size].reshape(limit, self.block_size)
        root = self.root(salt)
        if self.chain(pages[:1], root).item() not in self._block_of:
            return NO_IDS
        return self.find(pages, self.chain(pages, root), 0, salt)

    def find(self, pages: Int32Array, hashes: Int64Array, parent: int, salt: int) -> IndexArray:
        """Return the longest chain of published blocks behind `parent` with these tokens, whose hashes are given."""
        listed = hashes.tolist()
        found: list[int] = list(map(self._block_of.get, listed, repeat(NO_BLOCK)))
        if NO_BLOCK in found:
            del found[found.index(NO_BLOCK) :]
        if not found:
            return NO_IDS
        ids = np.array(found, np.intp)
        parents = self.parents[ids]
        if (
            parents.item(0) != parent
            or (not parent and self.salts.item(found[0]) != salt)  # a parent's salt is its children's
            or np.count_nonzero(parents[1:] != ids[:-1])
            or np.count_nonzero(self.tokens.take(ids, axis=0) != pages[: ids.size])
        ):
            return self._walk(pages, listed, parent, salt)
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
        """Return all published blocks of one hash."""
        first = self._block_of.get(prefix_hash)
        return [] if first is None else [first, *self._others.get(prefix_hash, ())]

    def unknown(self, hashes: list[int]) -> list[bool]:
        """Return for each hash whether no published block has it."""
        return [prefix_hash not in self._block_of for prefix_hash in hashes]

    # ---- changes ----------------------------------------------------------------------------------------------------

    def store(self, ids: IndexArray, tokens: Int32Array) -> None:
        """Write the tokens of blocks that were taken, one behind the other; the last one may be partly filled."""
        full = tokens.size // self.block_size
        end = full * self.block_size
        self.tokens[ids[:full]] = tokens[:end].reshape(full, self.block_size)
        if end < tokens.size:
            self.tokens[ids.item(full), : tokens.size - end] = tokens[end:]

    def insert(
        self, ids: IndexArray, hashes: Int64Array, parents: IndexArray, depths: IndexArray, salts: Int64Array
    ) -> None:
        """Publish blocks, whose tokens are there, under keys that nobody has. O(ids)."""
        self.published[ids] = True
        self.hashes[ids] = hashes
        self.parents[ids] = parents
        self.depths[ids] = depths
        self.salts[ids] = salts
        listed, blocks = hashes.tolist(), ids.tolist()
        for prefix_hash, block in zip(listed, blocks, strict=True):
            first = self._block_of.setdefault(prefix_hash, block)
            if first != block:
                self._others.setdefault(prefix_hash, []).append(block)

    def remove(self, ids: IndexArray) -> None:
        """Let published blocks go. O(ids)."""
        self.published[ids] = False
        hashes = self.hashes[ids].tolist()
        if not self._others:
            for prefix_hash in hashes:
                del self._block_of[prefix_hash]
            return
        for prefix_hash, block in zip(hashes, ids.tolist(), strict=True):
            others = self._others.get(prefix_hash)
            if others is None:
                del self._block_of[prefix_hash]
                continue
            if self._block_of[prefix_hash] == block:
                self._block_of[prefix_hash] = others.pop(0)
            else:
                others.remove(block)
            if not others:
                del self._others[prefix_hash]

    def clear(self) -> None:
        """Let all published blocks go. O(blocks)."""
        self.published.fill(False)  # noqa: FBT003  (the value, not a switch)
        self._block_of.clear()
        self._others.clear()

    def published_ids(self) -> IndexArray:
        """Return all published blocks, in order of id. O(blocks)."""
        return self.published.nonzero()[0]

    def clone(self) -> Self:
        """Return an independent copy with the same keys."""
        twin = object.__new__(type(self))
        twin.block_size, twin.tokens, twin.published = self.block_size, self.tokens.copy(), self.published.copy()
        twin.hashes, twin.parents = self.hashes.copy(), self.parents.copy()
        twin.depths, twin.salts = self.depths.copy(), self.salts.copy()
        twin._block_of = self._block_of.copy()
        twin._others = {prefix_hash: blocks.copy() for prefix_hash, blocks in self._others.items()}
        twin._salt_key, twin._keys, twin._addends, twin._starts = (
            self._salt_key,
            self._keys,
            self._addends,
            self._starts,
        )
        return twin


def _random(count: int) -> Int64Array:
    """Return random 64-bit integers that nobody can guess."""
    return np.frombuffer(secrets.token_bytes(8 * count), np.int64)

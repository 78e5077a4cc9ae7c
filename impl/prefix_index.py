"""The prefix index: which block holds the KV of which tokens, behind which other tokens, for whom.

A *published* block is known by its root (a tenant's salt; only blocks of the present weights are in the index), by its
parent (the published block before it, 0 for the first) and by its own tokens. Exactly one block has such a key, and a
block has one key. So chains of blocks are prefixes, and equal keys are equal prefixes.

The index is the tree of these chains. Most blocks have one child, or none: that is their *successor*, one number a
block. Only where prefixes part, and at the roots, a dictionary leads on, by salt or parent and by the page itself: the
tokens of one full block, as bytes. A prompt is looked up by following successors, and comparing their tokens with its
own all at once. No digest is trusted and no hash can be wrong, for tokens are compared with tokens (R-HASH-2); Python's
own hash of bytes, keyed anew in each process, finds dictionary entries and no more. Blocks that were published in one
go are remembered as a *run*, to be guessed rather than followed one by one; their successors confirm the guess.

Children are let go before parents, so what is published can be reached.

Cost: O(tokens) to look up, 40 ns a block that is guessed, 100 ns one that is followed, 3 us where prefixes part;
O(blocks) to change, in a handful of passes. Memory: 4 bytes a position, 38 a block, 8 more in a run, and a dictionary
entry of some 250 for each root, branch and run. Considered: a keyed hash of every prefix, from which a table guesses
blocks (nothing to follow, but a prompt is hashed in full where its first page would do: twice the cost for one that
hits nothing); a dictionary of all blocks by (parent, page), five times slower; a radix tree of strings, whose nodes
split and join.
"""

from typing import Self

import numpy as np
from numpy.typing import NDArray

from .arrays import NO_IDS, IndexArray, Int32Array, Int64Array
from .events import EventLog

Branch = tuple[int, bytes]  # a salt, or a parent; and a page


class PrefixIndex:
    """Published blocks by their prefix, and the token ids of all blocks as far as they are known.

    Look-up: `match`, `find`, `child`, `childless`. Changes: `store`, `tell`, `insert_chain`, `insert_leaves`, `remove`,
    `clear`. Arrays by block, valid where `published`: `parents`, `depths` (blocks before it), and `salts` of those
    without a parent. `tokens` is [blocks + 1, B].
    """

    __slots__ = (
        "_branches",
        "_forks",
        "_heads",
        "_pages",
        "_roots",
        "_runs",
        "_successors",
        "block_size",
        "depths",
        "events",
        "parents",
        "published",
        "salts",
        "tokens",
    )

    def __init__(self, blocks: int, block_size: int, events: EventLog | None = None) -> None:
        self.block_size = block_size
        self.events = events
        self.tokens = np.zeros((blocks + 1, block_size), np.int32)
        self._pages = _as_pages(self.tokens)
        self.published = np.zeros(blocks + 1, bool)
        self.parents = np.zeros(blocks + 1, np.intp)
        self.depths = np.zeros(blocks + 1, np.intp)
        self.salts = np.zeros(blocks + 1, np.int64)
        # One of its children, which came while there was no other successor; 0: there is none such, perhaps forks.
        self._successors = np.zeros(blocks + 1, np.intp)
        self._forks = np.zeros(blocks + 1, np.int32)  # children besides the successor; too many costs time alone
        self._roots: dict[Branch, int] = {}  # (salt, page) -> block
        self._branches: dict[Branch, int] = {}  # (parent, page) -> block, for children that are no successors
        self._runs: dict[int, IndexArray] = {}  # head -> blocks that were published behind it in one go
        self._heads = np.zeros(blocks + 1, bool)  # which blocks are heads of runs

    # ---- look-up ----------------------------------------------------------------------------------------------------

    def match(self, tokens: Int32Array, limit: int, salt: int) -> IndexArray:
        """Return the longest chain of published blocks that begins at the salt's root and holds these tokens.

        At most `limit` full blocks of them. O(tokens), and O(B) where even the first block is nobody's.
        """
        if limit < 1 or not self._roots:
            return NO_IDS
        return self.find(tokens[: limit * self.block_size].reshape(limit, self.block_size), 0, salt)

    def find(self, pages: Int32Array, parent: int, salt: int) -> IndexArray:
        """Return the longest chain of published blocks behind `parent`, or the salt's root, with pages [n, B]."""
        found: list[IndexArray] = []
        place = 0
        while place < len(pages):
            block = self.child(parent, salt, pages[place])
            if not block:
                break
            run = self._run(block, len(pages) - place)
            wrong = self.tokens.take(run, axis=0) != pages[place : place + run.size]
            if np.count_nonzero(wrong):
                run = run[: wrong.any(axis=1).argmax()]
            found.append(run)
            place += run.size
            parent = run.item(-1)
        return found[0] if len(found) == 1 else np.concatenate((NO_IDS, *found))

    def child(self, parent: int, salt: int, page: Int32Array) -> int:
        """Return the published block behind a parent, or a salt's root, with this page; 0 if there is none. O(B)."""
        if not parent:
            return self._roots.get((salt, page.tobytes()), 0)
        successor = self._successors.item(parent)
        if successor and not np.count_nonzero(self.tokens[successor] != page):
            return successor
        return self._branches.get((parent, page.tobytes()), 0) if self._forks.item(parent) else 0

    def childless(self, parents: IndexArray) -> NDArray[np.bool_]:
        """Return which published blocks have no published child. O(parents)."""
        leaves: NDArray[np.bool_] = (self._successors.take(parents) == 0) & (self._forks.take(parents) == 0)
        return leaves

    def _run(self, block: int, limit: int) -> IndexArray:
        """Return a block and its successors, at most `limit` blocks."""
        followed: list[int] = []
        guess = self._runs.get(block)
        if guess is None:
            followed.append(block)
        else:
            guess = guess[:limit]
            parted = (self._successors.take(guess[:-1]) != guess[1:]).nonzero()[0]
            if parted.size:  # some are evicted, and perhaps others stand there now
                guess = guess[: parted.item(0) + 1]
            block = guess.item(-1)
            limit -= guess.size
        successor_of = self._successors.item
        while len(followed) < limit:
            block = successor_of(block)
            if not block:
                break
            followed.append(block)
        if guess is None:
            return np.array(followed, np.intp)
        return np.concatenate((guess, followed)) if followed else guess

    # ---- changes ----------------------------------------------------------------------------------------------------

    def store(self, ids: IndexArray, tokens: Int32Array) -> None:
        """Write the tokens of blocks that were taken, one behind the other; the last one may be partly filled."""
        full = tokens.size // self.block_size
        end = full * self.block_size
        if full:
            self._pages[ids[:full]] = _as_pages(tokens[:end].reshape(full, self.block_size))
        if end < tokens.size:
            self.tokens[ids.item(full), : tokens.size - end] = tokens[end:]

    def tell(self, ids: IndexArray, offsets: Int64Array, tokens: Int32Array) -> None:
        """Write one token each to an offset in these blocks. What is published stays as it is (R-COW-4). O(ids)."""
        fixed = self.published[ids]
        if np.count_nonzero(fixed):
            ids, offsets, tokens = ids[~fixed], offsets[~fixed], tokens[~fixed]
        self.tokens.reshape(-1)[ids * self.block_size + offsets] = tokens  # at half the cost of two indices

    def insert_chain(self, ids: IndexArray, parent: int, salt: int) -> None:
        """Publish blocks one behind the other, whose tokens are there, under keys that nobody has. O(ids)."""
        depth = self.depths.item(parent) + 1 if parent else 0
        head, rest = ids.item(0), ids[1:]
        self.published[ids] = True
        self.depths[ids] = np.arange(depth, depth + ids.size)
        self.parents[head] = parent
        if rest.size:
            self.parents[rest] = ids[:-1]
            self._successors[ids[:-1]] = rest
            self._runs[head] = ids
            self._heads[head] = True
        if not parent:
            self.salts[head] = salt
            self._roots[salt, self.tokens[head].tobytes()] = head
        elif self._successors.item(parent):
            self._branches[parent, self.tokens[head].tobytes()] = head
            self._forks[parent] += 1
        else:
            self._successors[parent] = head
        if self.events is not None:
            self.events.stored(ids, self.parents[ids], salt, self.tokens[ids])

    def insert_leaves(self, ids: IndexArray, parents: IndexArray) -> None:
        """Publish blocks, each behind another published block that has no child yet. O(ids)."""
        self.published[ids] = True
        self.depths[ids] = self.depths[parents] + 1
        self.parents[ids] = parents
        self._successors[parents] = ids
        if self.events is not None:
            self.events.stored(ids, parents, 0, self.tokens[ids])  # the salt counts for roots alone

    def remove(self, ids: IndexArray) -> None:
        """Let published blocks go, children no later than their parents. O(ids)."""
        self.published[ids] = False
        parents = self.parents[ids]
        following = self._successors[parents] == ids
        self._successors[parents[following]] = 0
        branched = ~following
        if np.count_nonzero(branched):
            for block, parent in zip(ids[branched].tolist(), parents[branched].tolist(), strict=True):
                page = self.tokens[block].tobytes()
                if parent:
                    del self._branches[parent, page]
                    self._forks[parent] -= 1
                else:
                    del self._roots[self.salts.item(block), page]
        heads = ids[self._heads[ids]]
        if heads.size:
            self._heads[heads] = False
            for head in heads.tolist():
                del self._runs[head]
        if self.events is not None:
            self.events.removed(ids)

    def clear(self) -> None:
        """Let all published blocks go. O(blocks)."""
        for field in (self.published, self._successors, self._forks, self._heads):
            field.fill(0)
        for table in (self._roots, self._branches, self._runs):
            table.clear()
        if self.events is not None:
            self.events.cleared()

    def published_ids(self) -> IndexArray:
        """Return all published blocks, in order of id. O(blocks)."""
        return self.published.nonzero()[0]

    def entries(self) -> int:
        """Return how many blocks can be found. O(blocks)."""
        return int(np.count_nonzero(self._successors)) + len(self._roots) + len(self._branches)

    def clone(self) -> Self:
        """Return an independent copy, which notes no events."""
        twin = object.__new__(type(self))
        twin.block_size, twin.events = self.block_size, None
        twin.tokens, twin.published, twin.salts = self.tokens.copy(), self.published.copy(), self.salts.copy()
        twin._pages = _as_pages(twin.tokens)
        twin.parents, twin.depths = self.parents.copy(), self.depths.copy()
        twin._successors, twin._forks, twin._heads = self._successors.copy(), self._forks.copy(), self._heads.copy()
        twin._roots, twin._branches, twin._runs = self._roots.copy(), self._branches.copy(), self._runs.copy()
        return twin


def _as_pages(tokens: Int32Array) -> NDArray[np.void]:
    """Return rows of tokens as one value each, a view: they are written twice as fast."""
    pages: NDArray[np.void] = tokens.view(np.dtype((np.void, tokens.itemsize * tokens.shape[1])))[:, 0]
    return pages

"""Which idle block is evicted next: the least recently used leaf of the lowest retention class.

A published block that nobody holds and no launch may touch is *evictable*. Four classes say how dear it is; a block is
as dear as its dearest published descendant (its *effective* class), so that what stays can be reached from the root
(R-EVICT-2). Within a class the block that became evictable first goes first.

A queue a class is enough, with no search for leaves: whoever holds a block holds its parent, and a row's launches
become the fences of all its blocks, so a child never becomes evictable after its parent; where a row was merged above
it, what is published hands its fences up (`merging.cover_chain`). Of those that become so in one operation the deepest
come first. So whatever is at the head of the lowest queue is a leaf. When it goes, its parent's effective class may
fall; all lower queues are empty then, so the parent goes to the end of one of those.

A queue is a log: blocks are written at its end, and an entry holds as long as its block says that it stands there.
So to take a hit's blocks out of the middle is one write for all of them, and dead entries are skipped when they come to
the head, or dropped when the log is full, at most once each. Cost: O(1) a block, in arrays a batch wide; 8 bytes a
block, 16 an entry, and 18 a block for classes. Considered: an `OrderedDict` a class (a call a block, 100 ns each, in
both directions); linked arrays (a splice for every run of neighbours); a heap by time of use (logarithmic, and its
entries go stale all the same). Source of leaf-first eviction by recency: RadixAttention (Zheng et al., "SGLang", 2024);
of retention priorities: TensorRT-LLM.
"""

from typing import Self

import numpy as np
from numpy.typing import NDArray

from .arrays import NO_IDS, IndexArray, grown

CLASSES = 4
FIRST_CAPACITY = 8
NOWHERE = 0  # in `_place`; entries of a log are counted from 1


class _Log:
    """The blocks of one class in order, with entries that no longer hold among them."""

    __slots__ = ("end", "entries", "head", "size")

    def __init__(self) -> None:
        self.entries = np.zeros(FIRST_CAPACITY, np.intp)
        self.head = 1  # nothing before this entry holds
        self.end = 1
        self.size = 0  # entries that hold

    def clone(self) -> Self:
        """Return an independent copy."""
        twin = object.__new__(type(self))
        twin.entries, twin.head, twin.end, twin.size = self.entries.copy(), self.head, self.end, self.size
        return twin


class Retention:
    """The evictable blocks in order of eviction, and the classes of all published ones.

    Queue: `append`, `remove`, `pop`, `holds`, `order`, `queues`. Classes: `publish`, `clear`, `own`, `effective`,
    `heirs`.
    """

    __slots__ = ("_classless", "_heirs", "_logs", "_parents", "_place", "effective", "own", "size")

    def __init__(self, parents: IndexArray) -> None:
        blocks = parents.size
        self.own = np.zeros(blocks, np.int8)  # the class it was published with
        self.effective = np.zeros(blocks, np.int8)  # the highest among it and its published descendants
        self._parents = parents  # the prefix index's
        self._heirs = np.zeros((blocks, CLASSES), np.int32)  # published children by effective class; 0 isn't counted
        self._place = np.zeros(blocks, np.int64)  # CLASSES * entry + class, or NOWHERE
        self._reset()

    def _reset(self) -> None:
        self.size = 0  # evictable blocks
        self._logs = [_Log() for _ in range(CLASSES)]
        self._classless = True  # no block was published with another class than 0

    # ---- the queues -------------------------------------------------------------------------------------------------

    def append(self, ids: IndexArray) -> None:
        """Let published blocks be evictable from now on; children stand before their parents. O(ids)."""
        self.size += ids.size
        if self._classless:
            self._append(0, ids)
            return
        levels = self.effective[ids]
        for level in range(CLASSES):
            chosen = ids[levels == level]
            if chosen.size:
                self._append(level, chosen)

    def remove(self, ids: IndexArray) -> None:
        """Let evictable blocks be evictable no more. O(ids)."""
        self.size -= ids.size
        self._place[ids] = NOWHERE
        if self._classless:
            self._logs[0].size -= ids.size
        else:
            for level, count in enumerate(np.bincount(self.effective[ids], minlength=CLASSES).tolist()):
                self._logs[level].size -= count

    def holds(self, ids: IndexArray) -> NDArray[np.bool_]:
        """Return which blocks are evictable. O(ids)."""
        found: NDArray[np.bool_] = self._place[ids] != NOWHERE
        return found

    def pop(self, count: int) -> IndexArray:
        """Take out the `count` blocks to be evicted next, of at least so many; return them in order. O(count)."""
        popped: list[IndexArray] = []
        left = count
        while left:
            level = next(level for level, log in enumerate(self._logs) if log.size)
            several = min(left, self._logs[0].size) if level == 0 else 1  # above 0, parents may fall in between
            popped.append(self._pop(level, several))
            left -= several
            if level:
                self._forget(popped[-1].item(), level)
        self.size -= count
        return popped[0] if len(popped) == 1 else np.concatenate((NO_IDS, *popped))

    def order(self) -> list[int]:
        """Return all evictable blocks, class by class, next to be evicted first. O(entries)."""
        return [block for queue in self.queues() for block in queue]

    def queues(self) -> list[list[int]]:
        """Return the evictable blocks of each effective class, next to be evicted first. O(entries)."""
        return [self._holding(level).tolist() if log.size else [] for level, log in enumerate(self._logs)]

    def _append(self, level: int, ids: IndexArray) -> None:
        log = self._logs[level]
        if log.end + ids.size > log.entries.size:
            self._compact(level, ids.size)
        end = log.end + ids.size
        log.entries[log.end : end] = ids
        self._place[ids] = np.arange(CLASSES * log.end + level, CLASSES * end + level, CLASSES)
        log.end = end
        log.size += ids.size

    def _pop(self, level: int, count: int) -> IndexArray:
        """Take out the first `count` blocks of a queue that has so many."""
        log = self._logs[level]
        found: list[IndexArray] = []
        left = count
        while left:
            end = min(log.head + 2 * left + 16, log.end)
            window = log.entries[log.head : end]
            holding = (
                self._place[window] == np.arange(CLASSES * log.head + level, CLASSES * end + level, CLASSES)
            ).nonzero()[0]
            if holding.size > left:
                end = log.head + holding.item(left)
                holding = holding[:left]
            found.append(window[holding])
            left -= holding.size
            log.head = end
        ids = found[0] if len(found) == 1 else np.concatenate((NO_IDS, *found))
        self._place[ids] = NOWHERE
        log.size -= count
        return ids

    def _holding(self, level: int) -> IndexArray:
        """Return the entries of a queue that hold, in order."""
        log = self._logs[level]
        window = log.entries[log.head : log.end]
        at = np.arange(CLASSES * log.head + level, CLASSES * log.end + level, CLASSES)
        holding: IndexArray = window[self._place[window] == at]
        return holding

    def _compact(self, level: int, more: int) -> None:
        """Drop what doesn't hold; have room for as much again as does. O(entries), once in as many appends."""
        log = self._logs[level]
        holding = self._holding(level)
        end = 1 + holding.size
        if 2 * (end + more) > log.entries.size:
            log.entries = grown(log.entries[:0], 2 * (end + more))
        log.entries[1:end] = holding
        self._place[holding] = np.arange(CLASSES + level, CLASSES * end + level, CLASSES)
        log.head, log.end = 1, end

    # ---- classes ----------------------------------------------------------------------------------------------------

    def publish(self, ids: IndexArray, retention: int) -> None:
        """Give newly published leaves, or chains of them, their class; their parents become as dear. O(ids + raised).

        Nobody but holders publishes, so all parents are held, and stand in no queue.
        """
        if self._classless and not retention:
            return
        self._classless = False
        self.own[ids] = retention
        self.effective[ids] = retention
        self._heirs[ids] = 0
        if not retention:
            return
        parents = self._parents[ids]
        np.add.at(self._heirs[:, retention], parents, 1)
        for parent in parents[self.effective[parents] < retention].tolist():
            self._raise(parent, retention)

    def heirs(self, block: int) -> list[int]:
        """Return how many published children of each effective class above 0 a block has."""
        counts: list[int] = self._heirs[block, 1:].tolist()
        return counts

    def clear(self) -> None:
        """Forget everything: nothing is published any more. O(blocks)."""
        for field in (self.own, self.effective, self._heirs, self._place):
            field.fill(0)
        self._reset()

    def _raise(self, block: int, level: int) -> None:
        """Let a block and its ancestors be at least of this class."""
        while block:
            before = self.effective.item(block)
            if before >= level:
                return
            self.effective[block] = level
            block = self._parents.item(block)
            self._heirs[block, before] -= before > 0
            self._heirs[block, level] += 1

    def _forget(self, block: int, level: int) -> None:
        """Let the ancestors of a leaf that was evicted be no dearer than they are without it."""
        parent = self._parents.item(block)
        self._heirs[parent, level] -= 1
        while parent:
            before = self.effective.item(parent)
            heirs = self._heirs[parent].nonzero()[0]
            after = max(self.own.item(parent), int(heirs[-1]) if heirs.size else 0)
            if after == before:
                return
            self.effective[parent] = after
            if self._place.item(parent) != NOWHERE:
                self._logs[before].size -= 1
                self._append(after, np.array([parent]))
            parent = self._parents.item(parent)
            self._heirs[parent, before] -= 1
            self._heirs[parent, after] += after > 0

    def clone(self, parents: IndexArray) -> Self:
        """Return an independent copy over another index's parents."""
        twin = object.__new__(type(self))
        twin.size, twin.own, twin.effective = self.size, self.own.copy(), self.effective.copy()
        twin._parents, twin._heirs, twin._place = parents, self._heirs.copy(), self._place.copy()
        twin._logs, twin._classless = [log.clone() for log in self._logs], self._classless
        return twin

"""Blocks, as the audit keeps them: held by how many, waiting for what, or evictable; free otherwise.

The hard part is when a block may become free and when it must, since a manager chooses between the two. The spec
answers by looking at everything in flight; here each answer costs O(1) a block that is let go:

- *May*: once nothing can touch it. A sequence's launches each read what the one before wrote, so they are ordered, and
  if its newest has left, all have. So a holder that leaves needs to leave one launch behind: its newest, if that
  reaches the block at all. A block that several holders have left keeps the newest of each stream (two on one stream
  are ordered): `Blocks.left_behind`. A launch that takes a planned copy along is left behind at the copy's source in
  the same way. And a planned copy that no launch has taken along keeps its source, whatever has left: `Blocks.readers`.
- *Must*: once all launches have left that were submitted when its last edge was dropped. Blocks that wait are kept in
  order of that moment, so those that are due stand at the front; each is looked at once. A source that a planned copy
  keeps is due again when the copy is launched (then with that launch) or dropped. A published block does not leave its
  wait before its children: one that is due and leads to a block that waits rightly is looked at again each time
  (`Blocks.kept_for_children`; there is hardly ever one).

Memory follows the blocks in use, not the size of the pool in the header, which may be anything.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable

from .audit_launches import Clock, Launches, merge
from .audit_prefixes import Prefixes
from .refusals import Broken
from .state import NULL, Block, LaunchId


class Wait:
    """Blocks that lost their last holder at one moment, and what they wait for. Never changed once made."""

    __slots__ = ("blocks", "submitted", "user")

    def __init__(self, blocks: Collection[Block], submitted: LaunchId, user: LaunchId) -> None:
        self.blocks = blocks
        self.submitted = submitted  # due once all launches up to this one have left
        self.user = user  # the last holder's newest launch: safe once it has left


class Blocks:
    """Who holds what, what waits, what is evictable. A block of which none is true is free."""

    def __init__(self, count: int, launches: Launches, prefixes: Prefixes) -> None:
        self.count = count
        self.launches = launches
        self.prefixes = prefixes
        self.holders: dict[Block, int] = {}  # how many sequences hold it
        self.shared = 0  # edges beyond the first of each block
        self.quarantine: dict[Block, Wait] = {}
        self.readers: dict[Block, int] = {}  # how many planned copies will read it
        self.left_behind: dict[Block, Clock] = {}  # launches of former holders, and of copies
        self.kept_for_children: dict[Block, Wait] = {}  # due, and leading to what waits
        self._due: deque[Wait] = deque()  # in order of `submitted`

    @property
    def free(self) -> int:
        """How many blocks are free."""
        return self.count - len(self.holders) - len(self.quarantine) - len(self.prefixes.evictable)

    def take(self, blocks: Collection[Block]) -> None:
        """Give blocks one holder each: free ones, evicted ones once none is free. O(blocks), x log for evicted ones."""
        if not blocks:
            return
        if len(set(blocks)) < len(blocks):
            twice = Counter(blocks).most_common(1)[0][0]
            raise Broken("R-OWN-1", f"block {twice} was taken twice at once")
        if min(blocks) <= NULL or max(blocks) > self.count:
            stranger = next(block for block in blocks if not NULL < block <= self.count)
            raise Broken("R-OWN-1", f"block {stranger} was taken, and usable are 1 to {self.count}")
        if not self.quarantine.keys().isdisjoint(blocks):
            block = next(block for block in blocks if block in self.quarantine)
            raise Broken("R-LIFE-5", f"block {block} was taken out of quarantine: {self.why(block)}")
        if not self.holders.keys().isdisjoint(blocks):
            block = next(block for block in blocks if block in self.holders)
            raise Broken("R-OWN-1", f"block {block} was taken and is not free: {self.why(block)}")
        if self.prefixes.evictable:
            self._take_evicted(blocks)
        self.holders.update(dict.fromkeys(blocks, 1))

    def _take_evicted(self, blocks: Iterable[Block]) -> None:
        """Evict those that are published, each in its turn."""
        free, prefixes = self.free, self.prefixes
        for block in blocks:
            if block not in prefixes.evictable:
                free -= 1
            elif free:
                raise Broken("R-EVICT-1", f"block {block} was evicted while {free} blocks are free")
            elif prefixes.rank(block) != prefixes.best():
                raise Broken("R-EVICT-2", f"block {block} was evicted: it has children, or others are of lower rank")
            else:
                prefixes.evict(block)

    def hold(self, block: Block) -> None:
        """Give a published block one more holder, or its first: evictable no more, it waits for nothing. O(1)."""
        if block in self.holders:
            self.holders[block] += 1
            self.shared += 1
            return
        self.holders[block] = 1
        self.prefixes.evictable.pop(block, None)
        if wait := self.quarantine.pop(block, None):
            self._leave_behind(block, wait.user)

    def share(self, row: Iterable[Block]) -> None:
        """Give each block of a row one more holder. O(row)."""
        for block in row:
            self.holders[block] += 1
            self.shared += 1

    def plan_copy(self, source: Block, user: LaunchId) -> None:
        """Turn one of several holders of a block into a reader of it."""
        self.holders[source] -= 1
        self.shared -= 1
        self.readers[source] = self.readers.get(source, 0) + 1
        self._leave_behind(source, user)

    def launch_copy(self, source: Block, launch: LaunchId) -> None:
        """Let a launch take over what a planned copy reads: from here on the launch keeps the source."""
        self._forget_reader(source)
        self._leave_behind(source, launch)
        if source in self.quarantine:
            self._wait([source], launch, self.quarantine[source].user)

    def drop_copy(self, source: Block) -> None:
        """Forget a planned copy whose sequence leaves. A source that would have been due by now is due at once."""
        self._forget_reader(source)
        wait = self.quarantine.get(source)
        if wait and wait.submitted < self.launches.oldest:
            self.quarantine[source] = again = Wait([source], wait.submitted, wait.user)
            self._due.appendleft(again)

    def drop(self, touched: Iterable[Block], untouched: Collection[Block], user: LaunchId) -> None:
        """Drop a holder's edges. `touched` are the blocks that its launches, newest `user`, reach. O(blocks)."""
        holders, alone = self.holders, []
        for block in touched:
            if holders[block] == 1:
                del holders[block]
                alone.append(block)
            else:
                holders[block] -= 1
                self.shared -= 1
                self._leave_behind(block, user)
        if alone:
            self._wait(alone, self.launches.issued, user)
        if untouched:
            for block in untouched:
                del holders[block]
            wait = Wait(untouched, 0, 0)
            self.quarantine.update(dict.fromkeys(untouched, wait))
            self._due.appendleft(wait)

    def discharge(self, freed: Iterable[Block]) -> None:
        """Let blocks out of quarantine: none too early, and all that are due. O(freed + what has become due)."""
        for block in freed:
            if block not in self.quarantine:
                raise Broken("R-OWN-3", f"block {block} became free and was not in quarantine: {self.why(block)}")
            if self._touched(block):
                raise Broken("R-LIFE-1", f"block {block} became free too early: {self.why(block)}")
            del self.quarantine[block]
            self.left_behind.pop(block, None)
        oldest = self.launches.oldest
        while self._due and self._due[0].submitted < oldest:
            wait = self._due.popleft()
            late = [b for b in wait.blocks if self.quarantine.get(b) is wait and b not in self.readers]
            if late and self.prefixes.nodes:
                self.kept_for_children |= {b: wait for b in late if self._leads_to_touched(b)}
                late = [b for b in late if b not in self.kept_for_children]
            if late:
                raise Broken("R-LIFE-4", f"blocks {late[:8]} were due and did not become free: nothing keeps them")
        if self.kept_for_children:
            self._look_again()
        if self.prefixes.nodes:
            self._let_evict([block for block in freed if block in self.prefixes.nodes])

    def _leads_to_touched(self, block: Block) -> bool:
        """Whether a published block comes before one that waits and that device work may touch. O(what follows it)."""
        children = self.prefixes.nodes[block].children if block in self.prefixes.nodes else ()
        waiting = [child for child in children if child in self.quarantine]
        return any(self._touched(child) or self._leads_to_touched(child) for child in waiting)

    def _look_again(self) -> None:
        """Look again at what was kept for its children: it must be still, or have ended its wait."""
        for block, wait in list(self.kept_for_children.items()):
            if self.quarantine.get(block) is not wait or block in self.readers:
                del self.kept_for_children[block]
            elif not self._leads_to_touched(block):
                raise Broken("R-LIFE-4", f"block {block} was due with its children and did not become evictable")

    def _let_evict(self, blocks: Collection[Block]) -> None:
        """Let published blocks that have ended their wait be evictable: none before its children."""
        if not blocks:
            return
        for block in blocks:
            waiting = self.prefixes.nodes[block].children & self.quarantine.keys()
            if waiting:
                raise Broken("R-EVICT-2", f"block {block} became evictable before its children {sorted(waiting)}")
        self.prefixes.let_evict(blocks)

    def clear(self) -> None:
        """Forget what is published: what was evictable is due at once."""
        idle = self.prefixes.clear()
        if idle:
            wait = Wait(idle, 0, 0)
            self.quarantine.update(dict.fromkeys(idle, wait))
            self._due.appendleft(wait)
        for block, kept in self.kept_for_children.items():
            self.quarantine[block] = again = Wait([block], kept.submitted, kept.user)
            self._due.appendleft(again)
        self.kept_for_children.clear()

    def clone(self, launches: Launches) -> "Blocks":
        """Return an independent copy beside a copy of the launches."""
        twin = object.__new__(Blocks)
        twin.count, twin.launches, twin.prefixes = self.count, launches, self.prefixes.clone()
        twin.kept_for_children = self.kept_for_children.copy()
        twin.holders, twin.shared, twin.quarantine = self.holders.copy(), self.shared, self.quarantine.copy()
        twin.readers, twin._due = self.readers.copy(), self._due.copy()
        twin.left_behind = {block: clock.copy() for block, clock in self.left_behind.items()}
        return twin

    def _touched(self, block: Block) -> bool:
        """Whether a planned copy or a launch in flight may touch a block without holder."""
        flights = self.launches.in_flight
        if block in self.readers or self.quarantine[block].user in flights:
            return True
        return block in self.left_behind and any(launch in flights for launch in self.left_behind[block].values())

    def _leave_behind(self, block: Block, user: LaunchId) -> None:
        """Note that a launch, if in flight, touches a block which its sequence does not hold any more."""
        flight = self.launches.in_flight.get(user)
        if flight:
            merge(self.left_behind.setdefault(block, {}), {flight.stream: user})

    def _wait(self, blocks: Collection[Block], submitted: LaunchId, user: LaunchId) -> None:
        wait = Wait(blocks, submitted, user)
        self.quarantine.update(dict.fromkeys(blocks, wait))
        self._due.append(wait)

    def _forget_reader(self, source: Block) -> None:
        self.readers[source] -= 1
        if not self.readers[source]:
            del self.readers[source]

    def why(self, block: Block) -> str:
        """Say what state a block is in, and what keeps it there."""
        if block in self.holders:
            return f"it is held (by {self.holders[block]})"
        if block in self.prefixes.evictable:
            return "it is evictable"
        if block not in self.quarantine:
            return "it is free" if NULL < block <= self.count else f"usable are 1 to {self.count}"
        users = {self.quarantine[block].user, *self.left_behind.get(block, {}).values()}
        busy = sorted(users & self.launches.in_flight.keys())
        if busy:
            return f"launches {busy} in flight touch it"
        return "a planned copy reads it" if block in self.readers else "nothing keeps it, and nothing said it was free"

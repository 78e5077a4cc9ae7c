"""Blocks given and taken back: which may be taken, and when one that was let go may be taken again.

A block that somebody holds is nobody's to take. When its last holder leaves, it waits (`let_go`) until no device work
may touch it. Then (`discharge`) it is *free*, or, if it is published, *evictable*: still to be found, and to be taken
when no block is free (`Supply`). Whoever finds it first holds it again (`hold`).

Eviction keeps the index reachable: what is taken is a *leaf*, a block without published child, since a chain is looked
up from its first block. A block counts for as much as the most precious that it leads to, so of the leaves one of the
lowest retention class goes first; within a class the one that has been evictable for longest. A parent does not leave
its wait before its children: device work that reads them reads it as well, unless their row was merged above them
since. So whatever is evictable can be evicted, leaf by leaf, and what is available is a plain count: free + evictable.

Considered: recency of the last hit (a second clock, equal to this one wherever hits hold); evicting a whole subtree
(more than is needed).

Sources: radix-tree prefix caching with leaf-first LRU eviction, Zheng et al., "SGLang: Efficient Execution of
Structured Language Model Programs" (2024); deferred reuse behind completion, Fraser, "Practical lock-freedom" (2004).
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from .outcome import Outcome, Result
from .refusals import Broken, Reason, refuse_if
from .state import Block, Key, LaunchId, Published, State, above, held, leads_to, touched


class Supply:
    """Blocks to take: free ones first, evicted ones then; the implementation's choice, or the lowest ids.

    Need and availability are found by taking, so they cannot disagree with the allocation (R-CAP-1). Without a choice a
    block costs a look at all that are free: the spec is for small pools.
    """

    def __init__(self, state: State, choice: Outcome | None) -> None:
        self.block_size = state.config.block_size
        self._state = state
        self._free = set(state.free)
        self._evictable, self._prefixes = dict(state.evictable), dict(state.prefixes)
        self._chosen = None if choice is None else iter(choice.blocks)
        self._taken: list[Block] = []

    def take(self) -> Block:
        """Take a block, an evicted one if none is free. Refused: NoSpace."""
        refuse_if(not self._free and not self._evictable, Reason.NO_SPACE)
        allowed = self._free or victims(self._prefixes, self._evictable, self.block_size)
        block = min(allowed) if self._chosen is None else self._offered(self._chosen)
        if block not in allowed:
            raise self._not_allowed(block)
        self._free.discard(block)
        if block in self._evictable:
            del self._evictable[block]
            self._prefixes = {key: entry for key, entry in self._prefixes.items() if entry.block != block}
        self._taken.append(block)
        return block

    def taken(self) -> tuple[Block, ...]:
        """Return what was taken. The implementation must have taken as much."""
        surplus = list(self._chosen or ())
        if surplus:
            raise Broken("R-CAP-1", f"blocks {surplus} were taken and not needed")
        return tuple(self._taken)

    def left(self) -> dict[str, Any]:
        """Return the fields of a state that say what is left."""
        return {"free": frozenset(self._free), "evictable": self._evictable, "prefixes": self._prefixes}

    def _offered(self, chosen: Iterator[Block]) -> Block:
        block = next(chosen, None)
        if block is None:
            raise Broken("R-CAP-1", f"{len(self._taken)} blocks were taken and more are needed")
        return block

    def _not_allowed(self, block: Block) -> Broken:
        if block in self._state.quarantine:
            return Broken("R-LIFE-5", f"block {block} was taken while it waits for device work")
        if block not in self._evictable:
            return Broken("R-OWN-1", f"block {block} was taken and is not free")
        if self._free:
            return Broken("R-EVICT-1", f"block {block} was evicted and blocks {sorted(self._free)} are free")
        return Broken("R-EVICT-2", f"block {block} was evicted and leaves of lower rank are there, or its children")


def victims(prefixes: Mapping[Key, Published], evictable: Mapping[Block, int], size: int) -> set[Block]:
    """Return what to evict next: of the leaves those of the lowest class, of these those evictable for longest."""
    parents = {above(key, size) for key in prefixes}
    rank = {
        entry.block: (entry.retention, evictable[entry.block])
        for key, entry in prefixes.items()
        if entry.block in evictable and key not in parents
    }
    return {block for block, each in rank.items() if each == min(rank.values())}


def hold(state: State, blocks: Collection[Block]) -> State:
    """Give published blocks a holder: they are evictable no more, and wait for nothing."""
    if not blocks:
        return state
    return state._replace(
        evictable={block: since for block, since in state.evictable.items() if block not in blocks},
        quarantine={block: fence for block, fence in state.quarantine.items() if block not in blocks},
    )


def let_go(state: State, dropped: Mapping[Block, LaunchId]) -> State:
    """Let those of some blocks that nobody holds any more wait, each up to a launch."""
    kept = held(state)
    alone = {block: fence for block, fence in dropped.items() if block not in kept}
    return state._replace(quarantine={**state.quarantine, **alone})


def discharge(state: State, choice: Outcome | None) -> Result:
    """Let blocks end their wait: none that device work may touch, and at the latest when the fence has passed.

    Which ones is the implementation's choice between these bounds: a fence may stand for younger launches than those
    that truly touch a block, so an implementation may free a little late, and never early.
    """
    if not state.quarantine and not (choice and choice.freed):
        return state, Outcome()
    touching = touched(state)
    allowed = _untouched(state, touching)
    oldest = state.launches[0].id if state.launches else state.issued + 1
    due = {block for block in allowed if state.quarantine[block] < oldest}
    freed = choice.freed if choice else frozenset(allowed)
    if not freed <= state.quarantine.keys():
        wrong = sorted(freed - state.quarantine.keys())
        raise Broken("R-OWN-3", f"blocks {wrong} became free and were not in quarantine")
    if early := freed & touching:
        raise Broken("R-LIFE-1", f"blocks {sorted(early)} became free while device work may touch them")
    if not due <= freed:
        raise Broken("R-LIFE-4", f"blocks {sorted(due - freed)} are due and did not become free")
    if parents := freed & _leading_to(state, state.quarantine.keys() - freed):
        raise Broken("R-EVICT-2", f"blocks {sorted(parents)} became evictable before their children")
    quarantine = {block: fence for block, fence in state.quarantine.items() if block not in freed}
    found_again = {entry.block for entry in state.prefixes.values()} & freed
    now = 1 + max(state.evictable.values(), default=0)
    evictable = {**state.evictable, **dict.fromkeys(sorted(found_again), now)}
    return state._replace(free=state.free | freed - found_again, quarantine=quarantine, evictable=evictable), Outcome(
        freed=freed
    )


def _untouched(state: State, touching: set[Block]) -> set[Block]:
    """Return the waiting blocks that may end their wait: no device work may touch them, or a published block behind."""
    waiting = state.quarantine.keys() - touching
    return waiting - _leading_to(state, state.quarantine.keys() - waiting)


def _leading_to(state: State, blocks: Collection[Block]) -> set[Block]:
    """Return the published blocks that come before some others on their chains."""
    later = [key for key, entry in state.prefixes.items() if entry.block in blocks]
    if not later:
        return set()
    return {
        entry.block for key, entry in state.prefixes.items() for other in later if key != other and leads_to(key, other)
    }

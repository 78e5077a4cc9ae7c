"""Managers that break one rule seen from outside each, where no planted fault of ours or a stranger's does it by name.

Each is the spec's own model, right by definition, but for the one thing that its name says.
"""

from collections.abc import Collection, Sequence
from typing import Any

from pagedkv.spec.manager import Feature, Manager
from pagedkv.spec.outcome import Outcome, Rows
from pagedkv.spec.reference import Reference
from pagedkv.spec.refusals import Reason, Refused
from pagedkv.spec.state import Block, Config, Copy, Name, Tokens


class SaysNothing(Reference):
    """Sound, and it tells nothing of itself but its block tables."""

    def observe(self) -> None:  # type: ignore[override]
        return None

    def free_blocks(self) -> None:  # type: ignore[override]
        return None


class ShortTables(SaysNothing):
    """Leaves the last block out of its tables."""

    def block_table(self, name: Name) -> Sequence[Block]:
        return super().block_table(name)[:-1]


class DeafToCompletions(SaysNothing):
    """Will not hear of a completion."""

    def retire(self, launch: int) -> Outcome:  # noqa: ARG002  (the signature is the protocol's)
        raise Refused(Reason.BUSY)


class KeepsABlockBack(SaysNothing):
    """Refuses what would take its last free block."""

    def add(self, name: Name, count: int) -> Outcome:
        if len(self.state.free) <= -(-count // self.config.block_size):
            raise Refused(Reason.NO_SPACE)
        return super().add(name, count)


class HitsTheUnwritten(SaysNothing):
    """Calls the first block of every longer prompt a hit, whatever is in it."""

    def add_prompt(self, name: Name, tokens: int | Tokens, salt: int) -> Outcome:
        outcome = super().add_prompt(name, tokens, salt)
        known = 0 if isinstance(tokens, int) else len(tokens)
        return outcome._replace(hits=outcome.hits or outcome.blocks[: known > self.config.block_size])


class CopiesElsewhere(SaysNothing):
    """Asks for a copy into a block that is none of the pool."""

    def extend(self, rows: Rows) -> Outcome:
        outcome = super().extend(rows)
        return outcome._replace(copies=tuple(copy._replace(target=99) for copy in outcome.copies))


class StaleHit(SaysNothing):
    """Remembers where a prompt's first block was, and hits it there for ever."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.places: dict[tuple[Any, ...], Block] = {}

    def add_prompt(self, name: Name, tokens: int | Tokens, salt: int) -> Outcome:
        outcome = super().add_prompt(name, tokens, salt)
        if isinstance(tokens, int) or len(tokens) <= self.config.block_size:
            return outcome
        key = (tokens[: self.config.block_size], salt, self.state.weights)
        first = self.block_table(name)[0]
        hit = self.places.setdefault(key, first)
        if hit == first:
            return outcome
        self.moved = {**getattr(self, "moved", {}), name: hit}
        return outcome._replace(hits=outcome.hits or (hit,))

    def block_table(self, name: Name) -> Sequence[Block]:
        row = super().block_table(name)
        moved = getattr(self, "moved", {}).get(name)
        return row if moved is None else (moved, *row[1:])

    def clone(self) -> Any:
        twin = super().clone()
        twin.places, twin.moved = dict(self.places), dict(getattr(self, "moved", {}))
        return twin


class ClearsWhatIsInFlight(Reference):
    """Frees all that was cached when the weights change, read by a launch in flight or not."""

    def clear(self) -> Outcome:
        outcome = super().clear()
        waiting = frozenset(self.state.quarantine)
        self.state = self.state._replace(free=self.state.free | waiting, quarantine={})
        return outcome._replace(freed=outcome.freed | waiting)


class TellsThePinnedFree(Reference):
    """Takes what a pin holds for free."""

    def free_blocks(self) -> Collection[Block]:
        return self.state.free.union(*self.state.pins.values())


class CannotBeCopied(Manager):
    """Plain, right on one stream, and there is no way to copy it. `leaks` keeps a block of each sequence for good."""

    leaks = False
    not_offered = frozenset({Feature.BATCHES})

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.free = list(range(1, config.blocks + 1))
        self.tables: dict[Name, list[Block]] = {}
        self.lengths: dict[Name, int] = {}
        self.own_calls = []
        self.uncopyable = (number for number in range(3))  # a generator

    def add(self, name: Name, count: int) -> None:
        self._grow(name, count)

    def extend(self, rows: Rows) -> list[Copy]:
        ((name, count),) = rows
        self._grow(name, self.lengths[name] + count)
        return []

    def release(self, name: Name) -> None:
        assert self.own_calls is not None
        self.own_calls.append(f"free({self.tables[name]})")
        self.free += self.tables.pop(name)[self.leaks :]
        del self.lengths[name]

    def block_table(self, name: Name) -> Sequence[Block]:
        return self.tables[name]

    def _grow(self, name: Name, length: int) -> None:
        assert self.own_calls is not None
        row = self.tables.get(name, [])
        need = -(-length // self.config.block_size) - len(row)
        if need > len(self.free):
            raise Refused(Reason.NO_SPACE)
        self.own_calls.append(f"grow({name}, {length})")
        self.tables[name] = row + [self.free.pop() for _ in range(need)]
        self.lengths[name] = length


class Leaks(CannotBeCopied):
    """Loses a block with each sequence."""

    leaks = True


class TellsItsFree(Leaks):
    """Loses them, and tells which are free."""

    def free_blocks(self) -> Collection[Block]:
        return self.free


class Forgetful(CannotBeCopied):
    """Never does the same twice."""

    made = 0

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        type(self).made += 1
        if type(self).made % 2:
            self.free.reverse()


class KeepsASpare(CannotBeCopied):
    """Sound: to grow, it wants a free block even when none is needed. It can be copied."""

    not_offered = frozenset({Feature.BATCHES, Feature.EXACT_SPACE})

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        del self.uncopyable

    def extend(self, rows: Rows) -> list[Copy]:
        if not self.free:
            raise Refused(Reason.NO_SPACE)
        return super().extend(rows)


class NeverAdds(KeepsASpare):
    """Has no room for anybody."""

    def add(self, name: Name, count: int) -> None:  # noqa: ARG002  (the signature is the protocol's)
        raise Refused(Reason.NO_SPACE)


class NeverExtends(KeepsASpare):
    """Has room for prompts alone."""

    def extend(self, rows: Rows) -> list[Copy]:  # noqa: ARG002  (the signature is the protocol's)
        raise Refused(Reason.NO_SPACE)


class NeverForks(KeepsASpare):
    """Has no room for a second sequence of the same contents."""

    def fork(self, parent: Name, child: Name) -> None:  # noqa: ARG002  (the signature is the protocol's)
        raise Refused(Reason.NO_SPACE)


class NeverLaunches(KeepsASpare):
    """Is always busy."""

    def launch(self, rows: Rows, stream: int) -> None:  # noqa: ARG002  (the signature is the protocol's)
        raise Refused(Reason.BUSY)


class KeepsWhatAFailedAddTook(KeepsASpare):
    """Takes blocks one by one, and gives none back where there are too few."""

    def add(self, name: Name, count: int) -> None:
        if -(-count // self.config.block_size) > len(self.free):
            self.free.clear()
        super().add(name, count)


class KeepsWhatAFailedExtensionTook(KeepsASpare):
    """The same, where a sequence grows: what lives goes on, and in the end the pool is smaller."""

    def extend(self, rows: Rows) -> list[Copy]:
        ((name, count),) = rows
        if -(-(self.lengths[name] + count) // self.config.block_size) - len(self.tables[name]) > len(self.free):
            self.free.clear()
        return super().extend(rows)

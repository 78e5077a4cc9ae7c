"""Managers as no test author would hope to meet them: they raise, exit, hang, die, or answer nonsense.

Each is the spec's own model, right by definition, but for the one thing that its name says; so that what a driver
reports is that thing. `pagedkv fuzz --target hostile_managers:Raises` runs one by hand (from this folder).
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
from pagedkv.spec.manager import Feature, Manager
from pagedkv.spec.outcome import Outcome, Rows
from pagedkv.spec.reference import Reference
from pagedkv.spec.refusals import Broken, Reason, Refused
from pagedkv.spec.requests import Limits
from pagedkv.spec.state import Config, Copy, Name

from foreign_scheduler_adapter import ForeignEngine

MARKS = "PAGEDKV_TEST_MARKS"  # the folder where a process that is driving a manager leaves a file named by its id

NOT_CALLABLE = 5


def not_a_manager(config: Config) -> object:
    return config


def a_scheduler(config: Config, limits: Limits) -> object:
    return ForeignEngine(config, limits)


def exits_when_made(_config: Config) -> Manager:
    sys.exit(0)


lambda_target: Callable[[Config], Manager] = lambda config: Reference(config)  # noqa: E731, PLW0108  (cannot be pickled)


class RaisesWhenMade(Reference):
    """It cannot be made."""

    def __init__(self, config: Config) -> None:
        raise ValueError(f"no\nway with {config.blocks} [/red] blocks")


class SomeSizesAlone(Reference):
    """It cannot be made with every block size."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if config.block_size == 3:
            raise ValueError("three is no size")


class OddStreams(Reference):
    """It says nonsense of its streams."""

    streams_offered: Any = None


class OddFirstBlock(Reference):
    """It says nonsense of its block ids."""

    first_block: Any = "a"


class NotOfferedInText(Reference):
    """It says in a word what it does not offer."""

    not_offered: Any = "batches"


class NotOfferedByValue(Reference):
    """It says in words what it does not offer."""

    not_offered: Any = ("several tokens",)


class NotOfferedInAList(Reference):
    """It says in a list what it does not offer, which is as good as a set."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.not_offered: Any = [Feature.BATCHES]


class HalfWritten(Manager):
    """It has no end, and shows nothing."""

    def add(self, name: Name, count: int) -> None: ...

    def extend(self, rows: Rows) -> None: ...


class BlackBox(Reference):
    """Sound, and it shows nothing of itself."""

    def observe(self) -> None:  # type: ignore[override]
        return None


class OneRowAlone(BlackBox):
    """It takes one row at a time, and does not say so."""

    def extend(self, rows: Rows) -> Outcome:
        ((name, count),) = rows
        return super().extend(((name, count),))


class OneNameAlone(BlackBox):
    """It loses the second row of a batch."""

    def extend(self, rows: Rows) -> Outcome:
        if len(rows) > 1:
            raise KeyError(2)
        return super().extend(rows)


class OneTokenAlone(BlackBox):
    """It takes one token at a time, and does not say so."""

    def extend(self, rows: Rows) -> Outcome:
        assert {count for _, count in rows} == {1}
        return super().extend(rows)


class Raises(Reference):
    """It raises what would spoil a terminal."""

    def fork(self, parent: Name, child: Name) -> Outcome:
        raise RuntimeError(f"boom\n\x1b[2J [/x] {parent} {child}")


class RaisesTheUnsayable(Reference):
    """It raises what raises when it is said."""

    def fork(self, parent: Name, child: Name) -> Outcome:  # noqa: ARG002  (the signature is the protocol's)
        class UnsayableError(Exception):
            def __str__(self) -> str:
                raise RuntimeError

        raise UnsayableError


class RaisesAVerdict(Reference):
    """It raises a verdict of its own, named like a file elsewhere."""

    def fork(self, parent: Name, child: Name) -> Outcome:  # noqa: ARG002  (the signature is the protocol's)
        raise Broken("../R-DATA", "a verdict of its own")


class RaisesAtAnUnknownLaunch(Reference):
    """It raises at the completion of what was never launched."""

    def retire(self, launch: int) -> Outcome:
        if launch > self.state.issued:
            raise KeyError(launch)
        return super().retire(launch)


class Exits(Reference):
    """It ends the program, as if all were well."""

    def extend(self, rows: Rows) -> Outcome:  # noqa: ARG002  (the signature is the protocol's)
        sys.exit(0)


class Dies(Reference):
    """It ends its process without a word."""

    def extend(self, rows: Rows) -> Outcome:  # noqa: ARG002  (the signature is the protocol's)
        os._exit(3)


class Hangs(Reference):
    """It never comes back, and takes an interruption for one of its own errors."""

    def extend(self, rows: Rows) -> Outcome:
        if MARKS in os.environ:
            (Path(os.environ[MARKS]) / str(os.getpid())).touch()
        with suppress(Exception):  # what is to get through is no `Exception`
            time.sleep(1000)
        return super().extend(rows)


class HangsForGood(Hangs):
    """It never comes back, and nothing reaches it."""

    def extend(self, rows: Rows) -> Outcome:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        return super().extend(rows)


class RefusesForNoReason(Reference):
    """It refuses with a reason that there is not."""

    def fork(self, parent: Name, child: Name) -> Outcome:  # noqa: ARG002  (the signature is the protocol's)
        raise Refused("because")  # type: ignore[arg-type]


class NeverReleases(BlackBox):
    """It keeps every sequence."""

    def release(self, name: Name) -> Outcome:  # noqa: ARG002  (the signature is the protocol's)
        raise Refused(Reason.BUSY)


class NeverRetires(BlackBox):
    """It will not hear of a completion."""

    def retire(self, launch: int) -> Outcome:  # noqa: ARG002  (the signature is the protocol's)
        raise Refused(Reason.BUSY)


class CannotBeCloned(Reference):
    """It cannot be copied."""

    def clone(self) -> Self:
        raise TypeError("cannot pickle '_thread.lock' object")


class FallsAtTheSecondRefusal(Reference):
    """One refusal does nothing; the next, of another kind, raises."""

    refusals = 0

    def fork(self, parent: Name, child: Name) -> Outcome:
        self.refusals += parent not in self.state.sequences
        return super().fork(parent, child)

    def release(self, name: Name) -> Outcome:
        if self.refusals and name not in self.state.sequences:
            raise IndexError("one too many")
        return super().release(name)

    def clone(self) -> Self:
        twin = super().clone()
        twin.refusals = self.refusals
        return twin


def answering(method: str, answer: Callable[[Any], Any]) -> type[Reference]:
    """Return the model with another answer to one method: `answer` of the right one."""

    def answers(self: Reference, *arguments: Any) -> Any:
        return answer(getattr(Reference, method)(self, *arguments))

    return type(f"Answering_{method}", (BlackBox,) if method != "observe" else (Reference,), {method: answers})


# Nonsense that contents alone bring to light, too.
add_text = answering("add", lambda _: "nonsense")
add_number = answering("add", lambda _: 5)
add_blocks_none = answering("add", lambda right: right._replace(blocks=None))
add_blocks_float = answering("add", lambda right: right._replace(blocks=tuple(0.5 + block for block in right.blocks)))
release_freed_none = answering("release", lambda right: right._replace(freed=None))
launch_after_unborn = answering("launch", lambda right: right._replace(after=[99]))
launch_after_none = answering("launch", lambda right: right._replace(after=None))
launch_id_text = answering("launch", lambda right: right._replace(launch="1"))
extend_copy_short = answering("extend", lambda _: [(1, 2)])
extend_pair = answering("extend", lambda _: (1, 2))
extend_copy_of_another = answering("extend", lambda _: [Copy(77, 1, 1, 1)])
extend_copy_too_long = answering("extend", lambda _: [Copy(0, 1, 1, 99)])
table_none = answering("block_table", lambda _: None)
table_text = answering("block_table", lambda _: "abc")
table_float = answering("block_table", lambda right: [block + 0.5 for block in right])
table_endless = answering("block_table", lambda _: range(10**9))
table_far = answering("block_table", lambda right: [block + 10**30 for block in right])
table_from_zero = answering("block_table", lambda right: [block - 1 for block in right])
table_short = answering("block_table", lambda right: right[:-1])
rows_text = answering("rows_read", lambda _: "abc")
rows_missing = answering("rows_read", lambda right: right[:-1])
# Nonsense in what it shows of itself.
observe_text = answering("observe", lambda _: "x")
observe_none_inside = answering("observe", lambda right: right._replace(sequences=None))
observe_letters = answering("observe", lambda right: right._replace(free=frozenset("abc")))
# What only an exhaustive walk asks for.
clone_none = answering("clone", lambda _: None)
free_order_none = answering("free_order", lambda _: None)
fingerprint_object = answering("fingerprint", lambda _: object())
# Not nonsense: integers of another library, in containers of another kind.
numpy_all_over = answering(
    "add", lambda right: right._replace(blocks=np.array(right.blocks, np.int32), freed=[], after=(), launch=np.int64(0))
)

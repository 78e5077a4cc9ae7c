"""How an operation says no, and how a check says wrong.

`Refused` is an answer: the guard of an operation did not hold, nothing was changed, and the reason is one of the names
in the table of operations (`README.md` beside this file). `Broken` is a verdict: something did what a rule forbids; it
carries the rule's name, so that the same word stands in the spec, in the error, in the test and in the docs.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum


class Reason(StrEnum):
    """Why an operation was refused; the sentence says what was asked and cannot be."""

    DUPLICATE = "Duplicate"  # the name is live already, or stands twice in one batch; the handle of a pin, too
    UNKNOWN = "Unknown"  # no live sequence, or no pin, has this name
    EMPTY = "Empty"  # a sequence starts with at least one token, and a pin with at least one block
    BAD_COUNT = "BadCount"  # a count below 1, or more than is planned; ids for more positions than have none
    TOO_LONG = "TooLong"  # more blocks than the whole pool has
    NO_SPACE = "NoSpace"  # not enough blocks are free or evictable now
    BUSY = "Busy"  # planned positions at a fork; the limit of launches in flight at a launch
    UNKNOWN_LAUNCH = "UnknownLaunch"  # never issued
    DRAINING = "Draining"  # no more requests are taken in
    NOT_OFFERED = "NotOffered"  # the thing under test does not offer it, so it was not asked


class Refused(Exception):  # noqa: N818  (a refusal is an answer, not an error)
    """An operation's guard did not hold; nothing was changed."""

    def __init__(self, reason: Reason, what: str = "") -> None:
        super().__init__(reason, what)
        self.reason = reason
        self.what = what

    def __str__(self) -> str:
        return f"{self.reason}: {self.what}" if self.what else str(self.reason)


def rule_of(reason: Reason) -> str:
    """Return the rule that a wrong answer breaks: R-CAP-1 where it is about space, else R-TXN-1."""
    return "R-CAP-1" if reason in (Reason.NO_SPACE, Reason.TOO_LONG) else "R-TXN-1"


def refuse_if(condition: bool, reason: Reason) -> None:  # noqa: FBT001  (reads as the sentence it is)
    """Refuse an operation whose guard does not hold."""
    if condition:
        raise Refused(reason)


def guard_batch(sequences: Mapping[int, object], rows: Sequence[tuple[int, object]]) -> None:
    """Guard a batch: each sequence once, and each of them live."""
    named = dict(rows).keys()
    refuse_if(len(named) < len(rows), Reason.DUPLICATE)
    refuse_if(not named <= sequences.keys(), Reason.UNKNOWN)


class Broken(Exception):  # noqa: N818  (a verdict on the thing under test, not an error of this program)
    """A rule does not hold. `rule` is its name, `detail` says where."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(f"{rule}: {detail}")
        self.rule = rule
        self.detail = detail

    def __reduce__(self) -> tuple[type["Broken"], tuple[str, str]]:
        return Broken, (self.rule, self.detail)

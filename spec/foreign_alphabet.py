"""The operations of a stranger's scheduler: those of any (`scheduler_alphabet`) that it must have, and `Finish`.

Requests have one sample and no priority. A prompt given as a number stands for token ids that nobody else has.
"""

from typing import Any, NamedTuple

from . import scheduler_alphabet
from .scheduler_alphabet import Cancel, Complete, Schedule, Submit


class Finish(NamedTuple):
    """Schedule and complete until all requests are gone, then serve one as long as the pool."""


Operation = Submit | Schedule | Complete | Cancel | Finish

KINDS: dict[type, str] = {
    Submit: "submit",
    Schedule: "schedule",
    Complete: "complete",
    Cancel: "abort",
    Finish: "finish",
}


def describe(operation: Operation) -> str:
    """Return an operation as a person would write it."""
    match operation:
        case Cancel(request):
            return f"abort {request}"
        case Finish():
            return "finish all, then one as long as the pool"
        case _:
            return scheduler_alphabet.describe(operation)


def to_json(operation: Operation) -> list[Any]:
    """Return an operation as JSON can hold it: its word, then its arguments."""
    return [KINDS[Finish]] if isinstance(operation, Finish) else scheduler_alphabet.to_json(operation)


def from_json(words: object) -> Operation:
    """Return the operation that `to_json` wrote; `ValueError` says what is wrong with another text."""
    if words == [KINDS[Finish]]:
        return Finish()
    operation = scheduler_alphabet.from_json(words)
    if isinstance(operation, Submit | Schedule | Complete | Cancel):
        return operation
    raise ValueError(f"{scheduler_alphabet.describe(operation)} is not asked of a stranger's scheduler")

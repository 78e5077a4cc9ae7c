"""The operations of a scheduler as data: listed, drawn, printed and replayed like those of a cache (`alphabet`).

A completion names its launch by how many launches are in flight before it: 0 is the oldest, which alone can be
completed; 1 is the next, whose turn has not come, or where there is none a launch that was never issued; -1 is the one
that left last. So an operation means the same in a trace from which others have been taken out. Its tokens are those
of the world's model (`toy_token`), and `surplus` many more or fewer where the number is to be wrong.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, get_args

from . import scheduling, serving
from .counts import counted
from .refusals import Reason
from .requests import Engine, Job, Request, RequestId, Token
from .state import LaunchId, Name
from .turn import Choices, Result


class Submit(NamedTuple):
    """Take a request in (not `alphabet.Submit`, which launches)."""

    request: Request


class Schedule(NamedTuple):
    """Plan a step and launch it."""


class Complete(NamedTuple):
    """The device has done a launch, and the host learns its tokens."""

    ahead: int = 0
    stopped: tuple[Name, ...] = ()
    surplus: int = 0


class Fail(NamedTuple):
    """The device could not do a launch."""

    ahead: int = 0


class Cancel(NamedTuple):
    """Let a request go."""

    request: RequestId


class Preempt(NamedTuple):
    """Put a request back to wait."""

    request: RequestId


class Drain(NamedTuple):
    """Take no more requests in."""


Operation = Submit | Schedule | Complete | Fail | Cancel | Preempt | Drain

KINDS: dict[type, str] = {
    Submit: "submit",
    Schedule: "schedule",
    Complete: "complete",
    Fail: "fail",
    Cancel: "cancel",
    Preempt: "preempt",
    Drain: "drain",
}
assert set(KINDS) == set(get_args(Operation))

REFUSALS: dict[str, tuple[Reason, ...]] = {
    "submit": (Reason.DUPLICATE, Reason.EMPTY, Reason.BAD_COUNT, Reason.TOO_LONG, Reason.DRAINING),
    "schedule": (),
    "complete": (Reason.UNKNOWN_LAUNCH, Reason.BUSY, Reason.BAD_COUNT),
    "fail": (Reason.UNKNOWN_LAUNCH, Reason.BUSY),
    "cancel": (Reason.UNKNOWN,),
    "preempt": (Reason.UNKNOWN, Reason.BUSY),
    "drain": (),
}
FUNCTIONS: dict[str, Callable[..., Result]] = {
    "submit": serving.submit,
    "schedule": scheduling.schedule,
    "complete": serving.complete,
    "fail": serving.fail,
    "cancel": serving.cancel,
    "preempt": serving.preempt,
    "drain": serving.drain,
}
STRANGE: Token = 7  # sampled for a sequence that lives no more


def apply(engine: Engine, operation: Operation, choices: Choices | None = None) -> Result:
    """Apply an operation to an engine: the next engine and what was decided, or `Refused`."""
    return FUNCTIONS[KINDS[type(operation)]](engine, *arguments(engine, operation), choices=choices)


def arguments(engine: Engine, operation: Operation) -> tuple[Any, ...]:
    """Return the arguments that an operation has at this moment, which an implementation is given as well."""
    match operation:
        case Complete(ahead, stopped, surplus):
            tokens = toy_tokens(engine, launch_of(engine, ahead))
            tokens = tokens[: len(tokens) + surplus] if surplus < 0 else tokens + (STRANGE,) * surplus
            return launch_of(engine, ahead), tokens, stopped
        case Fail(ahead):
            return (launch_of(engine, ahead),)
        case _:
            return tuple(operation)


def launch_of(engine: Engine, ahead: int) -> LaunchId:
    """Return the launch that a completion names."""
    return engine.cache.issued - len(engine.flights) + 1 + ahead


def toy_tokens(engine: Engine, launch: LaunchId) -> tuple[Token, ...]:
    """Return the tokens that a launch in flight samples; none of one that is not in flight."""
    takers = next((flight.takers for flight in engine.flights if flight.launch == launch), ())
    return tuple(toy_token(engine.owner(life[0]), life[0]) if engine.lives(life) else STRANGE for life in takers)


def toy_token(job: Job, name: Name) -> Token:
    """Return the next token of a sample, 0 or 1: a function of its tokens so far, and of which sample it is."""
    tokens = job.tokens(name) or job.samples[name].outputs
    return (sum(tokens) + len(tokens) + name - min(job.samples)) % 2


def describe(operation: Operation) -> str:
    """Return an operation as a person would write it."""
    match operation:
        case Submit(request):
            prompt = request.prompt
            known = counted(prompt, "token") if isinstance(prompt, int) else str(list(prompt))
            several = f", {request.samples} samples" if request.samples != 1 else ""
            rank = f", priority {request.priority}" if request.priority else ""
            salt = f", salt {request.salt}" if request.salt else ""
            outputs = counted(request.outputs, "output")
            return f"submit {request.id}: prompt {known}, {outputs}{several}{rank}{salt}"
        case Complete(ahead, stopped, surplus):
            ends = f", which ends {' '.join(map(str, stopped))}" if stopped else ""
            wrong = f", {surplus:+} tokens" if surplus else ""
            return f"complete {_PLACES.get(ahead, ahead)}{ends}{wrong}"
        case Fail(ahead):
            return f"fail {_PLACES.get(ahead, ahead)}"
        case Cancel(request) | Preempt(request):
            return f"{KINDS[type(operation)]} {request}"
        case Schedule() | Drain():
            return KINDS[type(operation)]


_PLACES = {-1: "the launch that left last", 0: "the oldest launch", 1: "the launch after the oldest"}


def simpler(operation: object) -> Iterator[Operation]:
    """Yield an operation of a scheduler with a little less in it, to shorten a trace."""
    match operation:
        case Submit(request):
            prompt, ids = request.prompt, () if isinstance(request.prompt, int) else request.prompt
            if request.prompt_length > 1:
                yield Submit(request._replace(prompt=prompt - 1 if isinstance(prompt, int) else prompt[:-1]))
            if ids:
                yield Submit(request._replace(prompt=len(ids)))
            yield from (
                Submit(request._replace(**{field: least}))
                for field, least in (("salt", 0), ("priority", 0), ("samples", 1))
                if getattr(request, field) > least
            )
            if request.outputs > 1:
                yield Submit(request._replace(outputs=request.outputs - 1))
                if not ids:
                    longer = request.prompt_length + 1
                    yield Submit(request._replace(prompt=longer, outputs=request.outputs - 1))
        case Complete(_, stopped, _) if stopped:
            yield operation._replace(stopped=stopped[1:])


def renumbered(operations: Sequence[Any]) -> list[Any]:
    """Return operations with requests numbered from 0 in the order of their submission; what is no request's stays."""
    submitted = [operation.request.id for operation in operations if isinstance(operation, Submit)]
    numbers = {id_: number for number, id_ in enumerate(dict.fromkeys(submitted))}
    new: list[Any] = []
    for operation in operations:
        match operation:
            case Submit(request):
                new.append(Submit(request._replace(id=numbers[request.id])))
            case Cancel(id_) | Preempt(id_):
                new.append(operation._replace(request=numbers.get(id_, id_)))
            case _:
                new.append(operation)
    return new


def weight(operation: object) -> int:
    """Return how much there is in an operation of a scheduler: less in a `simpler` one, and nothing in any other."""
    match operation:
        case Cancel(id_) | Preempt(id_):
            return id_
        case Submit(request):
            ids = 0 if isinstance(request.prompt, int) else len(request.prompt)
            rest = (request.id, 2 * request.outputs, request.samples, request.priority, abs(request.salt))
            return request.prompt_length + ids + sum(rest)
        case Complete(_, stopped, _):
            return len(stopped)
        case _:
            return 0


def to_json(operation: Operation) -> list[Any]:
    """Return an operation as JSON can hold it: its word, then its arguments."""
    return [KINDS[type(operation)], *operation]


def from_json(words: object) -> Operation:
    """Return the operation that `to_json` wrote; `ValueError` says what is wrong with another text."""
    by_name = {word: kind for kind, word in KINDS.items()}
    if not isinstance(words, list) or not words or words[0] not in by_name:
        raise ValueError(f"{repr(words)[:60]} is no operation of a scheduler")
    kind: Any = by_name[words[0]]
    if len(words) != 1 + len(kind._fields):
        raise ValueError(f"{words[0]} takes {' and '.join(kind._fields) or 'nothing'}")
    operation: Operation = kind(*(_read(field, word) for field, word in zip(kind._fields, words[1:], strict=True)))
    return operation


def _read(field: str, word: Any) -> Any:
    """Return an argument: a number, a list of numbers (a tuple here), or the fields of a request."""
    if field == "request" and isinstance(word, list):
        if len(word) != len(Request._fields):
            raise ValueError(f"a request has {', '.join(Request._fields)}")
        return Request(*(_read("prompt", each) for each in word))
    if isinstance(word, list) and all(type(each) is int for each in word):
        return tuple(word)
    if type(word) is not int or not -(2**31) <= word < 2**31:
        raise ValueError(f"{repr(word)[:60]} is no number")
    return word

"""What the drivers need of a stranger's scheduler, which has a cache manager inside, to judge it from outside.

To put your own under test, subclass `ForeignScheduler` and give `submit`, `schedule`, `complete` and `abort`. Then name
the class (or a function that returns an instance) to the command line:

    pagedkv fuzz --scheduler --target your_package.your_module:YourScheduler

It is called as `YourScheduler(config, limits)`. The `Config` has `blocks` (usable block ids 1..blocks; say
`first_block = 0` if yours start at 0) and `block_size`; the `Limits` have `max_tokens_per_step`, `max_running` (requests
a step), `steps_ahead` (steps that may be in flight: at most as many as your class attribute says) and `prefix_cache`.

What happens to it: requests are submitted, each with a prompt of token ids and how many outputs it wants at most.
`schedule` plans a step, which goes to a device at once: a virtual one, which executes steps in their order, on one
stream, each as late as can be. `complete` brings what a step has sampled, in the same order, and asks which requests
are finished by it. With two steps ahead the next step is scheduled before the last one is complete. `abort` comes at any
time, also between the two; the step that is in flight then goes on and completes like any other.

A `Step` has a row for each request in it: from which position on it computes, how many positions, whether the device
samples a token after the last of them, and the block table as the device is given it. Positions below `start` that were
never computed for this request are hits of the prefix cache. A request that was preempted is named in
`Step.preempted` and comes again later, from position 0 or from where its hits end, with what it has sampled by then.
Whatever you need again at `complete` goes into `Step.own`.

Tokens are given as a greedy model would: the next one is a function of all before, so equal prompts of equal salt go on
equally. A request ends when it has sampled all its outputs, or `STOP`, unless your scheduler is made to look at lengths
alone: then say `stops = False`.

What is checked, and under which name, is listed in `RULES_OUTSIDE` of `foreign_judge`. Above all: every position that a
step reads must hold the KV of the right prefix (R-DATA, or a rule of hits); a preempted request loses nothing; limits
are kept; all who fit are served to their end, in a bounded number of steps; and when all are gone, one request as long
as the pool is served, too. Whatever else is raised, or no answer within ten seconds, is reported as a crash.

What your scheduler has no notion of goes into `not_offered` and is never asked: `Feature.SALT`, `Feature.CHUNKS` (then a
step has room for the longest prompt), `Feature.CANCEL_IN_FLIGHT`. `discipline` says what protects a block that a step in
flight still reads: `STREAM_ORDER`, the default, lets a block go at once, since its next writer is a later step;
`FENCE` promises that nothing is written that a step in flight touches, and is held to it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import index
from typing import Any, NamedTuple

from .calls import call
from .manager import Discipline, Feature
from .refusals import Broken
from .requests import Limits, RequestId, Token
from .state import Block, Config, Copy, Tokens

STOP: Token = 2  # ends the request that samples it, where `stops` says so


class Row(NamedTuple):
    """A request's part in a step."""

    request: RequestId
    start: int  # the first position that is computed
    count: int  # of positions
    blocks: Sequence[Block]  # its block table; entries behind the last position that is computed are not looked at
    samples: bool  # whether this reaches its last token, so that the device samples the next


class Step(NamedTuple):
    """What goes to the device, and what became of whom."""

    rows: Sequence[Row]
    preempted: Sequence[RequestId] = ()  # by this call of `schedule`, or since the last: their blocks are given back
    copies: Sequence[Copy] = ()  # done at the head of the step: `Copy(request, source, target, extent)`
    own: Any = None  # whatever `complete` needs


class ForeignScheduler:
    """A scheduler under test, with the cache manager inside. See the module's text for what to override."""

    first_block = 1  # the lowest usable block id
    steps_ahead = 1  # how many steps may be in flight
    shares_prefixes = False  # whether it has a prefix cache; `limits.prefix_cache` says whether to use it
    stops = True  # whether a request ends with `STOP`
    tokens_kept_back = 0  # a request alone may have prompt and outputs of blocks * block_size tokens, less these
    block_sizes: Sequence[int] = (1, 2, 3, 4)  # that can be asked for
    discipline = Discipline.STREAM_ORDER
    not_offered: frozenset[Feature] = frozenset()

    def __init__(self, config: Config, limits: Limits) -> None:
        self.config = config
        self.limits = limits

    def submit(self, request: RequestId, prompt: Tokens, outputs: int, salt: int) -> None:
        """Take a request in: at least one token, at least one output, an id that was never there before.

        Requests of different salts share nothing. It fits: prompt and outputs are no more than the pool holds.
        """
        raise NotImplementedError

    def schedule(self) -> Step | None:
        """Plan a step. None, or a step without rows: nothing can be done before a step completes, or is there to do.

        It is asked only while fewer than `limits.steps_ahead` steps are in flight.
        """
        raise NotImplementedError

    def complete(self, step: Step, tokens: Mapping[RequestId, Token]) -> Iterable[RequestId]:
        """Learn what the oldest step in flight has sampled; return the requests that are finished by it.

        There is a token for each row that says `samples`, also of requests that have been aborted or preempted since.
        """
        raise NotImplementedError

    def abort(self, request: RequestId) -> None:
        """Let a live request go: it may wait, run, or have a row in a step in flight."""
        raise NotImplementedError

    # ---- what some can tell

    def rows_read(self, step: Step) -> Sequence[Sequence[Block]] | None:  # noqa: ARG002  (the signature is the protocol's)
        """Return the block tables, one a row of a step in flight, as a device that executes it now would read them.

        None, the default: the device was given copies of them with the step.
        """
        return None

    def free_blocks(self) -> int | None:
        """Return how many blocks no request holds, cached ones included; None: it does not tell."""
        return None


ForeignFactory = Callable[[Config, Limits], ForeignScheduler]


# ---- asking a scheduler -----------------------------------------------------------------------------------------
# All of what follows answers in plain types, or raises `Broken` by the name CRASH, as for a `Manager`.


def made(factory: ForeignFactory, config: Config, limits: Limits) -> ForeignScheduler:
    """Make a scheduler."""
    return call(lambda: f"a scheduler of {config}, {limits}", _made, factory, config, limits)


def schedule(scheduler: ForeignScheduler) -> Step:
    """Ask for a step; where there is none to be had it has no rows."""
    return call("schedule", _scheduled, scheduler)


def complete(scheduler: ForeignScheduler, step: Step, tokens: Mapping[RequestId, Token]) -> tuple[RequestId, ...]:
    """Bring what a step has sampled; return who is finished."""
    return call(lambda: f"complete {dict(tokens)}", _completed, scheduler, step, tokens)


def rows_read(scheduler: ForeignScheduler, step: Step) -> list[tuple[Block, ...]]:
    """Return the block tables of a step as a device that executes it now reads them."""
    return call("rows_read", _rows, scheduler, step)


def free_blocks(scheduler: ForeignScheduler) -> int | None:
    """Return how many blocks no request holds, if it tells."""
    return call("free_blocks", _free, scheduler)


def _made(factory: ForeignFactory, config: Config, limits: Limits) -> ForeignScheduler:
    scheduler = factory(config, limits)
    if not isinstance(scheduler, ForeignScheduler):
        raise TypeError(f"{repr(scheduler)[:60]} is no pagedkv.spec.foreign_scheduler.ForeignScheduler")
    return scheduler


def _scheduled(scheduler: ForeignScheduler) -> Step:
    step = scheduler.schedule()
    if step is None:
        return Step(())
    rows = [
        Row(row.request, index(row.start), index(row.count), _integers(row.blocks), bool(row.samples))
        for row in step.rows
    ]
    copies = [Copy(*_integers(each)) for each in step.copies]
    return Step(tuple(rows), _integers(step.preempted), tuple(copies), step.own)


def _completed(
    scheduler: ForeignScheduler, step: Step, tokens: Mapping[RequestId, Token]
) -> tuple[RequestId, ...]:
    return _integers(scheduler.complete(step, tokens) or ())


def _rows(scheduler: ForeignScheduler, step: Step) -> list[tuple[Block, ...]]:
    rows = scheduler.rows_read(step)
    return [_integers(row) for row in ([each.blocks for each in step.rows] if rows is None else rows)]


def _free(scheduler: ForeignScheduler) -> int | None:
    free = scheduler.free_blocks()
    return None if free is None else index(free)


def _integers(answer: Iterable[Any]) -> tuple[int, ...]:
    return tuple(map(index, answer))

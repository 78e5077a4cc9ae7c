"""The protocol of a scheduler under test that somebody else wrote, with the cache manager that it has inside.

This text is all that an adapter's author needs. An *adapter* is a class of yours, in front of your scheduler, that
derives from `ForeignScheduler` and gives four methods:

    from pagedkv.spec.foreign_scheduler import STOP, Discipline, Feature, ForeignScheduler, Row, Step

    class MyAdapter(ForeignScheduler):
        first_block = 0                                  # the lowest usable block id of yours; default 1
        shares_prefixes = True                           # it has a prefix cache

        def __init__(self, config, limits):              # called with a Config and Limits, nothing else
            super().__init__(config, limits)
            self.mine = MyScheduler(config.blocks, config.block_size, limits.max_tokens_per_step, ...)

        def submit(self, request, prompt, outputs, salt):  # an int never used before, token ids, an int, an int
            self.mine.add(MyRequest(request, prompt, max_tokens=outputs, end_token=STOP))

        def schedule(self):
            batch = self.mine.schedule()
            rows = [Row(r.id, r.num_computed, r.num_scheduled, r.block_table.copy(), samples=r.reaches_its_last_token)
                    for r in batch.requests]
            return Step(rows, preempted=[r.id for r in batch.preempted], own=batch)

        def complete(self, step, tokens):                # {request: token}, of the rows that said `samples`
            return [r.id for r in self.mine.update(step.own, tokens) if r.is_finished]

        def abort(self, request):
            self.mine.abort(request)

    pagedkv fuzz --scheduler --target my_module:MyAdapter    # run it where my_module can be imported

**Sizes.** `Config`: `blocks` (usable: exactly so many, with ids first_block .. first_block + blocks - 1; if yours keeps
one for itself, give it one more) and `block_size`. `Limits`: `max_tokens_per_step` positions computed by one step,
`max_running` rows in one step (never more than positions), `steps_ahead` steps in flight, `prefix_cache`: whether to
use it. `super().__init__(config, limits)` keeps the two as `self.config` and `self.limits`. Worlds are small on
purpose: 1 to 8 blocks of 1 to 4 tokens. Switch watermarks and reserves off: a request alone, of as many tokens as the
pool has slots (prompt and outputs together), must be served. If it can't, say how many tokens less in
`tokens_kept_back`; and in `block_sizes = (2, 4)` with which it can be made.

**What happens.** `submit` comes at any time, with requests that fit. `schedule` plans a step, which goes to a virtual
device at once; `complete` brings what the device sampled. With `steps_ahead = 1` (the default) they alternate. Say
`steps_ahead = 2` if yours can schedule a step before the last one is complete; steps are completed in their order.
`abort` comes for any request that was submitted and has not been returned as finished, also between the two: its step
then goes on and completes like any other, with a token for the request that has left (it counts for nothing).

**A row** says what the device does for one request: it computes positions `start` to `start + length - 1`, writing
their K and V into the blocks that the table names, and reads all positions before, the same way. Position p is that of
token p, prompt first; the last token of all is never computed. `samples` says whether the device samples the next token
behind these positions: yes where the row reaches the last token that is known or on its way from a step in flight, no
for a chunk that ends before it. `blocks` is the table as the device is given it, a copy (entries behind the last
position are not looked at). Positions before `start` that no earlier row computed are *hits* of the prefix cache.
`Step.copies` names block copies that the device makes before everything else in the step: `Copy(request, source,
target, extent)`, of the first `extent` slots.

**Preemption**: name in `Step.preempted` whom this call of `schedule` has preempted; who is preempted has no row in the
step. It comes again by itself, from position 0 or from where its hits end, with the tokens that it has sampled. A token
that was in flight when its request was preempted may be kept or dropped. `schedule` returns None, or a step without
rows, where nothing can be done; with nothing in flight and somebody there, it must not do so again and again.

**Tokens** are those of a greedy model: the next is a function of all before it. A request is finished when it has
sampled `outputs` tokens, or one that is `STOP`. If yours looks at lengths alone, say `stops = False`, and there is no
`STOP`.

**Which discipline you claim**: `Discipline.STREAM_ORDER` (the default): blocks may be handed out again at once, since
steps execute in their order. `Discipline.FENCE`: only when every step in flight that reads or writes them is complete;
then nothing may be written that one of them touches (R-LIFE-1).

**What you do not offer** goes into `not_offered`, a frozenset of `Feature`, and is not asked: `SALT` (no salt but 0),
`CHUNKS` (a step has room for the longest prompt, and for whatever a preempted request computes again),
`CANCEL_IN_FLIGHT` (no abort of a request with a row in flight). Without a method `abort` there is none at all.

**Worth its lines, never needed**:

        def free_blocks(self):                           # how many blocks no request holds, cached ones included
            return self.mine.pool.num_free + self.mine.pool.num_evictable

        def rows_read(self, step):                       # a table a row: what the device would read if it ran it now
            return [self.mine.live_table(row.request) for row in step.rows]

With `free_blocks` a leak is found as soon as nobody is there, and a block that is let go twice at once. Without it a
leak shows when the blocks have run out: as somebody who is not served, or as whatever your scheduler raises then, many
operations later. `rows_read` is for a device that reads tables which the host may change after `schedule`. `own_calls`:
set it to a list in `__init__` and append each call of your scheduler as a line of text; a finding is then told in
these, too.

**What is checked** stands in `FOREIGN_RULES` of `pagedkv.spec.foreign_judge`: contents above all (every position that a
step reads must hold the KV of the right prefix, hits included), nothing lost by a preemption, limits kept, everybody
served in a bounded number of steps, and in the end no block lost: a request as long as the pool is served. Whatever is
raised is reported as a crash, with the operations that led to it, and so are an answer of the wrong type and none
within ten seconds.
"""

# ruff: noqa: PLC0414  (adapters take these names from here; an `__all__` would make `help` tell all that str can do, too)
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .offers import Discipline as Discipline
from .offers import Feature as Feature
from .requests import Limits as Limits
from .requests import RequestId, Token
from .state import Block, Tokens
from .state import Config as Config
from .state import Copy as Copy

STOP: Token = 2  # ends the request that samples it, where `stops` says so


class Row(NamedTuple):
    """A request's part in a step."""

    request: RequestId
    start: int  # the first position that is computed
    length: int  # how many positions
    blocks: Sequence[Block]  # its block table; entries behind the last position that is computed are not looked at
    samples: bool  # whether this reaches its last token, so that the device samples the next


class Step(NamedTuple):
    """What goes to the device, and what became of whom."""

    rows: Sequence[Row]
    preempted: Sequence[RequestId] = ()  # by this call of `schedule`: their blocks are given back
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
    own_calls: list[str] | None = None  # the owner's own calls, for reports; emptied before each operation
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
        """Let a live request go: it may wait, run, or have a row in a step in flight. Not overridden: not offered."""
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

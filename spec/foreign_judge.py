"""A stranger's scheduler, judged from outside.

Its word is taken for what it plans, and for nothing else. A virtual device (`foreign_device`) executes its steps and
judges what they read and write; what each request may compute, sample and end with is known beforehand
(`foreign_requests`). The rules are those that can be seen so, each in the sentence that is judged here. What a
scheduler hides (who waits with blocks in hand, what is counted twice) shows when it does harm, and not before.

Where more than one rule names a fault, the one is said that is nearest to its cause: a position that was never computed
for a request and holds the wrong contents is a hit that should not have been, and not just R-DATA.
"""

from collections.abc import Callable
from typing import NamedTuple

from .calls import call
from .counts import counted
from .foreign_alphabet import Finish, Operation, describe
from .foreign_asking import complete, free_blocks, rows_read, schedule
from .foreign_device import Device
from .foreign_requests import Served, prompt_of, text_of
from .foreign_scheduler import ForeignScheduler, Row
from .offers import Discipline, Feature
from .refusals import Broken, Reason, Refused, refuse_if
from .requests import Limits, Request, RequestId
from .scheduler_alphabet import Cancel, Complete, Schedule, Submit
from .state import Config, LaunchId, Root, State

FOREIGN_RULES = {
    "R-DATA": "Every position that a step reads holds the KV of the request's own tokens up to there.",
    "R-OWN-3": "No block stands twice in a table or is free twice, and no two requests of a step write to one block.",
    "R-OWN-4": "When all requests are gone every block is free or cached: a request as long as the pool is served.",
    "R-LIFE-1": "Under the discipline of fences nothing is written that a step in flight reads or writes.",
    "R-LIFE-7": "A result counts once, for the request and the life that it was sampled for; who has left has no row.",
    "R-COW-1": "What a request has computed or hit is written by nobody else while it keeps the block.",
    "R-COW-3": "Copies are inside usable blocks, of no more than a block, and for a request of the step.",
    "R-HASH-1": "A hit holds the KV of a request of the same salt.",
    "R-HASH-3": "A hit holds the KV of the same tokens.",
    "R-HASH-4": "A hit has been written.",
    "R-HASH-5": "At least one position is left to compute.",
    "R-TAB-1": "A table has a usable block for each position that is read, and a request has one row in a step.",
    "R-CAP-4": "No more requests have a row in a step than may run.",
    "R-PRE-1": "A preempted request loses no token and gains none, and what it held is computed or hit anew.",
    "R-PRE-2": "Who is preempted has no row in the step, and what is planned keeps to the budget.",
    "R-PRE-3": "Whoever fits is served to the end in a bounded number of steps, and nobody stands still.",
}
LONGEST_ID: RequestId = 1_000_000  # and on: of the requests that are as long as the pool
ABORTED, FINISHED = "was aborted", "has finished"
SHOWS_A_LEAK = {"R-PRE-3", "R-OWN-4", "CRASH"}  # where blocks have run out
STILL_MAX = 3  # calls in a row that plan nothing, though nothing is in flight and somebody is there


class Happened(NamedTuple):
    """What came of an operation."""

    launch: LaunchId = 0
    rows: tuple[Row, ...] = ()
    preempted: tuple[RequestId, ...] = ()
    finished: tuple[RequestId, ...] = ()
    hit: bool = False  # whether a row begins behind positions that were not computed for it
    steps: int = 0  # that `Finish` took


class ForeignWorld:
    """A stranger's scheduler and its judge, taken one operation further by `step`."""

    def __init__(
        self,
        config: Config,
        limits: Limits,
        scheduler: ForeignScheduler,
        fresh: Callable[[], ForeignScheduler],  # makes another one
    ) -> None:
        self.config, self.limits, self.scheduler, self.fresh = config, limits, scheduler, fresh
        self.device = Device(
            config,
            limits,
            scheduler.first_block,
            fenced=scheduler.discipline is Discipline.FENCE,
            shares_prefixes=limits.prefix_cache,
        )
        self.live: dict[RequestId, Served] = {}
        self.left: dict[RequestId, str] = {}  # and what became of them
        self.still = 0  # calls in a row that planned nothing
        self.offered: Happened | Refused | None = None

    @property
    def state(self) -> State:
        """What drivers look at: how many launches there have been."""
        return self.device.shadow.state

    @property
    def longest(self) -> int:
        """How many tokens a request that runs alone may have, prompt and outputs together."""
        return self.config.blocks * self.config.block_size - self.scheduler.tokens_kept_back

    def in_flight(self, request: RequestId) -> bool:
        """Whether a request has a row in a step in flight."""
        return any(row.request == request for flight in self.device.flights for row in flight.step.rows)

    def refusal(self, operation: Operation) -> Refused | None:
        """Return why an operation makes no sense to ask, None if it does."""
        try:
            self._guard(operation)
        except Refused as refused:
            return refused
        return None

    def step(self, operation: Operation) -> Happened | Refused:
        """Take one operation; what makes no sense is not asked. Errors: `Broken`."""
        self.offered = self.refusal(operation)
        if self.scheduler.own_calls is not None:
            self.scheduler.own_calls.clear()
        if self.offered is None:
            try:
                self._take(operation)
            except Broken as broken:
                if broken.rule in SHOWS_A_LEAK and (lost := self._lost()):
                    raise Broken(broken.rule, f"{broken.detail}: {lost}") from broken.__cause__
                raise
            self._count()
        assert self.offered is not None, "every operation says what came of it"
        return self.offered

    def blocks(self) -> tuple[int, int, int]:
        """Return how many blocks are free, named by a request that runs, and neither.

        Of a scheduler that does not tell, what no request names is taken for free.
        """
        held = len({block for served in self.live.values() for block in served.row})
        free = free_blocks(self.scheduler)
        free = self.config.blocks - held if free is None else free
        return free, held, max(0, self.config.blocks - free - held)

    def own_calls(self) -> tuple[str, ...]:
        """Return what the adapter says that it called at the last operation."""
        return tuple(self.scheduler.own_calls or ())

    def _count(self) -> None:
        """Where it tells how many are free: R-OWN-3, one was let go twice; R-OWN-4, nobody is there and one is held."""
        free, blocks = free_blocks(self.scheduler), self.config.blocks
        if free is not None and free > blocks:
            raise Broken("R-OWN-3", f"free or cached are {free} blocks, of {blocks}")
        if free is not None and free < blocks and not self.live and not self.device.flights:
            raise Broken("R-OWN-4", f"all are gone, and free or cached are {free} of {counted(blocks, 'block')}")

    def _lost(self) -> str:
        """Say how many blocks nobody is known to hold, where nothing runs and who is there may miss them; or nothing.

        A scheduler that raises now, or plans nothing, may have lost them when somebody left or was preempted.
        """
        came_and_went = self.left or any(served.preempted for served in self.live.values())
        if self.device.flights or not self.live or not came_and_went:
            return ""
        try:
            told, (free, held, neither) = free_blocks(self.scheduler), self.blocks()
        except Broken:  # it has raised before
            return ""
        unheld = f"nobody is known to hold {self.config.blocks - held} of {counted(self.config.blocks, 'block')}"
        if told is None:
            return f"{unheld}: lost? (`free_blocks` would tell sooner)" if held < self.config.blocks else ""
        return f"{unheld}, and {free} are free or cached: lost?" if neither else ""

    def _guard(self, operation: Operation) -> None:
        match operation:
            case Submit(request):
                refuse_if(request.id in self.live or request.id in self.left, Reason.DUPLICATE)
                refuse_if(request.prompt_length < 1, Reason.EMPTY)
                refuse_if(request.outputs < 1 or request.samples != 1, Reason.BAD_COUNT)
                refuse_if(request.prompt_length + request.outputs > self.longest, Reason.TOO_LONG)
            case Schedule():
                refuse_if(len(self.device.flights) >= self.limits.steps_ahead, Reason.BUSY)
            case Complete(ahead):
                refuse_if(ahead != 0 or not self.device.flights, Reason.UNKNOWN_LAUNCH)
            case Cancel(request):
                refuse_if(request not in self.live, Reason.UNKNOWN)
                refuse_if(type(self.scheduler).abort is ForeignScheduler.abort, Reason.NOT_OFFERED)
                may_abort_in_flight = Feature.CANCEL_IN_FLIGHT not in self.scheduler.not_offered
                refuse_if(self.in_flight(request) and not may_abort_in_flight, Reason.NOT_OFFERED)
            case Finish():
                pass

    def _take(self, operation: Operation) -> None:
        match operation:
            case Submit(request):
                self._submit(request)
            case Schedule():
                self._schedule()
            case Complete():
                self.offered = Happened(finished=self._complete())
            case Cancel(request):
                call(lambda: describe(operation), self.scheduler.abort, request)
                del self.live[request]
                self.left[request] = ABORTED
                self.still, self.offered = 0, Happened()
            case Finish():
                steps = self._serve_all()
                self._serve_the_longest()
                self.offered = Happened(steps=steps)

    def _submit(self, request: Request) -> None:
        tokens = text_of(request, self.limits.steps_ahead + 1, stops=self.scheduler.stops)
        text = self.device.shadow.text_of(Root(request.salt), tokens, request.id)
        words = (request.id, prompt_of(request), request.outputs, request.salt)
        call(lambda: f"submit {words}", self.scheduler.submit, *words)
        self.live[request.id] = Served(request, tokens, text)
        self.still, self.offered = 0, Happened()

    def _schedule(self) -> None:
        step = schedule(self.scheduler)
        happened = Happened(self.state.issued + 1 if step.rows else 0, tuple(step.rows), tuple(step.preempted))
        self.offered = happened  # what breaks a rule is shown, too
        for request in step.preempted:
            if request not in self.live and request not in self.left:
                raise Broken("R-PRE-1", f"request {request} is told as preempted, and was never submitted")
            if request in self.live:
                self.live[request].preempt()
        if step.rows:
            self.still = 0
            self._check_requests(happened)
            self.offered = happened._replace(hit=any(self.device.launch(step, self.live).hits))
            return
        self.still += bool(self.live and not self.device.flights)
        if self.still >= STILL_MAX:
            raise Broken(
                "R-PRE-3", f"requests {sorted(self.live)} are there, nothing is in flight, and nothing is planned"
            )

    def _check_requests(self, happened: Happened) -> None:
        requests = [row.request for row in happened.rows]
        for request in requests:
            if request not in self.live:
                became = self.left.get(request, "was never submitted")
                raise Broken("R-LIFE-7", f"a row for request {request}, which {became}")
            if request in happened.preempted:
                raise Broken("R-PRE-2", f"request {request} is preempted and has a row in the step")
            if requests.count(request) > 1:
                raise Broken("R-TAB-1", f"request {request} has {requests.count(request)} rows in one step")

    def _complete(self) -> tuple[RequestId, ...]:
        flight = self.device.flights[0]
        self.device.execute(flight, rows_read(self.scheduler, flight.step))
        sampled = [(served, taking) for served, taking in flight.takings if taking.token]
        tokens = {served.request.id: served.tokens[taking.token] for served, taking in sampled}
        finished = complete(self.scheduler, flight.step, tokens)
        for served, taking in sampled:
            served.take(taking)
        for request in finished:
            self._leaves(request)
        for served, _ in sampled:
            if served.request.id in self.live and served.taken >= served.end:
                raise Broken("R-LIFE-7", f"request {served.request.id} has its last token and is not finished")
        return finished

    def _leaves(self, request: RequestId) -> None:
        """A scheduler said that a request is finished; of one that was aborted it may well say so."""
        became = self.left.get(request, "")
        if became == ABORTED:
            return
        if request not in self.live:
            raise Broken("R-LIFE-7", f"request {request} finishes, which {became or 'was never submitted'}")
        served = self.live.pop(request)
        tokens = max(served.taken, served.at_most)
        if tokens < served.end:
            raise Broken(
                served.blames,
                f"request {request} finishes with {counted(tokens, 'token')} of {served.end}, its prompt's included",
            )
        self.left[request] = FINISHED

    # ---- to the end

    def _serve_all(self) -> int:
        """Go on until every request has left; return how many rounds it took.

        The bound is that of `scheduler_progress`, rounded up: generous for any policy that serves somebody to the end
        before it comes back to the others. One that preempts in turn for ever exceeds any bound.
        """
        positions = sum(served.end for served in self.live.values())
        at_most = (2 * positions * max(1, len(self.live)) + 1) * (self.limits.steps_ahead + 2)
        rounds = 0
        while self.live or self.device.flights:
            if rounds == at_most:
                raise Broken("R-PRE-3", f"requests {sorted(self.live)} are there after {counted(rounds, 'round')}")
            rounds += 1
            if self.live and len(self.device.flights) < self.limits.steps_ahead:
                before = self.state.issued
                self._schedule()
                if self.state.issued > before and len(self.device.flights) < self.limits.steps_ahead:
                    continue
            if self.device.flights:
                self._complete()
        return rounds

    def _serve_the_longest(self) -> None:
        """R-OWN-4 from outside: with nothing left, one request as long as the whole pool must be served.

        Where a new scheduler would not serve it either, nothing has been lost: it stands still (R-PRE-3).
        """
        self._count()
        if self.longest <= 1:  # no request fits
            return
        request = Request(LONGEST_ID + len(self.left), self.longest - 1, 1)
        try:
            self.serve_alone(request)
        except Broken as broken:
            if broken.rule != "R-PRE-3":
                raise
            ForeignWorld(self.config, self.limits, self.fresh(), self.fresh).serve_alone(request)
            what = f"all were gone, and a request of {counted(request.prompt_length, 'token')} is not served"
            raise Broken("R-OWN-4", f"{what}: {broken.detail}") from None

    def serve_alone(self, request: Request) -> None:
        """Submit a request and serve whoever is there to the end. Errors: `Broken`."""
        self._submit(request)
        self._serve_all()

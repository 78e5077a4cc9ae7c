"""The scheduler: which requests run, what each step computes, and who gives way where blocks lack.

An engine submits requests and then turns one handle: `schedule` plans a step and launches it, the device does it, and
`complete` brings the tokens that it sampled. With two steps ahead the next step is planned and launched before the
tokens of the last are known: their ids are placeholders, their number is not. `step` says what a step is made of.

Requests leave by themselves when their samples are done, or by `cancel`, at any time and in any state: at once for the
scheduler, their blocks when the launches in flight have retired. Submitted work is never called back. A result carries
the life of the sequence that it was launched for; where that is over (preempted, cancelled, done), it is nobody's.

Guarantees: every request that was accepted finishes, unless it is cancelled or pins keep its blocks; the first in
rank is never preempted for another. A refused call has changed nothing. What is journaled is the cache's own
operations, so a run audits like any other. One thread of control, as for the cache.

Cost: a step is a dozen passes over the running sequences and one call of each kind to the cache, and one for each
sequence that comes or leaves, however many requests wait; `submit` is O(prompt + log waiting); `cancel` and `preempt`
are O(blocks of the request). Sources: iteration-level scheduling, Yu et al., "Orca" (OSDI '22); preemption by
recompute, Kwon et al., "PagedAttention" (SOSP '23); chunked prefill, Agrawal et al., "Sarathi-Serve" (OSDI '24).
Considered: an object a sequence and a walk over them (what the systems in use do: 5 to 35 us a sequence and step);
preemption by swapping (a recompute is one prefill, and no copies).
"""

from collections.abc import Iterable
from typing import Self

import numpy as np

from . import arguments
from .arguments import Integers, integer, shown
from .arithmetic import blocks_needed
from .arrays import IndexArray
from .cache import BlockCache
from .plans import NOTHING, NOTHING_CAME, Completion, Plan, Preemption
from .refusals import BadCount, Busy, Draining, Duplicate, InvalidArgument, Unknown, UnknownLaunch
from .requests import Limits, Live, Request, accepted
from .scheduler_views import SchedulerViews
from .serving import Serving
from .step import plan_step


class Scheduler(SchedulerViews):
    """Iteration-level scheduling over a cache that is the scheduler's alone.

    Requests: `submit`, `cancel`, `preempt`, `drain`, `require_token_ids`. Steps: `schedule`, `complete`, `fail`. Views:
    see `SchedulerViews`. Also: `clone`.
    """

    __slots__ = ("_draining", "_needs_token_ids", "_newest", "_next_name")

    def __init__(self, cache: BlockCache, limits: Limits) -> None:
        super().__init__(Serving(cache, limits))
        if cache.sequences() or cache.in_flight():
            raise InvalidArgument("the cache is at work already: a scheduler names its sequences and launches itself")
        if cache.launches_in_flight < limits.steps_ahead:
            raise InvalidArgument(f"{limits.steps_ahead} steps ahead need a cache of as many launches_in_flight")
        self._next_name = 0
        self._newest = 0  # launch
        self._draining = False
        self._needs_token_ids = False

    # ---- requests ---------------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> range:
        """Take a request in; it waits. Return the names that its samples' sequences will have.

        Refused: `Duplicate` (its id is live), `Empty`, `BadCount` (outputs, samples, priority), `TooLong` (the whole
        pool could not hold it), `Draining`, `InvalidArgument` (also a number for a prompt after `require_token_ids`,
        and a row that is too long for memory). O(prompt + log waiting).
        """
        if not isinstance(request, Request):
            raise InvalidArgument(f"a request must be a Request(id, prompt, outputs), not {shown(request)}")
        serving = self._serving
        request_id = integer("a request's id", request.id)
        if request_id in serving.live:
            raise Duplicate(f"request {request_id} is live already")
        cache = serving.cache
        live = accepted(request, serving.limits, cache.blocks, cache.block_size, self._next_name)
        if live.given_ids is None and self._needs_token_ids:
            raise InvalidArgument(f"request {request_id} has a number for a prompt: to compute it takes token ids")
        if self._draining:
            raise Draining(f"request {request_id} comes after drain(): nothing is taken in any more")
        cache.make_room(blocks_needed(live.prompt_tokens + live.outputs - 1, cache.block_size))
        self._next_name = live.names.stop
        serving.live[request_id] = live
        serving.waiting.push(live)
        return live.names

    def cancel(self, request: int) -> None:
        """Let a request go at once, whatever it does; work in flight goes on and is nobody's. Refused: `Unknown`.

        O(its blocks).
        """
        self._serving.remove(self._find(request))

    def preempt(self, request: int) -> Preemption:
        """Let a running request give back all its blocks and wait. Refused: `Unknown`, `Busy` (it waits). O(blocks)."""
        live = self._find(request)
        if not live.running:
            raise Busy(f"request {live.id} waits: only one that runs can be preempted")
        return self._serving.preempt(live)

    def drain(self) -> None:
        """Take no request in from here on; what is there goes on."""
        self._draining = True

    def require_token_ids(self) -> None:
        """Take in only prompts of token ids from here on: a number is enough to plan with, and not to compute with."""
        self._needs_token_ids = True

    # ---- steps ------------------------------------------------------------------------------------------------------

    def schedule(self) -> Plan:
        """Plan the next step and launch it; the plan is empty where nothing can be done before a launch completes.

        Refused: nothing. O(running sequences).
        """
        serving = self._serving
        if len(serving.flights) >= serving.limits.steps_ahead:
            return NOTHING
        plan = plan_step(serving)
        if plan.launch is not None:
            self._newest = plan.launch.id
        return plan

    def complete(self, launch: int, sampled: Integers, stopped: Iterable[int] = ()) -> Completion:
        """Learn what a launch sampled: a token for each that its plan announced, in the order of the rows.

        `stopped` are names of sequences that need no token more. A launch completed before changes nothing. Refused:
        `UnknownLaunch`, `Busy` (an older one is in flight), `BadCount` (of tokens). O(rows + blocks of the finished).
        """
        serving, running = self._serving, self._serving.running
        launch = integer("a launch id", launch)
        if not self._is_oldest(launch):
            return NOTHING_CAME
        flight = serving.flights[launch]
        tokens = arguments.token_ids(sampled)
        ended = [integer("a sequence name", name) for name in stopped]
        if tokens.size != flight.receivers.size:
            raise BadCount(f"launch {launch}: tokens sampled {flight.receivers.size}, given {tokens.size}")
        serving.cache.retire(launch)
        del serving.flights[launch]
        publication = serving.publish(flight)
        slots = flight.receivers
        alive = running.life[slots] == flight.receiver_lives
        if np.count_nonzero(alive) != slots.size:
            slots, tokens = slots[alive], tokens[alive]
        if flight.firsts:
            serving.take_first_tokens(slots, flight.firsts)
        running.tokens.append(slots, tokens)
        left = running.left[slots] - 1
        running.left[slots] = left
        done = left == 0
        if ended:
            done |= np.isin(running.name[slots], ended)
        finished = self._finish(slots[done]) if np.count_nonzero(done) else ()
        return Completion(finished, publication)

    def fail(self, launch: int) -> tuple[Preemption, ...]:
        """Learn that the device could not do a launch: nothing of it counts, and whoever had a row in it is preempted.

        Refused: `UnknownLaunch`, `Busy` (an older one is in flight). O(rows + blocks of the preempted).
        """
        serving, running = self._serving, self._serving.running
        launch = integer("a launch id", launch)
        if not self._is_oldest(launch):
            return ()
        flight = serving.flights.pop(launch)
        serving.cache.retire(launch)
        preempted = []
        for slot, life in zip(flight.slots.tolist(), flight.lives.tolist(), strict=True):
            if running.life.item(slot) == life:  # else it has left, perhaps a moment ago with a sibling
                request = running.owner[slot]
                assert request is not None, "a sequence that runs is a request's"
                preempted.append(serving.preempt(request))
        return tuple(preempted)

    def clone(self) -> Self:
        """Return an independent copy, on a copy of the cache."""
        twin = object.__new__(type(self))
        twin._serving = self._serving.clone()
        twin._next_name, twin._newest = self._next_name, self._newest
        twin._draining, twin._needs_token_ids = self._draining, self._needs_token_ids
        return twin

    def _find(self, request: int) -> Live:
        found = self._serving.live.get(request if type(request) is int else integer("a request's id", request))
        if found is None:
            raise Unknown(f"no live request is called {shown(request)}")
        return found

    def _is_oldest(self, launch: int) -> bool:
        """Whether a launch can complete now; False where it has done so already."""
        flights = self._serving.flights
        if launch not in flights:
            if not 1 <= launch <= self._newest:
                raise UnknownLaunch(f"launch {shown(launch)} was never issued; the newest is {self._newest}")
            return False
        oldest = next(iter(flights))
        if launch != oldest:
            raise Busy(f"launch {launch} completes after launch {oldest}, which is in flight")
        return True

    def _finish(self, slots: IndexArray) -> tuple[int, ...]:
        """Let samples go that are done; say which requests are."""
        finished = [self._serving.finish_sample(slot) for slot in slots.tolist()]
        return tuple(request for request in finished if request is not None)

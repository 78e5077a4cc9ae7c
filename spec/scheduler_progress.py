"""That a scheduler goes forward: from any state, completing and scheduling on finishes every request.

No rule over single steps can say so: each may be right and the same two requests preempt each other for ever (R-PRE-3).
So it is run: `finish` goes on from a state with the policy alone, as a device would that is neither early nor late, and
counts the rounds: each a step, and a completion where as many launches are in flight as may be, or nothing was
launched.

Why there is a bound. Let R requests be there, of W positions in all when they end. Consider the first in rank. While it
waits, nobody is let in, so the others only go forward or leave, and there are at most W launches; when it runs, its row
is the first of every plan and the last to be held back, so there are at most W launches until it has finished. A round
that launches nothing is followed by a completion of what is in flight, which is at most `steps_ahead` launches, after
which nothing is in quarantine. So it has finished after 2 W (`steps_ahead` + 2) rounds; then the next is first. What is
seen is far below: preemption is rare, and a launch has more than one position.
"""

from . import scheduling, serving
from .counts import counted
from .refusals import Broken
from .requests import Engine, available
from .scheduler_alphabet import toy_tokens


def rounds_at_most(engine: Engine) -> int:
    """Return the bound: 2 W (steps_ahead + 2) rounds for each request, and what it takes to see that all is over."""
    requests = [job.request for job in engine.jobs.values()]
    positions = sum(request.samples * (request.prompt_length + request.outputs - 1) for request in requests)
    return 2 * positions * (engine.limits.steps_ahead + 2) * len(requests) + engine.limits.steps_ahead + 1


def finish(engine: Engine) -> int:
    """Go on from a state until every request has left; return how many rounds that took.

    Errors: `Broken`, R-PRE-3 where it takes more than it may, R-OWN-4 where blocks are left behind.
    """
    at_most = rounds_at_most(engine)
    rounds = 0
    while engine.jobs or engine.flights:
        if rounds == at_most:
            raise Broken("R-PRE-3", f"requests {list(engine.jobs)} are there after {counted(rounds, 'round')}")
        rounds += 1
        engine, decision = scheduling.schedule(engine)
        if decision.plan.failed:
            raise Broken("R-CAP-3", f"request {decision.plan.failed} failed, though nothing else holds blocks")
        if engine.flights and (not decision.plan.launch or len(engine.flights) == engine.limits.steps_ahead):
            oldest = engine.flights[0].launch
            engine, _ = serving.complete(engine, oldest, toy_tokens(engine, oldest))
    if available(engine.cache) < engine.cache.config.blocks:
        raise Broken("R-OWN-4", f"all is over, and {engine.cache.quarantine} is neither free nor idle")
    return rounds

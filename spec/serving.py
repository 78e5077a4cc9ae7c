"""The life of a request around `schedule`: how it comes, how its tokens arrive, how it leaves.

`submit · schedule · complete · fail · cancel · preempt · drain`, each `(engine, arguments, choices) -> (engine,
decision)`; guards first, in the order given, and a refusal changes nothing.

Completions arrive in the order of the launches, and may be of the past: between a launch and its completion a sequence
may have been cancelled, preempted, or finished by the completion before, and its name may live again. So a token is
taken where the epoch that it was sampled for is still the live one, and nowhere else (R-LIFE-7). A request that leaves
does so at once, in any state; its blocks follow when what is in flight has retired, which is the cache's business.
"""

from collections.abc import Collection

from .alphabet import Publish, Release, Retire
from .outcome import Telling
from .refusals import Reason, refuse_if
from .requests import PRIORITIES, Engine, Flight, Job, Limits, Request, RequestId, Sample, Token
from .state import Config, LaunchId, Name, initial, written
from .turn import Choices, Decision, Result, Turn


def start(config: Config, limits: Limits) -> Engine:
    """Return a scheduler of nothing yet, over an empty cache."""
    return Engine(initial(config), limits, {})


def submit(engine: Engine, request: Request, choices: Choices | None = None) -> Result:
    """Take a request in; it waits. Its samples get their names, counted up.

    Refused: Duplicate (the id is live), Empty (no prompt), BadCount (outputs or samples below 1, more samples than may
    ever run, a priority out of range), TooLong (it would not fit the empty pool: R-CAP-3), Draining.
    """
    config = engine.cache.config
    refuse_if(request.id in engine.jobs, Reason.DUPLICATE)
    refuse_if(request.prompt_length < 1, Reason.EMPTY)
    possible = request.outputs >= 1 and 1 <= request.samples <= engine.limits.max_running
    refuse_if(not possible or request.priority not in PRIORITIES, Reason.BAD_COUNT)
    refuse_if(request.blocks_at_the_end(config) > config.blocks, Reason.TOO_LONG)
    refuse_if(engine.draining, Reason.DRAINING)
    names = tuple(range(engine.names, engine.names + request.samples))
    job = Job(request, engine.submitted, {name: Sample() for name in names})
    turn = Turn(engine._replace(names=engine.names + request.samples, submitted=engine.submitted + 1), choices)
    turn.put(job)
    return turn.end(), Decision(names=names)


def complete(
    engine: Engine,
    launch: LaunchId,
    sampled: tuple[Token, ...],
    stopped: Collection[Name] = (),
    choices: Choices | None = None,
) -> Result:
    """Learn that a launch is done, and the tokens that it sampled, one for each taker.

    A sample is done when it has its outputs, or is named in `stopped` as one that its new token ends; its sequence is
    released at once, and the request is finished with its last sample. A second completion changes nothing.

    Refused: UnknownLaunch (never issued), Busy (an older one is in flight), BadCount (not one token a taker).
    """
    flight = _in_flight(engine, launch)
    if flight is None:
        return engine, Decision()
    refuse_if(len(sampled) != len(flight.takers), Reason.BAD_COUNT)
    turn = Turn(engine._replace(flights=engine.flights[1:]), choices)
    turn.do(Retire(launch))
    taken = [(life[0], token) for life, token in zip(flight.takers, sampled, strict=True) if engine.lives(life)]
    for name, token in taken:
        _take(turn, name, token, stops=name in stopped)
    if telling := _telling(turn.engine, flight):
        turn.do(Publish(telling))
    finished = tuple(request for name, _ in taken for request in _end_if_done(turn, name))
    return turn.end(), Decision(finished=finished, steps=tuple(turn.steps))


def fail(engine: Engine, launch: LaunchId, choices: Choices | None = None) -> Result:
    """Learn that the device could not do a launch: every request that still lives by a row of it begins anew.

    Refused: UnknownLaunch (never issued), Busy (an older one is in flight).
    """
    flight = _in_flight(engine, launch)
    if flight is None:
        return engine, Decision()
    turn = Turn(engine._replace(flights=engine.flights[1:]), choices)
    turn.do(Retire(launch))
    preempted = tuple(turn.preempt(turn.engine.owner(life[0])) for life in flight.rows if turn.engine.lives(life))
    return turn.end(), Decision(preempted=preempted, steps=tuple(turn.steps))


def cancel(engine: Engine, request: RequestId, choices: Choices | None = None) -> Result:
    """Let a request go, in whatever state it is.

    Refused: Unknown.
    """
    refuse_if(request not in engine.jobs, Reason.UNKNOWN)
    turn = Turn(engine, choices)
    turn.leave(engine.jobs[request])
    return turn.end(), Decision(steps=tuple(turn.steps))


def preempt(engine: Engine, request: RequestId, choices: Choices | None = None) -> Result:
    """Put a running request back to wait, at its rank.

    Refused: Unknown, Busy (it waits).
    """
    refuse_if(request not in engine.jobs, Reason.UNKNOWN)
    refuse_if(not engine.runs(engine.jobs[request]), Reason.BUSY)
    turn = Turn(engine, choices)
    preempted = turn.preempt(engine.jobs[request])
    return turn.end(), Decision(preempted=(preempted,), steps=tuple(turn.steps))


def drain(engine: Engine, choices: Choices | None = None) -> Result:
    """Take in no more requests from here on; what is here goes on."""
    return Turn(engine._replace(draining=True), choices).end(), Decision()


def _in_flight(engine: Engine, launch: LaunchId) -> Flight | None:
    """Return the oldest launch in flight if it is this one; None where this one has left already."""
    refuse_if(not 1 <= launch <= engine.cache.issued, Reason.UNKNOWN_LAUNCH)
    ids = [flight.launch for flight in engine.flights]
    refuse_if(launch in ids[1:], Reason.BUSY)
    return engine.flights[0] if launch in ids else None


def _telling(engine: Engine, flight: Flight) -> Telling:
    """Return what a launch has made known to the cache: of each row that lives, the tokens up to what is written.

    So what is published was computed by launches that were done (R-HASH-4). Nothing without a prefix cache, or where a
    prompt was given as a number.
    """
    telling = []
    for life in flight.rows if engine.limits.prefix_cache else ():
        if engine.lives(life):
            sequence, tokens = engine.cache.sequences[life[0]], engine.owner(life[0]).tokens(life[0])
            if tokens is not None:
                telling.append((life[0], tokens[len(sequence.known) : written(engine.cache, sequence)]))
    return tuple(telling)


def _take(turn: Turn, name: Name, token: Token, *, stops: bool) -> None:
    """Let a sample know a token of its own."""
    job = turn.engine.owner(name)
    sample = job.samples[name]
    outputs = (*sample.outputs, token)
    done = stops or len(outputs) == job.request.outputs
    turn.put(job._replace(samples={**job.samples, name: Sample(outputs, 0 if done else sample.pending - 1, done)}))


def _end_if_done(turn: Turn, name: Name) -> tuple[RequestId, ...]:
    """Release a sample that is done; return its request if that has finished with it."""
    job = turn.engine.owner(name)
    if not job.samples[name].done:
        return ()
    turn.do(Release(name))
    if job.unfinished() or turn.engine.runs(job):
        return ()
    turn.leave(job)
    return (job.request.id,)

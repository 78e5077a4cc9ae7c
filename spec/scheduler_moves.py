"""Which operation of a scheduler to try next: all of them (exhaustive), or one by lot (random).

As with a cache (`moves`), what should be refused is offered, too.
"""

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from .counts import counted
from .requests import Engine, Limits, Policy, Request
from .scheduler_alphabet import Cancel, Complete, Drain, Fail, Operation, Preempt, Schedule, Submit
from .state import Config

STRANGER = 99  # an id that is never live


class Scope(NamedTuple):
    """How far the exhaustive driver goes: a pool, limits, which requests may come, how many may be there at once."""

    config: Config
    limits: Limits
    requests: tuple[Request, ...]
    live: int = 2

    def describe(self) -> str:
        """Return the scope as a person would say it."""
        limits = self.limits
        return (
            f"{counted(self.config.blocks, 'block')}, B = {self.config.block_size}; {counted(self.live, 'request')} of "
            f"{counted(len(self.requests), 'kind')}; {limits.describe()}"
        )


def all_moves(engine: Engine, scope: Scope) -> Iterator[Operation]:
    """Yield every operation within a scope, and examples of each refusal; of several takers one is stopped, or all."""
    if len(engine.jobs) < scope.live:
        fresh = next(id_ for id_ in range(scope.live) if id_ not in engine.jobs)  # ids not in use are alike
        yield from (Submit(request._replace(id=fresh)) for request in scope.requests)
    yield from (Submit(request) for request in _refused_requests(engine))
    yield Schedule()
    takers = [life[0] for life in engine.flights[0].takers if engine.lives(life)] if engine.flights else []
    yield Complete()
    yield from (Complete(stopped=(name,)) for name in takers)
    if len(takers) > 1:
        yield Complete(stopped=tuple(takers))
    yield from (Complete(ahead) for ahead in (-1, 1))
    yield from (Complete(surplus=surplus) for surplus in ((-1, 1) if takers else (1,)))
    yield from (Fail(ahead) for ahead in (-1, 0, 1))
    yield from (kind(id_) for kind in (Cancel, Preempt) for id_ in (*engine.jobs, STRANGER))
    yield Drain()


def _refused_requests(engine: Engine) -> Iterator[Request]:
    """Yield requests that can never be taken in."""
    config = engine.cache.config
    longest = config.blocks * config.block_size
    yield from (Request(id_, 1, 1) for id_ in list(engine.jobs)[:1])
    yield from (Request(STRANGER, prompt, 1) for prompt in (0, ()))
    yield Request(STRANGER, 1, 0)
    yield from (Request(STRANGER, 1, 1, samples) for samples in (0, engine.limits.max_running + 1))
    yield from (Request(STRANGER, 1, 1, priority=priority) for priority in (-1, 256))
    yield from (Request(STRANGER, longest + 1, 1), Request(STRANGER, longest, 2))
    if engine.draining:
        yield Request(STRANGER, 1, 1)


# How often each kind is drawn: steps and completions more often than arrivals, so that runs get deep.
_WEIGHTS = {Submit: 4, Schedule: 9, Complete: 6, Fail: 0.2, Cancel: 0.4, Preempt: 0.2}
_ODD = 1 / 15  # how often something is asked that is likely to be refused


_PROMPTS = [[0] * 64, [0, 0, 0] + [1] * 61, [0, 1] * 32, [1] * 64]  # so few that many begin alike


def draw_scope(random: Random, sharing: float) -> tuple[Config, Limits]:
    """Draw a pool so small that requests are always short of blocks, and limits; `sharing` of them share prefixes."""
    config = Config(random.randint(1, 8), random.randint(1, 4), streams=1, launches=2)
    limits = Limits(
        max_tokens_per_step=random.choice((1, 2, 3, 5, 8, 16)),
        max_running=random.choice((1, 2, 3, 4, 6, 8)),
        steps_ahead=random.randint(1, 2),
        watermark_blocks=random.choice((0, 0, 1, 2)),
        policy=random.choice(list(Policy)),
        prefix_cache=random.random() < sharing,
    )
    return config, limits


def draw_move(engine: Engine, live: int, random: Random) -> Operation:
    """Draw one operation for a world of up to so many requests: mostly sensible, now and then one to be refused."""
    return (_odd_move if random.random() < _ODD else _sensible_move)(engine, live, random)


def draw_request(engine: Engine, id_: int, random: Random) -> Request:
    """Draw a request that would fit the empty pool."""
    config = engine.cache.config
    samples = random.choice((1, 1, 1, 2, 3)) if engine.limits.max_running > 2 else 1
    samples = min(samples, config.blocks)
    capacity = config.blocks // samples * config.block_size
    length = random.randint(1, min(capacity, 4 * config.block_size))  # at the end
    outputs = random.randint(1, min(length, 8))
    count = length - outputs + 1
    priority = random.choice((0, 0, 1, 2))
    if not engine.limits.prefix_cache or random.random() < 1 / 8:
        return Request(id_, count, outputs, samples, priority)
    prompt = random.choice(_PROMPTS)
    return Request(id_, tuple(prompt[:count]), outputs, samples, priority, salt=random.choice((0, 0, 0, 1)))


def _sensible_move(engine: Engine, live: int, random: Random) -> Operation:
    fresh = [id_ for id_ in range(live) if id_ not in engine.jobs]
    running = [job.request.id for job in engine.running()]
    sensible = {
        Submit: bool(fresh) and not engine.draining,
        Schedule: len(engine.flights) < engine.limits.steps_ahead,
        Complete: bool(engine.flights),
        Fail: bool(engine.flights),
        Cancel: bool(engine.jobs),
        Preempt: bool(running),
    }
    kinds = [kind for kind, makes_sense in sensible.items() if makes_sense]
    kind = random.choices(kinds, [_WEIGHTS[kind] for kind in kinds])[0]
    if kind is Submit:
        return Submit(draw_request(engine, random.choice(fresh), random))
    if kind is Complete:
        takers = [life[0] for life in engine.flights[0].takers]
        return Complete(stopped=tuple(name for name in takers if random.random() < 1 / 12))
    if kind is Cancel:
        return Cancel(random.choice(list(engine.jobs)))
    if kind is Preempt:
        return Preempt(random.choice(running))
    return Fail() if kind is Fail else Schedule()


def _odd_move(engine: Engine, live: int, random: Random) -> Operation:
    return random.choice(
        (
            *(Submit(request) for request in _refused_requests(engine)),
            Complete(random.choice((-1, 1))),
            Complete(surplus=random.choice((-1, 1))),
            Fail(random.choice((-1, 1))),
            Cancel(STRANGER),
            Preempt(random.choice((STRANGER, *engine.jobs))),
            Schedule(),
            Drain() if random.random() < 1 / 24 else Cancel(random.randrange(live)),
        )
    )

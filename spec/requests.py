"""What a scheduler knows, as frozen data: requests, their samples, what is in flight.

A *request* asks for `outputs` tokens after its prompt, `samples` times over. Each *sample* is one sequence of the
cache, under a name given at submission and kept for good; its *epoch* changes with each preemption. A request *runs*
while a sequence of it is in the cache, and *waits* otherwise; nothing else tells the two apart, so they cannot
disagree.

A sample knows its tokens (those of the prompt and those sampled since), and has as many *pending* as launches in flight
will sample for it. The token sampled last is known before its position exists: the position is made when the next
launch is to write it, and that of the very last token never is. So a sample ends with prompt + outputs - 1 positions.

Until it has its first sampled tokens a request begins as one sequence whatever its samples: the launch that ends the
prompt samples for all of them, and they part right behind it, by `fork`. All get their first token in the same
completion, so a request is either fresh or has one in every sample.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from .arithmetic import blocks_needed
from .counts import counted
from .state import Config, LaunchId, Name, State

RequestId = int  # the caller's
Token = int
Life = tuple[Name, int]  # a sequence and which epoch of its name this is
PRIORITIES = range(256)  # 0 goes first


class Policy(StrEnum):
    """Who goes first."""

    FCFS = "fcfs"  # who was submitted first
    PRIORITY = "priority"  # the lowest priority number, and of equals who was submitted first


class Limits(NamedTuple):
    """How much the scheduler may do at once."""

    max_tokens_per_step: int
    max_running: int  # sequences
    steps_ahead: int = 1  # launches in flight, 1 or 2: with 2 a step is planned before the step before it is known
    watermark_blocks: int = 0  # left available by an admission, for what runs already to grow into
    policy: Policy = Policy.FCFS
    prefix_cache: bool = False

    def describe(self) -> str:
        """Return the limits as a person would say them."""
        return (
            f"{counted(self.max_tokens_per_step, 'token')} a step, {self.max_running:,} running, "
            f"{counted(self.steps_ahead, 'step')} ahead, watermark {self.watermark_blocks:,}, {self.policy}, "
            f"prefix cache {'on' if self.prefix_cache else 'off'}"
        )


class Request(NamedTuple):
    """What a caller asks for."""

    id: RequestId
    prompt: int | tuple[Token, ...]  # its tokens, or how many there are
    outputs: int  # tokens to sample, at most
    samples: int = 1
    priority: int = 0
    salt: int = 0  # requests of different salts share nothing

    @property
    def prompt_length(self) -> int:
        """How many tokens the prompt has."""
        return self.prompt if isinstance(self.prompt, int) else len(self.prompt)

    def blocks_at_the_end(self, config: Config) -> int:
        """Return how many blocks it may hold in the end, all samples apart."""
        return self.samples * blocks_needed(self.prompt_length + self.outputs - 1, config.block_size)


class Sample(NamedTuple):
    """One of the answers to a request."""

    outputs: tuple[Token, ...] = ()  # sampled and known
    pending: int = 0  # being sampled by launches in flight
    done: bool = False


class Job(NamedTuple):
    """A request from its submission until it leaves."""

    request: Request
    number: int  # of the submission
    samples: Mapping[Name, Sample]  # in the order of their names

    def unfinished(self) -> list[Name]:
        """Return the samples that are not done."""
        return [name for name, sample in self.samples.items() if not sample.done]

    def known(self, name: Name) -> int:
        """Return how many tokens of a sample are known."""
        return self.request.prompt_length + len(self.samples[name].outputs)

    def tokens(self, name: Name) -> tuple[Token, ...] | None:
        """Return what is known of a sample; None where its prompt was given as a number."""
        prompt = self.request.prompt
        return None if isinstance(prompt, int) else prompt + self.samples[name].outputs

    def beginnings(self) -> list[Name]:
        """Return the sequences to begin with, each with all that it knows. A fresh request begins as one."""
        fresh = not any(sample.outputs for sample in self.samples.values())
        return self.unfinished()[:1] if fresh else self.unfinished()


class Flight(NamedTuple):
    """A launch in flight, and what its completion brings."""

    launch: LaunchId
    rows: tuple[Life, ...]
    takers: tuple[Life, ...]  # who takes a token, in the order in which they will be given


class Engine(NamedTuple):
    """A scheduler and its cache at one moment."""

    cache: State
    limits: Limits
    jobs: Mapping[RequestId, Job]  # what was submitted and has not left, in the order of submission
    flights: tuple[Flight, ...] = ()  # oldest first
    submitted: int = 0
    names: Name = 0  # the next to be given
    draining: bool = False

    def rank(self, job: Job) -> tuple[int, int]:
        """Return a request's place: the lower goes first. It stays the same through preemptions."""
        return (job.request.priority if self.limits.policy is Policy.PRIORITY else 0, job.number)

    def ranked(self) -> list[Job]:
        """Return all requests in rank order."""
        return sorted(self.jobs.values(), key=self.rank)

    def runs(self, job: Job) -> bool:
        """Whether a request has a sequence in the cache."""
        return any(name in self.cache.sequences for name in job.samples)

    def running(self) -> list[Job]:
        """Return the requests that run, in rank order."""
        return [job for job in self.ranked() if self.runs(job)]

    def waiting(self) -> list[Job]:
        """Return the requests that wait, in rank order."""
        return [job for job in self.ranked() if not self.runs(job)]

    def owner(self, name: Name) -> Job:
        """Return the request that a sequence belongs to."""
        return next(job for job in self.jobs.values() if name in job.samples)

    def lives(self, life: Life) -> bool:
        """Whether a sequence is still in the cache, in the same epoch."""
        name, epoch = life
        return name in self.cache.sequences and self.cache.sequences[name].epoch == epoch


def available(cache: State) -> int:
    """Return how many blocks may be taken now: those that are free, and those that are idle and may be evicted."""
    return len(cache.free) + len(cache.evictable)


def leaving(cache: State) -> int:
    """Return how many blocks wait for launches in flight and may be taken when these have retired."""
    return len(cache.quarantine)

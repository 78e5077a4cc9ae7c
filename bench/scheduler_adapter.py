"""Our own scheduler as the drivers see it.

As with the cache (`adapter`), arguments are turned into arrays, results into the spec's words, refusals into the spec's
reasons. The scheduler works on a cache that notes down what it is asked for and what came of it, which is what the
policy is held against; what is refused is not noted, since a scheduler may find out in its own way what fits.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from pagedkv.bench.adapter import Implementation, in_the_words_of_the_spec
from pagedkv.impl.cache import BlockCache
from pagedkv.impl.plans import Plan as Planned
from pagedkv.impl.plans import Preemption as Preempted
from pagedkv.impl.requests import Limits as OurLimits
from pagedkv.impl.requests import Request as OurRequest
from pagedkv.impl.scheduler import Scheduler as OurScheduler
from pagedkv.spec.alphabet import Add, Extend, Fork, Publish, Release, Retire, Submit
from pagedkv.spec.observation import Naming, Observation
from pagedkv.spec.outcome import Merge, Outcome
from pagedkv.spec.requests import Limits, Request, RequestId, Sample
from pagedkv.spec.scheduler import Scheduler, Shown
from pagedkv.spec.state import Block, Config, Copy, LaunchId
from pagedkv.spec.turn import Choices, Decision, Plan, Preemption, Row


class NotedCache(BlockCache):
    """A cache that notes down what it is asked for: each operation with its outcome, in the spec's words."""

    __slots__ = ("noted",)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.noted: list[tuple[Any, Outcome]] = []

    def add(self, seq: int, tokens: Any, salt: int = 0) -> Any:
        """Add, and note it down."""
        added = super().add(seq, tokens, salt)
        blocks, told = _ids(added.blocks), tokens if isinstance(tokens, int) else _ids(tokens)
        self.noted.append((Add(seq, told, salt), Outcome(blocks[added.hits :], hits=blocks[: added.hits])))
        return added

    def extend(self, seqs: Any, counts: Any = 1) -> Any:
        """Extend, and note it down."""
        extension = super().extend(seqs, counts)
        outcome = Outcome(blocks=_ids(extension.blocks), copies=_copies(extension.copies))
        self.noted.append((Extend(_rows(seqs, counts)), outcome))
        return extension

    def fork(self, parent: int, child: int) -> Any:
        """Fork, and note it down."""
        forked = super().fork(parent, child)
        self.noted.append((Fork(parent, child), Outcome()))
        return forked

    def launch(self, seqs: Any, counts: Any = 1, stream: int = 0) -> Any:
        """Launch, and note it down."""
        launch = super().launch(seqs, counts, stream)
        outcome = Outcome(copies=_copies(launch.copies), launch=launch.id, after=frozenset(launch.after))
        self.noted.append((Submit(_rows(seqs, counts), stream), outcome))
        return launch

    def retire(self, launch_id: int) -> Any:
        """Retire, and note it down."""
        freed = super().retire(launch_id)
        self.noted.append((Retire(launch_id), Outcome(freed=frozenset(_ids(freed)))))
        return freed

    def release(self, seq: int) -> Any:
        """Release, and note it down."""
        freed = super().release(seq)
        self.noted.append((Release(seq), Outcome(freed=frozenset(_ids(freed)))))
        return freed

    def publish(self, seqs: Any, tokens: Any, counts: Any = 1, retention: int = 0) -> Any:
        """Publish, and note it down."""
        publication = super().publish(seqs, tokens, counts, retention)
        ids, telling = iter(np.asarray(tokens).tolist()), []
        for name, count in _rows(seqs, counts):
            telling.append((name, tuple(next(ids) for _ in range(count))))
        merges = zip(*(column.tolist() for column in publication.merges), strict=True)
        outcome = Outcome(
            freed=frozenset(_ids(publication.freed)),
            published=_ids(publication.blocks),
            merges=tuple(Merge(*merge) for merge in merges),
        )
        self.noted.append((Publish(tuple(telling), retention), outcome))
        return publication

    def clone(self) -> Self:
        """Return an independent copy, with nothing noted yet."""
        twin = super().clone()
        twin.noted = []
        return twin


class _View(Implementation):
    """What the scheduler's cache shows; what kernels are told of it is looked at by the drivers of the cache."""

    cache_class = NotedCache
    cache: NotedCache

    def over(self, cache: Any) -> Self:
        """Return a view of another cache."""
        twin = object.__new__(type(self))
        twin.config, twin.cache, twin.wrong, twin.device_table = self.config, cache, "", {}
        return twin

    def observe(self) -> Observation:
        """Return what the cache shows; the device's table is taken from its own."""
        self.device_table = {row: self.cache.block_table(name).tolist() for name, row, _ in self.cache.live()}
        return super().observe()

    def fingerprint(self, naming: Naming) -> Hashable:
        """Return what the cache hides; sequences have their own names here."""
        return self.cache.fingerprint(naming.blocks, naming.sequences, lambda launch: naming.launches.get(launch, 0))


class ImplementedScheduler(Scheduler):
    """`pagedkv.impl.scheduler.Scheduler` behind the drivers' protocol."""

    scheduler_class: Callable[..., OurScheduler] = OurScheduler  # a planted fault is a subclass of it

    def __init__(self, config: Config, limits: Limits) -> None:
        super().__init__(config, limits)
        ours = OurLimits(**{**limits._asdict(), "policy": str(limits.policy)})
        self.view = _View(config)
        self.scheduler = type(self).scheduler_class(self.view.cache, ours)

    @in_the_words_of_the_spec
    def decide(self, word: str, *arguments: Any) -> Decision:
        """Do an operation."""
        match word:
            case "submit":
                return Decision(names=tuple(self.scheduler.submit(_request(*arguments))))
            case "schedule":
                return Decision(plan=_plan(self.scheduler.schedule()))
            case "complete":
                launch, sampled, stopped = arguments
                done = self.scheduler.complete(launch, np.array(sampled, np.int32), stopped)
                return Decision(finished=done.finished)
            case "fail":
                return Decision(preempted=_preemptions(self.scheduler.fail(*arguments)))
            case "preempt":
                return Decision(preempted=_preemptions((self.scheduler.preempt(*arguments),)))
            case _:
                getattr(self.scheduler, word)(*arguments)
                return Decision()

    def issued(self) -> Choices:
        """Return the cache operations since."""
        noted, self.view.cache.noted = self.view.cache.noted, []
        return noted

    def observe(self) -> Observation:
        """Return what the cache shows."""
        return self.view.observe()

    def requests(self) -> Mapping[RequestId, Shown]:
        """Return what is known of each request."""
        views = [self.scheduler.request(id_) for id_ in self.scheduler.requests()]
        return {
            view.id: Shown(view.running, {each.name: Sample(each.tokens, each.pending) for each in view.samples})
            for view in views
        }

    def rows_read(self, launch: LaunchId) -> Sequence[Sequence[Block]]:
        """Return the rows of the table that a launch reads, as they are now."""
        return self.view.rows_read(launch)

    def clone(self) -> Self:
        """Return an independent copy."""
        twin = object.__new__(type(self))
        twin.config, twin.limits = self.config, self.limits
        twin.scheduler = self.scheduler.clone()
        twin.view = self.view.over(twin.scheduler.cache)
        return twin

    def free_order(self) -> Sequence[Block]:
        """Return the free blocks, next to be taken first."""
        return self.view.free_order()

    def fingerprint(self, naming: Naming) -> Hashable:
        """Return what the cache hides."""
        return self.view.fingerprint(naming)


def _request(request: Request) -> OurRequest:
    prompt = request.prompt if isinstance(request.prompt, int) else np.array(request.prompt, np.int32)
    return OurRequest(**{**request._asdict(), "prompt": prompt})


def _plan(plan: Planned) -> Plan:
    rows: tuple[Row, ...] = ()
    if plan.launch is not None:
        columns = (plan.launch.seqs, plan.launch.starts, plan.counts, plan.samples)
        rows = tuple(Row(*row) for row in zip(*(column.tolist() for column in columns), strict=True))
    return Plan(
        plan.launch.id if plan.launch else 0,
        rows,
        tuple(each.request for each in plan.admitted),
        _preemptions(plan.preempted),
        plan.failed,
        tuple((each.parent, each.child) for each in plan.forked),
    )


def _preemptions(each: tuple[Preempted, ...]) -> tuple[Preemption, ...]:
    return tuple(Preemption(preempted.request, preempted.recompute) for preempted in each)


def _ids(blocks: Any) -> tuple[int, ...]:
    return tuple(blocks.tolist())


def _rows(seqs: Any, counts: Any) -> tuple[tuple[int, int], ...]:
    names = np.asarray(seqs).tolist()
    return tuple(zip(names, np.broadcast_to(counts, len(names)).tolist(), strict=True))


def _copies(copies: Any) -> tuple[Copy, ...]:
    return tuple(Copy(*each) for each in zip(*(column.tolist() for column in copies), strict=True))

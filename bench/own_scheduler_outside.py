"""Our own scheduler as a stranger's: behind the protocol of `spec.foreign_scheduler`, with nothing shown but steps.

What lock-step with the policy compares in full must hold from outside, too, and here it is seen how much of a fault
shows there. It claims the discipline of fences, and its device reads the live table, as the cache's launches do.

    pagedkv fuzz --scheduler --target pagedkv.bench.own_scheduler_outside:OwnScheduler
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from pagedkv.impl.cache import BlockCache
from pagedkv.impl.requests import Limits as OurLimits
from pagedkv.impl.requests import Request
from pagedkv.impl.scheduler import Scheduler
from pagedkv.spec.foreign_scheduler import STOP, Config, Discipline, ForeignScheduler, Limits, Row, Step


class OwnScheduler(ForeignScheduler):
    """`pagedkv.impl.scheduler.Scheduler` over a cache of its own."""

    steps_ahead = 2
    shares_prefixes = True
    discipline = Discipline.FENCE
    scheduler_class: Callable[..., Scheduler] = Scheduler  # a planted fault is a subclass of it

    def __init__(self, config: Config, limits: Limits) -> None:
        super().__init__(config, limits)
        cache = BlockCache(config.blocks, config.block_size, launches_in_flight=limits.steps_ahead, rows=4)
        ours = OurLimits(**{**limits._asdict(), "policy": str(limits.policy)})
        self.scheduler = type(self).scheduler_class(cache, ours)
        self.requests: dict[int, int] = {}  # by the name of their sequence

    def submit(self, request: int, prompt: tuple[int, ...], outputs: int, salt: int) -> None:
        """Submit a request of one sample."""
        names = self.scheduler.submit(Request(request, np.array(prompt, np.int32), outputs, salt=salt))
        self.requests[names.start] = request

    def schedule(self) -> Step | None:
        """Plan a step; what the plan says of each row goes into one of the protocol's."""
        plan = self.scheduler.schedule()
        preempted = [each.request for each in plan.preempted]
        if plan.launch is None:
            return Step((), preempted)
        columns = (plan.launch.seqs, plan.launch.starts, plan.counts, plan.samples)
        rows = [
            Row(self.requests[name], start, count, self.scheduler.cache.block_table(name).tolist(), samples > 0)
            for name, start, count, samples in zip(*(column.tolist() for column in columns), strict=True)
        ]
        return Step(rows, preempted, own=plan.launch)

    def complete(self, step: Step, tokens: Mapping[int, int]) -> Iterable[int]:
        """Complete a launch: the tokens in the order of its rows, and the names of those that stop."""
        sampled = [tokens[row.request] for row in step.rows if row.samples]
        names = step.own.seqs.tolist()
        stopped = [name for name in names if tokens.get(self.requests[name]) == STOP]
        return self.scheduler.complete(step.own.id, sampled, stopped).finished

    def abort(self, request: int) -> None:
        """Cancel a request."""
        self.scheduler.cancel(request)

    def rows_read(self, step: Step) -> Sequence[Sequence[Any]]:
        """Return the rows of the live table that a launch reads."""
        return [step.own.table[row] for row in step.own.rows]

    def free_blocks(self) -> int:
        """Return how many blocks are free or idle."""
        counts = self.scheduler.cache.counts
        return counts.free + counts.idle

"""Whatever is scheduled how, the tokens are those of a run without cache, batch or schedule.

Requests come, are cancelled and preempted at random, launches fail, prompts come in chunks, samples fork, one or two
steps are in flight. A toy model samples from what it reads through the block table.
"""

from random import Random

import pytest
from pagedkv.impl.cache import BlockCache
from pagedkv.impl.refusals import Busy
from pagedkv.impl.requests import Limits, Request
from pagedkv.impl.scheduler import Scheduler

from toy_model import VOCABULARY, ToyDevice, continued


class _Run:
    """A scheduler, a device, and what is expected of them."""

    def __init__(self, seed: int, limits: Limits, blocks: int, block_size: int) -> None:
        self.random = Random(seed)
        self.engine = Scheduler(BlockCache(blocks, block_size), limits)
        self.device = ToyDevice(block_size)
        self.expected: dict[int, list[int]] = {}  # sequence -> all its tokens in the end
        self.prompts: dict[int, list[int]] = {}
        self.firsts: dict[int, int] = {}
        self.ids = 0
        self.finished = 0
        self.seen = {"preempted": 0, "forked": 0, "failed": 0, "cancelled": 0, "stale": 0, "hits": 0}

    def submit(self) -> None:
        """Submit a request whose prompt begins like others'."""
        cache, random = self.engine.cache, self.random
        outputs, samples = random.randint(1, 6), random.choice((1, 1, 2, 3))
        most = cache.blocks // samples * cache.block_size - outputs + 1
        if most < 1 or samples > self.engine.limits.max_running:
            return
        common = [token % 3 for token in range(random.choice((0, 4, 8, 12)))]
        prompt = (common + [random.randrange(VOCABULARY) for _ in range(random.randint(1, 6))])[:most]
        salt, priority = random.choice((0, 0, 0, 1)), random.randrange(3)
        names = self.engine.submit(Request(self.ids, prompt, outputs, samples, priority, salt))
        for sample, name in enumerate(names):
            self.prompts[name], self.firsts[name] = prompt, names[0]
            self.expected[name] = continued(prompt, sample, outputs)
        self.ids += 1

    def schedule(self) -> bool:
        """Schedule a step; whether one was launched."""
        plan = self.engine.schedule()
        assert not plan.failed
        self.seen["preempted"] += len(plan.preempted)
        self.seen["forked"] += len(plan.forked)
        self.seen["hits"] += sum(admission.hit_tokens for admission in plan.admitted)
        if plan.launch is not None:
            known = {name: self.prompts[name] + tokens for name, tokens in self.tokens().items()}
            self.device.submit(plan, known, self.firsts)
        return plan.launch is not None

    def tokens(self) -> dict[int, list[int]]:
        """Return what is sampled so far of every sample that is not done."""
        views = [self.engine.request(request) for request in self.engine.requests()]
        return {sample.name: list(sample.tokens) for view in views for sample in view.samples}

    def complete(self) -> None:
        """Execute and complete the oldest launch; whoever is done has got its last token by it."""
        plan, rows = self.device.queue[0]
        assert plan.launch is not None
        receivers = [name for row in rows for name in row.names]
        before = self.tokens()
        sampled = self.device.execute()
        self.finished += len(self.engine.complete(plan.launch.id, sampled).finished)
        after = self.tokens()
        for name, token in zip(receivers, sampled, strict=True):
            if name not in before or after.get(name) == before[name]:
                self.seen["stale"] += 1
            elif name not in after:
                assert [*before[name], token] == self.expected[name]
        for name, tokens in after.items():
            assert tokens == self.expected[name][: len(tokens)]

    def disturb(self) -> None:
        """Cancel or preempt somebody, or let a launch fail."""
        requests = self.engine.requests()
        what = self.random.choice(("cancel", "preempt", "fail"))
        if what == "fail" and self.device.queue:
            launch = self.device.queue[0][0].launch
            assert launch is not None
            self.engine.fail(launch.id)
            self.device.drop()
            self.seen["failed"] += 1
        elif what == "cancel" and requests:
            self.engine.cancel(self.random.choice(requests))
            self.seen["cancelled"] += 1
        elif what == "preempt" and requests:
            try:
                self.engine.preempt(self.random.choice(requests))
            except Busy:
                return
            self.seen["preempted"] += 1

    def turn(self) -> None:
        """Do one thing or another."""
        drawn = self.random.random()
        if drawn < 0.15:
            self.submit()
        elif drawn < 0.2:
            self.disturb()
        elif drawn < 0.6:
            self.schedule()
        elif self.device.queue:
            self.complete()

    def end(self) -> None:
        """Let all that is there finish, within a bound: each step that isn't empty writes a token for the first."""
        steps = 0
        while self.engine.requests() or self.device.queue:
            if not self.schedule():
                assert self.device.queue, "somebody waits, nobody runs, and nothing is in flight"
            while len(self.device.queue) == self.engine.limits.steps_ahead or (
                self.device.queue and not self.schedule()
            ):
                self.complete()
            steps += 1
            assert steps < 2000
        self.engine.cache.check()
        counts = self.engine.cache.counts
        assert counts.free + counts.idle == counts.blocks


@pytest.mark.parametrize("seed", range(60))
def test_tokens_are_those_of_a_plain_run(seed: int) -> None:
    random = Random(f"limits {seed}")
    limits = Limits(
        max_tokens_per_step=random.choice((1, 3, 8, 100)),
        max_running=random.choice((3, 4, 100)),
        steps_ahead=1 + seed % 2,
        watermark_blocks=random.choice((0, 0, 1)),
        policy="priority" if seed % 3 == 0 else "fcfs",
        prefix_cache=seed % 5 > 0,
    )
    run = _Run(seed, limits, random.choice((6, 9, 15)), random.choice((1, 2, 4)))
    for _ in range(300):
        run.turn()
    run.end()


def test_the_runs_meet_what_they_are_for() -> None:
    """One long run preempts, forks, fails, cancels, hits, and gets results of lives that are over."""
    run = _Run(1, Limits(max_tokens_per_step=8, max_running=9, steps_ahead=2), 12, 2)
    for _ in range(3000):
        run.turn()
    run.end()
    assert min(run.seen.values()) > 10, run.seen
    assert run.finished > 100

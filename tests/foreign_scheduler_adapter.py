"""The stranger's scheduler behind our drivers: all that its author would have to write, from the protocol's text."""

from collections.abc import Mapping

from pagedkv.spec.foreign_scheduler import STOP, Config, Copy, ForeignScheduler, Limits, Row, Step

from foreign_scheduler_sample import Batch, PagedScheduler, Seq


class ForeignEngine(ForeignScheduler):
    """`foreign_scheduler_sample.PagedScheduler`, seen from outside."""

    first_block = 0
    shares_prefixes = True
    scheduler_class = PagedScheduler  # a planted fault is a subclass of it

    def __init__(self, config: Config, limits: Limits) -> None:
        super().__init__(config, limits)
        self.scheduler = type(self).scheduler_class(
            config.blocks,
            config.block_size,
            limits.max_tokens_per_step,
            limits.max_running,
            STOP,
            caching=limits.prefix_cache,
        )
        self.seqs: dict[int, Seq] = {}

    def submit(self, request: int, prompt: tuple[int, ...], outputs: int, salt: int) -> None:
        """Add a request."""
        self.seqs[request] = Seq(request, list(prompt), outputs, salt)
        self.scheduler.add(self.seqs[request])

    def schedule(self) -> Step:
        """Plan a step."""
        batch = self.scheduler.schedule()
        rows = [
            Row(seq.seq_id, seq.computed, count, tuple(seq.table), seq.computed + count == len(seq.tokens))
            for seq, count in batch.counts.items()
        ]
        size = self.config.block_size
        copies = [Copy(seq.seq_id, source, target, size) for seq, source, target in batch.copies]
        return Step(rows, [seq.seq_id for seq in batch.preempted], copies, own=batch)

    def complete(self, step: Step, tokens: Mapping[int, int]) -> list[int]:
        """Take the tokens."""
        batch: Batch = step.own
        return [seq.seq_id for seq in self.scheduler.update(batch, dict(tokens))]

    def abort(self, request: int) -> None:
        """Cancel a request."""
        self.scheduler.cancel(self.seqs[request])

    def free_blocks(self) -> int:
        """Return how many blocks nobody uses."""
        return len(self.scheduler.free)

"""Faults planted in the stranger's scheduler, one for each rule that can be seen from outside."""

from foreign_scheduler_adapter import ForeignEngine
from foreign_scheduler_sample import Batch, PagedScheduler, Seq


def planted(scheduler: type[PagedScheduler]) -> type[ForeignEngine]:
    """Return an adapter of a faulty scheduler."""
    return type(scheduler.__name__, (ForeignEngine,), {"scheduler_class": scheduler})


class SkipsAPosition(PagedScheduler):
    """Behind a chunk of a prompt a position is passed over, and read later."""

    def update(self, batch: Batch, sampled: dict[int, int]) -> list[Seq]:
        chunks = [seq for seq, count in batch.counts.items() if seq.computed + count < len(seq.tokens) - 1]
        done = super().update(batch, sampled)
        for seq in chunks:
            seq.computed += 1
        return done


class TakesTheSameBlockTwice(PagedScheduler):
    """A block is looked at where it should be taken."""

    def take(self) -> int:
        block = super().take()
        if len(self.free) > 1:
            self.free.append(block)
        self.users[block] = 0
        return block

    def drop(self, block: int) -> None:
        if block not in self.free:
            self.free.append(block)

    def fits(self, blocks: int) -> bool:
        return super().fits(max(blocks, 1))


class AbortLeaks(PagedScheduler):
    """Who is cancelled before its prompt is computed keeps its blocks."""

    def cancel(self, seq: Seq) -> None:
        if seq in self.running and seq.computed < seq.prompt_len:
            self.running.remove(seq)
        else:
            super().cancel(seq)


class AbortForgotten(PagedScheduler):
    """Who is cancelled while it runs runs on."""

    def cancel(self, seq: Seq) -> None:
        if seq in self.waiting:
            super().cancel(seq)


class EndsEarly(PagedScheduler):
    """A sequence that ends with a full block is done a token early."""

    def update(self, batch: Batch, sampled: dict[int, int]) -> list[Seq]:
        done = super().update(batch, sampled)
        for seq in [seq for seq in batch.counts if seq in self.running]:
            if len(seq.tokens) == seq.prompt_len + seq.max_new - 1 and len(seq.tokens) % self.block_size == 0:
                self.running.remove(seq)
                self.release(seq)
                done.append(seq)
        return done


class WritesToAHit(PagedScheduler):
    """A prompt that is found whole computes its last token in the block of others."""

    def split_last(self, batch: Batch, seq: Seq) -> None:  # noqa: ARG002  (replaces a method)
        seq.computed -= 1


class CopyOutlivesItsRequest(PagedScheduler):
    """The copy of a block is asked for once more, in the step after."""

    last: tuple[Seq, int, int] | None = None

    def schedule(self) -> Batch:
        batch = super().schedule()
        if self.last and batch.counts:
            batch.copies.insert(0, self.last)
        self.last = batch.copies[-1] if batch.copies and not self.last else None
        return batch


class TenantsShare(PagedScheduler):
    """The key of a block leaves out whose it is."""

    def key(self, seq: Seq, blocks: int) -> tuple[int, ...]:
        return super().key(seq, blocks)[1:]


class KeyWithoutItsParent(PagedScheduler):
    """The key of a block is its own tokens, without those before."""

    def key(self, seq: Seq, blocks: int) -> tuple[int, ...]:
        return (seq.tenant, *seq.tokens[: blocks * self.block_size][-self.block_size :])


class PublishesWhatIsNotComputed(PagedScheduler):
    """With the first chunk of a prompt all its blocks can be found."""

    def publish(self, seq: Seq) -> None:
        computed, seq.computed = seq.computed, len(seq.tokens)
        super().publish(seq)
        seq.computed = computed


class NothingLeftToCompute(PagedScheduler):
    """A prompt that is found whole has nothing to compute."""

    def split_last(self, batch: Batch, seq: Seq) -> None:
        pass


class NoBlockAtAnExactMultiple(PagedScheduler):
    """A sequence that has filled its last block gets no new one."""

    def blocks_of(self, tokens: int) -> int:
        return max(1, -(-(tokens - 1) // self.block_size))


class BudgetForPromptsAlone(PagedScheduler):
    """What decodes is not counted."""

    def schedule(self) -> Batch:
        decoding = sum(len(seq.tokens) - seq.computed == 1 for seq in self.running)
        self.budget += decoding
        try:
            return super().schedule()
        finally:
            self.budget -= decoding


class OneMoreThanMayRun(PagedScheduler):
    """Whether another may run is looked at when it runs already."""

    def schedule(self) -> Batch:
        self.max_seqs += 1
        try:
            return super().schedule()
        finally:
            self.max_seqs -= 1


class ForgetsWhatWasSampled(PagedScheduler):
    """A preempted sequence begins again with its prompt alone."""

    def preempt(self, batch: Batch, seq: Seq) -> None:
        super().preempt(batch, seq)
        del seq.tokens[seq.prompt_len :]


class KeepsWhatItComputed(PagedScheduler):
    """A preempted sequence goes on where it was, in other blocks."""

    def preempt(self, batch: Batch, seq: Seq) -> None:
        computed = seq.computed
        super().preempt(batch, seq)
        seq.computed = computed

    def admit(self, batch: Batch, seq: Seq, hits: list[int], *, whole: bool) -> None:
        computed = seq.computed
        super().admit(batch, seq, hits, whole=whole)
        seq.computed = max(computed, seq.computed)


class VictimInTheBatch(PagedScheduler):
    """A preempted sequence has its row in the step nevertheless."""

    def preempt(self, batch: Batch, seq: Seq) -> None:
        super().preempt(batch, seq)
        batch.counts[seq] = 1


class WaitsForOneBlockMore(PagedScheduler):
    """A sequence as long as the pool is never let in."""

    def fits(self, blocks: int) -> bool:
        return super().fits(blocks + (not self.running))


FAULTS: dict[type[PagedScheduler], str] = {
    SkipsAPosition: "R-DATA",
    TakesTheSameBlockTwice: "R-OWN-3",
    AbortLeaks: "R-OWN-4",
    AbortForgotten: "R-LIFE-7",
    EndsEarly: "R-LIFE-7",
    WritesToAHit: "R-COW-1",
    CopyOutlivesItsRequest: "R-COW-3",
    TenantsShare: "R-HASH-1",
    KeyWithoutItsParent: "R-HASH-3",
    PublishesWhatIsNotComputed: "R-HASH-4",
    NothingLeftToCompute: "R-HASH-5",
    NoBlockAtAnExactMultiple: "R-TAB-1",
    OneMoreThanMayRun: "R-CAP-4",
    ForgetsWhatWasSampled: "R-PRE-1",
    KeepsWhatItComputed: "R-PRE-1",
    VictimInTheBatch: "R-PRE-2",
    BudgetForPromptsAlone: "R-PRE-2",
    WaitsForOneBlockMore: "R-PRE-3",
}

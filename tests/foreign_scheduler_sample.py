"""A scheduler with its cache as somebody else would write it, with an interface of its own. It knows nothing of ours.

In the manner of nano-vllm: a list of what runs, a queue of what waits, whole steps planned and taken one after the
other. Prompts are computed in chunks; where blocks run out, the last that came is preempted and computes everything
again. Full blocks are found again by a dict from their tokens, all from the first on, and stay there until their block
is needed. Where a prompt is found whole, its last block is copied, and its last token computed into the copy.
"""

from collections import deque


class Seq:
    """A request."""

    def __init__(self, seq_id: int, tokens: list[int], max_new: int, tenant: int = 0) -> None:
        self.seq_id = seq_id
        self.tokens = tokens  # the prompt's, then those sampled
        self.prompt_len = len(tokens)
        self.max_new = max_new
        self.tenant = tenant
        self.table: list[int] = []
        self.computed = 0  # leading tokens whose KV is in the blocks


class Batch:
    """A step: who computes how many tokens, which blocks are copied before, who was preempted for it."""

    def __init__(self) -> None:
        self.counts: dict[Seq, int] = {}
        self.copies: list[tuple[Seq, int, int]] = []  # for whom, from, to
        self.preempted: list[Seq] = []


class PagedScheduler:
    """Continuous batching over a paged cache of `num_blocks` blocks, numbered from 0."""

    def __init__(
        self, num_blocks: int, block_size: int, budget: int, max_seqs: int, end: int, *, caching: bool = True
    ) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.budget, self.max_seqs, self.end, self.caching = budget, max_seqs, end, caching
        self.waiting: deque[Seq] = deque()
        self.running: list[Seq] = []
        self.free = deque(range(num_blocks))  # the least recently freed first; some are cached
        self.users = [0] * num_blocks
        self.cached: dict[tuple[int, ...], int] = {}  # tenant and tokens from the first on: the block of the last ones
        self.key_of: dict[int, tuple[int, ...]] = {}

    # ---- what the engine calls

    def add(self, seq: Seq) -> None:
        """Queue a request."""
        self.waiting.append(seq)

    def cancel(self, seq: Seq) -> None:
        """Drop a request."""
        if seq in self.waiting:
            self.waiting.remove(seq)
        else:
            self.running.remove(seq)
            self.release(seq)

    def schedule(self) -> Batch:
        """Plan a step: what runs first, then what waits, as far as budget and blocks go."""
        batch = Batch()
        left = self.budget
        for seq in list(self.running):
            if seq not in self.running or not left:
                continue
            count = min(left, len(seq.tokens) - seq.computed)
            if self.make_room(batch, seq, count):
                batch.counts[seq] = count
                left -= count
        while self.waiting and left and len(self.running) < self.max_seqs and not batch.preempted:
            seq = self.waiting[0]
            hits, whole = self.look_up(seq)
            needed = self.blocks_of(len(seq.tokens)) - len(hits) + whole
            idle = sum(not self.users[block] for block in hits)
            if not self.fits(needed + idle):
                break
            self.admit(batch, self.waiting.popleft(), hits, whole=whole)
            batch.counts[seq] = min(left, len(seq.tokens) - seq.computed)
            left -= batch.counts[seq]
        return batch

    def update(self, batch: Batch, sampled: dict[int, int]) -> list[Seq]:
        """Take what a step has sampled; return who is done."""
        done = []
        for seq, count in batch.counts.items():
            if seq not in self.running:
                continue
            seq.computed += count
            self.publish(seq)
            if seq.computed == len(seq.tokens):
                seq.tokens.append(sampled[seq.seq_id])
                if seq.tokens[-1] == self.end or len(seq.tokens) == seq.prompt_len + seq.max_new:
                    self.running.remove(seq)
                    self.release(seq)
                    done.append(seq)
        return done

    # ---- who runs

    def make_room(self, batch: Batch, seq: Seq, count: int) -> bool:
        """Grow a table, at the cost of the last that came; False if that is the sequence itself."""
        while not self.fits(self.blocks_of(seq.computed + count) - len(seq.table)):
            victim = self.running.pop()
            self.preempt(batch, victim)
            if victim is seq:
                return False
        self.grow(seq, seq.computed + count)
        return True

    def preempt(self, batch: Batch, seq: Seq) -> None:
        """Put a sequence back to the head of the queue."""
        self.release(seq)
        seq.computed = 0
        batch.counts.pop(seq, None)
        batch.preempted.append(seq)
        self.waiting.appendleft(seq)

    def admit(self, batch: Batch, seq: Seq, hits: list[int], *, whole: bool) -> None:
        """Let a sequence run, with the blocks that were found and new ones for the rest."""
        for block in hits:
            self.hold(block)
        seq.table = hits
        seq.computed = len(hits) * self.block_size
        if whole:
            self.split_last(batch, seq)
        self.grow(seq, len(seq.tokens))
        self.running.append(seq)

    def split_last(self, batch: Batch, seq: Seq) -> None:
        """Give a sequence a copy of its last block, and let it compute its last token again."""
        seq.computed -= 1
        source = seq.table.pop()
        seq.table.append(self.take())
        batch.copies.append((seq, source, seq.table[-1]))
        self.drop(source)

    # ---- blocks

    def blocks_of(self, tokens: int) -> int:
        """Return how many blocks so many tokens need."""
        return -(-tokens // self.block_size)

    def fits(self, blocks: int) -> bool:
        """Whether so many blocks can be taken."""
        return len(self.free) >= blocks

    def grow(self, seq: Seq, tokens: int) -> None:
        """Give a sequence blocks for so many tokens."""
        while len(seq.table) < self.blocks_of(tokens):
            seq.table.append(self.take())

    def take(self) -> int:
        """Take a free block; what is cached in it is forgotten."""
        block = self.free.popleft()
        self.users[block] = 1
        key = self.key_of.pop(block, None)
        if key is not None:
            del self.cached[key]
        return block

    def hold(self, block: int) -> None:
        """Hold a block that was found."""
        if not self.users[block]:
            self.free.remove(block)
        self.users[block] += 1

    def drop(self, block: int) -> None:
        """Let go of a block."""
        self.users[block] -= 1
        if not self.users[block]:
            self.free.append(block)

    def release(self, seq: Seq) -> None:
        """Let go of all blocks of a sequence, the last first."""
        for block in reversed(seq.table):
            self.drop(block)
        seq.table = []

    # ---- prefixes

    def key(self, seq: Seq, blocks: int) -> tuple[int, ...]:
        """Return under which key the last of so many full blocks is found."""
        return (seq.tenant, *seq.tokens[: blocks * self.block_size])

    def look_up(self, seq: Seq) -> tuple[list[int], bool]:
        """Return the blocks that hold the first tokens of a sequence, and whether that is all of them."""
        hits: list[int] = []
        while self.caching and len(hits) < len(seq.tokens) // self.block_size:
            block = self.cached.get(self.key(seq, len(hits) + 1))
            if block is None:
                break
            hits.append(block)
        return hits, len(hits) * self.block_size == len(seq.tokens)

    def publish(self, seq: Seq) -> None:
        """Let the full blocks of a sequence be found."""
        for at in range(seq.computed // self.block_size if self.caching else 0):
            key, block = self.key(seq, at + 1), seq.table[at]
            if key not in self.cached and block not in self.key_of:
                self.cached[key] = block
                self.key_of[block] = key

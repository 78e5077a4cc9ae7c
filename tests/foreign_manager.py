"""A block manager as somebody else would write it, with an interface of its own. It knows nothing of this project.

In the manner of nano-vllm and of the first vLLM: sequences carry their block table and their length, `can_allocate`
comes before `allocate` and `can_append` before `may_append`, one token at a time; blocks count from 0, free ones wait
in a deque, and a forked sequence shares its blocks until somebody writes. Everything runs in one stream, so a block is
free again as soon as its last user is gone. A block copy that `may_append` asks for keeps its source until
`copies_done` says that it has been submitted.
"""

from collections import deque


class Seq:
    """A request: its length in tokens, and the blocks that hold them."""

    def __init__(self, num_tokens: int) -> None:
        self.num_tokens = num_tokens
        self.block_table: list[int] = []
        self.copy_sources: list[int] = []  # blocks that are to be copied for this sequence


class BlockManager:
    """Hands out blocks by reference count."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.ref_count = [0] * num_blocks
        self.free_block_ids = deque(range(num_blocks))

    def num_blocks_for(self, seq: Seq) -> int:
        """Return how many blocks a sequence fills."""
        return (seq.num_tokens + self.block_size - 1) // self.block_size

    def can_allocate(self, seq: Seq) -> bool:
        """Whether there are blocks for a new sequence."""
        return len(self.free_block_ids) >= self.num_blocks_for(seq)

    def allocate(self, seq: Seq) -> None:
        """Give a new sequence its blocks."""
        assert not seq.block_table
        seq.block_table = [self._pop_free() for _ in range(self.num_blocks_for(seq))]

    def fork(self, parent: Seq) -> Seq:
        """Start a second sequence on the blocks of the first."""
        child = Seq(parent.num_tokens)
        child.block_table = list(parent.block_table)
        for block_id in child.block_table:
            self.ref_count[block_id] += 1
        return child

    def can_append(self, seq: Seq) -> bool:
        """Whether there is room for one more token of a sequence."""
        return bool(self.free_block_ids) or not (self._is_full(seq) or self._is_shared(seq.block_table[-1]))

    def may_append(self, seq: Seq) -> tuple[int, int] | None:
        """Make room for one more token; return the block copy (source, target) to be done before it is written."""
        copy = None
        if self._is_full(seq):
            seq.block_table.append(self._pop_free())
        elif self._is_shared(source := seq.block_table[-1]):
            copy = (source, self._pop_free())
            seq.block_table[-1] = copy[1]
            seq.copy_sources.append(source)  # with the reference that the sequence had
        seq.num_tokens += 1
        return copy

    def copies_done(self, seq: Seq) -> None:
        """Let go of the sources of a sequence's copies: the stream has them."""
        while seq.copy_sources:
            self._unref(seq.copy_sources.pop())

    def deallocate(self, seq: Seq) -> None:
        """Take a sequence's blocks back."""
        self.copies_done(seq)
        for block_id in reversed(seq.block_table):
            self._unref(block_id)
        seq.block_table.clear()
        seq.num_tokens = 0

    def _is_full(self, seq: Seq) -> bool:
        return seq.num_tokens == len(seq.block_table) * self.block_size

    def _is_shared(self, block_id: int) -> bool:
        return self.ref_count[block_id] > 1

    def _pop_free(self) -> int:
        block_id = self.free_block_ids.popleft()
        self.ref_count[block_id] = 1
        return block_id

    def _unref(self, block_id: int) -> None:
        self.ref_count[block_id] -= 1
        if self.ref_count[block_id] == 0:
            self.free_block_ids.append(block_id)

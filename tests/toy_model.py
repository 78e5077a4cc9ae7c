"""A toy model on a toy device: what it samples depends on every slot that it reads, and on nothing else.

The content of a slot stands for its K and V: a number mixed from the content before it and the token written there. The
next token is folded from all contents that the block table leads to, so a block recycled too early, a copy not made or
a position computed from a wrong token shows in what is sampled. Launches execute in order, when they are told to.
"""

from collections import deque
from functools import reduce
from typing import NamedTuple

from pagedkv.impl.plans import Plan
from pagedkv.impl.results import Launch

VOCABULARY = 97


def mixed(content: int, token: int) -> int:
    """Return the content of a position, from the one before it and its token."""
    return (content * 1_000_003 + token + 1) % (2**61 - 1)


def next_token(contents: list[int], sample: int) -> int:
    """Return what the model samples after reading these contents."""
    return reduce(mixed, [*contents, sample], 7) % VOCABULARY


def continued(prompt: list[int], sample: int, outputs: int) -> list[int]:
    """Return what a sample of a prompt gives without any cache, batch or schedule."""
    tokens = prompt.copy()
    for _ in range(outputs):
        contents: list[int] = []
        for token in tokens:
            contents.append(mixed(contents[-1] if contents else 0, token))
        tokens.append(next_token(contents, sample))
    return tokens[len(prompt) :]


class _Row(NamedTuple):
    names: range  # who gets a token of it
    known: list[int]  # tokens from its first position on, as far as the host knows them


class ToyDevice:
    """Slots with contents, and launches that wait for their execution."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.contents: dict[int, int] = {}  # slot -> content
        self.newest: dict[int, int] = {}  # sequence -> the last token sampled for it, which the host may not know yet
        self.queue: deque[tuple[Plan, list[_Row]]] = deque()

    def submit(self, plan: Plan, known: dict[int, list[int]], first_names: dict[int, int]) -> None:
        """Take a launch: `known` are all tokens of each sequence, `first_names` of its request's first sample."""
        assert plan.launch is not None
        rows = []
        for name, start, end, samples in zip(
            *(column.tolist() for column in (plan.launch.seqs, plan.launch.starts, plan.launch.lengths, plan.samples)),
            strict=True,
        ):
            rows.append(_Row(range(name, name + samples), known[name][start:end]))
        self.first_names = first_names
        self.queue.append((plan, rows))

    def execute(self) -> list[int]:
        """Execute the oldest launch; return what it samples."""
        plan, rows = self.queue.popleft()
        launch = plan.launch
        assert launch is not None
        for source, target, extent in zip(*(column.tolist() for column in launch.copies[1:]), strict=True):
            for offset in range(extent):
                slot = source * self.block_size + offset
                self.contents[target * self.block_size + offset] = self.contents.get(slot, -1)
        sampled = []
        for at, row in enumerate(rows):
            contents = self._write(launch, at, row)
            for name in row.names:
                self.newest[name] = next_token(contents, name - self.first_names[name])
                sampled.append(self.newest[name])
        return sampled

    def drop(self) -> None:
        """Lose the oldest launch."""
        self.queue.popleft()

    def _write(self, launch: Launch, at: int, row: _Row) -> list[int]:
        """Write the new positions of a row; return all contents up to them, as its block table has them."""
        start, end = launch.starts.item(at), launch.lengths.item(at)
        table = launch.table[launch.rows[at]].tolist()
        slots = [table[place // self.block_size] * self.block_size + place % self.block_size for place in range(end)]
        tokens = (
            row.known if len(row.known) == end - start else [self.newest.get(launch.seqs.item(at), 0)]
        )  # 0: what would have given it, failed
        for place, token in enumerate(tokens, start):
            before = self.contents.get(slots[place - 1], -1) if place else 0
            self.contents[slots[place]] = mixed(before, token)
        return [self.contents.get(slot, -1) for slot in slots]

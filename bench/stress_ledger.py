"""What each sequence should be, kept apart from the scheduler; and each output row compared with the oracle.

The ledger is told what the loop was asked and what it answered: plans, and the tokens that came back. From that alone
it knows, for every life of every sequence, which tokens it has: those known when the life began, and those that
launches of this life sampled. So it can say for any launch, also one whose requests were cancelled or preempted
meanwhile, which tokens each row should have computed with; the dense oracle says what must come of them.
"""

from collections import deque
from dataclasses import dataclass, field

import torch
from pagedkv.bench.lookup_model import LookupModel, Record, ShareFailed
from pagedkv.impl.loop import Collected
from pagedkv.impl.plans import Plan
from pagedkv.impl.requests import Request
from torch import Tensor

TOLERANCE = 2e-4  # float32 kernels against float64, outputs of size 1
SCORE_TOLERANCE = 1e-2  # scores are sums of some hundred outputs


class WrongRow(Exception):  # noqa: N818  (what was found)
    """An output row is not what the tokens of its sequence give."""


@dataclass(slots=True)
class _Sample:
    """One sample of a request."""

    request: int
    prompt: list[int]
    outputs: int
    sampled: list[int] = field(default_factory=list)
    life: "_Life | None" = None  # None while it waits, and when it is done


@dataclass(slots=True, eq=False)
class _Life:
    """What a sequence has computed with, from one admission on; beyond its end, too, for what is in flight."""

    tokens: list[int]
    failed: bool = False  # a launch of it failed: what those behind it computed with is unknown, and nobody's


@dataclass(frozen=True, slots=True)
class _Row:
    name: int
    life: _Life
    start: int
    length: int
    receivers: tuple[tuple[int, _Life], ...]


@dataclass(slots=True)
class Tally:
    """What happened, so that one can see that it did."""

    launches: int = 0
    rows: int = 0
    positions: int = 0
    tokens: int = 0
    copies: int = 0
    forks: int = 0
    preemptions: int = 0
    cancellations: int = 0
    hit_tokens: int = 0
    merges: int = 0
    failures: int = 0
    stale_tokens: int = 0  # sampled for a life that was over
    bytes_uploaded: int = 0

    def add(self, other: "Tally") -> None:
        """Add another one up."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Ledger:
    """Follows one loop: `submitted`, `gone`, `preempted`, `planned`, `collected`."""

    def __init__(self, model: LookupModel, where: str) -> None:
        self.tally = Tally()
        self.live: dict[int, range] = {}  # request -> names
        self._model = model
        self._where = where
        self._samples: dict[int, _Sample] = {}
        self._launches: deque[list[_Row]] = deque()

    def submitted(self, request: Request, names: range) -> None:
        """A request was taken in."""
        assert not isinstance(request.prompt, int), "the loop computes token ids"
        self.live[request.id] = names
        for name in names:
            self._samples[name] = _Sample(request.id, [int(token) for token in request.prompt], request.outputs)

    def gone(self, request: int) -> None:
        """A request was cancelled, or is finished."""
        for name in self.live.pop(request):
            del self._samples[name]

    def preempted(self, request: int) -> None:
        """A request waits again."""
        self.tally.preemptions += 1
        for name in self.live[request]:
            self._samples[name].life = None

    def planned(self, plan: Plan, bytes_uploaded: int) -> None:
        """A step was planned, and handed to the device."""
        for preemption in plan.preempted:
            self.preempted(preemption.request)
        for request in plan.failed:
            self.gone(request)
        for admission in plan.admitted:
            self.tally.hit_tokens += admission.hit_tokens
            for name in admission.names:
                self._begin(name)
        for fork in plan.forked:
            self.tally.forks += 1
            self._begin(fork.child)
        if plan.launch is None:
            return
        launch, rows = plan.launch, []
        columns = (launch.seqs, launch.starts, launch.lengths, plan.samples)
        for name, start, length, samples in zip(*(column.tolist() for column in columns), strict=True):
            names = self.live[self._samples[name].request] if samples > 1 else (name,) * samples
            receivers = tuple((receiver, self._life(receiver)) for receiver in names)
            rows.append(_Row(name, self._life(name), start, length, receivers))
        self._launches.append(rows)
        self.tally.copies += launch.copies.targets.size
        self.tally.bytes_uploaded += bytes_uploaded

    def collected(self, collected: Collected, record: Record | None) -> None:
        """A launch was completed: hold it to the oracle, then take note of what it sampled. Raises `WrongRow`."""
        if collected.error is not None:
            self._failed(collected)
            return
        assert record is not None, "a launch that did not fail has a record"
        self._compare(collected.launch, record)
        tokens = iter(collected.sampled.tolist())
        self.tally.launches += 1
        for row in self._launches.popleft():
            self.tally.rows += 1
            self.tally.positions += row.length - row.start
            for name, life in row.receivers:
                self._give(name, life, next(tokens))
        publication = collected.completion.publication
        self.tally.merges += 0 if publication is None else publication.merges.seqs.size
        for request in collected.completion.finished:
            self.gone(request)

    def _failed(self, collected: Collected) -> None:
        """Note a launch that failed on purpose; any other is an error."""
        if not isinstance(collected.error and collected.error.__cause__, ShareFailed):
            raise WrongRow(f"{self._where}: launch {collected.launch} failed: {collected.error}")
        self.tally.failures += 1
        for row in self._launches.popleft():
            row.life.failed = True
            for _, life in row.receivers:
                life.failed = True
        for preemption in collected.preempted:
            self.preempted(preemption.request)

    def _begin(self, name: int) -> None:
        sample = self._samples[name]
        sample.life = _Life(sample.prompt + sample.sampled)

    def _life(self, name: int) -> _Life:
        life = self._samples[name].life
        if life is None:
            raise WrongRow(f"{self._where}: sequence {name} has a row and is none that runs")
        return life

    def _give(self, name: int, life: _Life, token: int) -> None:
        """Note a token that was sampled for a life, which may be over."""
        life.tokens.append(token)
        sample = self._samples.get(name)
        if sample is None or sample.life is not life:
            self.tally.stale_tokens += 1
            return
        self.tally.tokens += 1
        sample.sampled.append(token)
        if len(sample.sampled) == sample.outputs:
            sample.life = None

    def _compare(self, launch: int, record: Record) -> None:
        """Compare every output row of a launch, and every token sampled from one."""
        attention = [output.cpu().double() for output in record.attention]
        sampled = record.sampled.tolist()
        first = 0
        for row in self._launches[0]:
            end = first + row.length - row.start
            if row.life.failed:
                first, sampled = end, sampled[len(row.receivers) :]
                continue
            if len(row.life.tokens) < row.length:
                raise WrongRow(f"{self._where}: launch {launch} computes {row.length} positions of sequence {row.name},"
                               f" which has {len(row.life.tokens)} tokens")  # fmt: skip
            outputs, hidden = self._model.expected(row.life.tokens[: row.length], row.start)
            for layer, (found, output) in enumerate(zip(attention, outputs, strict=True)):
                place = _first_difference(found[first:end], output)
                if place is not None:
                    raise WrongRow(
                        f"{self._where}: launch {launch}, layer {layer}: the output at position {row.start + place} of"
                        f" sequence {row.name} is not what its tokens give"
                    )
            scores = self._model.scores(hidden[-1:])[0]
            for ordinal, (name, _) in enumerate(row.receivers):
                token = sampled.pop(0)
                if float(scores.max() - scores[(token - ordinal) % self._model.vocabulary]) > SCORE_TOLERANCE:
                    raise WrongRow(f"{self._where}: launch {launch} sampled {token} for sequence {name}: not the best")
            first = end


def _first_difference(found: Tensor, expected: Tensor) -> int | None:
    """Return the first position whose numbers differ; NaN differs from everything."""
    same = ((found - expected).abs() <= TOLERANCE).flatten(1).all(dim=1)
    return None if bool(same.all()) else int(torch.nonzero(~same)[0, 0])

"""What was before paging: each sequence in one run of consecutive slots, exactly as long as it is.

An engine for `replay` with blocks of one token. A sequence that grows takes the slot behind it where that is free;
else it *relocates* to the first free run that holds it with its new token, and its tokens are copied; and where there
is no such run though there are free slots, all sequences are *compacted* around it: those below it and itself to the
bottom, those above it to the top, so that the free slots lie behind it. So growth never fails while one slot is free,
and what external fragmentation costs is told by what was copied.

It is generous to this baseline: what a relocated or finished sequence leaves is free at once, as if the device had
nothing in flight, and copying takes no time. First fit is the usual choice; best fit leaves smaller holes and was
not tried.

Cost: a growth in place is O(1), a relocation O(free runs), a compaction O(sequences).
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from contextlib import contextmanager

from pagedkv.bench.engines import EngineOptions, Holding, Usage
from pagedkv.bench.traces import Int64Array
from pagedkv.impl.refusals import BadCount, Busy, Duplicate, NoSpace, Unknown, UnknownLaunch
from pagedkv.spec.counts import counted


class ContiguousEngine:
    """Sequences in consecutive slots 0 to `slots` - 1; see `Engine`. Copies are counted in tokens."""

    def __init__(self, slots: int, launches_in_flight: int) -> None:
        self.slots = slots
        self.relocations = 0
        self.compactions = 0
        self.copied_tokens = 0
        self._launches_in_flight = launches_in_flight
        self._start: dict[int, int] = {}
        self._length: dict[int, int] = {}
        self._launched: dict[int, int] = {}
        self._free_at: list[int] = [0]  # where free runs begin, ascending; no two touch
        self._free_length: dict[int, int] = {0: slots}
        self._free = slots
        self._launch_id = 0
        self._in_flight: list[int] = []

    def add(self, seq: int, tokens: int) -> int:
        """See `Engine`."""
        if seq in self._start:
            raise Duplicate(f"sequence {seq} is live already")
        if tokens > self._free:
            raise NoSpace(f"sequence {seq} needs {counted(tokens, 'slot')} and {self._free} are free")
        at = self._first_fit(tokens)
        if at is None:
            self._compact(None)
            (at,) = self._free_at
        self._take(at, tokens)
        self._start[seq], self._length[seq], self._launched[seq] = at, tokens, 0
        return tokens

    def extend(self, seqs: Int64Array) -> int:
        """See `Engine`."""
        names = seqs.tolist()
        for seq in names:
            self._known(seq)
        if len(names) > self._free:
            raise NoSpace(f"slots needed: {len(names)}, free: {self._free}")
        for seq in names:
            self._grow(seq)
        return len(names)

    def launch(self, seqs: Int64Array, counts: Int64Array) -> int:
        """See `Engine`."""
        if len(self._in_flight) >= self._launches_in_flight:
            raise Busy(f"launches in flight: {len(self._in_flight)}")
        rows = list(zip(seqs.tolist(), counts.tolist(), strict=True))
        for seq, count in rows:
            self._known(seq)
            if not 1 <= count <= self._length[seq] - self._launched[seq]:
                raise BadCount(f"sequence {seq} has not {count} planned positions")
        for seq, count in rows:
            self._launched[seq] += count
        self._launch_id += 1
        self._in_flight.append(self._launch_id)
        return self._launch_id

    def retire(self, launch: int) -> None:
        """See `Engine`."""
        if not 1 <= launch <= self._launch_id:
            raise UnknownLaunch(f"launch {launch} was never issued")
        self._in_flight = [each for each in self._in_flight if each > launch]

    def release(self, seq: int) -> None:
        """See `Engine`."""
        self._known(seq)
        self._give(self._start.pop(seq), self._length.pop(seq))
        del self._launched[seq]

    def holding(self, seq: int) -> Holding:
        """See `Engine`: a token an entry, as blocks of one token have it."""
        self._known(seq)
        return Holding(self._launched[seq], self._length[seq])

    def usage(self) -> Usage:
        """See `Engine`. Nothing is ever quarantined here."""
        return Usage(self._free, self.slots - self._free, 0)

    @property
    def largest_free_run(self) -> int:
        """The longest run of free slots. O(free runs)."""
        return max(self._free_length.values(), default=0)

    def runs(self) -> dict[int, range]:
        """Return which slots each sequence has."""
        return {seq: range(start, start + self._length[seq]) for seq, start in self._start.items()}

    def _known(self, seq: int) -> None:
        if seq not in self._start:
            raise Unknown(f"there is no sequence {seq}")

    def _grow(self, seq: int) -> None:
        start, length = self._start[seq], self._length[seq]
        if start + length not in self._free_length:
            at = self._first_fit(length + 1)
            if at is None:
                self._compact(seq)
                start = self._start[seq]
            else:
                self._take(at, length)
                self._give(start, length)
                self._start[seq] = start = at
                self.relocations += 1
                self.copied_tokens += length
        self._take(start + length, 1)
        self._length[seq] = length + 1

    def _first_fit(self, length: int) -> int | None:
        return next((at for at in self._free_at if self._free_length[at] >= length), None)

    def _take(self, at: int, length: int) -> None:
        """Take the first slots of the free run that begins at `at`."""
        place = bisect_left(self._free_at, at)
        left = self._free_length.pop(at) - length
        if left:
            self._free_at[place] = at + length
            self._free_length[at + length] = left
        else:
            del self._free_at[place]
        self._free -= length

    def _give(self, at: int, length: int) -> None:
        """Free slots, and join them with the free runs beside them."""
        self._free += length
        if (behind := self._free_length.pop(at + length, 0)) > 0:
            del self._free_at[bisect_left(self._free_at, at + length)]
            length += behind
        place = bisect_left(self._free_at, at)
        before = self._free_at[place - 1] if place else None
        if before is not None and before + self._free_length[before] == at:
            self._free_length[before] += length
        else:
            insort(self._free_at, at)
            self._free_length[at] = length

    def _compact(self, around: int | None) -> None:
        """Move sequences so that all free slots lie behind `around`, or at the top where it is None."""
        self.compactions += 1
        in_order = sorted(self._start, key=self._start.__getitem__)
        split = len(in_order) if around is None else in_order.index(around) + 1
        bottom = 0
        for seq in in_order[:split]:
            self._move(seq, bottom)
            bottom += self._length[seq]
        top = self.slots
        for seq in reversed(in_order[split:]):
            top -= self._length[seq]
            self._move(seq, top)
        self._free_at, self._free_length = [bottom], {bottom: top - bottom}

    def _move(self, seq: int, to: int) -> None:
        if self._start[seq] != to:
            self._start[seq] = to
            self.copied_tokens += self._length[seq]


@contextmanager
def open_contiguous_engine(options: EngineOptions) -> Iterator[ContiguousEngine]:
    """Open an engine of as many slots as there are blocks, which are of one token."""
    assert options.block_size == 1, "a contiguous engine has blocks of one token"
    yield ContiguousEngine(options.blocks, options.launches_in_flight)

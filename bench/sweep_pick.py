"""Which block size: of those that keep the declared reserve and the declared TPOT, the one that wastes least.

The order of judgement, each step with a reason that is printed:

1. A block size *satisfies* the memory reserve where so many per cent of the declared pool are free with all sequences
   at their place, and the TPOT limit where its median TPOT is within it (without a limit, always): that of a step of
   all sequences and, where requests were replayed on the clock, that of requests end to end.
2. Of those that satisfy both, all are *as fast as the fastest* whose times of such a step overlap its own, p10 to p90
   (or, where only medians are known, within 2 %): what lies closer is noise, and noise should pick nothing.
3. Of these, the one with the fewest bytes that hold no token: tail waste and the manager's state.

What would change the pick is found by asking again: with the reserve that the picked one just misses, with the limit
that it just misses, and without step 2.
"""

from dataclasses import dataclass
from typing import NamedTuple

from pagedkv.bench.amounts import in_words
from pagedkv.spec.counts import counted

SPREAD = 1.02  # counts as equal where only medians are known


class SideBySide(NamedTuple):
    """All sequences at one time: blocks that they need, those that the pool has, and how many sequences fit at most."""

    sequences: int
    needed_blocks: int
    blocks: int
    sequences_that_fit: int


class Candidate(NamedTuple):
    """A block size and what it is judged by.

    `tpot_spread_ms` is p10 and p90, where they were measured; `end_to_end_tpot_ms` the median of requests, likewise.
    `mark` stands behind each of its times in words.
    """

    block_size: int
    free_percent: float
    tpot_ms: float
    tpot_spread_ms: tuple[float, float] | None
    overhead_bytes: int
    end_to_end_tpot_ms: float | None = None
    side_by_side: SideBySide | None = None
    mark: str = ""

    @property
    def judged_tpot_ms(self) -> float:
        """What the limit is held against: the longer of the two."""
        return max(self.tpot_ms, self.end_to_end_tpot_ms or 0.0)

    @property
    def tpot_in_words(self) -> str:
        """Both, as far as they are known."""
        step = self.in_words(self.tpot_ms)
        return (
            step if self.end_to_end_tpot_ms is None else f"{step}, end to end {self.in_words(self.end_to_end_tpot_ms)}"
        )

    def in_words(self, time_ms: float) -> str:
        """Write one of its times."""
        return f"{time_ms:,.3f} ms{self.mark}"

    @property
    def room_in_words(self) -> str:
        """How much of the pool it leaves, or how far the sequences are from fitting."""
        if self.free_percent >= 0 or self.side_by_side is None:
            return f"the most: {self.block_size} with {self.free_percent:.2f} %"
        sequences, needed, blocks, fit = self.side_by_side
        return (
            f"with {self.block_size}, {sequences:,} sequences need {counted(needed, 'block')} at one time, the pool has"
            f" {blocks:,}: at most {fit:,} fit"
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """What was declared: per cent of the pool that must stay free, and milliseconds a token (None: any)."""

    reserve_percent: float
    tpot_ms: float | None


@dataclass(frozen=True, slots=True)
class Pick:
    """The outcome: the block size (None: none satisfies both), why, and what would change it, in lines."""

    block_size: int | None
    reason: str
    would_change: tuple[str, ...]


def pick(candidates: list[Candidate], limits: Limits) -> Pick:
    """Pick a block size. O(candidates)."""
    chosen = _choose(candidates, limits)
    if chosen is None:
        return Pick(None, _why_none(candidates, limits), tuple(_would_help(candidates, limits)))
    return Pick(chosen.block_size, _why(chosen, candidates, limits), tuple(_would_change(chosen, candidates, limits)))


def _satisfying(candidates: list[Candidate], limits: Limits) -> list[Candidate]:
    return [each for each in candidates if _keeps_reserve(each, limits) and _keeps_time(each, limits)]


def _keeps_reserve(candidate: Candidate, limits: Limits) -> bool:
    return candidate.free_percent >= limits.reserve_percent


def _keeps_time(candidate: Candidate, limits: Limits) -> bool:
    return limits.tpot_ms is None or candidate.judged_tpot_ms <= limits.tpot_ms


def _as_fast(candidates: list[Candidate]) -> list[Candidate]:
    """Give those whose times overlap those of the fastest."""
    fastest = min(candidates, key=lambda each: each.tpot_ms)
    slowest_ms = fastest.tpot_spread_ms[1] if fastest.tpot_spread_ms else fastest.tpot_ms * SPREAD
    return [each for each in candidates if (each.tpot_spread_ms or (each.tpot_ms,))[0] <= slowest_ms]


def _choose(candidates: list[Candidate], limits: Limits) -> Candidate | None:
    both = _satisfying(candidates, limits)
    return min(_as_fast(both), key=lambda each: each.overhead_bytes) if both else None


def _why(chosen: Candidate, candidates: list[Candidate], limits: Limits) -> str:
    limit = "no limit declared" if limits.tpot_ms is None else f"limit {limits.tpot_ms:g} ms"
    told = (
        f"{chosen.block_size}: it leaves {chosen.free_percent:.2f} % of the pool free (reserve"
        f" {limits.reserve_percent:g} %) at a TPOT of {chosen.tpot_in_words} ({limit})"
    )
    equals = _as_fast(_satisfying(candidates, limits))
    overhead = in_words(chosen.overhead_bytes)
    if len(equals) > 1:
        return (
            f"{told}; of those whose times overlap the fastest's ({_sizes(equals)}) it has the fewest bytes without a"
            f" token, {overhead} of tails and manager state"
        )
    return f"{told}; nothing else that satisfies both is as fast, and {overhead} hold no token"


def _would_change(chosen: Candidate, candidates: list[Candidate], limits: Limits) -> list[str]:
    lines = []
    others = [each for each in candidates if each.free_percent > chosen.free_percent]
    after = _choose(others, limits)
    what = f"{after.block_size}" if after else "none of these"
    lines.append(f"a reserve above {chosen.free_percent:.2f} %: then {what}")
    faster = [each for each in candidates if each.judged_tpot_ms < chosen.judged_tpot_ms]
    after = _choose(faster, limits)
    what = f"{after.block_size}" if after else "none of these"
    lines.append(f"a TPOT limit below {chosen.in_words(chosen.judged_tpot_ms)}: then {what}")
    fastest = min(_satisfying(candidates, limits), key=lambda each: each.tpot_ms)
    if fastest is not chosen:
        lines.append(
            f"more trust in small differences of time: {fastest.block_size} had the smallest median TPOT,"
            f" {fastest.in_words(fastest.tpot_ms)}"
        )
    return lines


def _why_none(candidates: list[Candidate], limits: Limits) -> str:
    roomy = [each for each in candidates if _keeps_reserve(each, limits)]
    quick = [each for each in candidates if _keeps_time(each, limits)]
    most = max(candidates, key=lambda each: each.free_percent)
    fastest = min(candidates, key=lambda each: each.judged_tpot_ms)
    limit = (
        ""
        if limits.tpot_ms is None
        else (
            f"; a TPOT of {limits.tpot_ms:g} ms is kept by {_sizes(quick)} (the fastest: {fastest.block_size} with"
            f" {fastest.in_words(fastest.judged_tpot_ms)})"
        )
    )
    return (
        f"none satisfies both: a reserve of {limits.reserve_percent:g} % is kept by {_sizes(roomy)}"
        f" ({most.room_in_words}){limit}"
    )


def _would_help(candidates: list[Candidate], limits: Limits) -> list[str]:
    """Say which one limit, loosened alone, would let a block size in."""
    lines = []
    quick = [each for each in candidates if _keeps_time(each, limits)]
    if quick:
        best = max(quick, key=lambda each: each.free_percent)
        if best.free_percent < 0:
            lines.append(f"more memory: for {best.block_size} the pool is {-best.free_percent:.2f} % short")
        else:
            lines.append(f"a reserve of {best.free_percent:.2f} % or less, then {best.block_size}; or more memory")
    roomy = [each for each in candidates if _keeps_reserve(each, limits)]
    if roomy:
        best = min(roomy, key=lambda each: each.judged_tpot_ms)
        lines.append(f"a TPOT limit of {best.in_words(best.judged_tpot_ms)} or more, then {best.block_size}")
    return lines or ["both limits at once: no block size keeps either"]


def _sizes(candidates: list[Candidate]) -> str:
    return ", ".join(str(each.block_size) for each in candidates) or "none"

"""What a replay through the scheduler found, as figures, as a table for people and as JSON for programs.

The words are those of the project's design page and are the same in the table and in the JSON.
"""

from dataclasses import asdict, dataclass
from typing import Any

from pagedkv.bench.replay_queue import Refusal
from pagedkv.bench.replay_report import figures_table, refusals_in_words
from rich.table import Table


@dataclass(slots=True)
class SchedulerCounts:
    """What was counted, all of it in plans, completions and the cache."""

    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    steps: int = 0
    launched_tokens: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    resumed_hit_tokens: int = 0
    evictions: int = 0
    peak_blocks: int = 0
    peak_running: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerReport:
    """The outcome: pool size in blocks, wall time of the loop in seconds, refusals, counts.

    `refusals` are all that were `refused`, or the first of them where there could be any number.
    """

    requests: int
    blocks: int
    block_size: int
    seconds: float
    refused: int
    refusals: tuple[Refusal, ...]
    counts: SchedulerCounts

    @property
    def hit_percent(self) -> float:
        """Hits in per cent of the prompt tokens of requests that were admitted."""
        return 100.0 * self.counts.hit_tokens / self.counts.prompt_tokens if self.counts.prompt_tokens else 0.0

    def as_json(self) -> dict[str, Any]:
        """Give all figures under the names that the table has."""
        return {
            "requests": self.requests,
            "refused": self.refused,
            "refused_requests": [asdict(refusal) for refusal in self.refusals],
            "blocks": self.blocks,
            "block_size": self.block_size,
            **asdict(self.counts),
            "hit_percent": self.hit_percent,
            "seconds": self.seconds,
        }

    def as_table(self, title: str) -> Table:
        """Lay the figures out, one a row, each with what it means."""
        return figures_table(title, self.rows())

    def rows(self) -> tuple[tuple[str, str, str], ...]:
        """Give the rows of the table: name, value, meaning."""
        counts = self.counts
        a_step = counts.launched_tokens / max(counts.steps, 1)
        return (
            ("requests", f"{self.requests:,}", "that came"),
            ("finished", f"{counts.finished:,}", "sampled all their tokens"),
            ("refused", f"{self.refused:,}", refusals_in_words(self.refusals, self.refused)),
            ("cancelled", f"{counts.cancelled:,}", "left before they were done"),
            ("failed", f"{counts.failed:,}", "outgrew the pool with nobody beside them"),
            ("steps", f"{counts.steps:,}", "launches, one an iteration"),
            ("launched_tokens", f"{counts.launched_tokens:,}", f"positions computed, {a_step:.1f} a step"),
            ("prompt_tokens", f"{counts.prompt_tokens:,}", "of requests at their first admission"),
            ("hit_tokens", f"{counts.hit_tokens:,}", f"of them found in the prefix cache, {self.hit_percent:.3f} %"),
            ("preemptions", f"{counts.preemptions:,}", "requests that gave way, to be recomputed"),
            (
                "recomputed_tokens",
                f"{counts.recomputed_tokens:,}",
                "known tokens of those, taken in once more; hits apart",
            ),
            ("resumed_hit_tokens", f"{counts.resumed_hit_tokens:,}", "known tokens found instead"),
            ("evictions", f"{counts.evictions:,}", "published blocks that were used for something else"),
            ("peak_blocks", f"{counts.peak_blocks:,}", f"not available at one time, of {self.blocks:,}"),
            ("peak_running", f"{counts.peak_running:,}", "sequences at one time"),
            ("seconds", f"{self.seconds:.2f}", "of the loop, without reading the trace"),
        )

"""What a replay found, as figures, as a table for people and as JSON for programs.

The words are those of the project's design page and are the same in the table and in the JSON.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from pagedkv.bench.replay_queue import Refusal
from rich.table import Table
from rich.text import Text

REFUSALS_SHOWN_MAX = 5


@dataclass(slots=True)
class ReplayCounts:
    """What a replay counted: all of it seen at the engine.

    `allocations` are blocks taken (of them `growth_allocations` by extensions), `allocation_calls` the operations that
    took any. `logical_tokens` and `block_table_entries` are summed over finished requests when they finish;
    `peak_blocks` counts what is not free.
    """

    finished: int = 0
    steps: int = 0
    logical_tokens: int = 0
    block_table_entries: int = 0
    growth_allocations: int = 0
    allocations: int = 0
    allocation_calls: int = 0
    peak_blocks: int = 0
    peak_running: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """The outcome of a replay: pool size in blocks, wall time of the loop in seconds, refusals, counts."""

    requests: int
    blocks: int
    block_size: int
    seconds: float
    refusals: tuple[Refusal, ...]
    counts: ReplayCounts

    @property
    def physical_slots(self) -> int:
        """Token slots in the block tables of finished requests."""
        return self.counts.block_table_entries * self.block_size

    @property
    def tail_waste(self) -> int:
        """Slots of last blocks that stayed empty, in tokens."""
        return self.physical_slots - self.counts.logical_tokens

    @property
    def tail_waste_percent(self) -> float:
        """Tail waste in per cent of the slots."""
        return 100.0 * self.tail_waste / self.physical_slots if self.physical_slots else 0.0

    @property
    def tail_waste_uniform_estimate(self) -> float:
        """What (B - 1) / 2 a sequence would waste: the mean if lengths modulo B were spread evenly."""
        return self.counts.finished * (self.block_size - 1) / 2

    def as_json(self) -> dict[str, Any]:
        """Give all figures under the names that the table has."""
        return {
            "requests": self.requests,
            "finished": self.counts.finished,
            "refused": len(self.refusals),
            "refused_requests": [asdict(refusal) for refusal in self.refusals],
            "steps": self.counts.steps,
            "blocks": self.blocks,
            "block_size": self.block_size,
            "logical_tokens": self.counts.logical_tokens,
            "physical_slots": self.physical_slots,
            "tail_waste": self.tail_waste,
            "tail_waste_percent": self.tail_waste_percent,
            "tail_waste_uniform_estimate": self.tail_waste_uniform_estimate,
            "block_table_entries": self.counts.block_table_entries,
            "growth_allocations": self.counts.growth_allocations,
            "allocations": self.counts.allocations,
            "allocation_calls": self.counts.allocation_calls,
            "peak_blocks": self.counts.peak_blocks,
            "peak_running": self.counts.peak_running,
            "seconds": self.seconds,
        }

    def as_table(self, title: str) -> Table:
        """Lay the figures out, one a row, each with what it means."""
        counts = self.counts
        rows = (
            ("requests", f"{self.requests:,}", "of the trace"),
            ("finished", f"{counts.finished:,}", "ran to their final length"),
            ("refused", f"{len(self.refusals):,}", refusals_in_words(self.refusals, len(self.refusals))),
            ("steps", f"{counts.steps:,}", "launches, one an iteration"),
            ("logical_tokens", f"{counts.logical_tokens:,}", "positions that finished requests held"),
            ("physical_slots", f"{self.physical_slots:,}", f"slots in their blocks of {self.block_size}"),
            ("tail_waste", f"{self.tail_waste:,}", self._tail_waste_in_words()),
            ("block_table_entries", f"{counts.block_table_entries:,}", "of finished requests at their end"),
            ("growth_allocations", f"{counts.growth_allocations:,}", "blocks taken while decoding"),
            ("allocations", f"{counts.allocations:,}", "blocks taken in all"),
            ("allocation_calls", f"{counts.allocation_calls:,}", "operations that took any"),
            ("peak_blocks", f"{counts.peak_blocks:,}", f"not free at one time, of {self.blocks:,}"),
            ("peak_running", f"{counts.peak_running:,}", "sequences at one time"),
            ("seconds", f"{self.seconds:.2f}", "of the loop, without reading the trace"),
        )
        return figures_table(title, rows)

    def _tail_waste_in_words(self) -> str:
        a_sequence = self.tail_waste / max(self.counts.finished, 1)
        estimate = (self.block_size - 1) / 2
        share = f"{self.tail_waste_percent:.3f} % of the slots"
        return f"tokens, {share}; {a_sequence:.3f} a sequence, where (B - 1) / 2 is {estimate:g}"


def figures_table(title: str, rows: Iterable[tuple[str, str, str]]) -> Table:
    """Lay figures out, (name, value, meaning) a row."""
    table = Table(title=Text(title), title_justify="left")
    table.add_column("figure")
    table.add_column("value", justify="right")
    table.add_column("meaning")
    for row in rows:
        table.add_row(*row)
    return table


def refusals_in_words(refusals: tuple[Refusal, ...], refused: int) -> str:
    """Name the first of the requests that were refused, each with its reason; `refused` is how many there were."""
    if not refused:
        return "could never fit"
    shown = ", ".join(f"{refusal.request} {refusal.reason}" for refusal in refusals[:REFUSALS_SHOWN_MAX])
    more = refused - REFUSALS_SHOWN_MAX
    listed = "all" if len(refusals) == refused else f"the first {len(refusals):,}"
    return f"request {shown}" + (f" and {more:,} more ({listed} in --json)" if more > 0 else "")

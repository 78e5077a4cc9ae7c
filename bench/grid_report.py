"""What a grid found, in one table: for people a table a trace, CSV and JSON with every figure for programs.

The figures have the names that `pagedkv replay --json` gives them. Those that a policy does not have are left empty:
under `reserve` nothing is preempted, and a scheduler's report has no tail waste, or, with a clock, its mean over time.
`slots` are the tokens that a pool holds: pools of as many slots have as many bytes, whatever the block size. How long a
replay took is a matter of the machine and the hour, so the tables have it of cells of this run alone; the files have
what was kept.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pagedkv.bench.grid import CellSettings, Failed, Figures
from pagedkv.spec.counts import counted
from pagedkv.spec.quoting import one_line
from rich.console import Console
from rich.table import Table
from rich.text import Text

_WASTE, _WASTE_IN_TIME = "tail_waste_percent", "time_averages_tail_waste_percent"
_ALWAYS = {"finished", "steps"}
_COLUMNS = (  # key, heading, form; those that are 0 in all cells of a trace are left out
    ("finished", "done", "{:,}"),
    ("refused", "refused", "{:,}"),
    ("steps", "steps", "{:,}"),
    (_WASTE, "waste\n%", "{:.2f}"),
    ("preemptions", "pre-\nempted", "{:,}"),
    ("hit_percent", "hits\n%", "{:.2f}"),
    ("peak_blocks", "peak\nblocks", "{:,}"),
    ("peak_running", "peak\nseqs", "{:,}"),
    ("goodput_per_s", "good-\nput/s", "{:.2f}"),
    ("ttft_ms_p50", "TTFT\np50 ms", "{:,.0f}"),
    ("tpot_ms_p50", "TPOT\np50 ms", "{:,.1f}"),
    ("seconds", "s", "{:.1f}"),
)


@dataclass(frozen=True, slots=True)
class GridRow:
    """A cell of the table: of which trace, under which settings, with which outcome, from an earlier run or this."""

    trace_path: str
    digest: str
    settings: CellSettings
    outcome: Figures | Failed
    earlier: bool = False

    @property
    def slots(self) -> int | None:
        """Tokens that the pool holds, so what it has in bytes is this times a token's; None: it has not come to be."""
        settings = self.settings.replay
        blocks = self.outcome.get("blocks") if isinstance(self.outcome, dict) else settings.blocks
        return None if blocks is None else int(blocks) * settings.block_size

    def as_json(self) -> dict[str, Any]:
        """Give the settings, and the figures or why there are none."""
        named = {"trace": self.trace_path, "requests_digest": self.digest} | self.settings.as_json()
        named |= {"slots": self.slots}
        named |= {"outcome": "failed" if isinstance(self.outcome, Failed) else "finished", "earlier": self.earlier}
        return named | (asdict(self.outcome) if isinstance(self.outcome, Failed) else self.outcome)


def as_csv(rows: Sequence[GridRow]) -> str:
    """Write a line a cell, with every figure that is one value; those that a cell does not have are empty."""
    flat = [flat_of(row.as_json()) for row in rows]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for each in flat for key in each)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def flat_of(figures: dict[str, Any]) -> dict[str, Any]:
    """Give every figure that is one value: those within another under both names, lists not at all."""
    flat: dict[str, Any] = {}
    for key, value in figures.items():
        if isinstance(value, dict):
            flat |= {f"{key}_{name}": each for name, each in flat_of(value).items()}
        elif not isinstance(value, list):
            flat[key] = value
    return flat


def print_tables(console: Console, rows: Sequence[GridRow]) -> None:
    """Print a table for each trace, and below what failed."""
    for trace_path in dict.fromkeys(row.trace_path for row in rows):
        _print_table(console, trace_path, [row for row in rows if row.trace_path == trace_path])
    for row in rows:
        if isinstance(row.outcome, Failed):
            words = f"failed: {row.trace_path}, {in_words(row.settings)}: {row.outcome.why}"
            console.print(one_line(words), markup=False, highlight=False, soft_wrap=True)


def _print_table(console: Console, trace_path: str, rows: Sequence[GridRow]) -> None:
    figures = [_figures_of(row) for row in rows]
    shown = [column for column in _COLUMNS if column[0] in _ALWAYS or any(each.get(column[0]) for each in figures)]
    table = Table(title=Text(one_line(trace_path)), title_justify="left", padding=(0, 0))
    table.add_column("policy")
    for heading in ("B", "blocks", "slots", *(heading for _, heading, _ in shown)):
        table.add_column(heading, justify="right", overflow="fold")  # a number in two lines is still a number
    if any(_WASTE_IN_TIME in each for each in figures):
        table.caption = "waste %: of held slots, the mean over simulated time"
        table.caption_justify = "left"
    for row, found in zip(rows, figures, strict=True):
        blocks = row.settings.replay.blocks
        place = [row.settings.policy.value, f"{row.settings.replay.block_size:,}", f"{blocks:,}" if blocks else "all"]
        place.append("-" if row.slots is None else f"{row.slots:,}")
        if isinstance(row.outcome, Failed):
            table.add_row(*place, "failed", style="bold red")
        else:
            cells = ("-" if found.get(key) is None else form.format(found[key]) for key, _, form in shown)
            table.add_row(*place, *cells)
    console.print(table)


def _figures_of(row: GridRow) -> dict[str, Any]:
    """Give the figures of a row of the table, without how long the replay took where that was in an earlier run.

    A clocked replay has its tail waste over time, and stands with it in the column of those of finished requests.
    """
    figures = {} if isinstance(row.outcome, Failed) else flat_of(row.outcome)
    if _WASTE_IN_TIME in figures:
        figures[_WASTE] = figures[_WASTE_IN_TIME]
    return {key: value for key, value in figures.items() if not (row.earlier and key == "seconds")}


def in_words(settings: CellSettings) -> str:
    """Name a cell within its trace."""
    blocks = counted(settings.replay.blocks, "block") if settings.replay.blocks else "blocks for all"
    return f"{settings.policy.value}, {blocks} of {settings.replay.block_size:,}"

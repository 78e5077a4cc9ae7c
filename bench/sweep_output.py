"""Where a sweep goes: words and tables for the terminal, files, and one web page that has all of them.

Everything is written from one `Outcome`, so terminal, JSON, CSV and page say the same. In the JSON whatever follows
from measured times stands under `times`, the pick included: two runs with one seed agree on all the rest.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pagedkv.bench.amounts import in_words
from pagedkv.bench.html_report import Plot, Section, report_page
from pagedkv.bench.result_files import write_json, write_whole
from pagedkv.bench.sweep import Sweep, SweepSettings
from pagedkv.bench.sweep_lengths import lengths_in_words
from pagedkv.bench.sweep_pick import Limits, Pick
from pagedkv.bench.sweep_report import as_csv, halvings, halvings_in_words, tables
from pagedkv.bench.sweep_traffic import Traffic, traffic_in_words
from rich.console import Console

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARK = " (*)"
PICTURES = tuple(f"{name}.{kind}" for name in ("fragmentation", "latency", "goodput") for kind in ("png", "svg"))
FILES = ("sweep.html", "sweep.json", "sweep.csv", "lengths.csv", *PICTURES)
MADE_TO_FIT = (
    "No --memory was given: the pool is made to fit, a ninth more than the tokens take, so the reserve says little and"
    " nothing of a device."
)
CPU_TIMES = "Times marked (*) do not say how fast a GPU is: where they decide, the pick is not one for a GPU."
MECHANISM = (
    "(*) timed on this machine with the model scaled down to it: it shows how block sizes compare, and not what a GPU"
    " takes; --kernel-times gives a GPU's"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A sweep, what it was judged by, and the command that runs it again."""

    settings: SweepSettings
    traffic: Traffic | None
    found: Sweep
    limits: Limits
    picked: Pick
    command: str

    @property
    def title(self) -> str:
        """What was swept, in a line."""
        settings = self.settings
        return f"{settings.model.name}, {_word(settings.dtype)}, {settings.layout}"

    @property
    def mark(self) -> str:
        """What stands at figures that show the mechanism only."""
        return mark_of(self.found)

    def facts(self) -> dict[str, Any]:
        """Give everything, for programs."""
        settings, found = self.settings, self.found
        lengths = settings.lengths
        return {
            "command": self.command,
            "model": settings.model.name,
            "layers": settings.model.layers,
            "kv_dtype": _word(settings.dtype),
            "layout": settings.layout,
            "seed": settings.seed,
            "lengths": lengths.facts | {"sequences": len(lengths), "tokens": lengths.tokens},
            "memory_bytes": found.pool_bytes,
            "reserve_percent": self.limits.reserve_percent,
            "tpot_limit_ms": self.limits.tpot_ms,
            "model_step_ms": settings.model_step_ms,
            "traffic": None if self.traffic is None else self.traffic.facts,
            "layer": asdict(found.layer) | {"dtype": _word(found.layer.dtype)},
            "mechanism_only": found.mechanism_only,
            "block_sizes": [row.as_json() for row in found.rows],
            "halvings": halvings(found.rows),
            "times": {
                "measured": found.measured,
                "copy_bytes_per_s": found.copy_bytes_per_s,
                "pick": asdict(self.picked),
            },
        }

    def before(self) -> list[str]:
        """Say what was swept, in lines."""
        pool = f"pool: {in_words(self.found.pool_bytes)} of K and V, of which {self.limits.reserve_percent:g} % must"
        lines = [*lengths_in_words(self.settings.lengths), f"{pool} stay free"]
        if self.traffic is not None:
            lines.append(f"{traffic_in_words(self.traffic)}; a pool of {in_words(self.traffic.pool_bytes)}")
        return lines

    def after(self) -> list[str]:
        """Say how it was measured and what follows, in lines."""
        found, layers, rest_ms = self.found, self.settings.model.layers, self.settings.model_step_ms
        lines = [MECHANISM] if found.mechanism_only else []
        lines.append(f"decode: {found.measured}")
        if found.copy_bytes_per_s:
            lines.append(f"memory limit: a copy of {found.copy_bytes_per_s / 1e9:,.2f} GB/s in this run")
        rest = f"{rest_ms:g} ms, declared, for all the rest"
        lines.append(f"TPOT of all sequences in one batch: {layers} layers x decode + {rest}")
        if self.traffic is not None:
            kept = self.traffic.latency_limits.in_words()
            lines.append(
                f"clocked: a step lasts {layers} layers x decode, in proportion to the positions it reads, + {rest}; a"
                f" good request is one that finishes{f' within {kept}' if kept else ', since no limits were declared'}"
            )
        return [*lines, *halvings_in_words(found.rows)]

    def verdict(self) -> list[str]:
        """Give what the pick is worth, the pick, its reason and what would change it, in lines."""
        what = "what would help" if self.picked.block_size is None else "what would change it"
        before = [MADE_TO_FIT] if self.settings.pool_bytes is None else []
        before += [CPU_TIMES] if self.found.mechanism_only else []
        return [*before, f"pick: {self.picked.reason}", *(f"  {what}: {line}" for line in self.picked.would_change)]


def mark_of(found: Sweep) -> str:
    """Give what stands at times that show the mechanism only."""
    return MARK if found.mechanism_only else ""


def print_outcome(outcome: Outcome) -> None:
    """Print everything on the terminal."""
    console = Console(emoji=False)

    def say(lines: list[str]) -> None:
        for line in lines:
            console.print(line, markup=False, highlight=False, soft_wrap=True)

    say(outcome.before())
    for table in tables(outcome.found.rows, outcome.title, outcome.mark):
        console.print(table)
    say(outcome.after())
    say(outcome.verdict())


def write_outcome(out: Path, outcome: Outcome) -> list[str]:
    """Write everything into the folder; give the names."""
    from pagedkv.bench.plots import write_figure  # noqa: PLC0415  (matplotlib takes a second to import)

    out.mkdir(parents=True, exist_ok=True)
    plots = _plots(outcome)
    write_json(out / "sweep.json", outcome.facts())
    write_whole(out / "sweep.csv", as_csv(outcome.found.rows).encode())
    write_whole(out / "lengths.csv", outcome.settings.lengths.as_csv().encode())
    write_whole(out / "sweep.html", _page(outcome, plots))
    pictures = [picture for name, plot in plots.items() for picture in write_figure(plot.figure, out, name)]
    return ["sweep.html", "sweep.json", "sweep.csv", "lengths.csv", *(picture.name for picture in pictures)]


def _plots(outcome: Outcome) -> Mapping[str, Plot]:
    """Draw everything, by file name."""
    from pagedkv.bench.sweep_plots import draw_fragmentation, draw_goodput, draw_latency  # noqa: PLC0415  (see above)

    rows, note = outcome.found.rows, outcome.found.measured if outcome.found.mechanism_only else None
    title = f"{outcome.settings.model.name}: {outcome.settings.lengths.source}"
    figures: dict[str, tuple[Figure, str]] = {
        "fragmentation": (
            draw_fragmentation(rows, title),
            "Bars against block size: tail waste, block table entries, free blocks",
        ),
        "latency": (
            draw_latency(rows, title, note),
            "Bars against block size: decode latency of a layer, fraction of the memory limit",
        ),
    }
    if outcome.traffic is not None:
        title = f"{outcome.settings.model.name}: {len(outcome.traffic.trace):,} {outcome.traffic.source}"
        figures["goodput"] = (
            draw_goodput(rows, title, note),
            "Bars against block size: prefix hits and evictions if any, TPOT end to end, goodput",
        )
    return {name: Plot(*figure) for name, figure in figures.items()}


def _page(outcome: Outcome, plots: Mapping[str, Plot]) -> bytes:
    rows = outcome.found.rows
    sections = [
        Section("The pick", outcome.verdict()),
        Section("What was swept", outcome.before()),
        Section("Figures", [*tables(rows, outcome.title, outcome.mark, len(rows)), *outcome.after()]),
        Section("Plots", list(plots.values())),
    ]
    return report_page(f"pagedkv sweep: {outcome.settings.model.name}", sections, outcome.command)


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

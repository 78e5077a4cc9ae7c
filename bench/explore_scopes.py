"""`pagedkv explore --scopes`: several small worlds, each walked to its end, here or on many machines.

`--scopes "blocks=1,2,3 block-size=1,2"` names all combinations; a size that it does not name is what the other options
say. Each scope is a row of the table with its own verdict, and what fired and what was refused is that of all together
(`spec.scopes`, which says why scopes are shared out and no walk is).
"""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import typer
from pagedkv.bench.counterexample_files import LARGEST
from pagedkv.bench.dask_workers import crew_of
from pagedkv.bench.failures import BadInput, quoted
from pagedkv.bench.progress import LateSpinner
from pagedkv.bench.search_options import JUDGED_FROM_OUTSIDE
from pagedkv.spec.calls import patience
from pagedkv.spec.counts import counted
from pagedkv.spec.crew import Lost
from pagedkv.spec.explore import Report
from pagedkv.spec.scheduler_drivers import SchedulerSettings
from pagedkv.spec.scopes import Walks, explore_scopes
from pagedkv.spec.shards import AnySettings
from pagedkv.spec.traces import Finding
from rich.console import Console
from rich.table import Table

SCOPES_MAX = 1000

Scopes = Annotated[
    str | None,
    typer.Option(
        "--scopes", metavar="LISTS", help='Walk several scopes, each by one process: "blocks=1,2,3 block-size=1,2".'
    ),
]


class Sizes(NamedTuple):
    """The sizes of a scope as options give them; None where the default depends on other options."""

    blocks: int | None
    block_size: int | None
    sequences: int
    launches: int | None
    streams: int | None
    max_tokens: int | None
    batch: int | None


SIZES_MAX = Sizes(16, LARGEST.block_size, 6, LARGEST.launches, LARGEST.streams, 64, 6)
SCHEDULER_SIZES = ("blocks", "block_size", "sequences")
MakeSettings = Callable[[Sizes], AnySettings]


def sizes_of(text: str, others: Sizes, allowed: Sequence[str]) -> list[Sizes]:
    """Read `--scopes`: all combinations of the sizes that it lists, `others` for the rest. Errors: `BadInput`."""
    where, remedy = f"--scopes {quoted(text)}", 'give lists, like "blocks=1,2,3 block-size=1,2"'
    lists: dict[str, list[int]] = {}
    for part in text.split():
        name, equals, values = part.partition("=")
        field = name.replace("-", "_")
        if not equals or field not in allowed:
            names = ", ".join(each.replace("_", "-") for each in allowed)
            raise BadInput(where, f"{quoted(part)} names no size of a scope ({names})", remedy)
        if field in lists:
            raise BadInput(where, f"{name} stands twice", remedy)
        most = getattr(SIZES_MAX, field)
        numbers = [
            int(each) if each.isascii() and each.isdigit() and len(each) < 6 else 0 for each in values.split(",")
        ]
        if not all(1 <= number <= most for number in numbers):
            raise BadInput(where, f"{name} has whole numbers from 1 to {most:,}", remedy)
        if len(set(numbers)) < len(numbers):
            raise BadInput(where, f"{name} has a number twice", remedy)
        lists[field] = numbers
    if not lists:
        raise BadInput(where, "no scope is named", remedy)
    combinations = itertools.product(*lists.values())
    named = [
        others._replace(**dict(zip(lists, each, strict=True)))
        for each in itertools.islice(combinations, SCOPES_MAX + 1)
    ]
    if len(named) > SCOPES_MAX:
        raise BadInput(where, f"more than {SCOPES_MAX:,} scopes", "give fewer, in several commands")
    return named


def explore_several(
    make_settings: MakeSettings,
    sizes: Sequence[Sizes],
    target: str,
    workers: int,
    dask: str | None,
    seconds: float | None,
) -> tuple[dict[str, Any], Finding | None]:
    """Walk several scopes and print what they met; return that, and the shortest counterexample. Errors: `BadInput`."""
    with LateSpinner("exploring") as spinner, patience():
        scopes = list(dict.fromkeys(map(make_settings, sizes)))  # two may be one, where a target offers fewer streams

        def show_progress(walks: Walks) -> None:
            walked = walks.reports()
            edges = sum(report.edges for report in walked)
            spinner.says(f"{len(walked):,} of {len(scopes):,} scopes, {edges:,} edges")

        with crew_of(dask, target) as crew:
            walks = explore_scopes(scopes, workers=workers, crew=crew, seconds=seconds, progress=show_progress)
    _print(walks, target)
    first = walks.first()
    finding = None
    if first is not None:
        settings, report = first
        assert report.broken is not None, "that is what makes it the first"
        finding = Finding(settings.case(), tuple(report.trace), report.broken)
    return _results(walks, target, finding), finding


def _print(walks: Walks, target: str) -> None:
    console = Console(emoji=False)
    settings = walks.settings[0]
    scopes, seconds = len(walks.outcomes), walks.seconds
    console.print(
        f"explore {target}: {counted(scopes, 'scope')}, {seconds:.1f} s; {judge_in_words(settings)}",
        soft_wrap=True,
        markup=False,
    )
    sizes = [_sizes(scope) for scope in walks.settings]
    varying = [name for name in sizes[0] if len({each[name] for each in sizes}) > 1] or ["blocks"]
    same = ", ".join(f"{name} {size}" for name, size in sizes[0].items() if name not in varying)
    table = Table(caption=f"in all of them: {same}", title_justify="left")
    for heading in (*varying, "states", "edges", "depth", "seconds"):
        table.add_column(heading, justify="right")
    table.add_column("verdict")
    for scope, walk in zip(sizes, walks.outcomes, strict=True):
        figures = ["-"] * 4
        if isinstance(walk, Report):
            figures = [f"{walk.states:,}", f"{walk.edges:,}", f"{walk.depth}", f"{walk.seconds:.1f}"]
        table.add_row(*(f"{scope[name]:,}" for name in varying), *figures, _verdict(walk))
    console.print(table)
    print_met(console, walks.vocabulary(), walks.fired, walks.refused)
    for hole in _holes(walks):
        console.print(f"a hole in this run: {hole} in any scope; a larger one would meet it", soft_wrap=True)


def _sizes(settings: AnySettings) -> dict[str, int]:
    """Return what tells scopes apart, in the words of a heading."""
    config = settings.scope.config
    sizes = {"blocks": config.blocks, "block size": config.block_size}
    if isinstance(settings, SchedulerSettings):
        return sizes | {"requests": settings.scope.live}
    scope = settings.scope
    sizes |= {"sequences": scope.sequences, "launches": config.launches, "streams": config.streams}
    return sizes | {"tokens": scope.tokens, "batch": scope.rows}


def _verdict(walk: Report | Lost | None) -> str:
    match walk:
        case None:
            return "not begun"
        case Lost(why):
            return f"lost: {why}"
        case Report(broken=None):
            return "every state visited" if walk.complete else "stopped before the end"
        case _:
            assert walk.broken is not None, "the cases above"
            return f"{walk.broken.rule} broken"


def _holes(walks: Walks) -> list[str]:
    """Return what should have been met: by walks that went to their ends."""
    return walks.holes() if walks.complete() else []


def _results(walks: Walks, target: str, finding: Finding | None) -> dict[str, Any]:
    reports = walks.reports()
    scopes = zip(walks.settings, walks.outcomes, strict=True)
    return {
        "target": target,
        "lock_step": all(scope.lock_step for scope in walks.settings),
        "pairs": walks.settings[0].pairs,
        "scopes": [_scope_results(settings, walk) for settings, walk in scopes],
        "states": sum(report.states for report in reports),
        "edges": sum(report.edges for report in reports),
        "complete": walks.complete(),
        "seconds": walks.seconds,
        "fired": dict(walks.fired),
        "refused": {kind: refusals_of(walks.refused, kind) for kind in walks.refusals()},
        "holes": _holes(walks),
        "lost": sum(isinstance(walk, Lost) for walk in walks.outcomes),
        "rule": finding.broken.rule if finding else None,
        "counterexample_length": len(finding.trace) if finding else None,
    }


def _scope_results(settings: AnySettings, walk: Report | Lost | None) -> dict[str, Any]:
    facts = {"scope": settings.scope.describe(), "verdict": _verdict(walk)}
    if not isinstance(walk, Report):
        return facts
    figures = {"states": walk.states, "edges": walk.edges, "depth": walk.depth, "seconds": walk.seconds}
    return {**facts, **figures, "complete": walk.complete, "rule": walk.broken.rule if walk.broken else None}


# ---- what a walk of one scope prints, too ---------------------------------------------------------------------------


def judge_in_words(settings: AnySettings) -> str:
    """Say who judges, and which states are told apart."""
    judge = "lock-step with the spec" if settings.lock_step else JUDGED_FROM_OUTSIDE
    return f"{judge}; pairs" if settings.pairs else judge


def print_met(
    console: Console, vocabulary: Sequence[str], fired: Counter[str], refused: Counter[tuple[str, str]]
) -> None:
    """Print how often each operation fired, and was refused for which reason."""
    table = Table("operation", "fired", "refused", title_justify="left")
    for kind in vocabulary:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in refusals_of(refused, kind).items())
        table.add_row(kind, f"{fired[kind]:,}", reasons or "-")
    console.print(table)


def refusals_of(refused: Counter[tuple[str, str]], kind: str) -> dict[str, int]:
    """Return how often an operation was refused, for each reason."""
    return {reason: count for (operation, reason), count in sorted(refused.items()) if operation == kind}

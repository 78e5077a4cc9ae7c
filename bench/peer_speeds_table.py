"""What `peer_speeds` has measured, as rows, as a table, and against what is wanted.

A row is a manager at a case, with its ratio to ours in the same run; who is not here has a row of its own. In the table
a case is a line and a manager a column, and what is not offered is a number whose meaning stands below. What is wanted
is a ratio; where nobody was there to be compared with, it is not measured, and no verdict.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pagedkv.bench.peer_contenders import OURS
from pagedkv.bench.peers import PEERS
from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDTH = 170  # of the table where there is no terminal
ON, OFF, AS_IT_IS = "on", "off", "-"  # a prefix cache


class Cell(NamedTuple):
    """One manager at one case."""

    case: str
    caching: str
    manager: str
    value: float | None  # None: `note` says why
    unit: str
    turns: int
    note: str


class Wanted(NamedTuple):
    """How many times as long as ours a case should take others at least."""

    case: str
    caching: str
    manager: str  # empty: everyone who offers it
    times: float


WANTED = (
    Wanted("decode step, 2,000", ON, "vllm", 100),
    Wanted("decode step, 2,000", ON, "nano_vllm", 50),
    Wanted("decode step, 2,000", ON, "sglang", 4),
    Wanted("full hit of 2,048", ON, "", 1),
    Wanted("prompt of 1,024, no hit", ON, "", 1),
    *(Wanted(f"decode step, {count}", caching, "", 1) for caching in (ON, OFF) for count in ("16", "256", "2,000")),
    *(Wanted("decode step, 10,000", caching, "", 1) for caching in (ON, OFF)),
    *(Wanted(f"scheduler step, {count}", ON, "", 1) for count in ("256", "2,000")),
)


def rows_of(cells: Sequence[Cell], missing: Mapping[str, str], versions: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return a row for each cell with its ratio to ours, and one for each manager that is not here."""
    ours = {(cell.case, cell.caching): cell.value for cell in cells if cell.manager == OURS}
    rows = []
    for cell in cells:
        own = ours.get((cell.case, cell.caching))
        times = None if cell.value is None or not own else round(cell.value / own, 3)
        value = None if cell.value is None else round(cell.value, 3)
        rows.append({**cell._asdict(), "value": value, "times_ours": times, "version": versions[cell.manager]})
    empty = dict.fromkeys(("case", "caching", "value", "unit", "turns", "times_ours", "version"))
    return rows + [{**empty, "manager": name, "note": note} for name, note in missing.items() if note]


def verdicts(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return for each that is wanted whether it holds; None where nobody was there to be compared with."""
    found = []
    for wanted in WANTED:
        times = {
            row["manager"]: row["times_ours"]
            for row in rows
            if (row["case"], row["caching"]) == (wanted.case, wanted.caching)
            and row["times_ours"] is not None
            and row["manager"] != OURS
            and wanted.manager in {"", row["manager"]}
        }
        nearest = min(times, key=lambda name: times[name], default="")
        found.append(
            {
                **wanted._asdict(),
                "nearest": nearest,
                "nearest_times": times.get(nearest),
                "holds": times[nearest] >= wanted.times if nearest else None,
            }
        )
    return found


def print_tables(
    rows: Sequence[Mapping[str, Any]],
    missing: Mapping[str, str],
    versions: Mapping[str, str],
    wanted: Sequence[Mapping[str, Any]],
) -> None:
    """Print the table of all cases, and what is wanted of them."""
    console = Console(emoji=False)
    if not console.is_terminal:
        console = Console(width=WIDTH, emoji=False)
    titles = {name: name if name == OURS else PEERS[name].title for name in missing}
    table = Table(
        "case",
        "cache",
        *(f"{titles[name]}\n{versions[name]}".strip() for name in versions),
        title="times ours in brackets",
    )
    table.columns[0].no_wrap = True
    notes: list[str] = []
    by_case: dict[tuple[str, Any], dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        if row["case"] is not None:
            by_case.setdefault((row["case"], row["caching"]), {})[row["manager"]] = row
    for (case, caching), cells in by_case.items():
        table.add_row(case, caching, *(_cell(cells[name], notes) for name in versions))
    for name, note in missing.items():
        if note:
            table.add_section()
            table.add_row(titles[name], "", "not here" if note.startswith("not installed") else note)
    console.print(table)
    console.print("medians in microseconds, or bytes; red: less than ours", highlight=False)
    for number, note in enumerate(notes, 1):
        console.print(f"[{number}] {note}", markup=False, highlight=False, soft_wrap=True)
    for name, note in missing.items():
        if note:
            console.print(f"{titles[name]}: {note}", markup=False, highlight=False, soft_wrap=True)
    _print_wanted(wanted, titles, console)


def _cell(row: Mapping[str, Any], notes: list[str]) -> Text:
    if row["value"] is None:
        if row["note"] not in notes:
            notes.append(row["note"])
        return Text(f"[{notes.index(row['note']) + 1}]", "dim")
    digits = 1 if row["value"] < 1000 else 0
    times = "" if row["manager"] == OURS or row["times_ours"] is None else f" ({_times(row['times_ours'])}x)"
    return Text(f"{row['value']:,.{digits}f}{times}", "red" if (row["times_ours"] or 1) < 1 else "")


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}"


def _print_wanted(wanted: Sequence[Mapping[str, Any]], titles: Mapping[str, str], console: Console) -> None:
    table = Table("wanted of", "cache", "beside", "times ours", "seen", "", title="what is wanted")
    for each in wanted:
        beside = titles.get(each["manager"], each["manager"]) or "all"
        seen = "" if each["nearest_times"] is None else f"{_times(each['nearest_times'])} ({titles[each['nearest']]})"
        verdict = {True: "holds", False: "[red]missed", None: "not measured"}[each["holds"]]
        table.add_row(each["case"], each["caching"], beside, f">= {each['times']:g}", seen, verdict)
    console.print(table)

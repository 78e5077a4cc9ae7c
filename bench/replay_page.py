"""What `pagedkv replay` writes beside its table for people to look at: a web page, and a time line for Perfetto.

The page has the terminal's tables, the curves of the replay over time, and the command. Both files are asked for by
options of their own, tried before the work begins, and written when it is done.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from pagedkv.bench.clocked_report import ClockedReport
from pagedkv.bench.failures import BadInput
from pagedkv.bench.html_report import Plot, Section, report_page
from pagedkv.bench.replay_report import ReplayReport
from pagedkv.bench.replay_watch import ReplayWatch
from pagedkv.bench.result_files import output_file, write_whole
from pagedkv.bench.scheduler_options import PolicyName
from pagedkv.bench.scheduler_report import SchedulerReport
from pagedkv.bench.timeline_file import NO_DEVICE, TimelineFile
from rich.console import Group
from rich.table import Table

HtmlFile = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Write a web page there: tables, curves over time, the command."),
]
TimelineOption = Annotated[
    Path | None,
    typer.Option(
        "--timeline",
        metavar="FILE",
        help="Write each step's plan, launch and retirement there, for Perfetto (compressed: .gz).",
    ),
]


def page_files(
    html_file: Path | None, timeline: Path | None, policy: PolicyName, keep: list[Path | None]
) -> tuple[Path | None, Path | None]:
    """Give the files if they can be written and do not take the place of one in `keep`. Errors: `BadInput`."""
    kept = [path for path in keep if path is not None]
    if timeline is not None and policy is PolicyName.RESERVE:
        raise BadInput(f"--timeline {timeline}", "the policy reserve plans no steps", "give --policy fcfs or priority")
    if html_file is not None:
        html_file = output_file(html_file, "--html", keep=kept)
        kept.append(html_file)
    if timeline is not None:
        timeline = output_file(timeline, "--timeline", keep=kept)
    return html_file, timeline


@contextmanager
def watched(html_file: Path | None, timeline: Path | None, command: str, *, clocked: bool) -> Iterator[ReplayWatch]:
    """Watch a replay for these files; the time line is put in place where the replay ends well. Errors: `OSError`."""
    if timeline is None:
        yield ReplayWatch(wants_curve=html_file is not None)
        return
    clock, device = ("simulated", "device") if clocked else ("the host's, measured", NO_DEVICE)
    with TimelineFile(timeline, command, clock, device) as file:
        yield ReplayWatch(file, wants_curve=html_file is not None)


def write_page(
    file: Path,
    report: ReplayReport | SchedulerReport | ClockedReport,
    watch: ReplayWatch,
    title: str,
    command: str,
    note: str | None = None,
) -> None:
    """Write the page, with a note below the figures if there is one. Errors: `OSError`."""
    from pagedkv.bench.replay_plot import draw_over_time  # noqa: PLC0415  (matplotlib takes a second to import)

    clocked = isinstance(report, ClockedReport)
    curve = report.timeline if isinstance(report, ClockedReport) else watch.curve
    assert curve is not None, "the replay was watched for one"
    drawn = draw_over_time(curve, title, clocked=clocked)
    told = report.as_table(title)
    parts = told.renderables if isinstance(told, Group) else [told]
    figures = [part if isinstance(part, Table) else str(part) for part in parts] + ([] if note is None else [note])
    alternative = "Curves: sequences that run, requests that wait, whose the blocks are, tail waste"
    sections = [Section("Figures", figures), Section("Over time", [Plot(drawn, alternative)])]
    write_whole(file, report_page(f"pagedkv replay: {title}", sections, command))

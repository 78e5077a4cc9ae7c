"""`pagedkv peers`: other people's cache managers and schedulers under the same drivers, in one table.

A campaign a peer (`peers_campaign`), then a table rule x kept / broken / not offered / not met, and for each finding a
text for its owners, its trace and its picture. What is not installed here is named, with how to get it.

Exit code 1 where a rule was found broken, as everywhere; a peer that crashes or hangs does not end the command.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from pagedkv.bench.failures import BadInput
from pagedkv.bench.options import JsonFile, Seed, invoked_as
from pagedkv.bench.own_files import ENDINGS
from pagedkv.bench.peer_process import PeerProcess
from pagedkv.bench.peers import PEERS, UNKNOWN, Level, Peer, peer_of
from pagedkv.bench.peers_campaign import Campaign, run_campaign
from pagedkv.bench.peers_report import BROKEN, REPORT, cell, markdown, report_finding, verdicts
from pagedkv.bench.progress import LateSpinner
from pagedkv.bench.result_files import output_file, write_json, write_whole
from pagedkv.bench.search_options import output_folder
from pagedkv.bench.targets import look_here
from pagedkv.spec.counts import counted
from pagedkv.spec.quoting import one_line
from pagedkv.spec.refusals import Broken
from rich.console import Console
from rich.table import Table

PEERS_EXAMPLE = "Example: pagedkv peers transformers vllm --operations 100000 --out peers"
NAMES_HELP = f"Which: {', '.join(PEERS)}; impl; or package.module:class. By default all that are named."
PEERS_OUT = Path("pagedkv-peers")
PAGE = "peers.md"
PRINTED = "printed.txt"
COLUMNS_MAX = 3  # of peers in one table, so that it fits a terminal of 80 characters


def peers_command(
    context: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME...]", help=NAMES_HELP)] = None,
    *,
    operations: Annotated[int, typer.Option(min=1, max=10**9, help="How many operations each.")] = 100_000,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where findings are put.")] = PEERS_OUT,
    json_file: JsonFile = None,
    seed: Seed = 0,
) -> None:
    """Judge other people's cache managers and schedulers by the rules that show from outside.

    Each runs in a process of its own, from its adapter in `pagedkv.bench.peers`. A rule that is found broken is set
    aside and the campaign goes on. What is not installed is named, with how to get it.
    """
    peers = [peer_of(name) for name in names or PEERS]
    look_here()
    if json_file is not None:
        json_file = output_file(json_file, "--json")
    out = output_folder(out, json_file, [PAGE], endings=(*ENDINGS, REPORT, PRINTED))
    with LateSpinner("judging peers") as spinner:
        told = [_judge(peer, (operations, seed), out, invoked_as(context), spinner) for peer in peers]
    _print(told)
    if names and not any("rules" in peer for peer in told):
        raise BadInput("peers", "none that is named can be judged", "name what can be imported here")
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / PAGE, ("\n".join(_page(told, invoked_as(context))) + "\n").encode())
    Console(emoji=False).print(f"table: {out / PAGE}", soft_wrap=True, markup=False, highlight=False)
    if json_file is not None:
        write_json(json_file, {"peers": told, "command": invoked_as(context)})
    if any(peer["findings"] or peer.get("untraced") for peer in told):
        raise typer.Exit(1)


def _judge(peer: Peer, limits: tuple[int, int], out: Path, command: str, spinner: LateSpinner) -> dict[str, Any]:
    """Run a campaign and write down what it found; return what there is to tell of a peer."""
    facts: dict[str, Any] = {"name": peer.name, "title": peer.title, "level": str(peer.level), "findings": []}
    if not peer.is_installed():
        return facts | {"version": None, "missing": f"not installed: {peer.how}"}
    facts["version"] = peer.version()

    def show_progress(campaign: Campaign) -> None:
        found = f", {counted(len(campaign.findings), 'rule')} broken" if campaign.findings else ""
        spinner.says(f"{peer.name}: {counted(campaign.operations, 'operation')}{found}")

    spinner.says(f"{peer.name}: importing {peer.package}")
    printed = (out / peer.folder / PRINTED).absolute()
    printed.parent.mkdir(parents=True, exist_ok=True)
    process = PeerProcess(peer, printed)
    try:
        campaign = run_campaign(process, *limits, show_progress)
        findings = list(_reported(campaign, process, out, command))
    except (BadInput, Broken) as error:
        return facts | {"missing": one_line(str(error))}
    finally:
        process.close()
        if printed.exists() and not printed.stat().st_size:
            printed.unlink()
    return facts | {
        "level": campaign.about["level"],
        "discipline": campaign.about.get("discipline"),
        "not_offered": campaign.about["not_offered"],
        "operations": campaign.operations,
        "runs": campaign.runs,
        "seconds": round(campaign.seconds, 1),
        "fired": dict(campaign.fired),
        "ended": campaign.ended,
        "untraced": campaign.untraced,
        "findings": findings,
        "rules": verdicts(campaign.about, findings, campaign.fired, campaign.untraced),
    }


def _reported(campaign: Campaign, process: PeerProcess, out: Path, command: str) -> Iterator[dict[str, Any]]:
    """Write each finding down, in the peer's process where it survives that."""
    for finding, seed in zip(campaign.findings, campaign.seeds, strict=True):
        if finding.broken.rule in campaign.unsafe:
            facts = report_finding(finding, campaign.peer, command, out, run_again=False)
        else:
            facts = process.ask("report", finding, command, out)
        yield facts | {"seed": seed}


def _print(told: Sequence[dict[str, Any]]) -> None:
    console = Console(emoji=False)
    for level, title in ((Level.MANAGER, "cache managers"), (Level.SCHEDULER, "schedulers with their cache")):
        judged = [peer for peer in told if peer["level"] == level and "rules" in peer]
        for first in range(0, len(judged), COLUMNS_MAX):
            heading, *rows = _rows(judged[first : first + COLUMNS_MAX], level)
            table = Table(title=title, title_justify="left")
            for name in heading:
                table.add_column(name, overflow="fold")
            for row in rows:
                table.add_row(*(f"[bold red]{text}" if text.startswith(BROKEN) else text for text in row))
            console.print(table)
    for line in _lines(told):
        console.print(line, soft_wrap=True, markup=False, highlight=False)


def _rows(told: Sequence[dict[str, Any]], level: Level) -> list[list[str]]:
    """Return the table of a level: a heading, then a row a rule."""
    judged = [peer for peer in told if peer["level"] == level and "rules" in peer]
    rules = dict.fromkeys(rule for peer in judged for rule in peer["rules"])
    return [
        ["rule", *(peer["name"] for peer in judged)],
        *([rule, *(cell(peer["rules"].get(rule)) for peer in judged)] for rule in rules),
    ]


def _lines(told: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a line a peer, and for each of its findings what it is and where."""
    for peer in told:
        called = [part for part in (peer["title"], peer["version"]) if part and part not in {peer["name"], UNKNOWN}]
        name = ": ".join(filter(None, (peer["name"], " ".join(called))))
        if "missing" in peer:
            yield f"{name}: {peer['missing']}"
            continue
        claims = f"; claims {peer['discipline']}" if peer["discipline"] else ""
        left_out = f"; not offered: {', '.join(peer['not_offered'])}" if peer["not_offered"] else ""
        ended = f"; ended early: {peer['ended']}" if peer["ended"] else ""
        runs = f"{counted(peer['operations'], 'operation')} in {counted(peer['runs'], 'run')}"
        yield f"{name}: {runs}{claims}{left_out}{ended}"
        yield from (f"  CRASH, not told by operations: {one_line(death)}" for death in peer["untraced"])
        for finding in peer["findings"]:
            yield f"  {finding['rule']} broken in {counted(finding['length'], 'operation')}: {finding['detail']}"
            yield f"    {finding['report']}"


def _page(told: Sequence[dict[str, Any]], command: str) -> Iterator[str]:
    """Yield the whole as a page of text."""
    yield f"# Made by `{command}`"
    for level in Level:
        rows = _rows(told, level)
        if len(rows) > 1:
            yield from ("", f"## {level}", "", *markdown(rows))
    yield ""
    yield from (f"- {line}" if not line.startswith(" ") else f"  - {line.strip()}" for line in _lines(told))

"""What is told of a peer: a finding that its owners can act on, and the table of rules.

A finding names a version, the fewest operations that show it, the same in the owner's own calls where the adapter tells
them, what goes wrong and the sentence of the rule, a picture, and the command that shows it again. It says what was
seen in a run, and nothing of what might be. What a peer does not offer, or does otherwise by design, stands in the
table as not offered; what no operation of the campaign could have broken, as not met.
"""

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pagedkv.bench.counterexample import own_calls, sentence_of, words_of
from pagedkv.bench.counterexample_files import save
from pagedkv.bench.operation_words import world_in_words
from pagedkv.bench.peers import Peer
from pagedkv.bench.result_files import write_whole
from pagedkv.spec.quoting import one_line
from pagedkv.spec.traces import Finding, Told, tell

REPORT = ".md"  # ends the name of a finding's text
KEPT, BROKEN, NOT_OFFERED, NOT_MET = "kept", "broken", "not offered", "not met"


def report_finding(finding: Finding, peer: Peer, found_by: str, directory: Path, *, run_again: bool) -> dict[str, Any]:
    """Write the files of a finding; return where they are, and what it is.

    Its trace is run again to be told and drawn, unless that would end this process (`run_again`). Errors: `OSError`.
    """
    told, broken = tell(finding.case, finding.trace) if run_again else ([], None)
    again = broken is not None and broken.rule == finding.broken.rule
    saved = save(finding, told, directory / peer.folder, peer.target, drawn=run_again)
    facts = {
        "rule": finding.broken.rule,
        "sentence": sentence_of(finding.case, finding.broken.rule),
        "detail": one_line(finding.broken.detail),
        "length": len(finding.trace),
        "found_by": found_by,
        "shown_again": again,
        "own_calls": own_calls(told)[1:],
        **{what: str(name) for what, name in saved._asdict().items() if name},
    }
    text = directory / peer.folder / f"{saved.trace.name.split('.')[0]}{REPORT}"
    write_whole(text, ("\n".join(_text(finding, peer, told, facts)) + "\n").encode())
    return facts | {"report": str(text)}


def _text(finding: Finding, peer: Peer, told: Sequence[Told], facts: Mapping[str, Any]) -> list[str]:
    """Return a finding as its owners would read it."""
    case = finding.case
    ends = "a crash" if facts["rule"] == "CRASH" else f"{facts['rule']} does not hold"
    lines = [
        f"# {peer.title} {peer.version()}: {ends}",
        "",
        f"{facts['rule']}: {facts['sentence']}",
        "",
        f"What was seen: {facts['detail']}",
        "",
        f"World: {world_in_words(case)}. Python {platform.python_version()}, {platform.system()}.",
    ]
    if told:
        lines += ["", "| step | operation | what came of it |", "|---|---|---|"]
        lines += [f"| {number} | {' | '.join(words_of(case, step))} |" for number, step in enumerate(told, 1)]
    else:
        lines += ["", "Operations, the last of which the process did not survive:", ""]
        lines += [f"{number}. `{one_line(repr(operation))}`" for number, operation in enumerate(finding.trace, 1)]
    if facts["own_calls"]:
        lines += ["", "The same in the manager's own calls, by step:", "", "```", *facts["own_calls"], "```"]
    if "picture" in facts:
        lines += ["", f"![blocks against steps]({Path(facts['picture']).name})"]
    return [*lines, "", f"Again: `{facts['again']}`", "", f"Found by: `{facts['found_by']}`"]


def verdicts(
    about: Mapping[str, Any],
    findings: Sequence[Mapping[str, Any]],
    fired: Mapping[str, int],
    untraced: Sequence[str] = (),
) -> dict[str, dict[str, Any]]:
    """Return what became of each rule: kept; broken, with the counterexample's length; not offered, and why; not met.

    `about["rules"]` says of each rule by which operations it can be broken, and `fired` how often each was done: a rule
    is not met where that is never. Deaths without a trace (`untraced`) break CRASH, of no length that is known.
    """
    lengths = {finding["rule"]: finding["length"] for finding in findings}
    words: dict[str, dict[str, Any]] = {}
    for rule in (*about["rules"], "CRASH", *(each for each in lengths if each not in about["rules"])):
        if rule in lengths:
            words[rule] = {"verdict": BROKEN, "operations": lengths[rule]}
        elif rule == "CRASH" and untraced:
            words[rule] = {"verdict": BROKEN, "operations": None}
        elif rule in about["not_judged"]:
            words[rule] = {"verdict": NOT_OFFERED, "why": about["not_judged"][rule]}
        elif not any(fired.get(word) for word in about["rules"].get(rule, fired)):
            words[rule] = {"verdict": NOT_MET}
        else:
            words[rule] = {"verdict": KEPT}
    return words


def cell(verdict: Mapping[str, Any] | None) -> str:
    """Return a verdict as a table has it."""
    if verdict is None:
        return "-"
    length = verdict.get("operations")
    return str(verdict["verdict"]) if length is None else f"{verdict['verdict']} ({length})"


def markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table, its first row the heading."""
    head, *body = ["| " + " | ".join(row) + " |" for row in rows]
    return [head, "|" + "---|" * len(rows[0]), *body]

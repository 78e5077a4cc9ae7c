"""The journal's part of `pagedkv verify`: what random runs write is audited, and what is altered is not believed.

Each journal is written by the implementation itself while it runs in lock-step, so the audit looks at it from a third
side. Then it is altered in one place (a bit of a byte, a line lost, a line twice, an end cut off) and must fail.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from pagedkv.bench.adapter import Implementation
from pagedkv.impl.cache import BlockCache
from pagedkv.spec.audit import audit
from pagedkv.spec.fuzz import run
from pagedkv.spec.fuzz_plan import Plan
from pagedkv.spec.journal import InvalidJournal
from pagedkv.spec.refusals import Broken
from pagedkv.spec.state import Config

OPERATIONS = 300  # a run
ALTERATIONS = 8  # a journal


@dataclass
class Audits:
    """What was audited, and the first thing that went wrong."""

    journals: int = 0
    lines: int = 0
    altered: int = 0
    fault: str | None = None


def audit_random_runs(seconds: float, seed: int) -> Audits:
    """Write and audit journals of random runs until time is up, then alter each."""
    audits = Audits()
    end = time.monotonic() + seconds
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.jsonl"
        while audits.fault is None and (time.monotonic() < end or not audits.journals):
            number = seed + audits.journals
            write_journal(path, number)
            audits.journals += 1
            if verdict := judge(path):
                audits.fault = f"seed {number}: {verdict}"
                break
            _alter(path, Random(number), audits)
    return audits


def write_journal(path: Path, seed: int) -> None:
    """Let the implementation write the journal of one random run, in lock-step. Errors: `Broken`."""
    managers: list[Implementation] = []

    def journaled(config: Config) -> Implementation:
        manager = Implementation(config)
        manager.cache = BlockCache(
            config.blocks,
            config.block_size,
            streams=config.streams,
            launches_in_flight=config.launches,
            journal=path,
        )
        managers.append(manager)
        return manager

    tally = run(Plan(journaled, operations=OPERATIONS, sharing=True), seed)
    managers[0].cache.close()
    if tally.finding:
        raise tally.finding.broken


def judge(path: Path) -> str:
    """Return what an audit finds wrong, an empty text if nothing."""
    try:
        audit(path)
    except (Broken, InvalidJournal) as wrong:
        return str(wrong)
    return ""


def _alter(path: Path, random: Random, audits: Audits) -> None:
    """Alter a journal in several ways, one after the other from the sound one; note one that passes."""
    sound = path.read_bytes()
    lines = sound.splitlines(keepends=True)
    audits.lines += len(lines)
    for _ in range(ALTERATIONS):
        at = random.randrange(len(lines))
        where = random.randrange(len(sound))
        altered = {
            "a bit of a byte": sound[:where] + bytes([sound[where] ^ 1 << random.randrange(7)]) + sound[where + 1 :],
            "a line lost": b"".join(lines[:at] + lines[at + 1 :]),
            "a line twice": b"".join([*lines[:at], lines[at], *lines[at:]]),
            "the end cut off": sound[: max(1, where)],
        }
        what = random.choice(list(altered))
        path.write_bytes(altered[what])
        audits.altered += 1
        if not judge(path):
            audits.fault = f"passed the audit though altered: {what}, line {at + 1} or byte {where + 1}"

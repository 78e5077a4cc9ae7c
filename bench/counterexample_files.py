"""What a driver leaves behind when a rule broke: a trace to run again, a journal to audit, a picture.

The trace file holds everything that the run needs (target, sizes, operations with the device's own moves), so that
`pagedkv fuzz --again FILE` shows the same table on any machine. What is read back may have been written by anybody: it
is held to the sizes that a search takes, and to what a device can do, before anything is run.
"""

import itertools
import json
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pagedkv.bench import foreign_search
from pagedkv.bench.counterexample_journal import write_journal
from pagedkv.bench.failures import BadInput, quoted
from pagedkv.bench.own_files import ENDINGS, JOURNAL, PICTURE, TRACE, TRACE_KIND, another_of_ours
from pagedkv.bench.result_files import write_whole
from pagedkv.bench.scheduler_search import case_from_json, case_to_json
from pagedkv.bench.show_files import write_picture
from pagedkv.bench.show_sources import film_of_counterexample
from pagedkv.bench.targets import load_target, of_another_kind
from pagedkv.spec.alphabet import Execute, Operation, Submit, from_json, to_json
from pagedkv.spec.foreign_drivers import ForeignCase
from pagedkv.spec.manager import Manager
from pagedkv.spec.refusals import Broken
from pagedkv.spec.scheduler_drivers import SchedulerCase
from pagedkv.spec.state import Config
from pagedkv.spec.traces import Case, Finding, Told

VERSION = 1
LARGEST = Config(blocks=4096, block_size=4096, streams=8, launches=64)  # that a search takes, or a trace may ask for


class Saved(NamedTuple):
    """Where a counterexample was put, and how to run it again."""

    trace: Path
    journal: Path | None  # none where the manager does not say which blocks it takes
    picture: Path | None  # none where what the manager shows of itself cannot be drawn
    again: str


def save(finding: Finding, told: Iterable[Told], directory: Path, target: str, *, drawn: bool = True) -> Saved:
    """Write trace, journal and picture into a folder, made if need be. Errors: `OSError`.

    To draw it, it is run again, unless it is not to be `drawn`: of what ends its process there is no picture.
    """
    directory.mkdir(parents=True, exist_ok=True)
    config = finding.case.config
    facts = {
        "kind": TRACE_KIND,
        "version": VERSION,
        "target": target,
        "lock_step": finding.case.lock_step,
        **config._asdict(),
        "rule": finding.broken.rule,
        "detail": finding.broken.detail,
    }
    if isinstance(finding.case, Case) and finding.case.aside:
        facts["aside"] = sorted(finding.case.aside)
    if isinstance(finding.case, ForeignCase):
        facts |= foreign_search.case_to_json(finding.case, finding.trace)
    elif isinstance(finding.case, SchedulerCase):
        facts |= case_to_json(finding.case, finding.trace)
    else:
        facts["operations"] = [to_json(operation) for operation in finding.trace]
    content = (json.dumps(facts, indent=2) + "\n").encode()
    stem = _stem(directory, f"{finding.broken.rule}-{len(finding.trace)}", content)
    trace = directory / f"{stem}{TRACE}"
    write_whole(trace, content)
    journal = write_journal(config, told, directory / f"{stem}{JOURNAL}")
    picture = _draw(finding, directory / f"{stem}{PICTURE}") if drawn else None
    return Saved(trace, journal, picture, shlex.join(["pagedkv", "fuzz", "--again", str(trace)]))


def _stem(directory: Path, wished: str, content: bytes) -> str:
    """Return a name for the files of a counterexample under which nothing lies, or the very same one."""
    stems = (wished if number == 1 else f"{wished}-{number}" for number in itertools.count(1))
    for stem in stems:
        there = [ending for ending in ENDINGS if (directory / f"{stem}{ending}").exists()]
        if not there or (TRACE in there and (directory / f"{stem}{TRACE}").read_bytes() == content):
            return stem
    raise AssertionError("numbers do not end")


def _draw(finding: Finding, picture: Path) -> Path | None:
    try:
        write_picture(film_of_counterexample(finding), picture)
    except OSError:
        raise
    except Exception:  # noqa: BLE001  (a stranger's manager may show anything; the counterexample is saved by now)
        return None
    return picture


def load(path: Path, other: str | None = None) -> tuple[Finding, str]:
    """Read a trace file: what to run again, and on which target (its own or another), which is imported.

    Errors: `BadInput`.
    """
    where = f"--again {path}"
    remedy = "name a file that pagedkv fuzz or explore has written"
    try:
        if path.exists() and not path.is_file():
            raise BadInput(where, "no plain file", remedy)
        text = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(where, f"cannot be read ({error.strerror or error})", "name a trace file") from error
    except (ValueError, RecursionError) as error:
        raise another_of_ours(where, path, TRACE) or BadInput(where, f"no JSON ({error})", remedy) from error
    if not isinstance(text, dict) or text.get("kind") != TRACE_KIND or text.get("version") != VERSION:
        raise BadInput(where, f"no {TRACE_KIND} of version {VERSION}", remedy)
    try:
        config = Config(*(_size(text, field) for field in Config._fields))
        words, target = _field(text, "operations", list), other or _field(text, "target", str)
        if "limits" in text:
            case, operations = case_from_json(config, text["limits"], words, target)
        else:
            operations = tuple(from_json(each) for each in words)
            _possible_somewhere(operations, config)
            aside = frozenset(map(str, _field(text, "aside", list) if "aside" in text else ()))
            factory = load_target(target)
            if another := of_another_kind(factory, f"--target {target}", Manager):
                raise another
            case = Case(config, factory, _field(text, "lock_step", bool), aside)
        broken = Broken(_field(text, "rule", str), _field(text, "detail", str))
    except (ValueError, RecursionError) as error:
        raise BadInput(where, str(error), "mend it, or run the search again") from error
    return Finding(case, operations, broken), target


Value = TypeVar("Value")


def _field(text: dict[str, Any], field: str, kind: type[Value]) -> Value:
    value = text.get(field)
    if type(value) is not kind:
        raise ValueError(f"{field} is {quoted(value)}, not {kind.__name__}")
    return value


def _size(text: dict[str, Any], field: str) -> int:
    value, most = _field(text, field, int), getattr(LARGEST, field)
    if not 1 <= value <= most:
        raise ValueError(f"{field} is {quoted(value)}, not 1 to {most}")
    return value


def _possible_somewhere(operations: Sequence[Operation], config: Config) -> None:
    """Raise `ValueError` where a trace can be of no manager at all: a device does what was launched, and does it once.

    What is possible on one manager alone (another refuses the launch) is left to the run.
    """
    launches, executed = 0, set[int]()
    for step, operation in enumerate(operations, 1):
        match operation:
            case Submit(_, stream):
                launches += 1
                if not 0 <= stream < config.streams:
                    raise ValueError(f"operation {step} is on stream {stream} of {config.streams}")
            case Execute(launch):
                if not 1 <= launch <= launches or launch in executed:
                    done = "had been executed before" if launch in executed else "was never launched before"
                    raise ValueError(f"operation {step} executes launch {launch}, which {done}")
                executed.add(launch)
            case _:
                pass

"""The journal of a counterexample: what the manager said that it did, for `pagedkv compare`.

The device's moves are not in it, since no host sees them, and refused operations are no transitions. A manager that
does not say which blocks it takes has none.
"""

from collections.abc import Iterable
from pathlib import Path

from pagedkv.impl.journal import JournalWriter
from pagedkv.spec.alphabet import (
    Add,
    Clear,
    Execute,
    Extend,
    Fork,
    Operation,
    Pin,
    Publish,
    Release,
    Retire,
    Submit,
    Unpin,
)
from pagedkv.spec.outcome import Outcome
from pagedkv.spec.state import Config
from pagedkv.spec.traces import Told


def write_journal(config: Config, told: Iterable[Told], path: Path) -> Path | None:
    """Write what a manager said it did; return the path. Errors: `OSError`.

    None, and no file, where it says nothing of blocks: such a journal would contradict the rules.
    """
    done = [(step.operation, step.offered) for step in told if isinstance(step.offered, Outcome)]
    if not done or any(isinstance(operation, Add) and not outcome.blocks for operation, outcome in done):
        return None
    with JournalWriter(
        path, blocks=config.blocks, block_size=config.block_size, streams=config.streams, launches=config.launches
    ) as writer:
        launches = 0
        for operation, outcome in done:
            launches += isinstance(operation, Submit)
            _write(writer, operation, outcome, launches)
    return path


def _write(writer: JournalWriter, operation: Operation, outcome: Outcome, launches: int) -> None:
    match operation:
        case Add(name, tokens, salt):
            ids = () if isinstance(tokens, int) else tokens
            writer.add(name, operation.length, [*outcome.blocks], tokens=ids, salt=salt, hits=outcome.hits)
        case Extend(rows):
            writer.extend([n for n, _ in rows], [c for _, c in rows], list(outcome.blocks), list(outcome.copies))
        case Fork(parent, child):
            writer.fork(parent, child)
        case Submit(rows, stream):
            launch = outcome.launch or launches  # a stranger's launches are numbered in the order of submission
            writer.launch(launch, [n for n, _ in rows], [c for _, c in rows], stream, sorted(outcome.after))
        case Retire(launch):
            writer.retire(launch, sorted(outcome.freed))
        case Release(name):
            writer.release(name, sorted(outcome.freed))
        case Execute():
            pass
        case _:
            _write_sharing(writer, operation, outcome)


def _write_sharing(writer: JournalWriter, operation: Publish | Pin | Unpin | Clear, outcome: Outcome) -> None:
    freed = sorted(outcome.freed)
    match operation:
        case Publish(rows, retention):
            told = [[*tokens] for _, tokens in rows]
            writer.publish([n for n, _ in rows], told, retention, [*outcome.published], outcome.merges, freed)
        case Pin(handle, tokens, salt):
            writer.pin(handle, [*tokens], salt, [*outcome.hits])
        case Unpin(handle):
            writer.unpin(handle, freed)
        case Clear():
            writer.clear(freed)

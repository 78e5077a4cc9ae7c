"""Rules of prefix sharing as seen from outside: a hit is of the right tokens, and of what was written.

A hit is looked at when it is made. What its block will hold is worked out from shadow memory and from what is in
flight, in the order of submission; where that is not the KV of the prompt's tokens, what it is instead says which rule
is broken. So a fault is named even if nobody ever reads the block.
"""

from collections.abc import Iterator

from .alphabet import Add
from .counts import counted
from .offers import Feature
from .outside_book import OUTSIDE, OutsideStep
from .refusals import Refused
from .rule_book import Lines, rule
from .state import Block, Content, Key

Held = tuple[Content | None, ...]


@rule("R-HASH-5", Add, book=OUTSIDE)
def one_token_is_left(step: OutsideStep) -> Lines:
    """A hit is at most floor((known - 1) / B) blocks: one token is always left to compute."""
    if isinstance(step.operation, Add) and not isinstance(step.answer, Refused):
        count, hits = step.operation.length, len(step.answer.hits)
        known = 0 if isinstance(step.operation.tokens, int) else count
        if hits > max(0, known - 1) // step.new.config.block_size:
            yield f"{counted(hits, 'block')} hit by {counted(known, 'known token')}, which leaves none to compute"


@rule("R-HASH-1", Add, book=OUTSIDE)
def the_key_says_all(step: OutsideStep) -> Lines:
    """A hit is of the same tokens from position 0 on, and of the same tenant."""
    yield from _lines(step, "R-HASH-1")


@rule("R-HASH-2", Add, book=OUTSIDE)
def the_tokens_are_compared(step: OutsideStep) -> Lines:
    """A block that is hit holds the KV of these tokens: an equal digest is not equal content."""
    yield from _lines(step, "R-HASH-2")


@rule("R-HASH-3", Add, book=OUTSIDE)
def contents_are_intact(step: OutsideStep) -> Lines:
    """A block that is hit still holds what it was published for: nobody has written over it since."""
    yield from _lines(step, "R-HASH-3")


@rule("R-HASH-4", Add, book=OUTSIDE)
def what_is_hit_was_written(step: OutsideStep) -> Lines:
    """Only what launches submitted by now have written, every slot of it, may be hit.

    Where a launch takes all that is planned, what is planned by a live sequence counts as written.
    """
    yield from _lines(step, "R-HASH-4")


@rule("R-HASH-6", Add, book=OUTSIDE)
def old_weights_are_forgotten(step: OutsideStep) -> Lines:
    """After `clear` nothing is hit that was computed before it."""
    yield from _lines(step, "R-HASH-6")


def _lines(step: OutsideStep, name: str) -> Lines:
    if isinstance(step.answer, Refused) or not step.answer.hits:
        return
    yield from (line for broken, line in _wrong(step) if broken == name)


def _wrong(step: OutsideStep) -> Iterator[tuple[str, str]]:
    """Yield the rule that each wrong hit breaks, and what is wrong with it."""
    operation, answer = step.operation, step.answer
    if not isinstance(operation, Add) or isinstance(operation.tokens, int) or isinstance(answer, Refused):
        return
    size = step.new.config.block_size
    sequence = step.new.sequences[operation.name]
    promised = _promised(step)
    for index, block in enumerate(answer.hits[: (len(operation.tokens) - 1) // size]):
        wanted = sequence.text[index * size : (index + 1) * size]
        found = promised.get(block, (None,) * size)
        if found != wanted and not _is_planned(step, block, wanted):
            key = Key(sequence.root, operation.tokens[: (index + 1) * size])
            name, what = _fault(step, key, found)
            yield name, f"block {block} was hit for positions {index * size} to {(index + 1) * size - 1}, and {what}"


def _promised(step: OutsideStep) -> dict[Block, Held]:
    """Return what blocks will hold once all that was submitted has been executed, in that order."""
    size = step.old.config.block_size
    memory: dict[Block, Held] = {**step.new.memory}
    for launch in step.new.launches:
        if launch.executed:
            continue
        sources = {copy: memory.get(copy.source, (None,) * size)[: copy.extent] for copy in launch.copies}
        for copy, contents in sources.items():
            memory[copy.target] = contents + memory.get(copy.target, (None,) * size)[copy.extent :]
        for part, row in zip(launch.computations, step.rows[launch.id], strict=True):
            for position in range(part.start, min(part.stop, len(row) * size)):
                block, offset = row[position // size], position % size
                held = memory.get(block, (None,) * size)
                memory[block] = (*held[:offset], part.text[position], *held[offset + 1 :])
    return memory


def _is_planned(step: OutsideStep, block: Block, wanted: tuple[Content, ...]) -> bool:
    """Whether the next launch, which takes all that is planned, will write this."""
    if Feature.PARTIAL_STEPS not in step.claims.lacks:
        return False
    size = step.new.config.block_size
    return any(
        other == block and step.new.sequences[name].text[at * size : (at + 1) * size] == wanted
        for name, row in step.rows_after.items()
        for at, other in enumerate(row)
        if isinstance(step.operation, Add) and name != step.operation.name
    )


def _fault(step: OutsideStep, key: Key, found: Held) -> tuple[str, str]:
    """Return which rule a wrong hit breaks, by what its block holds, and that in words."""
    size = step.new.config.block_size
    if None in found:
        written = sum(content is not None for content in found)
        return "R-HASH-4", f"of its {size} slots {written} are written by launches submitted so far"
    keys = {content: known for known, content in step.names.items()}
    held = keys.get(found[-1]) if found[-1] else None
    if held is None or len(held.tokens) != len(key.tokens):
        return "R-HASH-3", "it holds other contents by now"
    if held.root.weights != key.root.weights:
        return "R-HASH-6", "it holds what was computed before `clear`"
    if held.root.salt != key.root.salt:
        return "R-HASH-1", f"it holds what was computed under salt {held.root.salt}, not {key.root.salt}"
    name = "R-HASH-1" if held.tokens[-size:] == key.tokens[-size:] else "R-HASH-2"
    return name, f"it holds the KV of tokens {list(held.tokens)}, not of {list(key.tokens)}"

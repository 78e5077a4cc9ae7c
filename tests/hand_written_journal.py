"""A journal written by hand, its outcomes worked out by hand, and ways to alter it."""

import hashlib
import json
from collections.abc import Callable

# Blocks of 4. Sequence 1 has 6 tokens in blocks 1 and 2; its fork, 2, shares both. Extending both, 1 comes first and
# copies the two slots of block 2 to block 3; 2, then alone with block 2, writes in place. Launches 2 and 3 are on
# different streams and both read what launch 1 wrote. 1 leaves while launch 2 is in flight, 2 while launch 3 is.
JOURNAL = """\
{"journal":"pagedkv","version":1,"blocks":6,"block_size":4,"streams":2,"discipline":"fence","launches":3}
{"op":"add","seq":1,"n":6,"out":[1,2]}
{"op":"launch","id":1,"rows":[1],"counts":[6]}
{"op":"fork","parent":1,"child":2}
{"op":"extend","seqs":[1,2],"out":[3],"copies":[[1,2,3,2]]}
{"op":"launch","id":2,"rows":[1]}
{"op":"launch","id":3,"rows":[2],"stream":1,"after":[1]}
{"op":"retire","id":1}
{"op":"release","seq":1}
{"op":"retire","id":2,"freed":[3]}
{"op":"release","seq":2}
{"op":"retire","id":3,"freed":[1,2]}
{"op":"add","seq":3,"n":4,"out":[2]}
{"op":"release","seq":3,"freed":[2]}
""".splitlines(keepends=True)


def ended(lines: list[str]) -> bytes:
    """Return a journal of these lines, with a last line that fits them."""
    before = "".join(lines).encode()
    digest = hashlib.blake2b(before, digest_size=32).hexdigest()
    return (
        before
        + json.dumps({"op": "end", "lines": len(lines), "digest": digest}, separators=(",", ":")).encode()
        + b"\n"
    )


Alteration = Callable[[list[str]], list[str]]


def change(line: int, old: str, new: str) -> Alteration:
    """Alter one line, counted from 1."""

    def altered(lines: list[str]) -> list[str]:
        assert lines[line - 1].count(old) == 1
        return [*lines[: line - 1], lines[line - 1].replace(old, new), *lines[line:]]

    return altered


def lose(line: int) -> Alteration:
    """Take one line out."""
    return lambda lines: [*lines[: line - 1], *lines[line:]]


def insert(line: int, text: str) -> Alteration:
    """Put a line in, to be the one with this number."""
    return lambda lines: [*lines[: line - 1], text + "\n", *lines[line - 1 :]]


def swap(line: int) -> Alteration:
    """Let a line and the next change places."""
    return lambda lines: [*lines[: line - 1], lines[line], lines[line - 1], *lines[line + 1 :]]


# What the spec leaves to a manager: altered so, the journal still holds.
CHOICES: dict[str, Alteration] = {
    "another free block": lambda lines: change(13, "[2]", "[5]")(change(14, "[2]", "[5]")(lines)),
    "more edges than needed": change(7, '"after":[1]', '"after":[1,2]'),
    "a block freed a little later": lambda lines: change(10, ',"freed":[3]', "")(change(12, "[1,2]", "[1,2,3]")(lines)),
    "a completion that comes twice": insert(13, '{"op":"retire","id":2}'),
    "a fence that touches nothing": insert(13, '{"op":"launch","id":4}'),
    "an extension of nobody": insert(13, '{"op":"extend"}'),
}

"""The lengths that a sweep is about: drawn from declared buckets, or those of a real trace.

*Buckets*: each sequence falls into one of four by the weights given, and its length is spread evenly inside. Weights
and seed are all it depends on, so the same ones give the same lengths on any machine. Such a length is a static one: it
is allocated at once and holds exactly so many positions.

*A trace*: each request comes with its prompt and grows one token at a time to its final length, all of them side by
side, none leaving. That is more than any engine would hold, and shows what each request costs in blocks, whole or grown
(`pagedkv replay` lets them come and go). Requests without a prompt hold nothing; they are left out and counted. Order,
ties and times of a trace do not matter here.
"""

import math
import re
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import Any

import numpy as np
from pagedkv.bench.failures import BadInput, quoted
from pagedkv.bench.replay_queue import FinalLength, final_tokens
from pagedkv.bench.traces import Int64Array, Trace
from pagedkv.spec.counts import counted

BUCKETS = ((1, 64), (65, 512), (513, 4096), (4097, 16384))
WEIGHTS_DEFAULT = "0.25,0.25,0.25,0.25"
_WEIGHT = re.compile(r"\s*[0-9]{0,12}\.?[0-9]{0,12}\s*")


@dataclass(frozen=True, slots=True, eq=False)
class Lengths:
    """What each sequence starts with and ends with (int64, one entry a sequence), where that is from, and as facts."""

    prompt: Int64Array
    final: Int64Array
    source: str
    facts: dict[str, Any]

    def __len__(self) -> int:
        return len(self.final)

    @property
    def tokens(self) -> int:
        """Positions of all sequences together: the logical tokens."""
        return int(self.final.sum())

    def as_csv(self) -> str:
        """Write the lengths down, one sequence a line."""
        rows = starmap("{},{}".format, zip(self.prompt.tolist(), self.final.tolist(), strict=True))
        return "\n".join(["prompt_tokens,final_tokens", *rows, ""])


def weights_of(text: str) -> tuple[float, ...]:
    """Read the weights of the buckets: one each, not negative, 1 in all. Errors: `BadInput`."""
    where = f"--weights {quoted(text)}"
    remedy = f"give {len(BUCKETS)} with a comma between, like {WEIGHTS_DEFAULT}"
    parts = text.split(",")
    if len(parts) != len(BUCKETS):
        raise BadInput(where, f"{counted(len(parts), 'weight')} for {len(BUCKETS)} buckets", remedy)
    if not all(_WEIGHT.fullmatch(part) and any(map(str.isdigit, part)) for part in parts):
        raise BadInput(where, "not all of them are numbers from 0", remedy)
    weights = tuple(map(float, parts))
    if not math.isclose(math.fsum(weights), 1, abs_tol=1e-9):
        raise BadInput(where, f"they sum to {math.fsum(weights):g}, not to 1", remedy)
    return weights


def drawn_lengths(sequences: int, weights: tuple[float, ...], seed: int) -> Lengths:
    """Draw so many lengths. Every one of them follows from the arguments. O(sequences)."""
    random = np.random.Generator(np.random.PCG64(seed))
    bucket = random.choice(len(BUCKETS), size=sequences, p=weights)
    first, last = np.array(BUCKETS, np.int64).T
    length = random.integers(first[bucket], last[bucket] + 1)
    buckets = [
        {
            "first": begin,
            "last": end,
            "weight": weight,
            "sequences": int((bucket == number).sum()),
            "tokens": int(length[bucket == number].sum()),
        }
        for number, ((begin, end), weight) in enumerate(zip(BUCKETS, weights, strict=True))
    ]
    facts = {"source": "buckets", "buckets": buckets, "seed": seed}
    return Lengths(length, length, f"{counted(sequences, 'length')} drawn from buckets, seed {seed}", facts)


def trace_lengths(trace: Trace, convention: FinalLength) -> Lengths:
    """Take the lengths of a trace. Errors: `BadInput` where no request has a prompt."""
    final = final_tokens(trace, convention)
    some = trace.prompt_tokens > 0
    if not some.any():
        raise BadInput(str(trace.path), "no request of it has prompt tokens", "give a trace whose requests hold some")
    facts = {
        "source": "trace",
        "trace": str(trace.path),
        "trace_format": trace.format.name,
        "final_length": convention.value,
        "empty_requests_left_out": int((~some).sum()),
    }
    source = f"{Path(trace.path).name}: {counted(int(some.sum()), 'request')} ({trace.format.name} trace)"
    return Lengths(trace.prompt_tokens[some], final[some], source, facts)


def lengths_in_words(lengths: Lengths) -> list[str]:
    """Say what the lengths are, in lines."""
    lines = [f"{lengths.source}: {counted(lengths.tokens, 'token')}, the longest {int(lengths.final.max()):,}"]
    for bucket in lengths.facts.get("buckets", ()):
        span = f"{bucket['first']:,} to {bucket['last']:,}"
        held = f"{counted(bucket['sequences'], 'sequence')}, {counted(bucket['tokens'], 'token')}"
        lines.append(f"  {span}: weight {bucket['weight']:g}, {held}")
    if lengths.facts.get("empty_requests_left_out"):
        lines.append(f"  {lengths.facts['empty_requests_left_out']:,} more have no prompt tokens and are left out")
    return lines

"""How long a step takes: the model of time that a clocked replay goes by.

A step of an engine has a fixed part (launching kernels, sampling, the host), a part for each token that is computed
(linear layers, bound by compute), a part for each decoding row, and a part for the context that attention reads (bound
by memory):

    step_ms = base + token * (prompt tokens + decoding rows) + row * decoding rows + context * positions read / 1,000

Positions read are those of all rows of the launch up to the end of it, each row once: a prompt that comes in chunks is
read again with every chunk. A chunk's attention costs chunk times context in compute. The model counts the context
once, so it is too low for long prompts in large chunks. One line for a whole step is the coarsest of such models; Vidur
(MLSys '24) predicts each operator from profiles.

The coefficients are given, read from a file that a fit wrote, or measured on this machine (`step_calibration`). Cost: a
few multiplications.
"""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TypeVar

from pagedkv.bench.failures import BadInput, quoted
from pagedkv.bench.traces import Float64Array

Amount = TypeVar("Amount", float, Float64Array)

COEFFICIENT_MAX_MS = 1e9  # eleven days a step: beyond it a typing error is likelier than an engine
REMEDY = "give base=MS,token=MS,row=MS,context=MS (ms, each 0 or more), a JSON file of these, or calibrate"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Coefficients, in milliseconds: a step, a computed token, a decoding row, a thousand positions of context."""

    base_ms: float = 0.0
    token_ms: float = 0.0
    row_ms: float = 0.0
    context_ms: float = 0.0

    def step_ms(self, prompt_tokens: int, decoding_rows: int, context_tokens: int) -> float:
        """Give how long a step takes that computes so many tokens of prompts beside one of each decoding row."""
        one, tokens, rows, thousands = terms(prompt_tokens, decoding_rows, context_tokens)
        return self.base_ms * one + self.token_ms * tokens + self.row_ms * rows + self.context_ms * thousands

    def in_words(self) -> str:
        """Give the coefficients as the option takes them."""
        return ",".join(f"{name.removesuffix('_ms')}={getattr(self, name):g}" for name in COEFFICIENTS)


COEFFICIENTS = tuple(field.name for field in fields(StepTime))


def terms(prompt_tokens: Amount, decoding_rows: Amount, context_tokens: Amount) -> tuple[float, Amount, Amount, Amount]:
    """Give what the coefficients stand before, in their order, of one step or, in arrays [steps], of many."""
    return 1.0, prompt_tokens + decoding_rows, decoding_rows, context_tokens / 1000


def read_step_time(text: str) -> StepTime:
    """Read `base=…,token=…,row=…,context=…` (left out: 0), or the name of a JSON file that has these with `_ms`.

    Errors: `BadInput`, also where every step would take no time at all.
    """
    where = f"--step-time {text}"
    if "=" not in text:
        return checked(_of_file(Path(text), where), where)
    given: dict[str, object] = {}
    for part in text.split(","):
        name, _, number = part.partition("=")
        if f"{name.strip()}_ms" in given:
            raise BadInput(where, f"{name.strip()} is given twice", REMEDY)
        try:
            given[f"{name.strip()}_ms"] = float(number)
        except ValueError:
            raise BadInput(where, f"{quoted(number)} is no number", REMEDY) from None
    return checked(given, where)


def checked(given: dict[str, object], where: str) -> StepTime:
    """Make a `StepTime` of coefficients that somebody gave. Errors: `BadInput`."""
    coefficients: dict[str, float] = {}
    for name, value in given.items():
        short = name.removesuffix("_ms")
        if name not in COEFFICIENTS:
            raise BadInput(where, f"no coefficient is called {quoted(short)}", REMEDY)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= COEFFICIENT_MAX_MS:
            raise BadInput(where, f"{short} is {quoted(value)}, no time from 0 to {COEFFICIENT_MAX_MS:g} ms", REMEDY)
        coefficients[name] = float(value)
    step_time = StepTime(**coefficients)
    if not any(asdict(step_time).values()):
        raise BadInput(where, "a step would take no time", REMEDY)
    return step_time


def _of_file(path: Path, where: str) -> dict[str, object]:
    """Read the coefficients that a fit or a calibration wrote: an object, or its member `step_time`."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(where, f"cannot be read ({error.strerror})", REMEDY) from error
    except (ValueError, RecursionError) as error:
        raise BadInput(where, f"no JSON ({type(error).__name__})", REMEDY) from error
    found = facts.get("step_time", facts) if isinstance(facts, dict) else None
    if not isinstance(found, dict):
        raise BadInput(where, "no JSON object of coefficients", REMEDY)
    return found

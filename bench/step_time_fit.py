"""The step-time model of an engine, from how long its requests decoded: nothing but time stamps is needed.

A request decodes from its first token to its last. How long that took is the sum of the steps it lived through, others'
prefill and its own recomputation among them, and each step is linear in the model's coefficients. So if the steps are
known, the coefficients are those of a linear least-squares problem with one equation a request, weighted so that a
relative error counts the same in a long and in a short one, and no coefficient may be negative. The steps are those of
a replay through our scheduler; they depend on the coefficients in turn, by who has arrived when, so replay and fit take
turns: from a step that always lasts as long as the median TPOT, each time most of the way to the new coefficients. A
model that makes the replay last what was measured is a fixed point. What is given back is the round whose replay came
nearest to the measured times.

What enters is stated by the arguments: the trace, the settings, and the decode times of the requests that are fitted.
No other measurement can have an influence.

What it cannot do: tell coefficients apart whose quantities move together in all fitted requests. In a saturated cache
the positions read are the same all the time, and their share goes to `base`; `FitRound.mean_step` says over which range
each quantity was seen. Where a schedule hangs on who arrives just before a step's end, a fixed point may lie beside
the truth; the error says so. What was tried and left: times from admission to the first token as further equations
(they depend on how a prompt happens to be cut into steps, more than ten times the scatter); the larger of a
memory-bound and a compute-bound line in place of their sum (nearer on one of the runs at hand, farther on the other);
least absolute deviations (no nearer).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from pagedkv.bench.failures import BadInput
from pagedkv.bench.least_squares import non_negative_least_squares
from pagedkv.bench.real_run_replay import ReplayedRun, RunSettings, replay_run
from pagedkv.bench.step_time import COEFFICIENTS, StepTime, terms
from pagedkv.bench.traces import Float64Array, Int64Array, Trace
from pagedkv.spec.counts import counted

QUANTITIES = ("tokens", "decoding rows", "positions read")  # of a step
ROUNDS_MAX = 20
NO_NEARER_MAX = 3  # rounds in a row
STEP_LENGTH = 0.7  # of the way to the new coefficients: all of it oscillates where two of them can hardly be told apart
ENOUGH = 1e-6  # relative change of a request's decode time
REQUESTS_MIN = 8


@dataclass(frozen=True, slots=True, eq=False)
class FitRound:
    """Coefficients, the replay with them, and its error: the root mean square of the decode times' relative errors.

    `mean_step` [fitted requests, 3]: tokens, decoding rows and positions of a mean step of each request's decode time.
    """

    step_time: StepTime
    replayed: ReplayedRun
    error: float
    mean_step: Float64Array


@dataclass(frozen=True, slots=True, eq=False)
class StepTimeFit:
    """The rounds of a fit; `best` is the one that came nearest."""

    rounds: tuple[FitRound, ...]

    @property
    def best(self) -> FitRound:
        """The round with the smallest error, the first of equals."""
        return min(self.rounds, key=lambda each: each.error)


def fit_step_time(
    trace: Trace,
    settings: RunSettings,
    requests: Int64Array,
    decode_ms: Float64Array,
    on_round: Callable[[int], None] = lambda _rounds: None,
) -> StepTimeFit:
    """Fit the model to how long `requests` of the trace decoded (float64, ms, an entry each).

    Errors: `BadInput` where fewer than eight of them have two tokens and took any time.
    Cost: up to twenty replays, eight or so on the runs at hand.
    """
    usable = (trace.output_tokens[requests] >= 2) & (decode_ms > 0)
    requests, decode_ms = requests[usable], decode_ms[usable]
    if requests.size < REQUESTS_MIN:
        what = (
            f"{counted(requests.size, 'request')} with a decode time to be fitted, at least {REQUESTS_MIN} are needed"
        )
        raise BadInput(str(trace.path), what, "give a longer run, or coefficients by --step-time")
    tpot_ms = decode_ms / (trace.output_tokens[requests] - 1)
    coefficients = np.array([np.median(tpot_ms), 0.0, 0.0, 0.0])
    rounds: list[FitRound] = []
    while len(rounds) < ROUNDS_MAX and _still_nears(rounds):
        step_time = StepTime(**dict(zip(COEFFICIENTS, coefficients.tolist(), strict=True)))
        replayed = replay_run(trace, settings, step_time)
        design, idle_ms = lived_through(replayed, requests)
        error = decode_error(replayed, requests, decode_ms)
        rounds.append(FitRound(step_time, replayed, error, design[:, 1:] / design[:, :1] * (1, 1, 1000)))
        on_round(len(rounds))
        weights = 1 / decode_ms
        target = non_negative_least_squares(design * weights[:, None], 1 - idle_ms * weights)
        if float(np.abs(design @ (target - coefficients) * weights).max()) < ENOUGH:
            break
        coefficients = coefficients + STEP_LENGTH * (target - coefficients)
    return StepTimeFit(tuple(rounds))


def decode_error(replayed: ReplayedRun, requests: Int64Array, decode_ms: Float64Array) -> float:
    """Give the root mean square of the relative errors of decode times; requests that took no time are left out."""
    ours_ms = 1000 * (replayed.last_token_s - replayed.first_token_s)[requests]
    took = decode_ms > 0
    return float(np.sqrt(np.mean((ours_ms[took] / decode_ms[took] - 1) ** 2))) if took.any() else 0.0


def lived_through(replayed: ReplayedRun, requests: Int64Array) -> tuple[Float64Array, Float64Array]:
    """Sum up the steps between each request's first token and its last: [requests, 4], and idle ms [requests].

    The columns are what the coefficients stand before: steps, tokens, decoding rows, thousands of positions.
    """
    begin_ms, end_ms, _, _, _, prompt_tokens, rows, context_tokens = replayed.steps.T
    of_steps = np.stack(np.broadcast_arrays(*terms(prompt_tokens, rows, context_tokens), end_ms - begin_ms), axis=1)
    until = np.concatenate((np.zeros((1, 5)), np.cumsum(of_steps, axis=0)))
    first_ms, last_ms = 1000 * replayed.first_token_s[requests], 1000 * replayed.last_token_s[requests]
    middle_ms = (begin_ms + end_ms) / 2  # a token comes at a step's end, to within rounding
    sums = until[np.searchsorted(middle_ms, last_ms)] - until[np.searchsorted(middle_ms, first_ms)]
    return sums[:, :4], last_ms - first_ms - sums[:, 4]


def _still_nears(rounds: list[FitRound]) -> bool:
    """Whether one of the newest rounds came nearer than all before it."""
    errors = [each.error for each in rounds]
    return errors.index(min(errors)) >= len(errors) - NO_NEARER_MAX if errors else True

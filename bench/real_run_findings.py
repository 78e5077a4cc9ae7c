"""What the data says of a replay beside the measured run, in sentences: of the fit, of the run's parts, of each miss.

Where a difference is beyond its limit, these say by how much, and what the data shows of the reason: whether the fitted
half is off already (then it is the model's form), over which range the fit saw what a step does, and in which part of
the run a difference arises. What a run without a model comes to is said as well, or a good figure would say nothing of
the model. What the files cannot show, such as an engine's host time or its preemptions, is not guessed at.
"""

import numpy as np
from pagedkv.bench.real_run_report import LIMITS_PERCENT, MAKESPAN, SECOND_TPOT, Comparison, Figure, compare, verdict
from pagedkv.bench.step_time_fit import QUANTITIES, StepTimeFit, decode_error
from pagedkv.bench.traces import Float64Array

QUARTERS = (25, 50, 75, 100)
HARDLY_VARIES = 1.1  # a quantity whose greatest is less than this many times its least


def findings(comparison: Comparison) -> list[str]:
    """Say in sentences what the data shows: of the fit, of the run's parts, and of each limit that does not hold."""
    said = (
        [] if comparison.fit is None else [_of_fit(comparison, comparison.fit), _of_no_fit(comparison, comparison.fit)]
    )
    measured, ours = (_finished_s(each.last_token_s) for each in (comparison.run, comparison.replayed))
    times = (f"{share} %: {a:.1f} s beside {b:.1f}" for share, a, b in zip(QUARTERS, measured, ours, strict=True))
    said.append(f"Requests finished, measured beside ours: {', '.join(times)}.")
    return said + [_miss(comparison, figure) for figure in comparison.figures.values() if figure.holds is False]


def _of_fit(comparison: Comparison, fit: StepTimeFit) -> str:
    """Say how near the fit came on either half, and over which range it saw what a step does."""
    best, run = fit.best, comparison.run
    least, most = best.mean_step.min(axis=0), best.mean_step.max(axis=0)
    ranges = "; ".join(f"{a:,.0f} to {b:,.0f} {name}" for name, a, b in zip(QUANTITIES, least, most, strict=True))
    judged = decode_error(best.replayed, comparison.second_half, 1000 * run.decode_s[comparison.second_half])
    text = (
        f"Fitted on the decode times of {comparison.first_half.size:,} requests, which the replay meets to"
        f" {100 * best.error:.1f} % (root mean square), and those of the second half to {100 * judged:.1f} %."
        f" A mean step of the fitted ones had {ranges}."
    )
    still = [name for name, a, b in zip(QUANTITIES, least, most, strict=True) if a and b / a < HARDLY_VARIES]
    if still:
        text += f" The {' and the '.join(still)} hardly vary there: what they cost cannot be told from a step's base."
    return text


def _of_no_fit(comparison: Comparison, fit: StepTimeFit) -> str:
    """Say what is reached without a model: by the first round, in which every step lasts as long."""
    first = fit.rounds[0]
    plain = compare(comparison.run, first.replayed, comparison.settings, (), first.step_time, None).figures
    limited = [plain[key] for key in LIMITS_PERCENT if key in plain]
    off = ", ".join(f"{each.name.partition(',')[0]} {each.difference_percent or 0:+.1f} %" for each in limited)
    return (
        f"Without a model, with every step as long as the fitted requests' median TPOT ({first.step_time.base_ms:.1f}"
        f" ms), the replay meets their decode times to {100 * first.error:.1f} %; what has a limit is off by: {off}."
    )


def _miss(comparison: Comparison, figure: Figure) -> str:
    """Say by how much a limit is missed, and what the data shows of the reason."""
    text = f"{figure.part}, {figure.name}: {figure.ours:,.2f} beside {figure.measured:,.2f}, {verdict(figure)}."
    run, replayed = comparison.run, comparison.replayed
    if figure.key == SECOND_TPOT:
        first = comparison.figures.get("first_half_tpot_p50_ms", figure)
        mean = comparison.figures["mean_running"]
        return (
            f"{text} On the first half it is off by {first.difference_percent or 0:+.1f} %; over the whole run"
            f" {mean.measured:.1f} requests ran on average, in ours {mean.ours:.1f}."
        )
    if figure.key == MAKESPAN:
        measured, ours = (_finished_s(each.last_token_s) for each in (run, replayed))
        behind = np.diff(ours - measured, prepend=0.0).tolist()
        parts = ", ".join(f"{part:+.1f} s" for part in behind)
        return f"{text} By quarters of the requests, in order of their ends, the difference arises as {parts}."
    running, _, _ = replayed.at(run.ticks.at_s)
    at_measured, at_ours = int(run.ticks.running.argmax()), int(running.argmax())
    return (
        f"{text} The measured peak is at {run.ticks.at_s[at_measured]:g} s, where ours has {running[at_measured]:,.0f};"
        f" ours is at {run.ticks.at_s[at_ours]:g} s, where {run.ticks.running[at_ours]:,.0f} were measured. Between"
        f" ticks ours reaches {comparison.replayed.counts.peak_running:,}."
    )


def _finished_s(last_token_s: Float64Array) -> Float64Array:
    """Give when each quarter of the requests has finished."""
    ends = np.sort(last_token_s)
    return ends[[max(0, len(ends) * share // 100 - 1) for share in QUARTERS]]

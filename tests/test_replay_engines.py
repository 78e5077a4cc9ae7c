"""The implementation, the spec's model and a plain manager of lists replay alike: one trace, one set of figures."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pagedkv.bench.engines import Engine, EngineOptions
from pagedkv.bench.impl_engine import open_impl_engine
from pagedkv.bench.replay import replay
from pagedkv.bench.replay_queue import ReplaySettings
from pagedkv.bench.spec_engine import open_spec_engine
from pagedkv.bench.trace_formats import TraceFormat
from pagedkv.bench.traces import Trace, read_trace
from pagedkv.impl.refusals import NoSpace, TooLong

from plain_engine import Opened
from real_data import AZURE, real_data

SMALL = EngineOptions(blocks=2, block_size=4, rows=2, blocks_per_row=2, launches_in_flight=2)


def _figures(trace: Trace, settings: ReplaySettings, open_engine: Any) -> dict[str, Any]:
    return replay(trace, settings, open_engine).as_json() | {"seconds": 0}


@given(
    requests=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9), st.integers(0, 50)), min_size=1, max_size=9),
    block_size=st.integers(1, 9),
    blocks=st.none() | st.integers(1, 12),
    step_ms=st.none() | st.sampled_from([0.5, 10.0]),
)
def test_three_engines_one_outcome(
    requests: list[tuple[int, int, int]], block_size: int, blocks: int | None, step_ms: float | None
) -> None:
    prompt, output, arrival_ms = np.array(requests, np.int64).T
    nothing = np.empty(0, np.int64)
    starts = np.zeros(len(requests) + 1, np.int64)
    trace = Trace(Path("drawn"), TraceFormat("drawn"), arrival_ms / 1000, prompt, output, nothing, starts)
    settings = ReplaySettings(block_size=block_size, blocks=blocks, step_ms=step_ms)
    expected = _figures(trace, settings, Opened())
    assert _figures(trace, settings, partial(open_impl_engine, journal=None)) == expected
    assert _figures(trace, settings, partial(open_spec_engine, journal=None)) == expected


@pytest.mark.parametrize("open_engine", [open_impl_engine, open_spec_engine])
def test_refusals_have_the_implementations_names(
    open_engine: Callable[[EngineOptions, Path | None], AbstractContextManager[Engine]],
) -> None:
    with open_engine(SMALL, None) as engine:
        with pytest.raises(TooLong):
            engine.add(1, 9)
        engine.add(2, 8)
        with pytest.raises(NoSpace):
            engine.add(3, 1)
        engine.release(2)


def test_journals_of_both_differ_in_choices_alone(tmp_path: Path) -> None:
    """The same operations on the same sequences in the same order; which blocks, and when freed, are choices."""
    trace = read_trace(real_data(AZURE), 40)
    choices = {"out", "freed", "digest"}
    journals = []
    for name, open_engine in (("impl", open_impl_engine), ("spec", open_spec_engine)):
        replay(trace, ReplaySettings(blocks=300), partial(open_engine, journal=tmp_path / name))
        lines = [json.loads(line) for line in (tmp_path / name).read_text(encoding="utf-8").splitlines()]
        assert any(line.get("freed") for line in lines)
        journals.append([{key: line[key] for key in line.keys() - choices} for line in lines])
    assert journals[0] == journals[1]

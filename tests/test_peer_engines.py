"""vLLM and SGLang behind the protocols, where they can be imported: rules kept, known answers, and what was found."""

import logging
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from pagedkv.bench.failures import BadInput
from pagedkv.bench.peers import PEERS
from pagedkv.spec import fuzz
from pagedkv.spec.foreign_drivers import ForeignPlan, Offers
from pagedkv.spec.foreign_scheduler import Limits
from pagedkv.spec.state import Config

from checkout import ROOT

MANAGERS = ("vllm", "vllm_uncached", "sglang", "sglang_uncached")
SCHEDULERS = ("vllm_scheduler", "vllm_priority_scheduler")
RUNS = 8


def adapter(name: str) -> Callable[..., Any]:
    """Return the adapter of a peer; skip where the peer can't be imported."""
    try:
        return PEERS[name].factory()
    except BadInput as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("name", MANAGERS)
def test_a_manager_keeps_the_rules_that_show_from_outside(name: str) -> None:
    tally = fuzz.fuzz(fuzz.Plan(adapter(name), lock_step=False), runs=RUNS)
    assert tally.finding is None
    assert tally.fired["release"] > 0


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_keeps_the_rules_that_show_from_outside(name: str) -> None:
    factory = adapter(name)
    offers = Offers.of(factory(Config(4, 4), Limits(8, 4)))
    tally = fuzz.fuzz(ForeignPlan(factory, offers), runs=RUNS)
    assert tally.finding is None
    assert tally.fired["preemption"] > 0


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_a_prompt_begins_with_the_blocks_of_one_before(name: str) -> None:
    """Of seven tokens in blocks of two, three blocks are full; of a prompt of six the last block is computed anew."""
    manager = adapter(name)(Config(12, 2))
    assert tuple(manager.add_prompt(1, (1, 2, 3, 4, 5, 6, 7), 0).hits) == ()
    manager.launch(((1, 7),), 0)
    manager.retire(1)
    held = tuple(manager.block_table(1))
    assert tuple(manager.add_prompt(2, (1, 2, 3, 4, 5, 6, 8), 0).hits) == held[:3]
    assert tuple(manager.add_prompt(3, (1, 2, 3, 4, 5, 6), 0).hits) == held[:2]
    assert tuple(manager.add_prompt(4, (1, 2, 3), 1).hits) == (), "nothing of another salt"


def test_vllm_hits_a_block_that_a_withdrawn_step_never_wrote(caplog: pytest.LogCaptureFixture) -> None:
    """A finding in vLLM 0.33.0, told in its own calls: positions 64 to 79 of `0` are a hit and were never computed.

    `allocate_slots` puts blocks into the prefix cache when they are allocated. Where a more urgent request preempts one
    that has already been scheduled in the same step, its part of the step is withdrawn, and its blocks stay cached.
    """
    adapter("vllm_priority_scheduler")
    if PEERS["vllm"].version() != "0.33.0":
        pytest.skip("found in vLLM 0.33.0, and another is here")
    caplog.set_level(logging.CRITICAL)
    from pagedkv.bench.peer_engines import make_vllm_request, make_vllm_scheduler, vllm  # noqa: PLC0415

    limits = Limits(256, 4, prefix_cache=True)
    scheduler = make_vllm_scheduler(7, 16, limits, policy="priority", long_prefill_token_threshold=32)

    def add(name: int, prompt: range, outputs: int, priority: int) -> None:
        request = make_vllm_request(name, prompt, 16, max_tokens=outputs)
        request.priority = priority
        scheduler.add_request(request)

    def step(sampled: Mapping[str, list[int]]) -> dict[str, tuple[int, int]]:
        """Take a step; return from where to where each request computes."""
        output = scheduler.schedule()
        ends = {name: scheduler.requests[name].num_computed_tokens for name in output.num_scheduled_tokens}
        rows = {name: (end - output.num_scheduled_tokens[name], end) for name, end in ends.items()}
        tokens = [sampled.get(name, []) for name in rows]
        answer = vllm().outputs.ModelRunnerOutput([*rows], {name: at for at, name in enumerate(rows)}, tokens)
        scheduler.update_from_output(output, answer)
        return rows

    add(0, range(96), outputs=1, priority=2)
    add(1, range(1000, 1001), outputs=1, priority=1)
    assert step({"1": [7]}) == {"1": (0, 1), "0": (0, 32)}
    add(2, range(2000, 2016), outputs=2, priority=0)
    assert step({"2": [7]}) == {"0": (32, 64), "2": (0, 16)}
    assert step({"2": [7]}) == {"2": (16, 17)}, "the part of 0 was scheduled first, and withdrawn"
    assert step({"0": [7]}) == {"0": (80, 96)}, "it should be (64, 96)"


def test_naming_the_engines_imports_none() -> None:
    program = (
        "import sys, pagedkv.bench.peers, pagedkv.bench.peer_engines\n"
        "assert not {'vllm', 'sglang', 'transformers'} & set(sys.modules)\n"
        "sys.modules['vllm'] = None\n"
        "from pagedkv.bench.failures import BadInput\n"
        "try:\n    pagedkv.bench.peers.vllm\nexcept BadInput as missing:\n    print(missing)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    (line,) = ran.stdout.splitlines()
    assert line.startswith("vllm.v1.core.kv_cache_manager: cannot be imported")
    assert line.endswith("; pip install --no-deps vllm==0.33.0")


@pytest.mark.parametrize("name", ["peer_vllm.py", "peer_vllm_scheduler.py", "peer_sglang.py"])
def test_an_adapter_has_less_than_a_hundred_lines(name: str) -> None:
    assert len((ROOT / "bench" / name).read_text(encoding="utf-8").splitlines()) < 100

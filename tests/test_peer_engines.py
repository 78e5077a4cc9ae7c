"""vLLM and SGLang behind the protocols, where they can be imported: rules kept, known answers, and what was found."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from pagedkv.bench.failures import BadInput
from pagedkv.bench.peers import PEERS
from pagedkv.spec.foreign_drivers import ForeignCase, ForeignPlan, Offers
from pagedkv.spec.foreign_judge import ForeignWorld, Happened
from pagedkv.spec.foreign_scheduler import Limits
from pagedkv.spec.fuzz import fuzz
from pagedkv.spec.fuzz_plan import Plan
from pagedkv.spec.refusals import Broken
from pagedkv.spec.requests import Request
from pagedkv.spec.scheduler_alphabet import Complete, Schedule, Submit
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
    tally = fuzz(Plan(adapter(name), lock_step=False), runs=RUNS)
    assert tally.finding is None
    assert tally.fired["release"] > 0


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_keeps_the_rules_that_show_from_outside(name: str) -> None:
    factory = adapter(name)
    offers = Offers.of(factory(Config(4, 4), Limits(8, 4)))
    tally = fuzz(ForeignPlan(factory, offers), runs=RUNS)
    assert tally.finding is None
    assert tally.fired["complete"] > 0


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


def test_vllm_hits_a_block_that_a_withdrawn_step_never_wrote() -> None:
    """A finding in vLLM 0.33.0, in 11 operations.

    `allocate_slots` puts blocks into the prefix cache as they are allocated. In the third step request 0 is scheduled,
    which would fill block 1 (positions 4 to 7) with 6 and 7, and is then preempted by request 2, which is more urgent.
    Its part of the step is withdrawn, and block 1 stays cached. So request 0 comes again with 8 positions as a hit, and
    never computes 6 and 7.
    """
    limits = Limits(32, 4, prefix_cache=True)
    here = ForeignCase(Config(4, 4), adapter("vllm_priority_scheduler"), limits).start()
    if PEERS["vllm"].version() != "0.33.0":
        pytest.skip("found in vLLM 0.33.0, and another is here")
    here.step(Submit(Request(0, 9, 1)))
    here.step(Submit(Request(1, 1, 1)))
    assert stepped(here) == {1: (0, 1), 0: (0, 3)}
    here.step(Submit(Request(2, 5, 1)))
    assert stepped(here) == {0: (3, 3), 2: (0, 3)}
    assert stepped(here) == {2: (3, 2)}
    with pytest.raises(Broken) as found:
        stepped(here)
    assert found.value.rule == "R-HASH-4"
    assert found.value.detail.startswith("position 6 of request 0 is read from block 1 slot 2, which holds nothing")


def stepped(here: ForeignWorld) -> dict[int, tuple[int, int]]:
    """Schedule a step and complete it; return from where each request computes, and how many positions."""
    seen = here.step(Schedule())
    assert isinstance(seen, Happened)
    here.step(Complete())
    return {row.request: (row.start, row.length) for row in seen.rows}


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

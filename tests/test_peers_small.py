"""nano-vllm and mini-sglang under the drivers, where they can be imported.

A small number of operations: `pagedkv peers` runs a hundred thousand of each. nano-vllm (commit bb823b3) holds. What is
expected of mini-sglang (commit 20fcd7f) was found so and then traced by hand, by the calls that its loop makes.
"""

from typing import Any

import pytest
from pagedkv.bench.failures import BadInput
from pagedkv.bench.peers import PEERS
from pagedkv.spec.alphabet import Add, Publish
from pagedkv.spec.alphabet import Submit as Launch
from pagedkv.spec.foreign_drivers import ForeignCase, ForeignPlan, Offers
from pagedkv.spec.foreign_requests import next_token
from pagedkv.spec.foreign_scheduler import STOP
from pagedkv.spec.fuzz import fuzz
from pagedkv.spec.fuzz_plan import Plan
from pagedkv.spec.refusals import Broken
from pagedkv.spec.requests import Limits, Request
from pagedkv.spec.scheduler_alphabet import Cancel, Complete, Schedule, Submit
from pagedkv.spec.state import Config
from pagedkv.spec.world import world

TWO_AHEAD = Limits(max_tokens_per_step=8, max_running=4, steps_ahead=2)


def adapter(name: str) -> Any:
    """Return an adapter; skip where its peer is not there."""
    if not PEERS[name].is_installed():
        pytest.skip(f"{PEERS[name].package} is not on the path")
    try:
        return PEERS[name].factory()
    except BadInput as absent:
        pytest.skip(str(absent))


def test_nano_vllm_holds() -> None:
    kind = adapter("nano_vllm")
    tally = fuzz(Plan(kind, lock_step=False, block_sizes=kind.block_sizes, sharing=True), seed=1, runs=4)
    assert tally.finding is None
    assert min(tally.fired[word] for word in ("publish", "execute", "release")) > 20


def test_nano_vllm_serves_everybody() -> None:
    kind = adapter("nano_vllm_scheduler")
    offers = Offers(shares_prefixes=True, block_sizes=kind.block_sizes, not_offered=kind.not_offered)
    tally = fuzz(ForeignPlan(kind, offers), seed=1, runs=6)
    assert tally.finding is None
    assert tally.fired["preemption"] > 0
    assert tally.fired["hit"] > 0


def test_mini_sglang_frees_pages_that_a_request_goes_on_with() -> None:
    """R-OWN-3: `cache_req` frees what somebody else put into the tree first, and the page table keeps naming it."""
    here = world(Config(4, 2, 1, 2), adapter("mini_sglang"), lock_step=False)
    for operation in (Add(1, (5, 6, 7)), Add(2, (5, 6, 8)), Launch(((1, 3), (2, 3))), Publish(((1, ()),))):
        here.step(operation)
    with pytest.raises(Broken, match=r"R-OWN-3: .*are free, and sequence 2 holds them"):
        here.step(Publish(((2, ()),)))


def test_mini_sglang_admits_more_pages_than_it_has() -> None:
    """R-CAP-1: the estimate counts tokens, and pages are taken whole."""
    here = ForeignCase(Config(1, 4), adapter("mini_sglang_scheduler"), TWO_AHEAD).start()
    for request in (1, 2):
        here.step(Submit(Request(request, (request,), 1)))
    with pytest.raises(Broken, match=r"CRASH: schedule: NotImplementedError: .* does not support eviction"):
        here.step(Schedule())


def test_mini_sglang_frees_twice_what_is_aborted_in_flight_and_ends_by_itself() -> None:
    """R-OWN-3: `_process_last_data` knows of requests that ended a step ago, and of none that were aborted."""
    here = ForeignCase(Config(3, 1), adapter("mini_sglang_scheduler"), TWO_AHEAD).start()
    ends_it = next(token for token in range(100) if next_token((token,), stops=True) == STOP)
    for operation in (Submit(Request(1, (ends_it,), 2)), Schedule(), Cancel(1), Schedule()):
        here.step(operation)
    with pytest.raises(Broken, match="R-OWN-3: 4 blocks are free or cached, of 3"):
        here.step(Complete())


def test_mini_sglang_says_finished_a_token_early() -> None:
    """R-LIFE-7: the step ahead has been counted when the one before it is processed."""
    here = ForeignCase(Config(4, 1), adapter("mini_sglang_served"), TWO_AHEAD).start()
    for operation in (Submit(Request(1, (1,), 2)), Schedule(), Schedule()):
        here.step(operation)
    with pytest.raises(Broken, match="R-LIFE-7: request 1 finishes with 2 tokens of 3"):
        here.step(Complete())
